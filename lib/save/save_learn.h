/* SPDX-License-Identifier: Apache-2.0 */
/* What the copy behind learns from a save for the next one of the same plan: in which order the
 * slices are asked for, and how far ahead of that it was.
 *
 * An optimizer goes through its tensors in the same order at every step, but not always in that in
 * which they were added: it changes a weight with its master and its moments, and a state may be
 * added family by family. Copied in the order of the gates, each slice has all the time until its
 * own gate; in another order the first gate may need the last slice. */
#ifndef SHF_SAVE_LEARN_H
#define SHF_SAVE_LEARN_H
#include "save_pieces.h"

/* Memory to learn from this save, and the order that was learned. ENOMEM. */
int  shf_learn_init(struct shf_lazy *lz);
/* Somebody wants the slice, because he has asked for it or for one in the same memory. [any
 * thread] */
void shf_learn_asked(struct shf_lazy *lz, size_t slice);
/* He waited so long for the copy. [any thread] */
void shf_learn_waited(struct shf_lazy *lz, int64_t ns);
/* The save is over: the plan keeps what it taught. Twice is once. [local] */
void shf_learn_end(struct shf_lazy *lz);
/* How many threads copy this save. [local] */
int  shf_learn_threads(const struct shf_lazy *lz);
void shf_learn_free(struct shf_lazy *lz);
#endif
