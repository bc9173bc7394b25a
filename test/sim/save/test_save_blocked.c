/* SPDX-License-Identifier: Apache-2.0 */
/* The time that callers are blocked is counted by cause and written down for each save
 * (lib/save/save_blocked.h). The clock moves at each look, so every counter has one right value. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "err.h"
#include "hands.h"
#include "metrics.h"
#include "sheaf-stat.h"
#include "simover.h"
#include "t.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"

enum { RANKS_MAX = 4, MS = 1000000 };
static const struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
static const struct sheaf_save_opts may_drop = { .size = sizeof(may_drop),
	.flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_MAY_DROP };

static void halves(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 64, 256), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "m", SHEAF_F32, 2, 64, 100), 0, h->rank, h->ranks);
	hand_add(h, "model", "b", SHEAF_BF16, 1, 77);
}

/* ---- a clock that moves on with each look ---- */

static int64_t clock_ns[RANKS_MAX];
static const void *clock_of[RANKS_MAX];

static int64_t tick(void *arg)
{
	for (int r = 0; r < RANKS_MAX; r++)
		if (clock_of[r] == arg)
			return clock_ns[r] += (r + 1) * MS;
	abort();
}

static void with_clock(struct hand *h)
{
	clock_of[h->rank] = h->used.host.arg;
	clock_ns[h->rank] = 0;
	simover(&h->used)->host.mono_ns = tick;
}

static int fail_here(struct hand *h, const char *what)
{
	return shf_fail(&h->err, SHEAF_EBUG, "%s", what);
}

static int gates(struct hand *h, struct sheaf_save *save)
{
	int rc = 0;

	for (int i = 0; i < h->n && rc == 0; i++)
		rc = shf_save_copied(save, i, -1, NULL);
	return rc;
}

static int save_one(struct hand *h, int64_t step, struct sheaf_stat *stat)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, step, h->state, &lazy, &h->err);

	if (rc == 0)
		rc = gates(h, save);
	if (rc == 0)
		rc = shf_save_exchange(save, 0, &h->err);
	if (rc == 0 || rc == SHEAF_EAGAIN)
		rc = shf_save_wait(save, 0, NULL);
	if (rc == SHEAF_EAGAIN)
		rc = 0;
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	if (rc == 0)
		shf_save_stat(save, stat);
	shf_save_free(save);
	return rc;
}

/* ---- the sums of a run ---- */

/* Two committed, one given up, one freed, one dropped, one refused, one that the close finds. */
static int all_ends(struct hand *h)
{
	struct sheaf_save *s[4] = { NULL };
	struct sheaf_run_stat sum;
	struct sheaf_stat a, b;
	uint64_t bytes;
	int rc = save_one(h, 1, &a);

	if (rc == 0)
		rc = save_one(h, 2, &b);
	if (rc < 0)
		return rc;
	shf_save_blocked_stat(h->run, &sum);
	if (sum.begun != 2 || sum.committed != 2 || sum.begin_ns != a.begin_ns + b.begin_ns ||
	    sum.gates_ns != a.gates_ns + b.gates_ns || sum.ready_ns != a.ready_ns + b.ready_ns ||
	    sum.exchange_ns != a.exchange_ns + b.exchange_ns ||
	    sum.commit_ns != a.commit_ns + b.commit_ns || sum.gates != 6)
		return fail_here(h, "sums are not those of the saves");
	if (!a.begin_ns || !a.gates_ns || !a.ready_ns || !a.exchange_ns || !a.commit_ns ||
	    a.begin_ns + a.gates_ns + a.exchange_ns + a.ready_ns + a.commit_ns > a.over_ns ||
	    a.copy_ns >= a.over_ns || a.copy_ns == 0)
		return fail_here(h, "parts are none, or more than the whole");
	bytes = sum.bytes;
	for (int i = 0; i < 2 && rc == 0; i++)
		rc = shf_save_begin(&s[i], h->run, 3 + i, h->state, &lazy, &h->err);
	if (rc == 0 &&
	    shf_save_begin(&s[3], h->run, 9, h->state, &may_drop, &h->err) != SHEAF_EAGAIN)
		rc = fail_here(h, "not dropped");
	if (rc == 0 &&
	    shf_save_begin(&s[3], h->run, -1, h->state, &lazy, &h->err) != SHEAF_EINVAL)
		rc = fail_here(h, "not refused");
	if (rc == 0)
		(void)shf_save_fail(s[0], "not wanted", NULL);
	if (rc == 0 && shf_save_commit(s[0], -1, &h->err) != SHEAF_EFAILED)
		rc = fail_here(h, "committed");
	shf_save_free(s[1]);
	if (rc == 0)
		rc = shf_save_begin(&s[2], h->run, 5, h->state, &lazy, &h->err);
	shf_save_blocked_stat(h->run, &sum);
	if (rc == 0 && (sum.begun != 7 || sum.committed != 2 || sum.dropped != 1 ||
	                sum.failed != 3 || sum.bytes != bytes || sum.buffers_busy != 1))
		rc = fail_here(h, "what became of seven begins is counted wrong");
	shf_run_get(h->run);
	shf_run_close(h->run);
	shf_save_free(s[0]);
	shf_save_free(s[2]);
	shf_save_blocked_stat(h->run, &sum);
	if (rc == 0 && (sum.failed != 4 || sum.begun != 7))
		rc = fail_here(h, "the one that the close found is not counted, or twice");
	shf_run_put(h->run);
	h->run = NULL;
	return rc;
}

TEST(the_sums_of_a_run_are_those_of_its_saves)
{
	static const int32_t apart[4] = { 1, 2, 1, 2 };

	for (int ranks = 1; ranks <= RANKS_MAX; ranks++)
		for (int nodes = 0; nodes < 2; nodes++) {
			struct simdisk *disk = disk_new();
			struct play p = hands_play(disk, ranks, halves);

			p.tamper = with_clock;
			p.nodes = nodes ? apart : NULL;
			simdisk_set_task_steps(disk, 0);
			CHECK_RC(hands_run(&p, all_ends, true), 0, &p.err);
			simdisk_free(disk);
		}
}

/* One thread at a time here, and none copies behind: who asks copies, and later asks find all
 * there. */
static int ask_twice(struct hand *h)
{
	struct sheaf_save *save = NULL;
	struct sheaf_stat s;
	int rc = shf_save_begin(&save, h->run, 1, h->state, &lazy, &h->err);

	for (int i = 0; i < h->n && rc == 0; i++)
		if (shf_save_copied(save, i, 0, NULL) != SHEAF_EAGAIN && h->ranks == 1)
			rc = fail_here(h, "copied by nobody");
	for (int k = 0; k < 3 && rc == 0; k++)
		rc = gates(h, save);
	if (rc == 0 && shf_save_copied(save, h->n, -1, NULL) != SHEAF_EINVAL)
		rc = fail_here(h, "a slice that is none");
	shf_save_stat(save, &s);
	if (rc == 0 && (s.gates != 4 * (uint64_t)h->n || s.gates_waited != (uint64_t)h->n))
		rc = shf_fail(&h->err, SHEAF_EBUG, "%d gates, %d waited", (int)s.gates,
		              (int)s.gates_waited);
	if (rc == 0 && (s.gate_ns_max * s.gates < s.gates_ns || s.gate_ns_max >= s.gates_ns))
		rc = fail_here(h, "the longest of the gates is not");
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

TEST(a_gate_waited_where_its_slice_was_not_copied_yet)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, halves);

	p.tamper = with_clock;
	simdisk_set_task_steps(disk, 0);
	CHECK_RC(hands_run(&p, ask_twice, true), 0, &p.err);
	simdisk_free(disk);
}

/* ---- .sheaf/metrics.jsonl ---- */

#define METRICS "run/.sheaf/metrics.jsonl"
#define OLD "run/.sheaf/metrics.1.jsonl"

static char *text_of(struct simdisk *disk, const char *path)
{
	size_t n = 0;
	char *bytes = simdisk_get(disk, path, &n), *text = calloc(n + 1, 1);

	if (!text)
		abort();
	if (bytes)
		memcpy(text, bytes, n);
	free(bytes);
	return text;
}

static int lines_of(const char *text, const char *with)
{
	int n = 0;

	for (const char *p = text; *p; p = strchr(p, '\n') + 1) {
		char line[2048];

		if (!strchr(p, '\n'))
			return -1;
		snprintf(line, sizeof(line), "%.*s", (int)strcspn(p, "\n"), p);
		n += strstr(line, with) != NULL;
	}
	return n;
}

static int count_of(const char *text, const char *what)
{
	int n = 0;

	for (; (text = strstr(text, what)) != NULL; text++)
		n++;
	return n;
}

static struct sheaf_stat stats[RANKS_MAX];

static int save_and_keep(struct hand *h)
{
	return save_one(h, 5, &stats[h->rank]);
}

static void has_ms(const char *line, const char *name, uint64_t ns)
{
	char want[64];

	snprintf(want, sizeof(want), ",\"%s\":%llu.%03u", name,
	         (unsigned long long)(ns / MS), (unsigned)(ns / 1000 % 1000));
	if (!strstr(line, want))
		print_error("%s in %s\n", want, line);
	CHECK(strstr(line, want) != NULL);
}

#define MOST(member) most(offsetof(struct sheaf_stat, member))
static uint64_t most(size_t at)
{
	uint64_t x, m = 0;

	for (int r = 0; r < RANKS_MAX; r++) {
		memcpy(&x, (const char *)&stats[r] + at, sizeof(x));
		m = x > m ? x : m;
	}
	return m;
}

/* The clock of rank r ticks r + 1 times as fast: the slowest is not rank 0, which writes. */
TEST(a_line_says_of_each_cause_what_the_slowest_rank_says)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, RANKS_MAX, halves);
	char *text;

	p.tamper = with_clock;
	p.opts.flags |= SHEAF_RUN_METRICS;
	simdisk_set_task_steps(disk, 0);
	CHECK_RC(hands_run(&p, save_and_keep, true), 0, &p.err);
	text = text_of(disk, METRICS);
	CHECK_INT(lines_of(text, "{\"what\":\"committed\",\"step\":5,\"session\":\""), 1);
	CHECK_INT(lines_of(text, ",\"code\":0,\"ranks\":4,\"of\":4,\"lazy\":true,"), 1);
	CHECK(stats[RANKS_MAX - 1].begin_ns > stats[0].begin_ns);
	has_ms(text, "begin_ms", MOST(begin_ns));
	has_ms(text, "image_ms", MOST(buffer_ns));
	has_ms(text, "gates_ms", MOST(gates_ns));
	has_ms(text, "gate_max_ms", MOST(gate_ns_max));
	has_ms(text, "exchange_ms", MOST(exchange_ns));
	has_ms(text, "wait_ms", MOST(ready_ns));
	has_ms(text, "commit_ms", MOST(commit_ns));
	has_ms(text, "copy_ms", MOST(copy_ns));
	has_ms(text, "wall_ms", MOST(over_ns));
	free(text);
	simdisk_free(disk);
}

TEST(each_save_that_is_over_has_a_line_that_says_what_became_of_it)
{
	static const struct { const char *with; int n; } want[] = {
		{ "\"what\":\"committed\"", 2 }, { "\"what\":\"dropped\"", 1 },
		{ "\"what\":\"failed\"", 4 }, { "\"code\":-7", 1 }, { "\"code\":-1,", 1 },
		{ "\"code\":-15", 3 }, { "\"of\":3", 3 }, { "\"of\":1", 4 },
		{ "\"at\":\"20", 7 }, { "\"ranks\":3", 7 }, { "\"lazy\":true", 6 },
	};
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 3, halves);
	char *text;

	p.tamper = with_clock;
	p.opts.flags |= SHEAF_RUN_METRICS;
	simdisk_set_task_steps(disk, 0);
	CHECK_RC(hands_run(&p, all_ends, true), 0, &p.err);
	text = text_of(disk, METRICS);
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		if (lines_of(text, want[i].with) != want[i].n)
			print_error("%d lines with %s in\n%s", lines_of(text, want[i].with),
			            want[i].with, text);
		CHECK_INT(lines_of(text, want[i].with), want[i].n);
	}
	free(text);
	simdisk_free(disk);
}

TEST(nothing_is_written_unless_it_is_asked_for)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	CHECK_RC(hands_run(&p, all_ends, true), 0, &p.err);
	CHECK(!simdisk_exists(disk, METRICS));
	p.opts.flags = SHEAF_RUN_METRICS | SHEAF_RUN_READONLY;
	CHECK_RC(hands_run(&p, all_ends, true), SHEAF_EINVAL, &p.err);
	simdisk_free(disk);
}

static int save_few(struct hand *h)
{
	struct sheaf_stat stat;
	int rc = 0;

	for (int i = 0; i < 4 && rc == 0; i++)
		rc = save_one(h, h->play->step + i, &stat);
	return rc;
}

/* Half a line that a cut left, or anything else that does not end. */
TEST(a_torn_line_spoils_no_other)
{
	static const char *const ends[] = { "{\"what\":\"comm", "\n{\"a\":1}", "\n", "" };

	for (int i = 0; i < 4; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, halves);
		char *text;

		p.opts.flags |= SHEAF_RUN_METRICS;
		CHECK_RC(hands_run(&p, save_few, true), 0, &p.err);
		simdisk_put(disk, METRICS, ends[i], strlen(ends[i]));
		p.step = 70;
		CHECK_RC(hands_run(&p, save_few, true), 0, &p.err);
		text = text_of(disk, METRICS);
		CHECK(strncmp(text, ends[i], strlen(ends[i])) == 0);
		CHECK_INT(lines_of(text, ""), (i == 1) + (i < 3) + 4);
		for (const char *q = text; (q = strstr(q, "{\"what\":\"committed")) != NULL; q++)
			CHECK(q == text || q[-1] == '\n');
		CHECK_INT(lines_of(text, "{\"what\":\"committed"), 4);
		free(text);
		simdisk_free(disk);
	}
}

TEST(a_full_file_becomes_the_old_one_and_no_more_is_kept)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);
	size_t big = SHF_METRICS_MAX - 900, n = 0;
	char *fill = malloc(big), *text;

	memset(fill, 'x', big);
	fill[big - 1] = '\n';
	p.opts.flags |= SHEAF_RUN_METRICS;
	for (p.step = 10; p.step < 40; p.step += 10) {
		CHECK_RC(hands_run(&p, save_few, true), 0, &p.err);
		CHECK(simdisk_exists(disk, OLD) == (p.step > 10));
		fill[0] = (char)('0' + p.step / 10);
		CHECK_INT(simdisk_put(disk, METRICS, fill, big), 0);
	}
	CHECK_RC(hands_run(&p, save_few, true), 0, &p.err);
	text = text_of(disk, OLD);
	CHECK_INT(text[0], '3');
	CHECK(strlen(text) <= SHF_METRICS_MAX);
	free(text);
	free(simdisk_get(disk, METRICS, &n));
	CHECK(n > 0 && n < 4000);
	free(fill);
	simdisk_free(disk);
}

static atomic_int said;

static void hear(void *arg, int level, const char *line)
{
	(void)arg;
	said += level == 1 && strstr(line, "metrics are not written") != NULL;
}

/* Each call about it fails, once or for ever, before it or half done: the saves do not. */
TEST(metrics_that_cannot_be_written_fail_no_save_and_are_logged_once)
{
	static const struct {
		enum simdisk_kind kind;
		enum simdisk_how how;
		bool always, full;
		int lines, said;                /* what is written of four saves */
	} ways[] = {
		{ SIMDISK_OPEN, SIMDISK_INSTEAD, false, false, 3, 1 },
		{ SIMDISK_OPEN, SIMDISK_INSTEAD, true, false, 0, 1 },
		{ SIMDISK_FSTAT, SIMDISK_INSTEAD, false, false, 3, 1 },
		{ SIMDISK_FSTAT, SIMDISK_INSTEAD, true, false, 0, 1 },
		{ SIMDISK_PWRITE, SIMDISK_INSTEAD, false, false, 3, 1 },
		{ SIMDISK_PWRITE, SIMDISK_PART, false, false, 3, 1 },
		{ SIMDISK_PWRITE, SIMDISK_PART, true, false, 0, 1 },
		{ SIMDISK_PREAD, SIMDISK_INSTEAD, true, false, 4, 0 },
		{ SIMDISK_RENAME, SIMDISK_INSTEAD, false, true, 3, 1 },
		{ SIMDISK_RENAME, SIMDISK_INSTEAD, true, true, 0, 1 },
	};
	char *fill = malloc(SHF_METRICS_MAX), *text;

	memset(fill, '\n', SHF_METRICS_MAX);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, halves);

		CHECK_RC(hands_run(&p, save_few, true), 0, &p.err);
		if (ways[i].full)
			simdisk_put(disk, METRICS, fill, SHF_METRICS_MAX);
		said = 0;
		p.step = 70;
		p.opts.flags |= SHEAF_RUN_METRICS;
		p.opts.log = hear;
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = ENOSPC,
			.kind = ways[i].kind, .how = ways[i].how, .always = ways[i].always,
			.name = "metrics.jsonl" });
		CHECK_RC(hands_run(&p, save_few, true), 0, &p.err);
		CHECK(simdisk_exists(disk, "run/checkpoint-73"));
		CHECK(simdisk_fired(disk) > 0);
		text = text_of(disk, METRICS);
		CHECK_INT(said, ways[i].said);
		CHECK_INT(count_of(text, "\"wall_ms\":"), ways[i].lines);
		free(text);
		simdisk_free(disk);
	}
	free(fill);
	printf("# %d ways\n", (int)(sizeof(ways) / sizeof(ways[0])));
}

/* A folder, and a link out of the run, in its place: neither is followed nor removed. */
TEST(what_is_no_file_is_left_alone)
{
	for (int link = 0; link < 2; link++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, halves);
		char *text;

		CHECK_RC(hands_run(&p, save_few, true), 0, &p.err);
		simdisk_put(disk, "victim", "mine\n", 5);
		if (link)
			simdisk_symlink(disk, "../../victim", METRICS);
		else
			simdisk_put(disk, METRICS "/f", "", 0);
		said = 0;
		p.step = 70;
		p.opts.flags |= SHEAF_RUN_METRICS;
		p.opts.log = hear;
		CHECK_RC(hands_run(&p, save_few, true), 0, &p.err);
		CHECK_INT(said, 1);
		text = text_of(disk, "victim");
		CHECK_STR(text, "mine\n");
		CHECK(link || simdisk_exists(disk, METRICS "/f"));
		free(text);
		simdisk_free(disk);
	}
}

/* ---- the end of a commit ---- */

static struct sheaf_group_ops group_ops;
static atomic_int announced, asked, asked_early;

static void hear_step(void *arg, int64_t step, const char *path)
{
	(void)arg;
	(void)path;
	announced += step == 5;
}

static int watch_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			   struct sheaf_error *err)
{
	/* What a line of metrics says: times first. As many words begin a call, or plan, with a
	 * complement among the first. */
	if (n == SHF_CAUSES + 5 && x[1] != ~x[2] && x[0] >> 62 == 0) {
		asked++;
		asked_early += !announced;
	}
	return group_ops.allreduce(arg, x, n, op, timeout_ms, err);
}

static void watch(struct hand *h)
{
	if (h->rank != 0)
		return;
	group_ops = h->group->ops;
	h->group->ops.allreduce = watch_allreduce;
}

/* A rank may be dead by then, and the wait for it as long as the deadline. */
TEST(a_step_is_announced_before_ranks_tell_their_times)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, halves);

	announced = asked = asked_early = 0;
	p.tamper = watch;
	p.opts.flags |= SHEAF_RUN_METRICS;
	p.opts.committed = hear_step;
	CHECK_RC(hands_run(&p, save_and_keep, true), 0, &p.err);
	CHECK_INT(announced, 1);
	CHECK_INT(asked, 1);
	CHECK_INT(asked_early, 0);
	simdisk_free(disk);
}
