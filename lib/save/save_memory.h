/* SPDX-License-Identifier: Apache-2.0 */
/* How a save becomes a step in the memory tier: agents keep its images after the trainer has died,
 * and the cards of the images (image_card.h) say what is in them. */
#ifndef SHF_SAVE_MEMORY_H
#define SHF_SAVE_MEMORY_H
#include "save.h"

/* Fills in the card of the save's image on this rank. Called after all bytes are in the images of
 * all ranks. *stamped and *err: the result of this rank's own part. After it all ranks agree on
 * these results and call shf_save_memory_stamp_end with the common code. [collective] */
int  shf_save_memory_stamp(struct sheaf_save *save, int *stamped, struct sheaf_error *err);
/* Completes shf_save_memory_stamp with the common code rc. rc 0: all ranks have stamped, so the
 * step is in memory (M2), and its replicas are sent. rc < 0: clears the card, so the step is in
 * memory on no rank. [collective] */
int  shf_save_memory_stamp_end(struct sheaf_save *save, int rc, struct sheaf_error *err);
/* Called before a save is published, and after. The card of a later step in memory says which step
 * on disk it follows: before the publication the published step is noted as possible, afterwards as
 * certain. If an earlier publication was in doubt (doubt: some rank remembers such a step), rank 0
 * knows its outcome by now and sends it to all ranks. [collective], [local] */
int  shf_save_memory_publishing(struct sheaf_save *save, bool doubt, struct sheaf_error *err);
void shf_save_memory_published(struct sheaf_save *save);
/* Notes that the step of this save may or may not be on disk. Steps in memory that follow it can be
 * found in either case. If the step is in memory, it is the newest there. [local] */
void shf_save_memory_doubt(struct sheaf_save *save);
/* Removes the step of a save that ended without being committed from memory. [local] */
void shf_save_memory_remove(struct sheaf_save *save);
/* Whether all of the save is in the memory of agents now, on every rank. Its image may have been
 * reused for another step since it was stamped, or an agent may have died. Also false if the group
 * fails. [collective] */
bool shf_save_memory_is_whole(struct sheaf_save *save);
/* Whether this rank's part of the save is in the memory of its agent now. [local] */
bool shf_save_memory_is_here(const struct sheaf_save *save);
/* Called when the caller has freed a save, or closed its run, without committing it to disk. If a
 * commit has put the step into memory, and sheaf_save_abort was not called, the step stays there;
 * else it is removed. [local] */
void shf_save_memory_abandon(struct sheaf_save *save);
#endif
