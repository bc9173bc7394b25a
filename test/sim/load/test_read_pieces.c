/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of a tensor of many blocks, read by one process from a step and from a foreign file:
 * blocks that a piece does not touch are not read, and a block that cannot be read is reported. */
#include "acts.h"
#include <errno.h>
#include <stdlib.h>
#include "err.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "step.h"
#include "step_open.h"
#include "read_slice.h"
#include "run_ops.h"

#define MIB ((size_t)1 << 20)
enum { ROWS = 3 };
static const int64_t wide = 3000017;    /* bytes of a row: nearly three blocks */
#define OURS "run/checkpoint-7"
#define MODEL "model-00001-of-00001.safetensors"

struct pieces {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_checkpoint *step;
	struct sheaf_error err;
	uint8_t *got;                   /* of wide bytes a row */
};

static uint8_t byte_at(int64_t r, int64_t c)
{
	return (uint8_t)((c * 31 + r * 7) >> 3 ^ c);
}

static void paint(uint8_t *to)
{
	for (int64_t r = 0; r < ROWS; r++)
		for (int64_t c = 0; c < wide; c++)
			to[r * wide + c] = byte_at(r, c);
}

static struct sheaf_slice whole(void *data)
{
	return (struct sheaf_slice){ .size = sizeof(struct sheaf_slice), .name = "w",
		.dtype = SHEAF_U8, .ndim = 2, .shape = { ROWS, wide }, .count = { ROWS, wide },
		.data = data };
}

static void make_ours(struct pieces *p)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE,
	                           .io_threads = 1 };
	struct sheaf_slice s = whole(p->got);
	struct sheaf_state *state = shf_state_new();
	struct sheaf_save *save = NULL;
	struct sheaf_run *run = NULL;

	CHECK_INT(shf_state_add(state, &s, NULL), 0);
	CHECK_RC(shf_run_open(&run, "run", NULL, &opts, p->sys, &p->err), 0, &p->err);
	CHECK_RC(shf_save_begin(&save, run, 7, state, NULL, &p->err), 0, &p->err);
	CHECK_RC(shf_save_commit(save, -1, &p->err), 0, &p->err);
	shf_save_free(save);
	shf_state_put(state);
	shf_run_close(run);
}

static void make_theirs(struct pieces *p)
{
	static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[3,3000017],"
	                             "\"data_offsets\":[0,9000051]}}";
	size_t n = sizeof(header) - 1, all = 8 + n + ROWS * (size_t)wide;
	uint8_t *bytes = calloc(1, all);

	CHECK(bytes != NULL);
	bytes[0] = (uint8_t)n;
	memcpy(bytes + 8, header, n);
	paint(bytes + 8 + n);
	CHECK_INT(simdisk_put(p->disk, "theirs.safetensors", bytes, all), 0);
	free(bytes);
}

static void opens(struct pieces *p, bool ours, uint64_t flags)
{
	struct shf_opts opts = { .flags = flags };

	shf_step_put(p->step);
	p->step = NULL;
	CHECK_RC(shf_step_open_path(&p->step, ours ? OURS : "theirs.safetensors", NULL, &opts,
	                            p->sys, &p->err), 0, &p->err);
	memset(p->got, 0xA5, ROWS * (size_t)wide);
}

static void begin(struct pieces *p)
{
	*p = (struct pieces){ .disk = disk_new(), .got = malloc(ROWS * (size_t)wide) };
	CHECK(p->got != NULL);
	p->sys = simdisk_process(p->disk, 1, 0);
	paint(p->got);
	make_ours(p);
	make_theirs(p);
}

static void end(struct pieces *p)
{
	shf_step_put(p->step);
	CHECK_INT(simdisk_open_n(p->sys), 0);
	free(p->got);
	simdisk_free(p->disk);
}

/* Columns [from, from + n) of every row, into memory of their own. */
static int columns(struct pieces *p, int64_t from, int64_t n)
{
	struct sheaf_slice s = whole(p->got);

	s.start[1] = from;
	s.count[1] = n;
	return shf_step_read(p->step, &s, &p->err);
}

static bool are_right(const struct pieces *p, int64_t from, int64_t n)
{
	for (int64_t r = 0; r < ROWS; r++)
		for (int64_t c = 0; c < n; c++)
			if (p->got[r * n + c] != byte_at(r, from + c))
				return false;
	return true;
}

/* Reads of the file since call `from`, and how many bytes they gave. */
static size_t bytes_read(const struct pieces *p, size_t from)
{
	size_t bytes = 0;

	for (size_t i = from; i < simdisk_calls(p->disk); i++) {
		const char *text = simdisk_call_text(p->disk, i), *gave = strrchr(text, '=');

		if (strstr(text, "pread") && gave)
			bytes += strtoull(gave + 1, NULL, 10);
	}
	return bytes;
}

TEST(a_column_of_long_rows_is_read_by_the_blocks_that_it_touches)
{
	struct pieces p;
	size_t before;

	begin(&p);
	for (int i = 0; i < 2; i++) {
		opens(&p, i == 0, 0);
		CHECK_RC(columns(&p, 1500000, 9), 0, &p.err);
		before = simdisk_calls(p.disk);
		CHECK_RC(columns(&p, 1500000, 9), 0, &p.err);
		CHECK(are_right(&p, 1500000, 9));
		if (i == 0) { /* a block of each row */
			CHECK(bytes_read(&p, before) >= 3 * MIB);
			CHECK(bytes_read(&p, before) < 4 * MIB);
		}
		CHECK_RC(columns(&p, 0, wide), 0, &p.err);
		CHECK(are_right(&p, 0, wide));
		CHECK_RC(columns(&p, wide - 5, 5), 0, &p.err);
		CHECK(are_right(&p, wide - 5, 5));
		CHECK_RC(columns(&p, 7, 0), 0, &p.err);
	}
	end(&p);
}

/* Of somebody else's file, too: between two far columns nothing is read. */
TEST(what_lies_between_far_columns_is_not_read)
{
	static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[2,9000000],"
	                             "\"data_offsets\":[0,18000000]}}";
	const size_t n = sizeof(header) - 1, row = 9000000;
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 1, 0);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	uint8_t got[6], *bytes = calloc(1, 8 + n + 2 * row);
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_U8, .ndim = 2,
		.shape = { 2, (int64_t)row }, .count = { 2, 3 }, .data = got };
	struct pieces p = { .disk = disk };
	size_t before;

	CHECK(bytes != NULL);
	bytes[0] = (uint8_t)n;
	memcpy(bytes + 8, header, n);
	memcpy(bytes + 8 + n, "abc", 3);
	memcpy(bytes + 8 + n + row, "def", 3);
	CHECK_INT(simdisk_put(disk, "far.safetensors", bytes, 8 + n + 2 * row), 0);
	free(bytes);
	CHECK_RC(shf_step_open_path(&step, "far.safetensors", NULL, NULL, sys, &err), 0, &err);
	before = simdisk_calls(disk);
	CHECK_RC(shf_step_read(step, &s, &err), 0, &err);
	CHECK(memcmp(got, "abcdef", 6) == 0);
	CHECK(bytes_read(&p, before) < 5 * MIB);
	shf_step_put(step);
	simdisk_free(disk);
}

TEST(a_row_is_found_among_others_and_no_more_of_it_is_read_than_there_is)
{
	struct pieces p;
	struct sheaf_slice s;

	begin(&p);
	for (int i = 0; i < 2; i++) {
		opens(&p, i == 0, 0);
		s = whole(p.got);
		s.start[0] = 2;
		s.count[0] = 1;
		CHECK_RC(shf_step_read(p.step, &s, &p.err), 0, &p.err);
		for (int64_t c = 0; c < wide; c++)
			if (p.got[c] != byte_at(2, c))
				CHECK_INT(c, -1);
	}
	end(&p);
}

/* Twice it is tried again; a fourth time nobody asks. */
TEST(a_read_that_fails_is_tried_again_and_then_told_with_its_place)
{
	struct pieces p;
	struct simdisk_fault fault = { .error = EIO, .kind = SIMDISK_PREAD };

	begin(&p);
	for (int i = 0; i < 2; i++) {
		opens(&p, i == 0, 0);
		CHECK_RC(columns(&p, 0, 4), 0, &p.err); /* what is read but once is read */
		fault.name = i == 0 ? "model-" : "theirs";
		fault.always = false;
		for (fault.nth = 1; fault.nth <= 3; fault.nth++)
			simdisk_fault(p.disk, &fault);
		CHECK_RC(columns(&p, 0, wide), 0, &p.err);
		CHECK(are_right(&p, 0, wide));
		CHECK_INT(simdisk_fired(p.disk), 3);
		fault.nth = 1;
		fault.always = true;
		simdisk_faults_clear(p.disk);
		simdisk_fault(p.disk, &fault);
		SAID(columns(&p, 0, wide), SHEAF_EIO, i == 0 ? MODEL ": reading " :
		     "theirs.safetensors: reading 4194304 bytes at 75", &p.err);
		CHECK_INT(p.err.sys, EIO);
		CHECK_INT(simdisk_fired(p.disk), 4);
		simdisk_faults_clear(p.disk);
		fault.error = ENXIO;    /* of any other error there is no second time */
		simdisk_fault(p.disk, &fault);
		SAID(columns(&p, 0, wide), SHEAF_EIO, "reading", &p.err);
		CHECK_INT(simdisk_fired(p.disk), 1);
		simdisk_faults_clear(p.disk);
		fault.error = EIO;
	}
	end(&p);
}

TEST(damage_ends_the_read_of_what_it_touches_and_without_checks_is_read)
{
	struct pieces p;

	begin(&p);
	CHECK_INT(simdisk_flip(p.disk, OURS "/" MODEL, 8 * 1200000), 0);
	opens(&p, true, 0);
	SAID(columns(&p, 0, wide), SHEAF_ECORRUPT, "block 1", &p.err);
	CHECK_RC(columns(&p, 2500000, 9), 0, &p.err);
	CHECK(are_right(&p, 2500000, 9));
	CHECK_INT(shf_step_read(p.step, NULL, NULL), SHEAF_EINVAL);
	opens(&p, true, SHEAF_RUN_UNVERIFIED);
	CHECK_RC(columns(&p, 0, wide), 0, &p.err);
	CHECK(!are_right(&p, 0, wide));
	end(&p);
}

/* What is wrong with a step as a whole is told again and again, also to who wants no sentence. */
TEST(a_step_that_could_not_be_read_stays_so)
{
	struct pieces p;

	begin(&p);
	CHECK_INT(simdisk_flip(p.disk, OURS "/sheaf.sums", 8 * 20), 0);
	opens(&p, true, 0);
	CHECK_INT(columns(&p, 0, 4), SHEAF_ECORRUPT);
	for (int i = 0; i < 2; i++) {
		struct sheaf_slice s = whole(p.got);

		CHECK_INT(shf_step_read(p.step, &s, NULL), SHEAF_ECORRUPT);
		SAID(shf_step_read(p.step, &s, &p.err), SHEAF_ECORRUPT, "sheaf.sums", &p.err);
	}
	end(&p);
}
