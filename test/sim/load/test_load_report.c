/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a load, complete: each item, each counter, and the whole sentence of each refusal.
 */
#include "hands.h"
#include "acts.h"
#include <errno.h>
#include <stdlib.h>
#include "sheaf-stat.h"
#include "step_lookup.h"
#include "load.h"
#include "step_open.h"
#include "verify_step.h"
#include "t.h"
#include "read_slice.h"

enum { SAVED_AS, ANOTHER, SHORTER, WIDER, FEWER_DIMS, AS_BF16, AS_I64, WITHOUT, BOTH_WAYS, ZEROS,
       ONLY_SAVED, MASTER, ABSENT };    /* ABSENT + n: n names that are not there */

static struct sheaf_slice *weight(struct hand *h, const char *name, int dtype, int64_t rows)
{
	return hand_add(h, "model", name, dtype, 2, rows, (int64_t)6);
}

static void held(struct hand *h)
{
	int v = h->play->variant;
	struct sheaf_slice *s = v == FEWER_DIMS
		? hand_add(h, "model", "a", SHEAF_F32, 1, (int64_t)24)
		: weight(h, "a", v == AS_BF16 ? SHEAF_BF16 : v == AS_I64 ? SHEAF_I64 : SHEAF_F32,
		         v == WIDER ? 5 : v == SHORTER ? 3 : 4);

	if (v == WIDER || v == SHORTER || v == FEWER_DIMS)
		hand_want(h, HAND_KEPT);
	if (v == ONLY_SAVED) {
		s->flags = SHEAF_SLICE_SAVE_ONLY;
		hand_want(h, HAND_KEPT);
	}
	if (v != WITHOUT)
		weight(h, "b", SHEAF_F32, 8);
	hand_add(h, "optimizer", "a.m", SHEAF_F32, 1, (int64_t)5);
	if (v == ANOTHER) {
		weight(h, "new", SHEAF_F32, 2);
		hand_want(h, HAND_KEPT);
	}
	if (v == ZEROS) {
		hand_add(h, "optimizer", "new.m", SHEAF_F32, 1, (int64_t)5);
		hand_want(h, HAND_ZEROS);
	}
	if (v == MASTER) {
		hand_add(h, "master_weights", "b", SHEAF_F32, 2, (int64_t)8, (int64_t)6);
		hand_as(h, "model", "b");
	}
	for (int i = 0; v > ABSENT && i < v - ABSENT; i++) {
		char name[16];

		snprintf(name, sizeof(name), "n%02d", i);
		weight(h, hand_text(h, name, ""), SHEAF_F32, 1);
	}
}

static struct simdisk *saved(int ranks)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, ranks, held);

	SAVED(p);
	return disk;
}

#define OTHER_MODEL "the state describes another model, or sheaf_slice.shape is not that of the " \
	"whole tensor"
#define CKPT "run/checkpoint-7: "
static const struct row {
	int variant;
	uint64_t flags;
	const char *told;
	const char *sentence;           /* NULL: it is loaded */
	struct sheaf_report want;       /* what is counted */
} rows[] = {
	{ SAVED_AS, SHEAF_LOAD_STRICT, "", NULL, { .loaded = 3, .bytes = 308 } },
	{ ANOTHER, SHEAF_LOAD_LENIENT, "M model/new: not in this checkpoint\n", NULL,
	  { .loaded = 3, .bytes = 308, .missing = 1 } },
	{ ANOTHER, 0, "M model/new: not in this checkpoint\n",
	  CKPT "no tensor model/new; check its name, or set SHEAF_SLICE_OPTIONAL if it may be "
		"absent", { 0 } },
	{ SHORTER, SHEAF_LOAD_LENIENT, "X model/a: stored with another shape\n", NULL,
	  { .loaded = 2, .bytes = 212, .mismatched = 1 } },
	{ FEWER_DIMS, SHEAF_LOAD_LENIENT, "X model/a: stored with another shape\n", NULL,
	  { .loaded = 2, .bytes = 212, .mismatched = 1 } },
	{ WIDER, 0, "", "model/a: shape [4, 6] is stored, [5, 6] was asked for; "
		OTHER_MODEL, { 0 } },
	{ SHORTER, 0, "", "model/a: shape [4, 6] is stored, [3, 6] was asked for; "
		OTHER_MODEL, { 0 } },
	{ FEWER_DIMS, 0, "", "model/a: shape [4, 6] is stored, [24] was asked for; "
		OTHER_MODEL, { 0 } },
	{ AS_BF16, SHEAF_LOAD_CONVERT, "C model/a: stored as another type\n", NULL,
	  { .loaded = 3, .bytes = 308, .converted = 1 } },
	{ AS_BF16, 0, "", "model/a: F32 is stored, BF16 was asked for (SHEAF_LOAD_CONVERT "
		"converts)", { 0 } },
	{ AS_I64, SHEAF_LOAD_CONVERT, "", "model/a: F32 is stored and cannot be converted to I64",
		{ 0 } },
	{ WITHOUT, 0, "U model/b: in the checkpoint, not in the state\n", NULL,
	  { .loaded = 2, .bytes = 116, .unexpected = 1 } },
	{ WITHOUT, SHEAF_LOAD_STRICT, "U model/b: in the checkpoint, not in the state\n",
	  CKPT "model/b is stored, but no rank has a slice of it (load without SHEAF_LOAD_STRICT, "
	          "or put it into opts.ignore)", { 0 } },
	{ ZEROS, SHEAF_LOAD_ZERO, "Z optimizer/new.m: filled with zeros\n", NULL,
	  { .loaded = 3, .bytes = 308, .zeroed = 1 } },
	{ ZEROS, 0, "M optimizer/new.m: not in this checkpoint\n",
	  CKPT "no tensor optimizer/new.m; SHEAF_LOAD_ZERO fills absent optimizer state with zeros",
	  { 0 } },
	{ ONLY_SAVED, 0, "I model/a: SHEAF_SLICE_SAVE_ONLY\n", NULL,
	  { .loaded = 2, .bytes = 212, .ignored = 1 } },
	{ MASTER, SHEAF_LOAD_DERIVE, "D master_weights/b: cast from the model\n", NULL,
	  { .loaded = 3, .bytes = 308, .derived = 1 } },
	{ MASTER, 0, "M master_weights/b: not in this checkpoint\n",
		CKPT "no tensor master_weights/b; SHEAF_LOAD_DERIVE makes master weights from the "
		"model",
	  { 0 } },
};

static void counts(const struct sheaf_report *got, const struct sheaf_report *want)
{
	CHECK_INT(got->loaded, want->loaded);
	CHECK_INT(got->bytes, want->bytes);
	CHECK_INT(got->missing, want->missing);
	CHECK_INT(got->mismatched, want->mismatched);
	CHECK_INT(got->unexpected, want->unexpected);
	CHECK_INT(got->converted, want->converted);
	CHECK_INT(got->derived, want->derived);
	CHECK_INT(got->ignored, want->ignored);
	CHECK_INT(got->zeroed, want->zeroed);
	CHECK_INT(got->unverified, want->unverified);
	CHECK_INT(got->files, 2);
	CHECK_INT(got->step, 7);
	CHECK_INT(got->memory, 0);
	CHECK_INT(got->memory_bytes, 0);
	CHECK_INT(got->peers, 0);
	CHECK_INT(got->passed, 0);
	CHECK_INT(got->retries, 0);
	CHECK_INT(got->findings, 0);
	CHECK_INT(got->net_bytes, 0);
	CHECK_INT(got->node_bytes, 0);
}

TEST(each_item_and_number_is_told)
{
	struct simdisk *disk = saved(1);

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct play p = hands_play(disk, 1, held);

		p.variant = rows[i].variant;
		p.flags = rows[i].flags;
		if (rows[i].sentence) {
			CHECK_RC(hands_load(&p), SHEAF_ELAYOUT, &p.err);
			CHECK_STR(p.err.msg, rows[i].sentence);
			CHECK_INT(p.wrong, 0);
		} else {
			LOADED(p);
			counts(&p.report, &rows[i].want);
		}
		CHECK_STR(p.told, rows[i].told);
	}
	simdisk_free(disk);
}

TEST(patterns_are_told_where_they_match_and_hide_what_nobody_holds)
{
	static const char *const patterns[] = { "model/b*", "optimizer/a.m", NULL };
	struct simdisk *disk = saved(1);
	struct play p = hands_play(disk, 1, held);

	p.opts.ignore = patterns;
	p.variant = WITHOUT;
	CHECK_RC(hands_load(&p), 0, &p.err);
	CHECK_STR(p.told, "I optimizer/a.m: ignored by pattern\n");
	counts(&p.report, &(struct sheaf_report){ .loaded = 1, .bytes = 96, .ignored = 1 });
	simdisk_free(disk);
}

/* Eleven beside the first, and then only that there are more. */
TEST(absent_names_are_told_a_dozen_at_a_time)
{
	struct simdisk *disk = saved(1);

	for (int n = 1; n <= 14; n++) {
		struct play p = hands_play(disk, 1, held);
		char want[500] = CKPT "no tensor model/n00; check its name, or set "
			"SHEAF_SLICE_OPTIONAL if it may be absent";

		for (int i = 1; i < n && i < 12; i++)
			snprintf(want + strlen(want), 40, "%s model/n%02d",
			         i == 1 ? "; also" : ",", i);
		if (n > 12)
			strcat(want, ", ...");
		p.variant = ABSENT + n;
		CHECK_RC(hands_load(&p), SHEAF_ELAYOUT, &p.err);
		CHECK_STR(p.err.msg, want);
		CHECK_INT(hands_told(&p, 'M'), n);
	}
	simdisk_free(disk);
}

/* ---- what could not be proved as a whole ---- */

static void rows_1_and_2(struct hand *h)
{
	struct sheaf_slice *s = weight(h, "a", SHEAF_F32, 4);

	s->start[0] = 1;
	s->count[0] = 2;
	weight(h, "b", SHEAF_F32, 8);
}

TEST(what_was_read_in_part_or_unchecked_is_told)
{
	struct simdisk *disk = saved(1);
	struct play p = hands_play(disk, 1, rows_1_and_2);

	LOADED(p);
	CHECK_STR(p.told, "");  /* its file is read as a whole */
	CHECK_INT(p.report.unverified, 0);
	p.opts.flags |= SHEAF_RUN_UNVERIFIED;
	LOADED(p);
	CHECK_STR(p.told,
	          "V model/a: read without any check, because of SHEAF_RUN_UNVERIFIED\n"
	          "V model/b: read without any check, because of SHEAF_RUN_UNVERIFIED\n");
	CHECK_INT(p.report.unverified, 2);
	simdisk_free(disk);
}

/* Of more rows than a block has; only its last are read. */
static void large(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "a", SHEAF_F32, 2, (int64_t)1200,
	                                 (int64_t)256);

	if (h->play->variant) {
		s->start[0] = 1199;
		s->count[0] = 1;
	}
}

TEST(of_a_large_tensor_what_was_read_in_part_is_told)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, large);

	SAVED(p);
	p.variant = 1;
	LOADED(p);
	CHECK_STR(p.told, "V model/a: only a part was read: its blocks were checked\n");
	CHECK_INT(p.report.unverified, 1);
	CHECK_INT(p.report.loaded, 1);
	CHECK_INT(p.report.bytes, 1200 * 256 * 4);
	CHECK(p.report.disk_bytes < 1 << 20);
	simdisk_free(disk);
}

/* ---- what a read of one slice says ---- */

#define MODEL "run/checkpoint-7/model-00001-of-00001.safetensors"
static int reads(struct hand *h)
{
	static float got[64];
	static const struct {
		const char *name;
		int64_t rows, dtype;
		enum simdisk_kind kind;         /* of what fails; 0: nothing */
		int code;
		const char *sentence;
	} asked[] = {
		{ "a", 4, SHEAF_F32, 0, 0, NULL },
		{ "none", 4, SHEAF_F32, 0, SHEAF_ELAYOUT, CKPT "no tensor model/none" },
		{ "a", 5, SHEAF_F32, 0, SHEAF_ELAYOUT,
		  "model/a: shape [4, 6] is stored, [5, 6] was asked for; " OTHER_MODEL },
		{ "a", 4, SHEAF_I32, 0, SHEAF_ELAYOUT,
		  "model/a: F32 is stored and cannot be converted to I32" },
		{ "a", 4, SHEAF_F32, SIMDISK_PREAD, SHEAF_EIO, MODEL ": reading 4" },
		{ "a", 4, SHEAF_F32, SIMDISK_OPEN, SHEAF_EIO, MODEL ": Permission denied" },
		{ "a", 4, SHEAF_F32, SIMDISK_FSTAT, SHEAF_EIO, MODEL ": Permission denied" },
	};

	for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++)
		for (int awake = 0; awake < 2; awake++) {
			struct sheaf_slice s = { .size = sizeof(s), .name = asked[i].name,
				.dtype = (int32_t)asked[i].dtype, .ndim = 2,
				.shape = { asked[i].rows, 6 }, .count = { asked[i].rows, 6 },
				.data = got };
			struct sheaf_checkpoint *step = NULL;

			CHECK_RC(shf_step_open(&step, h->run, 7, &h->err), 0, &h->err);
			if (asked[i].kind)
				simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = 1,
					.error = EACCES, .always = true, .kind = asked[i].kind,
					.name = "model-" });
			if (awake)
				(void)shf_step_wake(step, &h->err);
			CHECK_RC(shf_step_read(step, &s, &h->err), asked[i].code, &h->err);
			if (asked[i].sentence)
				CHECK(strncmp(h->err.msg, asked[i].sentence,
				              strlen(asked[i].sentence)) == 0);
			simdisk_faults_clear(h->play->disk);
			shf_step_put(step);
		}
	return 0;
}

TEST(a_read_of_one_slice_says_what_is_the_matter)
{
	struct simdisk *disk = saved(1);
	struct play p = hands_play(disk, 1, NULL);

	CHECK_RC(hands_run(&p, reads, false), 0, &p.err);
	simdisk_free(disk);
}

/* Of a small file all tensors lie in one block; the one that is not what it was is named, also
 * where another is read. */
static int reads_b(struct hand *h)
{
	static float got[48];
	struct sheaf_slice s = { .size = sizeof(s), .name = "b", .dtype = SHEAF_F32, .ndim = 2,
		.shape = { 8, 6 }, .count = { 8, 6 }, .data = got };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	rc = rc < 0 ? rc : shf_step_read(step, &s, &h->err);
	shf_step_put(step);
	return rc;
}

TEST(the_tensor_that_changed_in_a_block_is_named)
{
	static const char *const who[] = { "(model/a)", "(model/b)", "(header)" };
	struct simdisk *disk = saved(1);
	size_t n;

	free(simdisk_get(disk, MODEL, &n));
	for (int i = 0; i < 3; i++) {
		/* The tensors are the last of it: of 96 and of 192 bytes, on pages or not. */
		uint8_t *bytes = simdisk_get(disk, MODEL, &n);
		uint64_t header = 8, b = n - 192, a;

		for (int k = 0; k < 8; k++)
			header += (uint64_t)bytes[k] << 8 * k;
		a = header + (b - header > 96 ? 0 : b - header - 96);
		free(bytes);
		CHECK_INT(simdisk_flip(disk, MODEL, 8 * (i == 0 ? a : i == 1 ? b : 20)), 0);
		for (int loads = 0; loads < 2; loads++) {
			struct play p = hands_play(disk, 1, held);

			CHECK_RC(loads ? hands_load(&p) : hands_run(&p, reads_b, false),
			         SHEAF_ECORRUPT, &p.err);
			CHECK(strncmp(p.err.msg, MODEL ": block 0 at byte 0 has checksum ",
			              sizeof(MODEL) + 32) == 0);
			CHECK(strstr(p.err.msg, who[i]) != NULL);
		}
		CHECK_INT(simdisk_flip(disk, MODEL, 8 * (i == 0 ? a : i == 1 ? b : 20)), 0);
	}
	simdisk_free(disk);
}

/* ---- of several ranks ---- */

static void rows_of_one(struct hand *h)
{
	hand_cut(weight(h, "a", SHEAF_F32, 4), 0, h->rank, h->ranks);
}

TEST(what_ranks_hold_together_is_counted_once)
{
	static const int32_t nodes[] = { 1, 1, 2 };
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 3, rows_of_one);

	SAVED(p);
	for (int k = 0; k < 2; k++) {
		p.nodes = k ? nodes : NULL;
		p.flags = SHEAF_LOAD_STRICT;
		LOADED(p);
		CHECK_STR(p.told, "");
		CHECK_INT(p.report.loaded, 1);
		CHECK_INT(p.report.bytes, 96);
		CHECK_INT(p.report.files, 1);
		CHECK_INT(p.report.held, 96);
		CHECK_INT(p.report.node_bytes, 48);
	}
	simdisk_free(disk);
}

static struct sheaf_stat seen[64];
static int seen_n;

static int progress(void *arg, const struct sheaf_stat *stat)
{
	(void)arg;
	if (seen_n < 64)
		seen[seen_n++] = *stat;
	return 0;
}

TEST(a_load_tells_how_far_it_is)
{
	struct simdisk *disk = saved(1);
	struct play p = hands_play(disk, 1, held);

	p.opts.progress = progress;
	seen_n = 0;
	LOADED(p);
	CHECK(seen_n > 0 && seen_n < 64);
	for (int i = 0; i < seen_n; i++)
		CHECK_INT(seen[i].phase, 4);
	CHECK_INT(seen[seen_n - 1].held, p.report.disk_bytes);
	CHECK_INT(seen[seen_n - 1].size, sizeof(struct sheaf_stat));
	simdisk_free(disk);
}

static int32_t ends_in;         /* the phase whose first report ends the call */

static int end_the_call(void *arg, const struct sheaf_stat *stat)
{
	(void)arg;
	return stat->phase == ends_in;
}

static int verify_act(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, h->play->step, &h->err);

	if (rc == 0)
		rc = shf_step_verify(step, &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

TEST(opts_progress_ends_a_load_a_verify_and_a_save_on_all_ranks)
{
	struct simdisk *disk = saved(2);
	struct play p = hands_play(disk, 2, held);

	p.opts.progress = end_the_call;
	ends_in = SHEAF_PHASE_READING;
	SAID(hands_load(&p), SHEAF_EFAILED, "opts.progress ended the load", &p.err);
	ends_in = SHEAF_PHASE_VERIFYING;
	SAID(hands_run(&p, verify_act, true), SHEAF_EFAILED, "opts.progress ended the verification",
	     &p.err);
	p.step = 8;
	ends_in = SHEAF_PHASE_WRITTEN;
	simdisk_set_task_steps(disk, 0);
	SAID(hands_save(&p), SHEAF_EFAILED, "opts.progress ended the call", &p.err);
	CHECK(!simdisk_exists(disk, "run/checkpoint-8"));
	p.step = 9;
	ends_in = -1;
	SAVED(p);
	LOADED(p);
	simdisk_free(disk);
}
