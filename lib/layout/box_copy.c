/* SPDX-License-Identifier: Apache-2.0 */
/* Copies boxes between memory and file order, and computes the sums of what it copies.
 *
 * A box is walked as runs in the tensor's order, and each run is read once: copied and summed in
 * the same pass, because a second pass over the memory would double the cost. The raw CRC is linear
 * (doc/format.md, section 8), so the sum of a box is computed by Horner's rule: as far as this box
 * is concerned, zeros lie between two of its runs, so the sum so far is shifted by the gap and the
 * next run continues it. Where a block of the file ends, the sum is added to the sum of the block
 * and to that of the tensor, and starts at 0 again. Ranks that hold other boxes of the block add
 * their sums by XOR, in any order.
 *
 * Shifting by a gap takes time in the logarithm of its length, so equal gaps share a
 * precomputed factor as soon as there are enough of them to pay for it. */
#include "box_copy.h"
#include <stdatomic.h>
#include <string.h>
#include "box_runs.h"
#include "crc64.h"
#include "dtype.h"
#include "state.h"

uint64_t shf_box_bytes(const struct shf_lt_tensor *t, const struct shf_box *box)
{
	return shf_box_units(box) * t->unit;
}

/* If the segment begins inside the tensor, the image's first byte is a later unit of the
 * tensor, and `at` says which. If the tensor begins inside the segment, its first unit lies
 * further on in the image. */
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

/* The checksums of one box while it is walked: a chain of CRCs by Horner's rule. Positions (end,
 * stop, all_end) count bytes from the beginning of the tensor; they only grow, as runs come in the
 * tensor's order. A sum is "as at" a position if it is shifted as if the bytes up to there that are
 * not of this box were zeros. */
struct horner {
	struct shf_box_copy_sums *to; /* NULL: no checksums are wanted */
	bool past;              /* use non-temporal stores for long runs */
	uint64_t off, bytes;    /* the tensor's offset in its file, and its size */
	uint64_t sum;           /* sum of the runs in this block so far, as at `end` */
	uint64_t end;           /* position that the chain has reached */
	uint64_t stop;          /* position at which this block of the file ends */
	uint64_t all, all_end;  /* sum of all earlier blocks, as at all_end */
	uint64_t gap;           /* the length of gap that `by` shifts over; 0: no table yet */
	uint64_t last_gap, same; /* the last gap, and how often in a row it was repeated */
	struct shf_crc64_by by;
};
#define GAPS_WORTH_A_TABLE 16

/* Without blocks to add to, `stop` is beyond every tensor: one chain then runs over the whole box,
 * and only the digest is computed. If there are blocks, `stop` is 0, so the first run looks for its
 * block. */
static void horner_init(struct horner *h, const struct shf_lt_tensor *t,
                        struct shf_box_copy_sums *to)
{
	h->past = to && to->past;
	to = to && to->unsummed ? NULL : to;
	h->to = to;
	h->off = t->off;
	h->bytes = t->bytes;
	h->sum = h->end = h->all = h->all_end = h->gap = h->last_gap = h->same = 0;
	h->stop = to && to->parts ? 0 : UINT64_MAX;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Returns the byte of the file where the block that contains byte `at` ends. */
static uint64_t block_end(const struct shf_box_copy_sums *to, uint64_t at)
{
	return least((at / SHF_BLOCK + 1) * SHF_BLOCK, to->file_bytes);
}

/* Adds to the sum of a block of the file. Threads and ranks of a node add to the same word,
 * each the sum of its own bytes. XOR needs no order among them, so relaxed is enough here. */
static void block_sum_add(struct shf_box_copy_sums *to, uint64_t block, uint64_t sum)
{
	atomic_fetch_xor_explicit(&to->parts[block - to->first_block], sum, memory_order_relaxed);
}

/* Ends a chain, because the block or the box ends. A block's sum counts as at the end of the block,
 * so it is shifted by the bytes that follow the last run there. The tensor's sum is carried on as
 * at `all_end` and shifted to the end of the tensor once, in horner_end(). A sum of 0 adds nothing,
 * and before the first run there is no block to which it could belong. */
static void horner_flush(struct horner *h)
{
	if (h->sum && h->to->parts) {
		uint64_t last = h->off + h->end - 1;

		block_sum_add(h->to, last / SHF_BLOCK,
		              shf_crc64_shift(h->sum, block_end(h->to, last) - last - 1));
	}
	h->all = shf_crc64_shift(h->all, h->end - h->all_end) ^ h->sum;
	h->all_end = h->end;
	h->sum = 0;
}

/* Ends the box: shifts its sum to the end of the tensor and adds it to the tensor's digest, which
 * may have the sums of other boxes already. */
static void horner_end(struct horner *h)
{
	if (!h->to)
		return;
	horner_flush(h);
	h->to->digest ^= shf_crc64_shift(h->all, h->bytes - h->all_end);
}

/* Moves the chain to byte `at` of the tensor, over the gap before it. Returns how many of the n
 * bytes may be added before the next call, which is where the block ends.
 *
 * A new block starts at 0, and 0 shifted is 0, so only a gap inside a block costs anything. The
 * factor for a gap is computed when the same gap has come GAPS_WORTH_A_TABLE times in a row, and is
 * kept until another gap has come as often. */
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
	h->end = at;
	return (size_t)least(n, h->stop - at);
}

#define LONG_ROW 4096   /* bytes; each row ends with a fence, which costs shorter rows too much */

/* Copies n bytes and sums them, beginning with byte `at` of the tensor. With `to` NULL they are
 * only summed. Where nothing is summed either, long rows are copied with non-temporal stores
 * and short ones by memcpy(). Each pass of the loop takes what lies in one block. */
static void horner_copy(struct horner *h, uint64_t at, uint8_t *to, const uint8_t *from, size_t n)
{
	if (!h->to && to && h->past && n >= LONG_ROW)
		shf_memcpy_nt(to, from, n);
	else if (!h->to && to)
		memcpy(to, from, n);
	while (h->to && n > 0) {
		size_t k = horner_at(h, at, n);

		if (to) {
			h->sum = shf_crc64_copy(h->sum, to, from, k, h->past);
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

/* With at least this many rows with equal gaps, it pays to precompute a factor for the gap. */
#define ROWS_WORTH_A_FACTOR 8

/* Copies and sums rows of n bytes each. Byte `at` of the tensor begins the first one, and
 * at_step bytes later the next begins. Steps of `to` and `from` are in bytes too.
 *
 * As many rows as end in the same block go to shf_crc64_rows() at once, which shifts over the
 * gaps by itself. The call of horner_at() moves the chain to `at` and shows whether the first row
 * fits into the block. If there turn out to be too few rows, horner_copy() calls horner_at() again
 * for the same position, where the gap is 0, so nothing is shifted twice. */
static void horner_rows(struct horner *h, uint64_t at, uint64_t at_step,
                        const struct shf_crc64_rows *rows)
{
	struct shf_crc64_rows r = *rows;
	uint64_t gap = at_step - r.n;

	r.past_cache = h->past;

	while (r.rows > 0) {
		size_t k = 1, left = r.rows;

		if (h->to && gap != 0 && left >= ROWS_WORTH_A_FACTOR &&
		    horner_at(h, at, r.n) == r.n)
			k = (size_t)least(left, (h->stop - at - r.n) / at_step + 1);
		if (k >= ROWS_WORTH_A_FACTOR) {
			if (gap != h->gap) {
				shf_crc64_by_init(&h->by, gap);
				h->gap = gap;
			}
			r.gap = &h->by;
			r.rows = k;
			h->sum = shf_crc64_rows(h->sum, &r);
			h->end = at + (k - 1) * at_step + r.n;
		} else {
			k = 1;
			horner_copy(h, at, r.to, r.from, r.n);
		}
		at += k * at_step;
		r.from += (ptrdiff_t)k * r.from_step;
		if (r.to)
			r.to += (ptrdiff_t)k * r.to_step;
		r.rows = left - k;
	}
}

/* Each stretch inside a block is shifted to the block's end, like any other contribution to the
 * block's sum. */
void shf_box_copy_sums_add(struct shf_box_copy_sums *sums, uint64_t at, const void *bytes,
                           uint64_t n)
{
	const uint8_t *p = bytes;

	for (uint64_t k; n > 0; n -= k, at += k, p += k) {
		uint64_t end = block_end(sums, at);

		k = least(n, end - at);
		block_sum_add(sums, at / SHF_BLOCK,
		              shf_crc64_shift(shf_crc64_raw(0, p, (size_t)k), end - at - k));
	}
}

/* Returns the memory rule (box.h) of file order itself: dense and row-major over the whole
 * tensor. */
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

/* A walk through a box by groups of rows, with the place of each in file order. */
struct walk {
	const struct shf_lt_tensor *t;
	struct shf_runs runs;
	struct shf_rows rows;           /* the current group */
	uint8_t *packed;                /* where the next row goes if the place is packed */
	struct shf_place_at place;      /* data NULL: only sums are wanted, no bytes are stored */
};

static void row_walk_init(struct walk *w, const struct shf_lt_tensor *t, const struct shf_mem *m,
                          const struct shf_box *box, struct shf_place_at place)
{
	w->t = t;
	w->place = place;
	w->packed = place.data;
	shf_runs_init(&w->runs, &t->shape, m, box);
}

/* Moves to the next group of rows. *p is where its first row lies in file order, *step the distance
 * to the next row in bytes. Returns false at the end of the box. */
static bool row_walk_next(struct walk *w, uint8_t **p, ptrdiff_t *step)
{
	uint32_t unit = w->t->unit;

	if (!shf_runs_rows(&w->runs, &w->rows))
		return false;
	*p = w->packed;
	*step = (ptrdiff_t)(w->runs.units * unit);
	if (w->place.packed) {
		w->packed += (ptrdiff_t)w->rows.rows * *step;
		return true;
	}
	if (w->place.data != NULL) {
		*p = w->place.data + ((int64_t)w->rows.at - w->place.at) * (int64_t)unit;
		*step = w->rows.at_step * (int64_t)unit;
	}
	return true;
}

/* Returns the address of unit `mem`, counted from s->mem.base. Where types are converted, a unit in
 * memory differs in size from one on disk. */
static uint8_t *mem_at(const struct shf_slice *s, int64_t mem)
{
	return s->mem.base + mem * (int64_t)s->mem_unit;
}

/* Gathers n units, `step` units apart, into dense bytes. A constant size in each case lets
 * the compiler turn memcpy() into one load and one store; the addresses need not be aligned to
 * the unit. */
static void gather_units(uint8_t *to, const uint8_t *from, uint32_t unit, int64_t step, size_t n)
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

/* Spreads n dense units to places `step` units apart, the inverse of gather_units(). */
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

/* ---- transposed memory: a row in file order is a column in memory ---- */

/* A transposition is done by tiles. The rows of a tile share cache lines of memory, so each line is
 * fetched once for all of them. A tile has TILE_UNITS units of each row. That number is small
 * because strides that are powers of two put the lines of successive units into the same set of the
 * cache, which has room for few. */
#define LINE_BYTES 64
#define TILE_UNITS 8

/* Defines one function for each size of a unit, so that the inner memcpy() becomes a load and a
 * store. In a, the units of a row are adjacent and rows are a_step bytes apart. In b, the units of
 * a row are b_step bytes apart and the same units of successive rows are adjacent. */
#define TRANSPOSE(name, type)                                                               \
	static void name(uint8_t *a, ptrdiff_t a_step, uint8_t *b, ptrdiff_t b_step,           \
	                 size_t rows, size_t units, bool to_b)                               \
	{                                                                                     \
		for (size_t u = 0; u < units; u += TILE_UNITS) {                              \
			size_t n = units - u < TILE_UNITS ? units - u : TILE_UNITS;           \
                                                                                              \
			for (size_t r = 0; r < rows; r++) {                                   \
				uint8_t *row = a + (ptrdiff_t)r * a_step;                     \
				uint8_t *col = b + (ptrdiff_t)u * b_step;                     \
                                                                                              \
				row += u * sizeof(type);                                      \
				col += r * sizeof(type);                                      \
				for (size_t i = 0; i < n; i++, row += sizeof(type), col += b_step) \
					memcpy(to_b ? col : row, to_b ? row : col, sizeof(type)); \
			}                                                                     \
		}                                                                             \
	}
TRANSPOSE(transpose1, uint8_t)
TRANSPOSE(transpose2, uint16_t)
TRANSPOSE(transpose4, uint32_t)
TRANSPOSE(transpose8, uint64_t)

/* Copies rows from a to b, or with to_b false from b to a; layouts of a and b as for TRANSPOSE. */
static void transpose(uint32_t unit, uint8_t *a, ptrdiff_t a_step, uint8_t *b, ptrdiff_t b_step,
                      size_t rows, size_t units, bool to_b)
{
	switch (unit) {
	case 1:
		transpose1(a, a_step, b, b_step, rows, units, to_b);
		break;
	case 2:
		transpose2(a, a_step, b, b_step, rows, units, to_b);
		break;
	case 4:
		transpose4(a, a_step, b, b_step, rows, units, to_b);
		break;
	default:
		transpose8(a, a_step, b, b_step, rows, units, to_b);
	}
}

/* ---- rows between memory and file order ---- */

/* Copies a run of n units of memory, `step` units apart, to dense bytes at `to`, and converts
 * them if memory has another type. at is the byte of the tensor where the run goes.
 *
 * Strided and converted runs pass through a bounce buffer of a page, which stays in the
 * first-level cache; the sum is of the stored bytes, so it is computed after the conversion.
 * The buffer holds as many units as fit at the larger of the two sizes. */
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
		gather_units(bounce, mem_at(s, mem + (int64_t)done * step), s->mem_unit, step, k);
		if (!same)
			shf_convert(stored, s->dtype, bounce, s->data_dtype, k);
		horner_copy(h, at + done * unit, to + done * unit, same ? bounce : stored,
		            k * unit);
	}
}

/* Copies n stored units at `from` into memory, the inverse of run_in(). The sum is of the
 * stored bytes, before the conversion: it must equal the one on disk whatever type memory has. */
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
	h->past = false; /* `stored` is read again at once, so it should stay in the cache */
	for (size_t done = 0, k; done < n; done += k) {
		k = n - done < per ? n - done : per;
		horner_copy(h, at + done * unit, stored, from + done * unit, k * unit);
		if (!same)
			shf_convert(bounce, s->data_dtype, stored, t->dtype, k);
		spread(mem_at(s, mem + (int64_t)done * step), same ? stored : bounce,
		       s->mem_unit, step, k);
	}
}

/* Copies the rows of a walk from memory to file order. There are three ways, from the fastest
 * to the slowest:
 * - Memory has the stored type and is dense along a row: whole rows are copied.
 * - Memory has the stored type and is dense across the rows, as for a transposed weight: tiles
 *   are transposed, and the result is summed while it is in the cache.
 * - Otherwise each row is gathered, and perhaps converted, through a bounce buffer. */
static void rows_in(struct horner *h, const struct walk *w, const struct shf_slice *s, uint8_t *to,
                    ptrdiff_t to_step)
{
	const struct shf_rows *r = &w->rows;
	uint32_t unit = w->t->unit;
	uint64_t at = r->at * unit, at_step = (uint64_t)r->at_step * unit;
	size_t n = w->runs.units * unit;
	ptrdiff_t mem_step = r->mem_step * (int64_t)s->mem_unit;
	bool same = s->data_dtype == s->dtype;

	if (same && w->runs.step == 1) {
		horner_rows(h, at, at_step, &(struct shf_crc64_rows){ .to = to,
			.from = mem_at(s, r->mem), .to_step = to_step, .from_step = mem_step,
			.n = n, .rows = r->rows });
		return;
	}
	if (same && r->mem_step == 1) {
		for (size_t i = 0, k; i < r->rows; i += k, to += (ptrdiff_t)k * to_step) {
			k = least(r->rows - i, LINE_BYTES / unit);
			transpose(unit, to, to_step, mem_at(s, r->mem + (int64_t)i),
			          w->runs.step * (int64_t)unit, k, w->runs.units, false);
			horner_rows(h, at + i * at_step, at_step, &(struct shf_crc64_rows){
				.from = to, .from_step = to_step, .n = n, .rows = k });
		}
		return;
	}
	for (uint64_t i = 0; i < r->rows; i++, at += at_step, to += to_step)
		run_in(h, s, at, to, r->mem + (int64_t)i * r->mem_step, w->runs.step,
		       w->runs.units);
}

/* The inverse of rows_in(): copies rows from file order to memory, in one of the same three ways.
 * Tiles are summed before they are transposed, as the sum is in file order. */
static void rows_out(struct horner *h, const struct walk *w, const struct shf_slice *s,
                     uint8_t *from, ptrdiff_t from_step)
{
	const struct shf_rows *r = &w->rows;
	uint32_t unit = w->t->unit;
	uint64_t at = r->at * unit, at_step = (uint64_t)r->at_step * unit;
	size_t n = w->runs.units * unit;
	bool same = s->data_dtype == w->t->dtype;

	if (same && w->runs.step == 1) {
		horner_rows(h, at, at_step, &(struct shf_crc64_rows){ .to = mem_at(s, r->mem),
			.from = from, .to_step = r->mem_step * (int64_t)s->mem_unit,
			.from_step = from_step, .n = n, .rows = r->rows });
		return;
	}
	if (same && r->mem_step == 1) {
		for (size_t i = 0, k; i < r->rows; i += k, from += (ptrdiff_t)k * from_step) {
			k = least(r->rows - i, LINE_BYTES / unit);
			horner_rows(h, at + i * at_step, at_step, &(struct shf_crc64_rows){
				.from = from, .from_step = from_step, .n = n, .rows = k });
			transpose(unit, from, from_step, mem_at(s, r->mem + (int64_t)i),
			          w->runs.step * (int64_t)unit, k, w->runs.units, true);
		}
		return;
	}
	for (uint64_t i = 0; i < r->rows; i++, at += at_step, from += from_step)
		run_out(h, s, w->t, at, from, r->mem + (int64_t)i * r->mem_step, w->runs.step,
		        w->runs.units);
}

/* Every copy has this form: the walk gives rows and their place in file order, rows_in() or
 * rows_out() copies and sums them, and horner_end() adds the last block and the digest. */
void shf_box_copy_in(const struct shf_lt_tensor *t, const struct shf_slice *s,
                     const struct shf_box *box, struct shf_place_at to,
                             struct shf_box_copy_sums *sums)
{
	struct horner h;
	struct walk w;
	uint8_t *p;
	ptrdiff_t step;

	horner_init(&h, t, sums);
	row_walk_init(&w, t, &s->mem, box, to);
	while (row_walk_next(&w, &p, &step))
		rows_in(&h, &w, s, p, step);
	horner_end(&h);
}

void shf_box_copy_out(const struct shf_lt_tensor *t, const struct shf_slice *s,
                      const struct shf_box *box, struct shf_place_at from,
                              struct shf_box_copy_sums *sums)
{
	struct horner h;
	struct walk w;
	uint8_t *p;
	ptrdiff_t step;

	horner_init(&h, t, sums);
	row_walk_init(&w, t, &s->mem, box, from);
	while (row_walk_next(&w, &p, &step))
		rows_out(&h, &w, s, p, step);
	horner_end(&h);
}

/* Sums a strided run of memory as it would be in file order, without storing it anywhere. */
static void sum_scattered_run(struct horner *h, const struct shf_slice *s, uint32_t unit,
                              uint64_t at, int64_t mem, int64_t step, uint64_t n)
{
	uint8_t bounce[BOUNCE];

	for (uint64_t i = 0, k; i < n; i += k) {
		k = least(n - i, BOUNCE / unit);
		gather_units(bounce, mem_at(s, mem + (int64_t)i * step), unit, step, k);
		horner_copy(h, at + i * unit, NULL, bounce, k * unit);
	}
}

/* Computes from memory the digest that the loaded bytes had in the file, so that an error of
 * the copy itself is found. */
bool shf_box_copy_check(const struct shf_lt_tensor *t, const struct shf_slice *s,
                        const struct shf_box *box, uint64_t *digest)
{
	struct shf_box_copy_sums sums = { 0 };
	const struct shf_rows *r;
	struct horner h;
	struct walk w;
	uint8_t *p;
	ptrdiff_t step;

	if (s->data_dtype != t->dtype)
		return false;
	horner_init(&h, t, &sums);
	row_walk_init(&w, t, &s->mem, box, (struct shf_place_at){ 0 });
	r = &w.rows;
	while (row_walk_next(&w, &p, &step))
		if (w.runs.step == 1)
			horner_rows(&h, r->at * t->unit, (uint64_t)r->at_step * t->unit,
				    &(struct shf_crc64_rows){ .from = mem_at(s, r->mem),
				    .from_step = r->mem_step * (int64_t)t->unit,
				    .n = w.runs.units * t->unit, .rows = r->rows });
		else
			for (uint64_t i = 0; i < r->rows; i++)
				sum_scattered_run(&h, s, t->unit,
				                  (r->at + i * (uint64_t)r->at_step) * t->unit,
				                  r->mem + (int64_t)i * r->mem_step, w.runs.step,
				                  w.runs.units);
	horner_end(&h);
	*digest ^= sums.digest;
	return true;
}

/* Copies from file order to packed bytes, or with pack false from packed bytes to file order. The
 * box is treated as a slice of memory that is laid out like the file, so the walk gives runs that
 * are dense on both sides. */
static void between(const struct shf_lt_tensor *t, const struct shf_box *box,
                    struct shf_place_at place, uint8_t *packed, bool pack,
                    struct shf_box_copy_sums *sums)
{
	struct shf_mem m = file_mem(t);
	struct horner h;
	struct walk w;
	uint8_t *p;
	ptrdiff_t step;

	horner_init(&h, t, sums);
	row_walk_init(&w, t, &m, box, place);
	while (row_walk_next(&w, &p, &step)) {
		size_t n = w.runs.units * t->unit;

		horner_rows(&h, w.rows.at * t->unit, (uint64_t)w.rows.at_step * t->unit,
		            &(struct shf_crc64_rows){ .to = pack ? packed : p,
		            .from = pack ? p : packed, .to_step = pack ? (ptrdiff_t)n : step,
		            .from_step = pack ? step : (ptrdiff_t)n, .n = n,
		            .rows = w.rows.rows });
		if (packed)
			packed += n * w.rows.rows;
	}
	horner_end(&h);
}

void shf_box_copy_pack(const struct shf_lt_tensor *t, const struct shf_box *box,
                       struct shf_place_at from, uint8_t *to, struct shf_box_copy_sums *sums)
{
	between(t, box, from, to, true, sums);
}

void shf_box_copy_unpack(const struct shf_lt_tensor *t, const struct shf_box *box,
                         const uint8_t *from,
                         struct shf_place_at to, struct shf_box_copy_sums *sums)
{
	/* between() only reads from `packed`, as pack is false, so the cast is safe. */
	between(t, box, to, (uint8_t *)(uintptr_t)from, false, sums);
}
