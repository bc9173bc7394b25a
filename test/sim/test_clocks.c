/* SPDX-License-Identifier: Apache-2.0 */
/* What is made of times: how long a save will still take, and what steps with a copy cost more
 * than those without. The times are put in by hand, and the numbers worked out by hand. */
#include "acts.h"
#include <math.h>
#include <stdlib.h>
#include "ab.h"
#include "pace.h"
#include "stall.h"
#include "starve.h"
#include "t.h"
#include "welch.h"

#define MS INT64_C(1000000)
#define METRICS "run/.sheaf/metrics.jsonl"

struct clocked {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct sheaf_error err;
	float w[12];
};

static void begin(struct clocked *c, uint32_t flags)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_CREATE | flags,
		.io_threads = 1 };
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 12 }, .count = { 12 }, .data = c->w };

	*c = (struct clocked){ .disk = disk_new() };
	c->sys = simdisk_process(c->disk, 9, 0);
	simdisk_set_task_steps(c->disk, 0);
	c->state = shf_state_new();
	CHECK_INT(shf_state_add(c->state, &s), 0);
	CHECK_RC(shf_run_open(&c->run, "run", NULL, &opts, c->sys, &c->err), 0, &c->err);
}

static void end(struct clocked *c)
{
	shf_run_close(c->run);
	shf_state_put(c->state);
	CHECK_INT(simdisk_open_n(c->sys), 0);
	simdisk_free(c->disk);
}

static struct sheaf_save *begun(struct clocked *c, int64_t step, uint32_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };
	struct sheaf_save *save = NULL;

	CHECK_RC(shf_save_begin(&save, c->run, step, c->state, &opts, &c->err), 0, &c->err);
	return save;
}

static void committed(struct clocked *c, struct sheaf_save *save)
{
	CHECK_RC(shf_save_commit(save, -1, &c->err), 0, &c->err);
	CHECK_INT(shf_save_eta_ms(save), 0);
	shf_save_free(save);
}

/* ---- how long a save will still take ---- */

/* A save of 400 bytes of which 100 are written, after one that wrote 400 in 4 s, synced for 1 s
 * and published for 2 s. */
static void quarter_written(struct clocked *c, struct sheaf_save *save)
{
	struct shf_pace *pace = &c->run->pace;

	*pace = (struct shf_pace){ .write = { 0 } };
	shf_rate_set(&pace->write, 400, 4000 * MS);
	shf_lasted_add(&pace->sync, 1000 * MS);
	shf_lasted_add(&pace->publish, 2000 * MS);
	atomic_store(&save->to_write, 400);
	atomic_store(&save->written, 100);
	atomic_store(&save->write_from_ns, 0);
	atomic_store(&save->write_to_ns, 0);
}

TEST(what_is_left_is_what_is_to_write_to_sync_and_to_publish)
{
	struct clocked c;
	struct sheaf_save *save;

	begin(&c, 0);
	save = begun(&c, 1, 0);
	CHECK_INT(shf_save_wait(save, -1), 0);
	quarter_written(&c, save);      /* in no time: the save before counts */
	CHECK_INT(shf_save_eta_ms(save), 3000 + 1000 + 2000 + 1);
	atomic_store(&save->write_to_ns, 1000 * MS); /* as fast as before */
	CHECK_INT(shf_save_eta_ms(save), 3000 + 1000 + 2000 + 1);
	atomic_store(&save->write_to_ns, 8000 * MS); /* longer than all of it took before */
	CHECK_INT(shf_save_eta_ms(save), 24000 + 1000 + 2000 + 1);
	atomic_store(&save->written, 400);
	CHECK_INT(shf_save_eta_ms(save), 1000 + 2000 + 1);
	save->flags |= SHEAF_NO_DISK;   /* nothing is synced, or published */
	CHECK_INT(shf_save_eta_ms(save), 1);
	save->flags &= ~(uint32_t)SHEAF_NO_DISK;
	committed(&c, save);
	end(&c);
}

TEST(what_nobody_knows_is_not_told)
{
	struct clocked c;
	struct sheaf_save *save;

	begin(&c, 0);
	save = begun(&c, 1, 0);
	CHECK_INT(shf_save_wait(save, -1), 0);
	quarter_written(&c, save);
	shf_rate_set(&c.run->pace.write, 1, INT64_C(100000000000000000)); /* 10^11 ms a byte */
	CHECK(shf_save_eta_ms(save) > INT64_C(1000000000000));
	atomic_store(&save->to_write, 1000000);
	CHECK_INT(shf_save_eta_ms(save), -1);
	c.run->pace = (struct shf_pace){ .write = { 0 } };
	CHECK_INT(shf_save_eta_ms(save), -1);
	CHECK_INT(shf_save_fail(save, "no more"), 0);
	CHECK_INT(shf_save_eta_ms(save), -1);
	SAID(shf_save_commit(save, -1, &c.err), SHEAF_EFAILED, "no more", &c.err);
	CHECK_INT(shf_save_eta_ms(save), -1);
	shf_save_free(save);
	end(&c);
}

/* Copying and writing go on at once: the slower one counts. */
TEST(a_copy_that_goes_on_behind_is_waited_for)
{
	struct clocked c;
	struct sheaf_save *save;
	int64_t eta;

	begin(&c, 0);
	save = begun(&c, 1, SHEAF_LAZY);
	CHECK_INT(shf_save_copied(save, 0, -1), 0);
	committed(&c, save);
	save = begun(&c, 2, SHEAF_LAZY);
	quarter_written(&c, save);
	shf_lasted_add(&c.run->pace.stage, 1);
	CHECK_INT(atomic_load(&save->copied), 0);
	CHECK_INT(shf_save_eta_ms(save), 3000 + 1000 + 2000 + 1);
	atomic_store(&save->copied, 12); /* a quarter, in 5 s */
	save->copy_from_ns = shf_now(c.run) - 5000 * MS;
	eta = shf_save_eta_ms(save);
	CHECK(eta >= 15000 + 1000 + 2000 + 1 && eta < 15100 + 1000 + 2000);
	save->copy_from_ns = shf_now(c.run) - 500 * MS;
	CHECK_INT(shf_save_eta_ms(save), 3000 + 1000 + 2000 + 1);
	CHECK_INT(shf_save_fail(save, "enough"), 0);
	CHECK_INT(shf_save_commit(save, -1, &c.err), SHEAF_EFAILED);
	shf_save_free(save);
	end(&c);
}

/* ---- steps with a copy and without ---- */

/* So many steps of each kind, in turns, that take so long. */
static void steps(struct clocked *c, int n, int64_t with_ns, int64_t without_ns)
{
	const uint32_t flags = SHEAF_LAZY | SHEAF_MAY_DROP;
	int64_t now = 0;

	for (int i = 0; i <= 2 * n; i++) {
		shf_ab_enter(c->run, now);
		shf_ab_began(c->run, flags, i % 2 ? SHF_AB_WITH : SHF_AB_WITHOUT);
		now += i % 2 ? with_ns : without_ns;
	}
}

/* The line of what was found, as it is told now. */
static char *told(struct clocked *c)
{
	size_t n = 0;
	char *text, *line;

	shf_ab_tell(c->run);
	text = simdisk_get(c->disk, METRICS, &n);
	CHECK(text != NULL && n > 0 && text[n - 1] == '\n');
	text[n - 1] = '\0';
	line = strrchr(text, '\n');
	if (line)
		memmove(text, line + 1, strlen(line));
	CHECK(strstr(text, "{\"what\":\"ab\"") == text);
	return text;
}

static void finds(int64_t with_ns, int64_t without_ns, const char *words)
{
	struct clocked c;
	char *line;

	begin(&c, SHEAF_AB | SHEAF_METRICS);
	steps(&c, 3, with_ns, without_ns);
	line = told(&c);
	CHECK(strstr(line, "\"with\":3,\"without\":3,\"aside\":0") != NULL);
	if (!strstr(line, words))
		print_error("%s\n", line);
	CHECK(strstr(line, words) != NULL);
	free(line);
	end(&c);
}

TEST(times_are_told_with_three_places_and_their_sign)
{
	finds(7 * MS, 5 * MS, "\"with_ms\":7.000,\"without_ms\":5.000,\"slower_ms\":2.000,"
	      "\"low_ms\":2.000,\"high_ms\":2.000,\"slower_pct\":40.000");
	finds(4 * MS, 5 * MS, "\"slower_ms\":-1.000,\"low_ms\":-1.000,\"high_ms\":-1.000,"
	      "\"slower_pct\":-20.000");
	finds(5 * MS - 400, 5 * MS, "\"slower_ms\":0.000,\"low_ms\":0.000,\"high_ms\":0.000,"
	      "\"slower_pct\":-0.008");
}

TEST(times_of_nothing_and_of_ages_are_numbers)
{
	finds(0, 0, "\"with_ms\":0.000,\"without_ms\":0.000,\"slower_ms\":0.000,"
	      "\"low_ms\":0.000,\"high_ms\":0.000,\"slower_pct\":0.000");
	finds(MS, 0, "\"slower_ms\":1.000,\"low_ms\":1.000,\"high_ms\":1.000,\"slower_pct\":0.000");
	finds(INT64_C(2000000000000000000), 0, "\"with_ms\":1000000000000.000,");
}

/* Of several threads callers may be blocked for longer than a step takes. */
TEST(a_step_blocked_for_longer_than_it_took_computed_for_no_time)
{
	const uint32_t flags = SHEAF_LAZY | SHEAF_MAY_DROP;
	struct clocked c;
	char *line;

	begin(&c, SHEAF_AB | SHEAF_METRICS);
	for (int i = 0; i <= 6; i++) {
		shf_ab_enter(c.run, i * 100 * MS);
		shf_ab_began(c.run, flags, i % 2 ? SHF_AB_WITH : SHF_AB_WITHOUT);
		if (i % 2)
			shf_stalled(c.run, NULL, SHF_IN_GATES, shf_now(c.run) - 5000 * MS);
	}
	line = told(&c);
	CHECK(strstr(line, "\"whole\":{\"with_ms\":100.000,\"without_ms\":100.000") != NULL);
	CHECK(strstr(line, "\"compute\":{\"with_ms\":0.000,\"without_ms\":100.000") != NULL);
	free(line);
	end(&c);
}

/* ---- all that is told, in full ---- */

static char logged[1000];

static void hear(void *arg, int level, const char *line)
{
	size_t n = strlen(logged);

	(void)arg;
	snprintf(logged + n, sizeof(logged) - n, "%d %s\n", level, line);
}

/* As told in a line of metrics. */
static void put_found(char *to, size_t room, const char *name, const struct shf_welch *w)
{
	snprintf(to + strlen(to), room - strlen(to), ",\"%s\":{\"with_ms\":%.3f,"
	         "\"without_ms\":%.3f,\"slower_ms\":%.3f,\"low_ms\":%.3f,\"high_ms\":%.3f,"
	         "\"slower_pct\":%.3f,\"low_pct\":%.3f,\"high_pct\":%.3f}", name,
	         w->median[1], w->median[0], w->diff, w->low, w->high,
	         100 * w->diff / w->mean[0], 100 * w->low / w->mean[0],
	         100 * w->high / w->mean[0]);
}

static void put_log(char *to, size_t room, const char *what, const struct shf_welch *w)
{
	snprintf(to + strlen(to), room - strlen(to), "2 run: %s: 4 with a copy, 3 without: "
	         "median %.3f and %.3f ms; means differ by %.3f ms [%.3f, %.3f], "
	         "%.3f %% [%.3f, %.3f], at 95 %%\n", what, w->median[1], w->median[0], w->diff,
	         w->low, w->high, 100 * w->diff / w->mean[0], 100 * w->low / w->mean[0],
	         100 * w->high / w->mean[0]);
}

/* Steps that took so many ms and were blocked for so many of them, with a copy, without, and
 * neither. */
static const struct step {
	enum shf_ab_kind kind;
	int ms, blocked;
} taken[] = {
	{ SHF_AB_WITH, 70, 20 }, { SHF_AB_WITHOUT, 50, 0 }, { SHF_AB_NEITHER, 900, 0 },
	{ SHF_AB_WITH, 90, 30 }, { SHF_AB_WITHOUT, 60, 10 }, { SHF_AB_WITH, 80, 0 },
	{ SHF_AB_NEITHER, 1, 0 }, { SHF_AB_WITHOUT, 41, 0 }, { SHF_AB_WITH, 125, 5 },
};

static void take(struct clocked *c)
{
	int64_t now = 0;

	for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++) {
		shf_ab_enter(c->run, now);
		shf_ab_began(c->run, SHEAF_LAZY | SHEAF_MAY_DROP, taken[i].kind);
		now += taken[i].ms * MS;
		if (taken[i].blocked)   /* and each look at this clock takes 1,000 ns */
			shf_stalled(c->run, NULL, SHF_IN_GATES,
			            shf_now(c->run) - taken[i].blocked * MS + 1000);
	}
	shf_ab_enter(c->run, now);
}

TEST(what_is_found_is_told_in_full)
{
	double all[2][2][4];            /* whole, compute; without, with */
	size_t n[2] = { 0 };
	struct shf_welch whole, compute;
	char line[1000], log[1000] = "", *got;
	struct clocked c;

	for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++)
		if (taken[i].kind != SHF_AB_NEITHER) {
			int k = taken[i].kind == SHF_AB_WITH;

			all[0][k][n[k]] = taken[i].ms;
			all[1][k][n[k]++] = taken[i].ms - taken[i].blocked;
		}
	CHECK(shf_welch(&whole, all[0][0], n[0], all[0][1], n[1]));
	CHECK(shf_welch(&compute, all[1][0], n[0], all[1][1], n[1]));
	begin(&c, SHEAF_AB | SHEAF_METRICS);
	take(&c);
	logged[0] = '\0';
	c.run->opts.log = hear;
	got = told(&c);
	snprintf(line, sizeof(line), "\",\"with\":4,\"without\":3,\"aside\":2");
	put_found(line, sizeof(line), "whole", &whole);
	put_found(line, sizeof(line), "compute", &compute);
	snprintf(line + strlen(line), sizeof(line) - strlen(line), "}");
	CHECK(strstr(got, ",\"at\":\"") != NULL);
	CHECK_STR(strstr(got, "\",\"with\":"), line);
	snprintf(line, sizeof(line), "{\"what\":\"ab\",\"session\":\"%s\",\"at\":\"",
	         c.run->store.session);
	CHECK(strncmp(got, line, strlen(line)) == 0);
	put_log(log, sizeof(log), "from begin to begin", &whole);
	put_log(log, sizeof(log), "the same less what calls were blocked for", &compute);
	CHECK_STR(logged, log);
	free(got);
	end(&c);
}

TEST(too_few_steps_are_counted_and_not_compared)
{
	struct clocked c;
	char *got;

	begin(&c, SHEAF_AB | SHEAF_METRICS);
	for (int i = 0; i < 7; i++) {
		shf_ab_enter(c.run, i * MS);
		shf_ab_began(c.run, SHEAF_LAZY | SHEAF_MAY_DROP,
		             i < 3 ? SHF_AB_WITH : i == 3 ? SHF_AB_WITHOUT : SHF_AB_NEITHER);
	}
	logged[0] = '\0';
	c.run->opts.log = hear;
	got = told(&c);
	CHECK_STR(strstr(got, "\",\"with\":"), "\",\"with\":3,\"without\":1,\"aside\":2}");
	CHECK_STR(logged, "2 run: 3 steps with a copy and 1 without are too few to compare\n");
	free(got);
	end(&c);
}

/* Newer times take the place of the oldest: of 8192 of each kind. */
TEST(the_newest_times_are_kept)
{
	struct clocked c;
	char *got;

	begin(&c, SHEAF_AB | SHEAF_METRICS);
	steps(&c, 8192, 9 * MS, 9 * MS);
	c.run->opts.log = NULL;
	got = told(&c);
	CHECK(strstr(got, "\"with_ms\":9.000,\"without_ms\":9.000") != NULL);
	free(got);
	steps(&c, 8192, 7 * MS, 5 * MS);
	got = told(&c);
	CHECK(strstr(got, "\"with_ms\":7.000,\"without_ms\":5.000,\"slower_ms\":2.000,"
	             "\"low_ms\":2.000,\"high_ms\":2.000") != NULL);
	free(got);
	end(&c);
}

/* Only a save that may be dropped and is copied in the background may be left out. */
TEST(a_coin_leaves_out_half_of_what_may_be_left_out)
{
	const uint32_t both = SHEAF_LAZY | SHEAF_MAY_DROP;
	struct clocked c;
	int out = 0;

	begin(&c, SHEAF_AB | SHEAF_METRICS);
	for (int64_t step = 0; step < 1000; step++) {
		out += shf_ab_leaves_out(c.run, step, both);
		CHECK(!shf_ab_leaves_out(c.run, step, SHEAF_LAZY));
		CHECK(!shf_ab_leaves_out(c.run, step, SHEAF_MAY_DROP));
		CHECK(!shf_ab_leaves_out(c.run, step, 0));
	}
	CHECK(out > 420 && out < 580);
	end(&c);
	begin(&c, SHEAF_METRICS);
	CHECK(!shf_ab_leaves_out(c.run, 1, both) && !shf_ab_leaves_out(c.run, 2, both));
	end(&c);
}

TEST(without_memory_the_comparison_is_told_whole_or_not_at_all)
{
	struct clocked c;
	long nth = 0;
	size_t n = 0;
	int lines = 0, opened = 0;
	char *text;

	begin(&c, SHEAF_AB | SHEAF_METRICS);
	steps(&c, 3, MS, 2 * MS);
	do {
		starved = false;
		starve_left = ++nth;
		shf_ab_tell(c.run);
		starve_left = 0;
	} while (starved);
	text = simdisk_get(c.disk, METRICS, &n);
	for (size_t i = 0; i < n; i++) {
		opened += (text[i] == '{') - (text[i] == '}');
		CHECK(text[i] != '\n' || (opened == 0 && i && text[i - 1] == '}'));
		lines += text[i] == '\n';
	}
	CHECK(nth > 10 && lines >= 1 && lines < nth);
	free(text);
	end(&c);
}

TEST(a_run_that_compares_opens_or_has_no_memory)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_CREATE | SHEAF_AB };
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 3, 0);
	long nth = 0;

	do {
		struct sheaf_run *run = NULL;
		struct sheaf_error err = { 0 };
		int rc;

		starved = false;
		starve_left = ++nth;
		rc = shf_run_open(&run, "run", NULL, &opts, sys, &err);
		starve_left = 0;
		CHECK(rc == 0 || (rc == SHEAF_ENOMEM && starved && err.msg[0]));
		CHECK((rc == 0) == (run != NULL));
		shf_run_close(run);
		CHECK_INT(simdisk_open_n(sys), 0);
	} while (starved);
	CHECK(nth > 8);
	simdisk_free(disk);
}
