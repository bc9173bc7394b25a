/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of DeepSpeed are exported as universal ones. All families load from what is written,
 * in any layout; files in folders are whole or not there after each failure and cut; and what
 * DeepSpeed could not go on from is refused.
 *
 *   test_export_universal [--long] [--seed N] [part of a test's name ...] */
#include "dspdfile.h"
#include "export_format.h"
#include "hands.h"

#define main t_main
#include "t.h"
#undef main
#include "foreign_plays.h"
#include "megatronfile.h"
#include "rewritten.h"
#include "save_attach.h"

#define FROM "in/global_step9"
#define TO "out/ds"
#define FOLDER TO "/global_step9_universal"
#define LEFT TO ".partial/global_step9"

static const struct dspd_param params[] = {
	{ "w", 0, 2, { 11, 7 } }, { "v", 0, 1, { 13 } }, { "one", 1, 1, { 1 } },
};
enum { N = sizeof(params) / sizeof(params[0]) };

static struct shf_export_opts how;
static const char *from = FROM, *to = TO;       /* what is exported, and where */

static void whole(void)
{
	how = (struct shf_export_opts){ .format = shf_export_format("deepspeed-universal"),
		.prefix = "", .file_bytes_max = UINT64_C(5000000000), .memory_bytes = 1,
		.beta1 = 0.5, .beta2 = 0.75 };
}

static int export(struct sheaf_checkpoint *step, struct sheaf_report *report,
                  struct sheaf_error *err)
{
	return shf_step_export(step, to, &how, report, err);
}

static struct written export_by(struct simdisk *disk, const struct shf_sys *sys)
{
	return write_by(disk, sys, from, export);
}

static struct written exported(struct simdisk *disk)
{
	return export_by(disk, process(disk));
}

/* Returns a disk with a save that has the first n parameters. */
static struct simdisk *saved(enum simdisk_model model, int stage, int n)
{
	const struct dspd_plan p = { stage, 2, params, n, DSPD_SOUND, 0, 0, 0, 0 };
	struct simdisk *disk = simdisk_new(5, model);

	dspd_save(disk, FROM, &p);
	CHECK_INT(simdisk_put(disk, "out/other", "", 0), 0);
	simdisk_settle(disk);
	whole();
	from = FROM;
	to = TO;
	return disk;
}

static uint64_t wanted(struct simdisk *base)
{
	return hash_of(base, TO, exported);
}

/* ---- what is written ---- */

static void held(struct hand *h)
{
	dspd_hold(h, params, N);
}

TEST(all_families_load_in_any_layout)
{
	for (int ranks = 1; ranks <= 2; ranks++) {
		struct simdisk *disk = saved(SIMDISK_EXT4, 1, N);
		struct written e = exported(disk);
		struct play p = foreign_play(disk, TO, ranks, held);

		CHECK_RC(e.rc, 0, &e.err);
		p.variant = ranks;
		p.flags = 0;            /* the numbers of updates are in it, too */
		LOADED(p);
		simdisk_free(disk);
	}
}

/* Returns where the text is in a file, which it must be. */
static const char *found_in(const char *bytes, size_t n, const void *text, size_t text_n)
{
	const char *at = memmem(bytes, n, text, text_n);

	CHECK(at != NULL);
	return at;
}

TEST(step_and_betas_are_where_deepspeed_reads_them)
{
	static const char betas[] = "G\x3f\xe0\0\0\0\0\0\0G\x3f\xe8\0\0\0\0\0\0\x86";
	struct simdisk *disk = saved(SIMDISK_EXT4, 1, N);
	struct written e = exported(disk);
	const float seven = 7;          /* as dspdfile.c has it */
	char *bytes;
	size_t n;

	CHECK_RC(e.rc, 0, &e.err);
	bytes = simdisk_get(disk, FOLDER "/zero/one/step.pt", &n);
	CHECK(bytes != NULL);
	CHECK_INT((found_in(bytes, n, &seven, 4) - bytes) % 64, 0);
	free(bytes);
	bytes = simdisk_get(disk, FOLDER "/zero/optimizer_state.pt", &n);
	CHECK(bytes != NULL);
	found_in(bytes, n, betas, sizeof(betas) - 1);
	found_in(bytes, n, "\x04\0\0\0step", 8);
	free(bytes);
	bytes = simdisk_get(disk, TO "/latest_universal", &n);
	CHECK(bytes != NULL);
	CHECK_INT(n, strlen("global_step9_universal"));
	CHECK(memcmp(bytes, "global_step9_universal", n) == 0);
	free(bytes);
	simdisk_free(disk);
	disk = saved(SIMDISK_EXT4, 1, N);
	how.adam_step = 19;
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	bytes = simdisk_get(disk, FOLDER "/zero/w/step.pt", &n);
	found_in(bytes, n, &(const float){ 19 }, 4);
	free(bytes);
	simdisk_free(disk);
}

TEST(what_was_exported_says_its_step_and_betas_and_is_exported_again)
{
	struct simdisk *disk = saved(SIMDISK_EXT4, 1, N);
	struct written e = exported(disk);
	struct sheaf_error err;
	char note[400];

	CHECK_RC(e.rc, 0, &e.err);
	CHECK_RC(foreign_opens(disk, TO, "adam.step", note, &err), 0, &err);
	CHECK_STR(note, "7");
	CHECK_RC(foreign_opens(disk, TO, "optimizer.param_groups.0.betas", note, &err), 0, &err);
	CHECK_STR(note, "[0.5, 0.75]");
	CHECK_RC(foreign_opens(disk, TO, "optimizer.param_groups.1.betas", note, &err), 0, &err);
	CHECK_STR(note, "");
	how.beta1 = how.beta2 = 0;
	from = TO;
	to = "out/again";
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, "out/again/global_step9_universal/zero") ==
	      simdisk_hash(disk, FOLDER "/zero"));
	simdisk_free(disk);
}

TEST(the_folder_has_the_number_that_another_program_says)
{
	static const struct megatron_tensor all[] = {
		{ "w", "model", "w", SHEAF_BF16, { 3, 4, 5 }, { 1, 1, 1 }, false },
		{ "optimizer.state.fp32_param.w", "master_weights", "w", SHEAF_F32, { 3, 4, 5 },
		  { 1, 1, 1 }, false },
		{ "optimizer.state.exp_avg.w", "optimizer", "w/moment1_0", SHEAF_F32, { 3, 4, 5 },
		  { 1, 1, 1 }, false },
		{ "optimizer.state.exp_avg_sq.w", "optimizer", "w/moment2_0", SHEAF_F32,
		  { 3, 4, 5 }, { 1, 1, 1 }, false },
	};
	struct simdisk *disk = saved(SIMDISK_EXT4, 1, 1);
	struct written e;

	megatron_dist(disk, "in/megatron", all, 4, MEGATRON_SOUND);     /* its iteration is 7 */
	from = "in/megatron";
	how.adam_step = 3;
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_exists(disk, TO "/global_step7_universal/zero/w/fp32.pt"));
	simdisk_free(disk);
}

/* ---- a step of a run ---- */

static const struct unfit {     /* what is wrong with the step, and what is said */
	const char *groups;             /* param_groups.json; NULL: there is none */
	int32_t dtype;                  /* of weight v, which has a master */
	bool master, first, second;     /* whether weight v has a master and moments */
	const char *family, *name;      /* of one tensor more; NULL: there is none */
	const char *says;               /* NULL: it is exported */
} steps[] = {
#define GROUPS(b) "{\"param_groups\": [{\"params\": [\"w\"], \"betas\": [0.5, 0.75]}, " \
	"{\"params\": [\"v\"], \"lr\": 1e-3, \"betas\": [" b "]}]}\n"
	{ GROUPS("0.5, 0.75"), SHEAF_BF16, true, true, true, "averages", "w", NULL },
	{ GROUPS("0.5, 0.75"), SHEAF_BF16, true, true, true, "optimizer", "v/beta1_pow_acc_0",
	  NULL },
	{ GROUPS("0.5, 0.5"), SHEAF_BF16, true, true, true, NULL, NULL, "need the betas of AdamW" },
	{ NULL, SHEAF_BF16, true, true, true, NULL, NULL, "need the betas of AdamW" },
	{ GROUPS("0.5, 0.75"), SHEAF_BF16, false, true, true, NULL, NULL,
	  "tensor v: has moments, but is not F32 and has no master weights" },
	{ GROUPS("0.5, 0.75"), SHEAF_BF16, true, true, false, NULL, NULL,
	  "tensor v/moment1_0: is a state of a parameter that has not both moments of Adam" },
	{ GROUPS("0.5, 0.75"), SHEAF_BF16, true, false, false, NULL, NULL,
	  "tensor v: is a master weight without moments" },
	{ GROUPS("0.5, 0.75"), SHEAF_BF16, true, true, true, "optimizer", "x/moment1_0",
	  "tensor x/moment1_0: is a state of the optimizer for a parameter that has no weights" },
	{ GROUPS("0.5, 0.75"), SHEAF_BF16, true, true, true, "optimizer", "state",
	  "tensor state: is a state of the optimizer that DeepSpeed's Adam does not have" },
	{ GROUPS("0.5, 0.75"), SHEAF_BF16, true, true, true, "optimizer", "v/momentum",
	  "tensor v/momentum: is a state of the optimizer that DeepSpeed's Adam does not have" },
	{ GROUPS("0.5, 0.75"), SHEAF_BF16, true, true, true, "optimizer", "v/step",
	  "tensor v/step: is the number of updates of a parameter, but not one F32" },
	{ GROUPS("0.5, 0.75"), SHEAF_BF16, true, true, true, "master_weights", "buffer",
	  "tensor buffer: is a master weight without moments" },
	{ GROUPS("broken"), SHEAF_BF16, true, true, true, NULL, NULL,
	  "checkpoint-2/param_groups.json: " },
};
static const struct unfit *unfit;

static void hold_step(struct hand *h)
{
	hand_add(h, "model", "w", SHEAF_F32, 2, 11, 7);
	hand_add(h, "optimizer", "w/moment1_0", SHEAF_F32, 2, 11, 7);
	hand_add(h, "optimizer", "w/moment2_0", SHEAF_F32, 2, 11, 7);
	hand_add(h, "model", "v", unfit->dtype, 1, 13);
	if (unfit->master)
		hand_add(h, "master_weights", "v", SHEAF_F32, 1, 13);
	if (unfit->first)
		hand_add(h, "optimizer", "v/moment1_0", SHEAF_F32, 1, 13);
	if (unfit->second)
		hand_add(h, "optimizer", "v/moment2_0", SHEAF_F32, 1, 13);
	hand_add(h, "model", "buffer", SHEAF_I64, 1, 3);
	if (unfit->name && !h->play->path)
		hand_add(h, unfit->family, unfit->name, SHEAF_F32, 1, 13);
}

static void attach(struct hand *h, struct sheaf_save *save)
{
	struct sheaf_error err;

	(void)h;
	CHECK_RC(shf_save_note(save, "adam.step", "7", &err), 0, &err);
	if (unfit->groups)
		CHECK_RC(shf_save_attach(save, "param_groups.json", unfit->groups,
		                         strlen(unfit->groups), &err), 0, &err);
}

TEST(a_step_of_a_run_is_exported_or_refused_by_what_is_wrong)
{
	for (unfit = steps; unfit < steps + sizeof(steps) / sizeof(steps[0]); unfit++) {
		struct simdisk *disk = saved(SIMDISK_EXT4, 1, 1);
		struct play p = hands_play(disk, 1, hold_step);
		struct written e;

		p.step = 2;
		p.during = attach;
		SAVED(p);
		from = "run/checkpoint-2";
		how.beta1 = how.beta2 = 0;
		e = exported(disk);
		if (!unfit->says) {
			CHECK_RC(e.rc, 0, &e.err);
			p = foreign_play(disk, TO, 1, hold_step);
			p.flags = 0;
			LOADED(p);
			CHECK(simdisk_exists(disk, TO "/global_step2_universal/zero/w/step.pt"));
		} else if (e.rc >= 0 || !strstr(e.err.msg, unfit->says)) {
			fail_msg("want '%s', got %d: %s", unfit->says, e.rc, e.err.msg);
		}
		CHECK(!simdisk_exists(disk, TO ".partial"));
		simdisk_free(disk);
	}
}

/* ---- what is refused ---- */

static void refused(struct simdisk *disk, const char *why)
{
	struct written e = exported(disk);

	if (e.rc != SHEAF_EINVAL || !strstr(e.err.msg, why))
		fail_msg("want '%s', got %d: %s", why, e.rc, e.err.msg);
	CHECK(!simdisk_exists(disk, TO));
	CHECK(!simdisk_exists(disk, TO ".partial"));
	simdisk_free(disk);
}

static void hold_sgd(struct hand *h)
{
	hand_add(h, "model", "w", SHEAF_F32, 2, 11, 7);
	if (h->play->variant)
		hand_add(h, "optimizer", "w/momentum_buffer", SHEAF_F32, 2, 11, 7);
}

TEST(a_step_without_moments_of_adam_is_refused_by_what_it_has)
{
	static const char *const says[] = { "checkpoint-2: has no moments of Adam", "tensor "
		"w/momentum_buffer: is a state of the optimizer that DeepSpeed's Adam does not "
		"have" };

	for (int variant = 0; variant < 2; variant++) {
		struct simdisk *disk = saved(SIMDISK_EXT4, 1, 1);
		struct play p = hands_play(disk, 1, hold_sgd);

		p.step = 2;
		p.variant = variant;
		SAVED(p);
		from = "run/checkpoint-2";
		refused(disk, says[variant]);
	}
}

TEST(what_deepspeed_cannot_go_on_from_is_refused)
{
	struct simdisk *disk = saved(SIMDISK_EXT4, 1, N);

	how.beta1 = how.beta2 = 0;
	refused(disk, "its moments need the betas of AdamW; give them");
	disk = saved(SIMDISK_EXT4, 1, N);
	how.family = how.as = "model";
	refused(disk, "write all families (how.all_families, --all)");
}

/* ---- each call, each allocation, each cut ---- */

static void check_whole(struct simdisk *disk, const void *want)
{
	/* A mark that could not be deleted does no harm. */
	(void)simdisk_remove(disk, TO "/.sheaf-export");
	CHECK(simdisk_hash(disk, TO) == *(const uint64_t *)want);
}

TEST(each_call_of_an_export_may_fail)
{
	struct simdisk *base = saved(SIMDISK_EXT4, 1, 1);
	const uint64_t want = wanted(base);
	const struct rewriting r = { export_by, TO, check_whole, 15, &want };

	each_call_may_fail(base, &r);
	simdisk_free(base);
}

TEST(each_allocation_of_an_export_may_fail)
{
	struct simdisk *base = saved(SIMDISK_EXT4, 1, N);
	const uint64_t want = wanted(base);
	const struct rewriting r = { export_by, TO, check_whole, 10, &want };

	each_allocation_may_fail(base, &r);
	simdisk_free(base);
}

/* What another export has left is taken away, also in folders, and finished files are kept. */
TEST(an_export_that_was_killed_is_continued)
{
	struct simdisk *base = saved(SIMDISK_EXT4, 1, N), *disk = simdisk_twin(base);
	uint64_t want = wanted(base);
	const struct shf_sys *sys;
	struct written e;

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_RENAME,
	                                             .how = SIMDISK_KILL, .name = "ds" });
	(void)exported(disk);
	CHECK_INT(simdisk_fired(disk), 1);
	simdisk_faults_clear(disk);
	CHECK(!simdisk_exists(disk, TO));
	CHECK_INT(simdisk_put(disk, LEFT "_universal/zero/old/fp32.pt", "x", 1), 0);
	CHECK_INT(simdisk_put(disk, LEFT "_universal/zero/w/part-a", "x", 1), 0);
	CHECK_INT(simdisk_put(disk, LEFT "/more/deep", "x", 1), 0);
	sys = process(disk);
	CHECK_INT(shf_sys_unlink(sys, SHF_CWD, LEFT "_universal/zero/v/step.pt", false), 0);
	simdisk_kill(disk, sys);
	e = exported(disk);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(simdisk_hash(disk, TO) == want);
	CHECK(e.report.held > 0 && e.report.held < 1000);      /* step.pt alone */
	simdisk_free(disk);
	simdisk_free(base);
}

static const char *judge(const void *story, struct simdisk *disk, int64_t cut, char why[300])
{
	return judge_hash(story, disk, cut, why, TO, exported);
}

static void cuts(enum simdisk_model model)
{
	struct simdisk *disk = saved(model, 1, 1);
	struct story story = { .was = wanted(disk) };
	struct written e = exported(disk);

	CHECK_RC(e.rc, 0, &e.err);
	hunt_cuts(disk, &story, 1, judge);
	simdisk_free(disk);
}

TEST(an_export_survives_every_cut_strict)
{
	cuts(SIMDISK_STRICT);
}

TEST(an_export_survives_every_cut_ext4)
{
	cuts(SIMDISK_EXT4);
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
