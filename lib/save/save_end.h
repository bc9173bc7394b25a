/* SPDX-License-Identifier: Apache-2.0 */
/* How a save ends: committed, failed, freed by its caller, or left over when its run is closed. */
#ifndef SHF_SAVE_END_H
#define SHF_SAVE_END_H
#include "save.h"

void shf_save_free(struct sheaf_save *save);
/* Ends the save with this outcome: takes it off the run's list, and deletes its stage or closes it.
 * [local] */
void shf_save_settle(struct sheaf_save *save, int rc, const struct sheaf_error *err);
/* Ends all saves of the run that were not committed, because the run is being closed. [local] */
void shf_save_abandon(struct sheaf_run *run);
/* Call it if nobody knows whether the save is on disk. Fails the saves begun after it, which would
 * name the wrong parent. [local], on all ranks */
void shf_save_doubt(struct sheaf_save *save);
/* Frees what `reserve` in save.c has allocated. ours: this is not a forked child. [local] */
void shf_save_unreserve(struct sheaf_save *save, bool ours);
#endif
