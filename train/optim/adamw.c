/* SPDX-License-Identifier: Apache-2.0 */
#include "adamw.h"

#include <math.h>
#include <string.h>

#include "elementary.h"
#include "sumtree.h"

int tr_gradient_norm(const struct tr_registry *reg, const struct tr_isa *isa,
		     const struct tr_mesh *mesh, const float *grad, double *norm,
		     struct tr_error *err)
{
	/* The ranks of dp share the items. A copy is at the beginning, and does not count.
	 * Parameters of which each rank of tp has all are at the end, and count on the first rank
	 * of tp only. */
	int64_t items = (reg->pieces.from ? reg->norms : reg->weights) - reg->counted;
	int64_t from = reg->counted + tr_cut(items, mesh->dp.n, mesh->dp.rank);
	int64_t to = reg->counted + tr_cut(items, mesh->dp.n, mesh->dp.rank + 1);
	int64_t sum[2] = { 0, 0 };
	float most = isa->row.absmax(grad + from, to - from);
	uint64_t bits = 0, sums[2];
	int exponent, rc;

	memcpy(&bits, &most, sizeof(most));
	rc = tr_allreduce(mesh->all, &bits, 1, TR_MAX, err);
	if (rc < 0)
		return rc;
	memcpy(&most, &bits, sizeof(most));
	*norm = (double)most;
	if (most == 0 || !isfinite(most))
		return 0;
	frexp((double)most, &exponent);
	isa->row.squares(grad + from, to - from, ldexp(1, -exponent), sum);
	memcpy(sums, sum, sizeof(sums));
	rc = tr_allreduce(mesh->all, sums, 2, TR_SUM, err);
	if (rc < 0)
		return rc;
	memcpy(sum, sums, sizeof(sums));
	*norm = ldexp(sqrt(ldexp((double)sum[0], -31) + ldexp((double)sum[1], -62)), exponent);
	return 0;
}

int tr_adamw_update(struct tr_adamw *a, const struct tr_registry *reg, const struct tr_isa *isa,
		    float *weights, const float *grad, double lr, double scale,
		    const struct tr_gate *gate, struct tr_error *err)
{
	double bias1 = 1 - tr_power(a->beta1, a->step + 1);
	double bias2 = 1 - tr_power(a->beta2, a->step + 1);
	struct tr_adamw_step s = { .scale = (float)scale, .beta1_rest = (float)(1 - a->beta1),
		.beta2 = (float)a->beta2, .beta2_rest = (float)(1 - a->beta2),
		.root = (float)(1 / sqrt(bias2)), .eps = (float)a->eps,
		.rate = (float)(lr / bias1) };

	for (int i = 0; i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];
		int rc = gate && p->tied_to < 0 ? gate->wait(gate->arg, i, err) : 0;

		if (rc < 0)
			return rc;
		s.keep = p->decay ? (float)(1 - lr * a->decay) : 1.0f;
		if (p->tied_to < 0)
			isa->row.adamw(weights + p->offset, a->m + p->offset, a->v + p->offset,
				       grad + p->offset, p->items, &s);
	}
	a->step++;
	return 0;
}
