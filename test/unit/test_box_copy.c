/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between memory and file order (lib/layout/box_copy.c) against a walk of every unit, and
 * their sums against sums of a file that holds the box alone. */
#include "rng.h"
#include "t.h"
#include <stdatomic.h>
#include <stdlib.h>
#include "box_copy.h"
#include "crc64.h"
#include "mem.h"
#include "state.h"

#define SEED UINT64_C(0x5eaf0c09)
#define BLOCKS 6

struct play {
	struct shf_lt_tensor t;
	struct shf_slice s;
	struct shf_box box;
	uint64_t file_bytes;
	uint8_t *file, *only;           /* the file; and with nothing in it but the box */
	uint8_t *mem;                   /* what the box is in memory */
	size_t mem_bytes;
	uint64_t digest, parts[BLOCKS];
	struct shf_place_at in_file;
};

static size_t unit_in_memory(const struct play *p, const int64_t at[2])
{
	const struct shf_mem *m = &p->s.mem;

	return (size_t)(m->origin + (at[0] - m->box.start[0]) * m->stride[0] +
	                (at[1] - m->box.start[1]) * m->stride[1]);
}

/* The box by hand: into memory, alone in a file, and its sums. */
static void by_hand(struct play *p)
{
	uint32_t unit = p->t.unit;

	for (int64_t i = 0; i < p->box.count[0]; i++)
		for (int64_t j = 0; j < p->box.count[1]; j++) {
			int64_t at[2] = { p->box.start[0] + i, p->box.start[1] + j };
			size_t off = p->t.off +
			             (size_t)(at[0] * p->t.shape.dim[1] + at[1]) * unit;

			memcpy(p->only + off, p->file + off, unit);
			memcpy(p->mem + unit_in_memory(p, at) * unit, p->file + off, unit);
		}
	p->digest = shf_crc64_raw(0, p->only + p->t.off, (size_t)p->t.bytes);
	for (uint64_t b = 0; b * SHF_BLOCK < p->file_bytes; b++) {
		uint64_t n = p->file_bytes - b * SHF_BLOCK;

		p->parts[b] = shf_crc64_raw(0, p->only + b * SHF_BLOCK,
		                            (size_t)(n < SHF_BLOCK ? n : SHF_BLOCK));
	}
}

/* A tensor over some blocks, a box of it, whole rows or not, in memory as it is or transposed. */
static void make(struct play *p, uint64_t *s, int way)
{
	static const uint32_t units[] = { 1, 2, 4, 8 };
	static const int dtypes[] = { SHEAF_U8, SHEAF_BF16, SHEAF_F32, SHEAF_I64 };
	int k = (int)rng_below(s, 4);
	int64_t rows = 1 + rng_below(s, 3000), cols = 1 + rng_below(s, 700 / (int64_t)units[k]);
	struct shf_mem *m = &p->s.mem;

	*p = (struct play){ .t = { .name = "t", .dtype = dtypes[k], .unit = units[k],
		.shape = { 2, { rows, cols } }, .items = { 2, { rows, cols } } } };
	p->t.off = (uint64_t)rng_below(s, 300000) * units[k];
	p->t.bytes = (uint64_t)(rows * cols) * units[k];
	p->file_bytes = p->t.off + p->t.bytes + (uint64_t)rng_below(s, 5000);
	p->box.ndim = 2;
	for (int d = 0; d < 2; d++) {
		int64_t n = p->t.shape.dim[d];
		bool whole = rng_below(s, 2);

		p->box.start[d] = whole ? 0 : rng_below(s, n);
		p->box.count[d] = whole ? n : 1 + rng_below(s, n - p->box.start[d]);
	}
	*m = (struct shf_mem){ .box = p->box, .unit = units[k], .origin = rng_below(s, 9) };
	m->stride[way == 1 ? 0 : 1] = 1;
	m->stride[way == 1 ? 1 : 0] = p->box.count[way == 1 ? 0 : 1] + rng_below(s, 3);
	p->mem_bytes = (size_t)(m->origin + p->box.count[0] * m->stride[0] +
	                        p->box.count[1] * m->stride[1]) * units[k];
	m->hi = (int64_t)(p->mem_bytes / units[k]);
	p->s.dtype = p->s.data_dtype = dtypes[k];
	p->s.mem_unit = units[k];
	p->s.shape = p->s.items = p->t.shape;
	p->file = shf_alloc((size_t)p->file_bytes, 1);
	p->only = shf_zalloc((size_t)p->file_bytes, 1);
	p->mem = shf_zalloc(p->mem_bytes, 1);
	for (size_t i = 0; i < p->file_bytes; i++)
		p->file[i] = (uint8_t)(rng_next(s) >> 32);
	p->in_file = (struct shf_place_at){ .data = p->file + p->t.off };
	by_hand(p);
}

static void unmake(struct play *p)
{
	shf_free(p->file);
	shf_free(p->only);
	shf_free(p->mem);
}

static void sums_agree(const struct play *p, const struct shf_box_copy_sums *sums)
{
	CHECK(sums->digest == p->digest);
	for (int b = 0; b < BLOCKS; b++)
		CHECK(atomic_load(&sums->parts[b]) == p->parts[b]);
}

static void one(struct play *p, bool past)
{
	_Atomic uint64_t parts[4][BLOCKS] = { { 0 } };
	struct shf_box_copy_sums sums[4], none = { .past = past, .unsummed = true };
	size_t box_bytes = (size_t)shf_box_bytes(&p->t, &p->box);
	uint8_t *file = shf_zalloc((size_t)p->file_bytes, 1), *mem = shf_zalloc(p->mem_bytes, 1);
	uint8_t *packed = shf_alloc(box_bytes, 1);
	struct shf_place_at to = { .data = file + p->t.off };

	for (int i = 0; i < 4; i++)
		sums[i] = (struct shf_box_copy_sums){ .parts = parts[i],
		        .file_bytes = p->file_bytes, .past = past };
	p->s.mem.base = p->mem;
	shf_box_copy_in(&p->t, &p->s, &p->box, to, &sums[0]);
	CHECK(memcmp(file, p->only, (size_t)p->file_bytes) == 0);
	p->s.mem.base = mem;
	shf_box_copy_out(&p->t, &p->s, &p->box, p->in_file, &sums[1]);
	CHECK(memcmp(mem, p->mem, p->mem_bytes) == 0);
	memset(mem, 0, p->mem_bytes);
	shf_box_copy_out(&p->t, &p->s, &p->box, p->in_file, &none);
	CHECK(memcmp(mem, p->mem, p->mem_bytes) == 0);
	shf_box_copy_pack(&p->t, &p->box, p->in_file, packed, &sums[2]);
	memset(file, 0, (size_t)p->file_bytes);
	shf_box_copy_unpack(&p->t, &p->box, packed, to, &sums[3]);
	CHECK(memcmp(file, p->only, (size_t)p->file_bytes) == 0);
	for (int i = 0; i < 4; i++)
		sums_agree(p, &sums[i]);
	uint64_t digest = 0;
	CHECK(shf_box_copy_check(&p->t, &p->s, &p->box, &digest));
	CHECK(digest == p->digest);
	shf_free(file);
	shf_free(mem);
	shf_free(packed);
}

TEST(each_way_moves_the_box_and_sums_it_by_block_and_by_tensor)
{
	uint64_t s = SEED;

	for (int i = 0; i < 60; i++) {
		struct play p;

		make(&p, &s, i % 3);
		one(&p, false);
		one(&p, true);
		unmake(&p);
	}
}

TEST(bytes_of_no_tensor_count_into_their_blocks)
{
	uint64_t s = SEED + 1, bytes = 2 * SHF_BLOCK + 12345;
	uint8_t *p = shf_zalloc((size_t)bytes, 1);
	_Atomic uint64_t parts[BLOCKS] = { 0 };
	struct shf_box_copy_sums sums = { .parts = parts, .file_bytes = bytes };
	uint64_t at = SHF_BLOCK - 777, n = SHF_BLOCK + 1000;

	for (uint64_t i = 0; i < n; i++)
		p[at + i] = (uint8_t)rng_next(&s);
	shf_box_copy_sums_add(&sums, at, p + at, n);
	for (uint64_t b = 0; b < 3; b++)
		CHECK(atomic_load(&parts[b]) ==
		      shf_crc64_raw(0, p + b * SHF_BLOCK, (size_t)(b < 2 ? SHF_BLOCK : 12345)));
	shf_free(p);
}
