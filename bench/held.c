/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank of a layout holds: its part of the tensors, the memory, the values.
 *
 * Plain pieces are separate dense boxes. With ZeRO, the pieces of a (tp, pp, ep) rank are
 * concatenated in one buffer for each item type, of which this rank has an equal part: such a piece
 * is a SHEAF_SLICE_FLAT slice whose origin is its place in that buffer.
 */
#include "sheaf-inspect.h"
#include "workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DTYPES 32
#define WINDOW_BYTES ((size_t)4 << 20)  /* of stored values that are read at a time */
#define UNITS 1024                      /* values that are generated at a time */

/* --- sharding ----------------------------------------------------------------------------- */

static const struct wl_mesh *mesh_of(const struct wl_layout *l, const struct wl_tensor *t)
{
	return t->expert >= 0 ? &l->expert : &l->mesh;
}

/* Returns whether this rank has any part of the tensor, by its stage and expert. The stages of the
 * description, or of the mesh if it has more, are distributed evenly. */
static bool is_here(const struct wl_model *m, const struct wl_mesh *mesh, const struct wl_tensor *t,
		    const int64_t at[WL_AXES])
{
	int64_t pp = mesh->size[WL_PP], stages = m->stages > pp ? m->stages : pp;

	if (t->stage >= 0 && t->stage * pp / stages != at[WL_PP])
		return false;
	return t->expert < 0 || t->expert * mesh->size[WL_EP] / t->experts == at[WL_EP];
}

/* A tensor with items smaller than a byte is cut only if every piece is whole bytes. */
static bool can_cut(const struct wl_tensor *t, int64_t tp)
{
	int bits = sheaf_dtype_bits(t->dtype);
	int64_t group = bits >= 8 ? 1 : bits == 6 ? 4 : 2, inner = 1, rows;

	if (t->tp_axis < 0 || tp < 2)
		return false;
	rows = t->shape[t->tp_axis];
	for (int d = t->tp_axis + 1; d < t->ndim; d++)
		inner *= t->shape[d];
	return ((rows + tp - 1) / tp * inner) % group == 0 && (rows * inner) % group == 0;
}

static bool is_flat(const struct wl_layout *l, const struct wl_tensor *t)
{
	bool model = strcmp(t->family, "model") == 0;

	return l->zero >= (model ? 3 : 1) && !t->tied_to && sheaf_dtype_bits(t->dtype) >= 8 &&
	       wl_items(t) > 0;
}

static int64_t slice_items(const struct sheaf_slice *s)
{
	int64_t items = 1;

	for (int d = 0; d < s->ndim; d++)
		items *= s->count[d];
	return items;
}

static int slice_of(const struct wl_tensor *t, const struct wl_mesh *mesh,
		    const int64_t at[WL_AXES], struct sheaf_slice *out, struct sheaf_error *err)
{
	struct sheaf_slice s = { .size = sizeof(s), .family = t->family, .name = t->name,
				 .tied_to = t->tied_to, .dtype = t->dtype, .ndim = t->ndim };
	int rc = 0;

	memcpy(s.shape, t->shape, sizeof(s.shape));
	memcpy(s.count, t->shape, sizeof(s.count));
	if (can_cut(t, mesh->size[WL_TP]))
		rc = sheaf_slice_shard(&s, t->tp_axis, at[WL_TP], mesh->size[WL_TP], NULL);
	if (rc < 0)
		return wl_fail(err, rc, "%.200s: axis %d cannot be cut in %lld: %s", t->name,
			       t->tp_axis, (long long)mesh->size[WL_TP], sheaf_strerror(rc));
	*out = s;
	return 0;
}

/* --- buffers ------------------------------------------------------------------------------ */

/* Index 0: buffers for dense tensors, 1: for experts, which may have a mesh of their own */
struct buffers {
	int64_t total[2][DTYPES];       /* in items, over all dp ranks */
	int64_t next[2][DTYPES];        /* start of the next piece */
	int64_t lo[2][DTYPES], hi[2][DTYPES];   /* this rank's part */
	uint64_t at[2][DTYPES];         /* offset of that part in the memory */
};

static int grow(struct wl_held *h, uint64_t bytes, uint64_t *at, struct sheaf_error *err)
{
	*at = h->mapped;
	if (__builtin_add_overflow(h->mapped, bytes, &h->mapped) ||
	    __builtin_add_overflow(h->mapped, 63, &h->mapped) || h->mapped > INT64_MAX)
		return wl_fail(err, SHEAF_ENOMEM, "this rank's pieces overflow the memory");
	h->mapped &= ~UINT64_C(63);
	h->bytes += bytes;
	return 0;
}

static int buffers_deal(struct buffers *b, const struct wl_layout *l, int64_t rank,
			struct wl_held *h, struct sheaf_error *err)
{
	for (int k = 0; k < 2; k++) {
		const struct wl_mesh *mesh = k ? &l->expert : &l->mesh;
		int64_t at[WL_AXES], dp = mesh->size[WL_DP];

		wl_mesh_at(mesh, rank, at);
		for (int t = 0; t < DTYPES; t++) {
			int64_t total = b->total[k][t], part = total / dp + (total % dp != 0);
			int rc;

			if (!total)
				continue;
			b->lo[k][t] = part * at[WL_DP] < total ? part * at[WL_DP] : total;
			b->hi[k][t] = total - b->lo[k][t] < part ? total : b->lo[k][t] + part;
			rc = grow(h, wl_bytes(t, b->hi[k][t] - b->lo[k][t]), &b->at[k][t], err);
			if (rc < 0)
				return rc;
		}
	}
	return 0;
}

static int piece_add(struct wl_held *h, const struct wl_piece *p, struct sheaf_error *err)
{
	struct wl_piece *more;
	size_t cap;

	if (h->n == h->cap) {
		cap = h->cap ? 2 * h->cap : 64;
		more = cap <= SIZE_MAX / sizeof(*more) ? realloc(h->p, cap * sizeof(*more)) : NULL;
		if (!more)
			return wl_fail(err, SHEAF_ENOMEM, "no memory for %zu pieces", h->n + 1);
		h->p = more;
		h->cap = cap;
	}
	h->p[h->n++] = *p;
	return 0;
}

/* Adds the part of a piece that is in this rank's part of the buffer, if any. slice.data is an
 * offset until the memory is allocated. */
static int piece_flat(struct wl_held *h, struct buffers *b, int expert, struct wl_piece *p,
		      struct sheaf_error *err)
{
	int t = p->slice.dtype;
	int64_t items = slice_items(&p->slice), base = b->next[expert][t];
	int64_t lo = b->lo[expert][t], hi = b->hi[expert][t];
	int64_t from = base > lo ? base : lo, to = base + items < hi ? base + items : hi;

	b->next[expert][t] += items;
	if (from >= to)
		return 0;
	p->slice.flags |= SHEAF_SLICE_FLAT;
	p->slice.origin = base;
	p->slice.flat_start = lo;
	p->slice.flat_count = hi - lo;
	p->slice.data = (void *)(uintptr_t)b->at[expert][t];
	p->from = from - base;
	p->items = to - from;
	return piece_add(h, p, err);
}

static int piece_plain(struct wl_held *h, struct wl_piece *p, struct sheaf_error *err)
{
	uint64_t at;
	int rc;

	p->from = 0;
	p->items = slice_items(&p->slice);
	rc = grow(h, wl_bytes(p->slice.dtype, p->items), &at, err);
	if (rc < 0)
		return rc;
	p->slice.data = (void *)(uintptr_t)at;
	return piece_add(h, p, err);
}

/* Makes two passes: the first sums up the lengths of the buffers, the second places the pieces. */
static int pieces(struct wl_held *h, const struct wl_model *m, const struct wl_layout *l,
		  int64_t rank, struct buffers *b, int pass, struct sheaf_error *err)
{
	int64_t at[2][WL_AXES];
	int rc = 0;

	wl_mesh_at(&l->mesh, rank, at[0]);
	wl_mesh_at(&l->expert, rank, at[1]);
	for (size_t i = 0; i < m->n && rc == 0; i++) {
		const struct wl_tensor *t = &m->t[i];
		const struct wl_mesh *mesh = mesh_of(l, t);
		int expert = t->expert >= 0;
		struct wl_piece p = { .tensor = i };

		if (!is_here(m, mesh, t, at[expert]) || (pass == 0 && !is_flat(l, t)))
			continue;
		rc = slice_of(t, mesh, at[expert], &p.slice, err);
		if (rc < 0)
			break;
		if (pass == 0)
			b->total[expert][t->dtype] += slice_items(&p.slice);
		else if (is_flat(l, t))
			rc = piece_flat(h, b, expert, &p, err);
		else
			rc = piece_plain(h, &p, err);
	}
	return rc;
}

int wl_held_init(struct wl_held *h, const struct wl_model *m, const struct wl_layout *l,
		 int64_t rank, bool memory, struct sheaf_error *err)
{
	struct wl_held made = { 0 };
	struct buffers b;
	int rc;

	memset(&b, 0, sizeof(b));
	rc = pieces(&made, m, l, rank, &b, 0, err);
	if (rc == 0)
		rc = buffers_deal(&b, l, rank, &made, err);
	if (rc == 0)
		rc = pieces(&made, m, l, rank, &b, 1, err);
	if (rc == 0 && memory && made.mapped) {
		void *map = mmap(NULL, made.mapped, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (map == MAP_FAILED)
			rc = wl_fail(err, SHEAF_ENOMEM, "no memory for %llu bytes of tensors",
				     (unsigned long long)made.mapped);
		else
			made.memory = map;
	}
	if (rc < 0) {
		wl_held_release(&made);
		return rc;
	}
	for (size_t i = 0; i < made.n; i++)
		made.p[i].slice.data = made.memory ? made.memory + (uintptr_t)made.p[i].slice.data
						   : NULL;
	*h = made;
	return 0;
}

void wl_held_release(struct wl_held *h)
{
	if (!h)
		return;
	if (h->memory)
		munmap(h->memory, h->mapped);
	free(h->p);
	*h = (struct wl_held){ 0 };
}

int wl_held_state(const struct wl_held *h, struct sheaf_state **state, struct sheaf_error *err)
{
	struct sheaf_state *made = sheaf_state_new();

	if (!made)
		return wl_fail(err, SHEAF_ENOMEM, "no memory for a state");
	for (size_t i = 0; i < h->n; i++) {
		int rc = sheaf_state_add(made, &h->p[i].slice, NULL);

		if (rc < 0) {
			wl_fail(err, rc, "%.200s/%.200s: its slice is refused: %s",
				h->p[i].slice.family, h->p[i].slice.name, sheaf_strerror(rc));
			sheaf_state_free(made);
			return rc;
		}
	}
	*state = made;
	return 0;
}

void wl_held_poison(struct wl_held *h)
{
	/* This is neither zero nor a likely value. */
	if (h->memory)
		memset(h->memory, 0xa7, h->mapped);
}

/* --- runs of a piece ---------------------------------------------------------------------- */

struct runs {                           /* items [at, end) of the box, as contiguous runs */
	const struct sheaf_slice *s;
	int64_t at, end, inner;         /* inner: items of the box that are contiguous */
	int64_t stride[SHEAF_DIMS_MAX];
	int axis;                       /* the axis at which the inner items begin */
};

static void runs_init(struct runs *r, const struct wl_piece *p)
{
	const struct sheaf_slice *s = &p->slice;
	int64_t stride = 1;

	*r = (struct runs){ .s = s, .at = p->from, .end = p->from + p->items, .inner = 1 };
	for (int d = s->ndim; d-- > 0;) {
		r->stride[d] = stride;
		stride *= s->shape[d];
	}
	r->axis = s->ndim - 1;
	if (r->axis < 0)
		return;
	r->inner = s->count[r->axis];
	while (r->axis > 0 && s->count[r->axis] == s->shape[r->axis])
		r->inner *= s->count[--r->axis];
}

/* Returns the next run of up to `most` items: its place in the box and in the tensor. */
static bool runs_next(struct runs *r, int64_t most, int64_t *local, int64_t *global, int64_t *n)
{
	const struct sheaf_slice *s = r->s;
	int64_t outer, off, g;

	if (r->at >= r->end)
		return false;
	outer = r->at / r->inner;
	off = r->at % r->inner;
	g = off;
	if (r->axis >= 0)
		g += s->start[r->axis] * r->stride[r->axis];
	for (int d = r->axis; d-- > 0;) {
		g += (s->start[d] + outer % s->count[d]) * r->stride[d];
		outer /= s->count[d];
	}
	*local = r->at;
	*global = g;
	*n = r->inner - off;
	if (*n > r->end - r->at)
		*n = r->end - r->at;
	if (*n > most)
		*n = most;
	r->at += *n;
	return true;
}

char *wl_piece_at(const struct wl_piece *p, int64_t local)
{
	int64_t i = local;

	if (p->slice.flags & SHEAF_SLICE_FLAT)
		i += p->slice.origin - p->slice.flat_start;
	return (char *)p->slice.data + wl_bytes(p->slice.dtype, i);
}

static uint64_t hash_of(const struct wl_tensor *t, int dtype, const char *family,
			const struct wl_source *src)
{
	return wl_hash_of(dtype, src->seed, src->step, family, t->tied_to ? t->tied_to : t->name);
}

/* Returns the unit at which an item begins, or the number of units of a run. A unit is an item, or
 * a byte if items are smaller. */
static uint64_t unit_of(int dtype, int64_t item)
{
	return sheaf_dtype_bits(dtype) < 8 ? wl_bytes(dtype, item) : (uint64_t)item;
}

int wl_held_fill(struct wl_held *h, const struct wl_model *m, const struct wl_source *src,
		 struct sheaf_error *err)
{
	for (size_t i = 0; i < h->n; i++) {
		const struct wl_piece *p = &h->p[i];
		const struct wl_tensor *t = &m->t[p->tensor];
		int64_t local, global, n;
		struct runs r;
		uint64_t hash;

		if (t->stored && src->like) {
			struct sheaf_slice s = p->slice;
			int rc;

			/* The file may have it under the name that it is tied to. */
			s.tied_to = NULL;
			rc = p->items ? sheaf_checkpoint_read(src->like, &s, err) : 0;
			if (rc < 0)
				return rc;
			continue;
		}
		hash = hash_of(t, t->dtype, t->family, src);
		runs_init(&r, p);
		while (runs_next(&r, INT64_MAX, &local, &global, &n))
			wl_fill(wl_piece_at(p, local), t->dtype, hash, unit_of(t->dtype, global),
				unit_of(t->dtype, n));
	}
	return 0;
}

/* --- checking ----------------------------------------------------------------------------- */

struct want {                           /* what a piece should contain */
	const struct wl_piece *p;
	const struct wl_tensor *t;
	const struct wl_source *src;
	int dtype;                      /* dtype of the stored value */
	uint64_t hash;
	bool zero;
};

static int differs(const struct want *w, int64_t global, const void *got, const void *want,
		   struct sheaf_error *err)
{
	size_t unit = wl_unit_bytes(w->t->dtype);
	uint64_t g = 0, e = 0;

	memcpy(&g, got, unit);
	memcpy(&e, want, unit);
	wl_fail(err, 1, "%.180s/%.180s: item %lld is 0x%0*llx, want 0x%0*llx", w->t->family,
		w->t->name, (long long)global, (int)(2 * unit), (unsigned long long)g,
		(int)(2 * unit), (unsigned long long)e);
	return 1;
}

/* Returns whether the bits are equal, or both are NaN after a conversion. */
static bool same_item(const struct want *w, const void *got, const void *want)
{
	double a, b;

	if (memcmp(got, want, wl_unit_bytes(w->t->dtype)) == 0)
		return true;
	return w->dtype != w->t->dtype && wl_value(&a, w->t->dtype, got) &&
	       wl_value(&b, w->t->dtype, want) && isnan(a) && isnan(b);
}

static int compare(const struct want *w, int64_t global, int64_t n, const char *got,
		   const char *want, struct sheaf_error *err)
{
	int dtype = w->t->dtype;
	size_t unit = wl_unit_bytes(dtype), units = (size_t)unit_of(dtype, n);
	int bits = sheaf_dtype_bits(dtype);

	if (memcmp(got, want, units * unit) == 0)
		return 0;
	for (size_t k = 0; k < units; k++) {
		int64_t item = bits < 8 ? (int64_t)k * 8 / bits : (int64_t)k;

		if (!same_item(w, got + k * unit, want + k * unit))
			return differs(w, global + item, got + k * unit, want + k * unit, err);
	}
	return 0;
}

/* Computes n values of a run as they should be in memory. */
static bool expect(const struct want *w, int64_t global, int64_t n, unsigned char *out)
{
	unsigned char stored[UNITS * 8];
	size_t unit = wl_unit_bytes(w->dtype), to = wl_unit_bytes(w->t->dtype);
	double v;

	if (w->zero) {
		memset(out, 0, (size_t)unit_of(w->t->dtype, n) * to);
		return true;
	}
	if (w->dtype == w->t->dtype) {
		wl_fill(out, w->dtype, w->hash, unit_of(w->dtype, global),
			(size_t)unit_of(w->dtype, n));
		return true;
	}
	wl_fill(stored, w->dtype, w->hash, (uint64_t)global, (size_t)n);
	for (size_t k = 0; k < (size_t)n; k++)
		if (!wl_value(&v, w->dtype, stored + k * unit) ||
		    !wl_round(out + k * to, w->t->dtype, v))
			return false;
	return true;
}

static int check_made(const struct want *w, uint64_t *items, struct sheaf_error *err)
{
	unsigned char out[UNITS * 8];
	int64_t local, global, n;
	struct runs r;
	int rc = 0;

	runs_init(&r, w->p);
	while (rc == 0 && runs_next(&r, UNITS, &local, &global, &n)) {
		if (!expect(w, global, n, out))
			return wl_fail(err, SHEAF_EINVAL,
				       "%.200s: converted from %s to %s, which cannot be checked",
				       w->t->name, sheaf_dtype_name(w->dtype),
				       sheaf_dtype_name(w->t->dtype));
		rc = compare(w, global, n, wl_piece_at(w->p, local), (const char *)out, err);
		*items += (uint64_t)n;
	}
	return rc;
}

/* Compares with another checkpoint's values, one window at a time. The index is one of the box. */
static int check_stored(const struct want *w, uint64_t *items, struct sheaf_error *err)
{
	char *window = malloc(WINDOW_BYTES);
	int64_t most = (int64_t)(WINDOW_BYTES * 8) / sheaf_dtype_bits(w->t->dtype) / 8 * 8;
	int rc = window ? 0 : wl_fail(err, SHEAF_ENOMEM, "no memory to check with");

	for (int64_t at = w->p->from, end = at + w->p->items; rc == 0 && at < end;) {
		int64_t n = end - at < most ? end - at : most;
		struct sheaf_slice s = w->p->slice;

		s.tied_to = NULL;
		s.flags |= SHEAF_SLICE_FLAT;
		s.origin = 0;
		s.flat_start = at;
		s.flat_count = n;
		s.data = window;
		rc = sheaf_checkpoint_read(w->src->like, &s, err);
		if (rc == 0)
			rc = compare(w, at, n, wl_piece_at(w->p, at), window, err);
		*items += (uint64_t)n;
		at += n;
	}
	free(window);
	return rc;
}

/* Finds the dtype of the stored values, by the report of the load. */
static void want_said(struct want *w, const struct wl_said *said, char what)
{
	struct sheaf_tensor s = { .size = sizeof(s) };
	bool down = what == SHEAF_REPORT_DERIVED && strcmp(w->t->family, "model") == 0;
	const char *family = down ? "master_weights" : what == SHEAF_REPORT_DERIVED ? "model"
	        : w->t->family;

	w->zero = what == SHEAF_REPORT_ZEROED;
	if (said->step && (what == SHEAF_REPORT_DERIVED || what == SHEAF_REPORT_CONVERTED) &&
	    sheaf_checkpoint_find(said->step, family, w->t->name, &s, NULL) == 0)
		w->dtype = s.dtype;
	w->hash = hash_of(w->t, w->dtype, family, w->src);
}

int wl_held_check(const struct wl_held *h, const struct wl_model *m, const struct wl_source *src,
		  const struct wl_said *said, uint64_t *items, struct sheaf_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < h->n && rc == 0; i++) {
		const struct wl_tensor *t = &m->t[h->p[i].tensor];
		char what = said->what ? said->what[h->p[i].tensor] : 0;
		struct want w = { .p = &h->p[i], .t = t, .src = src, .dtype = t->dtype };

		/* Missing, mismatched and ignored tensors keep their old values. */
		if (what == SHEAF_REPORT_MISSING || what == SHEAF_REPORT_MISMATCHED ||
		    what == SHEAF_REPORT_IGNORED)
			continue;
		want_said(&w, said, what);
		if (t->stored && src->like && what != SHEAF_REPORT_ZEROED &&
		    what != SHEAF_REPORT_DERIVED)
			rc = check_stored(&w, items, err);
		else
			rc = check_made(&w, items, err);
	}
	return rc;
}
