/* SPDX-License-Identifier: Apache-2.0 */
/* What a lazy save learns for the next save of the same plan: in which order callers ask for the
 * slices at their gates, and how far ahead of the callers the copy was.
 *
 * An optimizer goes through its tensors in the same order at every step, but that need not be the
 * order in which they were added to the state: it changes a weight together with its master and its
 * moments, while a state may be added family by family. If slices are copied in the order of the
 * gates, each slice has all the time until its own gate; in another order, the slice of the first
 * gate may be copied last. */
#ifndef SHF_SAVE_LEARN_H
#define SHF_SAVE_LEARN_H
#include "save_pieces.h"

/* Allocates memory to learn from this save, and copies the order that was learned before.
 * ENOMEM. */
int  shf_save_learn_init(struct shf_save_copier *lz);
/* Notes that a caller wants the slice: it has asked at the gate of this slice, or of another one in
 * the same memory. [any thread] */
void shf_save_learn_asked(struct shf_save_copier *lz, size_t slice);
/* Adds ns to the time that callers waited for the copy at gates. [any thread] */
void shf_save_learn_waited(struct shf_save_copier *lz, int64_t ns);
/* Stores in the plan what was learned from this save: the order in which slices were asked for, and
 * the times of its copy. Call it when the copy has ended; a second call does nothing. [local] */
void shf_save_learn_end(struct shf_save_copier *lz);
/* Returns how many threads are to copy this save. [local] */
int  shf_save_learn_threads(const struct shf_save_copier *lz);
void shf_save_learn_free(struct shf_save_copier *lz);
#endif
