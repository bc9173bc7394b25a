/* SPDX-License-Identifier: Apache-2.0 */
/* A box is walked as runs in the tensor's order, each run looked at once: copied and summed. The
 * sum goes Horner-wise inside a block of the file: between two runs lie zeros as far as this box
 * is concerned, so the sum so far is shifted by the gap and the next run continues it. Where the
 * block ends, the sum counts into the block's and into the tensor's. Equal gaps share a factor
 * once there are enough of them to pay for it. */
#include "copy.h"
#include <stdatomic.h>
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
	struct shf_sums_to *to;
	uint64_t off, bytes;    /* of the tensor: in its file, and long */
	uint64_t sum;           /* of the runs in this block so far, as at `end` */
	uint64_t end;           /* byte of the tensor after the last run */
	uint64_t stop;          /* byte of the tensor where this block of the file ends */
	uint64_t all, all_end;  /* of the blocks before, as at all_end */
	uint64_t gap;           /* the table's distance; 0: no table yet */
	uint64_t last_gap, same;
	struct shf_crc64_by by;
};
#define GAPS_WORTH_A_TABLE 64

static void horner_init(struct horner *h, const struct shf_lt_tensor *t, struct shf_sums_to *to)
{
	h->to = to;
	h->off = t->off;
	h->bytes = t->bytes;
	h->sum = h->end = h->all = h->all_end = h->gap = h->last_gap = h->same = 0;
	h->stop = to->parts ? 0 : UINT64_MAX;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* The byte of the file where the block that holds byte `at` ends. */
static uint64_t block_end(const struct shf_sums_to *to, uint64_t at)
{
	return least((at / SHF_BLOCK + 1) * SHF_BLOCK, to->file_bytes);
}

static void part_add(struct shf_sums_to *to, uint64_t block, uint64_t sum)
{
	atomic_fetch_xor_explicit(&to->parts[block - to->first_block], sum, memory_order_relaxed);
}

/* The block is over, or the box. */
static void horner_flush(struct horner *h)
{
	if (h->sum && h->to->parts) {
		uint64_t last = h->off + h->end - 1;

		part_add(h->to, last / SHF_BLOCK,
		         shf_crc64_shift(h->sum, block_end(h->to, last) - last - 1));
	}
	h->all = shf_crc64_shift(h->all, h->end - h->all_end) ^ h->sum;
	h->all_end = h->end;
	h->sum = 0;
}

static void horner_end(struct horner *h)
{
	horner_flush(h);
	h->to->digest ^= shf_crc64_shift(h->all, h->bytes - h->all_end);
}

/* Byte `at` of the tensor comes next; how many bytes may be added before it is asked again. */
static size_t horner_at(struct horner *h, uint64_t at, size_t n)
{
	uint64_t gap = at - h->end;

	if (at >= h->stop) {
		horner_flush(h);
		h->stop = block_end(h->to, h->off + at) - h->off;
		h->last_gap = gap;
	} else if (gap != 0 && h->sum != 0) {
		h->same = gap == h->last_gap ? h->same + 1 : 0;
		h->last_gap = gap;
		if (gap != h->gap && h->same >= GAPS_WORTH_A_TABLE) {
			shf_crc64_by_init(&h->by, gap);
			h->gap = gap;
		}
		h->sum =
		    gap == h->gap ? shf_crc64_by(&h->by, h->sum) : shf_crc64_shift(h->sum, gap);
	}
	return (size_t)least(n, h->stop - at);
}

/* Below it, what is stored past the caches would share lines with its neighbours. */
#define LONG_COPY 1024

/* n bytes from byte `at` of the tensor on; to NULL: only looked at. */
static void horner_copy(struct horner *h, uint64_t at, uint8_t *to, const uint8_t *from, size_t n)
{
	while (n > 0) {
		size_t k = horner_at(h, at, n);

		if (to) {
			h->sum = shf_crc64_copy(h->sum, to, from, k, k >= LONG_COPY);
			to += k;
		} else {
			h->sum = shf_crc64_raw(h->sum, from, k);
		}
		from += k;
		at += k;
		n -= k;
		h->end = at;
	}
}

static void horner_add(struct horner *h, uint64_t at, const uint8_t *bytes, size_t n)
{
	horner_copy(h, at, NULL, bytes, n);
}

void shf_sums_add(struct shf_sums_to *sums, uint64_t at, const void *bytes, uint64_t n)
{
	const uint8_t *p = bytes;

	for (uint64_t k; n > 0; n -= k, at += k, p += k) {
		uint64_t end = block_end(sums, at);

		k = least(n, end - at);
		part_add(sums, at / SHF_BLOCK,
		         shf_crc64_shift(shf_crc64_raw(0, p, (size_t)k), end - at - k));
	}
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

/* A run of n units of memory, step apart, to dense bytes at `to`: converted if need be. at: byte
 * of the tensor. */
static void run_in(struct horner *h, const struct shf_slice *s, uint64_t at, uint8_t *to,
                   int64_t mem, int64_t step, size_t n)
{
	uint8_t bounce[BOUNCE], stored[BOUNCE];
	uint32_t unit = s->mem.unit;
	size_t per = BOUNCE / (s->mem_unit > unit ? s->mem_unit : unit);
	bool same = s->data_dtype == s->dtype;

	if (same && step == 1) {
		horner_copy(h, at, to, mem_at(s, mem), n * unit);
		return;
	}
	for (size_t done = 0, k; done < n; done += k) {
		k = n - done < per ? n - done : per;
		collect(bounce, mem_at(s, mem + (int64_t)done * step), s->mem_unit, step, k);
		if (!same)
			shf_convert(stored, s->dtype, bounce, s->data_dtype, k);
		horner_copy(h, at + done * unit, to + done * unit, same ? bounce : stored,
		            k * unit);
	}
}

/* And back: n units of `unit` bytes at `from` into memory. */
static void run_out(struct horner *h, const struct shf_slice *s, const struct shf_lt_tensor *t,
                    uint64_t at, const uint8_t *from, int64_t mem, int64_t step, size_t n)
{
	uint8_t bounce[BOUNCE], stored[BOUNCE];
	uint32_t unit = t->unit;
	size_t per = BOUNCE / (s->mem_unit > unit ? s->mem_unit : unit);
	bool same = s->data_dtype == t->dtype;

	if (same && step == 1) {
		horner_copy(h, at, mem_at(s, mem), from, n * unit);
		return;
	}
	for (size_t done = 0, k; done < n; done += k) {
		k = n - done < per ? n - done : per;
		horner_copy(h, at + done * unit, stored, from + done * unit, k * unit);
		if (!same)
			shf_convert(bounce, s->data_dtype, stored, t->dtype, k);
		spread(mem_at(s, mem + (int64_t)done * step), same ? stored : bounce,
		       s->mem_unit, step, k);
	}
}

void shf_copy_in(const struct shf_lt_tensor *t, const struct shf_slice *s,
                 const struct shf_box *box, struct shf_place_at to, struct shf_sums_to *sums)
{
	struct horner h;
	struct walk w;
	uint64_t at;
	int64_t mem;

	horner_init(&h, t, sums);
	walk_init(&w, t, &s->mem, box, to);
	while (shf_runs_next(&w.runs, &at, &mem))
		run_in(&h, s, at * t->unit, walk_place(&w, at, w.runs.units), mem, w.runs.step,
		       w.runs.units);
	horner_end(&h);
}

void shf_copy_out(const struct shf_lt_tensor *t, const struct shf_slice *s,
                  const struct shf_box *box, struct shf_place_at from, struct shf_sums_to *sums)
{
	struct horner h;
	struct walk w;
	uint64_t at;
	int64_t mem;

	horner_init(&h, t, sums);
	walk_init(&w, t, &s->mem, box, from);
	while (shf_runs_next(&w.runs, &at, &mem))
		run_out(&h, s, t, at * t->unit, walk_place(&w, at, w.runs.units), mem, w.runs.step,
		        w.runs.units);
	horner_end(&h);
}

void shf_copy_plain(const struct shf_lt_tensor *t, const struct shf_slice *s,
                    const struct shf_box *box, struct shf_place_at from)
{
	uint8_t bounce[BOUNCE];
	size_t per = BOUNCE / s->mem_unit, k;
	struct walk w;
	uint64_t at;
	int64_t mem;

	walk_init(&w, t, &s->mem, box, from);
	while (shf_runs_next(&w.runs, &at, &mem)) {
		const uint8_t *p = walk_place(&w, at, w.runs.units);

		if (s->data_dtype == t->dtype) {
			spread(mem_at(s, mem), p, t->unit, w.runs.step, w.runs.units);
			continue;
		}
		for (uint64_t done = 0; done < w.runs.units; done += k) {
			k = least(w.runs.units - done, per);
			shf_convert(bounce, s->data_dtype, p + done * t->unit, t->dtype, k);
			spread(mem_at(s, mem + (int64_t)done * w.runs.step), bounce, s->mem_unit,
			       w.runs.step, k);
		}
	}
}

bool shf_copy_check(const struct shf_lt_tensor *t, const struct shf_slice *s,
                    const struct shf_box *box, uint64_t *digest)
{
	struct shf_sums_to sums = { 0 };
	struct horner h;
	struct walk w;
	uint8_t bounce[BOUNCE];
	uint64_t at;
	int64_t mem;

	if (s->data_dtype != t->dtype)
		return false;
	horner_init(&h, t, &sums);
	walk_init(&w, t, &s->mem, box, (struct shf_place_at){ 0 });
	while (shf_runs_next(&w.runs, &at, &mem)) {
		if (w.runs.step == 1) {
			horner_add(&h, at * t->unit, mem_at(s, mem), w.runs.units * t->unit);
			continue;
		}
		for (uint64_t i = 0, k; i < w.runs.units; i += k) {
			k = least(w.runs.units - i, BOUNCE / t->unit);
			collect(bounce, mem_at(s, mem + (int64_t)i * w.runs.step), t->unit,
				w.runs.step, k);
			horner_add(&h, (at + i) * t->unit, bounce, k * t->unit);
		}
	}
	horner_end(&h);
	*digest ^= sums.digest;
	return true;
}

void shf_copy_pack(const struct shf_lt_tensor *t, const struct shf_box *box,
                   struct shf_place_at from, uint8_t *to, struct shf_sums_to *sums)
{
	struct shf_mem m = file_mem(t);
	struct horner h;
	struct walk w;
	uint64_t at;
	int64_t mem;

	horner_init(&h, t, sums);
	walk_init(&w, t, &m, box, from);
	while (shf_runs_next(&w.runs, &at, &mem)) {
		size_t n = w.runs.units * t->unit;

		horner_copy(&h, at * t->unit, to, walk_place(&w, at, w.runs.units), n);
		if (to)
			to += n;
	}
	horner_end(&h);
}

void shf_copy_unpack(const struct shf_lt_tensor *t, const struct shf_box *box, const uint8_t *from,
                     struct shf_place_at to, struct shf_sums_to *sums)
{
	struct shf_mem m = file_mem(t);
	struct horner h;
	struct walk w;
	uint64_t at;
	int64_t mem;

	horner_init(&h, t, sums);
	walk_init(&w, t, &m, box, to);
	while (shf_runs_next(&w.runs, &at, &mem)) {
		size_t n = w.runs.units * t->unit;

		horner_copy(&h, at * t->unit, walk_place(&w, at, w.runs.units), from, n);
		from += n;
	}
	horner_end(&h);
}
