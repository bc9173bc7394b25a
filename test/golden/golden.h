/* SPDX-License-Identifier: Apache-2.0 */
/* What the golden runs hold: written down once, for the program that made them and for those that
 * read them for ever. Never changed; a later format gets a list of its own. */
#ifndef GOLDEN_H
#define GOLDEN_H
#include <stddef.h>
#include "sheaf.h"

enum { GOLDEN_RANKS = 3, GOLDEN_STREAM = 41, GOLDEN_BYTES = 8192 };
#define GOLDEN_FILE_BYTES 6000
extern const int64_t golden_steps[2];   /* the second goes on from the first */

enum golden_how {
	GOLDEN_CUT,                     /* dimension 0 in pieces of ceil(n / ranks) */
	GOLDEN_WHOLE,                   /* on every rank */
	GOLDEN_LAST,                    /* on the last rank alone */
	GOLDEN_RANGE                    /* in a range of items for each rank */
};
struct golden_tensor {
	const char *family, *name;
	int32_t dtype, ndim;
	int64_t shape[SHEAF_DIMS_MAX];
	enum golden_how how;
};
extern const struct golden_tensor golden_tensors[];
extern const size_t golden_tensors_n;
#define GOLDEN_TIED "lm_head.weight"    /* to */
#define GOLDEN_TIED_TO "embed.weight"
#define GOLDEN_STREAM_NAME "rng"

struct golden_text {
	const char *name, *text;        /* a note's key, or an attached file */
};
extern const struct golden_text golden_notes[], golden_files[];
extern const size_t golden_notes_n, golden_files_n;

int64_t golden_items(const struct golden_tensor *t);
size_t golden_bytes(const struct golden_tensor *t);
/* Bytes [0, n) of a tensor, at most GOLDEN_BYTES. */
void golden_fill(uint8_t *bytes, size_t n, int64_t step, const char *family, const char *name,
                 int boolean);
#endif
