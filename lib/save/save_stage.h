/* SPDX-License-Identifier: Apache-2.0 */
/* C0 of a commit: makes the stage of a save and its files, and finds the step that it follows. */
#ifndef SHF_SAVE_STAGE_H
#define SHF_SAVE_STAGE_H
#include "list.h"
#include "save.h"

/* Makes the stage, and on each rank the files that it writes, unless that is done. A failure sticks
 * to the save on all ranks. [collective] */
int shf_save_stage(struct sheaf_save *save, struct sheaf_error *err);
/* The same without its last agreement, for a begin, which agrees once more when it has copied.
 * *joined: what came of this rank's part; err is about that, too. Then all ranks call
 * shf_save_staged with the code that they have agreed on. [collective] */
int shf_save_stage_make(struct sheaf_save *save, int *joined, struct sheaf_error *err);
/* Returns rc. [local] */
int shf_save_staged(struct sheaf_save *save, int rc, const struct sheaf_error *err);
/* Has a save that is still being begun follow what the run goes on from now: an older one in flight
 * may have changed that since. [local] */
void shf_save_follow(struct sheaf_save *save);
/* That step of this handle is on disk: all later saves follow it, those in flight too. [local] */
void shf_run_goes_on_from(struct sheaf_run *run, int64_t step, const char session[33]);
/* EINVAL if the step that it would follow has been set aside: then it would be on no branch.
 * n: what is newest on disk. [rank 0] */
int shf_save_check_parent(const struct sheaf_save *save, const struct shf_newest *n,
                          struct sheaf_error *err);
#endif
