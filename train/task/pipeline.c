/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline.h"

struct pipeline {
	struct tr_trainer *t;
	const struct tr_phases *phases;
	int keep;                       /* activations, for backward passes */
	int failed;                     /* here, or in another stage */
	struct tr_rows rows;
};

/* Returns the number of a part in the whole model. */
static int in_model(const struct pipeline *p, int part)
{
	return p->t->pipe.stage + part * p->t->pipe.stages;
}

/* Returns whether the model has a part of that number. */
static int exists(const struct pipeline *p, int part)
{
	return part >= 0 && part < p->t->pipe.stages * p->t->pipe.chunks;
}

/* The channel of what a part receives. */
static int channel(int part, int backward)
{
	return 2 * part + backward;
}

/* Returns the size of a message with an output of the model, or its gradient. It is never 0,
 * because an empty message means that its sender has failed.
 * rows  NULL: the largest size */
static size_t bytes_of(const struct pipeline *p, const struct tr_work *w,
		       const struct tr_rows *rows)
{
	size_t bytes = tr_model_passed(p->t->model, rows, w->backward);

	return bytes ? bytes : 1;
}

/* Receives what the part before this one has computed, or in a backward pass the one after it.
 * *got receives the number of bytes. */
static int receive(struct pipeline *p, const struct tr_work *w, void *at, size_t *got,
		   struct tr_error *err)
{
	int from = in_model(p, w->part) + (w->backward ? 1 : -1);
	int rc;

	if (!exists(p, from))
		return 0;
	rc = tr_receive(&p->t->mesh->pp, from % p->t->pipe.stages, channel(w->part, w->backward),
			at, bytes_of(p, w, NULL), got, err);
	p->failed |= rc == 0 && *got == 0;
	return rc;
}

/* Sends what this part has computed. */
static int pass_on(struct pipeline *p, const struct tr_work *w, const void *at,
		   struct tr_error *err)
{
	int to = in_model(p, w->part) + (w->backward ? -1 : 1), stages = p->t->pipe.stages;
	size_t bytes = p->failed ? 0 : bytes_of(p, w, &p->rows);
	int rc;

	if (!exists(p, to))
		return 0;
	rc = tr_send(&p->t->mesh->pp, to % stages, channel(to / stages, w->backward), at, bytes,
		     err);
	/* The other stage would wait for it. */
	return rc == TR_ENOMEM ? tr_ranks_abandon(&p->t->mesh->pp, err) : rc;
}

/* Computes a pass of the rows from what was received. */
static int compute(struct pipeline *p, const struct tr_work *w, int slot, size_t got,
		   struct tr_error *err)
{
	struct tr_trainer *t = p->t;
	int is_last = !exists(p, in_model(p, w->part) + 1);
	int rc = 0;

	if (got && got != bytes_of(p, w, &p->rows))
		rc = tr_fail(err, TR_EBUG, "two stages have different samples");
	if (rc == 0 && !w->backward)
		rc = tr_model_forward(t->model, w->part, slot, &p->rows, p->keep, err);
	if (rc == 0 && is_last && w->backward == p->keep)
		rc = p->phases->loss(p->phases->arg, slot, &p->rows, p->keep, err);
	if (rc == 0 && w->backward)
		rc = tr_model_backward(t->model, w->part, slot, &p->rows, err);
	return rc;
}

/* Computes a pass. The ranks of tp compute the rows together, so none of them begins alone, and one
 * that cannot complete them ends the others, which wait for it. */
static int compute_together(struct pipeline *p, const struct tr_work *w, int slot, size_t got,
			    struct tr_error *err)
{
	const struct tr_ranks *tp = &p->t->mesh->tp;
	int rc = tr_agree(tp, p->phases->rows(p->phases->arg, w->micro, w->backward, &p->rows, err),
			  err);

	if (rc < 0)
		return rc;
	rc = compute(p, w, slot, got, err);
	return rc < 0 && rc != TR_ELOST && tp->n > 1 ? tr_ranks_abandon(tp, err) : rc;
}

static int work(struct pipeline *p, const struct tr_work *w, struct tr_error *err)
{
	struct tr_model *m = p->t->model;
	int slot = p->keep ? (int)(w->micro % p->t->parts.part[w->part].slots) : 0;
	void *in = w->backward ? tr_model_gradient(m) : tr_model_input(m, w->part, slot);
	size_t got = 0;
	int rc = receive(p, w, in, &got, err), sent;

	if (rc == 0 && !p->failed)
		rc = compute_together(p, w, slot, got, err);
	if (rc == TR_ELOST)
		return rc;
	p->failed |= rc < 0;
	sent = pass_on(p, w, p->failed || w->backward ? tr_model_gradient(m) :
		       tr_model_output(m, w->part, slot), err);
	/* Nothing comes back that would keep the first stage from computing far ahead. */
	if (sent == 0 && !p->keep)
		sent = tr_sent(&p->t->mesh->pp, p->t->pipe.stages, err);
	if (!p->failed && w->backward && w->part == 0 && p->phases->done)
		rc = p->phases->done(p->phases->arg, w->micro, err);
	return rc < 0 ? rc : sent;
}

int tr_pipeline_run(struct tr_trainer *t, const struct tr_pipe *pipe, const struct tr_work *list,
		    const struct tr_phases *phases, struct tr_error *err)
{
	struct pipeline p = { .t = t, .phases = phases, .keep = pipe->order != TR_ORDER_FORWARD };
	int64_t n = tr_work_count(pipe);
	int rc = 0;

	for (int64_t i = 0; i < n && rc != TR_ELOST; i++) {
		struct tr_error own = { .rank = -1 };
		int now = work(&p, &list[i], &own);

		if (now < 0 && now != TR_ELOST && p.keep && tr_leafgrads_is_early(t->grads))
			now = tr_ranks_abandon(t->mesh->all, &own);
		if (now < 0 && (rc == 0 || now == TR_ELOST)) {
			rc = now;
			*err = own;
		}
		p.failed |= now < 0;
	}
	/* A rank that waits elsewhere does not continue the sums, for which slower ranks wait. */
	if (rc == 0 && p.keep && tr_leafgrads_is_early(t->grads))
		rc = tr_leafgrads_wait(t->grads, NULL, err);
	return rc;
}
