/* SPDX-License-Identifier: Apache-2.0 */
#include "trainsave.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "paramgroups.h"
#include "trainreport.h"

enum { SAVE = 1, STOP = 2 };            /* the bits on which tr_job_agree agrees */
enum { SECOND = 1000000000 };           /* ns */
enum { LOOK_MS = 1000 };                /* from one look at signals to the next in a commit */

/* Handles the result of a save to the disk. If the disk is full, the training goes on, because a
 * later save may succeed. It is an error only if the training ends before one does. */
static int take_save(struct tr_job *j, int code, const struct tr_error *err)
{
	if (code != TR_ENOSPC)
		return code;
	j->last_saved = j->committed;
	j->unsaved = *err;
	tr_tell_error(j->events, code, err);
	tr_warn(j->events, "%s; the training goes on", err->msg);
	return 0;
}

/* Returns how long this rank may still wait for a commit, in ms, after a signal has asked to stop.
 * A tenth of stop-seconds, but at most a second, is kept for the end of the process. */
static int time_left(const struct tr_job *j)
{
	int64_t all = j->o->stop_seconds * SECOND, spare = all / 10 < SECOND ? all / 10 : SECOND;
	int64_t left = (j->stop_ns + all - spare - tr_clock_ns()) / 1000000;

	return left < 1 ? 1 : left < INT_MAX ? (int)left : INT_MAX;
}

/* Fails because the last step was not saved within stop-seconds. */
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

/* Handles the result of a save to memory. If an agent is lost or has no memory left, the training
 * goes on, and later saves try again. The failure is reported once, and again only after a save to
 * memory has succeeded meanwhile. */
static int take_memory_save(struct tr_job *j, int code, const struct tr_error *err)
{
	if (code != TR_EAGAIN && code != TR_EFAILED)
		return code;
	if (!j->memory_lost) {
		tr_tell_error(j->events, code, err);
		tr_warn(j->events, "%s; the training goes on, and saves to memory are tried again",
			err->msg);
	}
	j->memory_lost = 1;
	return 0;
}

/* Completes the save in flight to one place, however long that takes. Only a stop signal, which may
 * arrive meanwhile, limits the time. */
static int complete(struct tr_job *j, enum tr_place to, int64_t *step, struct tr_error *err)
{
	int stops, rc;

	do {
		stops = j->stop_ns != 0;
		rc = tr_store_advance(j->store, to, stops ? time_left(j) : LOOK_MS, step, err);
		if (rc != TR_EAGAIN || stops)
			return rc;
		rc = tr_job_agree(j, 0, err);
	} while (rc == 0);
	return rc;
}

/* Continues the save in flight to one place. */
static int advance(struct tr_job *j, enum tr_place to, int wait, struct tr_error *err)
{
	int64_t start = tr_clock_ns(), step = 0;
	int rc = wait ? complete(j, to, &step, err) :
		tr_store_advance(j->store, to, 0, &step, err);

	j->blocked_ns += tr_clock_ns() - start;
	if (rc == 0 && step && to == TR_TO_DISK)
		j->committed = step;
	if (rc == 0 && step && to == TR_TO_MEMORY)
		j->memory_lost = 0;
	if (rc == 0 && step)
		tr_tell_saved(j, to, step);
	if (to == TR_TO_MEMORY)
		return take_memory_save(j, rc, err);
	return rc == TR_EAGAIN ? too_late(j, err) : take_save(j, rc, err);
}

int tr_job_advance(struct tr_job *j, int wait, struct tr_error *err)
{
	int rc = advance(j, TR_TO_MEMORY, wait, err);

	return rc == 0 ? advance(j, TR_TO_DISK, wait, err) : rc;
}

void tr_job_finish_save(struct tr_job *j)
{
	struct tr_error err = { .rank = -1 };

	if (tr_job_advance(j, 1, &err) < 0)
		tr_warn(j->events, "the last save failed, too: %s", err.msg);
}

/* Begins a save of the current state. */
static int begin_save(struct tr_job *j, enum tr_place to, struct tr_error *err)
{
	struct tr_attachment files[3 + TR_MODEL_FILES_MAX] = {
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
		memcpy(files + 3, j->files.file, (size_t)j->files.n * sizeof(*files));
		j->progress.step = j->t.step;
		j->progress.adam_step = j->t.adamw.step;
		j->progress.evaluated = j->last_eval == j->t.step;
		rc = tr_store_begin(j->store, to, &j->progress, files, 3 + j->files.n, err);
	}
	free(groups);
	return rc;
}

int tr_job_save(struct tr_job *j, enum tr_place to, struct tr_error *err)
{
	/* Also before a save to the disk: when that is committed, the library refuses to commit an
	 * older step. */
	int rc = advance(j, TR_TO_MEMORY, 1, err);
	int64_t start;

	if (rc == 0 && to == TR_TO_DISK)
		rc = advance(j, TR_TO_DISK, 1, err);
	start = tr_clock_ns();
	if (rc == 0)
		rc = tr_trainer_settle(&j->t, err);
	if (rc < 0)
		return rc;
	/* This save answers the signals that came before it. */
	if (to == TR_TO_DISK) {
		j->save_asked = 0;
		if (j->signals)
			j->signals->save = 0;
		j->last_saved = j->t.step;
	}
	rc = begin_save(j, to, err);
	j->blocked_ns += tr_clock_ns() - start;
	return to == TR_TO_MEMORY ? take_memory_save(j, rc, err) : take_save(j, rc, err);
}

void tr_job_rescue(struct tr_job *j)
{
	struct tr_error err = { .rank = -1 };

	if (!j->evaluates && j->last_saved != j->t.step &&
	    tr_job_save(j, TR_TO_DISK, &err) < 0)
		tr_warn(j->events, "step %" PRId64 " could not be saved, either: %s", j->t.step,
			err.msg);
}
