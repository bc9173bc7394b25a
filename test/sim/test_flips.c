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
#include "engine.h"
#include "harmtry.h"

#define main t_main
#include "../t.h"
#undef main

#define SALT UINT64_C(0x5eaf)
#define RENEW 1000              /* looks, before the disk is copied anew: it keeps a log */

static struct {
	uint64_t seed, trial;           /* trial: UINT64_MAX: all */
	bool all, json;
	uint64_t flips, wrong;
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

/* What is harmed on the disk is looked at in ways that change with the number of the trial. */
static void look_at(struct scene *s, const struct harm_changed *c, int64_t step, const char *what)
{
	uint64_t n = s->looks++;
	struct harm_look l = { .dir = "run", .step = step, .ranks = n % 16 == 15 ? 2 : 1,
		.order = n % HARM_ORDERS, .verify_only = step == HARM_BAD };
	char path[64], why[600];
	bool closed, wrong;

	snprintf(path, sizeof(path), "run/checkpoint-%d", (int)step);
	l.path = n % 8 == 3 ? path : NULL;
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
	look_at(s, &c, f->step, what);
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
	struct sheaf_opts opts = { .size = sizeof(opts), .keep_last = 1 };
	struct sheaf_run *run = NULL;
	struct sheaf_step *step = NULL;
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
	CHECK_INT(dots, 5);     /* run, lock, two marks, a count of tries */
	scene_close(s);
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
	printf("# flips %" PRIu64 ", wrong restores %" PRIu64 ", seed 0x%" PRIx64 "\n", opt.flips,
	       opt.wrong, opt.seed);
	return n;
}
