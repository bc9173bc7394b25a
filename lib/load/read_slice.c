/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one slice in one process, without a plan and without a group. If the step has sums, the
 * blocks that the slice has bytes in are read whole and checked. From a foreign file, which has no
 * sums, only the bytes that are wanted are read. */
#include "read_slice.h"
#include <inttypes.h>
#include "box_copy.h"
#include "err.h"
#include "load_common.h"
#include "memory_dir.h"
#include "state.h"
#include "step.h"
#include "step_blocks.h"
#include "step_files.h"
#include "step_lookup.h"
#include "step_open.h"

#define CHUNK (UINT64_C(4) << 20)       /* bytes of a read at most; a multiple of the block */

/* One slice that is being read from one tensor. */
struct direct {
	struct sheaf_checkpoint *step;
	const struct shf_lt_tensor *t;
	const struct shf_slice *s;      /* in units and type of t */
	uint8_t *buf;                   /* owned; CHUNK + 8 bytes, or less for a short tensor */
	struct shf_slice_read *done;
	struct sheaf_error *err;
};

/* Reads n bytes at `off` of the tensor's file to d->buf. */
static int read_chunk(struct direct *d, uint64_t off, uint64_t n)
{
	int rc = shf_step_file_read(d->step, d->t->file, d->buf, n, off, &d->done->retries,
	                            d->err);

	if (rc == 0)
		d->done->disk_bytes += n;
	return rc;
}

/* Copies the part of box that lies in units [lo, hi) of the tensor from d->buf, which has the bytes
 * of the file from offset `at` on, into the slice. */
static void copy_units(struct direct *d, const struct shf_box *box, uint64_t lo, uint64_t hi,
                       uint64_t at)
{
	struct shf_box range[SHF_RANGE_BOXES_MAX], part;
	int n = shf_range_boxes(&d->t->shape, lo, hi, range);
	struct shf_place_at from = { .data = d->buf };
	struct shf_box_copy_sums sums = { .unsummed = !d->done->sums };

	if (at >= d->t->off)
		from.at = (int64_t)((at - d->t->off) / d->t->unit);
	else
		from.data += d->t->off - at;
	for (int i = 0; i < n; i++)
		if (shf_box_intersect(&part, box, &range[i])) {
			shf_box_copy_out(d->t, d->s, &part, from, &sums);
			d->done->bytes += shf_box_bytes(d->t, &part);
		}
	d->done->digest ^= sums.digest;
}

/* Returns whether the box has anything in units [lo, hi) of the tensor. */
static bool touches(const struct direct *d, const struct shf_box *box, uint64_t lo, uint64_t hi)
{
	struct shf_box range[SHF_RANGE_BOXES_MAX], part;
	int n = shf_range_boxes(&d->t->shape, lo, hi, range);

	for (int i = 0; i < n; i++)
		if (shf_box_intersect(&part, box, &range[i]))
			return true;
	return false;
}

/* Computes which units [*lo, *hi) of the tensor lie in bytes [a, b) of the file. */
static void units_in(const struct shf_lt_tensor *t, uint64_t a, uint64_t b, uint64_t *lo,
                     uint64_t *hi)
{
	uint64_t units = t->bytes / t->unit;

	*lo = a > t->off ? (a - t->off) / t->unit : 0;
	*hi = always(b > t->off) ? (b - t->off) / t->unit : 0; /* every block that is read has bytes
	                                                        * of the tensor */
	*hi = *hi < units ? *hi : units;
}

/* Reads the box, of which unit lo is the first and hi - 1 the last, in whole blocks, and checks
 * these. Blocks without bytes of the box are skipped; up to CHUNK bytes of consecutive blocks are
 * one read. ECORRUPT. */
static int read_checked(struct direct *d, const struct shf_box *box, uint64_t lo, uint64_t hi)
{
	const struct shf_lt_tensor *t = d->t;
	uint64_t end = d->step->layout.files[t->file].bytes;
	/* A sum is of a whole block, so reading begins at a block. */
	uint64_t a = (t->off + lo * t->unit) / SHF_BLOCK * SHF_BLOCK, stop = t->off + hi * t->unit;
	bool check = !(d->step->run->opts.flags & SHEAF_RUN_UNVERIFIED);
	int rc = 0;

	while (a < stop && rc == 0) {
		uint64_t b = a, u, v;

		/* Extends [a, b) by consecutive blocks that have bytes of the box. */
		while (b < stop && b - a < CHUNK) {
			units_in(t, b, b + SHF_BLOCK, &u, &v);
			if (!touches(d, box, u, v))
				break;
			b += SHF_BLOCK;
		}
		if (b == a) {
			a += SHF_BLOCK;
			continue;
		}
		uint64_t n = (b < end ? b : end) - a;

		rc = read_chunk(d, a, n);
		if (rc == 0 && check)
			rc = shf_blocks_check(d->step, t->file, a, d->buf, n, NULL, d->err);
		if (rc == 0) {
			units_in(t, a, a + n, &u, &v);
			copy_units(d, box, u, v, a);
		}
		a = b;
	}
	return rc;
}

/* Reads the box as read_checked does, but from a file without sums: in whole units instead of
 * blocks, and without a check. */
static int read_plain(struct direct *d, const struct shf_box *box, uint64_t lo, uint64_t hi)
{
	const struct shf_lt_tensor *t = d->t;
	uint64_t per = CHUNK / t->unit;
	int rc = 0;

	for (uint64_t u = lo; u < hi && rc == 0; u += per) {
		uint64_t v = hi - u < per ? hi : u + per;

		if (!touches(d, box, u, v))
			continue;
		rc = read_chunk(d, t->off + u * t->unit, (v - u) * t->unit);
		if (rc == 0)
			copy_units(d, box, u, v, t->off + u * t->unit);
	}
	return rc;
}

/* Reads one box of the slice; callback of shf_mem_boxes. */
static int read_box(void *arg, const struct shf_box *box)
{
	struct direct *d = arg;
	uint64_t lo, hi;

	shf_box_span(&d->t->shape, box, &lo, &hi);
	return d->step->sound ? read_checked(d, box, lo, hi) : read_plain(d, box, lo, hi);
}

int shf_read_slice(struct sheaf_checkpoint *step, const struct shf_lt_tensor *t,
                   const struct shf_slice *s, struct shf_slice_read *done, struct sheaf_error *err)
{
	struct direct d = { .step = step, .t = t, .s = s, .done = done, .err = err };
	int rc;

	if (s->empty)
		return 0;
	if (!always(t->bytes > 0))
		return shf_fail(err, SHEAF_EBUG, "%s: argument 'slice' is NULL", t->name);
	/* The buffer is no larger than needed: the first touch of a page costs more than the
	 * copy. */
	d.buf = shf_alloc((t->bytes < CHUNK - 2 * SHF_BLOCK ? t->bytes + 2 * SHF_BLOCK : CHUNK) + 8,
	                  1);
	if (!d.buf)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to read %s", t->name);
	rc = shf_mem_boxes(&s->mem, read_box, &d);
	shf_free(d.buf);
	return rc;
}

/* Returns whether the slice asks for all bytes of a tensor that has too many dimensions: as U8, in
 * one dimension. Such a tensor can only be read like that. */
static bool is_bytes_of(const struct shf_slice *in, const struct shf_lt_tensor *t)
{
	return t->wide && in->dtype == SHEAF_U8 && in->data_dtype == SHEAF_U8 &&
	       in->items.ndim == 1 && (uint64_t)in->items.dim[0] == t->bytes;
}

/* Reads the slice from tensor t, with conversion. */
static int read_from(struct sheaf_checkpoint *step, const struct shf_lt_tensor *t,
                     const struct shf_slice *in, struct sheaf_error *err)
{
	struct shf_lt_tensor raw = *t;
	struct shf_slice_read done = { 0 };
	struct shf_slice s;
	int rc;

	if (is_bytes_of(in, t)) {
		raw.dtype = SHEAF_U8; /* shape and unit need no change: the layout has them in bytes
		                       * already */
		raw.wide = 0;
	}
	rc = shf_load_slice_adapt(&s, in, &raw, in->family, true, err);
	return rc == 0 ? shf_read_slice(step, &raw, &s, &done, err) : rc;
}

/* Reads a slice of a step that is awake, by its catalog. in: the slice; it is not used if the
 * catalog is broken. */
static int read_awake(struct sheaf_checkpoint *step, const struct shf_slice *in,
                      struct sheaf_error *err)
{
	const struct shf_layout *l = &step->layout;
	int64_t i;

	if (step->cat_rc < 0) {
		if (err)
			*err = step->cat_err;
		return step->cat_rc;
	}
	i = shf_load_find_stored(l, in->family, in->stored, in);
	if (i < 0)
		return shf_fail(err, SHEAF_ELAYOUT, "%s: no tensor %s/%s", step->path, in->family,
		                in->stored);
	return read_from(step, &l->tensors[i], in, err);
}

/* Looks for the tensor without reading the whole table of sums, if the step is asleep
 * (step_lookup.h). If this finds nothing or meets damage, the step is woken, and the result of
 * reading by the catalog counts, because its message names what is damaged. */
static int read_slice(struct sheaf_checkpoint *step, const struct sheaf_slice *slice,
                      struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_lt_tensor t;
	struct shf_slice in;
	bool done = false;
	int rc;

	if (!step->asleep && step->cat_rc < 0)
		return read_awake(step, NULL, err);
	rc = shf_slice_take(&in, slice, true, &arena, err);
	if (rc == 0 && shf_step_lookup(step, in.family, in.stored, &t)) {
		rc = read_from(step, &t, &in, err);
		done = rc != SHEAF_ECORRUPT; /* the catalog has a message that names the damaged
		                              * part */
	}
	if (!done && (rc == 0 || rc == SHEAF_ECORRUPT)) {
		rc = shf_step_wake(step, err);
		if (rc == 0)
			rc = read_awake(step, &in, err);
	}
	shf_arena_release(&arena);
	return rc;
}

/* If the memory that held the step was reused for another step meanwhile, bytes that look damaged
 * are bytes of that step: EAGAIN. */
int shf_step_read(struct sheaf_checkpoint *step, const struct sheaf_slice *slice,
                  struct sheaf_error *err)
{
	const struct shf_view *view = step->view;
	int rc;

	if (view && shf_view_access(view))
		return shf_fail(err, SHEAF_EINVAL, "%s: is spread over the memory of several "
		                "nodes; use sheaf_checkpoint_load on all of them", step->path);
	rc = read_slice(step, slice, err);
	if (rc == SHEAF_ECORRUPT && shf_view_check_unchanged(view, step->path, err) < 0)
		rc = SHEAF_EAGAIN;
	return rc;
}
