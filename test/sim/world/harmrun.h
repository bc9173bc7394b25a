/* SPDX-License-Identifier: Apache-2.0 */
/* A small run to be harmed, and what is known of it without asking store, format or engine: its
 * files by a walk of our own, the tensor that holds a byte by our own reading of the header, the
 * value of every byte by a formula.
 *
 *   run/checkpoint-7, -8   model in two files, master weights, optimizer, a tied name, an empty
 *                          tensor, config.json, notes; 7 is marked to be kept
 *   run/checkpoint-9       one small tensor; marked bad, so that 8 is the latest
 *   run/.sheaf/aside       step 10, small, rewound
 *
 * All files of a run together have at most 64 KiB. */
#ifndef HARMRUN_H
#define HARMRUN_H
#include <stdbool.h>
#include "sheaf.h"
#include "simdisk.h"
#include "step.h"

enum { HARM_FILES = 64, HARM_RANKS = 2, HARM_BYTES = 65536 };
enum { HARM_LATEST = 8, HARM_OLDER = 7, HARM_BAD = 9 };

enum harm_kind {
	HARM_MANIFEST, HARM_SUMS, HARM_WEIGHTS, HARM_INDEX, HARM_ATTACHED, HARM_DOT
};
struct harm_file {
	char path[200];                 /* from the root of the disk */
	char name[160];                 /* from the step, or from .sheaf */
	int64_t step;                   /* -1: below .sheaf */
	enum harm_kind kind;
	uint8_t *bytes;                 /* owned; as they were committed */
	size_t n;
};
struct harm_run {
	struct harm_file files[HARM_FILES];     /* by path */
	int files_n;
	size_t bytes;                   /* of all of them */
};
struct sheaf_run;
struct sheaf_state;
struct sheaf_checkpoint;
/* Saved by one process; salt changes every value. */
void harm_save(struct simdisk *disk, const char *dir, uint64_t salt);
/* One more step of a run that is open. */
int harm_save_step(struct sheaf_run *run, int64_t step, struct sheaf_state *state,
                   struct sheaf_error *err);
void harm_walk(struct harm_run *r, struct simdisk *disk, const char *dir);
void harm_release(struct harm_run *r);
const struct harm_file *harm_find(const struct harm_run *r, int64_t step, const char *name);
/* The tensor that holds the byte: "" and "" in a header, or where the file is no tensors'. */
void harm_owner(const struct harm_file *f, size_t at, char family[40], char name[80]);
/* Everything as it is now, durable and unchanged by what becomes of the other. */
struct simdisk *harm_copy(struct simdisk *disk);

/* What one rank has in hand: rows of every tensor, in one piece of memory. */
struct harm_hand {
	struct sheaf_state *state;      /* owned */
	uint8_t *memory, *want;         /* owned */
	size_t n;
	uint64_t salt;
	int64_t step;                   /* whose values are wanted */
	int rank, ranks;
};
void harm_hold(struct harm_hand *h, int rank, int ranks, uint64_t salt);
void harm_hand_release(struct harm_hand *h);
/* memory becomes 0xA5, want the values of the step. */
void harm_hand_want(struct harm_hand *h, int64_t step);
/* One tensor of the step alone, the i-th of all: as sheaf_checkpoint_read. *right: every byte. */
int harm_read(struct sheaf_checkpoint *step, uint64_t salt, uint64_t i, bool *right, char who[130],
              struct sheaf_error *err);
bool harm_hand_right(const struct harm_hand *h);
bool harm_hand_touched(const struct harm_hand *h);
#endif
