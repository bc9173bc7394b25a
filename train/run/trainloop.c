/* SPDX-License-Identifier: Apache-2.0 */
#include "trainloop.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"
#include "clock.h"
#include "itemhash.h"
#include "link.h"
#include "offload.h"
#include "paramgroups.h"
#include "trainplan.h"

struct loop {
	struct tr_opts *o;
	struct tr_events *events;
	struct tr_ranks *ranks;         /* those of the caller, or `linked` */
	struct tr_ranks linked;
	struct tr_mesh mesh;
	struct tr_store *store;
	struct tr_backend *be;
	struct tr_trainer t;
	struct tr_offload moments;      /* the arena of the optimizer, if that is in a file */
	int *source;                    /* which ranks of mesh.line read the data; rowfeed.h */
	struct tr_lm *lm, *eval;        /* eval: the data of evaluations, or NULL */
	uint64_t eval_hash;             /* of tr_lm_identify */
	struct tr_setup setup;
	char *yaml;                     /* the options */
	struct tr_progress progress;
	int64_t blocked_ns;             /* time that saves took, since the last event of a step */
	int64_t last_saved;             /* step of the last save that began and has not failed */
	int64_t committed;              /* step of the last one that was committed */
	struct tr_error unsaved;        /* code ENOSPC: why the last save has failed */
	int64_t last_eval;              /* step of the last evaluation; -1: none */
	int told_memory;                /* the events of memory were written */
	const char *changed[TR_OPTS_MAX + 1];
};

/* Prints the errors and warnings of the library: levels 0 and 1. */
static void log_line(void *arg, int level, const char *line)
{
	const struct loop *l = arg;

	if (level <= 1 && l->ranks->rank == 0)
		fprintf(stderr, "sheaf-train: %s\n", line);
}

/* Finds the checkpoint to resume from. Options that are not set get the values that it was trained
 * with. */
static int find_checkpoint(struct loop *l, struct tr_error *err)
{
	const char *config;
	struct tr_opts before;
	size_t n;
	int rc = tr_store_find(l->store, l->o->resume, (int)l->o->rewind, &l->progress, &config, &n,
			       err);

	if (rc < 0 || !config)
		return rc;
	rc = tr_opts_init(&before, err);
	if (rc == 0)
		rc = tr_opts_read_yaml(&before, config, n, "the options in the checkpoint",
				       TR_FROM_FILE, err);
	if (rc == 0)
		rc = tr_opts_read_yaml(l->o, config, n, "the options in the checkpoint",
				       TR_FROM_CHECKPOINT, err);
	if (rc == 0)
		tr_opts_differ(l->o, &before, l->changed);
	if (rc == 0 && l->o->optimizer != before.optimizer)
		rc = tr_fail(err, TR_EINVAL, "optimizer %s: %s was trained with %s, and has no "
			     "other moments; use that one, or begin another run with init model "
			     "and its weights", l->o->optimizer == TR_MUON ? "muon" : "adamw",
			     tr_store_found(l->store), before.optimizer == TR_MUON ? "muon" :
			     "adamw");
	tr_opts_release(&before);
	return rc;
}

/* Fails on all ranks if one of them has other options or data than the others. It would compute
 * other numbers, or wait in an operation in which the others do not take part. */
static int agree_on_options(struct loop *l, struct tr_error *err)
{
	char *text = tr_opts_yaml(l->o);
	const uint64_t data[2] = { l->progress.data_hash, l->eval_hash };
	uint64_t x[2];
	int rc = text ? 0 : tr_fail(err, TR_ENOMEM, "no memory for the options");

	x[0] = text ? tr_crc64_more(tr_crc64(text), data, sizeof(data)) : 0;
	x[1] = ~x[0];
	free(text);
	rc = tr_agree(l->ranks, rc, err);
	if (rc == 0)
		rc = tr_allreduce(l->ranks, x, 2, TR_MAX, err);
	if (rc == 0 && x[0] != ~x[1])
		rc = tr_fail(err, TR_EINVAL, "the ranks have different options or data; give all "
			     "of them the same files and flags");
	return rc;
}

static int make_backend(struct loop *l, struct tr_error *err)
{
	const struct tr_isa *isa;
	float *work;
	int rc = tr_isa_find(&isa, l->o->isa, err);

	if (rc == 0)
		rc = tr_backend_cpu(&l->be, isa, err);
	if (rc < 0)
		return rc;
	work = l->be->alloc(l->be, (size_t)TR_GEMM_WORK);
	rc = work ? tr_isa_check(isa, work, err) :
		tr_fail(err, TR_ENOMEM, "no memory to check the kernels");
	l->be->release(l->be, work);
	return rc;
}

/* The first rank of tp in the first stage and that in the last one read the data. The other ranks
 * of the last stage receive it from the latter. */
static int choose_readers(struct loop *l, struct tr_error *err)
{
	int tp = (int)l->o->mesh.tp, ranks = l->mesh.line.n;

	l->source = calloc((size_t)ranks, sizeof(*l->source));
	for (int r = ranks - tp; l->source && r < ranks; r++)
		l->source[r] = ranks - tp;
	return l->source ? 0 : tr_fail(err, TR_ENOMEM, "no memory to list the ranks that read");
}

/* Puts the moments into a file. */
static int offload(struct loop *l, struct tr_error *err)
{
	int64_t bytes = tr_arenas_bytes(&l->t.arenas, TR_OPTIMIZER);
	int rc = tr_offload_open(&l->moments, l->o->offload, (size_t)bytes, err);

	if (rc == 0)
		tr_arena_lend(&l->t.arenas, TR_OPTIMIZER, l->moments.memory);
	return rc;
}

static int make_trainer(struct loop *l, struct tr_error *err)
{
	int rc;

	l->t = tr_setup_trainer(&l->setup, &l->mesh);
	l->t.be = l->be;
	rc = tr_trainer_plan(&l->t, &l->setup.config, l->o->micro_batch, l->o->seq, err);
	if (rc == 0 && l->o->offload)
		rc = offload(l, err);
	return rc == 0 ? tr_arenas_allocate(&l->t.arenas, err) : rc;
}

/* Opens the data of a task on the ranks that read. */
static int open_task(struct loop *l, struct tr_lm_opts o, struct tr_lm **lm, struct tr_error *err)
{
	o.ranks = &l->mesh.line;
	o.source = l->source;
	o.job_ranks = l->ranks->n;
	return tr_lm_new(lm, &o, err);
}

static int make_task(struct loop *l, struct tr_error *err)
{
	const struct tr_opts *o = l->o;
	int rc = open_task(l, tr_setup_task(&l->setup), &l->lm, err);

	if (rc == 0 && o->epochs && o->epochs * tr_lm_samples(l->lm) < o->batch)
		return tr_fail(err, TR_EINVAL, "batch %" PRId64 " is above the %" PRId64
			       " samples of %" PRId64 " epochs, so there is no step; use a "
			       "smaller batch or more epochs", o->batch,
			       o->epochs * tr_lm_samples(l->lm), o->epochs);
	if (rc == 0 && !o->steps)
		l->t.schedule.steps = o->epochs * tr_lm_samples(l->lm) / o->batch;
	return rc;
}

/* Opens the data of evaluations, if there is any. */
static int make_eval(struct loop *l, struct tr_error *err)
{
	int64_t tokens;
	int rc = 0;

	if (l->o->eval_data)
		rc = open_task(l, tr_setup_eval(&l->setup), &l->eval, err);
	l->last_eval = -1;
	if (rc == 0 && l->eval)
		tr_lm_identify(l->eval, &tokens, &l->eval_hash);
	return rc;
}

/* Compares the model with that of the checkpoint. Weights of different models may have the same
 * shapes, so the load would not notice. */
static int check_model(const struct loop *l, struct tr_error *err)
{
	struct tr_model_config before;
	const char *text = NULL, *key;
	size_t n;
	int rc = l->progress.step ? tr_store_file(l->store, "config.json", &text, &n, err) : 0;

	if (rc < 0 || !text)
		return rc;
	rc = tr_model_config_read(&before, text, n, "config.json in the checkpoint", err);
	key = rc == 0 ? tr_model_config_differ(&before, &l->setup.config) : NULL;
	if (key)
		return tr_fail(err, TR_EINVAL, "model %s: %s differs from that in %s; use the "
			       "config.json of the checkpoint, or begin another run", l->o->model,
			       key, tr_store_found(l->store));
	return rc;
}

static void list_as_changed(struct loop *l, const char *key)
{
	int i = 0;

	while (l->changed[i] && strcmp(l->changed[i], key) != 0)
		i++;
	l->changed[i] = key;
}

/* Refuses other data than that of the checkpoint, in which its position would mean nothing. With a
 * checkpoint of another run the new data is listed as changed. */
static int check_data(struct loop *l, struct tr_error *err)
{
	struct tr_progress *p = &l->progress;
	int64_t tokens;
	uint64_t hash;
	int other;

	tr_lm_identify(l->lm, &tokens, &hash);
	other = p->step && p->data_tokens && (p->data_tokens != tokens || p->data_hash != hash);
	if (other && !tr_store_is_other(l->store))
		return tr_fail(err, TR_EINVAL, "data %s, of %" PRId64 " tokens, is not the data of "
			       "%s, of %" PRId64 " tokens; use that data, or another run with "
			       "resume %s", l->o->data, tokens, tr_store_found(l->store),
			       p->data_tokens, tr_store_found(l->store));
	if (other)
		list_as_changed(l, "data");
	p->data_tokens = tokens;
	p->data_hash = hash;
	return 0;
}

/* Sets the weights and the position in the training: those of the checkpoint, or those with which a
 * training begins. */
static int fill(struct loop *l, struct tr_error *err)
{
	int rc = tr_store_describe(l->store, &l->t, err);

	rc = tr_agree(l->ranks, rc, err);
	if (rc == 0)
		rc = tr_store_rewind(l->store, err);
	if (rc < 0)
		return rc;
	if (l->progress.step) {
		rc = tr_store_load(l->store, err);
		l->t.step = l->progress.step;
		l->t.adamw.step = l->progress.adam_step;
	} else if (l->o->init == TR_INIT_MODEL) {
		rc = tr_store_import(l->store, &l->t, l->o->model, err);
	} else {
		tr_trainer_draw(&l->t, (uint64_t)l->o->seed, l->setup.config.init_range);
	}
	if (rc == 0)
		rc = tr_trainer_spread(&l->t, err);
	if (rc == 0)
		rc = tr_trainer_settle(&l->t, err);
	l->last_saved = l->committed = l->progress.step;
	l->progress.seed = (uint64_t)l->o->seed;
	l->progress.virtual_dp = l->o->virtual.dp;
	l->progress.virtual_tp = l->o->virtual.tp;
	return rc;
}

/* Checks and makes what needs no other rank. The caller agrees on the result. */
static int prepare_alone(struct loop *l, struct tr_error *err)
{
	int rc = tr_setup_read(&l->setup, l->o, err);

	if (rc == 0)
		rc = check_model(l, err);
	if (rc == 0)
		rc = make_backend(l, err);
	if (rc == 0)
		rc = choose_readers(l, err);
	if (rc == 0)
		rc = make_trainer(l, err);
	if (rc < 0)
		return rc;
	l->yaml = tr_opts_yaml(l->o);
	return l->yaml ? 0 : tr_fail(err, TR_ENOMEM, "no memory for the options");
}

/* Opens the data. All ranks that train on the same samples return the same code. */
static int prepare_data(struct loop *l, struct tr_error *err)
{
	int rc = make_task(l, err);

	if (rc == 0)
		rc = make_eval(l, err);
	return rc == 0 ? check_data(l, err) : rc;
}

/* Delays messages, if that is wanted: all ranks have the same options now. */
static int make_link(struct loop *l, struct tr_error *err)
{
	const struct tr_opts *o = l->o;
	int rc = 0;

	if (o->link_gbps > 0 || o->link_us > 0)
		rc = tr_ranks_link(&l->linked, l->ranks, o->link_gbps, o->link_us, err);
	rc = tr_agree(l->ranks, rc, err);
	if (rc == 0 && l->linked.arg)
		l->ranks = &l->linked;
	return rc;
}

static int prepare(struct loop *l, struct tr_error *err)
{
	struct tr_store_opts so = { .run = l->o->run, .keep_last = l->o->keep_last,
				    .log = log_line, .arg = l };
	int rc = l->o->run ? 0 : tr_fail(err, TR_EINVAL, "run is not set; set it in the file or "
					 "with --run");

	rc = tr_agree(l->ranks, rc, err);
	if (rc == 0)
		rc = agree_on_options(l, err);
	if (rc == 0)
		rc = make_link(l, err);
	if (rc == 0)
		rc = tr_store_open(&l->store, &so, l->ranks, err);
	if (rc == 0)
		rc = tr_agree(l->ranks, find_checkpoint(l, err), err);
	if (rc == 0)
		rc = tr_agree(l->ranks, tr_opts_check(l->o, l->ranks->n, err), err);
	if (rc == 0)
		rc = tr_mesh_make(&l->mesh, l->ranks, (int)l->o->mesh.dp, (int)l->o->mesh.tp,
				  (int)l->o->mesh.pp, err);
	if (rc == 0)
		rc = tr_agree(l->ranks, prepare_alone(l, err), err);
	if (rc == 0)
		rc = tr_agree(l->ranks, prepare_data(l, err), err);
	/* Again, now that options of the checkpoint and the data are known. */
	if (rc == 0)
		rc = agree_on_options(l, err);
	return rc == 0 ? fill(l, err) : rc;
}

/* ---- events ---- */

static int tell_start(struct loop *l, struct tr_error *err)
{
	const struct tr_opts *o = l->o;
	json_t *changed = json_array();
	uint64_t hash;
	int rc = tr_trainer_hash(&l->t, &hash, err);

	for (int i = 0; l->changed[i]; i++)
		json_array_append_new(changed, json_string(l->changed[i]));
	if (rc < 0) {
		json_decref(changed);
		return rc;
	}
	tr_event(l->events, json_pack("{s:s,s:i,s:{s:I,s:I,s:I},s:{s:I,s:I},s:I,s:s,s:I,s:o,s:I,"
		"s:s?,s:o}", "event", "start", "ranks", l->ranks->n, "mesh",
		"dp", (json_int_t)o->mesh.dp, "tp", (json_int_t)o->mesh.tp,
		"pp", (json_int_t)o->mesh.pp, "virtual", "dp", (json_int_t)l->t.leaves,
		"tp", (json_int_t)l->t.pieces, "params",
		(json_int_t)tr_model_registry(l->t.model)->distinct, "isa", l->be->isa->name,
		"step", (json_int_t)l->progress.step,
		"hash", tr_json_hash(hash), "consumed_samples", (json_int_t)l->progress.consumed,
		"resumed_from", l->progress.step ? tr_store_found(l->store) : NULL,
		"changed", changed));
	tr_say(l->events, "%" PRId64 " parameters, %d ranks, %s, step %" PRId64 "%s%s",
	       tr_model_registry(l->t.model)->distinct, l->ranks->n, l->be->isa->name,
	       l->progress.step, l->progress.step ? " of " : "",
	       l->progress.step ? tr_store_found(l->store) : "");
	return 0;
}

static int tell_step(struct loop *l, const struct tr_lm_step *s, int64_t start,
		     struct tr_error *err)
{
	double seconds = (double)(tr_clock_ns() - start) * 1e-9;
	double share = seconds > 0 ? (double)l->be->gemm_ns * 1e-9 / seconds : 0;
	uint64_t hash;
	int rc = tr_trainer_hash(&l->t, &hash, err);

	if (rc < 0)
		return rc;
	tr_event(l->events, json_pack("{s:s,s:I,s:f,s:o,s:o,s:o,s:o,s:I,s:I,s:f,s:f,s:f,s:f}",
		"event", "step", "step", (json_int_t)l->t.step, "loss", s->loss,
		"loss_hex", tr_json_hex(s->loss), "grad_norm_hex", tr_json_hex(s->norm),
		"lr_hex", tr_json_hex(s->lr), "hash", tr_json_hash(hash),
		"tokens", (json_int_t)s->tokens, "consumed_samples",
		(json_int_t)l->progress.consumed, "seconds", seconds,
		"tokens_per_s", (double)s->tokens / seconds,
		"blocked_ms", (double)l->blocked_ns * 1e-6, "gemm_share", share));
	tr_say(l->events, "step %" PRId64 "  loss %.4f  norm %.3f  lr %.2e  %.0f tokens/s",
	       l->t.step, s->loss, s->norm, s->lr, (double)s->tokens / seconds);
	l->blocked_ns = 0;
	return 0;
}

/* Writes an event for each rank of dp, if a trace is wanted. [collective] */
static int tell_samples(struct loop *l, struct tr_error *err)
{
	const struct tr_ranks *dp = &l->mesh.dp;
	int64_t n, *all;
	const int64_t *mine = tr_lm_trained(l->lm, &n);
	int rc;

	if (!mine)
		return 0;
	all = calloc((size_t)(n * dp->n), sizeof(*all));
	rc = tr_agree(l->ranks, all ? 0 : tr_fail(err, TR_ENOMEM, "no memory for a trace of %"
						  PRId64 " samples", n * dp->n), err);
	if (rc == 0)
		rc = tr_allgather(dp, mine, all, (size_t)n * sizeof(*mine), err);
	for (int r = 0; rc == 0 && r < dp->n; r++) {
		json_t *positions = json_array();

		for (int64_t i = 0; i < n; i++)
			json_array_append_new(positions, json_integer(all[r * n + i]));
		tr_event(l->events, json_pack("{s:s,s:I,s:i,s:o}", "event", "samples", "step",
			(json_int_t)l->t.step, "dp", r, "positions", positions));
	}
	free(all);
	return rc;
}

/* Sets bytes[kind] to the memory that this rank has used. */
static void used_memory(const struct loop *l, int64_t bytes[TR_MEMORY_KINDS])
{
	tr_trainer_used(&l->t, bytes);
	bytes[TR_BUFFERS] += l->be->workspace + tr_lm_used(l->lm);
	if (l->eval)
		bytes[TR_BUFFERS] += tr_lm_used(l->eval);
}

/* Writes an event for each rank after the first step. [collective] */
static int tell_memory(struct loop *l, struct tr_error *err)
{
	enum { KINDS = TR_MEMORY_KINDS };
	int64_t mine[2 * KINDS], *all;
	int rc = tr_plan_rank(&l->setup, l->ranks->rank, mine, err);

	used_memory(l, mine + KINDS);
	l->told_memory = 1;
	all = calloc((size_t)l->ranks->n, sizeof(mine));
	if (rc == 0 && !all)
		rc = tr_fail(err, TR_ENOMEM, "no memory for the plans of %d ranks", l->ranks->n);
	rc = tr_agree(l->ranks, rc, err);
	if (rc == 0)
		rc = tr_allgather(l->ranks, mine, all, sizeof(mine), err);
	for (int r = 0; rc == 0 && r < l->ranks->n; r++)
		tr_event(l->events, json_pack("{s:s,s:i,s:o,s:o}", "event", "memory", "rank", r,
			"planned", tr_json_memory(all + 2 * KINDS * r), "used",
			tr_json_memory(all + 2 * KINDS * r + KINDS)));
	free(all);
	return rc;
}

static void tell_saved(struct loop *l, int64_t step)
{
	const struct tr_registry *reg = tr_model_registry(l->t.model);
	int64_t item = 12 + (l->t.adamw.master ? 2 : 0);        /* bytes */
	int64_t bytes = reg->distinct * item - (l->t.muon ? reg->matrices * 4 : 0);

	tr_event(l->events, json_pack("{s:s,s:I,s:s,s:I,s:f}", "event", "saved", "step",
		(json_int_t)step, "to", "disk", "bytes", (json_int_t)bytes,
		"blocked_ms", (double)l->blocked_ns * 1e-6));
	tr_say(l->events, "saved step %" PRId64, step);
}

/* ---- the loop ---- */

static void tell_error(struct tr_events *events, int code, const struct tr_error *err)
{
	tr_event(events, json_pack("{s:s,s:s,s:i,s:s}", "event", "error", "code",
				   tr_code_name(code), "rank", err->rank, "message", err->msg));
}

/* Takes the result of a save. If the disk is full the training goes on, because a later save may
 * work. That is an error only if the training ends before one does. */
static int take_save(struct loop *l, int code, const struct tr_error *err)
{
	if (code != TR_ENOSPC)
		return code;
	l->last_saved = l->committed;
	l->unsaved = *err;
	tell_error(l->events, code, err);
	if (l->ranks->rank == 0)
		fprintf(stderr, "sheaf-train: %s; the training goes on\n", err->msg);
	return 0;
}

/* Continues the save in flight; with `wait` until it is committed. */
static int advance(struct loop *l, int wait, struct tr_error *err)
{
	int64_t start = tr_clock_ns(), step;
	int rc = tr_store_advance(l->store, wait, &step, err);

	l->blocked_ns += tr_clock_ns() - start;
	if (rc == 0 && step) {
		l->committed = step;
		tell_saved(l, step);
	}
	return take_save(l, rc, err);
}

/* Commits the save in flight after a failure that all ranks have agreed on. It is of an earlier
 * step, which did not fail. */
static void finish_save(struct loop *l)
{
	struct tr_error err = { .rank = -1 };

	if (advance(l, 1, &err) < 0 && l->ranks->rank == 0)
		fprintf(stderr, "sheaf-train: the last save failed, too: %s\n", err.msg);
}

/* Begins a save of the present state. */
static int begin_save(struct loop *l, struct tr_error *err)
{
	struct tr_attachment files[] = {
		{ "config.json", l->setup.text, l->setup.n },
		{ "train.yaml", l->yaml, strlen(l->yaml) },
		{ "param_groups.json", NULL, 0 },
	};
	double lr = tr_schedule_lr(&l->t.schedule, l->t.step ? l->t.step - 1 : 0);
	char *groups;
	int rc = tr_agree(l->ranks, tr_param_groups(&groups, &l->setup, lr, err), err);

	if (rc == 0) {
		files[2].bytes = groups;
		files[2].n = strlen(groups);
		l->progress.step = l->t.step;
		l->progress.adam_step = l->t.adamw.step;
		rc = tr_store_begin(l->store, &l->progress, files, 3, err);
	}
	free(groups);
	return rc;
}

static int save(struct loop *l, struct tr_error *err)
{
	int rc = advance(l, 1, err);
	int64_t start = tr_clock_ns();

	if (rc == 0)
		rc = tr_trainer_settle(&l->t, err);
	if (rc < 0)
		return rc;
	rc = begin_save(l, err);
	l->last_saved = l->t.step;
	l->blocked_ns += tr_clock_ns() - start;
	return take_save(l, rc, err);
}

/* Computes the loss of the data of evaluations. */
static int evaluate(struct loop *l, struct tr_error *err)
{
	int64_t tokens;
	double loss;
	int rc = tr_lm_evaluate(l->eval, &l->t, &loss, &tokens, err);

	if (rc < 0)
		return rc;
	l->last_eval = l->t.step;
	tr_event(l->events, json_pack("{s:s,s:I,s:f,s:o,s:I,s:I}", "event", "eval", "step",
		(json_int_t)l->t.step, "loss", loss, "loss_hex", tr_json_hex(loss), "samples",
		(json_int_t)tr_lm_samples(l->eval), "tokens", (json_int_t)tokens));
	tr_say(l->events, "step %" PRId64 "  loss %.4f of %" PRId64 " tokens of eval-data",
	       l->t.step, loss, tokens);
	return 0;
}

static int step(struct loop *l, struct tr_error *err)
{
	struct tr_gate gate = tr_store_gate(l->store);
	struct tr_lm_step s;
	int64_t start = tr_clock_ns();
	int rc;

	l->be->gemm_ns = 0;
	rc = tr_lm_train(l->lm, &l->t, l->progress.consumed, &gate, &s, err);
	tr_offload_evict(&l->moments);
	/* In the update a gate may have failed on one rank, without an operation of all ranks. */
	rc = tr_agree(l->ranks, rc, err);
	if (rc < 0)
		return rc;
	l->progress.consumed += l->o->batch;
	l->progress.tokens += s.tokens;
	rc = tell_step(l, &s, start, err);
	if (rc == 0)
		rc = tell_samples(l, err);
	if (rc == 0 && !l->told_memory)
		rc = tell_memory(l, err);
	if (rc == 0)
		rc = advance(l, 0, err);
	if (rc == 0 && l->o->eval_every && l->t.step % l->o->eval_every == 0)
		rc = evaluate(l, err);
	if (rc == 0 && l->o->save_every && l->t.step % l->o->save_every == 0)
		rc = save(l, err);
	return rc;
}

/* Returns why there is no further step, or NULL if there is one. */
static const char *reason_to_end(const struct loop *l)
{
	const struct tr_opts *o = l->o;
	int64_t samples = tr_lm_samples(l->lm);

	if (o->steps && l->t.step >= o->steps)
		return "steps";
	if (o->epochs && l->progress.consumed + o->batch > o->epochs * samples)
		return "data";
	return NULL;
}

static int run_steps(struct loop *l, struct tr_error *err)
{
	const char *reason;
	int rc = tell_start(l, err);

	while (rc == 0 && !(reason = reason_to_end(l)))
		rc = step(l, err);
	if (rc == 0 && l->eval && l->last_eval != l->t.step)
		rc = evaluate(l, err);
	if (rc == 0 && l->last_saved != l->t.step)
		rc = save(l, err);
	if (rc == 0)
		rc = advance(l, 1, err);
	if (rc == 0 && l->last_saved != l->t.step) {
		*err = l->unsaved;
		rc = err->code;
	}
	if (rc < 0 && rc != TR_ELOST && rc != TR_ENAN)
		finish_save(l);
	if (rc == 0)
		tr_event(l->events, json_pack("{s:s,s:s,s:I}", "event", "end", "reason", reason,
					      "step", (json_int_t)l->t.step));
	return rc;
}

int tr_train(struct tr_ranks *ranks, struct tr_opts *o, struct tr_events *events,
	     struct tr_error *err)
{
	struct loop *l = calloc(1, sizeof(*l));
	int rc;

	if (!l) {
		tr_fail(err, TR_ENOMEM, "no memory to train");
		return tr_ranks_abandon(ranks, err);
	}
	l->o = o;
	l->events = events;
	l->ranks = ranks;
	rc = prepare(l, err);
	if (rc == 0)
		rc = run_steps(l, err);
	if (rc < 0)
		tell_error(events, rc, err);
	tr_lm_free(l->lm);
	tr_lm_free(l->eval);
	tr_trainer_release(&l->t);
	tr_offload_close(&l->moments);
	tr_backend_free(l->be);
	tr_store_close(l->store, rc == TR_ELOST);
	tr_mesh_release(&l->mesh);
	tr_ranks_free(&l->linked);
	free(l->source);
	tr_setup_release(&l->setup);
	free(l->yaml);
	free(l);
	return rc;
}
