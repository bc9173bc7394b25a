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
