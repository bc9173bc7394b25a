/* SPDX-License-Identifier: Apache-2.0 */
#include "training.h"

#include <stdlib.h>

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
	return (int)(j * t->leaves / t->batch);
}

/* Lists which leaves each backward pass of this rank uses. *n receives the length of the list. */
static void list_uses(const struct tr_trainer *t, int64_t seqs, struct tr_leafuse *use, int64_t *n)
{
	int64_t samples = t->batch / t->mesh->dp.n, first = samples * t->mesh->dp.rank;
	int64_t works = tr_work_count(&t->pipe);

	*n = 0;
	for (int64_t i = 0; i < works; i++) {
		const struct tr_work *w = &t->work[i];
		int64_t from = w->micro * seqs, to = from + seqs < samples ? from + seqs : samples;

		if (w->backward)
			use[(*n)++] = (struct tr_leafuse){ tr_trainer_leaf(t, first + from),
				tr_trainer_leaf(t, first + to - 1),
				w->part ? -1 : tr_trainer_leaf(t, first + to) - 1 };
	}
}

/* Sets *most to the number of gradient buffers that this rank needs; 0: one for each leaf. */
static int count_buffers(const struct tr_trainer *t, int64_t seqs, int *most, struct tr_error *err)
{
	struct tr_leafuse *use;
	int64_t n;

	*most = 0;
	if (!t->batch)
		return 0;
	use = calloc((size_t)tr_work_count(&t->pipe), sizeof(*use));
	if (use)
		list_uses(t, seqs, use, &n);
	*most = use ? tr_leafgrads_most(&t->mesh->dp, t->leaves, use, n) : -1;
	free(use);
	return *most > 0 ? 0 : tr_fail(err, TR_ENOMEM, "no memory to count the gradient buffers");
}

static void ask_for_moments(struct tr_trainer *t, const struct tr_registry *reg)
{
	int64_t items = tr_shares_items(t->adamw.shares, reg);

	tr_arena_ask(&t->arenas, TR_OPTIMIZER, items, &t->adamw.m);
	tr_arena_ask(&t->arenas, TR_OPTIMIZER, items, &t->adamw.v);
}

static int make_parts(struct tr_trainer *t, const struct tr_model_config *c, int64_t seqs_max,
		      int64_t seq_max, struct tr_error *err)
{
	struct tr_tensorpar_opts tp = { &t->mesh->tp, t->pieces, t->sp };
	const struct tr_registry *reg;
	int rc = plan_work(t, c, err), buffers = 0;

	t->arenas.be = t->be;
	if (rc == 0)
		rc = tr_model_new(&t->model, c, &t->arenas, &tp, &t->parts, seqs_max, seq_max,
				  err);
	if (rc == 0)
		rc = count_buffers(t, seqs_max, &buffers, err);
	if (rc < 0)
		return rc;
	reg = tr_model_registry(t->model);
	if (t->zero && t->mesh->dp.n > 1) {
		t->adamw.shares = &t->shares;
		rc = tr_shares_make(&t->shares, reg, &t->mesh->dp, t->zero_form, err);
	}
	if (rc < 0)
		return rc;
	ask_for_moments(t, reg);
	return tr_leafgrads_new(&t->grads, reg, &t->arenas, t->mesh, t->adamw.shares, t->leaves,
				buffers, err);
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
	t->adamw.m = t->adamw.v = NULL;
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
	bytes[TR_GRADS] = tr_leafgrads_used(t->grads) *
		tr_arena_bytes(tr_model_registry(t->model)->gradients);
}

int tr_trainer_reduce(struct tr_trainer *t, double *norm, struct tr_error *err)
{
	int rc = tr_leafgrads_reduce(t->grads, &t->grad, err);

	if (rc < 0)
		return rc;
	return tr_gradient_norm(tr_model_registry(t->model), t->be->isa, t->mesh, t->adamw.shares,
				t->grad, norm, err);
}

int tr_trainer_update(struct tr_trainer *t, double norm, const struct tr_gate *gate, double *lr,
		      struct tr_error *err)
{
	/* The same factor as that of torch.nn.utils.clip_grad_norm_. */
	double scale = t->clip > 0 && norm + 1e-6 > t->clip ? t->clip / (norm + 1e-6) : 1;
	int rc;

	*lr = tr_schedule_lr(&t->schedule, t->step);
	rc = tr_adamw_update(&t->adamw, tr_model_registry(t->model), t->be->isa,
			     tr_model_weights(t->model), t->grad, *lr, scale, gate, err);
	/* A rank whose gate has failed must not receive weights: the save may still read them. */
	if (t->adamw.shares)
		rc = tr_agree(&t->mesh->dp, rc, err);
	if (rc == 0 && t->adamw.shares)
		rc = tr_shares_gather(t->adamw.shares, tr_model_weights(t->model), err);
	if (rc == 0)
		t->step++;
	return rc;
}

int tr_trainer_hash(struct tr_trainer *t, uint64_t *hash, struct tr_error *err)
{
	*hash = tr_registry_hash(tr_model_registry(t->model), tr_model_weights(t->model),
				 t->mesh->dp.rank, t->mesh->dp.n);
	return tr_allreduce(t->mesh->all, hash, 1, TR_SUM, err);
}
