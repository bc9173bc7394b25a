/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a save: committed, failed, freed by its caller, or still open when its run is
 * closed. */
#ifndef SHF_SAVE_END_H
#define SHF_SAVE_END_H
#include "save.h"

/* Frees the save, whatever state it is in; one that was not committed is abandoned. In a forked
 * child it frees memory and descriptors only. NULL is allowed. [local] */
void shf_save_free(struct sheaf_save *save);
/* Ends the save with the outcome rc of its commit: waits for its requests to the disk, deletes its
 * stage if the step was not published, and removes it from the run's list. [local] */
void shf_save_settle(struct sheaf_save *save, int rc, const struct sheaf_error *err);
/* Ends all saves of a run that is being closed. Their handles stay valid until the caller frees
 * them. [local] */
void shf_save_abandon(struct sheaf_run *run);
/* Notes that the step of this save may or may not be on disk. Fails the saves begun after it,
 * because their manifests could name the wrong parent. [local], on all ranks */
void shf_save_doubt(struct sheaf_save *save);
/* Frees the tables that reserve() in save.c allocated. ours: false in a forked child. [local] */
void shf_save_unreserve(struct sheaf_save *save, bool ours);
#endif
