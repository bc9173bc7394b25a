/* SPDX-License-Identifier: Apache-2.0 */
#include "lm.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exact.h"
#include "pipeline.h"
#include "rowfeed.h"
#include "sumtree.h"

struct tr_lm {
	struct tr_lm_opts o;
	struct tr_rowfeed feed;
	/* Of one micro-batch. */
	int64_t *begin, *part;
	float *loss;
	int *leaf;
	int64_t *position;              /* [rank_batch]: of the samples whose rows are there */
	int64_t *trained, trained_n;    /* NULL: no trace */
	int64_t bytes;                  /* of these arrays */
};

/* Allocates an array of zeros. */
static void *new_array(struct tr_lm *lm, size_t n, size_t size)
{
	void *a = calloc(n, size);

	lm->bytes += a ? (int64_t)(n * size) : 0;
	return a;
}

int64_t tr_lm_bytes(const struct tr_lm_opts *o)
{
	int64_t seqs = o->micro_batch, n = seqs * o->seq;
	int64_t each = sizeof(int) + sizeof(int64_t);

	return tr_batch_bytes(o->rank_batch, o->seq) + seqs * each +
		o->rank_batch * (int64_t)sizeof(int64_t) +
		n * (int64_t)(sizeof(float) + sizeof(int64_t)) + 2 * (int64_t)sizeof(int64_t) +
		(o->trace ? o->batch * (int64_t)sizeof(int64_t) : 0);
}

int64_t tr_lm_used(const struct tr_lm *lm)
{
	return lm->bytes + lm->feed.batch.bytes;
}

int tr_lm_new(struct tr_lm **out, const struct tr_lm_opts *o, struct tr_error *err)
{
	const struct tr_rowfeed_opts feed = { .data = o->data, .ranks = o->ranks,
		.source = o->source, .job_ranks = o->job_ranks, .seqs_max = o->rank_batch,
		.seq = o->seq, .vocab = o->vocab, .seed = o->seed, .shuffle = o->shuffle,
		.documents = o->documents };
	size_t seqs = (size_t)o->micro_batch, n = seqs * (size_t)o->seq;
	struct tr_lm *lm = calloc(1, sizeof(*lm));
	int rc;

	if (!lm) {
		tr_fail(err, TR_ENOMEM, "no memory for the data");
		return tr_ranks_abandon(o->ranks, err);
	}
	lm->o = *o;
	rc = tr_rowfeed_open(&lm->feed, &feed, err);
	lm->leaf = new_array(lm, seqs, sizeof(*lm->leaf));
	lm->position = new_array(lm, (size_t)o->rank_batch, sizeof(*lm->position));
	lm->loss = new_array(lm, n, sizeof(*lm->loss));
	lm->begin = new_array(lm, seqs + 1, sizeof(*lm->begin));
	lm->part = new_array(lm, n + 1, sizeof(*lm->part));
	lm->trained = o->trace ? new_array(lm, (size_t)o->batch, sizeof(*lm->trained)) : NULL;
	if (rc == 0 && (!lm->leaf || !lm->position || !lm->loss || !lm->begin || !lm->part ||
			(o->trace && !lm->trained)))
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
	free(lm->begin);
	free(lm->part);
	free(lm->leaf);
	free(lm->position);
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

static int no_target(const struct tr_lm *lm, struct tr_error *err)
{
	return tr_fail(err, TR_EINVAL, "%s: no token counts as a target, so it has no loss; use "
		       "data whose mask is not 0 everywhere", lm->o.data);
}

int tr_lm_check(struct tr_lm *lm, struct tr_error *err)
{
	uint64_t targets;
	int rc = tr_rowfeed_check(&lm->feed, &targets, err);

	return rc == 0 && !targets && tr_rowfeed_reads(&lm->feed) ? no_target(lm, err) : rc;
}

/* Lists the positions of the samples of this rank in a step, in the order of its leaves. */
static int64_t list_positions(struct tr_lm *lm, const struct tr_trainer *t, int64_t consumed)
{
	int64_t each = lm->o.batch / t->leaves, n = 0;

	for (int i = 0; i < tr_leafgrads_count(t->grads); i++)
		for (int64_t s = 0; s < each; s++)
			lm->position[n++] = consumed + s +
				tr_leafgrads_leaf(t->grads, i) * each;
	return n;
}

/* Samples that a rank takes through the pipeline. */
struct pass {
	struct tr_lm *lm;
	struct tr_trainer *t;
	struct tr_rows rows;            /* of all of them */
	double scale;                   /* of the losses */
	struct tr_dropout drop;         /* of a step of a job */
	struct tr_exact loss;
};

/* Returns where a micro-batch ends, in p->rows. */
static int64_t end_of(const struct pass *p, int64_t micro)
{
	int64_t end = (micro + 1) * p->lm->o.micro_batch;

	return end < p->rows.seqs ? end : p->rows.seqs;
}

/* Returns how many leaves of this rank are complete after a micro-batch. Samples are processed in
 * order, so all leaves before that of the next sample are. */
static int closed_by(const struct pass *p, int64_t micro)
{
	return tr_trainer_leaf(p->t, end_of(p, micro));
}

static int micro_batch_rows(void *arg, int64_t micro, int backward, struct tr_rows *rows,
			    struct tr_error *err)
{
	struct pass *p = arg;
	struct tr_lm *lm = p->lm;
	int64_t from = micro * lm->o.micro_batch, to = end_of(p, micro);

	tr_rows_slice(&p->rows, from, to, lm->begin, lm->part, rows);
	rows->drop = p->drop.rate > 0 || p->drop.attention_rate > 0 ? &p->drop : NULL;
	if (!backward) {
		tr_trainer_forward(p->t, rows);
		return 0;
	}
	for (int64_t s = from; s < to; s++)
		lm->leaf[s - from] = tr_trainer_leaf(p->t, s);
	return tr_leafgrads_begin(p->t->grads, rows, lm->leaf, closed_by(p, micro), err);
}

static int micro_batch_loss(void *arg, int slot, const struct tr_rows *rows, int grad,
			    struct tr_error *err)
{
	struct pass *p = arg;
	int rc = tr_trainer_settle(p->t, err);

	if (rc == 0)
		rc = tr_model_loss(p->t->model, slot, rows, p->scale, p->lm->loss, grad, err);
	for (int64_t i = 0; rc == 0 && i < rows->n; i++)
		tr_exact_add(&p->loss, p->lm->loss[i]);
	return rc;
}

static int micro_batch_done(void *arg, int64_t micro, struct tr_error *err)
{
	struct pass *p = arg;
	struct tr_lm *lm = p->lm;
	int64_t to = end_of(p, micro);

	for (int64_t s = micro * lm->o.micro_batch; lm->trained && s < to; s++)
		lm->trained[lm->trained_n++] = p->rows.sample[s];
	return tr_leafgrads_close(p->t->grads, closed_by(p, micro), err);
}

static int64_t micros(const struct tr_lm_opts *o, int64_t samples)
{
	return (samples + o->micro_batch - 1) / o->micro_batch;
}

int64_t tr_lm_micros(const struct tr_lm_opts *o)
{
	return micros(o, o->rank_batch);
}

/* Does a list of work for the rows of a pass. */
static int run_pass(struct pass *p, const struct tr_pipe *pipe, const struct tr_work *list,
		    struct tr_error *err)
{
	const struct tr_phases phases = { micro_batch_rows, micro_batch_loss, micro_batch_done, p };

	return tr_pipeline_run(p->t, pipe, list, &phases, err);
}

/* The losses are in the last stage. Its ranks of tp have the same ones, so those of one of them
 * count. */
static int sum_loss(const struct tr_trainer *t, struct tr_exact *loss, double *value,
		    struct tr_error *err)
{
	uint64_t limbs[TR_EXACT_LIMBS + 1];
	int rc;

	tr_exact_carry(loss);
	memcpy(limbs, loss->limb, sizeof(loss->limb));
	limbs[TR_EXACT_LIMBS] = (uint64_t)loss->odd;
	if (t->mesh->tp.rank)
		memset(limbs, 0, sizeof(limbs));
	rc = tr_allreduce(t->mesh->all, limbs, TR_EXACT_LIMBS + 1, TR_SUM, err);
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
	struct pass p = { .lm = lm, .t = t,
			  .drop = { .seed = lm->o.seed, .step = t->step, .rate = lm->o.dropout,
				    .attention_rate = lm->o.attention_dropout } };
	int64_t n = list_positions(lm, t, consumed);
	uint64_t targets;
	int rc;

	*step = (struct tr_lm_step){ .unread = 0 };
	lm->trained_n = 0;
	rc = tr_rowfeed_count(&lm->feed, lm->position, n, &targets, err);
	/* All rows of the step are broadcast before the pipeline begins: within it, the stages work
	 * on different micro-batches, so they could not take part in a broadcast together. */
	rc = tr_rowfeed_fill(&lm->feed, lm->position, n, rc, &p.rows, err);
	rc = tr_agree(t->mesh->all, rc, err);
	step->unread = rc < 0 && rc != TR_ELOST;
	if (rc == 0)
		rc = tr_allreduce(t->mesh->all, &targets, 1, TR_SUM, err);
	if (rc < 0)
		return rc;
	p.scale = 1 / (double)(targets ? targets : 1);
	rc = tr_agree(t->mesh->all, run_pass(&p, &t->pipe, t->work, err), err);
	if (rc == 0)
		rc = tr_sent(&t->mesh->pp, 0, err);
	if (rc == 0)
		rc = sum_loss(t, &p.loss, &step->loss, err);
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

/* Takes samples [from, to) forward through the pipeline, and counts their targets. */
static int evaluate_some(struct pass *p, int64_t from, int64_t to, struct tr_work *list,
			 uint64_t *targets, struct tr_error *err)
{
	struct tr_pipe pipe = p->t->pipe;
	int rc;

	for (int64_t j = from; j < to; j++)
		p->lm->position[j - from] = j;
	rc = tr_rowfeed_fill(&p->lm->feed, p->lm->position, to - from, 0, &p->rows, err);
	if (rc < 0)
		return rc;
	pipe.order = TR_ORDER_FORWARD;
	pipe.micros = micros(&p->lm->o, to - from);
	tr_work_list(&pipe, list);
	for (int64_t i = 0; i < p->rows.n; i++)
		*targets += p->rows.weight[i] > 0;
	return run_pass(p, &pipe, list, err);
}

/* Makes room to list the work of an evaluation. */
static struct tr_work *work_list(const struct tr_lm *lm, const struct tr_trainer *t)
{
	struct tr_pipe pipe = t->pipe;

	pipe.order = TR_ORDER_FORWARD;
	pipe.micros = tr_lm_micros(&lm->o);
	return calloc((size_t)tr_work_count(&pipe), sizeof(struct tr_work));
}

/* Runs forward passes over this rank's samples in rounds. All ranks run equally many, even those
 * with fewer samples, because they agree after each round. Returns what tr_lm_evaluate does. */
static int evaluate_all(struct pass *p, const struct tr_lm_halt *halt, struct tr_work *list,
			uint64_t *targets, struct tr_error *err)
{
	const struct tr_ranks *dp = &p->t->mesh->dp;
	int64_t samples = p->lm->feed.samples, each = p->lm->o.rank_batch;
	int64_t from = tr_cut(samples, dp->n, dp->rank), to = tr_cut(samples, dp->n, dp->rank + 1);
	int64_t most = (samples + dp->n - 1) / dp->n;
	int rc = 0;

	for (int64_t done = 0; rc == 0; from += each) {
		if (from < to)
			rc = evaluate_some(p, from, from + each < to ? from + each : to, list,
					   targets, err);
		rc = halt ? halt->ask(halt->arg, rc, err) : tr_agree(p->t->mesh->all, rc, err);
		done += each;
		if (done >= most)       /* it is too late to end early */
			return rc < 0 ? rc : 0;
	}
	return rc;
}

int tr_lm_evaluate(struct tr_lm *lm, struct tr_trainer *t, const struct tr_lm_halt *halt,
		   double *loss, int64_t *tokens, struct tr_error *err)
{
	struct pass p = { .lm = lm, .t = t, .scale = 1 };
	struct tr_work *list = work_list(lm, t);
	uint64_t targets = 0;
	int rc = list ? 0 : tr_fail(err, TR_ENOMEM, "no memory to list the work of an evaluation");

	rc = tr_agree(t->mesh->all, rc, err);
	/* Ranks send each other their weights during a forward pass. A rank that has no samples, or
	 * cannot read one, makes none, so all of them are sent here. */
	if (rc == 0)
		rc = tr_trainer_settle(t, err);
	if (rc == 0)
		rc = evaluate_all(&p, halt, list, &targets, err);
	free(list);
	if (rc == 0)
		rc = tr_sent(&t->mesh->pp, 0, err);
	if (rc == 0)
		rc = tr_allreduce(&t->mesh->dp, &targets, 1, TR_SUM, err);
	if (rc == 0)
		rc = sum_loss(t, &p.loss, loss, err);
	if (rc)
		return rc;
	if (!targets)
		return no_target(lm, err);
	*tokens = (int64_t)targets;
	*loss /= (double)targets;
	if (!isfinite(*loss))
		return tr_fail(err, TR_ENAN, "step %" PRId64 ": the loss of %s is not a number; "
			       "resume from an earlier step with a lower lr or with clip", t->step,
			       lm->o.data);
	return 0;
}
