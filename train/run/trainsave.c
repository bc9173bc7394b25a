/* SPDX-License-Identifier: Apache-2.0 */
#include "trainsave.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "paramgroups.h"
#include "traintell.h"

enum { SAVE = 1, STOP = 2, SECOND = 1000000000 };        /* bits of tr_job_agree; ns */

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

/* Returns how long a training that stops may still wait, in ms; -1: it does not stop. A tenth of
 * stop-seconds, but at most a second, is left to end the process. */
static int time_left(const struct tr_job *j)
{
	int64_t all = j->o->stop_seconds * SECOND, spare = all / 10 < SECOND ? all / 10 : SECOND;
	int64_t left = (j->stop_ns + all - spare - tr_clock_ns()) / 1000000;

	if (!j->stop_ns)
		return -1;
	return left < 1 ? 1 : left < INT_MAX ? (int)left : INT_MAX;
}

/* Says which step was not saved in time. */
static int too_late(const struct tr_job *j, struct tr_error *err)
{
	const struct tr_error why = *err;
	char newest[80] = "there is no checkpoint";

	if (j->committed)
		snprintf(newest, sizeof(newest), "the newest checkpoint is that of step %" PRId64,
			 j->committed);
	return tr_fail(err, TR_EAGAIN, "step %" PRId64 " could not be saved within stop-seconds %"
		       PRId64 " (%.250s); %s; raise stop-seconds if the job may take longer",
		       j->t.step, j->o->stop_seconds, why.msg, newest);
}

int tr_job_agree(struct tr_job *j, int code, struct tr_error *err)
{
	const struct tr_signals *s = j->signals;
	uint64_t asked = s ? (s->save ? SAVE : 0) | (s->stop_ns ? STOP : 0) : 0;
	int rc = tr_agree_bits(j->ranks, code, &asked, err);

	if (rc < 0)
		return rc;
	j->save_asked = (asked & SAVE) != 0;
	if (asked & STOP && !j->stop_ns)
		j->stop_ns = s && s->stop_ns ? s->stop_ns : tr_clock_ns();
	return 0;
}

int tr_job_advance(struct tr_job *j, int wait, struct tr_error *err)
{
	int64_t start = tr_clock_ns(), step;
	int rc = tr_store_advance(j->store, wait ? time_left(j) : 0, &step, err);

	j->blocked_ns += tr_clock_ns() - start;
	if (rc == 0 && step) {
		j->committed = step;
		tr_tell_saved(j, step);
	}
	return rc == TR_EAGAIN ? too_late(j, err) : take_save(j, rc, err);
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
	/* This save has what was asked for before it begins. */
	j->save_asked = 0;
	if (j->signals)
		j->signals->save = 0;
	rc = begin_save(j, err);
	j->last_saved = j->t.step;
	j->blocked_ns += tr_clock_ns() - start;
	return take_save(j, rc, err);
}
