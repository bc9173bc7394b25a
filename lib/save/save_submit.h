/* SPDX-License-Identifier: Apache-2.0 */
/* Saves that a thread of the library commits (opts.commit_group): the commit thread of each
 * rank, what callers hand over to it, and how they learn the outcome.
 *
 * There are two queues, one of saves to disk and one of memory-only saves, and the saves of a queue
 * are committed in the order in which they began. So a step in memory does not wait for one that is
 * still being written. The ranks meet in rounds (save_submit.c), in which each sends how far it is.
 * A round decides which turn (turns.h) comes next, so that all ranks take the same. */
#ifndef SHF_SAVE_SUBMIT_H
#define SHF_SAVE_SUBMIT_H
#include "save.h"

/* Makes the run's commit thread, if it has a commit group. [collective] */
int shf_committer_open(struct sheaf_run *run, struct sheaf_error *err);
/* Ends the commit thread. First all saves that were submitted on all ranks are committed, unless
 * some rank does not close the run, or a group is lost. [collective] */
void shf_committer_close(struct sheaf_run *run);

/* Does what sheaf_save_begin does: takes the run, and waits for the oldest memory-only save if its
 * image is needed. [collective] */
int shf_save_begin_behind(struct sheaf_save **out, struct sheaf_run *run, int64_t step,
                          struct sheaf_state *state, const struct sheaf_save_opts *opts,
                          struct sheaf_error *err);
/* Does what sheaf_save_submit does. The caller has the run (shf_turns_hold). [local] */
int shf_save_submit(struct sheaf_save *save, struct sheaf_error *err);
/* Does what sheaf_save_result does. [any thread] */
int shf_save_result(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err);
/* Does what sheaf_save_free does. A save that is submitted and not over stays until it is, and is
 * freed by a later shf_committer_reap. The caller has the run. [local] */
void shf_save_leave(struct sheaf_save *save);
/* Frees the saves that their callers have freed, as far as they are over. The caller has the run.
 * [local] */
void shf_committer_reap(struct sheaf_run *run);
#endif
