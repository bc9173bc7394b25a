/* SPDX-License-Identifier: Apache-2.0 */
/* The saves of a training, in the background. One is in flight at a time. */
#ifndef TRAINSAVE_H
#define TRAINSAVE_H
#include "trainjob.h"

/* Begins to save the present state. It first waits until the save in flight is committed.
 * [collective] */
int tr_job_save(struct tr_job *j, struct tr_error *err);
/* Continues the save in flight; with `wait` until it is committed. [collective] */
int tr_job_advance(struct tr_job *j, int wait, struct tr_error *err);
/* Commits the save in flight after a failure that all ranks have agreed on. It is of an earlier
 * step, which did not fail. [collective] */
void tr_job_finish_save(struct tr_job *j);
#endif
