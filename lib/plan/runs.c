/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: a box as the fewest loops over units that follow each other in the tensor and lie
 * evenly in memory. Dimensions of one index vanish; a dimension joins the one inside it when
 * it goes on exactly where that ends, in the tensor and in memory. */
#include "box.h"
#include <assert.h>

static void level_add(struct shf_runs *r, uint64_t n, int64_t at_step, int64_t mem_step)
{
	int l = r->levels;

	/* Levels are collected inner first: joining is with the last one added. */
	if (l > 0 && at_step == (int64_t)r->n[l - 1] * r->at_step[l - 1] &&
	    mem_step == (int64_t)r->n[l - 1] * r->mem_step[l - 1]) {
		r->n[l - 1] *= n;
		return;
	}
	r->n[l] = n;
	r->at_step[l] = at_step;
	r->mem_step[l] = mem_step;
	r->levels = l + 1;
}

static void levels_turn(struct shf_runs *r)
{
	for (int a = 0, b = r->levels - 1; a < b; a++, b--) {
		uint64_t n = r->n[a];
		int64_t at_step = r->at_step[a], mem_step = r->mem_step[a];

		r->n[a] = r->n[b];
		r->at_step[a] = r->at_step[b];
		r->mem_step[a] = r->mem_step[b];
		r->n[b] = n;
		r->at_step[b] = at_step;
		r->mem_step[b] = mem_step;
	}
}

void shf_runs_init(struct shf_runs *r, const struct shf_shape *s, const struct shf_mem *m,
                   const struct shf_box *box)
{
	int64_t vol = 1;

	assert(s->ndim == box->ndim && m->box.ndim == box->ndim);
	*r = (struct shf_runs){ .units = 1, .step = 1, .mem = m->origin - m->lo };
	if (shf_box_is_empty(box)) {
		r->done = true;
		return;
	}
	for (int d = s->ndim - 1; d >= 0; d--) {
		r->at += (uint64_t)(box->start[d] * vol);
		r->mem += (box->start[d] - m->box.start[d]) * m->stride[d];
		if (box->count[d] > 1)
			level_add(r, (uint64_t)box->count[d], vol, m->stride[d]);
		vol *= s->dim[d];
	}
	levels_turn(r);
	if (r->levels > 0 && r->at_step[r->levels - 1] == 1) {
		r->levels--;
		r->units = r->n[r->levels];
		r->step = r->mem_step[r->levels];
	}
}

bool shf_runs_next(struct shf_runs *r, uint64_t *at, int64_t *mem)
{
	int l;

	if (r->done)
		return false;
	*at = r->at;
	*mem = r->mem;
	for (l = r->levels - 1; l >= 0; l--) {
		r->at += (uint64_t)r->at_step[l];
		r->mem += r->mem_step[l];
		if (++r->i[l] < r->n[l])
			break;
		r->at -= r->n[l] * (uint64_t)r->at_step[l];
		r->mem -= (int64_t)r->n[l] * r->mem_step[l];
		r->i[l] = 0;
	}
	r->done = l < 0;
	return true;
}
