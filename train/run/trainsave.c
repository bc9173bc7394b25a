/* SPDX-License-Identifier: Apache-2.0 */
#include "trainsave.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "paramgroups.h"
#include "traintell.h"

/* Takes the result of a save. If the disk is full the training goes on, because a later save may
 * work. That is an error only if the training ends before one does. */
static int take_save(struct tr_job *j, int code, const struct tr_error *err)
{
	if (code != TR_ENOSPC)
		return code;
	j->last_saved = j->committed;
	j->unsaved = *err;
	tr_tell_error(j->events, code, err);
	if (j->ranks->rank == 0)
		fprintf(stderr, "sheaf-train: %s; the training goes on\n", err->msg);
	return 0;
}

int tr_job_advance(struct tr_job *j, int wait, struct tr_error *err)
{
	int64_t start = tr_clock_ns(), step;
	int rc = tr_store_advance(j->store, wait, &step, err);

	j->blocked_ns += tr_clock_ns() - start;
	if (rc == 0 && step) {
		j->committed = step;
		tr_tell_saved(j, step);
	}
	return take_save(j, rc, err);
}

void tr_job_finish_save(struct tr_job *j)
{
	struct tr_error err = { .rank = -1 };

	if (tr_job_advance(j, 1, &err) < 0 && j->ranks->rank == 0)
		fprintf(stderr, "sheaf-train: the last save failed, too: %s\n", err.msg);
}

/* Begins a save of the present state. */
static int begin_save(struct tr_job *j, struct tr_error *err)
{
	struct tr_attachment files[] = {
		{ "config.json", j->setup.text, j->setup.n },
		{ "train.yaml", j->yaml, strlen(j->yaml) },
		{ "param_groups.json", NULL, 0 },
	};
	double lr = tr_schedule_lr(&j->t.schedule, j->t.step ? j->t.step - 1 : 0);
	char *groups;
	int rc = tr_agree(j->ranks, tr_param_groups(&groups, &j->setup, lr, err), err);

	if (rc == 0) {
		files[2].bytes = groups;
		files[2].n = strlen(groups);
		j->progress.step = j->t.step;
		j->progress.adam_step = j->t.adamw.step;
		rc = tr_store_begin(j->store, &j->progress, files, 3, err);
	}
	free(groups);
	return rc;
}

int tr_job_save(struct tr_job *j, struct tr_error *err)
{
	int rc = tr_job_advance(j, 1, err);
	int64_t start = tr_clock_ns();

	if (rc == 0)
		rc = tr_trainer_settle(&j->t, err);
	if (rc < 0)
		return rc;
	rc = begin_save(j, err);
	j->last_saved = j->t.step;
	j->blocked_ns += tr_clock_ns() - start;
	return take_save(j, rc, err);
}
