/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a save: committed, failed, given up, or left when its run is closed. */
#ifndef SHF_SAVE_END_H
#define SHF_SAVE_END_H
#include "save.h"

void shf_save_free(struct sheaf_save *save);
/* The save is over with this outcome: off the list, stage gone or closed. [local] */
void shf_save_settle(struct sheaf_save *save, int rc, const struct sheaf_error *err);
/* The run must hold no save any more that was not committed. [local] */
void shf_save_abandon(struct sheaf_run *run);
/* Perhaps it is on disk: saves begun after it would name the wrong parent. [local], on all ranks */
void shf_save_doubt(struct sheaf_save *save);
/* What `reserve` of save.c has allocated. ours: not in a forked child. [local] */
void shf_save_unreserve(struct sheaf_save *save, bool ours);
#endif
