/* SPDX-License-Identifier: Apache-2.0 */
#include "trainreport.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "trainplan.h"

/* Says which options differ from those of the checkpoint. */
static void say_changed(struct tr_job *j)
{
	char line[4096] = "";
	size_t n = 0;

	for (int i = 0; j->changed[i] && n < sizeof(line) / 2; i++)
		n += (size_t)snprintf(line + n, sizeof(line) - n, "%s%s", i ? ", " : "",
				      j->changed[i]);
	if (n)
		tr_say(j->events, "changed: %s", line);
}

/* Says that nothing is saved before the end. */
static void say_unsaved(const struct tr_job *j)
{
	const struct tr_opts *o = j->o;

	if (!j->evaluates && !o->save_every && !o->save_memory_every)
		tr_warn(j->events, "nothing is saved before the last step, and a job that is "
			"killed loses its steps; set save-every, or send SIGUSR1 to save");
}

int tr_tell_start(struct tr_job *j, struct tr_error *err)
{
	const struct tr_opts *o = j->o;
	json_t *changed = json_array();
	uint64_t hash;
	int rc = tr_trainer_hash(&j->t, &hash, err);

	for (int i = 0; j->changed[i]; i++)
		json_array_append_new(changed, json_string(j->changed[i]));
	if (rc < 0) {
		json_decref(changed);
		return rc;
	}
	tr_event(j->events, json_pack("{s:s,s:s,s:i,s:{s:I,s:I,s:I},s:{s:I,s:I},s:I,s:s,s:I,s:o,"
		"s:I,s:s?,s:b,s:O,s:o}", "event", "start", "job", j->evaluates ? "eval" : "run",
		"ranks", j->ranks->n, "mesh",
		"dp", (json_int_t)o->mesh.dp, "tp", (json_int_t)o->mesh.tp,
		"pp", (json_int_t)o->mesh.pp, "virtual", "dp", (json_int_t)j->t.leaves,
		"tp", (json_int_t)j->t.pieces, "params",
		(json_int_t)tr_model_registry(j->t.model)->distinct, "isa", j->be->isa->name,
		"step", (json_int_t)j->progress.step,
		"hash", tr_json_hash(hash), "consumed_samples", (json_int_t)j->progress.consumed,
		"resumed_from", j->progress.found ? tr_store_found(j->store) : NULL,
		"moments", j->progress.found && tr_store_has_moments(j->store),
		"passed_over", j->passed,
		"changed", changed));
	tr_say(j->events, "%" PRId64 " parameters, %d ranks, %s, step %" PRId64 "%s%s",
	       tr_model_registry(j->t.model)->distinct, j->ranks->n, j->be->isa->name,
	       j->progress.step, j->progress.found ? " of " : "",
	       j->progress.found ? tr_store_found(j->store) : "");
	say_changed(j);
	say_unsaved(j);
	return 0;
}

/* Says once that a step has no targets: its gradient is 0, and weight decay and momentum still
 * change the weights. */
static void say_masked(struct tr_job *j)
{
	if (!j->told_masked)
		tr_warn(j->events, "step %" PRId64 ": no token of its samples counts as a target, "
			"so nothing is learned from it; is the mask of %s as it should be?",
			j->t.step, j->o->data);
	j->told_masked = 1;
}

int tr_tell_step(struct tr_job *j, const struct tr_lm_step *s, int64_t start,
		 struct tr_error *err)
{
	double seconds = (double)(tr_clock_ns() - start) * 1e-9;
	double share = seconds > 0 ? (double)j->be->gemm_ns * 1e-9 / seconds : 0;
	uint64_t hash;
	int rc = tr_trainer_hash(&j->t, &hash, err);

	if (rc < 0)
		return rc;
	tr_event(j->events, json_pack("{s:s,s:I,s:f,s:o,s:o,s:o,s:o,s:I,s:I,s:f,s:f,s:f,s:f}",
		"event", "step", "step", (json_int_t)j->t.step, "loss", s->loss,
		"loss_hex", tr_json_hex(s->loss), "grad_norm_hex", tr_json_hex(s->norm),
		"lr_hex", tr_json_hex(s->lr), "hash", tr_json_hash(hash),
		"tokens", (json_int_t)s->tokens, "consumed_samples",
		(json_int_t)j->progress.consumed, "seconds", seconds,
		"tokens_per_s", (double)s->tokens / seconds,
		"blocked_ms", (double)j->blocked_ns * 1e-6, "gemm_share", share));
	tr_say(j->events, "step %" PRId64 "  loss %.4f  norm %.3f  lr %.2e  %.0f tokens/s",
	       j->t.step, s->loss, s->norm, s->lr, (double)s->tokens / seconds);
	j->blocked_ns = 0;
	if (!s->tokens)
		say_masked(j);
	return 0;
}

int tr_tell_samples(struct tr_job *j, struct tr_error *err)
{
	const struct tr_ranks *dp = &j->mesh.dp;
	int64_t n, *all;
	const int64_t *mine = tr_lm_trained(j->lm, &n);
	int rc;

	if (!mine)
		return 0;
	all = calloc((size_t)(n * dp->n), sizeof(*all));
	rc = tr_agree(j->ranks, all ? 0 : tr_fail(err, TR_ENOMEM, "no memory for a trace of %"
						  PRId64 " samples", n * dp->n), err);
	if (rc == 0)
		rc = tr_allgather(dp, mine, all, (size_t)n * sizeof(*mine), err);
	for (int r = 0; rc == 0 && r < dp->n; r++) {
		json_t *positions = json_array();

		for (int64_t i = 0; i < n; i++)
			json_array_append_new(positions, json_integer(all[r * n + i]));
		tr_event(j->events, json_pack("{s:s,s:I,s:i,s:o}", "event", "samples", "step",
			(json_int_t)j->t.step, "dp", r, "positions", positions));
	}
	free(all);
	return rc;
}

/* Sets bytes[kind] to the memory that this rank has used. */
static void used_memory(const struct tr_job *j, int64_t bytes[TR_MEMORY_KINDS])
{
	tr_trainer_used(&j->t, bytes);
	bytes[TR_BUFFERS] += j->be->workspace + tr_lm_used(j->lm);
	if (j->eval)
		bytes[TR_BUFFERS] += tr_lm_used(j->eval);
}

int tr_tell_memory(struct tr_job *j, struct tr_error *err)
{
	enum { KINDS = TR_MEMORY_KINDS };
	int64_t mine[2 * KINDS], *all;
	int rc = tr_plan_rank(&j->setup, j->ranks->rank, mine, err);

	used_memory(j, mine + KINDS);
	j->told_memory = 1;
	all = calloc((size_t)j->ranks->n, sizeof(mine));
	if (rc == 0 && !all)
		rc = tr_fail(err, TR_ENOMEM, "no memory for the plans of %d ranks", j->ranks->n);
	rc = tr_agree(j->ranks, rc, err);
	if (rc == 0)
		rc = tr_allgather(j->ranks, mine, all, sizeof(mine), err);
	for (int r = 0; rc == 0 && r < j->ranks->n; r++)
		tr_event(j->events, json_pack("{s:s,s:i,s:o,s:o}", "event", "memory", "rank", r,
			"planned", tr_json_memory(all + 2 * KINDS * r), "used",
			tr_json_memory(all + 2 * KINDS * r + KINDS)));
	free(all);
	return rc;
}

void tr_tell_eval(struct tr_job *j, double loss, int64_t tokens)
{
	tr_event(j->events, json_pack("{s:s,s:I,s:f,s:o,s:I,s:I,s:b}", "event", "eval", "step",
		(json_int_t)j->t.step, "loss", loss, "loss_hex", tr_json_hex(loss), "samples",
		(json_int_t)tr_lm_samples(j->eval), "tokens", (json_int_t)tokens,
		"ema", (int)j->o->eval_ema));
	tr_say(j->events, "step %" PRId64 "  loss %.4f of %" PRId64 " tokens of eval-data%s",
	       j->t.step, loss, tokens, j->o->eval_ema ? ", with the averaged weights" : "");
}

void tr_tell_saved(struct tr_job *j, enum tr_place to, int64_t step)
{
	const struct tr_registry *reg = tr_model_registry(j->t.model);
	/* bytes */
	int64_t item = 12 + (j->t.adamw.master ? 2 : 0) + (j->t.averaged ? 4 : 0);
	int64_t bytes = reg->distinct * item - (j->t.muon ? reg->matrices * 4 : 0);

	tr_event(j->events, json_pack("{s:s,s:I,s:s,s:I,s:f}", "event", "saved", "step",
		(json_int_t)step, "to", to == TR_TO_DISK ? "disk" : "memory",
		"bytes", (json_int_t)bytes,
		"blocked_ms", (double)j->blocked_ns * 1e-6));
	if (to == TR_TO_DISK)
		tr_say(j->events, "saved step %" PRId64, step);
}

/* Says that the checkpoint was that of the last step already. */
static void say_nothing_left(struct tr_job *j, const char *reason)
{
	if (strcmp(reason, "steps") == 0)
		tr_say(j->events, "nothing is left to train: steps is %" PRId64 "; set more steps "
		       "to go on", j->o->steps);
	else if (strcmp(reason, "data") == 0)
		tr_say(j->events, "nothing is left to train: the %" PRId64 " epochs of the data "
		       "are over; set more epochs to go on", j->o->epochs);
}

void tr_tell_end(struct tr_job *j, const char *reason)
{
	if (!j->evaluates && !j->told_memory)   /* no step was made */
		say_nothing_left(j, reason);
	tr_event(j->events, json_pack("{s:s,s:s,s:I}", "event", "end", "reason", reason, "step",
				      (json_int_t)j->t.step));
}

void tr_tell_error(struct tr_events *events, int code, const struct tr_error *err)
{
	tr_event(events, json_pack("{s:s,s:s,s:i,s:s}", "event", "error", "code",
				   tr_code_name(code), "rank", err->rank, "message", err->msg));
}
