/* SPDX-License-Identifier: Apache-2.0 */
#include "lm.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exact.h"
#include "sampleorder.h"
#include "sumtree.h"

struct tr_lm {
	struct tr_lm_opts o;
	struct tr_tokenfile file;
	int64_t samples;
	/* One micro-batch. */
	int64_t *begin;
	int32_t *token, *target, *position;
	float *weight, *loss, **grad;
	/* One sample and the token behind it. */
	int32_t *read;
	uint8_t *mask;
};

static int allocate(struct tr_lm *lm)
{
	size_t seqs = (size_t)lm->o.micro_batch, n = seqs * (size_t)lm->o.seq;

	lm->begin = calloc(seqs + 1, sizeof(*lm->begin));
	lm->grad = calloc(seqs, sizeof(*lm->grad));
	lm->token = calloc(n, sizeof(*lm->token));
	lm->target = calloc(n, sizeof(*lm->target));
	lm->position = calloc(n, sizeof(*lm->position));
	lm->read = calloc((size_t)lm->o.seq + 1, sizeof(*lm->read));
	lm->mask = calloc((size_t)lm->o.seq + 1, 1);
	lm->weight = calloc(n, sizeof(*lm->weight));
	lm->loss = calloc(n, sizeof(*lm->loss));
	return lm->begin && lm->grad && lm->token && lm->target && lm->position && lm->read &&
		lm->mask && lm->weight && lm->loss;
}

int tr_lm_new(struct tr_lm **out, const struct tr_lm_opts *o, struct tr_error *err)
{
	struct tr_lm *lm = calloc(1, sizeof(*lm));
	int rc;

	if (!lm)
		return tr_fail(err, TR_ENOMEM, "no memory for the data");
	lm->o = *o;
	lm->file.fd = -1;
	rc = tr_tokenfile_open(&lm->file, o->data, err);
	if (rc == 0 && !allocate(lm))
		rc = tr_fail(err, TR_ENOMEM, "no memory for a micro-batch of %" PRId64 " samples",
			     o->micro_batch);
	if (rc < 0) {
		tr_lm_free(lm);
		return rc;
	}
	lm->samples = tr_tokenfile_samples(&lm->file, o->seq);
	*out = lm;
	return 0;
}

void tr_lm_free(struct tr_lm *lm)
{
	if (!lm)
		return;
	tr_tokenfile_close(&lm->file);
	free(lm->begin);
	free(lm->grad);
	free(lm->token);
	free(lm->target);
	free(lm->position);
	free(lm->read);
	free(lm->mask);
	free(lm->weight);
	free(lm->loss);
	free(lm);
}

int64_t tr_lm_samples(const struct tr_lm *lm)
{
	return lm->samples;
}

int tr_lm_identify(const struct tr_lm *lm, int64_t *tokens, uint64_t *hash, struct tr_error *err)
{
	*tokens = lm->file.n;
	return tr_tokenfile_hash(&lm->file, hash, err);
}

/* Returns how many tokens of a sample have a target: seq, or fewer at the end of the file. */
static int64_t length_of(const struct tr_lm *lm, int64_t sample)
{
	int64_t left = lm->file.n - 1 - sample * lm->o.seq;

	return left < lm->o.seq ? left : lm->o.seq;
}

/* Appends a sample to the micro-batch. The target of each token is the one after it. */
static int add_sample(struct tr_lm *lm, struct tr_rows *rows, int64_t sample, struct tr_error *err)
{
	int64_t n = length_of(lm, sample), at = rows->n;
	int rc = tr_tokenfile_read(&lm->file, sample * lm->o.seq, n + 1, lm->o.vocab, lm->read,
				   err);

	if (rc == 0)
		rc = tr_tokenfile_mask(&lm->file, sample * lm->o.seq, n + 1, lm->mask, err);
	if (rc < 0)
		return rc;
	for (int64_t i = 0; i < n; i++) {
		lm->token[at + i] = lm->read[i];
		lm->target[at + i] = lm->read[i + 1];
		lm->weight[at + i] = lm->mask[i + 1] == 1;
		lm->position[at + i] = (int32_t)i;
	}
	rows->seqs++;
	rows->n += n;
	lm->begin[rows->seqs] = rows->n;
	return 0;
}

/* Counts the targets of samples [from, to) of the step that are not masked. */
static int count_targets(struct tr_lm *lm, int64_t consumed, int64_t from, int64_t to,
			 uint64_t *count, struct tr_error *err)
{
	*count = 0;
	for (int64_t j = from; j < to; j++) {
		int64_t sample = tr_sample_at(lm->o.seed, lm->o.shuffle, lm->samples,
					      consumed + j);
		int64_t n = length_of(lm, sample);
		int rc = tr_tokenfile_mask(&lm->file, sample * lm->o.seq, n + 1, lm->mask, err);

		if (rc < 0)
			return rc;
		for (int64_t i = 1; i <= n; i++)
			*count += lm->mask[i] == 1;
	}
	return 0;
}

static int leaf_of(const struct tr_lm *lm, const struct tr_trainer *t, int64_t j)
{
	return (int)(j * t->leaves / lm->o.batch);
}

/* Sets `rows` to positions [from, to) of the run. They have no gradient buffers. */
static int fill_rows(struct tr_lm *lm, int64_t from, int64_t to, struct tr_rows *rows,
		     struct tr_error *err)
{
	int rc = 0;

	*rows = (struct tr_rows){ .begin = lm->begin, .token = lm->token, .target = lm->target,
		.weight = lm->weight, .position = lm->position, .grad = lm->grad };
	for (int64_t j = from; rc == 0 && j < to; j++)
		rc = add_sample(lm, rows, tr_sample_at(lm->o.seed, lm->o.shuffle, lm->samples, j),
				err);
	return rc;
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
	int rc = fill_rows(lm, consumed + from, consumed + to, &rows, err);

	if (rc == 0)
		rc = find_leaves(lm, t, from, to, err);
	/* The ranks of tp compute the rows together, so none of them begins alone. */
	rc = tr_agree(&t->mesh->tp, rc, err);
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
	rc = tr_agree(t->mesh->all, count_targets(lm, consumed, from, to, &targets, err), err);
	if (rc == 0)
		rc = tr_allreduce(&t->mesh->dp, &targets, 1, TR_SUM, err);
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

/* Adds the losses of samples [from, to), and counts their targets. */
static int evaluate_some(struct tr_lm *lm, struct tr_trainer *t, int64_t from, int64_t to,
			 struct tr_exact *loss, uint64_t *targets, struct tr_error *err)
{
	struct tr_rows rows;
	int rc = tr_agree(&t->mesh->tp, fill_rows(lm, from, to, &rows, err), err);

	if (rc == 0)
		rc = tr_model_forward(t->model, &rows, 0, err);
	if (rc == 0)
		rc = tr_model_loss(t->model, &rows, 1, lm->loss, 0, err);
	for (int64_t i = 0; rc == 0 && i < rows.n; i++) {
		tr_exact_add(loss, lm->loss[i]);
		*targets += lm->weight[i] > 0;
	}
	return rc;
}

int tr_lm_evaluate(struct tr_lm *lm, struct tr_trainer *t, double *loss, int64_t *tokens,
		   struct tr_error *err)
{
	const struct tr_ranks *dp = &t->mesh->dp;
	int64_t from = tr_cut(lm->samples, dp->n, dp->rank), end;
	int64_t to = tr_cut(lm->samples, dp->n, dp->rank + 1);
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
			       lm->file.path);
	return 0;
}
