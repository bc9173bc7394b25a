/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of the Hugging Face storage writer of DCP: files of ranks, whose boxes are joined,
 * and which are refused with a sentence where these do not fit. */
#include <stdio.h>
#include <stdlib.h>
#include "err.h"
#include "hands.h"
#include "read_slice.h"
#include "sheaf-inspect.h"
#include "step_open.h"
#include "t.h"

#define TWO "\\\"w\\\":{\\\"saved_offsets\\\":[%d,0]}"

/* Puts a file with one F32 tensor "w" of rows x 3, whose values count from `first` on. info: what
 * DCP_SHARDING_INFO is, as it stands in the header. */
static void put_part(struct simdisk *disk, const char *path, const char *info, const char *dtype,
                     int rows, int first)
{
	char header[600];
	uint8_t bytes[2000] = { 0 };
	size_t n, payload = (size_t)rows * 3 * 4;

	n = (size_t)snprintf(header, sizeof(header), "{\"__metadata__\":{\"format\":\"pt\","
	                     "\"DCP_SHARDING_INFO\":\"%s\"},\"w\":{\"dtype\":\"%s\",\"shape\":"
	                     "[%d,3],\"data_offsets\":[0,%zu]}}", info, dtype, rows, payload);
	bytes[0] = (uint8_t)n;
	bytes[1] = (uint8_t)(n >> 8);
	memcpy(bytes + 8, header, n);
	for (int i = 0; i < rows * 3; i++) {
		float v = (float)(first + i);

		memcpy(bytes + 8 + n + 4 * (size_t)i, &v, 4);
	}
	CHECK_INT(simdisk_put(disk, path, bytes, 8 + n + payload), 0);
}

/* Opens it and reads all of "w". */
static int reads(struct simdisk *disk, float *got, int rows, struct sheaf_error *err)
{
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2, .name = "w",
		.shape = { rows, 3 }, .count = { rows, 3 }, .data = got };
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, "d", NULL, NULL, sys, err);

	if (rc == 0)
		rc = shf_step_read(step, &s, err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	return rc;
}

/* Two ranks have `a` and `b` rows, which begin where their texts say. */
static int reads_two(const char *one, int a, const char *two, int b, const char *dtype,
                     float *got, struct sheaf_error *err)
{
	struct simdisk *disk = disk_new();
	int rc;

	put_part(disk, "d/shard-00001-model-00001-of-00001.safetensors", one, "F32", a, 0);
	put_part(disk, "d/shard-00002-model-00001-of-00001.safetensors", two, dtype, b, 3 * a);
	rc = reads(disk, got, a + b, err);
	simdisk_abandon(disk);
	return rc;
}

static const char *at_row(int row)
{
	static char text[4][100];
	static int turn;
	char *t = text[turn++ % 4];

	snprintf(t, 100, "{" TWO "}", row);
	return t;
}

TEST(the_files_of_ranks_are_one_tensor)
{
	struct sheaf_error err;
	float got[27];

	CHECK_RC(reads_two(at_row(0), 5, at_row(5), 4, "F32", got, &err), 0, &err);
	for (int i = 0; i < 27; i++)
		CHECK(got[i] == (float)i);
}

TEST(a_box_that_two_ranks_have_is_read_once)
{
	struct simdisk *disk = disk_new();
	struct sheaf_error err;
	float got[15];

	put_part(disk, "d/a.safetensors", at_row(0), "F32", 5, 0);
	put_part(disk, "d/b.safetensors", at_row(0), "F32", 5, 0);
	CHECK_RC(reads(disk, got, 5, &err), 0, &err);
	CHECK(got[14] == 14);
	simdisk_abandon(disk);
}

TEST(files_that_do_not_fit_are_refused_by_what_is_wrong)
{
	static const struct { const char *two, *dtype, *why; } flaws[] = {
		{ "{\\\"w\\\":{\\\"saved_offsets\\\":[6,0]}}", "F32", "is in no chunk" },
		{ "{\\\"w\\\":{\\\"saved_offsets\\\":[4,0]}}", "F32", "is in several chunks" },
		{ "{\\\"w\\\":{\\\"saved_offsets\\\":[5,1]}}", "F32", "is in no chunk" },
		{ "{\\\"w\\\":{\\\"saved_offsets\\\":[5]}}", "F32",
		  "a different number of dimensions from its place" },
		{ "{\\\"w\\\":{\\\"saved_offsets\\\":[5,0]}}", "I32", "another dtype" },
		{ "{\\\"w\\\":{\\\"saved_offsets\\\":[9223372036854775807,0]}}", "F32",
		  "a size beyond 63 bits" },
		{ "{\\\"w\\\":{\\\"saved_offsets\\\":[-1,0]}}", "F32", "unknown structure" },
		{ "{\\\"w\\\":{\\\"saved_offsets\\\":[1.5,0]}}", "F32",
		  "unknown structure" },
		{ "{\\\"w\\\":{}}", "F32", "unknown structure" },
		{ "{\\\"w\\\":[5,0]}", "F32", "unknown structure" },
		{ "[]", "F32", "unknown structure" },
		{ "", "F32", "unknown structure" },
		{ "{} {}", "F32", "unknown structure" },
	};
	struct sheaf_error err;
	float got[27];

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++) {
		int rc = reads_two(at_row(0), 5, flaws[i].two, 4, flaws[i].dtype, got, &err);

		if (rc != SHEAF_EFORMAT || !strstr(err.msg, flaws[i].why))
			fail_msg("want '%s', got %d: %s", flaws[i].why, rc, err.msg);
	}
}

TEST(a_file_that_is_cut_anywhere_is_refused)
{
	struct simdisk *disk = disk_new();
	struct sheaf_error err;
	float got[15];
	uint8_t *all;
	size_t n;

	put_part(disk, "d/a.safetensors", at_row(0), "F32", 5, 0);
	all = simdisk_get(disk, "d/a.safetensors", &n);
	simdisk_abandon(disk);
	for (size_t cut = 0; cut < n; cut++) {
		disk = disk_new();
		CHECK_INT(simdisk_put(disk, "d/a.safetensors", all, cut), 0);
		CHECK(reads(disk, got, 5, &err) < 0);
		CHECK(strlen(err.msg) > 8);
		simdisk_abandon(disk);
	}
	free(all);
}
