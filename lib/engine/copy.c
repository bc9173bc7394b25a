/* SPDX-License-Identifier: Apache-2.0 */
/* A box is walked as runs in the tensor's order. The digest goes Horner-wise: between two runs
 * lie zeros as far as this box is concerned, so the sum so far is shifted by the gap and the next
 * run continues it. Equal gaps share a table once there are enough of them to pay for it. */
#include "copy.h"
#include <string.h>
#include "crc64.h"
#include "dtype.h"

uint64_t shf_box_bytes(const struct shf_lt_tensor *t, const struct shf_box *box)
{
	return shf_box_units(box) * t->unit;
}

struct shf_place_at shf_place_in(uint8_t *image, uint64_t image_at, uint64_t seg_lo,
                                 const struct shf_lt_tensor *t)
{
	struct shf_place_at p = { .data = image + image_at };

	if (seg_lo >= t->off)
		p.at = (int64_t)((seg_lo - t->off) / t->unit);
	else
		p.data += t->off - seg_lo;
	return p;
}

struct horner {
	uint64_t sum;
	uint64_t end;           /* byte of the tensor after the last run */
	uint64_t gap;           /* the table's distance; 0: no table yet */
	uint64_t last_gap, same;
	struct shf_crc64_by by;
};
#define GAPS_WORTH_A_TABLE 64

static void horner_init(struct horner *h)
{
	h->sum = h->end = h->gap = h->last_gap = h->same = 0;
}

static void horner_add(struct horner *h, uint64_t at, const void *bytes, size_t n)
{
	uint64_t gap = at - h->end;

	if (h->sum != 0 && gap != 0) {
		h->same = gap == h->last_gap ? h->same + 1 : 0;
		h->last_gap = gap;
		if (gap != h->gap && h->same >= GAPS_WORTH_A_TABLE) {
			shf_crc64_by_init(&h->by, gap);
			h->gap = gap;
		}
		h->sum =
		    gap == h->gap ? shf_crc64_by(&h->by, h->sum) : shf_crc64_shift(h->sum, gap);
	}
	h->sum = shf_crc64_raw(h->sum, bytes, n);
	h->end = at + n;
}

static uint64_t horner_end(const struct horner *h, uint64_t tensor_bytes)
{
	return h->sum ? shf_crc64_shift(h->sum, tensor_bytes - h->end) : 0;
}

/* The memory rule of file order itself: dense and row-major over the whole tensor. */
static struct shf_mem file_mem(const struct shf_lt_tensor *t)
{
	struct shf_mem m = { .box = shf_box_of(&t->shape), .unit = t->unit, .hi = INT64_MAX };
	int64_t by = 1;

	for (int d = t->shape.ndim - 1; d >= 0; d--) {
		m.stride[d] = by;
		by *= t->shape.dim[d];
	}
	return m;
}

#define BOUNCE 4096             /* bytes; strided and converted runs go through it */

struct walk {
	const struct shf_lt_tensor *t;
	struct shf_runs runs;
	uint8_t *packed;                /* next byte of a packed place */
	struct shf_place_at place;
};

static void walk_init(struct walk *w, const struct shf_lt_tensor *t, const struct shf_mem *m,
                      const struct shf_box *box, struct shf_place_at place)
{
	w->t = t;
	w->place = place;
	w->packed = place.data;
	shf_runs_init(&w->runs, &t->shape, m, box);
}

/* Where the run of n units at unit `at` lies in file order. */
static uint8_t *walk_place(struct walk *w, uint64_t at, uint64_t n)
{
	uint8_t *p = w->packed;

	if (!w->place.packed)
		return w->place.data + ((int64_t)at - w->place.at) * (int64_t)w->t->unit;
	w->packed += n * w->t->unit;
	return p;
}

static uint8_t *mem_at(const struct shf_slice *s, int64_t mem)
{
	return s->mem.base + mem * (int64_t)s->mem_unit;
}

/* n units of memory, step apart, into dense bytes; and back. */
static void collect(uint8_t *to, const uint8_t *from, uint32_t unit, int64_t step, size_t n)
{
	if (step == 1) {
		memcpy(to, from, n * unit);
		return;
	}
	int64_t by = step * (int64_t)unit;

	switch (unit) {
	case 1:
		for (size_t i = 0; i < n; i++, from += by)
			to[i] = *from;
		break;
	case 2:
		for (size_t i = 0; i < n; i++, from += by)
			memcpy(to + 2 * i, from, 2);
		break;
	case 4:
		for (size_t i = 0; i < n; i++, from += by)
			memcpy(to + 4 * i, from, 4);
		break;
	default:
		for (size_t i = 0; i < n; i++, from += by)
			memcpy(to + 8 * i, from, 8);
	}
}

static void spread(uint8_t *to, const uint8_t *from, uint32_t unit, int64_t step, size_t n)
{
	if (step == 1) {
		memcpy(to, from, n * unit);
		return;
	}
	int64_t by = step * (int64_t)unit;

	switch (unit) {
	case 1:
		for (size_t i = 0; i < n; i++, to += by)
			*to = from[i];
		break;
	case 2:
		for (size_t i = 0; i < n; i++, to += by)
			memcpy(to, from + 2 * i, 2);
		break;
	case 4:
		for (size_t i = 0; i < n; i++, to += by)
			memcpy(to, from + 4 * i, 4);
		break;
	default:
		for (size_t i = 0; i < n; i++, to += by)
			memcpy(to, from + 8 * i, 8);
	}
}

/* n units of memory as stored bytes, through conversion if need be. */
static void fetch(const struct shf_slice *s, uint8_t *to, int64_t mem, int64_t step, size_t n)
{
	uint8_t bounce[BOUNCE];

	if (s->data_dtype == s->dtype) {
		collect(to, mem_at(s, mem), s->mem.unit, step, n);
		return;
	}
	for (size_t done = 0, k; done < n; done += k) {
		k = n - done < BOUNCE / s->mem_unit ? n - done : BOUNCE / s->mem_unit;
		collect(bounce, mem_at(s, mem + (int64_t)done * step), s->mem_unit, step, k);
		shf_convert(to + done * s->mem.unit, s->dtype, bounce, s->data_dtype, k);
	}
}

static void store(const struct shf_slice *s, const uint8_t *from, int dtype, int64_t mem,
                  int64_t step, size_t n, uint32_t unit)
{
	uint8_t bounce[BOUNCE];

	if (s->data_dtype == dtype) {
		spread(mem_at(s, mem), from, unit, step, n);
		return;
	}
	for (size_t done = 0, k; done < n; done += k) {
		k = n - done < BOUNCE / s->mem_unit ? n - done : BOUNCE / s->mem_unit;
		shf_convert(bounce, s->data_dtype, from + done * unit, dtype, k);
		spread(mem_at(s, mem + (int64_t)done * step), bounce, s->mem_unit, step, k);
	}
}

void shf_copy_in(const struct shf_lt_tensor *t, const struct shf_slice *s,
                 const struct shf_box *box, struct shf_place_at to, uint64_t *digest)
{
	struct horner h;
	struct walk w;
	uint64_t at;
	int64_t mem;

	horner_init(&h);
	walk_init(&w, t, &s->mem, box, to);
	while (shf_runs_next(&w.runs, &at, &mem)) {
		uint8_t *p = walk_place(&w, at, w.runs.units);

		fetch(s, p, mem, w.runs.step, w.runs.units);
		horner_add(&h, at * t->unit, p, w.runs.units * t->unit);
	}
	*digest ^= horner_end(&h, t->bytes);
}

void shf_copy_out(const struct shf_lt_tensor *t, const struct shf_slice *s,
                  const struct shf_box *box, struct shf_place_at from, uint64_t *digest)
{
	struct horner h;
	struct walk w;
	uint64_t at;
	int64_t mem;

	horner_init(&h);
	walk_init(&w, t, &s->mem, box, from);
	while (shf_runs_next(&w.runs, &at, &mem)) {
		const uint8_t *p = walk_place(&w, at, w.runs.units);

		horner_add(&h, at * t->unit, p, w.runs.units * t->unit);
		store(s, p, t->dtype, mem, w.runs.step, w.runs.units, t->unit);
	}
	*digest ^= horner_end(&h, t->bytes);
}

bool shf_copy_check(const struct shf_lt_tensor *t, const struct shf_slice *s,
                    const struct shf_box *box, uint64_t *digest)
{
	struct horner h;
	struct walk w;
	uint8_t bounce[BOUNCE];
	uint64_t at;
	int64_t mem;

	if (s->data_dtype != t->dtype)
		return false;
	horner_init(&h);
	walk_init(&w, t, &s->mem, box, (struct shf_place_at){ 0 });
	while (shf_runs_next(&w.runs, &at, &mem)) {
		if (w.runs.step == 1) {
			horner_add(&h, at * t->unit, mem_at(s, mem), w.runs.units * t->unit);
			continue;
		}
		for (uint64_t i = 0, k; i < w.runs.units; i += k) {
			k = w.runs.units - i < BOUNCE / t->unit ? w.runs.units - i
								: BOUNCE / t->unit;
			collect(bounce, mem_at(s, mem + (int64_t)i * w.runs.step), t->unit,
				w.runs.step, k);
			horner_add(&h, (at + i) * t->unit, bounce, k * t->unit);
		}
	}
	*digest ^= horner_end(&h, t->bytes);
	return true;
}

void shf_copy_pack(const struct shf_lt_tensor *t, const struct shf_box *box,
                   struct shf_place_at from, uint8_t *to, uint64_t *digest)
{
	struct shf_mem m = file_mem(t);
	struct horner h;
	struct walk w;
	uint64_t at;
	int64_t mem;

	horner_init(&h);
	walk_init(&w, t, &m, box, from);
	while (shf_runs_next(&w.runs, &at, &mem)) {
		size_t n = w.runs.units * t->unit;
		const uint8_t *p = walk_place(&w, at, w.runs.units);

		horner_add(&h, at * t->unit, p, n);
		if (to) {
			memcpy(to, p, n);
			to += n;
		}
	}
	*digest ^= horner_end(&h, t->bytes);
}

void shf_copy_unpack(const struct shf_lt_tensor *t, const struct shf_box *box, const uint8_t *from,
                     struct shf_place_at to, uint64_t *digest)
{
	struct shf_mem m = file_mem(t);
	struct horner h;
	struct walk w;
	uint64_t at;
	int64_t mem;

	horner_init(&h);
	walk_init(&w, t, &m, box, to);
	while (shf_runs_next(&w.runs, &at, &mem)) {
		size_t n = w.runs.units * t->unit;

		memcpy(walk_place(&w, at, w.runs.units), from, n);
		horner_add(&h, at * t->unit, from, n);
		from += n;
	}
	*digest ^= horner_end(&h, t->bytes);
}
