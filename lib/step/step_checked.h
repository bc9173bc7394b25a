/* SPDX-License-Identifier: Apache-2.0 */
/* Reads bytes of a step that has sums, and checks the blocks that they are in. */
#ifndef SHF_STEP_CHECKED_H
#define SHF_STEP_CHECKED_H
#include "place.h"
#include "step.h"

#define SHF_CHECKED_BYTES (4 * SHF_BLOCK)       /* memory of a reader */
/* A reader of one thread. It keeps the blocks that it read last, because the bytes that are read
 * next mostly follow them. */
struct shf_checked {
	struct sheaf_checkpoint *step;  /* borrowed; all its files are open */
	uint8_t *blocks;                /* owned */
	uint32_t file;                  /* the file that they are in */
	uint64_t at, n;                 /* their offset in it, and their bytes; 0: there are none */
};
int shf_checked_init(struct shf_checked *c, struct sheaf_checkpoint *step, struct sheaf_error *err);
void shf_checked_release(struct shf_checked *c);
/* Reads n bytes at `at` of file f. ECORRUPT, EIO. [any thread, one at a time for each reader] */
int shf_checked_read(struct shf_checked *c, uint32_t f, uint64_t at, uint8_t *to, uint64_t n,
                     struct sheaf_error *err);
#endif
