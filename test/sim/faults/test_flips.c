/* SPDX-License-Identifier: Apache-2.0 */
/* A run of at most 64 KiB, harmed in every small way: each bit of each file, each length, each file
 * in another's place, each value of the manifest. What verify and load say is compared with what
 * was changed; a load that says 0 has every byte as it was saved, or it is a wrong restore.
 *
 *   test_flips [--long] [--seed N] [--trial N] [--json] [part of a test's name ...]
 *
 * Without --long every some-teenth of them, by the seed. --trial: only that one of each test.
 * --json: the last line is an object with the counts. */
#include <inttypes.h>
#include <stdlib.h>
#include "step.h"
#include "harmedit.h"
#include "harmflight.h"
#include "harmtry.h"
#include "run_open.h"
#include "step_open.h"
#include "run_ops.h"
#include "load.h"

#define main t_main
#include "t.h"
#undef main

#define SALT UINT64_C(0x5eaf)
#define RENEW 1000              /* looks, before the disk is copied anew: it keeps a log */

static struct {
	uint64_t seed, trial;           /* trial: UINT64_MAX: all */
	bool all, json;
	struct harm_flights air;
	uint64_t flips, cuts, more, swaps, files, edits, unknown, wrong;
} opt = { .seed = 0x5eaf, .trial = UINT64_MAX };

/* ---- the run, and its copies ---- */

static struct scene {
	struct simdisk *base, *disk;
	struct harm_run run;
	struct harm_eye eye;
	uint64_t hash, looks, trial;    /* trial: number of the next one of this test */
	int bad;
	const char *test;
} scene;

static void scene_open(struct scene *s, const char *test)
{
	*s = (struct scene){ .test = test, .base = simdisk_new(opt.seed, SIMDISK_STRICT) };
	harm_save(s->base, "run", SALT);
	harm_walk(&s->run, s->base, "run");
	s->hash = simdisk_hash(s->base, "run");
	s->disk = harm_copy(s->base);
	harm_eye_open(&s->eye, s->disk, SALT);
}

static void scene_renew(struct scene *s)
{
	simdisk_free(s->disk);
	s->disk = harm_copy(s->base);
	harm_eye_move(&s->eye, s->disk);
}

static void scene_close(struct scene *s)
{
	harm_eye_close(&s->eye);
	harm_release(&s->run);
	simdisk_free(s->disk);
	simdisk_free(s->base);
	CHECK_INT(s->bad, 0);
}

/* Is it the next one's turn? One of `of`, or all. */
static bool turn(struct scene *s, uint64_t of)
{
	uint64_t n = s->trial++;

	if (opt.trial != UINT64_MAX)
		return n == opt.trial;
	return opt.all || n % of == opt.seed % of;
}

static void complain(struct scene *s, const char *what, const char *why, bool wrong)
{
	opt.wrong += wrong;
	if (s->bad++ < 20)
		print_error("%s: %s\n  again: test_flips --seed 0x%" PRIx64 " --trial %" PRIu64
		            " %s\n", what, why, opt.seed, s->trial - 1, s->test);
}

static void put(struct scene *s, const struct harm_file *f, const void *bytes, size_t n)
{
	CHECK_INT(simdisk_put(s->disk, f->path, bytes, n), 0);
}

/* The file as it was; and now and then a disk without a history. */
static void mend(struct scene *s, const struct harm_file *f)
{
	put(s, f, f->bytes, f->n);
	if (s->looks % RENEW == 0) {
		CHECK(simdisk_hash(s->disk, "run") == s->hash);
		scene_renew(s);
	}
}

/* What is harmed on the disk is looked at in ways that change with the number of the trial. */
static void look_at(struct scene *s, const struct harm_changed *c, int64_t step, bool numbered,
                    const char *what)
{
	uint64_t n = s->looks++;
	struct harm_look l = { .dir = "run", .step = step, .ranks = n % 16 == 15 ? 2 : 1,
		.order = n % HARM_ORDERS, .verify_only = step == HARM_BAD };
	char path[64], why[600];
	bool closed, wrong;

	snprintf(path, sizeof(path), "run/checkpoint-%d", (int)step);
	l.path = n % 8 == 3 && !numbered ? path : NULL;
	for (int i = 0; i < c->n; i++)
		if (c->file[i]->kind == HARM_ATTACHED || c->file[i]->kind == HARM_INDEX)
			l.attached = c->file[i]->name;
	closed = harm_look(&s->eye, &l);
	harm_judge(&l, c, why, &wrong);
	if (!closed && !why[0])
		snprintf(why, sizeof(why), "a descriptor was left open");
	if (why[0])
		complain(s, what, why, wrong);
}

/* ---- flips ---- */

static void flip(struct scene *s, const struct harm_file *f, size_t bit)
{
	struct harm_changed c = { .file = { f }, .n = 1 };
	char family[40], name[80], what[300];

	harm_owner(f, bit / 8, family, name);
	c.family = family;
	c.name = name;
	snprintf(what, sizeof(what), "%s bit %zu of byte %zu", f->path, bit % 8, bit / 8);
	CHECK_INT(simdisk_flip(s->disk, f->path, bit), 0);
	look_at(s, &c, f->step, false, what);
	CHECK_INT(simdisk_flip(s->disk, f->path, bit), 0);
	opt.flips++;
	if (s->looks % RENEW)
		return;
	CHECK(simdisk_hash(s->disk, "run") == s->hash);
	scene_renew(s);
}

TEST(every_flip_in_a_step_is_found_and_no_load_is_wrong)
{
	struct scene *s = &scene;

	scene_open(s, __func__ + 2);
	CHECK(s->run.bytes <= HARM_BYTES);
	for (int i = 0; i < s->run.files_n; i++) {
		const struct harm_file *f = &s->run.files[i];

		for (size_t bit = 0; f->kind != HARM_DOT && bit < 8 * f->n; bit++)
			if (turn(s, 61))
				flip(s, f, bit);
	}
	scene_close(s);
}

/* ---- below .sheaf, and steps that are not the latest ---- */

/* Who only looks gets the latest step, all of it, or a sentence that names the file. */
static void look_past(struct scene *s, const struct harm_file *f, const char *what)
{
	struct harm_look l = { .dir = "run", .step = SHEAF_LATEST,
		.ranks = s->looks++ % 16 == 15 ? 2 : 1 };
	struct harm_changed none = { .n = 0 };
	char why[600], said[1600];
	bool closed = harm_look(&s->eye, &l), wrong;

	snprintf(said, sizeof(said), "%s %s", l.open_msg, l.log);
	harm_judge(&l, &none, why, &wrong);
	if (!why[0] && l.opened != HARM_LATEST)
		snprintf(why, sizeof(why), "opened step %d, a word: %.400s", (int)l.opened,
		         l.log);
	if (why[0] && !wrong && f->kind == HARM_DOT && l.load_rc == 1 && strstr(said, f->path))
		why[0] = '\0';
	if (!closed && !why[0])
		snprintf(why, sizeof(why), "a descriptor was left open");
	if (why[0])
		complain(s, what, why, wrong);
}

/* The next job: opens to write, loads the latest, prunes, saves on. 0, or what was refused. */
static int next_job(struct scene *s, struct simdisk *disk, struct harm_hand *h, bool *right,
                    struct sheaf_error *err)
{
	const struct shf_sys *sys = simdisk_process(disk, 900 + s->looks, 0);
	struct shf_opts opts = { .keep_last = 1 };
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_run_open(&run, "run", NULL, &opts, sys, err);

	*right = true;
	harm_hand_want(h, HARM_LATEST);
	if (rc == 0)
		rc = shf_step_open(&step, run, SHEAF_LATEST, err);
	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, NULL, err);
	if (rc == 0)
		*right = harm_hand_right(h);
	shf_step_put(step);
	if (rc == 0)
		rc = shf_run_prune(run, false, NULL, NULL, err);
	rc = rc > 0 ? 0 : rc;
	if (rc == 0) {
		run->opts.keep_last = 0;
		rc = harm_save_step(run, HARM_BAD + 2, h->state, err);
	}
	if (run)
		shf_run_close(run);
	simdisk_kill(disk, sys);
	return rc;
}

/* Whatever became of the job, each step is where it was, and as it was. */
static void write_past(struct scene *s, const struct harm_file *f, size_t bit, const char *what)
{
	struct simdisk *disk = harm_copy(s->base);
	struct sheaf_error err = { 0 };
	char why[600] = "", path[64];
	bool right;
	int rc;

	CHECK_INT(simdisk_flip(disk, f->path, bit), 0);
	rc = next_job(s, disk, &s->eye.alone, &right, &err);
	if (!right)
		snprintf(why, sizeof(why), "the next job loaded something else");
	else if (rc < 0 && !strstr(err.msg, f->path))
		snprintf(why, sizeof(why), "the next job: %d %.300s", rc, err.msg);
	for (int step = HARM_OLDER; step <= HARM_BAD && !why[0]; step++) {
		snprintf(path, sizeof(path), "run/checkpoint-%d", step);
		if (simdisk_hash(disk, path) != simdisk_hash(s->base, path))
			snprintf(why, sizeof(why), "%s is gone or changed: %d %.300s", path, rc,
			         err.msg);
	}
	snprintf(path, sizeof(path), "run/checkpoint-%d/sheaf.json", HARM_BAD + 2);
	if (!why[0] && rc == 0 && !simdisk_exists(disk, path))
		snprintf(why, sizeof(why), "the next job's step is not there");
	if (why[0])
		complain(s, what, why, !right);
	simdisk_free(disk);
}

static void flip_past(struct scene *s, const struct harm_file *f, size_t bit)
{
	char what[300];

	snprintf(what, sizeof(what), "%s bit %zu of byte %zu", f->path, bit % 8, bit / 8);
	CHECK_INT(simdisk_flip(s->disk, f->path, bit), 0);
	look_past(s, f, what);
	CHECK_INT(simdisk_flip(s->disk, f->path, bit), 0);
	if (f->kind == HARM_DOT && !strstr(f->name, "aside/"))
		write_past(s, f, bit, what);
	opt.flips += f->kind == HARM_DOT;
	if (s->looks % RENEW == 0)
		scene_renew(s);
}

TEST(no_flip_outside_a_step_makes_a_wrong_restore_or_loses_a_step)
{
	struct scene *s = &scene;
	int dots = 0;

	scene_open(s, __func__ + 2);
	for (int i = 0; i < s->run.files_n; i++) {
		const struct harm_file *f = &s->run.files[i];
		bool own = f->kind == HARM_DOT && !strstr(f->name, "aside/");

		dots += own;
		for (size_t bit = 0; (own || f->kind == HARM_DOT || f->step == HARM_BAD) &&
		                     bit < 8 * f->n; bit++)
			if (turn(s, own ? 7 : 61))
				flip_past(s, f, bit);
	}
	/* run, lock, door, two marks, a count of tries, the count of rewinds */
	CHECK_INT(dots, 7);
	scene_close(s);
}

/* ---- lengths ---- */

/* A file of another length stops the latest too; only a step whose manifest is gone is passed over,
 * and that with a word. */
static void latest_at(struct scene *s, const struct harm_changed *c, const char *what)
{
	struct harm_look l = { .dir = "run", .step = SHEAF_LATEST, .ranks = 1 };
	char why[600] = "", said[1600];
	bool closed = harm_look(&s->eye, &l), wrong = l.load_rc == 0 && !l.right;

	s->looks++;
	snprintf(said, sizeof(said), "%s %s", l.open_msg, l.log);
	if (wrong)
		snprintf(why, sizeof(why), "latest: loaded something else");
	else if (l.open_rc == SHEAF_ECORRUPT ? !strstr(said, "manifest") && !harm_named(c, said)
	                                     : l.open_rc != 0)
		snprintf(why, sizeof(why), "latest: %d %.300s", l.open_rc, l.open_msg);
	else if (l.open_rc == 0 && l.opened != HARM_LATEST &&
	         (c->file[0]->kind != HARM_MANIFEST || !strstr(l.log, "checkpoint-8")))
		snprintf(why, sizeof(why), "latest: opened %d; %.300s", (int)l.opened, l.log);
	if (!closed && !why[0])
		snprintf(why, sizeof(why), "a descriptor was left open");
	if (why[0])
		complain(s, what, why, wrong);
}

static void length(struct scene *s, const struct harm_file *f, const void *bytes, size_t n,
                   const char *how)
{
	struct harm_changed c = { .file = { f }, .n = 1 };
	char what[300];

	snprintf(what, sizeof(what), "%s %s, %zu bytes of %zu", f->path, how, n, f->n);
	put(s, f, bytes, n);
	look_at(s, &c, f->step, false, what);
	if (f->step == HARM_LATEST && s->looks % 4 == 0)
		latest_at(s, &c, what);
	mend(s, f);
}

TEST(every_truncation_is_found)
{
	struct scene *s = &scene;

	scene_open(s, __func__ + 2);
	for (int i = 0; i < s->run.files_n; i++) {
		const struct harm_file *f = &s->run.files[i];

		for (size_t n = 0; f->kind != HARM_DOT && n < f->n; n++)
			if (turn(s, 23)) {
				length(s, f, f->bytes, n, "cut");
				opt.cuts++;
			}
	}
	scene_close(s);
}

TEST(whatever_a_file_grew_by_is_found)
{
	static const size_t by[] = { 1, 7, 4096 };
	struct scene *s = &scene;
	uint8_t *more;

	scene_open(s, __func__ + 2);
	for (int i = 0; i < s->run.files_n; i++) {
		const struct harm_file *f = &s->run.files[i];

		more = malloc(f->n + 4096);
		CHECK(more != NULL);
		memcpy(more, f->bytes, f->n);
		for (int k = 0; k < 9 && f->kind != HARM_DOT; k++) {
			for (size_t b = 0; b < by[k % 3]; b++)
				more[f->n + b] = k < 3 ? 0 : k < 6 ? (uint8_t)(b * 131 + 7)
				                                   : f->bytes[b % f->n];
			if (turn(s, 1)) {
				length(s, f, more, f->n + by[k % 3],
				       k < 3 ? "and zeros" : k < 6 ? "and garbage" : "and itself");
				opt.more++;
			}
		}
		free(more);
	}
	scene_close(s);
}

/* ---- files in each other's place, gone, and too many ---- */

static bool is_as_saved(struct scene *s, const struct harm_file *f)
{
	size_t n = 0;
	uint8_t *now = simdisk_get(s->disk, f->path, &n);
	bool same = now && n == f->n && memcmp(now, f->bytes, n) == 0;

	free(now);
	return same;
}

/* What of a step is not as it was. */
static void changed_in(struct scene *s, int64_t step, struct harm_changed *c)
{
	*c = (struct harm_changed){ .n = 0 };
	for (int i = 0; i < s->run.files_n; i++)
		if (s->run.files[i].step == step && !is_as_saved(s, &s->run.files[i]))
			c->file[c->n++] = &s->run.files[i];
}

/* By its path a step with a manifest that is somebody's opens; nobody is content with it. */
static void by_path(struct scene *s, int64_t step, const char *what)
{
	char path[64], why[600] = "";
	struct harm_look l = { .path = path, .ranks = 1 };
	bool wrong;

	snprintf(path, sizeof(path), "run/checkpoint-%d", (int)step);
	CHECK(harm_look(&s->eye, &l));
	wrong = l.load_rc == 0 && !l.right;
	if (l.open_rc == SHEAF_ECORRUPT)
		return;
	if (l.open_rc || l.verify_rc != SHEAF_ECORRUPT || l.load_rc != SHEAF_ECORRUPT)
		snprintf(why, sizeof(why), "by path: %d, verify %d, load %d: %.300s", l.open_rc,
		         l.verify_rc, l.load_rc, l.load_msg);
	if (why[0])
		complain(s, what, why, wrong);
}

static void look_at_step(struct scene *s, int64_t step, const char *what)
{
	struct harm_changed c;
	bool manifest = false;

	changed_in(s, step, &c);
	for (int i = 0; i < c.n; i++)
		manifest |= c.file[i]->kind == HARM_MANIFEST;
	if (manifest)
		by_path(s, step, what);
	look_at(s, &c, step, manifest, what);
	if (step == HARM_LATEST && c.n > 0)
		latest_at(s, &c, what);
}

static void swap(struct scene *s, const struct harm_file *a, const struct harm_file *b)
{
	char what[500];

	snprintf(what, sizeof(what), "%s and %s in each other's place", a->path, b->path);
	put(s, a, b->bytes, b->n);
	put(s, b, a->bytes, a->n);
	look_at_step(s, a->step, what);
	if (b->step != a->step)
		look_at_step(s, b->step, what);
	put(s, a, a->bytes, a->n);
	mend(s, b);
	opt.swaps++;
}

static bool in_full_step(const struct harm_file *f)
{
	return f->step == HARM_OLDER || f->step == HARM_LATEST;
}

/* All pairs of a step; the same file of the two; any file of one for any of the other. */
TEST(files_in_each_others_place_are_found)
{
	struct scene *s = &scene;

	scene_open(s, __func__ + 2);
	for (int i = 0; i < s->run.files_n; i++)
		for (int k = i + 1; k < s->run.files_n; k++) {
			const struct harm_file *a = &s->run.files[i], *b = &s->run.files[k];

			if (in_full_step(a) && in_full_step(b) && turn(s, 1))
				swap(s, a, b);
		}
	scene_close(s);
}

TEST(an_older_file_or_another_runs_in_a_files_place_is_found)
{
	struct scene *s = &scene;
	struct simdisk *far = simdisk_new(opt.seed + 1, SIMDISK_STRICT);
	struct harm_run other;

	scene_open(s, __func__ + 2);
	harm_save(far, "run", SALT + 1);
	harm_walk(&other, far, "run");
	for (int i = 0; i < s->run.files_n; i++) {
		const struct harm_file *f = &s->run.files[i];

		for (int k = 0; k < 2 && in_full_step(f); k++) {
			const struct harm_file *g = k ? harm_find(&other, f->step, f->name)
				: harm_find(&s->run, HARM_OLDER + HARM_LATEST - f->step, f->name);
			char what[300];

			CHECK(g != NULL);
			if (!turn(s, 1))
				continue;
			snprintf(what, sizeof(what), "%s of %s in its place", f->path,
			         k ? "another run" : "the other step");
			put(s, f, g->bytes, g->n);
			look_at_step(s, f->step, what);
			mend(s, f);
			opt.swaps++;
		}
	}
	harm_release(&other);
	simdisk_free(far);
	scene_close(s);
}

TEST(each_file_that_is_gone_is_missed)
{
	struct scene *s = &scene;
	char what[300];

	scene_open(s, __func__ + 2);
	for (int i = 0; i < s->run.files_n; i++) {
		const struct harm_file *f = &s->run.files[i];
		struct harm_changed c = { .file = { f }, .n = 1 };

		for (int k = 0; k < 17 && f->kind != HARM_DOT; k++) { /* in all ways of looking */
			if (!turn(s, 1))
				continue;
			snprintf(what, sizeof(what), "%s is gone", f->path);
			CHECK_INT(simdisk_remove(s->disk, f->path), 0);
			look_at(s, &c, f->step, false, what);
			if (f->step == HARM_LATEST)
				latest_at(s, &c, what);
			mend(s, f);
			opt.files += k == 0;
		}
	}
	scene_close(s);
}

TEST(each_file_too_many_is_found_and_harms_no_load)
{
	static const char *const extra[] = { "notes.txt", "model-00003-of-00003.safetensors",
		"model-00001-of-00001.safetensors", "model.safetensors", "sheaf.json.tmp",
		"alive-0", ".hidden", "optimizer/optimizer-00002-of-00002.safetensors",
		"master_weights/config.json", "optimizer/sheaf.pruned" };
	struct scene *s = &scene;
	char path[200];

	scene_open(s, __func__ + 2);
	for (size_t i = 0; i < sizeof(extra) / sizeof(extra[0]); i++)
		for (int k = 0; k < 34; k++) {
			int64_t step = k % 2 ? HARM_LATEST : HARM_OLDER;
			const struct harm_file *like = harm_find(&s->run, step,
				"model-00001-of-00002.safetensors");
			struct harm_changed c = { .extra = extra[i] };

			if (!turn(s, 1))
				continue;
			snprintf(path, sizeof(path), "run/checkpoint-%d/%s", (int)step, extra[i]);
			CHECK_INT(simdisk_put(s->disk, path, like->bytes, k < 17 ? like->n : 0), 0);
			look_at(s, &c, step, false, path);
			CHECK_INT(simdisk_remove(s->disk, path), 0);
			opt.files += k < 2;
		}
	CHECK(simdisk_hash(s->disk, "run") == s->hash);
	scene_close(s);
}

/* ---- whole steps in another place ---- */

static void copy_step(const struct harm_run *from, int64_t step, struct simdisk *disk, int64_t to)
{
	char path[300];

	for (int i = 0; i < from->files_n; i++) {
		const struct harm_file *f = &from->files[i];

		if (f->step != step)
			continue;
		snprintf(path, sizeof(path), "run/checkpoint-%d/%s", (int)to, f->name);
		CHECK_INT(simdisk_put(disk, path, f->bytes, f->n), 0);
	}
}

/* By number nobody takes it for step n, however they ask; by its path it is what it was. */
static void misplaced(struct scene *s, int64_t at, int64_t is, struct harm_eye *knows)
{
	char path[64], why[600] = "";
	struct harm_changed none = { .n = 0 };
	bool wrong = false;

	snprintf(path, sizeof(path), "run/checkpoint-%d", (int)at);
	for (int k = 0; k < 4; k++) {
		struct harm_look l = { .dir = "run", .step = k % 2 ? SHEAF_LATEST : at,
			.ranks = 1 + k / 2 };

		CHECK(harm_look(&s->eye, &l));
		if (l.open_rc != SHEAF_ECORRUPT || !strstr(l.open_msg, path) ||
		    !strstr(l.open_msg, "manifest"))
			snprintf(why, sizeof(why), "by number: %d %.300s", l.open_rc, l.open_msg);
		l = (struct harm_look){ .path = path, .ranks = 1 + k / 2,
			.order = k % 2 ? HARM_LOAD_FIRST : HARM_VERIFY_FIRST };
		CHECK(harm_look(knows, &l));
		if (!why[0])
			harm_judge(&l, &none, why, &wrong);
		if (!why[0] && l.opened != is)
			snprintf(why, sizeof(why), "by path it is %d", (int)l.opened);
	}
	if (why[0])
		complain(s, path, why, wrong);
	opt.files++;
}

TEST(a_step_under_another_number_or_of_another_run_is_refused_by_number)
{
	static const struct { int from, to; } moves[] = { { 8, 11 }, { 7, 10 }, { 7, 8 } };
	struct scene *s = &scene;
	struct simdisk *far = simdisk_new(opt.seed + 1, SIMDISK_STRICT);
	struct harm_run other;
	struct harm_eye knows;

	scene_open(s, __func__ + 2);
	harm_save(far, "run", SALT + 1);
	harm_walk(&other, far, "run");
	harm_eye_open(&knows, s->disk, SALT + 1);
	for (int i = 0; i < 6; i++) {
		int from = moves[i % 3].from, to = i < 3 ? moves[i].to : HARM_LATEST + 3 * (i % 2);
		char path[64];

		scene_renew(s);
		harm_eye_move(&knows, s->disk);
		snprintf(path, sizeof(path), "run/checkpoint-%d", i < 3 ? from : HARM_LATEST);
		CHECK_INT(simdisk_remove(s->disk, path), 0);
		if (i < 3 && to == HARM_LATEST)
			CHECK_INT(simdisk_remove(s->disk, "run/checkpoint-8"), 0);
		copy_step(i < 3 ? &s->run : &other, from, s->disk, to);
		misplaced(s, to, from, i < 3 ? &s->eye : &knows);
	}
	harm_eye_close(&knows);
	harm_release(&other);
	simdisk_free(far);
	scene_close(s);
}

/* ---- the manifest, edited ---- */

static bool begins(const char *s, const char *const *list)
{
	for (; *list; list++)
		if (strncmp(s, *list, strlen(*list)) == 0)
			return true;
	return false;
}

/* What the manifest alone knows: with `self` made right nothing contradicts it, and nothing that
 * verify proves or a load gives depends on it. Ties are its own too: a name that is no longer one
 * is missing, and one that is tied elsewhere is what the manifest says. */
static const char *const its_own[] = { "session", "parent", "created", "writer", "config", "flags",
	"file_bytes_max", "ranks", "mesh", "plan", "notes", "tied", NULL };
/* What verify compares and a load does not take anything from. */
static const char *const told_twice[] = { "attached", NULL };

static bool is_told_twice(const char *path)
{
	size_t n = strlen(path);

	return begins(path, told_twice) ||
	       (strncmp(path, "families[", 9) == 0 && n > 8 &&
	        (strcmp(path + n - 8, ".tensors") == 0 || strcmp(path + n - 6, ".bytes") == 0)) ||
	       (strncmp(path, "files[", 6) == 0 && n > 4 && strcmp(path + n - 4, ".crc") == 0);
}

/* With a `self` that is right: refused as it is opened, or found, or nobody's to know. */
static void judge_edit(struct scene *s, const struct harm_look *l, const char *path,
                       const char *what)
{
	bool wrong = (l->load_rc == 0 && !l->right) || (l->read_rc == 0 && !l->read_right);
	bool own = begins(path, its_own);
	char why[600] = "";

	if (wrong)
		snprintf(why, sizeof(why), "loaded, and it is not what was saved");
	else if (l->open_rc == SHEAF_ECORRUPT || l->open_rc == SHEAF_EFORMAT)
		snprintf(why, sizeof(why), "%s", strstr(l->open_msg, "sheaf.json") ||
		         strstr(l->open_msg, "manifest") ? "" : l->open_msg);
	else if (l->open_rc)
		snprintf(why, sizeof(why), "open: %d %.300s", l->open_rc, l->open_msg);
	else if (l->verify_rc != SHEAF_ECORRUPT && !(own && l->verify_rc == 0))
		snprintf(why, sizeof(why), "verify: %d %.300s", l->verify_rc, l->verify_msg);
	else if (l->load_rc != SHEAF_ECORRUPT &&
	         !(l->load_rc == 0 && (own || is_told_twice(path))))
		snprintf(why, sizeof(why), "load: %d %.300s", l->load_rc, l->load_msg);
	if (why[0])
		complain(s, what, why, wrong);
}

static void edit(struct scene *s, const struct harm_file *f, const struct harm_value *v,
                 enum harm_edit how, bool prove)
{
	struct harm_changed c = { .file = { f }, .n = 1 };
	char what[300], path[64];
	size_t n = f->n;
	char *text = harm_edit((const char *)f->bytes, &n, v, how, prove);

	if (!text)
		return;
	snprintf(what, sizeof(what), "%s: %s, edit %d%s", f->path, v->path, how,
	         prove ? ", proved" : "");
	snprintf(path, sizeof(path), "run/checkpoint-%d", (int)f->step);
	put(s, f, text, n);
	for (int k = 0; k < 4; k++) {
		struct harm_look l = { .dir = "run", .step = f->step, .ranks = 1 + k / 3,
			.order = k % 2 ? HARM_LOAD_FIRST : HARM_READ_FIRST,
			.path = k == 2 && strcmp(v->path, "step") ? path : NULL };

		if (!prove) {
			look_at(s, &c, f->step, false, what);
			continue;
		}
		CHECK(harm_look(&s->eye, &l));
		if (!l.path || strcmp(v->path, "run")) /* by path the run is nobody's business */
			judge_edit(s, &l, v->path, what);
		opt.unknown += k == 0 && l.verify_rc == 0;
	}
	mend(s, f);
	free(text);
	opt.edits++;
}

TEST(every_value_of_a_manifest_is_proved_or_is_its_own)
{
	struct scene *s = &scene;
	struct harm_values values;

	scene_open(s, __func__ + 2);
	for (int i = 0; i < s->run.files_n; i++) {
		const struct harm_file *f = &s->run.files[i];

		if (f->kind != HARM_MANIFEST || f->step != HARM_LATEST)
			continue;
		harm_values(&values, (const char *)f->bytes, f->n);
		CHECK(values.n > 80);
		for (int k = 1; k < values.n; k++)
			for (unsigned e = 0; e < 2 * HARM_EDITS; e++)
				if (turn(s, 3) && (e < HARM_EDITS ||
				                   strcmp(values.v[k].path, "self")))
					edit(s, f, &values.v[k],
					     (enum harm_edit)(e % HARM_EDITS), e >= HARM_EDITS);
	}
	CHECK(opt.trial != UINT64_MAX || opt.unknown > 0);
	scene_close(s);
}

/* ---- in flight ---- */

TEST(nothing_that_changes_in_flight_is_trusted)
{
	uint64_t n = opt.all ? 100000 : 1000;
	struct scene *s = &scene;
	char why[900];

	*s = (struct scene){ .test = __func__ + 2 };
	for (uint64_t i = 0; i < n; i++) {
		uint64_t wrong = opt.air.wrong;

		if (!turn(s, 1))
			continue;
		if (harm_flight(&opt.air, opt.seed, i, why)[0])
			complain(s, "in flight", why, opt.air.wrong > wrong);
	}
	harm_flights_end();
	CHECK_INT(s->bad, 0);
	CHECK(opt.trial != UINT64_MAX || opt.air.fired > n / 3);
}

static void print_counts(void)
{
	const struct { const char *key, *word; uint64_t n; } counts[] = {
		{ "flips", "flips tried", opt.flips }, { "truncations", "truncations", opt.cuts },
		{ "extensions", "extensions", opt.more }, { "swaps", "swaps", opt.swaps },
		{ "files", "files gone, extra or moved", opt.files },
		{ "edits", "edits of a manifest", opt.edits },
		{ "its_own", "of them told by the manifest alone", opt.unknown },
		{ "in_flight", "in flight", opt.air.fired },
		{ "refused", "of them refused where they happened", opt.air.refused },
		{ "found", "found by the next load or verify", opt.air.found },
		{ "harmless", "right in the end", opt.air.harmless },
		{ "wrong_restores", "wrong restores", opt.wrong },
	};

	printf(opt.json ? "{" : "#");
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		if (opt.json)
			printf("\"%s\": %" PRIu64 ", ", counts[i].key, counts[i].n);
		else
			printf(" %s %" PRIu64 "%s", counts[i].word, counts[i].n,
			       i + 1 < sizeof(counts) / sizeof(counts[0]) ? "," : "");
	if (!opt.json)
		for (int i = 0; i < HARM_DEEDS; i++)
			printf("%s %s %" PRIu64, i ? "," : "; in flight:", harm_deed_name(i),
			       opt.air.by[i]);
	if (opt.json)
		printf("\"all\": %s, \"seed\": %" PRIu64 "}\n", opt.all ? "true" : "false",
		       opt.seed);
	else
		printf(" (%s, seed 0x%" PRIx64 ")\n", opt.all ? "all" : "some of all", opt.seed);
}

int main(int argc, char **argv)
{
	int n = 1;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--long") == 0)
			opt.all = true;
		else if (strcmp(argv[i], "--json") == 0)
			opt.json = true;
		else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
			opt.seed = strtoull(argv[++i], NULL, 0);
		else if (strcmp(argv[i], "--trial") == 0 && i + 1 < argc)
			opt.trial = strtoull(argv[++i], NULL, 0);
		else
			argv[n++] = argv[i];
	}
	argv[n] = NULL;
	n = t_main(n, argv);
	print_counts();
	return n;
}
