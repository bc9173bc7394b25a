/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_run_resume: every kind of damage, in memory and on disk, with SHEAF_LOAD_FALLBACK and
 * without, by a job that writes and by one that reads. */
#include <errno.h>
#include <stdlib.h>
#include "image_card.h"
#include "crc64.h"
#include "hands.h"
#include "restarts.h"
#include "save.h"
#include "simover.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "run_resume.h"

#define MODEL "model-00001-of-00001.safetensors"

static void held(struct hand *h)
{
	hand_cut(hand_add(h, "model", "a", SHEAF_BF16, 2, 61, 53), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "a/moment1_0", SHEAF_F32, 2, 61, 53), 0, h->rank,
	         h->ranks);
}

static void held_large(struct hand *h)
{
	held(h);
	hand_cut(hand_add(h, "optimizer", "big/moment1_0", SHEAF_F32, 2, 700, 701), 0, h->rank,
	         h->ranks);
}

/* The one that resumes leaves the optimizer out. */
static void held_in_part(struct hand *h)
{
	hand_cut(hand_add(h, "model", "a", SHEAF_BF16, 2, 61, 53), 0, h->rank, h->ranks);
}

/* Steps 1 to n. */
static struct simdisk *saved(int n)
{
	struct simdisk *disk = disk_new();

	for (int step = 1; step <= n; step++) {
		struct play p = hands_play(disk, 2, held);

		p.step = step;
		SAVED(p);
	}
	return disk;
}

enum { FILE_GONE, FILE_SHORT, FILE_LONG, TENSOR_FLIPPED, SUMS_GONE, SUMS_FLIPPED, MANIFEST_SHORT,
       MANIFEST_FLIPPED, MANIFEST_GONE, DAMAGES };

static void resize(struct simdisk *disk, const char *path, long by)
{
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path, &n), *more = calloc(1, n + 8192);

	CHECK(bytes && more);
	memcpy(more, bytes, n);
	CHECK_INT(simdisk_put(disk, path, more, (size_t)((long)n + by)), 0);
	free(bytes);
	free(more);
}

static void damage(struct simdisk *disk, int step, int kind)
{
	char model[120], sums[120], manifest[120];

	snprintf(model, sizeof(model), "run/checkpoint-%d/" MODEL, step);
	snprintf(sums, sizeof(sums), "run/checkpoint-%d/sheaf.sums", step);
	snprintf(manifest, sizeof(manifest), "run/checkpoint-%d/sheaf.json", step);
	switch (kind) {
	case FILE_GONE:
		CHECK_INT(simdisk_remove(disk, model), 0);
		break;
	case FILE_SHORT:
	case FILE_LONG:
		resize(disk, model, kind == FILE_LONG ? 4096 : -5);
		break;
	case TENSOR_FLIPPED:
		CHECK_INT(simdisk_flip(disk, model, 8 * 5000), 0);
		break;
	case SUMS_GONE:
		CHECK_INT(simdisk_remove(disk, sums), 0);
		break;
	case SUMS_FLIPPED:
		CHECK_INT(simdisk_flip(disk, sums, 8 * 140), 0);
		break;
	case MANIFEST_SHORT:
		resize(disk, manifest, -1);
		break;
	case MANIFEST_FLIPPED:
		CHECK_INT(simdisk_flip(disk, manifest, 300), 0);
		break;
	default:
		CHECK_INT(simdisk_remove(disk, manifest), 0);
		break;
	}
}

/* Puts another text of the same length behind `after` in its manifest, which then has its own sum
 * again. */
static void write_anew(struct simdisk *disk, int step, const char *after, const char *text)
{
	char path[80], sum[17];
	size_t n;
	uint8_t *bytes, *at;

	snprintf(path, sizeof(path), "run/checkpoint-%d/sheaf.json", step);
	bytes = simdisk_get(disk, path, &n);
	CHECK(bytes && n > 19);
	for (at = bytes; at + strlen(after) < bytes + n && memcmp(at, after, strlen(after)); at++)
		;
	CHECK(at + strlen(after) < bytes + n);
	memcpy(at + strlen(after), text, strlen(text));
	/* ,\n "self": "<16 digits>"}\n */
	snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)shf_crc64(bytes, n - 31));
	memcpy(bytes + n - 19, sum, 16);
	CHECK_INT(simdisk_put(disk, path, bytes, n), 0);
	free(bytes);
}

/* Loads, and a writer saves the next step. */
static int resume(struct hand *h)
{
	int64_t next;
	char why[200];
	struct sheaf_save *save = NULL;
	int rc = shf_run_resume(h->run, h->state, h->play->flags, &h->report, &h->err);

	if (rc < 0)
		return rc;
	if (hand_wrong(h, why, sizeof(why)))
		return shf_fail(&h->err, SHEAF_EBUG, "%s", why);
	next = h->report.step + 1;
	if (h->play->opts.flags & SHEAF_RUN_READONLY || h->play->variant)
		return 0;
	rc = shf_save_begin(&save, h->run, next, h->state, NULL, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static struct play played(struct simdisk *disk, bool reads, uint64_t flags)
{
	struct play p = hands_play(disk, 2, held);

	p.opts.flags = reads ? SHEAF_RUN_READONLY : SHEAF_RUN_CREATE;
	p.flags = flags;
	(void)hands_run(&p, resume, false);
	return p;
}

static bool is_aside(struct simdisk *disk, int step)
{
	char path[80];

	snprintf(path, sizeof(path), "run/checkpoint-%d", step);
	return !simdisk_exists(disk, path);
}

TEST(a_run_without_a_checkpoint_is_enoent_and_one_with_one_says_which)
{
	struct simdisk *disk = disk_new();
	struct play p;

	for (int falls = 0; falls < 2; falls++) {
		p = played(disk, false, falls ? SHEAF_LOAD_FALLBACK : 0);
		CHECK_RC(p.rc, SHEAF_ENOENT, &p.err);
	}
	simdisk_free(disk);
	disk = saved(2);
	p = played(disk, true, SHEAF_LOAD_FALLBACK);
	CHECK_RC(p.rc, 0, &p.err);
	CHECK_INT(p.report.step, 2);
	CHECK_INT(p.report.memory, 0);
	CHECK_INT(p.report.passed, 0);
	CHECK_STR(p.told, "");
	simdisk_free(disk);
}

static int resume_failed(struct hand *h)
{
	if (h->rank == 1)
		shf_state_fail(h->state, "no data", NULL);
	return shf_run_resume(h->run, h->state, h->play->flags, &h->report, &h->err);
}

TEST(a_state_that_failed_is_refused_also_where_there_is_no_checkpoint)
{
	struct simdisk *disk = disk_new();

	for (int falls = 0; falls < 2; falls++) {
		struct play p = hands_play(disk, 2, held);

		p.flags = falls ? SHEAF_LOAD_FALLBACK : 0;
		(void)hands_run(&p, resume_failed, false);
		CHECK_RC(p.rc, SHEAF_EFAILED, &p.err);
		CHECK_STR(p.err.msg, "no data");
		CHECK_INT(p.err.rank, 1);
	}
	simdisk_free(disk);
}

TEST(damage_on_disk_is_refused_or_passed_over_as_the_caller_says)
{
	for (int kind = 0; kind < DAMAGES; kind++)
		for (int how = 0; how < 4; how++) {
			bool reads = how & 1, falls = how & 2, none = kind == MANIFEST_GONE;
			struct simdisk *disk = saved(3);
			uint64_t hash;
			struct play p;

			damage(disk, 3, kind);
			hash = simdisk_hash(disk, "run");
			p = played(disk, reads, falls ? SHEAF_LOAD_FALLBACK : 0);
			if (!falls && !none) {
				CHECK_RC(p.rc, SHEAF_ECORRUPT, &p.err);
				CHECK(strstr(p.err.msg, "sheaf rewind run@2") != NULL);
				CHECK(!is_aside(disk, 3));
				simdisk_free(disk);
				continue;
			}
			if (p.rc < 0)
				print_error("kind %d, how %d: %s\n", kind, how, p.err.msg);
			CHECK_RC(p.rc, 0, &p.err);
			CHECK_INT(p.report.step, 2);
			CHECK_INT(p.report.passed, !none);
			CHECK_INT(hands_told(&p, 'P'), 1);
			CHECK(strstr(p.told, "checkpoint-3: ") != NULL);
			CHECK_INT(hands_told(&p, 'A'), !reads && !none);
			/* A reader changes nothing; a writer has saved a step 3 of its own. */
			CHECK(!reads || simdisk_hash(disk, "run") == hash);
			if (!reads) {
				p = played(disk, true, 0);
				CHECK_RC(p.rc, 0, &p.err);
				CHECK_INT(p.report.step, 3);
			}
			simdisk_free(disk);
		}
}

TEST(several_are_passed_over_until_one_is_whole)
{
	struct simdisk *disk = saved(5);
	struct play p;

	damage(disk, 5, TENSOR_FLIPPED);
	damage(disk, 4, FILE_GONE);
	damage(disk, 3, MANIFEST_FLIPPED);
	p = played(disk, false, SHEAF_LOAD_FALLBACK);
	CHECK_RC(p.rc, 0, &p.err);
	CHECK_INT(p.report.step, 2);
	CHECK_INT(p.report.passed, 3);
	CHECK_INT(hands_told(&p, 'A'), 3);
	CHECK(is_aside(disk, 5) && is_aside(disk, 4));
	simdisk_free(disk);
}

TEST(where_none_can_be_loaded_it_is_the_first_damage_and_nothing_is_set_aside)
{
	static const int older[] = { FILE_GONE, MANIFEST_GONE };

	for (size_t k = 0; k < 2; k++) {
		struct simdisk *disk = saved(3);
		struct play p;

		for (int step = 1; step <= 3; step++)
			damage(disk, step, step == 3 ? TENSOR_FLIPPED : older[k]);
		p = played(disk, false, SHEAF_LOAD_FALLBACK);
		CHECK_RC(p.rc, SHEAF_ECORRUPT, &p.err);
		CHECK(strstr(p.err.msg, "checkpoint-3") && strstr(p.err.msg, "nothing else could"));
		CHECK(!is_aside(disk, 3) && !is_aside(disk, 2) && !is_aside(disk, 1));
		simdisk_free(disk);
	}
}

TEST(where_all_manifests_are_gone_nothing_is_begun_afresh)
{
	for (int how = 0; how < 4; how++) {
		struct simdisk *disk = saved(3);
		struct play p;

		for (int step = 1; step <= 3; step++)
			damage(disk, step, MANIFEST_GONE);
		for (int again = 0; again < 2; again++) {
			p = played(disk, how & 1, how & 2 ? SHEAF_LOAD_FALLBACK : 0);
			CHECK_RC(p.rc, SHEAF_ECORRUPT, &p.err);
			CHECK(strstr(p.err.msg, "sheaf recover run lists them") != NULL);
			CHECK_INT(p.report.passed, 0);
		}
		CHECK(!is_aside(disk, 3) && !is_aside(disk, 2) && !is_aside(disk, 1));
		simdisk_free(disk);
	}
}

/* Somebody has moved it here. It stops nobody for ever. */
TEST(a_step_of_another_run_is_passed_over_like_a_damaged_one)
{
	for (int reads = 0; reads < 2; reads++) {
		struct simdisk *disk = saved(3);
		struct play p;

		write_anew(disk, 3, "\"run\": \"", "00000000");
		p = played(disk, reads, 0);
		CHECK_RC(p.rc, SHEAF_ECORRUPT, &p.err);
		p = played(disk, reads, SHEAF_LOAD_FALLBACK);
		CHECK_RC(p.rc, 0, &p.err);
		CHECK_INT(p.report.step, 2);
		CHECK(strstr(p.told, "is of run 00000000") != NULL);
		CHECK_INT(hands_told(&p, 'A'), !reads);
		simdisk_free(disk);
	}
}

/* Its steps are good, and whoever goes back to the sheaf that wrote them wants them. */
TEST(a_step_that_a_newer_sheaf_wrote_is_not_damaged)
{
	for (int how = 0; how < 4; how++) {
		bool reads = how & 1;
		int step = how & 2 ? 2 : 3;
		struct simdisk *disk = saved(3);
		uint64_t hash;
		struct play p;

		write_anew(disk, step, "{\"sheaf\": ", "2");
		if (step == 2)
			damage(disk, 3, TENSOR_FLIPPED);
		hash = simdisk_hash(disk, "run");
		p = played(disk, reads, SHEAF_LOAD_FALLBACK);
		CHECK_RC(p.rc, SHEAF_EFORMAT, &p.err);
		CHECK(strstr(p.err.msg, "use the version of sheaf that wrote it") != NULL);
		CHECK_INT(hands_told(&p, 'A'), 0);
		CHECK(!is_aside(disk, 3) && !is_aside(disk, 2));
		CHECK(!reads || simdisk_hash(disk, "run") == hash);
		simdisk_free(disk);
	}
}

/* An older step is passed over as well if it is damaged where this state does not look. */
TEST(what_is_gone_on_from_is_whole_also_where_the_state_does_not_look)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, held_large);

	for (p.step = 1; p.step <= 3; p.step++)
		SAVED(p);
	damage(disk, 3, TENSOR_FLIPPED);
	/* Not in block 0, which has the header. */
	CHECK_INT(simdisk_flip(disk, "run/checkpoint-2/optimizer/optimizer-00001-of-00001."
	                       "safetensors", 8 * 1500000), 0);
	p = hands_play(disk, 2, held_in_part);
	p.flags = SHEAF_LOAD_FALLBACK;
	p.variant = 1;
	CHECK_RC(hands_run(&p, resume, false), 0, &p.err);
	CHECK_INT(p.report.step, 1);
	CHECK_INT(p.report.passed, 2);
	CHECK(is_aside(disk, 3) && is_aside(disk, 2));
	simdisk_free(disk);
}

TEST(marked_bad_ones_are_no_candidates_and_if_all_are_it_is_said)
{
	struct simdisk *disk = saved(2);
	struct play p;

	CHECK_INT(simdisk_put(disk, "run/.sheaf/marks/2", "b", 1), 0);
	p = played(disk, true, SHEAF_LOAD_FALLBACK);
	CHECK_RC(p.rc, 0, &p.err);
	CHECK_INT(p.report.step, 1);
	CHECK(strstr(p.told, "checkpoint-2: marked bad") != NULL);
	CHECK_INT(simdisk_put(disk, "run/.sheaf/marks/1", "b", 1), 0);
	p = played(disk, false, SHEAF_LOAD_FALLBACK);
	CHECK_RC(p.rc, SHEAF_ECORRUPT, &p.err);
	CHECK(strstr(p.err.msg, "step 2 is marked bad") != NULL);
	simdisk_free(disk);
}

/* What cannot be read now may be read tomorrow. */
TEST(a_disk_that_answers_with_an_error_makes_nobody_fall_back)
{
	static const char *const names[] = { MODEL, "sheaf.sums", "sheaf.json", "checkpoint-3" };
	int fired = 0;

	for (int i = 0; i < 4; i++)
		for (int open = 0; open < 2; open++) {
			struct simdisk *disk = saved(3);
			struct simdisk_fault f = { .nth = 1, .always = true, .name = names[i],
				.kind = open ? SIMDISK_OPEN : SIMDISK_PREAD, .error = EIO };
			struct play p;

			simdisk_fault(disk, &f);
			p = played(disk, false, SHEAF_LOAD_FALLBACK);
			fired += simdisk_fired(disk) > 0;
			CHECK(p.rc == 0 ? p.report.step == 3 : p.rc == SHEAF_EIO);
			CHECK_INT(hands_told(&p, 'P'), 0);
			CHECK(!is_aside(disk, 3));
			simdisk_free(disk);
		}
	CHECK(fired >= 5);
}

/* The file is damaged when the step is loaded, as it may be in the page cache alone, and right when
 * it is opened a second time. */
static struct {
	struct simdisk *disk;
	int opened;
	bool fails;                     /* it cannot be opened again */
} passing;

static int open_healed(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	bool again = strcmp(name, MODEL) == 0 && ++passing.opened == 2;

	if (again && passing.fails)
		return -EIO;
	if (again)
		CHECK_INT(simdisk_flip(passing.disk, "run/checkpoint-3/" MODEL, 8 * 5000), 0);
	return simover_real()->file.open(arg, dir, name, flags, mode);
}

static void heals(struct hand *h)
{
	passing.disk = h->play->disk;
	passing.opened = 0;
	simover(&h->used)->file.open = open_healed;
}

TEST(damage_that_a_second_read_does_not_find_is_no_reason_to_fall_back)
{
	struct simdisk *disk = saved(3);
	struct play p = hands_play(disk, 1, held);

	damage(disk, 3, TENSOR_FLIPPED);
	p.flags = SHEAF_LOAD_FALLBACK;
	p.tamper = heals;
	CHECK_RC(hands_run(&p, resume, false), SHEAF_ECORRUPT, &p.err);
	CHECK_INT(passing.opened, 2);
	CHECK(strstr(p.err.msg, "read again, the checkpoint is whole") != NULL);
	CHECK(!is_aside(disk, 3));
	p = played(disk, false, SHEAF_LOAD_FALLBACK);
	CHECK_RC(p.rc, 0, &p.err);
	CHECK_INT(p.report.step, 3);
	simdisk_free(disk);
}

TEST(damage_that_cannot_be_confirmed_is_no_reason_to_fall_back)
{
	struct simdisk *disk = saved(3);
	struct play p = hands_play(disk, 1, held);

	damage(disk, 3, TENSOR_FLIPPED);
	p.flags = SHEAF_LOAD_FALLBACK;
	p.tamper = heals;
	passing.fails = true;
	CHECK_RC(hands_run(&p, resume, false), SHEAF_EIO, &p.err);
	passing.fails = false;
	CHECK_INT(hands_told(&p, 'P'), 0);
	CHECK(!is_aside(disk, 3));
	simdisk_free(disk);
}

TEST(flags_that_make_no_sense_together_are_refused)
{
	struct simdisk *disk = saved(1);
	struct play p = played(disk, true, SHEAF_LOAD_FALLBACK | SHEAF_LOAD_DRY);

	CHECK_RC(p.rc, SHEAF_EINVAL, &p.err);
	p = hands_play(disk, 2, held);
	p.flags = SHEAF_LOAD_FALLBACK;
	p.step = SHEAF_LATEST;
	CHECK_RC(hands_load(&p), SHEAF_EINVAL, &p.err);
	simdisk_free(disk);
}

static int only_resume(struct hand *h)
{
	return shf_run_resume(h->run, h->state, h->play->flags, &h->report, &h->err);
}

static int resume_beside_a_save(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, 2, h->state, NULL, &h->err);

	if (rc == 0)
		rc = only_resume(h);
	shf_save_free(save);
	return rc;
}

/* A resume that does not fall back is an open and a load, and may do what they may. */
TEST(only_a_resume_that_falls_back_refuses_to_plan_and_to_run_beside_a_save)
{
	for (int falls = 0; falls < 2; falls++) {
		struct simdisk *disk = saved(1);
		struct play p = hands_play(disk, 2, held);

		p.flags = falls ? SHEAF_LOAD_FALLBACK : 0;
		CHECK_RC(hands_run(&p, resume_beside_a_save, true), falls ? SHEAF_EINVAL : 0,
		         &p.err);
		CHECK(!falls || strstr(p.err.msg, "step 2 is being saved") != NULL);
		p.flags |= SHEAF_LOAD_DRY;
		CHECK_RC(hands_run(&p, only_resume, false), falls ? SHEAF_EINVAL : 0, &p.err);
		CHECK_INT(p.report.loaded, falls ? 0 : 2);
		simdisk_free(disk);
	}
}

/* The job dies at any point of the rewind: the next job falls back to the same step. */
TEST(a_cut_before_the_damaged_one_is_aside_changes_nothing_that_matters)
{
	struct simdisk *disk = saved(3);
	size_t cuts;
	struct play p;

	damage(disk, 3, TENSOR_FLIPPED);
	simdisk_settle(disk);
	p = hands_play(disk, 2, held);
	p.flags = SHEAF_LOAD_FALLBACK;
	p.variant = 1;
	CHECK_RC(hands_run(&p, resume, false), 0, &p.err);
	cuts = simdisk_cut_n(disk);
	for (size_t cut = 0; cut < cuts; cut++) {
		struct simdisk *left = simdisk_crash(disk, cut, NULL);

		p = played(left, false, SHEAF_LOAD_FALLBACK);
		CHECK_RC(p.rc, 0, &p.err);
		CHECK_INT(p.report.step, 2);
		p = played(left, true, 0);
		CHECK_INT(p.report.step, 3);    /* the new one */
		simdisk_free(left);
	}
	CHECK(cuts > 5);
	simdisk_free(disk);
}

/* ---- in memory ---- */

struct cards {
	int n;
	char names[32][SHF_KEEP_NAME];
};

static int note_card(void *arg, const char *name)
{
	struct cards *c = arg;

	if (strstr(name, ".card") && c->n < 32)
		snprintf(c->names[c->n++], SHF_KEEP_NAME, "%s", name);
	return 0;
}

static int64_t step_of(const struct shf_shm *shm)
{
	struct shf_arena arena = { 0 };
	struct shf_card card;
	int64_t step = shf_card_decode(&card, &arena, shm) == 0 && card.segs_n ? card.step : -1;

	shf_arena_release(&arena);
	return step;
}

/* Flips a byte in each image of that step in memory. Returns how many images. */
static int flip_in_memory(struct simdisk *d, int64_t step)
{
	static uint64_t pid = 50000;
	const struct shf_sys *sys = simdisk_process(d, pid++, 0);
	struct cards c = { 0 };
	int keep, n = 0;

	CHECK_INT(shf_sys_keep_open(sys, "auto/x", "", "", &keep, NULL), 0);
	CHECK_INT(shf_sys_keep_list(sys, keep, note_card, &c), 0);
	for (int i = 0; i < c.n; i++) {
		struct shf_shm shm = { NULL, 0, -1 };
		int64_t of;

		if (shf_sys_keep_get(sys, keep, c.names[i], &shm) < 0)
			continue;
		of = step_of(&shm);
		shf_sys_shm_free(sys, &shm);
		if (of != step)
			continue;
		strcpy(strrchr(c.names[i], '.'), ".image");
		CHECK_INT(shf_sys_keep_get(sys, keep, c.names[i], &shm), 0);
		((uint8_t *)shm.base)[shm.bytes / 2] ^= 16;
		shf_sys_shm_free(sys, &shm);
		n++;
	}
	simdisk_kill(d, sys);
	return n;
}

/* Saves steps 1 to last to memory, each third also to disk, and damages steps in memory and, with
 * `disk`, on disk. */
static struct simdisk *remembered(int last, int flipped, int older, bool disk)
{
	struct simdisk *d = re_world(7);
	struct re_job j = re_on(d, 2, (struct re_plan){ .last = last, .disk_every = 3,
	                                                .images = 3 });
	char path[120];

	PLAYED(j, 0);
	CHECK(flip_in_memory(d, flipped) > 0);
	CHECK(older == 0 || flip_in_memory(d, older) > 0);
	snprintf(path, sizeof(path), "run/checkpoint-%d/" MODEL, flipped);
	if (disk)
		CHECK_INT(simdisk_flip(d, path, 8 * 5000), 0);
	return d;
}

static const struct {
	const char *name;
	int last, flipped, older;
	bool disk;                      /* its copy there, too */
	int found, passed;              /* with SHEAF_LOAD_FALLBACK */
	int without;                    /* and after a first try without; 0: refused again */
} memories[] = {
	{ "alone in memory", 5, 5, 0, false, 4, 1, 0 },
	{ "and the one before it in memory, too", 5, 5, 4, false, 3, 2, 0 },
	{ "also on disk", 6, 6, 0, false, 6, 1, 6 },
	{ "there, too, and damaged", 6, 6, 0, true, 3, 2, 0 },
};

TEST(damage_in_memory_is_refused_or_passed_over_as_the_caller_says)
{
	for (size_t k = 0; k < sizeof(memories) / sizeof(*memories); k++)
		for (int reads = 0; reads < 2; reads++) {
			struct simdisk *d = remembered(memories[k].last, memories[k].flipped,
			                               memories[k].older, memories[k].disk);
			struct re_plan plan = { .resumes = true, .falls = true, .stop = true,
			                        .readonly = reads };
			struct re_job once = re_on(d, 2, plan), again = re_on(d, 1, plan);

			PLAYED(once, 0);
			if (once.loaded != memories[k].found)
				print_error("%s: %d\n", memories[k].name, (int)once.loaded);
			CHECK_INT(once.loaded, memories[k].found);
			CHECK_INT(once.passed, memories[k].passed);
			PLAYED(again, 0);
			CHECK_INT(again.loaded, memories[k].found);
			/* A reader has set nothing aside. */
			CHECK_INT(again.passed, reads ? memories[k].passed : 0);
			simdisk_free(d);
		}
}

TEST(without_the_flag_damage_in_memory_is_refused_unless_the_disk_has_the_same)
{
	for (size_t k = 0; k < sizeof(memories) / sizeof(*memories); k++) {
		struct simdisk *d = remembered(memories[k].last, memories[k].flipped,
		                               memories[k].older, memories[k].disk);
		struct re_job j = re_on(d, 2, (struct re_plan){ .resumes = true, .stop = true });

		for (int i = 0; i < 3; i++) {
			j.why[0] = '\0';
			PLAYED(j, i && memories[k].without ? 0 : SHEAF_ECORRUPT);
			CHECK_INT(j.loaded, i && memories[k].without ? memories[k].without : -1);
		}
		simdisk_free(d);
	}
}

/* Whoever fell back saves on, and the next job finds that. */
TEST(training_goes_on_from_where_a_job_fell_back_to)
{
	for (size_t k = 0; k < sizeof(memories) / sizeof(*memories); k++) {
		struct simdisk *d = remembered(memories[k].last, memories[k].flipped,
		                               memories[k].older, memories[k].disk);
		struct re_job j = re_on(d, 2, (struct re_plan){ .resumes = true, .falls = true,
			.last = 8, .disk_every = 4, .images = 3, .dies = true });
		struct re_job next = re_on(d, 1, (struct re_plan){ .resumes = true, .stop = true });

		PLAYED(j, 0);
		CHECK_INT(j.acked, 8);
		PLAYED(next, 0);
		CHECK_INT(next.loaded, 8);
		simdisk_free(d);
	}
}

/* ---- by a handle that lives on ---- */

struct one {                    /* a job of one rank */
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct re_mine m;
	struct sheaf_error err;
	char told[300];                 /* "P checkpoint-3; ", of each */
};

static struct one one_tries(struct simdisk *disk, int images, int attempts)
{
	static uint64_t pid = 72000;
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .agent = "auto",
		.images_max = images, .io_threads = 1, .resume_attempts_max = attempts };
	struct one o = { .disk = disk };

	o.sys = simdisk_process(o.disk, pid++, 0);
	o.state = re_state(&o.m, 0, 1);
	CHECK_RC(shf_run_open(&o.run, "run", NULL, &opts, o.sys, &o.err), 0, &o.err);
	return o;
}

static struct one one_opens(struct simdisk *disk, int images)
{
	return one_tries(disk, images, 0);
}

static struct one one_job(int images)
{
	return one_opens(re_world(9), images);
}

static int one_saves(struct one *o, int64_t step, bool disk)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = disk ? 0
	                                : SHEAF_SAVE_NO_DISK };
	struct sheaf_save *save = NULL;
	int rc;

	re_paint(&o->m, step);
	rc = shf_save_begin(&save, o->run, step, o->state, &opts, &o->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &o->err);
	shf_save_free(save);
	return rc;
}

static void one_is_told(void *arg, int32_t kind, const char *family, const char *name,
                        const char *msg)
{
	struct one *o = arg;
	size_t n = strlen(o->told);

	(void)family;
	(void)msg;
	if (kind == SHEAF_REPORT_PASSED_OVER || kind == SHEAF_REPORT_SET_ASIDE)
		snprintf(o->told + n, sizeof(o->told) - n, "%c %s; ", hands_letter(kind), name);
}

static struct sheaf_report one_falls_back(struct one *o)
{
	struct sheaf_report report = { .size = sizeof(report), .item = one_is_told, .arg = o };

	o->told[0] = '\0';
	CHECK_RC(shf_run_resume(o->run, o->state, SHEAF_LOAD_FALLBACK, &report, &o->err), 0,
	         &o->err);
	return report;
}

static void one_dies(struct one *o)
{
	simdisk_kill(o->disk, o->sys);  /* what follows frees memory only */
	shf_run_close(o->run);
	shf_state_put(o->state);
	re_free(&o->m);
}

/* Which step does a job go on from that comes after it? */
static int64_t next_finds(struct simdisk *d)
{
	struct re_job next = re_on(d, 1, (struct re_plan){ .resumes = true, .stop = true });

	PLAYED(next, 0);
	return next.loaded;
}

/* It fell back to a step in memory, and saves the numbers of those it gave up once more. */
TEST(a_handle_that_fell_back_to_memory_saves_the_next_step_there)
{
	for (int disk = 0; disk < 2; disk++) {
		struct one o = one_job(3);

		for (int64_t step = 1; step <= 5; step++)
			CHECK_RC(one_saves(&o, step, step == 3), 0, &o.err);
		CHECK_INT(flip_in_memory(o.disk, 5), 1);
		CHECK_INT(one_falls_back(&o).step, 4);
		CHECK_RC(one_saves(&o, 5, disk), 0, &o.err);
		CHECK_RC(one_saves(&o, 6, disk), 0, &o.err);
		one_dies(&o);
		CHECK_INT(next_finds(o.disk), 6);
		simdisk_free(o.disk);
	}
}

/* What it fell back to is in memory alone, so that a save that is cut must not take its image. */
TEST(what_a_handle_fell_back_to_in_memory_stays_until_a_newer_step_is_there)
{
	struct one o = one_job(2);
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_NO_DISK };
	struct sheaf_save *save = NULL;

	for (int64_t step = 1; step <= 4; step++)
		CHECK_RC(one_saves(&o, step, step == 1), 0, &o.err);
	CHECK_INT(flip_in_memory(o.disk, 4), 1);
	CHECK_INT(one_falls_back(&o).step, 3);
	CHECK_RC(shf_save_begin(&save, o.run, 4, o.state, &opts, &o.err), 0, &o.err);
	simdisk_kill(o.disk, o.sys);
	shf_save_free(save);
	one_dies(&o);
	CHECK_INT(next_finds(o.disk), 3);
	simdisk_free(o.disk);
}

/* Of what it goes on from, nobody has read the copy on disk. */
TEST(memory_that_was_proved_is_not_given_up_for_a_copy_on_disk_that_was_not)
{
	for (int same = 0; same < 2; same++) {
		struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_NO_DISK };
		struct sheaf_save *save = NULL;
		struct one o = one_job(2), b;

		for (int64_t step = 1; step <= 4; step++)
			CHECK_RC(one_saves(&o, step, true), 0, &o.err);
		CHECK_INT(flip_in_memory(o.disk, 4), 1);
		CHECK_INT(simdisk_flip(o.disk, "run/checkpoint-4/" MODEL, 8 * 5000), 0);
		CHECK_INT(simdisk_flip(o.disk, "run/checkpoint-3/" MODEL, 8 * 5000), 0);
		b = o;
		if (!same) {
			one_dies(&o);
			b = one_opens(o.disk, 2);
		}
		CHECK_INT(one_falls_back(&b).step, 3);
		CHECK(is_aside(o.disk, 4) && !is_aside(o.disk, 3));
		/* It dies in its next save, before that is anywhere. */
		CHECK_RC(shf_save_begin(&save, b.run, 4, b.state, &opts, &b.err), 0, &b.err);
		simdisk_kill(b.disk, b.sys);
		shf_save_free(save);
		one_dies(&b);
		CHECK_INT(next_finds(o.disk), 3);
		simdisk_free(o.disk);
	}
}

/* Both were tried in vain, and the older one, the last there is, is loaded all the same. */
TEST(the_report_passes_over_no_step_that_is_loaded)
{
	static const char *const told[] = { "", "P memory of checkpoint-2; ",
		"P memory of checkpoint-2; " };
	static const int64_t loads[] = { 2, 1, 1 };
	struct simdisk *d = re_world(9);
	struct one o = one_opens(d, 2);

	CHECK_RC(one_saves(&o, 1, false), 0, &o.err);
	CHECK_RC(one_saves(&o, 2, false), 0, &o.err);
	one_dies(&o);
	for (int i = 0; i < 3; i++) {
		o = one_tries(d, 2, 1);
		CHECK_INT(one_falls_back(&o).step, loads[i]);
		CHECK_STR(o.told, told[i]);
		one_dies(&o);
	}
	simdisk_free(d);
}
