/* SPDX-License-Identifier: Apache-2.0 */
/* The saves of a job, which go on in the background. At most one to the disk and one to memory are
 * in flight at a time. */
#ifndef TRAINSAVE_H
#define TRAINSAVE_H
#include "trainjob.h"

/* Begins to save the current state. First it waits until the save to memory that is in flight is
 * committed; before a save to the disk, also for the one to the disk. [collective] */
int tr_job_save(struct tr_job *j, enum tr_place to, struct tr_error *err);
/* Continues the saves in flight; with `wait` until they are committed. EAGAIN: a signal
 * has asked to stop, and stop-seconds are over. [collective] */
int tr_job_advance(struct tr_job *j, int wait, struct tr_error *err);
/* Does what tr_agree does, and also agrees on the signals that any rank has got: sets save_asked
 * and stop_ns of the job. [collective] */
int tr_job_agree(struct tr_job *j, int code, struct tr_error *err);
/* Commits the saves in flight after a failure that all ranks have agreed on. They are of earlier
 * steps, which did not fail. [collective] */
void tr_job_finish_save(struct tr_job *j);
/* Begins to save the current step, unless that was done, after a failure that all ranks have agreed
 * on and that has changed neither weights nor moments. [collective] */
void tr_job_rescue(struct tr_job *j);
#endif
