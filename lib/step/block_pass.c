/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over bytes that are in memory: copies what is wanted, sums everything, and checks each
 * block when its last byte has been read. The pass works in pieces of 128 KiB, so that bytes which
 * are read twice, once for the sum and once for the copy, are still in the cache the second time.
 *
 * If only one slice wants a box, all of it and in long runs, the box is summed while it is copied.
 * Any other box is summed first, in file order, and then copied to each slice that wants a part. So
 * each byte is summed once, however many slices want it, and short runs do not cost a CRC call
 * each. */
#include "block_pass.h"
#include "box_copy.h"
#include "box_runs.h"
#include "crc64.h"
#include "state.h"
#include "step.h"
#include "step_blocks.h"

#define STEP (UINT64_C(128) << 10)      /* piece of the pass; divides SHF_BLOCK */
#define LONG_RUN 512                    /* bytes; longer runs are summed while they are copied */

bool shf_block_pass_sums(const struct sheaf_checkpoint *step)
{
	return step->sound && step->sums_rc == 0 && !(step->run->opts.flags & SHEAF_RUN_UNVERIFIED);
}

/* The first tensor and the first want are looked up once; from there the pass only moves
 * forward. */
void shf_block_pass_begin(struct shf_pass *p, uint32_t file, uint64_t at,
                          const struct shf_want *wants, size_t wants_n)
{
	p->file = file;
	p->place = shf_layout_at(&p->step->layout, file, at);
	p->at = at;
	p->block = 0;
	p->wants = wants;
	p->wants_n = wants_n;
	p->want = 0;
}

struct some {                   /* units [lo, hi) of a tensor, whose bytes are at p */
	const struct shf_lt_tensor *t;
	const uint8_t *p;
	uint64_t lo, hi;
	bool past;                      /* copies use non-temporal stores */
};

/* Copies the whole box into the slice and adds it to *sum in one go. Returns false and does nothing
 * if the dtypes differ or the runs in memory are short or scattered, because a separate sum and
 * copy is faster then. */
static bool copy_and_sum(const struct some *x, const struct shf_slice *s,
                         const struct shf_box *box, uint64_t *sum)
{
	const uint8_t *p = x->p;
	struct shf_runs runs;
	uint64_t at;
	int64_t mem;
	size_t n;

	if (s->data_dtype != x->t->dtype)
		return false;
	shf_runs_init(&runs, &x->t->shape, &s->mem, box);
	n = runs.units * x->t->unit;
	if ((runs.step != 1 && runs.units != 1) || n < LONG_RUN)
		return false;
	for (; shf_runs_next(&runs, &at, &mem); p += n)
		*sum = shf_crc64_copy(*sum, s->mem.base + mem * (int64_t)s->mem_unit, p, n,
		                      x->past);
	return true;
}

/* Returns the want that covers the whole box, or NULL if there is no such want or another one
 * overlaps the box, too. */
static const struct shf_want *only(const struct shf_want *wants, size_t n,
                                   const struct shf_box *box)
{
	const struct shf_want *one = NULL;
	struct shf_box part;

	for (size_t i = 0; i < n; i++) {
		if (!shf_box_intersect(&part, &wants[i].box, box))
			continue;
		if (one || !shf_box_equal(&part, box))
			return NULL;
		one = &wants[i];
	}
	return one;
}

/* Copies a box of consecutive units to each of the n wants that overlap it. Returns `sum` continued
 * over the bytes of the box. */
static uint64_t take_box(const struct shf_pass *p, const struct some *x, const struct shf_box *box,
                         const struct shf_want *wants, size_t n, uint64_t sum)
{
	struct shf_place_at from = { .data = (uint8_t *)(uintptr_t)x->p, .at = (int64_t)x->lo };
	const struct shf_want *one = p->sums ? only(wants, n, box) : NULL;
	struct shf_box_copy_sums none = { .past = x->past, .unsummed = true };
	struct shf_box part;

	if (one && copy_and_sum(x, one->slice, box, &sum))
		return sum;
	if (p->sums)
		sum = shf_crc64_raw(sum, x->p, (size_t)((x->hi - x->lo) * x->t->unit));
	for (size_t i = 0; i < n; i++)
		if (shf_box_intersect(&part, &wants[i].box, box))
			shf_box_copy_out(x->t, wants[i].slice, &part, from, &none);
	return sum;
}

/* Returns how many wants are of tensor `number`. They begin at p->want. Wants are sorted by file
 * offset, so wants of tensors that end before byte `at` are skipped for good. */
static size_t wants_of(struct shf_pass *p, uint32_t number, uint64_t at)
{
	const struct shf_lt_tensor *t = p->step->layout.tensors;
	size_t n = 0;

	while (p->want < p->wants_n && p->wants[p->want].tensor != number &&
	       t[p->wants[p->want].tensor].off + t[p->wants[p->want].tensor].bytes <= at)
		p->want++;
	while (p->want + n < p->wants_n && p->wants[p->want + n].tensor == number)
		n++;
	return n;
}

/* Takes bytes [a, b) of the file, which all belong to tensor `number`. Adds their CRC to the digest
 * of the tensor, shifted by the number of bytes that follow in the tensor, and to the sum of the
 * block. */
static void take_stretch(struct shf_pass *p, uint32_t number, uint64_t a, uint64_t b,
                         const uint8_t *bytes)
{
	const struct shf_lt_tensor *t = &p->step->layout.tensors[number];
	struct shf_box range[SHF_RANGE_BOXES_MAX];
	size_t wants = wants_of(p, number, a);
	uint64_t sum = 0, end = t->off + t->bytes, lo, hi;
	int n = 0;

	/* Copies work on boxes, so bytes that a slice wants are cut into boxes; others are summed
	 * in one go. */
	if (wants > 0)
		n = shf_range_boxes(&t->shape, (a - t->off) / t->unit, (b - t->off) / t->unit,
		                    range);
	else if (p->sums)
		sum = shf_crc64_raw(0, bytes, (size_t)(b - a));
	for (int i = 0; i < n; i++) {
		struct some x = { .t = t, .p = bytes, .past = p->past };

		shf_box_span(&t->shape, &range[i], &lo, &hi);
		x.lo = lo;
		x.hi = hi;
		sum = take_box(p, &x, &range[i], p->wants + p->want, wants, sum);
		bytes += (hi - lo) * t->unit;
	}
	/* Sums are combined by XOR, so that parts may be added in any order and from any thread. */
	if (p->got && !p->quiet) {
		atomic_fetch_xor(&p->got[number], shf_crc64_shift(sum, end - b));
		atomic_fetch_add(&p->got_bytes[number], b - a);
	}
	p->block = shf_crc64_shift(p->block, b - a) ^ sum;
}

/* Advances to byte hi of the file, which must not be beyond the end of the current block. The
 * header and the padding between tensors count for the sum of the block only. */
static void step_to(struct shf_pass *p, uint64_t hi, const uint8_t *bytes)
{
	const struct shf_layout *l = &p->step->layout;
	const struct shf_lt_file *file = &l->files[p->file];
	uint32_t end = file->first_tensor + file->tensors_n;

	while (p->at < hi) {
		const struct shf_lt_tensor *t = NULL;
		uint64_t stop = hi;

		/* Skips empty tensors and tensors that end before this byte. */
		while (p->place < end && !t) {
			t = &l->tensors[l->by_place[p->place]];
			if (t->off + t->bytes <= p->at) {
				t = NULL;
				p->place++;
			}
		}
		/* Stops where the tensor ends, or where the next one begins, so that the bytes up
		 * to `stop` belong to one tensor, or to no tensor. */
		if (t && t->off <= p->at)
			stop = t->off + t->bytes < hi ? t->off + t->bytes : hi;
		else if (t)
			stop = t->off < hi ? t->off : hi;
		if (t && t->off <= p->at)
			take_stretch(p, l->by_place[p->place], p->at, stop, bytes);
		else if (p->sums) /* the header or padding */
			p->block = shf_crc64_raw(p->block, bytes, (size_t)(stop - p->at));
		bytes += stop - p->at;
		p->at = stop;
	}
}

/* A block is checked only after its bytes were copied, because copying while the bytes are in the
 * cache is what makes the pass fast. If the block is wrong, the caller's memory already has the
 * wrong bytes, and the load fails. */
int shf_block_pass_feed(struct shf_pass *p, const uint8_t *bytes, uint64_t n,
                        struct sheaf_error *err)
{
	uint64_t end = p->at + n, file_end = p->step->layout.files[p->file].bytes;
	int rc = 0;

	while (p->at < end && rc == 0) {
		/* A piece does not cross the end of a block, because STEP divides it. */
		uint64_t from = p->at, stop = (from / STEP + 1) * STEP, block = from / SHF_BLOCK;

		stop = stop < end ? stop : end;
		step_to(p, stop, bytes);
		bytes += stop - from;
		/* The block is complete only at its end or at the end of the file. */
		if (stop % SHF_BLOCK != 0 && stop != file_end)
			continue;
		if (p->sums)
			rc = shf_block_check(p->step, p->file, block,
			                     p->block ^ shf_crc64_ones(stop - block * SHF_BLOCK),
			                     err);
		p->block = 0;
	}
	return rc;
}
