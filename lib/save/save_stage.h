/* SPDX-License-Identifier: Apache-2.0 */
/* C0 of a commit: makes the stage directory of a save and its files, and finds the step that the
 * save follows. */
#ifndef SHF_SAVE_STAGE_H
#define SHF_SAVE_STAGE_H
#include "list.h"
#include "save.h"

/* Makes the stage on rank 0, and on each rank the files that it will write. Does nothing if the
 * save has its stage already. A failure is recorded in the save on all ranks. [collective] */
int shf_save_stage(struct sheaf_save *save, struct sheaf_error *err);
/* Makes the stage like shf_save_stage, but without the final agreement, for begin, which agrees
 * after its copy anyway. *joined and *err: the result of this rank's own part. After it all ranks
 * agree on these results, and call shf_save_staged with the common code. [collective] */
int shf_save_stage_make(struct sheaf_save *save, int *joined, struct sheaf_error *err);
/* Completes shf_save_stage_make. rc: the code that all ranks agreed on; it is returned, but EINVAL
 * as EFAILED if begin has returned. On success the save's complete segments may be written. [local]
 */
int shf_save_staged(struct sheaf_save *save, int rc, struct sheaf_error *err);
/* Makes a save that is being begun follow the step that the run continues from now, which an older
 * save in flight may have changed. [local] */
void shf_save_follow(struct sheaf_save *save);
/* Notes that this step of this handle is on disk, so all later saves follow it, including those in
 * flight. [local] */
void shf_run_set_parent(struct sheaf_run *run, int64_t step, const char session[33]);
/* Checks that the step which this save would follow was not set aside by a rewind, because then the
 * new step would belong to no branch. EINVAL if it was. n: the newest step on disk. [rank 0] */
int shf_save_check_parent(const struct sheaf_save *save, const struct shf_newest *n,
                          struct sheaf_error *err);
#endif
