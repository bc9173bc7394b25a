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
	char path[200];                 /* relative to the disk's root */
	char name[160];                 /* relative to the step, or to .sheaf */
	int64_t step;                   /* -1: a file in .sheaf */
	enum harm_kind kind;
	uint8_t *bytes;                 /* owned; as committed */
	size_t n;
};
struct harm_run {
	struct harm_file files[HARM_FILES];     /* sorted by path */
	int files_n;
	size_t bytes;                   /* total size */
};
struct sheaf_run;
struct sheaf_state;
struct sheaf_checkpoint;
/* Saves it in one process; salt changes every value. */
void harm_save(struct simdisk *disk, const char *dir, uint64_t salt);
/* Saves one more step in an open run. */
int harm_save_step(struct sheaf_run *run, int64_t step, struct sheaf_state *state,
                   struct sheaf_error *err);
void harm_walk(struct harm_run *r, struct simdisk *disk, const char *dir);
void harm_release(struct harm_run *r);
const struct harm_file *harm_find(const struct harm_run *r, int64_t step, const char *name);
/* Finds the tensor that has the byte; "" and "" if it is in a header, or the file has no
 * tensors. */
void harm_owner(const struct harm_file *f, size_t at, char family[40], char name[80]);
/* Returns a durable copy of the disk, independent of the original. */
struct simdisk *harm_copy(struct simdisk *disk);

/* The state of one rank: rows of every tensor, in one block of memory */
struct harm_hand {
	struct sheaf_state *state;      /* owned */
	uint8_t *memory, *want;         /* owned */
	size_t n;
	uint64_t salt;
	int64_t step;                   /* the step with the expected values */
	int rank, ranks;
};
void harm_hold(struct harm_hand *h, int rank, int ranks, uint64_t salt);
void harm_hand_release(struct harm_hand *h);
/* Fills memory with 0xA5, and want with the values of the step. */
void harm_hand_want(struct harm_hand *h, int64_t step);
/* Reads only the i-th tensor of the step, by sheaf_checkpoint_read. *right: every byte is right. */
int harm_read(struct sheaf_checkpoint *step, uint64_t salt, uint64_t i, bool *right, char who[130],
              struct sheaf_error *err);
bool harm_hand_right(const struct harm_hand *h);
bool harm_hand_touched(const struct harm_hand *h);
#endif
