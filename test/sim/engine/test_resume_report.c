/* SPDX-License-Identifier: Apache-2.0 */
/* The report and the log of sheaf_run_resume, complete, and the whole sentence where it finds
 * nothing to resume from. */
#include "hands.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include "crc64.h"
#include "run.h"
#include "simcore.h"
#include "t.h"
#include "save_end.h"
#include "step_reread.h"
#include "run_resume.h"
#include "sheaf-admin.h"

#define FILE_OF(step) "run/checkpoint-" step "/model-00001-of-00001.safetensors"
#define ASIDE(step) "1 run: checkpoint-" step " is set aside: it is kept in .sheaf/aside\n"
static char log_[4000];

static void hear(void *arg, int level, const char *line)
{
	size_t n = strlen(log_);

	(void)arg;
	snprintf(log_ + n, sizeof(log_) - n, "%d %s\n", level, line);
}

static void row(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, (int64_t)4, (int64_t)600), 0, h->rank,
	         h->ranks);
}

static int64_t newest;          /* that was loaded */
static uint64_t with;           /* flags of rank 1, beside */

static int resumes(struct hand *h)
{
	int rc = shf_run_resume(h->run, h->state, h->play->flags | (h->rank ? with : 0), &h->report,
	                        &h->err);

	if (h->rank == 0)
		newest = rc == 0 ? h->report.step : rc;
	return rc;
}

/* Steps 1 to 3 of one rank. */
static struct simdisk *three(void)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, row);

	for (p.step = 1; p.step <= 3; p.step++)
		SAVED(p);
	return disk;
}

static uint64_t crc_of(struct simdisk *disk, const char *path)
{
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path, &n);
	uint64_t crc = shf_crc64(bytes, n);

	free(bytes);
	return crc;
}

/* Turns a bit over, and writes down what is said of it. */
static void harm(struct simdisk *disk, const char *path, char why[300], const char *who)
{
	uint64_t was = crc_of(disk, path), now;

	CHECK_INT(simdisk_flip(disk, path, 8 * 9000), 0);
	now = crc_of(disk, path);
	snprintf(why, 300, "%s: block 0 at byte 0 has checksum %016" PRIx64 ", want %016" PRIx64
	         "%s", path, now, was, who);
}

static struct play asked(struct simdisk *disk, int ranks, uint64_t flags)
{
	struct play p = hands_play(disk, ranks, row);

	p.flags = flags;
	p.opts.log = hear;
	log_[0] = '\0';
	with = 0;
	return p;
}

TEST(who_falls_back_is_told_over_what_and_where_it_went)
{
	for (int ranks = 1; ranks <= 2; ranks++)
		for (int reads = 0; reads < 2; reads++) {
			struct simdisk *disk = three();
			struct play p = asked(disk, ranks, SHEAF_LOAD_FALLBACK | SHEAF_LOAD_STRICT);
			char two[300], three_[300], told[1500], log[2500];

			harm(disk, FILE_OF("2"), two, "");
			harm(disk, FILE_OF("3"), three_, "");
			if (reads)
				p.opts.flags = SHEAF_RUN_READONLY;
			CHECK_RC(hands_run(&p, resumes, false), 0, &p.err);
			CHECK_INT(newest, 1);
			CHECK_INT(p.report.passed, 2);
			snprintf(told, sizeof(told), "P /checkpoint-3: %s\nP /checkpoint-2: %s\n%s",
			         three_, two, reads ? "" : "A /checkpoint-3: it is kept in "
			         ".sheaf/aside\nA /checkpoint-2: it is kept in .sheaf/aside\n");
			CHECK_STR(p.told, told);
			snprintf(log, sizeof(log), "1 run: checkpoint-3 is passed over: %s\n"
			         "1 run: checkpoint-2 is passed over: %s\n", three_, two);
			CHECK(strncmp(log_, log, strlen(log)) == 0);
			CHECK(reads || strstr(log_, ASIDE("3") ASIDE("2")));
			for (int step = 1; step <= 3; step++) {
				char path[60];

				snprintf(path, sizeof(path), "run/checkpoint-%d", step);
				CHECK_INT(simdisk_exists(disk, path), step == 1 || reads);
			}
			simdisk_free(disk);
		}
}

TEST(where_nothing_is_whole_the_newest_is_told_and_nothing_moved)
{
	struct simdisk *disk = three();
	struct play p = asked(disk, 1, SHEAF_LOAD_FALLBACK);
	char why[3][300], want[700];

	harm(disk, FILE_OF("1"), why[0], "");
	harm(disk, FILE_OF("2"), why[1], "");
	/* Without the advice to rewind to step 2, which is damaged, too. */
	harm(disk, FILE_OF("3"), why[2], " (model/w)");
	CHECK_RC(hands_run(&p, resumes, false), SHEAF_ECORRUPT, &p.err);
	snprintf(want, sizeof(want), "%s; nothing else could be loaded", why[2]);
	CHECK_STR(p.err.msg, want);
	CHECK_INT(hands_told(&p, 'P'), 3);
	CHECK_INT(hands_told(&p, 'A'), 0);
	CHECK(simdisk_exists(disk, "run/checkpoint-3"));
	simdisk_free(disk);
}

TEST(without_the_flag_the_error_names_what_helps)
{
	struct simdisk *disk = three();
	struct play p = asked(disk, 2, SHEAF_LOAD_STRICT);
	char why[300];

	harm(disk, FILE_OF("3"), why, " (model/w) (sheaf rewind run@2 goes back to the step before "
	     "it)");
	CHECK_RC(hands_run(&p, resumes, false), SHEAF_ECORRUPT, &p.err);
	CHECK(strstr(p.err.msg, why) != NULL);
	CHECK_STR(p.told, "");
	CHECK_STR(log_, "");
	simdisk_free(disk);
}

static int marks(struct hand *h)
{
	return shf_run_mark(h->run, 3, SHEAF_MARK_BAD, &h->err);
}

TEST(a_bad_step_that_is_skipped_is_told_and_logged)
{
	struct simdisk *disk = three();
	struct play p = asked(disk, 2, SHEAF_LOAD_STRICT);

	CHECK_RC(hands_run(&p, marks, false), 0, &p.err);
	log_[0] = '\0';
	CHECK_RC(hands_run(&p, resumes, false), 0, &p.err);
	CHECK_INT(newest, 2);
	CHECK_INT(p.report.passed, 0);
	CHECK_STR(p.told, "P /checkpoint-3: marked bad\n");
	CHECK_STR(log_, "1 run/checkpoint-3: skipped: marked bad\n");
	simdisk_free(disk);
}

/* ---- what is refused ---- */

static int resumes_beside_a_save(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 9, h->state, NULL, &h->err);

	rc = rc < 0 ? rc : resumes(h);
	shf_save_free(save);
	return rc;
}

TEST(what_a_resume_cannot_do_is_told_in_full)
{
	struct simdisk *disk = three();
	struct play p = asked(disk, 1, SHEAF_LOAD_FALLBACK | SHEAF_LOAD_DRY);

	CHECK_RC(hands_run(&p, resumes, false), SHEAF_EINVAL, &p.err);
	CHECK_STR(p.err.msg,
	          "SHEAF_LOAD_FALLBACK and SHEAF_LOAD_DRY cannot be combined, because a fallback "
	          "must read what it chooses");
	p.flags = SHEAF_LOAD_FALLBACK;
	CHECK_RC(hands_run(&p, resumes_beside_a_save, false), SHEAF_EINVAL, &p.err);
	CHECK_STR(p.err.msg, "run: step 9 is being saved; commit or free that save before a "
	          "resume");
	p = asked(disk, 2, SHEAF_LOAD_FALLBACK);
	with = SHEAF_LOAD_LENIENT;
	CHECK_RC(hands_run(&p, resumes, false), SHEAF_EINVAL, &p.err);
	CHECK(strstr(p.err.msg, "ranks pass different flags to sheaf_run_resume") != NULL);
	p = asked(disk, 1, SHEAF_SAVE_LATER << 1);
	CHECK_RC(hands_run(&p, resumes, false), SHEAF_EINVAL, &p.err);
	CHECK_STR(p.err.msg, "load: flags 0x4000000000 are unknown to this version of sheaf; clear "
	          "them, or use a newer sheaf");
	simdisk_free(disk);
}

/* ---- who dies of a load ---- */

static int loads_and_dies(struct hand *h)
{
	int rc = resumes(h);

	h->run->opts.log = NULL;        /* of the dead nothing is heard */
	simdisk_kill(h->play->disk, &((struct simproc *)h->sys->host.arg)->sys);
	return rc;
}

TEST(how_often_a_step_was_loaded_in_vain_is_told)
{
	static const char *const said[] = { "",
		"1 run: step 3 is loaded again, after 1 job resumed from it and ended without "
		"saving (see opts.resume_attempts_max)\n",
		"1 run: step 3 is loaded again, after 2 jobs resumed from it and ended without "
		"saving (see opts.resume_attempts_max)\n",
		"1 run: step 3 is loaded again, after 3 jobs resumed from it and ended without "
		"saving (see opts.resume_attempts_max)\n" };
	struct simdisk *disk = three();

	for (int i = 0; i < 4; i++) {
		struct play p = asked(disk, 1, 0);

		CHECK_RC(hands_run(&p, loads_and_dies, false), 0, &p.err);
		CHECK_STR(log_, said[i]);
	}
	simdisk_free(disk);
}

static int loads_uncounted(struct hand *h)
{
	int rc;

	simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = 1, .error = EACCES,
		.always = true, .kind = SIMDISK_OPEN, .name = "3-" });
	rc = resumes(h);
	simdisk_faults_clear(h->play->disk);
	return rc;
}

TEST(a_load_that_cannot_be_counted_is_told_and_goes_on)
{
	struct simdisk *disk = three();
	struct play p = asked(disk, 2, 0);

	CHECK_RC(hands_run(&p, loads_uncounted, false), 0, &p.err);
	CHECK_INT(newest, 3);
	CHECK(strncmp(log_, "1 run: loading step 3 could not be recorded as a resume attempt: "
	              "run/.sheaf/tries/3-",
	              59) == 0);
	CHECK(strstr(log_, ": Permission denied\n") != NULL);
	simdisk_free(disk);
}

/* ---- a second read by several nodes ---- */

static void many_rows(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, (int64_t)1200, (int64_t)600), 0, h->rank,
	         h->ranks);
}

static int confirms(struct hand *h)
{
	if (h->play->variant & 2 && h->rank == 0)
		simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = 1, .error = EACCES,
			.always = true, .kind = SIMDISK_PREAD, .name = "model-",
			.process = &((struct simproc *)h->sys->host.arg)->sys });
	return shf_step_reread(h->run, h->play->step, &h->err);
}

TEST(damage_on_one_node_counts_more_than_what_another_cannot_read)
{
	static const int32_t nodes[] = { 1, 2 };
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, many_rows);

	p.step = 3;
	SAVED(p);
	p = asked(disk, 2, 0);
	p.nodes = nodes;
	for (int i = 0; i < 4; i++) {   /* damaged, unreadable */
		p.variant = i;
		p.step = 3;
		if (i & 1)
			CHECK_INT(simdisk_flip(disk, FILE_OF("3"), 8 * (2 << 20)), 0);
		CHECK_RC(hands_run(&p, confirms, false),
		         i & 1 ? SHEAF_ECORRUPT : i ? SHEAF_EIO : 0, &p.err);
		CHECK(!i || strstr(p.err.msg, i & 1 ? FILE_OF("3") ": block 2 at byte 2097152 has "
		                   "checksum " : FILE_OF("3") ": Permission denied"));
		if (i & 1)
			CHECK_INT(simdisk_flip(disk, FILE_OF("3"), 8 * (2 << 20)), 0);
		simdisk_faults_clear(disk);
	}
	p.variant = 0;
	p.step = 9;
	CHECK_RC(hands_run(&p, confirms, false), SHEAF_EIO, &p.err);
	CHECK(strstr(p.err.msg, "run/checkpoint-9: was deleted or moved while it was being read "
	             "again") != NULL);
	simdisk_free(disk);
}

static void row_and_two_more(struct hand *h)
{
	row(h);
	hand_add(h, "model", "x", SHEAF_F32, 1, (int64_t)3);
	hand_want(h, HAND_KEPT);
	hand_add(h, "model", "y", SHEAF_F32, 1, (int64_t)3);
	hand_want(h, HAND_KEPT);
}

TEST(what_no_step_has_is_kept_where_none_was_damaged)
{
	struct simdisk *disk = three();
	struct play p = asked(disk, 1, SHEAF_LOAD_FALLBACK | SHEAF_LOAD_LENIENT);

	p.hold = row_and_two_more;
	CHECK_RC(hands_run(&p, resumes, false), 0, &p.err);
	CHECK_INT(newest, 3);
	CHECK_STR(p.told, "M model/x: not in this checkpoint\nM model/y: not in this checkpoint\n");
	simdisk_free(disk);
}
