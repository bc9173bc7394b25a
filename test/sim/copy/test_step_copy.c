/* SPDX-License-Identifier: Apache-2.0 */
/* A step is copied into another run while the copier is killed at every call, each call and each
 * allocation fails, the power is cut after every call, one fsync after another is left out, or the
 * source is damaged. The source stays as it is, the other run has the whole step or none of it, and
 * the next copy succeeds.
 *
 *   test_step_copy [--long] [--seed N] [part of a test's name ...]
 *
 * With --long every subset of up to 12 unsynced items is tried at each cut, beyond that those of up
 * to 3, their complements and 2,000 drawn ones, and each call fails; otherwise 2 items, 1 and 2,
 * and one call of three. */
#include <errno.h>
#include <stdlib.h>
#include "everycut.h"
#include "jobs.h"
#include "sheaf-inspect.h"
#include "step.h"
#include "err.h"
#include "run_open.h"
#include "step_open.h"
#include "step_copy.h"
#include "run_ops.h"

#define main t_main
#include "t.h"
#undef main

#define FROM "run/checkpoint-2"
#define TO "dst/checkpoint-2"
/* ---- allocations that fail ---- */

static struct {
	long left;                      /* 0: none; 1: the next one */
	bool fired;
} starve;

void *__real_shf_alloc(size_t n, size_t size);
void *__real_shf_zalloc(size_t n, size_t size);
void *__real_shf_realloc(void *p, size_t n, size_t size);
char *__real_shf_strdup(const char *s);
void *__wrap_shf_alloc(size_t n, size_t size);
void *__wrap_shf_zalloc(size_t n, size_t size);
void *__wrap_shf_realloc(void *p, size_t n, size_t size);
char *__wrap_shf_strdup(const char *s);

static bool starves(void)
{
	if (starve.left == 0 || --starve.left)
		return false;
	return starve.fired = true;
}

void *__wrap_shf_alloc(size_t n, size_t size)
{
	return starves() ? NULL : __real_shf_alloc(n, size);
}

void *__wrap_shf_zalloc(size_t n, size_t size)
{
	return starves() ? NULL : __real_shf_zalloc(n, size);
}

void *__wrap_shf_realloc(void *p, size_t n, size_t size)
{
	return starves() ? NULL : __real_shf_realloc(p, n, size);
}

char *__wrap_shf_strdup(const char *s)
{
	return starves() ? NULL : __real_shf_strdup(s);
}

/* ---- one copy ---- */

struct copy {
	const char *from, *to;
	int rc;
	struct sheaf_error err;
	struct sheaf_report report;
	char found[600];                /* the findings: "what file family/name block;" */
};

static void finding(void *arg, const struct sheaf_finding *f)
{
	struct copy *c = arg;
	size_t n = strlen(c->found);

	snprintf(c->found + n, sizeof(c->found) - n, "%s %s %s/%s %lld;",
	         sheaf_finding_kind_name(f->kind), f->file,
	         f->family, f->name, (long long)f->block);
}

/* By a process that is killed afterwards, and has given back what it opened. */
static int copy_by(struct simdisk *disk, const struct shf_sys *sys, struct copy *c)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY,
	                           .io_threads = 1 };
	struct sheaf_checkpoint *step = NULL;

	c->report = (struct sheaf_report){ .size = sizeof(c->report), .finding = finding,
		.arg = c };
	c->found[0] = '\0';
	c->rc = shf_step_open_path(&step, c->from, NULL, &opts, sys, &c->err);
	if (c->rc == 0)
		c->rc = shf_step_copy(step, c->to, &c->report, &c->err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return c->rc;
}

static const struct shf_sys *process(struct simdisk *disk)
{
	static uint64_t pid = 70000;

	return simdisk_process(disk, pid++, 0);
}

static struct copy copied(struct simdisk *disk, const char *from, const char *to)
{
	struct copy c = { .from = from, .to = to };

	(void)copy_by(disk, process(disk), &c);
	return c;
}

/* ---- disks ---- */

static void save(struct simdisk *disk, int64_t step, int64_t rows, int bigs)
{
	struct job j = { .disk = disk, .ranks = 1, .rows = rows, .bigs = bigs, .deeds_n = 1,
		.file_bytes = rows ? 0 : 5000, .group = { .seed = 7 },
		.deeds = { { .kind = DEED_SAVE, .step = step } } };

	job_prepare(&j);
	CHECK(job_run(&j));
	CHECK_INT(job_rc(&j), 0);
}

/* Steps 1 and 2 of a run, and a run dst that has step 1. */
static struct simdisk *base_new(enum simdisk_model model)
{
	struct simdisk *disk = simdisk_new(everycut.seed, model);
	struct copy c;

	save(disk, 1, 0, 0);
	save(disk, 2, 0, 0);
	c = copied(disk, "run/checkpoint-1", "dst");
	CHECK_RC(c.rc, 0, &c.err);
	simdisk_settle(disk);
	return disk;
}

static bool is_whole(struct simdisk *disk, const char *to, const char *from)
{
	return simdisk_hash(disk, to) == simdisk_hash(disk, from) && simdisk_exists(disk, to);
}

static void name_of_stage(struct simdisk *disk, char name[120])
{
	size_t n;
	char *text = simdisk_get(disk, FROM "/sheaf.json", &n), *at;

	CHECK(text != NULL);
	at = strstr(text, "\"session\": \"");
	snprintf(name, 120, "dst/.sheaf/stage/copy-2-%.32s", at + 12);
	free(text);
}

static uint64_t dst_hash(struct simdisk *disk)
{
	(void)simdisk_remove(disk, "dst/.sheaf/lock");
	return simdisk_hash(disk, "dst");
}

static int open_to_write(struct simdisk *disk)
{
	struct shf_opts opts = { .io_threads = 1 };
	const struct shf_sys *sys = process(disk);
	struct sheaf_run *run = NULL;
	struct sheaf_error err;
	int rc = shf_run_open(&run, "dst", NULL, &opts, sys, &err);

	shf_run_close(run);
	simdisk_kill(disk, sys);
	return rc;
}

/* ---- what must hold of any disk ---- */

struct story {
	struct simdisk *disk;
	uint64_t run;                   /* the source's hash */
	int64_t acked;                  /* a cut; INT64_MAX: never */
	bool brief;                     /* judge what is seen, not what comes of it */
	char stage[120];
};

/* What the source and the other run show; "" or what is wrong. */
static const char *judge_seen(const struct story *s, struct simdisk *disk, int64_t cut,
                              char why[300])
{
	bool there = simdisk_exists(disk, TO);

	why[0] = '\0';
	if (simdisk_hash(disk, "run") != s->run)
		snprintf(why, 300, "the source has changed");
	else if (!is_whole(disk, "dst/checkpoint-1", "run/checkpoint-1"))
		snprintf(why, 300, "step 1 is not what it was");
	else if (there && !is_whole(disk, TO, FROM))
		snprintf(why, 300, "step 2 is there, and not whole");
	else if (!there && s->acked <= cut)
		snprintf(why, 300, "step 2 was acknowledged and is gone");
	else if (s->acked <= cut && simdisk_exists(disk, s->stage))
		snprintf(why, 300, "the stage is still there after the step was told");
	return why;
}

/* And what comes of it: the next copy succeeds, and then nothing changes any more. */
static const char *judge(const void *arg, struct simdisk *disk, int64_t cut, char why[300])
{
	const struct story *s = arg;
	bool there = simdisk_exists(disk, TO), twice = there && simdisk_exists(disk, s->stage);
	struct copy c;
	uint64_t h;

	if (*judge_seen(s, disk, cut, why) || s->brief)
		return why;
	c = copied(disk, FROM, "dst");
	if (c.rc < 0 || !is_whole(disk, TO, FROM) || (c.report.held == 0) != there)
		snprintf(why, 300, "the next copy: %d, %llu bytes written, step 2 was %sthere: "
		         "%.180s", c.rc, (unsigned long long)c.report.held, there ? "" : "not ",
		         c.rc < 0 ? c.err.msg : "");
	else if (simdisk_exists(disk, s->stage) && !twice)
		snprintf(why, 300, "the next copy leaves its stage");
	if (why[0])
		return why;
	h = dst_hash(disk);
	if (open_to_write(disk) != 0 || h != dst_hash(disk))
		snprintf(why, 300, "a recovery after it fails, or changes something");
	else
		(void)judge_seen(s, disk, -1, why);
	return why;
}

/* ---- power cuts ---- */

static uint64_t promised(const void *arg, int64_t cut)
{
	const struct story *s = arg;

	return s->acked <= cut;
}

static bool hunt(const struct story *s, char why[400])
{
	return everycut_hunt(&(struct everycut_hunt){
		.disk = s->disk, .all_max = 2, .small_max = 1, .seeded = 2, .promised = promised,
		.judge = judge, .story = s }, why);
}

static void tell(struct story *s, enum simdisk_model model)
{
	*s = (struct story){ .disk = base_new(model), .acked = INT64_MAX };
	s->run = simdisk_hash(s->disk, "run");
	name_of_stage(s->disk, s->stage);
}

static void survives(enum simdisk_model model, const char *what)
{
	uint64_t before = everycut.states;
	struct story s;
	struct copy c;
	char why[400];
	bool fine;

	tell(&s, model);
	c = copied(s.disk, FROM, "dst");
	CHECK_RC(c.rc, 0, &c.err);
	s.acked = (int64_t)simdisk_cut_n(s.disk) - 1;
	fine = hunt(&s, why);
	if (fine)
		printf("# a copy, %s: %zu cuts, %llu states\n", what, simdisk_cut_n(s.disk),
		       (unsigned long long)(everycut.states - before));
	else
		print_error("%s: %s (test_step_copy --seed %llu)\n", what, why,
		            (unsigned long long)everycut.seed);
	simdisk_free(s.disk);
	CHECK(fine);
}

TEST(a_copy_survives_every_cut_strict) { survives(SIMDISK_STRICT, "strict"); }
TEST(a_copy_survives_every_cut_ext4) { survives(SIMDISK_EXT4, "ext4"); }
TEST(a_copy_survives_every_cut_nfs) { survives(SIMDISK_NFS, "nfs"); }

/* A copier is killed in its last file, the next one is cut at every call. */
TEST(a_copy_that_is_taken_up_survives_every_cut)
{
	struct story s;
	struct copy c = { .from = FROM, .to = "dst" };
	char why[400];
	bool fine;

	tell(&s, SIMDISK_STRICT);
	simdisk_fault(s.disk, &(struct simdisk_fault){ .nth = 3, .kind = SIMDISK_FSYNC,
	                                               .how = SIMDISK_KILL, .name = "part-" });
	CHECK(copy_by(s.disk, process(s.disk), &c) < 0);
	CHECK_INT(simdisk_fired(s.disk), 1);
	simdisk_faults_clear(s.disk);
	c = copied(s.disk, FROM, "dst");
	CHECK_RC(c.rc, 0, &c.err);
	s.acked = (int64_t)simdisk_cut_n(s.disk) - 1;
	fine = hunt(&s, why);
	if (!fine)
		print_error("%s\n", why);
	printf("# a copy that is taken up: %zu cuts\n", simdisk_cut_n(s.disk));
	simdisk_free(s.disk);
	CHECK(fine);
}

/* ---- mutants: one fsync does nothing, and the hunt must find it ---- */

static const struct mutant {
	const char *what;               /* beginning of the last name of what is synced */
	bool harmless;
} mutants[] = {
	/* Opening: the lock's text is for other clients; the names are as old as the run. */
	{ "lock", true }, { "stage", true }, { ".sheaf", true }, { "dst", true }, { "/", true },
	{ "part-", false }, { "part-", false }, { "part-", false }, { "part-", false },
	{ "part-", false }, { "part-", false }, { "part-", false },     /* three of them small */
	{ "optimizer", false },                                         /* C5 */
	{ "copy-2-", true },    /* nobody believes a manifest in such a stage: the next covers it */
	{ "sheaf.json.tmp", false }, { "copy-2-", false },              /* C6 */
	{ "dst", false }, { "stage", false },                           /* C9 */
};

TEST(leaving_out_any_fsync_of_a_copy_is_found)
{
	long n = 0, want = (long)(sizeof(mutants) / sizeof(mutants[0]));
	int bad = 0;

	for (long i = 0; i < want; i++) {
		const struct mutant *m = &mutants[i];
		struct story s;
		struct copy c;
		const char *skipped;
		char why[400];
		bool fine, named;

		tell(&s, SIMDISK_STRICT);
		s.brief = !everycut.all;
		simdisk_skip_fsync(s.disk, i + 1);
		c = copied(s.disk, FROM, "dst");
		n = simdisk_fsyncs(s.disk);
		simdisk_skip_fsync(s.disk, 0);
		skipped = simdisk_skipped(s.disk);
		CHECK_RC(c.rc, 0, &c.err);
		s.acked = (int64_t)simdisk_cut_n(s.disk) - 1;
		fine = hunt(&s, why);
		named = strncmp(skipped, m->what, strlen(m->what)) == 0;
		bad += fine != m->harmless || !named;
		printf("# without fsync %2ld of %ld, %-24.24s %s%s\n", i + 1, n, skipped,
		       fine ? m->harmless ? "harmless" : "NOT FOUND"
		            : m->harmless ? "NOT HARMLESS: " : "found: ", fine ? "" : why);
		if (!named)
			print_error("fsync %ld is of %s, not of %s\n", i + 1, skipped, m->what);
		simdisk_free(s.disk);
	}
	CHECK_INT(bad, 0);
	CHECK_INT(n, want);
}

/* ---- each call fails, or is the last ---- */

/* Checks the disk as it is, and after the worst and the best power cut. */
static const char *judge_now(const struct story *s, struct simdisk *disk, char why[300])
{
	size_t last = simdisk_cut_n(disk) - 1;
	uint64_t all[64];
	const uint64_t *const kept[] = { NULL, all };

	memset(all, 255, sizeof(all));
	CHECK(simdisk_unsynced(disk, last) <= 64 * 64);
	for (int i = 0; i < 2; i++) {
		struct simdisk_choice choice = { .kept = kept[i] };
		struct simdisk *crashed = simdisk_crash(disk, last, &choice);

		(void)judge(s, crashed, (int64_t)last, why);
		simdisk_free(crashed);
		if (why[0])
			return why;
	}
	return judge(s, disk, (int64_t)last, why);
}

static void each_call(enum simdisk_how how, int error, const char *what)
{
	struct story base;
	bool fired = true;
	char why[300];
	int nth = 1, failed = 0, stride = everycut.all || how == SIMDISK_KILL ||
	                            how == SIMDISK_ZERO ? 1 : 3;

	tell(&base, SIMDISK_EXT4);
	for (; fired; nth += stride) {
		struct story s = base;
		struct copy c = { .from = FROM, .to = "dst" };
		const struct shf_sys *sys;

		s.disk = simdisk_twin(base.disk);
		sys = process(s.disk);
		simdisk_fault(s.disk, &(struct simdisk_fault){ .nth = nth, .error = error,
		                                               .how = how, .process = sys,
		              .kind = how == SIMDISK_ZERO ? SIMDISK_OPEN : SIMDISK_ANY });
		(void)copy_by(s.disk, sys, &c);
		fired = simdisk_fired(s.disk) > 0;
		simdisk_faults_clear(s.disk);
		failed += c.rc < 0;
		CHECK(fired || c.rc == 0);
		if (c.rc == SHEAF_EBUG)
			print_error("call %d: %s\n", nth, c.err.msg);
		CHECK(c.rc != SHEAF_EBUG);
		CHECK(c.rc == 0 || c.err.msg[0]);
		s.acked = c.rc == 0 ? 0 : INT64_MAX;
		if (c.rc < 0 && c.rc != SHEAF_EINDOUBT && simdisk_exists(s.disk, TO))
			print_error("call %d: %d, and the step is there\n", nth, c.rc);
		CHECK(c.rc == 0 || c.rc == SHEAF_EINDOUBT || how == SIMDISK_KILL ||
		      !simdisk_exists(s.disk, TO));
		/* Once acknowledged, a cut loses nothing; then the next copy makes it so. */
		if (*judge_now(&s, s.disk, why))
			print_error("call %d: %d %s: then %s\n", nth, c.rc,
			            c.rc ? c.err.msg : "", why);
		CHECK_STR(why, "");
		s.acked = 0;
		if (*judge_now(&s, s.disk, why))
			print_error("call %d: after the next copy %s\n", nth, why);
		CHECK_STR(why, "");
		simdisk_free(s.disk);
	}
	printf("# %s: each of %d calls, %d copies failed\n", what, (nth - 1) / stride - 1, failed);
	CHECK(how == SIMDISK_ZERO ? failed == 0 && nth > 20 : failed > 20);
	simdisk_free(base.disk);
}

TEST(each_call_of_a_copy_may_be_the_last) { each_call(SIMDISK_KILL, EIO, "killed"); }
TEST(each_call_of_a_copy_may_fail) { each_call(SIMDISK_INSTEAD, EIO, "failing"); }
TEST(each_call_of_a_copy_may_work_and_say_it_failed) { each_call(SIMDISK_AFTER, EIO, "after"); }

TEST(each_descriptor_of_a_copy_may_be_0) { each_call(SIMDISK_ZERO, 0, "with 0"); }

TEST(a_copy_without_memory_fails_and_the_next_one_succeeds)
{
	struct simdisk *base = base_new(SIMDISK_EXT4);
	int failed = 0;

	starve.fired = true;
	for (long nth = 1; starve.fired; nth++) {
		struct simdisk *disk = simdisk_twin(base);
		struct copy c;

		starve.fired = false;
		starve.left = nth;
		c = copied(disk, FROM, "dst");
		starve.left = 0;
		failed += c.rc < 0;
		CHECK(starve.fired || c.rc == 0);
		if (c.rc != 0 && c.rc != SHEAF_ENOMEM)
			print_error("allocation %ld: %d: %s\n", nth, c.rc, c.err.msg);
		CHECK(c.rc == 0 || c.rc == SHEAF_ENOMEM);
		CHECK(is_whole(disk, TO, FROM) == (c.rc == 0));
		c = copied(disk, FROM, "dst");
		CHECK_RC(c.rc, 0, &c.err);
		CHECK(is_whole(disk, TO, FROM));
		simdisk_free(disk);
	}
	printf("# without memory: %d copies failed\n", failed);
	CHECK(failed > 10);
	simdisk_free(base);
}

/* ---- taken up ---- */

/* A copier killed while it writes its nth file. */
static void killed_at(struct simdisk *disk, int nth)
{
	struct copy c = { .from = FROM, .to = "dst" };

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .kind = SIMDISK_FSYNC,
	                                             .how = SIMDISK_KILL, .name = "part-" });
	CHECK(copy_by(disk, process(disk), &c) < 0);
	CHECK_INT(simdisk_fired(disk), 1);
	simdisk_faults_clear(disk);
}

TEST(what_was_finished_is_not_written_again)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4);
	uint64_t whole = 0;
	struct copy c;

	for (int nth = 1; nth <= 4; nth++) {
		struct simdisk *d = simdisk_twin(disk);

		killed_at(d, nth);
		c = copied(d, FROM, "dst");
		CHECK_RC(c.rc, 0, &c.err);
		CHECK(is_whole(d, TO, FROM));
		CHECK(nth == 1 || c.report.held < whole);
		printf("# killed in file %d: %llu bytes written by the next copy\n", nth,
		       (unsigned long long)c.report.held);
		whole = c.report.held;
		simdisk_free(d);
	}
	simdisk_free(disk);
}

TEST(what_was_finished_is_checked_not_trusted)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4);
	char path[300], stage[120];
	struct copy good, c;

	killed_at(disk, 4);
	name_of_stage(disk, stage);
	snprintf(path, sizeof(path), "%s/model-00001-of-00002.safetensors", stage);
	CHECK(simdisk_exists(disk, path));
	for (uint64_t bit = 7; bit < 8 * 8192; bit += 8 * 1021) {
		struct simdisk *d = simdisk_twin(disk), *sound = simdisk_twin(disk);

		good = copied(sound, FROM, "dst");
		CHECK_INT(simdisk_flip(d, path, bit), 0);
		c = copied(d, FROM, "dst");
		CHECK_RC(c.rc, 0, &c.err);
		CHECK(is_whole(d, TO, FROM));
		CHECK(c.report.held > good.report.held);
		simdisk_free(d);
		simdisk_free(sound);
		/* It loses its name also where the copy then fails. */
		d = simdisk_twin(disk);
		CHECK_INT(simdisk_flip(d, path, bit), 0);
		simdisk_fault(d, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_PWRITE,
		                                          .error = ENOSPC, .name = "part-" });
		CHECK_INT(copied(d, FROM, "dst").rc, SHEAF_EIO);
		CHECK(!simdisk_exists(d, path) && simdisk_exists(d, stage));
		simdisk_free(d);
	}
	simdisk_free(disk);
}

/* Damage of the copy is no damage of the step, whichever descriptor its file has. */
TEST(half_a_copy_that_is_damaged_may_have_descriptor_0)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4);
	char path[300], stage[120];
	bool fired = true;

	killed_at(disk, 4);
	name_of_stage(disk, stage);
	snprintf(path, sizeof(path), "%s/model-00001-of-00002.safetensors", stage);
	CHECK_INT(simdisk_flip(disk, path, 7), 0);
	for (int nth = 1; fired; nth++) {
		struct simdisk *d = simdisk_twin(disk);
		struct copy c;

		simdisk_fault(d, &(struct simdisk_fault){ .nth = nth, .kind = SIMDISK_OPEN,
			.how = SIMDISK_ZERO });
		c = copied(d, FROM, "dst");
		fired = simdisk_fired(d) > 0;
		simdisk_faults_clear(d);
		CHECK_RC(c.rc, 0, &c.err);
		CHECK(is_whole(d, TO, FROM));
		simdisk_free(d);
	}
	simdisk_free(disk);
}

TEST(half_a_copy_waits_for_a_week)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4);
	char stage[120];

	killed_at(disk, 2);
	name_of_stage(disk, stage);
	CHECK_INT(open_to_write(disk), 0);
	CHECK(simdisk_exists(disk, stage));
	simdisk_advance(disk, 6 * 86400);
	CHECK_INT(open_to_write(disk), 0);
	CHECK(simdisk_exists(disk, stage));
	simdisk_advance(disk, 2 * 86400);
	CHECK_INT(open_to_write(disk), 0);
	CHECK(!simdisk_exists(disk, stage));
	simdisk_free(disk);
}

TEST(a_full_disk_is_told_and_the_copy_taken_up_when_there_is_room)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4);
	struct copy c;
	int full = 0;

	for (uint64_t kib = 1; ; kib += 7) {
		simdisk_set_space(disk, kib << 10);
		c = copied(disk, FROM, "dst");
		if (c.rc == 0)
			break;
		full++;
		CHECK_RC(c.rc, SHEAF_EIO, &c.err);
		CHECK_INT(c.err.sys, ENOSPC);
		CHECK(!simdisk_exists(disk, TO));
	}
	CHECK(full > 3);
	CHECK(is_whole(disk, TO, FROM));
	simdisk_free(disk);
}

TEST(a_file_of_many_blocks_is_copied_and_taken_up)
{
	struct simdisk *disk = simdisk_new(everycut.seed, SIMDISK_EXT4);
	struct copy c = { .from = FROM, .to = "dst" };

	save(disk, 2, 40000, 0);                /* 10 MiB: three reads */
	simdisk_settle(disk);
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 2, .kind = SIMDISK_PWRITE,
	                                             .how = SIMDISK_KILL, .name = "part-" });
	CHECK(copy_by(disk, process(disk), &c) < 0);
	simdisk_faults_clear(disk);
	CHECK(!simdisk_exists(disk, TO));
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, 0, &c.err);
	CHECK(c.report.held > UINT64_C(10000000));
	CHECK(is_whole(disk, TO, FROM));
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, 0, &c.err);
	CHECK_INT(c.report.held, 0);
	simdisk_free(disk);
}

/* ---- what is refused ---- */

static void damaged(const char *file, uint64_t bit, const char *found)
{
	struct simdisk *disk = base_new(SIMDISK_STRICT);
	char path[200], stage[120];
	struct copy c;

	name_of_stage(disk, stage);
	snprintf(path, sizeof(path), FROM "/%s", file);
	CHECK_INT(simdisk_flip(disk, path, bit), 0);
	c = copied(disk, FROM, "dst");
	if (c.rc != SHEAF_ECORRUPT || !strstr(c.found, found))
		print_error("%s: %d %s: %s\n", file, c.rc, c.err.msg, c.found);
	CHECK_INT(c.rc, SHEAF_ECORRUPT);
	CHECK(strstr(c.err.msg, file) != NULL);
	CHECK(strstr(c.found, found) != NULL);
	CHECK(!simdisk_exists(disk, TO));
	CHECK(!simdisk_exists(disk, stage));
	simdisk_free(disk);
}

TEST(a_damaged_source_is_refused_and_named)
{
	damaged("model-00001-of-00002.safetensors", 8 * 4200, "model/a.w 0;");
	damaged("model-00001-of-00002.safetensors", 8 * 100, "model-00001-of-00002.safetensors");
	damaged("optimizer/optimizer-00001-of-00001.safetensors", 8 * 6000, "/a.w/moment1_0 0;");
	damaged("config.json", 3, "checksum config.json");
	damaged("model.safetensors.index.json", 300, "checksum model.safetensors.index.json");
	damaged("sheaf.sums", 8 * 200, "checksum sheaf.sums");
	damaged("sheaf.json", 8 * 30, "");
}

TEST(a_file_that_is_gone_is_refused_and_one_too_many_stays_behind)
{
	struct simdisk *disk = base_new(SIMDISK_STRICT);
	struct copy c;

	CHECK_INT(simdisk_put(disk, FROM "/notes.txt", "x", 1), 0);
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, 0, &c.err);
	CHECK(!simdisk_exists(disk, TO "/notes.txt"));
	CHECK_INT(simdisk_remove(disk, FROM "/model-00002-of-00002.safetensors"), 0);
	c = copied(disk, FROM, "other");
	CHECK_RC(c.rc, SHEAF_ECORRUPT, &c.err);
	CHECK(!simdisk_exists(disk, "other/checkpoint-2"));
	simdisk_free(disk);
}

TEST(the_same_save_is_proved_where_it_is)
{
	struct simdisk *disk = base_new(SIMDISK_STRICT);
	struct copy c = copied(disk, FROM, "dst");

	CHECK_RC(c.rc, 0, &c.err);
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, 0, &c.err);
	CHECK_INT(c.report.held, 0);
	CHECK(c.report.loaded > 0);
	c = copied(disk, FROM, "run");          /* into its own run */
	CHECK_RC(c.rc, 0, &c.err);
	CHECK_INT(simdisk_flip(disk, TO "/config.json", 9), 0);
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, SHEAF_ECORRUPT, &c.err);
	CHECK(strstr(c.err.msg, TO "/config.json") != NULL);
	simdisk_free(disk);
}

TEST(another_save_of_that_number_is_not_touched)
{
	struct simdisk *disk = base_new(SIMDISK_STRICT);
	struct copy c = copied(disk, FROM, "dst");
	uint64_t before;

	CHECK_RC(c.rc, 0, &c.err);
	CHECK_INT(simdisk_remove(disk, FROM), 0);
	save(disk, 2, 0, 0);
	before = simdisk_hash(disk, TO);
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, SHEAF_EEXIST, &c.err);
	CHECK(simdisk_hash(disk, TO) == before);
	/* Nor what has no manifest, and has the name. */
	CHECK_INT(simdisk_remove(disk, TO), 0);
	CHECK_INT(simdisk_put(disk, TO "/mine", "x", 1), 0);
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, SHEAF_EEXIST, &c.err);
	/* The remains of a removal by hand make room. */
	CHECK_INT(simdisk_remove(disk, TO "/mine"), 0);
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, 0, &c.err);
	simdisk_free(disk);
}

TEST(another_run_a_step_and_a_foreign_directory_are_refused)
{
	struct simdisk *disk = base_new(SIMDISK_STRICT);
	static const char id[] = "sheaf-run 1\n0123456789abcdef0123456789abcdef\n";
	struct copy c;

	CHECK_INT(simdisk_put(disk, "alien/.sheaf/run", id, sizeof(id) - 1), 0);
	c = copied(disk, FROM, "alien");
	CHECK_RC(c.rc, SHEAF_EINVAL, &c.err);
	CHECK(!simdisk_exists(disk, "alien/checkpoint-2"));
	c = copied(disk, FROM, "run/checkpoint-1");
	CHECK_RC(c.rc, SHEAF_EINVAL, &c.err);
	CHECK(!simdisk_exists(disk, "run/checkpoint-1/.sheaf"));
	CHECK_INT(simdisk_remove(disk, FROM "/sheaf.json"), 0);
	CHECK_INT(simdisk_remove(disk, FROM "/sheaf.sums"), 0);
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, SHEAF_EFORMAT, &c.err);
	CHECK(!simdisk_exists(disk, TO));
	simdisk_free(disk);
}

static int copy_on_two(void *arg, int rank, struct sheaf_group *group)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY,
	                           .io_threads = 1 };
	const struct shf_sys *sys = process(arg);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	int rc = shf_step_open_path(&step, FROM, group, &opts, sys, &err);

	(void)rank;
	if (rc == 0)
		rc = shf_step_copy(step, "dst", NULL, &err);
	shf_step_put(step);
	return rc;
}

TEST(a_step_that_is_open_on_two_ranks_is_refused)
{
	struct simdisk *disk = base_new(SIMDISK_STRICT);
	struct simgroup_opts o = { .seed = 1, .ranks = 2 };
	int results[2];

	CHECK_INT(simgroup_run(&o, copy_on_two, disk, results), 0);
	CHECK_INT(results[0], SHEAF_EINVAL);
	CHECK_INT(results[1], SHEAF_EINVAL);
	CHECK(!simdisk_exists(disk, TO));
	simdisk_free(disk);
}

TEST(a_run_that_is_being_written_is_waited_for_and_then_busy)
{
	struct shf_opts opts = { .io_threads = 1 };
	struct simdisk *disk = base_new(SIMDISK_STRICT);
	const struct shf_sys *sys = process(disk);
	struct sheaf_run *run = NULL;
	struct sheaf_error err;
	struct copy c;

	CHECK_RC(shf_run_open(&run, "dst", NULL, &opts, sys, &err), 0, &err);
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, SHEAF_EBUSY, &c.err);
	shf_run_close(run);
	c = copied(disk, FROM, "dst");
	CHECK_RC(c.rc, 0, &c.err);
	simdisk_free(disk);
}

/* The lock is a courtesy. Where it excludes nobody, two copiers are in one stage. */
TEST(two_copiers_with_locks_ignored_end_in_one_whole_step)
{
	struct simdisk *disk = base_new(SIMDISK_EXT4);
	struct copy c;

	for (int nth = 1; nth <= 7; nth++) {
		struct simdisk *d = simdisk_twin(disk);
		struct copy second = { .from = FROM, .to = "dst" };

		simdisk_set_locks(d, false);
		killed_at(d, nth);
		simdisk_fault(d, &(struct simdisk_fault){ .nth = nth, .kind = SIMDISK_RENAME,
		                                          .error = EIO, .name = "part-" });
		(void)copy_by(d, process(d), &second);
		simdisk_faults_clear(d);
		c = copied(d, FROM, "dst");
		CHECK_RC(c.rc, 0, &c.err);
		CHECK(is_whole(d, TO, FROM));
		simdisk_free(d);
	}
	simdisk_free(disk);
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
