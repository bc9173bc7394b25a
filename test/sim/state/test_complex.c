/* SPDX-License-Identifier: Apache-2.0 */
/* Complex numbers of two F64 (SHEAF_C128): saved and loaded in any memory, and stored as F64 with a
 * last dimension of 2, so that a program that knows nothing of them reads the same step. */
#include <stdlib.h>
#include "err.h"
#include "simdisk.h"
#include "simgroup.h"
#include "t.h"
#include "load.h"
#include "read_slice.h"
#include "run_open.h"
#include "run_ops.h"
#include "save.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "step_open.h"
#include "verify_step.h"

enum { RANKS = 2, ROWS = 6, COLUMNS = 5, HERE = ROWS / RANKS };

/* How a rank holds its half of the tensor. As F64 it is what the file has; GAPS: every second item
 * of rows of 10, from item 1 on. */
enum held { DENSE, TRANSPOSED, GAPS, FLAT, AS_F64, WAYS };

struct hold {
	struct sheaf_slice s, scalar;
	double z[HERE * 10 + 1][2];     /* of a slice; real and imaginary part */
	double one[2];
};

/* Where item (i, j) of the rank's rows lies, in complex numbers. */
static size_t place(enum held way, int i, int j)
{
	if (way == TRANSPOSED)
		return (size_t)(j * HERE + i);
	return (size_t)(way == GAPS ? 10 * i + 2 * j + 1 : i * COLUMNS + j);
}

static void hold(struct hold *h, enum held way, int rank)
{
	*h = (struct hold){ .s = { .size = sizeof(h->s), .name = "z", .dtype = SHEAF_C128,
		.ndim = 2, .shape = { ROWS, COLUMNS }, .start = { rank * HERE },
		.count = { HERE, COLUMNS }, .data = h->z } };
	if (way == TRANSPOSED) {
		h->s.stride[0] = 1;
		h->s.stride[1] = HERE;
	} else if (way == GAPS) {
		h->s.stride[0] = 10;
		h->s.stride[1] = 2;
		h->s.origin = 1;
	} else if (way == FLAT) {
		h->s.start[0] = 0;
		h->s.count[0] = ROWS;
		h->s.flags = SHEAF_SLICE_FLAT;
		h->s.flat_start = rank * HERE * COLUMNS;
		h->s.flat_count = HERE * COLUMNS;
	} else if (way == AS_F64) {
		h->s.dtype = SHEAF_F64;
		h->s.ndim = 3;
		h->s.shape[2] = h->s.count[2] = 2;
	}
	h->scalar = (struct sheaf_slice){ .size = sizeof(h->s), .name = "one",
		.dtype = way == AS_F64 ? SHEAF_F64 : SHEAF_C128, .ndim = way == AS_F64,
		.data = h->one };
	if (way == AS_F64)
		h->scalar.shape[0] = h->scalar.count[0] = 2;
}

static double value(int rank, int i, int j, int part)
{
	int item = (rank * HERE + i) * COLUMNS + j;

	return part ? -item - 0.5 : item + 0.25;
}

static void fill(struct hold *h, enum held way, int rank)
{
	for (int i = 0; i < HERE; i++)
		for (int j = 0; j < COLUMNS; j++)
			for (int part = 0; part < 2; part++)
				h->z[place(way, i, j)][part] = value(rank, i, j, part);
	h->one[0] = 3;
	h->one[1] = -4;
}

static int wrong(const struct hold *h, enum held way, int rank)
{
	struct hold want;
	int n = h->one[0] != 3 || h->one[1] != -4;

	hold(&want, way, rank);
	fill(&want, way, rank);
	return n + (memcmp(want.z, h->z, sizeof(want.z)) != 0);
}

struct play {
	struct simdisk *disk;
	const struct shf_sys *sys[RANKS];
	enum held way;
	bool save;
	struct sheaf_error err[RANKS];
};

static int load(struct sheaf_run *run, struct sheaf_state *st, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, run, 7, err);

	if (rc == 0)
		rc = shf_step_verify(step, &report, err);
	report = (struct sheaf_report){ .size = sizeof(report) };
	if (rc == 0)
		rc = shf_step_load(step, st, SHEAF_LOAD_STRICT, &report, err);
	if (rc == 0 && (report.loaded != 2 || report.converted))
		rc = shf_fail(err, SHEAF_EBUG, "%d tensors, %d converted", (int)report.loaded,
		              (int)report.converted);
	shf_step_put(step);
	return rc;
}

static int play_rank(void *arg, int rank, struct sheaf_group *group)
{
	struct play *p = arg;
	struct shf_opts opts = { .timeout_ms = 60000,
		.flags = p->save ? SHEAF_RUN_CREATE : SHEAF_RUN_READONLY };
	struct sheaf_state *st = shf_state_new();
	struct sheaf_save *sv = NULL;
	struct sheaf_run *run = NULL;
	struct hold h;
	int rc;

	hold(&h, p->way, rank);
	if (p->save)
		fill(&h, p->way, rank);
	(void)shf_state_add(st, &h.s, NULL);
	(void)shf_state_add(st, &h.scalar, NULL);
	rc = shf_run_open(&run, "run", group, &opts, p->sys[rank], &p->err[rank]);
	if (rc == 0 && p->save) {
		rc = shf_save_begin(&sv, run, 7, st, NULL, &p->err[rank]);
		rc = rc ? rc : shf_save_commit(sv, -1, &p->err[rank]);
	} else if (rc == 0) {
		rc = load(run, st, &p->err[rank]);
		if (rc == 0 && wrong(&h, p->way, rank))
			rc = shf_fail(&p->err[rank], SHEAF_EBUG, "other values in way %d", p->way);
	}
	shf_save_free(sv);
	if (run)
		shf_run_close(run);
	shf_state_put(st);
	return rc;
}

static void play(struct simdisk *disk, enum held way, bool saves)
{
	static uint64_t pid = 900, seed = 1;
	struct play p = { .disk = disk, .way = way, .save = saves };
	struct simgroup_opts o = { .seed = seed++, .ranks = RANKS };
	int results[RANKS];

	for (int r = 0; r < RANKS; r++)
		p.sys[r] = simdisk_process(disk, pid++, 0);
	CHECK_INT(simgroup_run(&o, play_rank, &p, results), 0);
	for (int r = 0; r < RANKS; r++) {
		CHECK_RC(results[r], 0, &p.err[r]);
		CHECK_INT(simdisk_open_n(p.sys[r]), 0);
		simdisk_kill(disk, p.sys[r]);
	}
}

TEST(complex_numbers_are_saved_and_loaded_in_any_memory_and_as_pairs)
{
	uint64_t hash = 0;

	for (int a = 0; a < WAYS; a++) {
		struct simdisk *disk = simdisk_new(3, SIMDISK_STRICT);
		static const char file[] = "run/checkpoint-7/model-00001-of-00001.safetensors";

		play(disk, (enum held)a, true);
		hash = hash ? hash : simdisk_hash(disk, file);
		CHECK(hash == simdisk_hash(disk, file));
		for (int b = 0; b < WAYS; b++)
			play(disk, (enum held)b, false);
		simdisk_free(disk);
	}
}

/* What a program that knows no complex numbers is told, and one item read by one process. */
TEST(a_step_lists_pairs_of_f64)
{
	struct simdisk *disk = simdisk_new(3, SIMDISK_STRICT);
	const struct shf_sys *sys;
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	struct sheaf_slice s = { .size = sizeof(s), .name = "z", .dtype = SHEAF_C128, .ndim = 2,
		.shape = { ROWS, COLUMNS }, .start = { 4, 3 }, .count = { 1, 1 } };
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	double z[2] = { 0 };

	play(disk, DENSE, true);
	sys = simdisk_process(disk, 2000, 0);
	CHECK_RC(shf_step_open_path(&step, "run/checkpoint-7", NULL, &opts, sys, &err), 0, &err);
	for (size_t i = 0; i < step->layout.tensors_n; i++)
		CHECK_INT(step->layout.tensors[i].dtype, SHEAF_F64);
	s.data = z;
	CHECK_RC(shf_step_read(step, &s, &err), 0, &err);
	CHECK(z[0] == value(1, 1, 3, 0) && z[1] == value(1, 1, 3, 1));
	s.shape[0]++;
	CHECK_RC(shf_step_read(step, &s, &err), SHEAF_ELAYOUT, &err);
	shf_step_put(step);
	simdisk_kill(disk, sys);
	simdisk_free(disk);
}

TEST(a_range_of_pairs_that_64_bits_cannot_count_is_refused)
{
	static const int64_t far[][2] = { { INT64_MAX / 2 + 1, 0 }, { 0, INT64_MAX / 2 + 1 },
		{ INT64_C(3) << 60, INT64_C(3) << 60 } };
	struct sheaf_state *st = shf_state_new();
	double z[2] = { 0 };

	for (size_t i = 0; i < 3; i++) {
		struct sheaf_slice s = { .size = sizeof(s), .name = "z", .dtype = SHEAF_C128,
			.flags = SHEAF_SLICE_FLAT, .ndim = 1, .shape = { 4 }, .count = { 4 },
			.flat_start = far[i][0], .flat_count = far[i][1], .data = z };
		struct sheaf_error err;

		CHECK_INT(shf_state_add(st, &s, &err), SHEAF_EINVAL);
	}
	shf_state_put(st);
}
