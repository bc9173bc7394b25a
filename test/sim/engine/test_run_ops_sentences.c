/* SPDX-License-Identifier: Apache-2.0 */
/* The whole sentences of operations on a run that are refused, the log of those that are not, and
 * the state of the handle afterwards. */
#include "hands.h"
#include <errno.h>
#include <stdlib.h>
#include "run.h"
#include "run_salvage.h"
#include "simcore.h"
#include "prune_task.h"
#include "scrub_run.h"
#include "t.h"
#include "save_end.h"
#include "step_copy.h"
#include "sheaf-admin.h"

static char log_[4000];

static void hear(void *arg, int level, const char *line)
{
	size_t n = strlen(log_);

	(void)arg;
	snprintf(log_ + n, sizeof(log_) - n, "%d %s\n", level, line);
}

static void row(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, (int64_t)4, (int64_t)6), 0, h->rank,
	         h->ranks);
}

/* Steps 1 to 4. */
static struct simdisk *four(int ranks)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, ranks, row);

	for (p.step = 1; p.step <= 4; p.step++)
		SAVED(p);
	return disk;
}

static bool has(struct simdisk *disk, int step)
{
	char path[60];

	snprintf(path, sizeof(path), "run/checkpoint-%d", step);
	return simdisk_exists(disk, path);
}

/* ---- sentences ---- */

struct deed {
	char what;                      /* Rewind, Mark, Prune, Dry prune */
	int64_t step, other;            /* other: of rank 1 */
	int32_t mark, other_mark;
	int code;
	const char *sentence;
	uint64_t flags;                 /* of the run */
	bool saving;                    /* step 9 is under way */
};
static const struct deed deeds[] = {
	{ .what = 'R', .step = 9, .other = 9, .code = SHEAF_ENOENT,
	  .sentence = "run/checkpoint-9: No such file or directory" },
	{ .what = 'R', .step = -1, .other = -1, .code = SHEAF_EINVAL,
	  .sentence = "step -1 is negative" },
	{ .what = 'R', .step = 1, .other = 3, .code = SHEAF_EINVAL,
	  .sentence = "run: rewind: ranks pass different arguments (1 and 3)" },
	{ .what = 'R', .step = 1, .other = 1, .code = SHEAF_EINVAL, .saving = true,
	  .sentence = "run: step 9 is being saved; commit or free that save before a rewind" },
	{ .what = 'R', .step = 1, .other = 1, .code = SHEAF_EINVAL, .flags = SHEAF_RUN_READONLY,
	  .sentence = "run: a rewind needs a run that is open for writing; open it without "
		"SHEAF_RUN_READONLY" },
	{ .what = 'M', .step = -1, .other = -1, .mark = SHEAF_MARK_KEEP,
	  .other_mark = SHEAF_MARK_KEEP, .code = SHEAF_EINVAL, .sentence = "step -1 is negative" },
	{ .what = 'M', .step = 1, .other = 1, .mark = SHEAF_MARK_UNREAD,
	  .other_mark = SHEAF_MARK_UNREAD, .code = SHEAF_EINVAL,
	          .sentence = "mark is 3; use SHEAF_MARK_KEEP, "
	  "SHEAF_MARK_BAD or SHEAF_MARK_NONE" },
	{ .what = 'M', .step = 2, .other = 1, .mark = SHEAF_MARK_KEEP,
	  .other_mark = SHEAF_MARK_KEEP, .code = SHEAF_EINVAL,
	          .sentence = "run: mark: ranks pass different arguments (1 and 2)" },
	{ .what = 'M', .step = 1, .other = 1, .mark = SHEAF_MARK_KEEP,
	  .other_mark = SHEAF_MARK_BAD, .code = SHEAF_EINVAL,
	  .sentence = "run: mark: ranks pass different arguments (1 and 2)" },
	{ .what = 'M', .step = 9, .other = 9, .mark = SHEAF_MARK_KEEP,
	  .other_mark = SHEAF_MARK_KEEP, .code = SHEAF_ENOENT,
	          .sentence = "run/checkpoint-9: No such file or directory" },
	{ .what = 'M', .step = 1, .other = 1, .mark = SHEAF_MARK_KEEP,
	  .other_mark = SHEAF_MARK_KEEP, .code = SHEAF_EINVAL, .flags = SHEAF_RUN_READONLY,
	  .sentence = "run: a mark needs a run that is open for writing; open it without "
		"SHEAF_RUN_READONLY" },
	{ .what = 'P', .step = 0, .other = 1, .code = SHEAF_EINVAL,
	  .sentence = "run: prune: ranks pass different arguments (0 and 1)" },
	{ .what = 'P', .code = SHEAF_EINVAL, .flags = SHEAF_RUN_READONLY,
	  .sentence = "run: pruning needs a run that is open for writing; open it without "
	              "SHEAF_RUN_READONLY" },
	{ .what = 'R', .step = 0, .other = 0, .code = SHEAF_ENOENT,
	  .sentence = "run/checkpoint-0: No such file or directory" },
	{ .what = 'M', .step = 0, .other = 0, .mark = SHEAF_MARK_BAD,
	  .other_mark = SHEAF_MARK_BAD, .code = SHEAF_ENOENT,
	          .sentence = "run/checkpoint-0: No such file or directory" },
};

static int do_deed(struct hand *h)
{
	const struct deed *d = &deeds[h->play->variant];
	struct sheaf_save *save = NULL;
	int64_t step = h->rank ? d->other : d->step;
	int rc = 0;

	if (d->saving)
		rc = shf_save_begin(&save, h->run, 9, h->state, NULL, &h->err);
	if (rc == 0)
		rc = d->what == 'R' ? shf_run_rewind(h->run, step, &h->err)
		   : d->what == 'M' ? shf_run_mark(h->run, step, h->rank ? d->other_mark : d->mark,
		                                   &h->err)
		   : shf_run_prune(h->run, step, NULL, NULL, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(each_refusal_has_its_whole_sentence_on_all_ranks)
{
	struct simdisk *disk = four(2);

	for (size_t i = 0; i < sizeof(deeds) / sizeof(deeds[0]); i++) {
		struct play p = hands_play(disk, 2, row);

		p.variant = (int)i;
		p.opts.flags = deeds[i].flags;
		CHECK_RC(hands_run(&p, do_deed, true), deeds[i].code, &p.err);
		if (!strstr(p.err.msg, deeds[i].sentence))
			CHECK_STR(p.err.msg, deeds[i].sentence);
	}
	for (int step = 1; step <= 4; step++)
		CHECK(has(disk, step));
	simdisk_free(disk);
}

static int after_close(struct hand *h)
{
	struct sheaf_run *run = h->run;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;

	shf_run_get(run);
	shf_run_close(run);
	CHECK_INT(shf_run_prune(run, true, NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_STR(err.msg, "the run is closed");
	CHECK_INT(shf_run_prune(run, false, NULL, NULL, &err), SHEAF_EINVAL);
	CHECK_STR(err.msg, "the run is closed");
	CHECK_INT(shf_run_rewind(run, 1, &err), SHEAF_EINVAL);
	CHECK_STR(err.msg, "run: a rewind needs a run that is open for writing; open it without "
	          "SHEAF_RUN_READONLY");
	CHECK_INT(shf_run_mark(run, 1, SHEAF_MARK_KEEP, &err), SHEAF_EINVAL);
	CHECK_STR(err.msg, "run: a mark needs a run that is open for writing; open it without "
	          "SHEAF_RUN_READONLY");
	CHECK_INT(shf_step_open(&step, run, 1, &err), SHEAF_EINVAL);
	CHECK_STR(err.msg, "the run is closed");
	CHECK_INT(shf_run_prune(run, true, NULL, NULL, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_run_rewind(run, 1, NULL), SHEAF_EINVAL);
	CHECK_INT(shf_run_mark(run, 1, SHEAF_MARK_KEEP, NULL), SHEAF_EINVAL);
	h->run = run;
	return 0;
}

TEST(a_run_that_is_closed_does_nothing_more)
{
	struct simdisk *disk = four(1);
	struct play p = hands_play(disk, 1, row);

	CHECK_RC(hands_run(&p, after_close, true), 0, &p.err);
	simdisk_free(disk);
}

/* ---- steps that are opened ---- */

static int opens_another(struct hand *h)
{
	static const int64_t steps[][2] = { { -2, -2 }, { 1, 2 }, { 9, 9 } };
	struct sheaf_checkpoint *step = NULL;

	return shf_step_open(&step, h->run, steps[h->play->variant][h->rank], &h->err);
}

TEST(a_step_is_opened_by_one_number_that_is_there)
{
	static const struct {
		int code;
		const char *sentence;
	} want[] = { { SHEAF_EINVAL, "step -2 is negative" },
		{ SHEAF_EINVAL, "ranks pass different steps to sheaf_checkpoint_open: 1 and 2" },
		{ SHEAF_ENOENT, "run: no step 9 (sheaf ls lists what there is)" } };
	struct simdisk *disk = four(2);

	for (int i = 0; i < 3; i++) {
		struct play p = hands_play(disk, 2, row);

		p.variant = i;
		CHECK_RC(hands_run(&p, opens_another, false), want[i].code, &p.err);
		if (!strstr(p.err.msg, want[i].sentence))
			CHECK_STR(p.err.msg, want[i].sentence);
	}
	simdisk_free(disk);
}

static int opens_four(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 4, &h->err);

	shf_step_put(step);
	return rc;
}

TEST(an_index_that_is_gone_is_logged_once)
{
	static const char index[] = "run/checkpoint-4/model.safetensors.index.json";
	struct simdisk *disk = four(1);

	for (int gone = 0; gone < 2; gone++)
		for (int ranks = 1; ranks <= 2; ranks++) {
			struct play p = hands_play(disk, ranks, row);

			p.opts.log = hear;
			log_[0] = '\0';
			if (gone && ranks == 1)
				CHECK_INT(simdisk_remove(disk, index), 0);
			CHECK_RC(hands_run(&p, opens_four, false), 0, &p.err);
			CHECK_STR(log_, gone ? "1 run/checkpoint-4/model.safetensors.index.json: "
			          "the index is missing; rebuilt in memory from the file "
			          "headers\n" : "");
		}
	simdisk_free(disk);
}

/* ---- what a handle knows ---- */

static int forgets(struct hand *h)
{
	struct sheaf_run *run = h->run;
	int64_t at = 1 + h->play->variant;
	unsigned was = run->lineage.rewinds;

	run->lineage.loaded = run->lineage.verified.step = run->retain.behind->next.step = at;
	run->lineage.doubtful = 3;
	CHECK_RC(shf_run_rewind(run, 2, &h->err), 0, &h->err);
	CHECK_INT(run->lineage.loaded, at > 2 ? -1 : at);
	CHECK_INT(run->lineage.verified.step, at > 2 ? -1 : at);
	CHECK_INT(run->retain.behind->next.step, at > 2 ? -1 : at);
	CHECK_INT(run->lineage.rewinds, was + 1);
	CHECK_INT(run->lineage.parent, 2);
	CHECK_INT(run->lineage.doubtful, -1);
	CHECK_INT(strlen(run->lineage.parent_session), 32);
	run->retain.behind->next.step = -1;
	run->retain.behind->now.step = at;          /* and nobody reads it */
	CHECK_RC(shf_run_rewind(run, 2, &h->err), 0, &h->err);
	CHECK_INT(run->retain.behind->now.step, at > 2 ? -1 : at);
	run->retain.behind->now.step = -1;
	return 0;
}

/* A second background prune does not wait for the first; a foreground prune then follows it. */
static int prunes_twice(struct hand *h)
{
	struct sheaf_run *run = h->run;
	struct shf_saved newest = { .step = 4 };
	struct shf_prune rules = shf_run_prune_rules(run, &newest, false);

	shf_prune_task_begin(run, &rules, true);
	shf_prune_task_begin(run, &rules, true);
	if (!shf_prune_task_runs(run) || !has(h->play->disk, 1))
		return SHEAF_EBUG;
	shf_prune_task_begin(run, &rules, false);
	return shf_prune_task_runs(run) || has(h->play->disk, 1) || !has(h->play->disk, 4)
	       ? SHEAF_EBUG : 0;
}

TEST(a_prune_behind_is_not_waited_for_but_by_one_that_is_asked_for)
{
	struct simdisk *disk = four(1);
	struct play p = hands_play(disk, 1, row);

	simdisk_set_task_steps(disk, 0);
	p.opts.keep_last = 1;
	CHECK_RC(hands_run(&p, prunes_twice, true), 0, &p.err);
	simdisk_free(disk);
}

static int weighs(struct hand *h)
{
	struct sheaf_run *run = h->run;
	uint64_t was = run->retain.behind->bytes;
	bool all, more;

	run->retain.behind->bytes = UINT64_C(32) << 20;
	all = shf_scrub_run_is_small(run);
	run->retain.behind->bytes++;
	more = shf_scrub_run_is_small(run);
	run->retain.behind->bytes = was;
	return all && !more ? 0 : SHEAF_EBUG;
}

TEST(a_close_waits_until_32_MiB_are_read_again_and_no_longer)
{
	struct simdisk *disk = four(1);
	struct play p = hands_play(disk, 1, row);

	CHECK_RC(hands_run(&p, weighs, true), 0, &p.err);
	simdisk_free(disk);
}

TEST(a_rewind_forgets_what_is_newer_and_nothing_else)
{
	for (int i = 0; i < 3; i++) {
		struct simdisk *disk = four(1);
		struct play p = hands_play(disk, 1, row);

		p.variant = i;
		p.opts.log = hear;
		log_[0] = '\0';
		CHECK_RC(hands_run(&p, forgets, true), 0, &p.err);
		CHECK_STR(log_, "2 run: rewound to step 2, rank 0\n"
		          "2 run: rewound to step 2, rank 0\n");
		CHECK(has(disk, 1) && has(disk, 2) && !has(disk, 3) && !has(disk, 4));
		simdisk_free(disk);
	}
}

static char items[400];

static void item(void *arg, int64_t step, int32_t action, const char *why)
{
	char what = sheaf_prune_action_name(action)[0];
	size_t n = strlen(items);

	(void)arg;
	snprintf(items + n, sizeof(items) - n, "%d %c %s\n", (int)step, what, why);
}

static int prunes(struct hand *h)
{
	int n = shf_run_prune(h->run, h->play->variant, h->rank ? NULL : item, NULL, &h->err);

	CHECK_INT(n, 2);
	CHECK_INT(h->run->lineage.verified.step, h->play->variant ? -1 : 4);
	return n < 0 ? n : 0;
}

TEST(what_a_prune_takes_and_leaves_is_told_and_logged)
{
	struct simdisk *disk = four(2);

	for (int dry = 1; dry >= 0; dry--) {
		struct play p = hands_play(disk, 2, row);

		p.variant = dry;
		p.opts.keep_last = 2;
		p.opts.log = hear;
		log_[0] = items[0] = '\0';
		CHECK_RC(hands_run(&p, prunes, true), 0, &p.err);
		CHECK_STR(items, dry ? "1 r if the newest step is verified as valid\n"
		          "2 r if the newest step is verified as valid\n3 k among the newest\n"
		          "4 k among the newest\n"
		          : "1 r a newer step is verified\n2 r a newer step is verified\n"
		          "3 k among the newest\n4 k among the newest\n");
		CHECK_STR(log_, dry ? "" : "2 run: step 1 pruned: a newer step is verified\n"
		          "2 run: step 2 pruned: a newer step is verified\n");
		CHECK_INT(has(disk, 1), dry);
		CHECK_INT(has(disk, 2), dry);
		CHECK(has(disk, 3) && has(disk, 4));
	}
	simdisk_free(disk);
}

/* ---- a step that goes, or that somebody does not see ---- */

static int opens_hidden(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int v = h->play->variant, rc;

	if (h->rank == 1 - v)
		simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = 1, .error = ENOENT,
			.always = true, .kind = v ? SIMDISK_STAT : SIMDISK_OPEN,
			.name = "checkpoint-4",
			.process = &((struct simproc *)h->sys->host.arg)->sys });
	rc = shf_step_open(&step, h->run, v ? SHEAF_LATEST : 4, &h->err);
	shf_step_put(step);
	return rc;
}

/* ENOENT, to a program, means that it starts afresh. */
TEST(a_step_that_is_seen_and_not_found_is_no_step_that_is_not_there)
{
	static const char *const said[] = {
		"run/checkpoint-4: rank 0 has opened it, but this rank does not see it; check that "
		"all nodes mount the same file system there: No such file or directory",
		"run: step 4, the latest, is listed, but cannot be opened: it is being deleted; "
		"open again" };
	struct simdisk *disk = four(2);

	for (int i = 0; i < 2; i++) {
		struct play p = hands_play(disk, 2, row);

		p.variant = i;
		CHECK_RC(hands_run(&p, opens_hidden, false), SHEAF_EIO, &p.err);
		if (!strstr(p.err.msg, said[i]))
			CHECK_STR(p.err.msg, said[i]);
		CHECK(simdisk_fired(disk) >= 8);        /* it was looked for that often at least */
		simdisk_faults_clear(disk);
	}
	simdisk_free(disk);
}

/* ---- copies ---- */

struct copy {
	const char *to;
	int code;
	const char *sentence;
};
static const struct copy copies[] = {
	{ "other/run", 0, NULL },
	{ "other/run", 0, NULL },       /* is proved where it is */
	{ "", SHEAF_EINVAL, "argument 'dir' is NULL or empty" },
	{ NULL, SHEAF_EINVAL, "argument 'dir' is NULL or empty" },
	{ "run/checkpoint-3", SHEAF_EINVAL,
	  "run/checkpoint-3: is a checkpoint; name the directory of a run" },
	{ "alien", SHEAF_EINVAL, "alien: is run 0123456789abcdef0123456789abcdef, but step 4 is of "
	  "run " },
	{ "same", SHEAF_EEXIST, "same/checkpoint-4: exists, and is another save of this number; "
		"move it away, or copy to another run" },
};

static int copies_step(struct hand *h)
{
	const struct copy *c = &copies[h->play->variant];
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 4, &h->err);

	rc = rc < 0 ? rc : shf_step_copy(step, c->to, &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

TEST(a_copy_goes_into_a_run_of_its_own_or_is_refused_with_its_sentence)
{
	static const char id[] = "sheaf-run 1\n0123456789abcdef0123456789abcdef\n";
	struct simdisk *disk = four(1);
	size_t n, all = 0;
	void *bytes;

	CHECK_INT(simdisk_put(disk, "alien/.sheaf/run", id, sizeof(id) - 1), 0);
	bytes = simdisk_get(disk, "run/.sheaf/run", &n);
	CHECK_INT(simdisk_put(disk, "same/.sheaf/run", bytes, n), 0);
	free(bytes);
	bytes = simdisk_get(disk, "run/checkpoint-3/sheaf.json", &n);
	CHECK_INT(simdisk_put(disk, "same/checkpoint-4/sheaf.json", bytes, n), 0);
	free(bytes);
	free(simdisk_get(disk, "run/checkpoint-4/model-00001-of-00001.safetensors", &n));
	all += n;
	free(simdisk_get(disk, "run/checkpoint-4/model.safetensors.index.json", &n));
	all += n;
	free(simdisk_get(disk, "run/checkpoint-4/sheaf.sums", &n));
	all += n;
	for (size_t i = 0; i < sizeof(copies) / sizeof(copies[0]); i++) {
		struct play p = hands_play(disk, 1, row);

		p.variant = (int)i;
		CHECK_RC(hands_run(&p, copies_step, false), copies[i].code, &p.err);
		if (copies[i].sentence)
			CHECK(strncmp(p.err.msg, copies[i].sentence,
			              strlen(copies[i].sentence)) == 0);
		CHECK_INT(p.report.held, i == 0 ? all : 0);
		CHECK_INT(p.report.loaded, i < 2);
	}
	CHECK(simdisk_exists(disk, "other/run/checkpoint-4/sheaf.json"));
	simdisk_free(disk);
}

static int copies_from_two(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, 4, &h->err);

	rc = rc < 0 ? rc : shf_step_copy(step, "other", NULL, &h->err);
	shf_step_put(step);
	return rc;
}

static int copies_foreign(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, "hf", NULL, NULL, h->sys, &h->err);

	rc = rc < 0 ? rc : shf_step_copy(step, "other", NULL, &h->err);
	shf_step_put(step);
	return rc;
}

TEST(what_cannot_be_copied_is_told)
{
	static const struct hand_tensor t = { "w", SHEAF_F32, 1, { 3 } };
	struct simdisk *disk = four(1);
	struct play p = hands_play(disk, 2, row);

	CHECK_RC(hands_run(&p, copies_from_two, false), SHEAF_EINVAL, &p.err);
	CHECK_STR(p.err.msg, "run/checkpoint-4: is open on 2 ranks; open it in one process alone "
	          "to copy it");
	hands_file(disk, "hf/w.safetensors", &t, 1, 0);
	p = hands_play(disk, 1, row);
	CHECK_RC(hands_run(&p, copies_foreign, false), SHEAF_EFORMAT, &p.err);
	CHECK_STR(p.err.msg, "hf: has no manifest, so its bytes cannot be checked; use cp -a to "
	          "copy it as it is");
	CHECK(!simdisk_exists(disk, "other"));
	simdisk_free(disk);
}

/* ---- steps of the dead ---- */

TEST(a_salvage_needs_a_run_and_a_step_that_was_staged)
{
	static const struct {
		const char *dir;
		int64_t step;
		int code;
		const char *sentence;
	} rows[] = {
		{ NULL, 1, SHEAF_EINVAL, "argument 'dir' is NULL or empty, or the step is "
		  "negative" },
		{ "", 1, SHEAF_EINVAL, "argument 'dir' is NULL or empty, or the step is negative" },
		{ "run", -1, SHEAF_EINVAL, "argument 'dir' is NULL or empty, or the step is "
		  "negative" },
		{ "run", 0, SHEAF_ENOENT, "run: step 0 is not in the stage (sheaf recover lists "
			"what is)" },
		{ "run", 1, SHEAF_EEXIST, "run/checkpoint-1: exists; rewind the run, or move it "
		  "away first" },
	};
	struct simdisk *disk = four(1);
	const struct shf_sys *sys = simdisk_process(disk, 4000, 0);
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		CHECK_RC(shf_run_salvage(rows[i].dir, rows[i].step, NULL, sys, NULL, &err),
		         rows[i].code, &err);
		CHECK_STR(err.msg, rows[i].sentence);
		CHECK_INT(simdisk_open_n(sys), 0);
	}
	simdisk_free(disk);
}
