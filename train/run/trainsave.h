/* SPDX-License-Identifier: Apache-2.0 */
/* The saves of a training, in the background. One is in flight at a time. */
#ifndef TRAINSAVE_H
#define TRAINSAVE_H
#include "trainjob.h"

/* Begins to save the present state. It first waits until the save in flight is committed.
 * [collective] */
int tr_job_save(struct tr_job *j, struct tr_error *err);
/* Continues the save in flight; with `wait` until it is committed. EAGAIN: the time of a training
 * that stops is over. [collective] */
int tr_job_advance(struct tr_job *j, int wait, struct tr_error *err);
/* Agrees with the other ranks on what signals ask, whichever ranks got them, and sets save_asked
 * and stop_ns of the job. Returns what tr_agree returns for `code`. [collective] */
int tr_job_agree(struct tr_job *j, int code, struct tr_error *err);
/* Commits the save in flight after a failure that all ranks have agreed on. It is of an earlier
 * step, which did not fail. [collective] */
void tr_job_finish_save(struct tr_job *j);
#endif
