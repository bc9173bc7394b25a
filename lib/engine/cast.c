/* SPDX-License-Identifier: Apache-2.0 */
#include "cast.h"
#include <inttypes.h>
#include <string.h>
#include "copy.h"
#include "err.h"
#include "moves.h"
#include "slots.h"

#define WEIGHTS "model"
#define MASTERS "master_weights"

/* Bytes [lo, hi) of a file that the box of a 16-bit tensor is cast from. */
struct source {
	uint32_t file;
	uint64_t lo, hi;
};

static struct source source_of(const struct shf_layout *l, uint32_t master,
                               const struct shf_box *box)
{
	const struct shf_lt_tensor *t = &l->tensors[master];
	struct source s = { .file = t->file };

	shf_box_span(&t->shape, box, &s.lo, &s.hi);
	s.lo = t->off + s.lo * t->unit;
	s.hi = t->off + s.hi * t->unit;
	return s;
}

/* Of n segments by file and offset, the first that ends behind byte `at` of the file. */
static size_t seg_at(const struct shf_work *w, size_t n, uint32_t file, uint64_t at)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct shf_seg *g = &w->segs[mid];

		if (g->file < file || (g->file == file && g->hi <= at))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* ---- planning ---- */

struct finding {
	const struct shf_match *m;
	struct shf_work *w;
	uint32_t self;
	size_t staged;
	bool *own;                      /* owned; by staged segment: all of it is of this rank */
	uint32_t tensor;                /* the last one asked for; UINT32_MAX: none */
	int64_t master;                 /* its master, or -1 */
};

static bool same_shape(const struct shf_shape *a, const struct shf_shape *b)
{
	return a->ndim == b->ndim &&
	       memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof(a->dim[0])) == 0;
}

static bool is_half(int dtype)
{
	return dtype == SHEAF_BF16 || dtype == SHEAF_F16;
}

static int64_t find_master(const struct shf_layout *l, uint32_t tensor)
{
	const struct shf_lt_tensor *t = &l->tensors[tensor];
	int64_t at = -1;

	if (is_half(t->dtype) && strcmp(l->families[t->family].name, WEIGHTS) == 0)
		at = shf_layout_find(l, MASTERS, t->name);
	return at >= 0 && l->tensors[at].dtype == SHEAF_F32 &&
	       same_shape(&l->tensors[at].shape, &t->shape) ? at : -1;
}

/* Of one tensor after the other, mostly the same. */
static int64_t master_of(struct finding *f, uint32_t tensor)
{
	if (tensor != f->tensor)
		f->master = find_master(f->m->layout, tensor);
	f->tensor = tensor;
	return f->master;
}

static bool is_own(const struct finding *f, const struct shf_seg *g)
{
	for (uint32_t k = g->first_move; k < g->first_move + g->moves_n; k++)
		if (f->w->moves[k].witness || f->w->moves[k].rank != f->self)
			return false;
	return true;
}

/* All of it is staged by this rank alone. */
static bool is_here(const struct finding *f, struct source s)
{
	for (size_t i = seg_at(f->w, f->staged, s.file, s.lo); s.lo < s.hi; i++) {
		const struct shf_seg *g = &f->w->segs[i];

		if (i == f->staged || g->file != s.file || g->lo > s.lo || !f->own[i])
			return false;
		s.lo = g->hi;
	}
	return true;
}

static bool is_cast(struct finding *f, const struct shf_seg *g)
{
	const struct shf_match *m = f->m;

	if (g->moves_n == 0 || g->lo < m->layout->files[g->file].header_bytes || !is_own(f, g))
		return false;
	for (uint32_t k = g->first_move; k < g->first_move + g->moves_n; k++) {
		const struct shf_mv *v = &f->w->moves[k];

		if (master_of(f, v->tensor) < 0 ||
		    !(m->flags(m->flags_arg, v->tensor, &v->box) & SHEAF_CAST) ||
		    !is_here(f, source_of(m->layout, (uint32_t)f->master, &v->box)))
			return false;
	}
	return true;
}

static int mark(struct finding *f, struct shf_seg *g)
{
	struct shf_work *w = f->w;

	if (!w->masters)
		w->masters = shf_arena_alloc(&w->arena, w->moves_n, sizeof(*w->masters));
	if (!w->masters)
		return SHEAF_ENOMEM;
	for (uint32_t k = g->first_move; k < g->first_move + g->moves_n; k++)
		w->masters[k] = (uint32_t)master_of(f, w->moves[k].tensor);
	g->cast = true;
	g->round = SHF_ROUND_OWN;
	return 0;
}

int shf_casts_find(const struct shf_match *m, uint32_t self, struct shf_work *w, size_t staged)
{
	struct finding f = { .m = m, .w = w, .self = self, .staged = staged,
		.own = shf_alloc(staged, sizeof(*f.own)), .tensor = UINT32_MAX };
	int rc = f.own ? 0 : SHEAF_ENOMEM;

	for (size_t i = 0; rc == 0 && i < staged; i++)
		f.own[i] = is_own(&f, &w->segs[i]);
	/* Those in place too: a cast holds up no gate. */
	for (size_t i = 0; rc == 0 && i < w->segs_n; i++)
		if (is_cast(&f, &w->segs[i]))
			rc = mark(&f, &w->segs[i]);
	shf_free(f.own);
	return rc;
}

/* ---- copying ---- */

bool shf_cast_is_ready(const struct sheaf_save *save, size_t seg)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_seg *g = &w->segs[seg];
	size_t staged = shf_slots_segs(w).first, seen = SIZE_MAX;

	for (uint32_t k = g->first_move; k < g->first_move + g->moves_n; k++) {
		struct source s = source_of(&save->plan->layout, w->masters[k], &w->moves[k].box);
		size_t i = seg_at(w, staged, s.file, s.lo);

		for (; i < staged && w->segs[i].file == s.file && w->segs[i].lo < s.hi; i++) {
			if (i != seen && atomic_load_explicit(&shf_own_ctl(save, i)->left,
			                                      memory_order_acquire) > 0)
				return false;
			seen = i;
		}
	}
	return true;
}

struct shf_slice shf_cast_source(const struct sheaf_save *save, size_t move)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_layout *l = &save->plan->layout;
	const struct shf_mv *v = &w->moves[move];
	const struct shf_lt_tensor *t = &l->tensors[v->tensor];
	const struct shf_lt_tensor *from = &l->tensors[w->masters[move]];
	struct source at = source_of(l, w->masters[move], &v->box);
	const struct shf_seg *g = &w->segs[seg_at(w, shf_slots_segs(w).first, at.file, at.lo)];
	struct shf_slice s = { .dtype = t->dtype, .data_dtype = from->dtype,
		.mem_unit = from->unit, .mem = shf_file_mem(t) };

	s.mem.lo = (int64_t)((at.lo - from->off) / from->unit);
	s.mem.hi = (int64_t)((at.hi - from->off) / from->unit);
	s.mem.base = shf_own_image(save) + g->image + (at.lo - g->lo);
	return s;
}

uint64_t shf_cast_digest(const struct sheaf_save *save, const struct shf_mv *v)
{
	uint64_t digest = 0;

	/* Its memory is of the type that is stored: the flag is refused for any other. */
	(void)shf_copy_check(&save->plan->layout.tensors[v->tensor],
	                     shf_slice_of(save, v->tensor, &v->box), &v->box, &digest);
	return digest;
}

int shf_cast_fail(const struct sheaf_save *save, size_t slice, struct sheaf_error *err)
{
	const struct shf_slice *s = &save->state->slices[slice];

	return shf_fail(err, SHEAF_EDIVERGED, "step %" PRId64 ": slice %zu (%s/%s) is not the cast "
	                "of its master in %s", save->step, slice, s->family, s->name, MASTERS);
}

void shf_cast_stuck(struct sheaf_save *save)
{
	struct sheaf_error err;

	shf_save_stick(save, shf_fail(&err, SHEAF_ECORRUPT, "step %" PRId64 ": what %s is cast "
	               "from is not whole: the image has changed", save->step, WEIGHTS), &err);
}
