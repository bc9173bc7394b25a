/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: a box as the fewest loops over units that are consecutive in the tensor and evenly spaced
 * in memory. A dimension of one index needs no loop; a dimension is joined with the next inner one
 * if one step of the outer dimension is exactly as long as all of the inner one, in the tensor and
 * in memory. */
#include "box_runs.h"
#include <assert.h>

/* Adds a loop around those added before, or makes the last one longer: if a step of the new loop
 * equals the whole length of the last one, in the tensor and in memory, the two are one loop. */
static void level_add(struct shf_runs *r, uint64_t n, int64_t at_step, int64_t mem_step)
{
	int l = r->levels;

	/* The last loop added lies just inside the new one, because loops are added from the
	 * innermost out. */
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

/* Reverses the loops, which were added from the innermost out; the walk needs the outermost
 * first. */
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

/* The innermost loop whose step in the tensor is 1 becomes the run itself. If there is no such
 * loop, as when the box has one index of the last dimension, runs are single units. */
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

/* Moves past `done` rows of the innermost loop; the caller makes sure that it has as many left. A
 * loop that ends is set back to its start, and the next one outside moves by one step. Positions
 * change by adding and subtracting steps, without multiplying indices anew. When the outermost loop
 * ends, l is 0 and its index is 0 again, which cannot happen at any other step. */
static void runs_skip_rows(struct shf_runs *r, uint64_t done)
{
	int l = r->levels - 1;

	if (l >= 0) {
		r->at += done * (uint64_t)r->at_step[l];
		r->mem += (int64_t)done * r->mem_step[l];
		r->i[l] += done;
	}
	for (; l >= 0 && r->i[l] == r->n[l]; l--) {
		r->at -= r->n[l] * (uint64_t)r->at_step[l];
		r->mem -= (int64_t)r->n[l] * r->mem_step[l];
		r->i[l] = 0;
		if (l == 0)
			break;
		r->at += (uint64_t)r->at_step[l - 1];
		r->mem += r->mem_step[l - 1];
		r->i[l - 1]++;
	}
	r->done = r->levels == 0 || (l == 0 && r->i[0] == 0);
}

bool shf_runs_next(struct shf_runs *r, uint64_t *at, int64_t *mem)
{
	if (r->done)
		return false;
	*at = r->at;
	*mem = r->mem;
	runs_skip_rows(r, 1);
	return true;
}

bool shf_runs_rows(struct shf_runs *r, struct shf_rows *rows)
{
	int l = r->levels - 1;

	if (r->done)
		return false;
	*rows = (struct shf_rows){ .at = r->at, .mem = r->mem, .rows = 1 };
	if (l >= 0) {
		rows->rows = r->n[l] - r->i[l];
		rows->at_step = r->at_step[l];
		rows->mem_step = r->mem_step[l];
	}
	runs_skip_rows(r, rows->rows);
	return true;
}
