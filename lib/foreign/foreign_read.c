/* SPDX-License-Identifier: Apache-2.0 */
/* A piece may lie in its file in any order: transposed, with gaps, or every item the same. Reading
 * it item by item would cost a system call each, so a read takes a window of the file in which
 * enough of the bytes are wanted, and copies the items from there. What lies in the file as it is
 * wanted is read into the caller's memory directly. */
#include "foreign_read.h"
#include <inttypes.h>
#include <string.h>
#include "box.h"
#include "dtype.h"
#include "err.h"
#include "foreign_text.h"
#include "valid.h"

#define WINDOW (UINT64_C(256) << 10)    /* bytes of a window */
#define LONG_RUN (UINT64_C(32) << 10)   /* runs of at least so many bytes are read directly into the
                                         * caller's memory */
#define SPARSE 4                        /* a window has at most so many bytes for each wanted one,
                                         * unless it is a page or less */
#define SMALL 4096

struct axis { uint64_t n, src, dst; };  /* items along it; bytes from one to the next in the file
                                         * and in memory */
struct gather {
	struct shf_foreign *f;
	struct shf_region region;
	struct shf_foreign_text *text;  /* NULL, or what the region is read through */
	struct axis axis[SHEAF_DIMS_MAX + 1];   /* ascending by src; one is cut in two */
	int axes;
	int inner;                      /* the first so many axes lie in a window */
	uint64_t item, window;          /* bytes of an item, and of a window */
	bool direct;                    /* axis 0 is read into the caller's memory */
	uint8_t *buf;                   /* owned; a window */
	struct sheaf_error *err;
};

/* Reads n bytes of a piece. */
static int gather_read(const struct gather *g, uint8_t *to, uint64_t n, uint64_t src)
{
	return g->text ? shf_foreign_text_read(g->f, g->text, &g->region, to, n, src, g->err)
	               : shf_region_read(&g->region, to, n, src, g->err);
}

/* Copies the items of a window. */
static void scatter(const struct gather *g, int i, const uint8_t *from, uint8_t *to)
{
	const struct axis *a;

	if (i < 0) {
		memcpy(to, from, g->item);
		return;
	}
	a = &g->axis[i];
	if (i == 0 && a->src == g->item && a->dst == g->item) {
		memcpy(to, from, a->n * g->item);
		return;
	}
	for (uint64_t k = 0; k < a->n; k++)
		scatter(g, i - 1, from + k * a->src, to + k * a->dst);
}

/* Reads all windows along the axes from i down to the inner ones. */
static int read_axes(const struct gather *g, int i, uint64_t src, uint8_t *to)
{
	int rc = 0;

	if (i >= g->inner) {
		for (uint64_t k = 0; k < g->axis[i].n && rc == 0; k++)
			rc = read_axes(g, i - 1, src + k * g->axis[i].src, to + k * g->axis[i].dst);
		return rc;
	}
	if (g->direct)
		return gather_read(g, to, g->axis[0].n * g->item, src);
	rc = gather_read(g, g->buf, g->window, src);
	if (rc == 0)
		scatter(g, g->inner - 1, g->buf, to);
	return rc;
}

static void axis_remove(struct gather *g, int i)
{
	memmove(&g->axis[i], &g->axis[i + 1], (size_t)(--g->axes - i) * sizeof(g->axis[0]));
}

/* Merges axes that are one in the file and in memory, drops those of one item, and sorts. The axes
 * come with the last dimension last. */
static void axes_settle(struct gather *g)
{
	for (int i = g->axes - 1; i >= 0; i--)
		if (g->axis[i].n == 1)
			axis_remove(g, i);
	for (int i = g->axes - 2; i >= 0; i--) {
		struct axis *a = &g->axis[i], *b = &g->axis[i + 1];

		if (a->src == b->n * b->src && a->dst == b->n * b->dst) {
			b->n *= a->n;
			axis_remove(g, i);
		}
	}
	for (int i = 1; i < g->axes; i++)
		for (int k = i; k > 0 && g->axis[k].src < g->axis[k - 1].src; k--) {
			struct axis a = g->axis[k];

			g->axis[k] = g->axis[k - 1];
			g->axis[k - 1] = a;
		}
}

/* Decides which axes a window has. An axis that is too long for it is cut in two axes: one of as
 * many items as fit, and one of such parts. What is left of it is read by a second call: *rest. */
static void axes_window(struct gather *g, uint64_t *rest, int *rest_axis)
{
	uint64_t wanted = g->item, window = g->item;

	*rest = 0;
	*rest_axis = 0;
	g->inner = 0;
	g->direct = g->axes && g->axis[0].src == g->item && g->axis[0].dst == g->item &&
	            g->axis[0].n * g->item >= LONG_RUN;
	if (g->direct) {
		g->inner = 1;
		return;
	}
	for (int i = 0; i < g->axes; i++) {
		struct axis *a = &g->axis[i];
		uint64_t fit = a->src ? (WINDOW - window) / a->src + 1 : a->n;
		uint64_t whole = a->n;

		fit = fit < whole ? fit : whole;
		/* Too many unwanted bytes, or too little of the axis: it stays outside. */
		if (fit < 2 || (window + (fit - 1) * a->src > SPARSE * wanted * fit &&
		                window + (fit - 1) * a->src > SMALL))
			break;
		if (fit < whole) {
			*rest = a->n - a->n / fit * fit;
			*rest_axis = i;
			memmove(a + 1, a, (size_t)(g->axes - i) * sizeof(*a));
			g->axes++;
			a[1] = (struct axis){ a->n / fit, a->src * fit, a->dst * fit };
			a->n = fit;
		}
		window += (a->n - 1) * a->src;
		wanted *= a->n;
		g->inner = i + 1;
		if (fit < whole)
			break;
	}
	g->window = window;
}

/* Reads items along the axes of g, which start at byte src of the file. */
static int gather_axes(struct gather *g, uint64_t src, uint8_t *to)
{
	struct gather part = *g;
	uint64_t rest;
	int rest_axis, rc;

	axes_window(&part, &rest, &rest_axis);
	rc = read_axes(&part, part.axes - 1, src, to);
	if (rc == 0 && rest) {
		struct axis *a = &g->axis[rest_axis];
		uint64_t done = a->n - rest;

		src += done * a->src;
		to += done * a->dst;
		a->n = rest;
		rc = gather_axes(g, src, to);
	}
	return rc;
}

/* Looks up where the items of a piece are. If that is not known yet, the format finds it out, and
 * it is kept. The other fields are not written again, because threads read them without the
 * lock. */
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
		struct shf_foreign_item item = { all[i].file, true, all[i].at, all[i].item_bytes,
		                                 NULL };

		kept = shf_arena_alloc(&f->resolved, (size_t)t->ndim + 1, sizeof(*kept));
		shf_buf_add(&f->items, &item, sizeof(item));
		if (kept && !f->items.oom) {
			memcpy(kept, stride, (size_t)t->ndim * sizeof(*kept));
			all[i].at = out->at;
			all[i].flip_every = out->flip_every;
			all[i].flip_at = out->flip_at;
			all[i].stride = kept;
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

/* Reads the part of a box that a piece has. to: memory of unit `lo` of the tensor. */
static int gather_box(struct shf_foreign *f, const struct shf_foreign_tensor *t, size_t piece,
                      const struct shf_box *box, uint64_t lo, uint8_t *to, struct gather *g)
{
	const struct shf_foreign_piece *of = (const void *)f->pieces.data;
	struct shf_box have = { .ndim = t->ndim }, part;
	struct shf_foreign_piece p;
	uint64_t src_row = g->item, dst_row = g->item, src, dst = 0;
	int rc;

	of += piece;
	for (int d = 0; d < t->ndim; d++) {
		have.start[d] = of->start ? of->start[d] : 0;
		have.count[d] = of->start ? of->count[d] : t->dims[d];
	}
	if (!shf_box_intersect(&part, &have, box))
		return 0;
	rc = piece_get(f, t, piece, &p, g->err);
	if (rc < 0)
		return rc;
	src = p.at;
	g->text = p.text;
	g->axes = t->ndim;
	for (int d = t->ndim - 1; d >= 0; d--) {
		uint64_t stride = p.stride ? (uint64_t)p.stride[d] : src_row;

		g->axis[d] = (struct axis){ (uint64_t)part.count[d], stride, dst_row };
		src += (uint64_t)(part.start[d] - have.start[d]) * stride;
		dst += (uint64_t)part.start[d] * dst_row;
		src_row *= (uint64_t)have.count[d];
		dst_row *= (uint64_t)t->dims[d];
	}
	axes_settle(g);
	rc = shf_foreign_region(f, p.file, &g->region, g->err);
	if (rc < 0)
		return rc;
	rc = gather_axes(g, src, to + (dst - lo * g->item));
	shf_foreign_region_end(f, p.file);
	if (rc == 0 && p.flip_every)
		flip_box(t, &p, &part, lo, to, g->item);
	return rc;
}

/* Reads items [lo, hi) of the tensor. */
static int gather_items(struct shf_foreign *f, const struct shf_foreign_tensor *t, uint8_t *to,
                        uint64_t lo, uint64_t hi, struct gather *g)
{
	struct shf_box range[SHF_RANGE_BOXES_MAX];
	struct shf_shape shape = { .ndim = t->ndim };
	struct shf_foreign_piece p;
	int n, rc = 0;

	if (t->n == 1 || t->ndim > SHEAF_DIMS_MAX) {
		rc = piece_get(f, t, t->first, &p, g->err);
		if (rc == 0 && t->n == 1 && shf_foreign_is_row_major(t, p.stride)) {
			rc = shf_foreign_region(f, p.file, &g->region, g->err);
			if (rc < 0)
				return rc;
			g->text = p.text;
			rc = gather_read(g, to, (hi - lo) * g->item, p.at + lo * g->item);
			shf_foreign_region_end(f, p.file);
			if (rc == 0 && p.flip_every)
				flip_signs(p.flip_every, p.flip_at, to, (hi - lo) * g->item,
				           lo * g->item);
			return rc;
		}
		if (rc == 0 && t->ndim > SHEAF_DIMS_MAX)
			rc = shf_fail(g->err, SHEAF_EFORMAT,
				      "%s: tensor %.*s has %d dimensions and "
			              "is not contiguous, which is not read", f->path,
			              shf_name_show(t->name), t->name, t->ndim);
		if (rc < 0)
			return rc;
	}
	for (int d = 0; d < t->ndim; d++)
		shape.dim[d] = t->dims[d];
	g->buf = g->buf ? g->buf : shf_alloc(WINDOW, 1);
	if (!g->buf)
		return shf_fail(g->err, SHEAF_ENOMEM, "%s: no memory to read a tensor", f->path);
	n = shf_range_boxes(&shape, lo, hi, range);
	for (int i = 0; i < n && rc == 0; i++)
		for (size_t k = t->first; k < t->first + t->n && rc == 0; k++)
			rc = gather_box(f, t, k, &range[i], lo, to, g);
	return rc;
}

/* Reads bytes that begin or end inside an item: via a copy of that item. */
static int gather_part(struct shf_foreign *f, const struct shf_foreign_tensor *t, uint8_t *to,
                       uint64_t n, uint64_t at, struct gather *g)
{
	uint8_t item[16];
	uint64_t i = at / g->item;
	int rc = gather_items(f, t, item, i, i + 1, g);

	if (rc == 0)
		memcpy(to, item + at % g->item, n);
	return rc;
}

int shf_foreign_gather(struct shf_foreign *f, const struct shf_foreign_tensor *t, uint8_t *to,
                       uint64_t n, uint64_t at, struct sheaf_error *err)
{
	struct gather g = { .f = f, .item = shf_dtype(t->dtype)->bits / 8u, .err = err };
	uint64_t head = (g.item - at % g.item) % g.item, whole;
	int rc = 0;

	if (!always(g.item > 0 && g.item <= 16))
		return shf_fail(err, SHEAF_EBUG, "%s: items smaller than a byte", f->path);
	head = head < n ? head : n;
	whole = (n - head) / g.item * g.item;
	if (head)
		rc = gather_part(f, t, to, head, at, &g);
	if (rc == 0 && whole)
		rc = gather_items(f, t, to + head, (at + head) / g.item,
		                  (at + head + whole) / g.item, &g);
	if (rc == 0 && head + whole < n)
		rc = gather_part(f, t, to + head + whole, n - head - whole, at + head + whole, &g);
	if (rc == 0 && t->flip_every)
		flip_signs(t->flip_every, t->flip_at, to, n, at);
	shf_free(g.buf);
	return rc;
}
