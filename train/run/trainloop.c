/* SPDX-License-Identifier: Apache-2.0 */
#include "trainloop.h"

#include <stdlib.h>

#include "clock.h"
#include "sampleorder.h"
#include "trainsave.h"
#include "trainstart.h"
#include "trainreport.h"

/* Puts the average in the place of the weights, or back. */
static int swap_average(struct tr_job *j, struct tr_error *err)
{
	const struct tr_gate gate = tr_store_gate(j->store);
	int rc = j->o->eval_ema ? tr_trainer_swap(&j->t, &gate, err) : 0;

	if (j->o->eval_ema)
		tr_offload_evict(&j->moments);
	return rc;
}

/* Returns whether a signal asks for a save, and the current step has none yet. */
static int must_save(const struct tr_job *j)
{
	return j->save_asked && j->last_saved != j->t.step;
}

/* An evaluation may take long, so it ends early if a signal asks for a checkpoint. */
static int ends_early(void *arg, int code, struct tr_error *err)
{
	struct tr_job *j = arg;
	int rc = tr_job_agree(j, code, err);

	return rc < 0 ? rc : j->stop_ns || must_save(j);
}

/* Computes the loss of the data of evaluations, unless a signal ends that early. If it fails, for
 * example because the data cannot be read, no step is lost: the current one is saved before the job
 * ends. */
static int evaluate(struct tr_job *j, struct tr_error *err)
{
	const struct tr_lm_halt halt = { ends_early, j };
	struct tr_error also = { .rank = -1 };
	int64_t tokens;
	double loss;
	int rc = swap_average(j, err), back;

	if (rc < 0)
		return rc;
	rc = tr_lm_evaluate(j->eval, &j->t, &halt, &loss, &tokens, err);
	if (rc == TR_ELOST)
		return rc;
	back = swap_average(j, rc < 0 ? &also : err);
	if (rc < 0 && rc != TR_ENAN && back == 0)
		tr_job_rescue(j);
	if (rc < 0 || back < 0)
		return rc < 0 ? rc : back;
	if (rc == 0) {
		j->last_eval = j->t.step;
		j->progress.eval_loss = loss;
		tr_tell_eval(j, loss, tokens);
	}
	return 0;
}

/* Evaluates the current step, unless a signal asks to stop. One that asks for a save does not wait
 * for the loss: the step is saved without it, and evaluated afterwards. */
static int evaluate_step(struct tr_job *j, struct tr_error *err)
{
	int rc = 0;

	while (rc == 0 && j->last_eval != j->t.step && !j->stop_ns) {
		if (must_save(j))
			rc = tr_job_save(j, TR_TO_DISK, err);
		if (rc == 0)
			rc = evaluate(j, err);
	}
	return rc;
}

/* Returns why there is no further step, or NULL if there is one. */
static const char *reason_to_end(const struct tr_job *j)
{
	const struct tr_opts *o = j->o;
	int64_t all = tr_epochs_positions(o->epochs, tr_lm_samples(j->lm));

	if (o->steps && j->t.step >= o->steps)
		return "steps";
	if (o->epochs && j->progress.consumed + o->batch > all)
		return "data";
	return j->stop_ns ? "signal" : NULL;
}

/* Returns whether something that is done in every `every`th step is due; 0: never. */
static int is_due(const struct tr_job *j, int64_t every)
{
	return every && j->t.step % every == 0;
}

static int step(struct tr_job *j, struct tr_error *err)
{
	struct tr_gate gate = tr_store_gate(j->store);
	struct tr_lm_step s;
	int64_t start = tr_clock_ns();
	int rc;

	j->be->gemm_ns = 0;
	rc = tr_lm_train(j->lm, &j->t, j->progress.consumed, &gate, &s, err);
	/* In the update a gate may have failed on one rank, without an operation of all ranks. */
	rc = tr_job_agree(j, rc, err);
	/* The state is still that of the last step, which nobody may have saved. */
	if (s.unread && rc != TR_ELOST)
		tr_job_rescue(j);
	if (rc < 0)
		return rc;
	j->progress.consumed += j->o->batch;
	j->progress.tokens += s.tokens;
	rc = tr_tell_step(j, &s, start, err);
	/* Not before the event, whose hash reads the masters. */
	tr_offload_evict(&j->moments);
	if (rc == 0)
		rc = tr_tell_samples(j, err);
	if (rc == 0 && !j->told_memory)
		rc = tr_tell_memory(j, err);
	if (rc == 0)
		rc = tr_job_advance(j, 0, err);
	if (rc == 0 && is_due(j, j->o->eval_every))
		rc = evaluate_step(j, err);
	/* The last step is saved when it has been evaluated. */
	if (rc < 0 || reason_to_end(j) || j->last_saved == j->t.step)
		return rc;
	if (is_due(j, j->o->save_every) || j->save_asked)
		return tr_job_save(j, TR_TO_DISK, err);
	return is_due(j, j->o->save_memory_every) ? tr_job_save(j, TR_TO_MEMORY, err) : 0;
}

static int run_steps(struct tr_job *j, struct tr_error *err)
{
	const char *reason;
	int rc = tr_tell_start(j, err);

	tr_offload_evict(&j->moments);
	if (rc == 0)
		rc = tr_job_agree(j, 0, err);
	while (rc == 0 && !(reason = reason_to_end(j)))
		rc = step(j, err);
	if (rc == 0 && j->eval)
		rc = evaluate_step(j, err);
	if (rc == 0 && j->last_saved != j->t.step)
		rc = tr_job_save(j, TR_TO_DISK, err);
	if (rc == 0)
		rc = tr_job_advance(j, 1, err);
	if (rc == 0 && j->last_saved != j->t.step) {
		*err = j->unsaved;
		rc = err->code;
	}
	if (rc < 0 && rc != TR_ELOST && rc != TR_ENAN && rc != TR_EAGAIN)
		tr_job_finish_save(j);
	if (rc == 0)
		tr_tell_end(j, reason);
	if (rc == 0 && j->signals)
		j->signals->ended = 1;
	return rc;
}

static int evaluate_checkpoint(struct tr_job *j, struct tr_error *err)
{
	int rc = tr_tell_start(j, err);

	if (rc == 0)
		rc = evaluate(j, err);
	if (rc == 0)
		tr_tell_end(j, "data");
	return rc;
}

int tr_teller(const struct tr_error *err)
{
	return err->code == TR_ELOST && err->rank == 0;
}

/* Runs a job.
 * job   the members that tr_job_start needs; the others are 0
 * work  what is done when the job has started */
static int carry_out(const struct tr_job *job, int (*work)(struct tr_job *, struct tr_error *),
		     struct tr_error *err)
{
	struct tr_job *j = malloc(sizeof(*j));
	int rc;

	if (!j) {
		tr_fail(err, TR_ENOMEM, "no memory to train");
		return tr_ranks_abandon(job->ranks, err);
	}
	*j = *job;
	rc = tr_job_start(j, err);
	if (rc == 0)
		rc = work(j, err);
	if (rc < 0 && job->ranks->rank == tr_teller(err))
		tr_events_take_over(job->events);
	if (rc < 0)
		tr_tell_error(job->events, rc, err);
	tr_job_release(j, rc == TR_ELOST);
	free(j);
	return rc;
}

int tr_train(struct tr_ranks *ranks, struct tr_opts *o, struct tr_events *events,
	     struct tr_signals *signals, struct tr_error *err)
{
	const struct tr_job job = { .o = o, .events = events, .ranks = ranks, .signals = signals };

	return carry_out(&job, run_steps, err);
}

int tr_evaluate(struct tr_ranks *ranks, struct tr_opts *o, struct tr_events *events,
		struct tr_error *err)
{
	const struct tr_job job = { .o = o, .events = events, .ranks = ranks, .evaluates = 1 };

	return carry_out(&job, evaluate_checkpoint, err);
}
