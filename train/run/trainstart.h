/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a job: the checkpoint that it resumes from, its options, model and data. */
#ifndef TRAINSTART_H
#define TRAINSTART_H
#include "trainjob.h"

/* Finds the checkpoint to resume from, makes all that the job needs, and fills it. The caller has
 * zeroed the job, and set o, events and ranks. [collective] */
int tr_job_start(struct tr_job *j, struct tr_error *err);
/* Sets the options that neither a file nor a flag has set to those of the checkpoint that the job
 * would resume. Writes nothing.
 * evaluates  1: the job is an evaluation. [collective] */
int tr_job_options(struct tr_ranks *ranks, struct tr_opts *o, int evaluates, struct tr_error *err);
/* Releases what tr_job_start has made.
 * lost  1: as of tr_store_close */
void tr_job_release(struct tr_job *j, int lost);
#endif
