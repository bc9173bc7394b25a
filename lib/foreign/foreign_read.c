/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers the bytes of a tensor from its pieces, each of which may lie in its file in any order
 * (strided.h). */
#include "foreign_read.h"
#include <inttypes.h>
#include <string.h>
#include "box.h"
#include "dtype.h"
#include "err.h"
#include "foreign_packed.h"
#include "foreign_text.h"
#include "strided.h"
#include "valid.h"

struct gather {
	struct shf_foreign *f;
	struct shf_region region;
	struct shf_foreign_text *text;  /* NULL, or what the region is read through */
	const struct shf_packed *packed;        /* the same */
	struct shf_strided s;           /* its window is owned */
	/* Owned; pieces that the format made for this read, and their numbers. Empty: they are in
	 * f->pieces. */
	struct shf_buf made;
	struct shf_arena arena;
	const struct shf_foreign_piece *pieces; /* of the tensor: n of them */
	size_t n;
	struct sheaf_error *err;
};

/* Reads n bytes of a piece. Of a run that is longer than a window, all bytes are wanted now. Bytes
 * of a window may be read again for other items, so the page cache should keep them. */
static int gather_read(void *arg, uint8_t *to, uint64_t n, uint64_t src, struct sheaf_error *err)
{
	struct gather *g = arg;

	g->region.once = g->f->reads_once && n > SHF_WINDOW;
	if (g->packed)
		return shf_foreign_packed_read(g->f, g->packed, &g->region, to, n, src, err);
	return g->text ? shf_foreign_text_read(g->f, g->text, &g->region, to, n, src, err)
	               : shf_region_read(&g->region, to, n, src, err);
}

/* Looks up where the items of piece i of f->pieces are. If that is still unknown, the format finds
 * it out, and it is kept. The other fields are not written again, because threads read them without
 * the lock. */
static int piece_get(struct shf_foreign *f, const struct shf_foreign_tensor *t, size_t i,
                     struct shf_foreign_piece *out, struct sheaf_error *err)
{
	struct shf_foreign_piece *all = (struct shf_foreign_piece *)(void *)f->pieces.data;
	int64_t stride[SHF_FOREIGN_DIMS_MAX], *kept;
	int rc;

	pthread_mutex_lock(&f->lock);
	*out = all[i];
	pthread_mutex_unlock(&f->lock);
	if (!out->item_bytes)
		return 0;
	rc = f->format->resolve(f, t, out, stride, err);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&f->lock);
	/* Another thread may have found it out meanwhile, with the same result. */
	if (all[i].item_bytes) {
		struct shf_foreign_item item = { all[i].file, true, all[i].item_codec, all[i].at,
		                                 all[i].item_bytes, NULL };

		kept = shf_arena_alloc(&f->resolved, (size_t)t->ndim + 1, sizeof(*kept));
		shf_buf_add(&f->items, &item, sizeof(item));
		if (kept && !f->items.oom) {
			memcpy(kept, stride, (size_t)t->ndim * sizeof(*kept));
			all[i].at = out->at;
			all[i].flip_every = out->flip_every;
			all[i].flip_at = out->flip_at;
			all[i].stride = kept;
			all[i].packed = out->packed;
			all[i].item_bytes = 0;
		} else {
			f->items.oom = false;
			rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a tensor", f->path);
		}
	}
	*out = all[i];
	pthread_mutex_unlock(&f->lock);
	return rc;
}

/* Finds the pieces of a tensor, or lets the format make them. */
static int gather_begin(struct gather *g, const struct shf_foreign_tensor *t)
{
	const struct shf_foreign_format *format = g->f->format;
	const struct shf_foreign_piece *all = (const void *)g->f->pieces.data;
	int rc;

	if (!format || !format->make_pieces) {
		g->n = t->n;
		g->pieces = t->n ? all + t->first : NULL;
		return 0;
	}
	rc = format->make_pieces(g->f, t, &g->arena, &g->made, g->err);
	g->pieces = (const void *)g->made.data;
	g->n = g->made.len / sizeof(*g->pieces);
	return rc;
}

/* Looks up where the items of piece k of the tensor are. */
static int gather_piece(const struct gather *g, const struct shf_foreign_tensor *t, size_t k,
                        struct shf_foreign_piece *out)
{
	if (!g->made.len)
		return piece_get(g->f, t, t->first + k, out, g->err);
	*out = g->pieces[k];
	return 0;
}

bool shf_foreign_is_row_major(const struct shf_foreign_tensor *t, const int64_t *stride)
{
	uint64_t want = shf_dtype(t->dtype)->bits / 8u;

	for (int d = t->ndim - 1; stride && d >= 0; d--) {
		if (t->dims[d] != 1 && (uint64_t)stride[d] != want)
			return false;
		want *= (uint64_t)t->dims[d];
	}
	return true;
}

/* Inverts signs in the n bytes of the tensor that begin at byte `at`. */
static void flip_signs(uint64_t every, uint64_t first, uint8_t *to, uint64_t n, uint64_t at)
{
	for (uint64_t i = (first + every - at % every) % every; i < n; i += every)
		to[i] ^= 0x80;
}

/* Inverts signs in a box of the tensor, row by row. to: the memory of unit `lo` of the tensor. */
static void flip_box(const struct shf_foreign_tensor *t, const struct shf_foreign_piece *p,
                     const struct shf_box *box, uint64_t lo, uint8_t *to, uint64_t item)
{
	int last = t->ndim - 1;
	int64_t at[SHEAF_DIMS_MAX] = { 0 };
	uint64_t row = t->ndim ? (uint64_t)box->count[last] * item : item;
	int d;

	do {
		uint64_t unit = 0;

		for (d = 0; d <= last; d++)
			unit = unit * (uint64_t)t->dims[d] + (uint64_t)(box->start[d] + at[d]);
		flip_signs(p->flip_every, p->flip_at, to + (unit - lo) * item, row, unit * item);
		for (d = last - 1; d >= 0 && ++at[d] == box->count[d]; d--)
			at[d] = 0;
	} while (d >= 0);
}

/* Reads the part of a box that piece k has. to: memory of unit `lo` of the tensor. */
static int gather_box(struct shf_foreign *f, const struct shf_foreign_tensor *t, size_t k,
                      const struct shf_box *box, uint64_t lo, uint8_t *to, struct gather *g)
{
	const struct shf_foreign_piece *of = &g->pieces[k];
	struct shf_box have = { .ndim = t->ndim }, part;
	struct shf_foreign_piece p;
	uint64_t item = g->s.item, src_row = item, dst_row = item, src, dst = 0;
	int rc;

	for (int d = 0; d < t->ndim; d++) {
		have.start[d] = of->start ? of->start[d] : 0;
		have.count[d] = of->start ? of->count[d] : t->dims[d];
	}
	if (!shf_box_intersect(&part, &have, box))
		return 0;
	rc = gather_piece(g, t, k, &p);
	if (rc < 0)
		return rc;
	src = p.at;
	g->text = p.text;
	g->packed = p.packed;
	g->s.axes = t->ndim;
	for (int d = t->ndim - 1; d >= 0; d--) {
		uint64_t stride = p.stride ? (uint64_t)p.stride[d] : src_row;

		g->s.axis[d] = (struct shf_axis){ (uint64_t)part.count[d], stride, dst_row };
		src += (uint64_t)(part.start[d] - have.start[d]) * stride;
		dst += (uint64_t)part.start[d] * dst_row;
		src_row *= (uint64_t)have.count[d];
		dst_row *= (uint64_t)t->dims[d];
	}
	rc = shf_foreign_region(f, p.file, &g->region, g->err);
	if (rc < 0)
		return rc;
	rc = shf_strided_read(&g->s, src, to + (dst - lo * item), g->err);
	shf_foreign_region_end(f, p.file);
	if (rc == 0 && p.flip_every)
		flip_box(t, &p, &part, lo, to, item);
	return rc;
}

/* Sets n items to the fill value, which items that are in no piece have. */
static void fill_items(const struct shf_foreign_tensor *t, uint8_t *to, uint64_t n, uint64_t item)
{
	for (uint64_t i = 0; i < n; i++)
		memcpy(to + i * item, t->fill, item);
}

/* Reads items [lo, hi) of the tensor. */
static int gather_items(struct shf_foreign *f, const struct shf_foreign_tensor *t, uint8_t *to,
                        uint64_t lo, uint64_t hi, struct gather *g)
{
	struct shf_box range[SHF_RANGE_BOXES_MAX];
	struct shf_shape shape = { .ndim = t->ndim };
	struct shf_foreign_piece p;
	int n, rc = 0;

	if (f->format->items)
		return f->format->items(f, t, to, lo, hi, g->err);
	if (t->fill)
		fill_items(t, to, hi - lo, g->s.item);
	if (!t->fill && g->n && (g->n == 1 || t->ndim > SHEAF_DIMS_MAX)) {
		rc = gather_piece(g, t, 0, &p);
		if (rc == 0 && g->n == 1 && shf_foreign_is_row_major(t, p.stride)) {
			rc = shf_foreign_region(f, p.file, &g->region, g->err);
			if (rc < 0)
				return rc;
			g->text = p.text;
			g->packed = p.packed;
			rc = gather_read(g, to, (hi - lo) * g->s.item, p.at + lo * g->s.item,
			                 g->err);
			shf_foreign_region_end(f, p.file);
			if (rc == 0 && p.flip_every)
				flip_signs(p.flip_every, p.flip_at, to, (hi - lo) * g->s.item,
				           lo * g->s.item);
			return rc;
		}
		if (rc == 0 && t->ndim > SHEAF_DIMS_MAX)
			rc = shf_fail(g->err, SHEAF_EFORMAT,
				      "%s: tensor %.*s has %d dimensions and is not contiguous, "
				      "which sheaf does not read", f->path,
			              shf_name_show(t->name), t->name, t->ndim);
		if (rc < 0)
			return rc;
	}
	for (int d = 0; d < t->ndim; d++)
		shape.dim[d] = t->dims[d];
	g->s.window = g->s.window ? g->s.window : shf_alloc(SHF_WINDOW, 1);
	if (!g->s.window)
		return shf_fail(g->err, SHEAF_ENOMEM, "%s: no memory to read a tensor", f->path);
	n = shf_range_boxes(&shape, lo, hi, range);
	for (int i = 0; i < n && rc == 0; i++)
		for (size_t k = 0; k < g->n && rc == 0; k++)
			rc = gather_box(f, t, k, &range[i], lo, to, g);
	return rc;
}

/* Reads bytes that begin or end inside an item: via a copy of that item. */
static int gather_part(struct shf_foreign *f, const struct shf_foreign_tensor *t, uint8_t *to,
                       uint64_t n, uint64_t at, struct gather *g)
{
	uint8_t item[16];
	uint64_t i = at / g->s.item;
	int rc = gather_items(f, t, item, i, i + 1, g);

	if (rc == 0)
		memcpy(to, item + at % g->s.item, n);
	return rc;
}

int shf_foreign_gather(struct shf_foreign *f, const struct shf_foreign_tensor *t, uint8_t *to,
                       uint64_t n, uint64_t at, struct sheaf_error *err)
{
	struct gather g = { .f = f, .err = err };
	const uint64_t item = shf_dtype(t->dtype)->bits / 8u;
	uint64_t head, whole;
	int rc = 0;

	if (!always(item > 0 && item <= 16))
		return shf_fail(err, SHEAF_EBUG, "%s: items smaller than a byte", f->path);
	if (t->refused)
		return shf_fail(err, SHEAF_EFORMAT, "%s: tensor %.*s %s", f->path,
		                shf_name_show(t->name), t->name, t->refused);
	g.s = (struct shf_strided){ .item = item, .read = gather_read, .arg = &g };
	if (!f->format || !f->format->items)
		rc = gather_begin(&g, t);
	head = (item - at % item) % item;
	head = head < n ? head : n;
	whole = (n - head) / item * item;
	if (rc == 0 && head)
		rc = gather_part(f, t, to, head, at, &g);
	if (rc == 0 && whole)
		rc = gather_items(f, t, to + head, (at + head) / item,
		                  (at + head + whole) / item, &g);
	if (rc == 0 && head + whole < n)
		rc = gather_part(f, t, to + head + whole, n - head - whole, at + head + whole, &g);
	if (rc == 0 && t->flip_every)
		flip_signs(t->flip_every, t->flip_at, to, n, at);
	shf_free(g.s.window);
	shf_buf_release(&g.made);
	shf_arena_release(&g.arena);
	return rc;
}
