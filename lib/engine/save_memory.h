/* SPDX-License-Identifier: Apache-2.0 */
/* A save in the memory tier. */
#ifndef SHF_SAVE_MEMORY_H
#define SHF_SAVE_MEMORY_H
#include "save.h"

/* All of the save is in images on all ranks: from here on it is there (M2). Its failure leaves it
 * as if it had never been in memory. [collective] */
int  shf_tier_commit(struct sheaf_save *save, struct sheaf_error *err);
/* Around the publication of a save: what is in memory follows it, perhaps, and then surely. By
 * then rank 0 knows what came of a step that was in doubt before it. [collective], [local] */
int  shf_tier_publishing(struct sheaf_save *save, struct sheaf_error *err);
void shf_tier_published(struct sheaf_save *save);
/* The disk may have it, or not: what follows in memory is right either way. [local] */
void shf_tier_doubt(struct sheaf_save *save);
/* A save has ended without being committed: it is not in memory either. [local] */
void shf_tier_unsaved(struct sheaf_save *save);
/* Is all of the save in the memory of agents now, on every rank? An image may have been reused for
 * another step since, or an agent may be gone. Also false if the group fails. [collective] */
bool shf_tier_has(struct sheaf_save *save);
/* One that commit said is in memory, and that nobody has failed, stays there. [local] */
void shf_tier_left(struct sheaf_save *save);
#endif
