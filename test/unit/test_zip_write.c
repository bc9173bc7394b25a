/* SPDX-License-Identifier: Apache-2.0 */
/* Archives that are too large for 32 bits, or have too many records for 16: their headers are made
 * as for any other, and read by lib/foreign out of a file that is never stored. */
#include "t.h"

#include <stdio.h>
#include <stdlib.h>

#include "zip.h"
#include "zip_write.h"

static struct shf_export_plan plan;
static struct shf_export_file file;
static struct shf_zip_out archive;
static struct shf_file_ops ops;
static struct shf_sys sys;

/* Reads the file: its own bytes, and tensors of zeros, which are placed in their order. */
static int64_t read_made(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	uint8_t *to = buf;

	(void)arg;
	(void)fd;
	for (size_t i = 0; i < n; i++) {
		uint64_t at = off + i, before = 0, tensor = false;
		size_t lo = 0, hi = plan.out.tensors_n;

		while (lo < hi) {       /* the first tensor that ends after it */
			size_t mid = lo + (hi - lo) / 2;
			const struct shf_lt_tensor *t = &plan.out.tensors[mid];

			if (t->off + t->bytes <= at)
				lo = mid + 1;
			else
				hi = mid;
		}
		before = plan.before[lo];
		tensor = lo < plan.out.tensors_n && at >= plan.out.tensors[lo].off;
		to[i] = tensor ? 0 : file.header.data[at - before];
	}
	return (int64_t)n;
}

/* Makes an archive with n tensors, the first one of so many bytes and the others of 4. */
static uint64_t make(size_t n, uint64_t bytes)
{
	uint64_t end, before = 0;
	char name[40];

	plan.out.tensors = calloc(n, sizeof(*plan.out.tensors));
	plan.out.tensors_n = n;
	plan.before = calloc(n + 1, sizeof(*plan.before));
	plan.crc = malloc(sizeof(*plan.crc));
	CHECK(plan.out.tensors && plan.before && plan.crc);
	shf_crc32_init(plan.crc);
	shf_zip_begin(&archive, &plan, &file, 0);
	shf_zip_add(&archive, "a/first", "xyz", 3);
	for (size_t i = 0; i < n; i++) {
		plan.out.tensors[i].bytes = i ? 4 : bytes;
		plan.before[i] = before;
		before += plan.out.tensors[i].bytes;
		snprintf(name, sizeof(name), "a/data/%zu", i);
		shf_zip_add_tensor(&archive, name, NULL, 0, (uint32_t)i);
	}
	plan.before[n] = before;
	end = shf_zip_end(&archive);
	CHECK(!file.header.oom && !file.holes.oom);
	CHECK_INT(end, before + file.header.len);
	return end;
}

static void forget(void)
{
	free(plan.out.tensors);
	free(plan.before);
	free(plan.crc);
	shf_buf_release(&file.header);
	shf_buf_release(&file.holes);
	memset(&plan, 0, sizeof(plan));
}

/* Opens the archive, and finds each tensor where it was placed, with a hole for its CRC-32. */
static void is_found(uint64_t end)
{
	struct shf_region r = { &sys, 3, 0, end, "f", NULL, false };
	const struct shf_export_hole *h;
	struct shf_arena arena = { 0 };
	struct sheaf_error err;
	struct shf_zip z;
	size_t holes;
	char name[40];

	ops = *shf_sys_real()->file.ops;
	ops.pread = read_made;
	sys = *shf_sys_real();
	sys.file.ops = &ops;
	CHECK_RC(shf_zip_open(&z, &r, &arena, &err), 0, &err);
	CHECK_INT(z.n, plan.out.tensors_n + 1);
	h = shf_export_holes(&file, &holes);
	CHECK_INT(holes, 2 * plan.out.tensors_n);
	for (size_t i = 0; i < plan.out.tensors_n; i += i % 7 + 1) {
		const struct shf_zip_record *record;
		uint64_t data;

		snprintf(name, sizeof(name), "a/data/%zu", i);
		record = shf_zip_find(&z, name, strlen(name));
		CHECK(record != NULL);
		CHECK_INT(record->bytes, plan.out.tensors[i].bytes);
		CHECK_RC(shf_zip_data(record, &r, &data, &err), 0, &err);
		CHECK_INT(data, plan.out.tensors[i].off);
		CHECK_INT(data % 64, 0);
		CHECK_INT(h[i].at, record->at + 14);
		CHECK_INT(h[i].tensor, i);
	}
	shf_arena_release(&arena);
}

TEST(a_record_and_offsets_of_more_than_32_bits_are_those_of_zip64)
{
	is_found(make(20, (UINT64_C(5) << 30) + 12));
	forget();
	is_found(make(3, UINT32_MAX));          /* the size that means zip64 */
	forget();
	is_found(make(3, UINT32_MAX - 1));
	forget();
	is_found(make(3, UINT32_MAX - 200));    /* only what comes after it is beyond */
	forget();
}

TEST(more_than_65535_records_are_those_of_zip64)
{
	is_found(make(70000, 4));
	forget();
	is_found(make(65534, 4));               /* 65535 records with the first one */
	forget();
}

/* The sum of a message is that of its parts, shifted. */
TEST(crc32_of_parts_add_up)
{
	struct shf_crc32 crc;
	uint8_t bytes[300];

	shf_crc32_init(&crc);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * i + 7);
	for (size_t a = 0; a <= sizeof(bytes); a += 13)
		for (size_t b = a; b <= sizeof(bytes); b += 17) {
			uint32_t sum = shf_crc32_shift(shf_crc32_more(&crc, 0, bytes, a),
			                               sizeof(bytes) - a);

			sum ^= shf_crc32_shift(shf_crc32_more(&crc, 0, bytes + a, b - a),
			                       sizeof(bytes) - b);
			sum ^= shf_crc32_more(&crc, 0, bytes + b, sizeof(bytes) - b);
			CHECK_INT(sum, shf_crc32_more(&crc, 0, bytes, sizeof(bytes)));
		}
}
