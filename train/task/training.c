/* SPDX-License-Identifier: Apache-2.0 */
#include "training.h"

#include <stdlib.h>
#include <string.h>

#include "sumtree.h"

/* Returns the layer with which a part of the model begins. If the parts cannot be alike, the first
 * ones have one layer more. */
static int64_t first_layer(const struct tr_trainer *t, const struct tr_model_config *c, int part)
{
	int64_t parts = (int64_t)t->pipe.stages * t->pipe.chunks, first = 0;

	if (!t->layers)
		return c->layers - tr_cut(c->layers, parts, parts - part);
	for (int i = 0; i < part; i++)
		first += t->layers[i];
	return first;
}

/* Lists the work and the parts of this rank. */
static int plan_work(struct tr_trainer *t, const struct tr_model_config *c, struct tr_error *err)
{
	struct tr_pipe *p = &t->pipe;
	struct tr_part *part;
	int64_t n;

	p->stages = t->mesh->pp.n;
	p->stage = t->mesh->pp.rank;
	p->chunks = p->chunks ? p->chunks : 1;
	p->micros = p->micros ? p->micros : 1;
	n = tr_work_count(p);
	t->work = calloc((size_t)n, sizeof(*t->work));
	t->parts.part = part = calloc((size_t)p->chunks, sizeof(*part));
	t->parts.n = p->chunks;
	t->parts.recompute = t->recompute;
	if (!t->work || !part)
		return tr_fail(err, TR_ENOMEM, "no memory to list the work of a stage; use larger "
			       "micro-batches");
	tr_work_list(p, t->work);
	for (int i = 0; i < p->chunks; i++) {
		int in_model = p->stage + i * p->stages;

		part[i] = (struct tr_part){ first_layer(t, c, in_model),
					    first_layer(t, c, in_model + 1),
					    tr_work_slots(t->work, n, i) };
	}
	return 0;
}

int tr_trainer_leaf(const struct tr_trainer *t, int64_t j)
{
	return (int)(j / (t->batch / t->leaves));
}

/* Lists the backward passes of this rank. *n receives the length of the list. */
static void list_uses(const struct tr_trainer *t, int64_t seqs, struct tr_leafuse *use, int64_t *n)
{
	int64_t samples = t->batch / t->mesh->dp.n, works = tr_work_count(&t->pipe);

	*n = 0;
	for (int64_t i = 0; i < works; i++) {
		const struct tr_work *w = &t->work[i];
		int64_t from = w->micro * seqs, to = from + seqs < samples ? from + seqs : samples;

		if (w->backward)
			use[(*n)++] = (struct tr_leafuse){ w->part, tr_trainer_leaf(t, from),
				tr_trainer_leaf(t, to - 1), tr_trainer_leaf(t, to) };
	}
}

/* Makes the gradients, for micro-batches of `seqs` samples. */
static int make_gradients(struct tr_trainer *t, int64_t seqs, struct tr_error *err)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	struct tr_leafgrads_opts o = { .reg = reg, .mesh = t->mesh, .shares = t->adamw.shares,
		.leaves = t->leaves, .overlap = t->overlap, .parts = &t->parts };
	struct tr_leafuse *use = calloc((size_t)tr_work_count(&t->pipe), sizeof(*use));
	int rc;

	if (!use)
		return tr_fail(err, TR_ENOMEM, "no memory to count the gradient blocks");
	if (t->batch) {
		list_uses(t, seqs, use, &o.uses);
		o.use = use;
		/* A round has the leaves that a micro-batch completes, but one at least. */
		o.round = tr_trainer_leaf(t, seqs);
		o.round = o.round ? o.round : 1;
	}
	rc = tr_leafgrads_new(&t->grads, &o, &t->arenas, err);
	free(use);
	if (rc < 0)
		return rc;
	t->adamw.first = tr_leafgrads_first(t->grads);
	if (!t->adamw.shares)
		return 0;
	return tr_weightgather_init(&t->gather, reg, t->adamw.shares,
				    tr_leafgrads_queue(t->grads), err);
}

/* Sets where the second moments of each parameter begin, one after another: the matrices have none.
 * Returns the number of all of them. */
static int64_t place_second(struct tr_adamw *a, const struct tr_registry *reg)
{
	int64_t at = 0;

	for (int i = 0; i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];
		struct tr_span own;

		tr_shares_of(a->shares, p, &own);
		a->second[i] = at;
		at += p->matrix || p->tied_to >= 0 ? 0 : own.to - own.from;
	}
	return at;
}

static int make_moments(struct tr_trainer *t, const struct tr_registry *reg, struct tr_error *err)
{
	struct tr_adamw *a = &t->adamw;
	int64_t items = tr_shares_items(a->shares, reg), second = items;

	if (t->muon) {
		a->second = calloc((size_t)reg->n, sizeof(*a->second));
		if (!a->second)
			return tr_fail(err, TR_ENOMEM, "no memory to list the moments");
		second = place_second(a, reg);
	}
	tr_arena_ask(&t->arenas, TR_OPTIMIZER, items, &a->m);
	tr_arena_ask(&t->arenas, TR_OPTIMIZER, second, &a->v);
	if (t->type != TR_F32)
		tr_arena_ask(&t->arenas, TR_OPTIMIZER, items, &a->master);
	if (t->averaged)
		tr_arena_ask(&t->arenas, TR_OPTIMIZER, items, &a->ema);
	return t->muon ? tr_muon_new(&a->muon, reg, &t->arenas, &t->mesh->tp, a->shares, err) : 0;
}

/* Continues what goes on in the background. */
static void poll_queue(void *arg)
{
	tr_queue_poll(tr_leafgrads_queue(((struct tr_trainer *)arg)->grads));
}

static int make_parts(struct tr_trainer *t, const struct tr_model_config *c, int64_t seqs_max,
		      int64_t seq_max, struct tr_error *err)
{
	struct tr_tensorpar_opts tp = { &t->mesh->tp, t->pieces, t->sp };
	const struct tr_registry *reg;
	int rc = plan_work(t, c, err);

	t->arenas.be = t->be;
	t->arenas.type = t->type;
	if (t->be)
		t->be->type = t->type;
	if (rc == 0)
		rc = tr_model_new(&t->model, c, &t->arenas, &tp, &t->parts, seqs_max, seq_max,
				  err);
	if (rc < 0)
		return rc;
	reg = tr_model_registry(t->model);
	if (t->zero && t->mesh->dp.n > 1) {
		t->adamw.shares = &t->shares;
		rc = tr_shares_make(&t->shares, reg, &t->mesh->dp, t->zero_form, err);
		t->shares.gradients = t->zero == 2;
	}
	if (rc == 0)
		rc = make_moments(t, reg, err);
	if (rc < 0)
		return rc;
	rc = make_gradients(t, seqs_max, err);
	if (rc == 0 && t->be && t->overlap && t->mesh->dp.n > 1) {
		t->be->between = poll_queue;
		t->be->between_arg = t;
	}
	return rc;
}

int tr_trainer_plan(struct tr_trainer *t, const struct tr_model_config *c, int64_t seqs_max,
		    int64_t seq_max, struct tr_error *err)
{
	int rc = make_parts(t, c, seqs_max, seq_max, err);

	if (rc < 0)
		tr_trainer_release(t);
	return rc;
}

int tr_trainer_init(struct tr_trainer *t, const struct tr_model_config *c, int64_t seqs_max,
		    int64_t seq_max, struct tr_error *err)
{
	int rc = tr_trainer_plan(t, c, seqs_max, seq_max, err);

	if (rc == 0)
		rc = tr_arenas_allocate(&t->arenas, err);
	if (rc < 0)
		tr_trainer_release(t);
	return rc;
}

void tr_trainer_release(struct tr_trainer *t)
{
	tr_leafgrads_free(t->grads);
	t->grads = NULL;
	tr_weightgather_release(&t->gather);
	if (t->be)
		t->be->between = NULL;
	free(t->adamw.second);
	tr_muon_free(t->adamw.muon);
	t->adamw.second = NULL;
	t->adamw.muon = NULL;
	t->adamw.m = t->adamw.v = t->adamw.master = t->adamw.ema = NULL;
	t->adamw.shares = NULL;
	tr_shares_release(&t->shares);
	tr_model_free(t->model);
	t->model = NULL;
	tr_arenas_release(&t->arenas);
	free(t->work);
	free((void *)(uintptr_t)t->parts.part);
	t->work = NULL;
	t->parts = (struct tr_parts){ .n = 0 };
}

void tr_trainer_used(const struct tr_trainer *t, int64_t bytes[TR_MEMORY_KINDS])
{
	for (int kind = 0; kind < TR_MEMORY_KINDS; kind++)
		bytes[kind] = tr_arenas_bytes(&t->arenas, (enum tr_memory)kind);
	bytes[TR_GRADS] = tr_leafgrads_used(t->grads);
}

static int wait_weights(void *arg, int64_t layer, struct tr_error *err)
{
	return tr_weightgather_wait(&((struct tr_trainer *)arg)->gather, layer, err);
}

void tr_trainer_forward(struct tr_trainer *t, struct tr_rows *rows)
{
	if (!t->adamw.shares || !t->overlap)
		return;
	rows->turn = wait_weights;
	rows->arg = t;
}

int tr_trainer_settle(struct tr_trainer *t, struct tr_error *err)
{
	int64_t head = tr_model_registry(t->model)->layers;

	return t->adamw.shares ? tr_weightgather_wait(&t->gather, head, err) : 0;
}

void tr_trainer_draw(struct tr_trainer *t, uint64_t seed, double range)
{
	const struct tr_registry *reg = tr_model_registry(t->model);

	for (int i = 0; i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];
		struct tr_span own;
		int64_t at;
		float *w;

		if (p->tied_to >= 0)
			continue;
		w = tr_adamw_of(&t->adamw, p, tr_model_weights(t->model), &own, &at);
		tr_param_draw(p, w, own.from - p->offset, own.to - p->offset, seed, range);
	}
}

void tr_trainer_average(struct tr_trainer *t)
{
	const struct tr_registry *reg = tr_model_registry(t->model);

	for (int i = 0; t->averaged && i < reg->n; i++) {
		struct tr_span own;
		int64_t at;
		float *w;

		if (reg->param[i].tied_to >= 0)
			continue;
		w = tr_adamw_of(&t->adamw, &reg->param[i], tr_model_weights(t->model), &own, &at);
		memcpy(t->adamw.ema + at, w, (size_t)(own.to - own.from) * sizeof(*w));
	}
}

/* Rounds the masters of this rank to the weights of the model. */
static void round_masters(struct tr_trainer *t)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	void *weights = tr_model_weights(t->model);

	for (int i = 0; i < reg->n; i++) {
		struct tr_span own;
		int64_t at;
		float *w;

		if (reg->param[i].tied_to >= 0)
			continue;
		w = tr_adamw_of(&t->adamw, &reg->param[i], weights, &own, &at);
		t->be->round(t->be, tr_item(t->type, weights, own.from), w, own.to - own.from);
	}
}

int tr_trainer_spread(struct tr_trainer *t, struct tr_error *err)
{
	if (t->adamw.master)
		round_masters(t);
	return t->adamw.shares ? tr_weightgather_begin(&t->gather, t->type,
						       tr_model_weights(t->model), err) : 0;
}

static void swap_items(float *x, float *y, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		float item = x[i];

		x[i] = y[i];
		y[i] = item;
	}
}

int tr_trainer_swap(struct tr_trainer *t, const struct tr_gate *gate, struct tr_error *err)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	/* Other ranks may still receive weights that are exchanged here. */
	int rc = tr_trainer_settle(t, err);

	for (int i = 0; rc == 0 && i < reg->n; i++) {
		struct tr_span own;
		int64_t at;
		float *w;

		if (reg->param[i].tied_to >= 0)
			continue;
		rc = gate ? gate->wait(gate->arg, i, err) : 0;
		w = tr_adamw_of(&t->adamw, &reg->param[i], tr_model_weights(t->model), &own, &at);
		if (rc == 0)
			swap_items(w, t->adamw.ema + at, own.to - own.from);
	}
	/* A rank whose gate has failed must not receive weights: the save may still read them. */
	rc = tr_agree(t->mesh->all, rc, err);
	if (rc == 0)
		rc = tr_trainer_spread(t, err);
	return rc == 0 ? tr_trainer_settle(t, err) : rc;
}

int tr_trainer_reduce(struct tr_trainer *t, double *norm, struct tr_error *err)
{
	int rc = tr_leafgrads_reduce(t->grads, &t->grad, err);

	if (rc < 0)
		return rc;
	return tr_gradient_norm(tr_model_registry(t->model), t->be->isa, t->mesh, t->adamw.shares,
				t->grad, norm, err);
}

struct update {
	struct tr_trainer *t;
	const struct tr_gate *gate;     /* of the caller, or NULL */
};

/* Waits until a parameter may change, and for its gradient. */
static int wait_param(void *arg, int i, struct tr_error *err)
{
	const struct update *u = arg;
	int rc = u->gate ? u->gate->wait(u->gate->arg, i, err) : 0;

	return rc < 0 ? rc :
		tr_leafgrads_wait(u->t->grads, &tr_model_registry(u->t->model)->param[i], err);
}

int tr_trainer_update(struct tr_trainer *t, double norm, const struct tr_gate *gate, double *lr,
		      struct tr_error *err)
{
	struct update u = { t, gate };
	const struct tr_gate both = { wait_param, &u };
	/* The same factor as that of torch.nn.utils.clip_grad_norm_. */
	double scale = t->clip > 0 && norm + 1e-6 > t->clip ? t->clip / (norm + 1e-6) : 1;
	int rc, gathered;

	*lr = tr_schedule_lr(&t->schedule, t->step);
	rc = tr_adamw_update(&t->adamw, tr_model_registry(t->model), t->be->isa,
			     tr_model_weights(t->model), t->grad, *lr, scale, &both, err);
	/* Also after a failure, because other ranks may wait for sums of this one. */
	gathered = tr_leafgrads_wait(t->grads, NULL, rc < 0 ? NULL : err);
	rc = rc < 0 ? rc : gathered;
	/* A rank whose gate has failed must not receive weights: the save may still read them. */
	if (t->adamw.shares)
		rc = tr_agree(&t->mesh->dp, rc, err);
	if (rc == 0)
		rc = tr_trainer_spread(t, err);
	if (rc == 0 && !t->overlap)
		rc = tr_trainer_settle(t, err);
	if (rc == 0)
		t->step++;
	return rc;
}

int tr_trainer_hash(struct tr_trainer *t, uint64_t *hash, struct tr_error *err)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	const struct tr_ranks *dp = &t->mesh->dp;

	*hash = 0;
	for (int i = 0; i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];
		struct tr_span own;
		int64_t at, from, to, first;
		float *w;

		if (p->tied_to >= 0)
			continue;
		w = tr_adamw_of(&t->adamw, p, tr_model_weights(t->model), &own, &at);
		/* Without shares the ranks of dp have the same items, and each takes a part. */
		first = own.from - p->offset;
		from = t->adamw.shares ? 0 : tr_cut(own.to - own.from, dp->n, dp->rank);
		to = t->adamw.shares ? own.to - own.from :
			tr_cut(own.to - own.from, dp->n, dp->rank + 1);
		*hash += tr_param_hash(reg, p, w + from, first + from, first + to);
	}
	return tr_allreduce(t->mesh->all, hash, 1, TR_SUM, err);
}
