/* SPDX-License-Identifier: Apache-2.0 */
/* The saves of a training, in the background. To each place one is in flight at a time. */
#ifndef TRAINSAVE_H
#define TRAINSAVE_H
#include "trainjob.h"

/* Begins to save the present state. It first waits until the save in flight to the same place is
 * committed, and one to memory in any case. [collective] */
int tr_job_save(struct tr_job *j, enum tr_place to, struct tr_error *err);
/* Continues the saves in flight; with `wait` until they are committed. EAGAIN: the time of a
 * training that stops is over. [collective] */
int tr_job_advance(struct tr_job *j, int wait, struct tr_error *err);
/* Agrees with the other ranks on what signals ask, whichever ranks got them, and sets save_asked
 * and stop_ns of the job. Returns what tr_agree returns for `code`. [collective] */
int tr_job_agree(struct tr_job *j, int code, struct tr_error *err);
/* Commits the saves in flight after a failure that all ranks have agreed on. They are of earlier
 * steps, which did not fail. [collective] */
void tr_job_finish_save(struct tr_job *j);
#endif
