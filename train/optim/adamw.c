/* SPDX-License-Identifier: Apache-2.0 */
#include "adamw.h"

#include <math.h>
#include <string.h>

#include "elementary.h"
#include "leafgrads.h"
#include "muon.h"
#include "sumtree.h"

/* Returns how many ranges of the gradient this rank has of its own: those of the two areas of the
 * shares, or without shares those of the buckets. */
static int64_t ranges(const struct tr_registry *reg, const struct tr_shares *shares)
{
	return shares ? 2 : reg->layers + 3;
}

/* Returns the items of such a range whose squares this rank adds up. A copy is at the beginning of
 * the gradient, and a tied head after the weights: neither counts. Parameters of which each rank of
 * tp has all are at the end of the weights, and count on the first rank of tp only. */
static struct tr_span counted(const struct tr_registry *reg, const struct tr_mesh *mesh,
			      const struct tr_shares *shares, int64_t range)
{
	struct tr_span own = shares ? tr_shares_own(shares, reg, (int)range) :
		tr_leafgrads_share(reg, range, mesh->dp.n, mesh->dp.rank);
	int64_t end = reg->pieces.from ? reg->norms : reg->weights;

	own.from = own.from > reg->counted ? own.from : reg->counted;
	own.to = own.to < end ? own.to : end;
	own.to = own.to > own.from ? own.to : own.from;
	return own;
}

int64_t tr_gradient_index(const struct tr_shares *s, struct tr_span own)
{
	if (own.from >= own.to)
		return 0;
	return s && s->gradients ? tr_shares_at(s, own.from) : own.from;
}

int tr_gradient_norm(const struct tr_registry *reg, const struct tr_isa *isa,
		     const struct tr_mesh *mesh, const struct tr_shares *shares, const float *grad,
		     double *norm, struct tr_error *err)
{
	int64_t sum[2] = { 0, 0 };
	uint64_t largest = 0, sums[2];
	int exponent, rc;
	float most;

	for (int64_t i = 0; i < ranges(reg, shares); i++) {
		struct tr_span own = counted(reg, mesh, shares, i);
		uint64_t bits = 0;

		/* Without a sign, floats are in the order of their bits, and NaNs are last. */
		most = isa->row.absmax(grad + tr_gradient_index(shares, own), own.to - own.from);
		memcpy(&bits, &most, sizeof(most));
		largest = bits > largest ? bits : largest;
	}
	rc = tr_allreduce(mesh->all, &largest, 1, TR_MAX, err);
	if (rc < 0)
		return rc;
	memcpy(&most, &largest, sizeof(most));
	*norm = (double)most;
	if (most == 0 || !isfinite(most))
		return 0;
	frexp((double)most, &exponent);
	for (int64_t i = 0; i < ranges(reg, shares); i++) {
		struct tr_span own = counted(reg, mesh, shares, i);

		isa->row.squares(grad + tr_gradient_index(shares, own), own.to - own.from,
				 ldexp(1, -exponent), sum);
	}
	memcpy(sums, sum, sizeof(sums));
	rc = tr_allreduce(mesh->all, sums, 2, TR_SUM, err);
	if (rc < 0)
		return rc;
	memcpy(sum, sums, sizeof(sums));
	*norm = ldexp(sqrt(ldexp((double)sum[0], -31) + ldexp((double)sum[1], -62)), exponent);
	return 0;
}

float *tr_adamw_of(const struct tr_adamw *a, const struct tr_param *p, void *weights,
		   struct tr_span *own, int64_t *at)
{
	*at = tr_shares_of(a->shares, p, own);
	return a->master ? a->master + *at : (float *)weights + own->from;
}

float *tr_adamw_second(const struct tr_adamw *a, int i, int64_t at)
{
	return a->v + (a->second ? a->second[i] : at);
}

void tr_adamw_average(const struct tr_adamw *a, const struct tr_isa *isa, int64_t at,
		      const float *w, int64_t n)
{
	if (a->ema)
		isa->row.average(a->ema + at, w, n, (float)(1 - a->ema_decay));
}

/* Updates all parameters but the matrices of Muon, and the momentum of these. */
static int update_items(struct tr_adamw *a, const struct tr_registry *reg,
			const struct tr_isa *isa, void *weights, float *grad,
			struct tr_adamw_step *s, double lr, const struct tr_gate *gate,
			struct tr_error *err)
{
	for (int k = 0; k < reg->n; k++) {
		int i = (a->first + k) % reg->n;
		const struct tr_param *p = &reg->param[i];
		int rc = gate && p->tied_to < 0 ? gate->wait(gate->arg, i, err) : 0;
		struct tr_span own;
		int64_t at;
		float *w, *g;

		if (rc < 0)
			return rc;
		if (p->tied_to >= 0)
			continue;
		s->keep = p->decay ? (float)(1 - lr * a->decay) : 1.0f;
		w = tr_adamw_of(a, p, weights, &own, &at);
		g = grad + tr_gradient_index(a->shares, own);
		if (a->muon && p->matrix) {
			isa->row.momentum(a->m + at, g, own.to - own.from, s->scale,
					  s->beta1_rest);
			continue;
		}
		isa->row.adamw(w, a->m + at, tr_adamw_second(a, i, at), g, own.to - own.from, s);
		tr_adamw_average(a, isa, at, w, own.to - own.from);
	}
	return 0;
}

int tr_adamw_update(struct tr_adamw *a, const struct tr_registry *reg, const struct tr_isa *isa,
		    void *weights, float *grad, double lr, double scale,
		    const struct tr_gate *gate, struct tr_error *err)
{
	double bias1 = 1 - tr_power(a->beta1, a->step + 1);
	double bias2 = 1 - tr_power(a->beta2, a->step + 1);
	struct tr_adamw_step s = { .scale = (float)scale, .beta1_rest = (float)(1 - a->beta1),
		.beta2 = (float)a->beta2, .beta2_rest = (float)(1 - a->beta2),
		.root = (float)(1 / sqrt(bias2)), .eps = (float)a->eps,
		.rate = (float)(lr / bias1) };
	int rc = update_items(a, reg, isa, weights, grad, &s, lr, gate, err);

	if (a->muon)
		rc = tr_muon_update(a->muon, a, weights, grad, lr, rc, err);
	a->step += rc == 0;
	return rc;
}
