/* SPDX-License-Identifier: Apache-2.0 */
/* What a save does in the memory tier, where agents keep its images. */
#ifndef SHF_SAVE_MEMORY_H
#define SHF_SAVE_MEMORY_H
#include "save.h"

/* Stamps the card of the save's image on this rank, after all bytes are in the images of all ranks.
 * *stamped: what came of it here; err is about that, too. Then all ranks call shf_tier_stamped with
 * the code that they have agreed on. [collective] */
int  shf_tier_stamp(struct sheaf_save *save, int *stamped, struct sheaf_error *err);
/* If all have stamped it, the step is in memory (M2), and its copies are made; if not, no rank has
 * it there. [collective] */
int  shf_tier_stamped(struct sheaf_save *save, int rc, struct sheaf_error *err);
/* Around the publication of a save: what is in memory follows it, perhaps, and then surely. By
 * then rank 0 knows what came of a step that was in doubt before it (doubt: some rank remembers
 * one). [collective], [local] */
int  shf_tier_publishing(struct sheaf_save *save, bool doubt, struct sheaf_error *err);
void shf_tier_published(struct sheaf_save *save);
/* Call it if nobody knows whether the save is on disk. Steps in memory that follow it are found
 * either way. [local] */
void shf_tier_doubt(struct sheaf_save *save);
/* Takes a save that ended without being committed out of memory. [local] */
void shf_tier_unsaved(struct sheaf_save *save);
/* Is all of the save in the memory of agents now, on every rank? An image may have been reused for
 * another step since, or an agent may be gone. Also false if the group fails. [collective] */
bool shf_tier_has(struct sheaf_save *save);
/* The same of this rank alone. [local] */
bool shf_tier_has_here(const struct sheaf_save *save);
/* The caller has left a save that is not committed to disk. Keeps it in memory if its commit said
 * that it is there and nobody has failed it; else takes it out. [local] */
void shf_tier_left(struct sheaf_save *save);
#endif
