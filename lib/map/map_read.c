/* SPDX-License-Identifier: Apache-2.0 */
/* The places of the items of a piece in the tensor that is made grow with its axes, the last one
 * fastest. So a range of items cuts each axis at most at both ends: what is whole in between is
 * read at once, and the ends by the next axis. */
#include "map_read.h"
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "step_checked.h"
#include "step_files.h"

#define CONVERTED (UINT64_C(64) << 10)  /* items converted at once */
#define PANEL_MIN (UINT64_C(256) << 10) /* bytes of a read that is worth a panel */

struct cut {                    /* a read of items [lo, hi) */
	struct shf_map_reading *r;
	struct shf_checked *checked;    /* NULL: the source has no checksums */
	const struct shf_lt_tensor *from;
	const struct shf_map_box *box;
	uint64_t lo, hi, item;          /* item: its bytes */
	uint8_t *to;
	struct shf_strided s;
	struct sheaf_error *err;
};

/* ---- the source ---- */

/* Gets a reader that no other thread uses. */
static int reader_get(struct shf_map_reading *r, struct shf_checked **out, struct sheaf_error *err)
{
	int rc = 0;

	*out = NULL;
	if (!r->source->sound || r->source->run->opts.flags & SHEAF_RUN_UNVERIFIED)
		return 0;
	pthread_mutex_lock(&r->lock);
	if (r->idle_n)
		*out = r->idle[--r->idle_n];
	pthread_mutex_unlock(&r->lock);
	if (!*out) {
		*out = shf_zalloc(1, sizeof(**out));
		rc = *out ? shf_checked_init(*out, r->source, err)
		          : shf_fail(err, SHEAF_ENOMEM, "%s: no memory to read it",
		                     r->source->path);
		if (rc < 0) {
			shf_free(*out);
			*out = NULL;
		}
	}
	return rc;
}

static void reader_put(struct shf_map_reading *r, struct shf_checked *c)
{
	struct shf_checked **more;

	if (!c)
		return;
	pthread_mutex_lock(&r->lock);
	if (r->idle_n == r->idle_cap) {
		more = shf_realloc(r->idle, r->idle_cap + 8, sizeof(*more));
		if (more) {
			r->idle = more;
			r->idle_cap += 8;
		}
	}
	if (r->idle_n < r->idle_cap) {
		r->idle[r->idle_n++] = c;
		c = NULL;
	}
	pthread_mutex_unlock(&r->lock);
	if (c)
		shf_checked_release(c);
	shf_free(c);
}

/* Reads n bytes at `src` of the tensor of the source. */
static int cut_read(void *arg, uint8_t *to, uint64_t n, uint64_t src, struct sheaf_error *err)
{
	const struct cut *c = arg;
	uint64_t retries = 0;

	if (!always(src <= c->from->bytes && n <= c->from->bytes - src))
		return shf_fail(err, SHEAF_EBUG, "%s: a part of a tensor ends after it",
		                c->from->name);
	if (c->checked)
		return shf_checked_read(c->checked, c->from->file, c->from->off + src, to, n, err);
	return shf_step_file_read(c->r->source, c->from->file, to, n, c->from->off + src, &retries,
	                          err);
}

int shf_map_read_source(struct shf_map_reading *r, uint32_t tensor, void *to, uint64_t n,
                        struct sheaf_error *err)
{
	struct cut c = { .r = r, .from = &r->source->layout.tensors[tensor] };
	int rc = reader_get(r, &c.checked, err);

	if (rc == 0)
		rc = cut_read(&c, to, n, 0, err);
	reader_put(r, c.checked);
	return rc;
}

/* ---- pieces ---- */

/* Reads all items along the axes of a box, of axis k only n of them. */
static int cut_box(struct cut *c, int k, uint64_t n, uint64_t src, uint64_t dst)
{
	c->s.axes = 0;
	for (int i = k; i < c->box->n; i++) {
		const struct shf_axis *a = &c->box->axis[i];

		c->s.axis[c->s.axes++] = (struct shf_axis){ i == k ? n : a->n, a->src * c->item,
			a->dst * c->item };
	}
	c->s.item = c->item;
	return shf_strided_read(&c->s, src * c->item, c->to + (dst - c->lo) * c->item, c->err);
}

/* Reads what of the items along the axes from k on is in the range. The first one is item `dst` of
 * the tensor. */
static int cut_axes(struct cut *c, int k, uint64_t src, uint64_t dst)
{
	const struct shf_axis *a = &c->box->axis[k];
	uint64_t inner = 1, first, end;
	int rc = 0;

	for (int i = k + 1; i < c->box->n; i++)
		inner += (c->box->axis[i].n - 1) * c->box->axis[i].dst;
	if (k == c->box->n)
		return dst >= c->lo && dst < c->hi ? cut_box(c, k, 1, src, dst) : 0;
	/* Numbers [first, end) of the axis lie in the range as a whole. */
	first = dst >= c->lo ? 0 : (c->lo - dst + a->dst - 1) / a->dst;
	end = c->hi < dst + inner ? 0 : (c->hi - dst - inner) / a->dst + 1;
	first = first < a->n ? first : a->n;
	end = end < a->n ? end : a->n;
	if (first && dst + (first - 1) * a->dst + inner > c->lo &&
	    dst + (first - 1) * a->dst < c->hi)
		rc = cut_axes(c, k + 1, src + (first - 1) * a->src, dst + (first - 1) * a->dst);
	end = end < first ? first : end;
	if (rc == 0 && end > first)
		rc = cut_box(c, k, end - first, src + first * a->src, dst + first * a->dst);
	if (rc == 0 && end < a->n && dst + end * a->dst < c->hi && dst + end * a->dst >= c->lo)
		rc = cut_axes(c, k + 1, src + end * a->src, dst + end * a->dst);
	return rc;
}

/* Reads what the pieces have of the range. They are in the order of their first items, but may
 * enclose each other. */
static int read_pieces(struct cut *c, const struct shf_map_made *t)
{
	const struct shf_map_piece *p = (const void *)c->r->plan->pieces.data;
	int rc = 0;

	for (size_t i = t->first; i < t->first + t->n && rc == 0; i++) {
		if (p[i].dst >= c->hi)
			break;
		if (p[i].dst + p[i].span <= c->lo)
			continue;
		c->from = &c->r->source->layout.tensors[p[i].from];
		c->box = p[i].box;
		rc = cut_axes(c, 0, p[i].src, p[i].dst);
	}
	return rc;
}

/* Reads items as the source has them, and converts them. */
static int read_converted(struct cut *c, const struct shf_map_made *t, uint8_t *to, uint64_t hi)
{
	const uint64_t have = shf_dtype(t->stored)->bits / 8u;
	const uint64_t want = shf_dtype(t->dtype)->bits / 8u;
	uint8_t *items = shf_alloc(CONVERTED, have);
	int rc = items ? 0 : shf_fail(c->err, SHEAF_ENOMEM, "%s: no memory to convert it", t->name);

	c->to = items;
	while (rc == 0 && c->lo < hi) {
		uint64_t n = hi - c->lo < CONVERTED ? hi - c->lo : CONVERTED;

		c->hi = c->lo + n;
		if (t->padded)
			memset(items, 0, n * have);
		rc = read_pieces(c, t);
		if (rc == 0 && !always(shf_convert(to, t->dtype, items, t->stored, n) == 0))
			rc = shf_fail(c->err, SHEAF_EBUG, "%s: its type cannot be converted",
			              t->name);
		to += n * want;
		c->lo += n;
	}
	shf_free(items);
	return rc;
}

/* Reads items [lo, hi) from the source. */
static int read_items(void *arg, const struct shf_map_made *t, uint8_t *to, uint64_t lo,
                      uint64_t hi, struct sheaf_error *err)
{
	struct shf_map_reading *r = arg;
	struct cut c = { .r = r, .lo = lo, .hi = hi, .to = to, .err = err,
		.item = shf_dtype(t->stored)->bits / 8u };
	int rc = reader_get(r, &c.checked, err);

	if (rc < 0)
		return rc;
	c.s = (struct shf_strided){ .read = cut_read, .arg = &c,
		.window = shf_alloc(SHF_WINDOW, 1) };
	if (!c.s.window)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory to read it", t->name);
	else if (t->stored != t->dtype)
		rc = read_converted(&c, t, to, hi);
	else {
		if (t->padded)
			memset(to, 0, (hi - lo) * c.item);
		rc = read_pieces(&c, t);
	}
	shf_free(c.s.window);
	reader_put(r, c.checked);
	return rc;
}

int shf_map_read(struct shf_map_reading *r, const struct shf_map_made *t, uint8_t *to, uint64_t lo,
                 uint64_t hi, struct sheaf_error *err)
{
	uint64_t item = shf_dtype(t->dtype)->bits / 8u;
	int rc = 1;

	if (t->turned && (hi - lo) * item >= PANEL_MIN)
		rc = shf_map_panels_read(&r->panels, t, t->items, to, lo, hi, read_items, r, err);
	return rc > 0 ? read_items(r, t, to, lo, hi, err) : rc;
}

void shf_map_reading_init(struct shf_map_reading *r, struct sheaf_checkpoint *source,
                          const struct shf_map_plan *plan, uint64_t memory_bytes)
{
	*r = (struct shf_map_reading){ .source = source, .plan = plan };
	pthread_mutex_init(&r->lock, NULL);
	shf_map_panels_init(&r->panels, memory_bytes);
}

void shf_map_reading_release(struct shf_map_reading *r)
{
	for (size_t i = 0; i < r->idle_n; i++) {
		shf_checked_release(r->idle[i]);
		shf_free(r->idle[i]);
	}
	shf_free(r->idle);
	shf_map_panels_release(&r->panels);
	pthread_mutex_destroy(&r->lock);
}
