/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint of DeepSpeed is exported as a unified checkpoint, as a flex checkpoint and as one of
 * sharding_io of Paddle. All families load from it in any layout, and the powers of the betas are
 * those that Paddle would have kept. */
#include "dspdfile.h"
#include <stdlib.h>
#include "export_format.h"
#include "step_open.h"
#include "t.h"
#include "foreign_plays.h"
#include "starve.h"

#define FROM "ds/global_step9"
#define TO "out"
#define STEP 7                  /* of the optimizer, as dspdfile.c has it */

static const struct dspd_param params[] = {
	{ "w", 0, 2, { 11, 7 } }, { "v", 0, 1, { 13 } }, { "one", 1, 1, { 1 } },
};
enum { N = sizeof(params) / sizeof(params[0]) };

static int run_from(struct simdisk *disk, const char *from, const struct shf_export_opts *how,
                    struct sheaf_error *err)
{
	static uint64_t pid = 700;
	const struct shf_sys *sys = simdisk_process(disk, pid++, 0);
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY, .io_threads = 1 };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, from, NULL, &opts, sys, err);

	if (rc == 0)
		rc = shf_step_export(step, TO, how, NULL, err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return rc;
}

static int run(struct simdisk *disk, const struct shf_export_opts *how, struct sheaf_error *err)
{
	return run_from(disk, FROM, how, err);
}

static const char *const formats[] = { "paddle-uc", "paddle-fc", "sharding-io" };
enum { UC, FC, SH, FORMATS_N };

static struct shf_export_opts whole(int format, double beta1, double beta2)
{
	return (struct shf_export_opts){ .format = shf_export_format(formats[format]), .prefix = "",
		.file_bytes_max = 500, .memory_bytes = 1, .beta1 = beta1, .beta2 = beta2 };
}

static struct simdisk *saved(void)
{
	const struct dspd_plan p = { 1, 2, params, N, DSPD_SOUND, 0, 0, 0, 0 };
	struct simdisk *disk = disk_new();

	dspd_save(disk, FROM, &p);
	return disk;
}

static struct simdisk *exported(const struct shf_export_opts *how)
{
	struct simdisk *disk = saved();
	struct sheaf_error err;
	int rc = run(disk, how, &err);

	CHECK_RC(rc, 0, &err);
	return disk;
}

static void held(struct hand *h)
{
	dspd_hold(h, params, N);
}

TEST(all_families_load_in_any_layout_from_files_of_any_size)
{
	for (int i = 0; i < 3 * FORMATS_N; i++) {
		struct shf_export_opts how = whole(i / 3, 0.9, 0.95);

		how.file_bytes_max = i % 3 == 0 ? 1 : i % 3 == 1 ? 500 : UINT64_C(5000000000);
		for (int ranks = 1; ranks <= 2; ranks++) {
			struct simdisk *disk = exported(&how);
			struct play p = foreign_play(disk, TO, ranks, held);

			p.variant = i % 3;
			p.flags = 0;            /* the powers are in it, too */
			LOADED(p);
			simdisk_free(disk);
		}
	}
}

/* Makes the powers of betas 0.5 and 0.75 that Paddle has after so many updates: those of the next
 * one. */
static void powers_after(float want[2], int updates)
{
	want[0] = want[1] = 1;
	for (int i = 0; i < updates + 1; i++) {
		want[0] *= 0.5f;
		want[1] *= 0.75f;
	}
}

/* Returns the 4 bytes of this tensor in a safetensors file, as a number. */
static float value_of(const char *bytes, const char *name)
{
	char want[100];
	uint64_t header;
	unsigned begin;
	const char *at;
	float x;

	memcpy(&header, bytes, 8);
	snprintf(want, sizeof(want), "\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[",
	         name);
	at = strstr(bytes + 8, want);
	CHECK(at != NULL);
	CHECK_INT(sscanf(at + strlen(want), "%u", &begin), 1);
	memcpy(&x, bytes + 8 + header + begin, 4);
	return x;
}

TEST(powers_of_the_betas_are_those_of_the_next_update)
{
	struct shf_export_opts how = whole(UC, 0.5, 0.75);
	float want[2];
	struct simdisk *disk;
	char *bytes;
	size_t n;

	how.file_bytes_max = UINT64_C(5000000000);
	disk = exported(&how);
	bytes = simdisk_get(disk, TO "/optimizer-00001-of-00001.safetensors", &n);
	CHECK(bytes != NULL);
	powers_after(want, STEP);
	CHECK(value_of(bytes, "w/beta1_pow_acc_0") == want[0]);
	CHECK(value_of(bytes, "w/beta2_pow_acc_0") == want[1]);
	CHECK(value_of(bytes, "one/beta1_pow_acc_0") == want[0]);
	CHECK(value_of(bytes, "one/beta2_pow_acc_0") == want[1]);
	free(bytes);
	bytes = simdisk_get(disk, TO "/optimizer.safetensors.index.json", &n);
	CHECK(memmem(bytes, n, "\"master_weights\": true", 22) != NULL);
	CHECK(memmem(bytes, n, "\"v/beta2_pow_acc_0\": \"optimizer-00001-of", 40) != NULL);
	free(bytes);
	simdisk_free(disk);
}

/* Returns the one number of this array in a file of a flex checkpoint. */
static float number_of(const char *bytes, size_t n, const char *key)
{
	char want[100];
	size_t m = (size_t)snprintf(want, sizeof(want), "X%c%c%c%c%s", (int)strlen(key), 0, 0, 0,
	                            key);
	const char *at = memmem(bytes, n, want, m);
	float x;

	CHECK(at != NULL);
	at = memmem(at, n - (size_t)(at - bytes), "B\4\0\0\0", 5);
	CHECK(at != NULL);
	CHECK_INT((at + 5 - bytes) % 8, 0);
	memcpy(&x, at + 5, 4);
	return x;
}

TEST(a_flex_checkpoint_has_the_names_and_powers_that_its_trainer_has)
{
	static const char *const keys[] = { "w.beta1_pow_acc_0", "one.beta1_pow_acc_0",
		"w.beta2_pow_acc_0", "one.beta2_pow_acc_0" };
	struct shf_export_opts how = whole(FC, 0.5, 0.75);
	struct simdisk *disk;
	float want[2];
	char *bytes;
	size_t n;

	how.file_bytes_max = UINT64_C(5000000000);
	disk = exported(&how);
	bytes = simdisk_get(disk, TO "/optimizer_state/0_0.distcp", &n);
	CHECK(bytes != NULL);
	powers_after(want, STEP);
	for (int i = 0; i < 4; i++)
		CHECK(number_of(bytes, n, keys[i]) == want[i / 2]);
	CHECK(memmem(bytes, n, "v.moment2_0", 11) != NULL);
	free(bytes);
	bytes = simdisk_get(disk, TO "/optimizer_state/0.metadata", &n);
	CHECK(bytes && memmem(bytes, n, "v.beta2_pow_acc_0", 17) != NULL);
	free(bytes);
	bytes = simdisk_get(disk, TO "/master_weight/0.metadata", &n);
	CHECK(bytes && memmem(bytes, n, "one.w_0", 7) != NULL);
	free(bytes);
	simdisk_free(disk);
}

TEST(without_the_betas_nothing_is_written)
{
	static const double betas[][2] = { { 0, 0 }, { 0.9, 0 }, { 0.9, 1 }, { -0.9, 0.95 } };
	struct simdisk *disk = saved();
	struct shf_export_opts how;
	struct sheaf_error err;

	for (int i = 0; i < 4 * FORMATS_N; i++) {
		how = whole(i / 4, betas[i % 4][0], betas[i % 4][1]);
		CHECK_INT(run(disk, &how, &err), SHEAF_EINVAL);
		CHECK(strstr(err.msg, "its moments need the betas of AdamW") != NULL);
		CHECK(!simdisk_exists(disk, TO));
		CHECK(!simdisk_exists(disk, TO ".partial"));
	}
	how = whole(UC, 0, 0);
	how.family = "model";           /* which has no moments */
	how.as = "model";
	CHECK_RC(run(disk, &how, &err), 0, &err);
	simdisk_free(disk);
}

/* ---- steps of a run ---- */

static const struct { const char *family, *name; } odd[] = { { "optimizer", "w.exp_avg" },
	{ "optimizer", "w/exp.avg" }, { "ema", "v.w_0" }, { "teacher", "w" },
	{ "model", "UnpackBigParamInfor@@" } };
enum { ODD_N = sizeof(odd) / sizeof(odd[0]) };

/* A model, averages, master weights of one of its two parameters, and one odd tensor. */
static void averaged(struct hand *h)
{
	hand_add(h, "model", "w", SHEAF_BF16, 2, 5, 3);
	hand_add(h, "model", "v", SHEAF_F32, 0);
	hand_add(h, "model", "none", SHEAF_F32, 2, 0, 3);
	hand_add(h, "ema", "w", SHEAF_F32, 2, 5, 3);
	hand_add(h, "ema", "v", SHEAF_F32, 0);
	hand_add(h, "master_weights", "w", SHEAF_F32, 2, 5, 3);
	if (h->play->variant < ODD_N)
		hand_add(h, odd[h->play->variant].family, odd[h->play->variant].name, SHEAF_F32, 1,
		         4);
}

/* Saves it as step 3 of the run "run". */
static struct simdisk *saved_with(int variant)
{
	struct play p = hands_play(disk_new(), 1, averaged);

	p.variant = variant;
	p.step = 3;
	SAVED(p);
	return p.disk;
}

TEST(averages_have_the_names_of_master_weights_where_there_are_any)
{
	const struct shf_export_opts how = whole(FC, 0, 0);
	struct simdisk *disk = saved_with(ODD_N);
	struct sheaf_error err;
	char *bytes;
	size_t n;
	int rc = run_from(disk, "run/checkpoint-3", &how, &err);
	struct play p = foreign_play(disk, TO, 1, averaged);

	CHECK_RC(rc, 0, &err);
	p.variant = ODD_N;
	LOADED(p);
	bytes = simdisk_get(disk, TO "/ema_state/0.metadata", &n);
	CHECK(bytes && memmem(bytes, n, "X\5\0\0\0w.w_0", 10));
	CHECK(memmem(bytes, n, "X\1\0\0\0v", 6) != NULL);
	free(bytes);
	/* The trainer expects this folder, too. */
	CHECK(simdisk_exists(disk, TO "/optimizer_state/0_0.distcp"));
	CHECK(simdisk_exists(disk, TO "/optimizer_state/0.metadata"));
	simdisk_free(disk);
}

TEST(a_unified_checkpoint_has_every_family)
{
	const struct shf_export_opts how = whole(UC, 0, 0);

	for (int variant = 2; variant <= 3; variant++) {        /* averages, and a teacher */
		struct simdisk *disk = saved_with(variant);
		struct sheaf_error err;
		int rc = run_from(disk, "run/checkpoint-3", &how, &err);
		struct play p = foreign_play(disk, TO, 2, averaged);

		CHECK_RC(rc, 0, &err);
		p.variant = variant;
		LOADED(p);
		simdisk_free(disk);
	}
}

TEST(names_that_would_not_come_back_are_refused)
{
	static const char *const says[] = { "tensor w.exp_avg: in format paddle-fc this name in "
		"family optimizer would be", "tensor w/exp.avg: in format paddle-fc this name in "
		"family optimizer would be", "tensor v.w_0: in format paddle-fc this name in "
		"family ema would be", "family teacher: format paddle-fc has no folder for it",
		"tensor UnpackBigParamInfor@@: paddle.load takes" };

	for (int i = 0; i < ODD_N; i++) {
		struct simdisk *disk = saved_with(i);
		struct shf_export_opts how = whole(FC, 0, 0);
		struct sheaf_error err;

		CHECK_INT(run_from(disk, "run/checkpoint-3", &how, &err), SHEAF_EINVAL);
		if (!strstr(err.msg, says[i]))
			fail_msg("want '%s', got: %s", says[i], err.msg);
		CHECK(!simdisk_exists(disk, TO ".partial"));
		how.family = odd[i].family;     /* alone they keep their names */
		how.as = "model";
		if (i + 1 < ODD_N)
			CHECK_RC(run_from(disk, "run/checkpoint-3", &how, &err), 0, &err);
		simdisk_free(disk);
	}
}

static void starve(int format)
{
	const struct shf_export_opts how = whole(format, 0.9, 0.95);
	int failed = 0;

	for (long nth = 1 + t_from(T_STRIDE);; nth += T_STRIDE) {
		struct simdisk *disk = saved();
		struct sheaf_error err;
		int rc;

		starved = false;
		starve_left = nth;
		rc = run(disk, &how, &err);
		starve_left = 0;
		CHECK(rc == 0 || rc == SHEAF_ENOMEM);
		failed += rc < 0;
		CHECK(rc == 0 || !simdisk_exists(disk, TO));
		rc = rc == 0 ? rc : run(disk, &how, &err);
		CHECK_RC(rc, 0, &err);
		simdisk_free(disk);
		if (!starved)
			break;
	}
	CHECK(failed > 100 / T_STRIDE);
}

TEST(each_allocation_may_fail)
{
	for (int format = 0; format < FORMATS_N; format++)
		starve(format);
}
