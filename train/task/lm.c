/* SPDX-License-Identifier: Apache-2.0 */
#include "lm.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exact.h"
#include "rowfeed.h"
#include "sumtree.h"

struct tr_lm {
	struct tr_lm_opts o;
	struct tr_rowfeed feed;
	/* Of one micro-batch. */
	float *loss, **grad;
	int64_t *trained, trained_n;    /* NULL: no trace */
};

int tr_lm_new(struct tr_lm **out, const struct tr_lm_opts *o, struct tr_error *err)
{
	const struct tr_rowfeed_opts feed = { .data = o->data, .ranks = o->ranks,
		.source = o->source, .job_ranks = o->job_ranks, .seqs_max = o->micro_batch,
		.seq = o->seq, .vocab = o->vocab, .seed = o->seed, .shuffle = o->shuffle,
		.documents = o->documents };
	size_t seqs = (size_t)o->micro_batch;
	struct tr_lm *lm = calloc(1, sizeof(*lm));
	int rc;

	if (!lm) {
		tr_fail(err, TR_ENOMEM, "no memory for the data");
		return tr_ranks_abandon(o->ranks, err);
	}
	lm->o = *o;
	rc = tr_rowfeed_open(&lm->feed, &feed, err);
	lm->grad = calloc(seqs, sizeof(*lm->grad));
	lm->loss = calloc(seqs * (size_t)o->seq, sizeof(*lm->loss));
	lm->trained = o->trace ? calloc((size_t)o->batch, sizeof(*lm->trained)) : NULL;
	if (rc == 0 && (!lm->grad || !lm->loss || (o->trace && !lm->trained)))
		rc = tr_fail(err, TR_ENOMEM, "no memory for the losses of %" PRId64 " samples",
			     o->micro_batch);
	rc = tr_agree(o->ranks, rc, err);
	if (rc < 0)
		tr_lm_free(lm);
	else
		*out = lm;
	return rc;
}

void tr_lm_free(struct tr_lm *lm)
{
	if (!lm)
		return;
	tr_rowfeed_close(&lm->feed);
	free(lm->grad);
	free(lm->loss);
	free(lm->trained);
	free(lm);
}

int64_t tr_lm_samples(const struct tr_lm *lm)
{
	return lm->feed.samples;
}

void tr_lm_identify(const struct tr_lm *lm, int64_t *tokens, uint64_t *hash)
{
	*tokens = lm->feed.tokens;
	*hash = lm->feed.hash;
}

static int leaf_of(const struct tr_lm *lm, const struct tr_trainer *t, int64_t j)
{
	return (int)(j * t->leaves / lm->o.batch);
}

/* Makes the gradient buffers of samples [from, to) of the step. */
static int find_leaves(struct tr_lm *lm, struct tr_trainer *t, int64_t from, int64_t to,
		       struct tr_error *err)
{
	for (int64_t j = from; j < to; j++) {
		lm->grad[j - from] = tr_leafgrads_of(t->grads, leaf_of(lm, t, j));
		if (!lm->grad[j - from])
			return tr_fail(err, TR_ENOMEM, "no memory for the gradients of a leaf; use "
				       "a smaller micro-batch or virtual dp");
	}
	return 0;
}

/* Runs the forward and the backward pass of samples [from, to) of the step. */
static int micro_batch(struct tr_lm *lm, struct tr_trainer *t, int64_t consumed, int64_t from,
		       int64_t to, double scale, struct tr_exact *loss, struct tr_error *err)
{
	struct tr_rows rows;
	int rc = find_leaves(lm, t, from, to, err);

	/* The ranks of tp compute the rows together, so none of them begins alone. */
	rc = tr_rowfeed_fill(&lm->feed, consumed + from, consumed + to, rc, &rows, err);
	rows.grad = lm->grad;
	if (rc == 0)
		rc = tr_model_forward(t->model, &rows, 1, err);
	if (rc == 0)
		rc = tr_model_loss(t->model, &rows, scale, lm->loss, 1, err);
	if (rc == 0)
		rc = tr_model_backward(t->model, &rows, err);
	if (rc < 0)
		return rc;
	for (int64_t i = 0; i < rows.n; i++)
		tr_exact_add(loss, lm->loss[i]);
	for (int64_t s = 0; lm->trained && s < rows.seqs; s++)
		lm->trained[lm->trained_n++] = rows.sample[s];
	/* Sample `to` comes next, so all leaves before its leaf are complete. */
	tr_leafgrads_close(t->grads, leaf_of(lm, t, to) - 1);
	return 0;
}

/* The ranks of tp have the same losses, so those of one of them count. */
static int sum_loss(const struct tr_trainer *t, struct tr_exact *loss, double *value,
		    struct tr_error *err)
{
	uint64_t limbs[TR_EXACT_LIMBS + 1];
	int rc;

	tr_exact_carry(loss);
	memcpy(limbs, loss->limb, sizeof(loss->limb));
	limbs[TR_EXACT_LIMBS] = (uint64_t)loss->odd;
	rc = tr_allreduce(&t->mesh->dp, limbs, TR_EXACT_LIMBS + 1, TR_SUM, err);
	if (rc < 0)
		return rc;
	memcpy(loss->limb, limbs, sizeof(loss->limb));
	loss->odd = (int64_t)limbs[TR_EXACT_LIMBS];
	*value = tr_exact_value(loss);
	return 0;
}

int tr_lm_train(struct tr_lm *lm, struct tr_trainer *t, int64_t consumed,
		const struct tr_gate *gate, struct tr_lm_step *step, struct tr_error *err)
{
	struct tr_exact loss = { .adds = 0 };
	int64_t from, to;
	uint64_t targets;
	int first, last, rc;

	tr_leafgrads_range(t->grads, &first, &last);
	from = first * (lm->o.batch / t->leaves);
	to = last * (lm->o.batch / t->leaves);
	lm->trained_n = 0;
	rc = tr_rowfeed_count(&lm->feed, consumed + from, consumed + to, &targets, err);
	rc = tr_agree(t->mesh->all, rc, err);
	if (rc == 0)
		rc = tr_allreduce(t->mesh->all, &targets, 1, TR_SUM, err);
	if (rc < 0)
		return rc;
	for (int64_t j = from; rc == 0 && j < to; j += lm->o.micro_batch) {
		int64_t end = j + lm->o.micro_batch < to ? j + lm->o.micro_batch : to;

		rc = micro_batch(lm, t, consumed, j, end, 1 / (double)(targets ? targets : 1),
				 &loss, err);
	}
	rc = tr_agree(t->mesh->all, rc, err);
	if (rc == 0)
		rc = sum_loss(t, &loss, &step->loss, err);
	if (rc == 0)
		rc = tr_trainer_reduce(t, &step->norm, err);
	if (rc < 0)
		return rc;
	step->tokens = (int64_t)targets;
	step->loss /= (double)(targets ? targets : 1);
	if (!isfinite(step->loss) || !isfinite(step->norm))
		return tr_fail(err, TR_ENAN, "step %" PRId64 ": the %s is not a number; resume "
			       "from an earlier step with a lower lr or with clip",
			       t->step + 1, isfinite(step->loss) ? "gradient" : "loss");
	return tr_trainer_update(t, step->norm, gate, &step->lr, err);
}

const int64_t *tr_lm_trained(const struct tr_lm *lm, int64_t *n)
{
	*n = lm->trained_n;
	return lm->trained;
}

/* Adds the losses of samples [from, to), and counts their targets. */
static int evaluate_some(struct tr_lm *lm, struct tr_trainer *t, int64_t from, int64_t to,
			 struct tr_exact *loss, uint64_t *targets, struct tr_error *err)
{
	struct tr_rows rows;
	int rc = tr_rowfeed_fill(&lm->feed, from, to, 0, &rows, err);

	if (rc == 0)
		rc = tr_model_forward(t->model, &rows, 0, err);
	if (rc == 0)
		rc = tr_model_loss(t->model, &rows, 1, lm->loss, 0, err);
	for (int64_t i = 0; rc == 0 && i < rows.n; i++) {
		tr_exact_add(loss, lm->loss[i]);
		*targets += rows.weight[i] > 0;
	}
	return rc;
}

int tr_lm_evaluate(struct tr_lm *lm, struct tr_trainer *t, double *loss, int64_t *tokens,
		   struct tr_error *err)
{
	const struct tr_ranks *dp = &t->mesh->dp;
	int64_t from = tr_cut(lm->feed.samples, dp->n, dp->rank), end;
	int64_t to = tr_cut(lm->feed.samples, dp->n, dp->rank + 1);
	struct tr_exact sum = { .adds = 0 };
	uint64_t targets = 0;
	int rc = 0;

	for (int64_t j = from; rc == 0 && j < to; j = end) {
		end = j + lm->o.micro_batch < to ? j + lm->o.micro_batch : to;
		rc = evaluate_some(lm, t, j, end, &sum, &targets, err);
	}
	rc = tr_agree(t->mesh->all, rc, err);
	if (rc == 0)
		rc = tr_allreduce(dp, &targets, 1, TR_SUM, err);
	if (rc == 0)
		rc = sum_loss(t, &sum, loss, err);
	if (rc < 0)
		return rc;
	*tokens = (int64_t)targets;
	*loss /= (double)(targets ? targets : 1);
	if (!isfinite(*loss))
		return tr_fail(err, TR_ENAN, "step %" PRId64 ": the loss of %s is not a number; "
			       "resume from an earlier step with a lower lr or with clip", t->step,
			       lm->o.data);
	return 0;
}
