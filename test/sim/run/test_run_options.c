/* SPDX-License-Identifier: Apache-2.0 */
/* The options of sheaf_run_open: each one at its limits and one beyond, the default of each, and
 * the error that ranks get when they open a run with different options. */
#include <limits.h>
#include <stdlib.h>
#include "acts.h"
#include "match.h"
#include "run.h"
#include "t.h"
#include "opts.h"
#include "run_open.h"
#include "run_ops.h"
#include "sheaf-opts.h"

static struct sheaf_error err;

static int takes(const struct shf_opts *in, struct shf_opts *out)
{
	int rc = shf_opts_take(out, in, &err);

	if (rc == 0)
		shf_opts_release(out);
	return rc;
}

static void refuses(const struct shf_opts *in, const char *sentence)
{
	struct shf_opts out;

	CHECK_RC(takes(in, &out), SHEAF_EINVAL, &err);
	CHECK_STR(err.msg, sentence);
	CHECK(!out.ignore && !out.best_note && !out.agent && !out.signal_dir && !out.copy_cpus);
}

#define AT(field) offsetof(struct shf_opts, field)
static const struct number {
	size_t at;
	const char *name;
	int32_t least, most;
} numbers[] = {
	{ AT(timeout_ms), "timeout_ms", 0, INT32_MAX }, { AT(io_threads), "io_threads", 0, 256 },
	{ AT(resume_attempts_max), "resume_attempts_max", 0, INT32_MAX },
	{ AT(images_max), "staging.buffers_max", 0, SHF_IMAGES_MAX },
	{ AT(copy_threads), "staging.copy_threads", 0, 256 },
	{ AT(keep_last), "retention.keep_last", 0, INT32_MAX },
	{ AT(keep_every), "retention.keep_every", 0, INT32_MAX },
	{ AT(keep_best), "retention.keep_best", 0, INT32_MAX },
	{ AT(grace_s), "retention.grace_s", -1, INT32_MAX },
	{ AT(copies), "memory_tier.copies", 0, 2 },
};

static struct shf_opts with(const struct number *n, int32_t x)
{
	struct shf_opts o = { .agent = "auto", .keep_last = 1 };

	memcpy((char *)&o + n->at, &x, sizeof(x));
	o.best_note = o.keep_best ? "loss" : NULL;
	return o;
}

TEST(each_number_has_its_bounds)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		const struct number *n = &numbers[i];
		struct shf_opts least = with(n, n->least), most = with(n, n->most), out, beyond;
		char want[100];

		print_message("# %s\n", n->name);
		CHECK_RC(takes(&least, &out), 0, &err);
		CHECK_RC(takes(&most, &out), 0, &err);
		beyond = with(n, n->least - 1);
		snprintf(want, sizeof(want), "opts.%s is %d, must be at least %d", n->name,
		         (int)n->least - 1, (int)n->least);
		refuses(&beyond, want);
		if (n->most == INT32_MAX)
			continue;
		beyond = with(n, n->most + 1);
		snprintf(want, sizeof(want), "opts.%s is %d, must be at most %d", n->name,
		         (int)n->most + 1,
		         (int)n->most);
		refuses(&beyond, want);
	}
}

TEST(what_was_not_said_has_its_value)
{
	struct shf_opts in = { 0 }, out, of_none;

	CHECK_RC(takes(NULL, &of_none), 0, &err);
	CHECK_RC(takes(&in, &out), 0, &err);
	CHECK(memcmp(&out, &of_none, sizeof(out)) == 0);
	CHECK_INT(out.file_bytes_max, 5000000000);
	CHECK_INT(out.io_threads, 4);
	CHECK_INT(out.timeout_ms, 600000);
	CHECK_INT(out.grace_s, 0);
	CHECK_INT(out.images_max, 0);
	in = (struct shf_opts){ .file_bytes_max = 7, .io_threads = 3,
		.timeout_ms = 1000, .grace_s = 1, .images_max = 5, .agent = "auto", .copies = 2,
		.copies_group = (struct sheaf_group *)&in };
	CHECK_RC(takes(&in, &out), 0, &err);
	CHECK_INT(out.file_bytes_max, 7);
	CHECK_INT(out.io_threads, 3);
	CHECK_INT(out.timeout_ms, 1000);
	CHECK_INT(out.grace_s, 1);
	CHECK_INT(out.images_max, 5);
	in.grace_s = -1;
	in.images_max = 0;
	CHECK_RC(takes(&in, &out), 0, &err);
	CHECK_INT(out.grace_s, -1);     /* shf_store_prune knows what it means */
	CHECK_INT(out.images_max, 4);
	CHECK_INT(shf_opts_wait_ms(&out, 499), 499);
	CHECK_INT(shf_opts_wait_ms(&out, 501), 500);
	CHECK_INT(shf_opts_clear_ms(&out), 250);
}

/* ---- the public structs ---- */

enum { TOP, STAGING, RETENTION, TIER, NOTIFY, STRUCTS, MOST = 4096 };

/* The public structs. Each may be followed by fields of a newer version. */
static struct theirs {
	union {
		uint32_t size;
		uint8_t bytes[MOST + 8];
		struct sheaf_opts top;
		struct sheaf_staging staging;
		struct sheaf_retention retention;
		struct sheaf_memory_tier tier;
		struct sheaf_notify notify;
	} s[STRUCTS];
} theirs;

static const struct public_struct {
	const char *arg, *name;
	uint32_t bytes, least;
} structs[STRUCTS] = {
	{ "opts", "opts", sizeof(struct sheaf_opts), offsetof(struct sheaf_opts, folder) },
	{ "opts.staging", "staging", sizeof(struct sheaf_staging), 8 },
	{ "opts.retention", "retention", sizeof(struct sheaf_retention), 8 },
	{ "opts.memory_tier", "memory_tier", sizeof(struct sheaf_memory_tier), 8 },
	{ "opts.notify", "notify", sizeof(struct sheaf_notify), 8 },
};

/* Sets all fields to 0, and the sizes and the pointers to the groups. */
static void theirs_init(void)
{
	memset(&theirs, 0, sizeof(theirs));
	for (int i = 0; i < STRUCTS; i++)
		theirs.s[i].size = structs[i].bytes;
	theirs.s[TOP].top.staging = &theirs.s[STAGING].staging;
	theirs.s[TOP].top.retention = &theirs.s[RETENTION].retention;
	theirs.s[TOP].top.memory_tier = &theirs.s[TIER].tier;
	theirs.s[TOP].top.notify = &theirs.s[NOTIFY].notify;
}

static int gathers(struct shf_opts *out)
{
	memset(out, 0xee, sizeof(*out));
	return shf_opts_gather(out, &theirs.s[TOP].top, &err);
}

#define GOES(i, type, field, to) \
	{ i, #type "." #field, offsetof(struct sheaf_##type, field), \
	  sizeof(((struct sheaf_##type *)0)->field), offsetof(struct shf_opts, to), \
	  sizeof(((struct shf_opts *)0)->to) }
static const struct arrival {
	int of;
	const char *name;
	size_t at, bytes, to, to_bytes;
} arrivals[] = {
	GOES(TOP, opts, timeout_ms, timeout_ms), GOES(TOP, opts, flags, flags),
	GOES(TOP, opts, folder, folder), GOES(TOP, opts, ignore, ignore),
	GOES(TOP, opts, file_bytes_max, file_bytes_max), GOES(TOP, opts, io_threads, io_threads),
	GOES(TOP, opts, resume_attempts_max, resume_attempts_max), GOES(TOP, opts, log, log),
	GOES(TOP, opts, progress, progress), GOES(TOP, opts, arg, arg),
	GOES(TOP, opts, commit_group, commit_group),
	GOES(STAGING, staging, buffers_max, images_max),
	GOES(STAGING, staging, bytes_max, staging_bytes_max),
	GOES(STAGING, staging, copy_cpus, copy_cpus),
	GOES(STAGING, staging, copy_rate_max, copy_rate_max),
	GOES(STAGING, staging, copy_threads, copy_threads),
	GOES(RETENTION, retention, keep_last, keep_last),
	GOES(RETENTION, retention, keep_every, keep_every),
	GOES(RETENTION, retention, keep_best, keep_best),
	GOES(RETENTION, retention, best_note, best_note),
	GOES(RETENTION, retention, best_largest, best_largest),
	GOES(RETENTION, retention, grace_s, grace_s),
	GOES(TIER, memory_tier, copies, copies), GOES(TIER, memory_tier, agent, agent),
	GOES(TIER, memory_tier, copies_group, copies_group),
	GOES(NOTIFY, notify, committed, committed), GOES(NOTIFY, notify, arg, committed_arg),
	GOES(NOTIFY, notify, signal_dir, signal_dir),
};
enum { ARRIVALS = sizeof(arrivals) / sizeof(arrivals[0]) };

TEST(each_option_arrives_in_its_own_place_and_in_no_other)
{
	uint8_t want[sizeof(struct shf_opts)];
	struct shf_opts out;

	for (int i = 0; i < ARRIVALS; i++) {
		const struct arrival *v = &arrivals[i];

		print_message("# %s\n", v->name);
		CHECK_INT(v->bytes, v->to_bytes);
		theirs_init();
		memset(theirs.s[v->of].bytes + v->at, 0x5a, v->bytes);
		memset(want, 0, sizeof(want));
		memset(want + v->to, 0x5a, v->bytes);
		CHECK_RC(gathers(&out), 0, &err);
		CHECK(memcmp(&out, want, sizeof(want)) == 0);
	}
}

/* So a field that is added to a public struct must be added to the table above, too. */
TEST(no_public_option_is_left_out)
{
	uint8_t seen[STRUCTS][sizeof(struct sheaf_opts)] = { { 0 } };

	for (int i = 0; i < ARRIVALS; i++)
		memset(seen[arrivals[i].of] + arrivals[i].at, 1, arrivals[i].bytes);
	memset(seen[TOP] + offsetof(struct sheaf_opts, staging), 1, 4 * sizeof(void *));
	memset(seen[STAGING] + offsetof(struct sheaf_staging, reserved), 1, sizeof(int32_t));
	memset(seen[NOTIFY] + offsetof(struct sheaf_notify, reserved), 1, sizeof(int32_t));
	for (int i = 0; i < STRUCTS; i++)
		for (uint32_t at = sizeof(uint32_t); at < structs[i].bytes; at++)
			CHECK(seen[i][at]);
}

TEST(groups_of_options_may_be_null)
{
	struct sheaf_opts in = { .size = sizeof(in), .io_threads = 3 };
	struct shf_opts out, of_none;

	CHECK_RC(shf_opts_gather(&out, &in, &err), 0, &err);
	CHECK_INT(out.io_threads, 3);
	out.io_threads = 0;
	CHECK_RC(shf_opts_gather(&of_none, NULL, &err), 0, &err);
	CHECK(memcmp(&out, &of_none, sizeof(out)) == 0);
	CHECK(memcmp(&out, &(struct shf_opts){ 0 }, sizeof(out)) == 0);
}

TEST(a_struct_of_another_size_is_taken_as_far_as_it_is_known)
{
	struct shf_opts out;
	char want[160];

	for (int i = 0; i < STRUCTS; i++) {
		const struct public_struct *p = &structs[i];
		const uint32_t wrong[] = { 0, p->least - 1, MOST + 1 };

		print_message("# %s\n", p->arg);
		for (int k = 0; k < 3; k++) {
			theirs_init();
			theirs.s[TOP].top.timeout_ms = 7;
			theirs.s[i].size = wrong[k];
			snprintf(want, sizeof(want),
			         "%s.size is %u; set it to sizeof(struct sheaf_%s)", p->arg,
			         wrong[k], p->name);
			CHECK_RC(gathers(&out), SHEAF_EINVAL, &err);
			CHECK_STR(err.msg, want);
			/* The time for which the other ranks wait for this one. */
			CHECK_INT(out.timeout_ms, i == TOP && k < 2 ? 0 : 7);
			CHECK(!out.ignore && !out.images_max && !out.keep_last);
		}
		/* What lies behind the size is not read. */
		theirs_init();
		memset(theirs.s[i].bytes + p->least, 0x5a, p->bytes - p->least);
		theirs.s[i].size = p->least;
		CHECK_RC(gathers(&out), 0, &err);
		CHECK(memcmp(&out, &(struct shf_opts){ 0 }, sizeof(out)) == 0);
		for (uint32_t at = p->bytes; at < MOST; at += at == p->bytes ? MOST - at - 1 : 1) {
			theirs_init();
			theirs.s[i].bytes[at] = 1;
			theirs.s[i].size = at;
			CHECK_RC(gathers(&out), 0, &err);
			theirs.s[i].size = at + 1;
			snprintf(want, sizeof(want), "%s has a field set that this version of "
			         "sheaf does not know; set it to 0, or use a newer sheaf", p->arg);
			CHECK_RC(gathers(&out), SHEAF_EINVAL, &err);
			CHECK_STR(err.msg, want);
		}
	}
}

TEST(reserved_fields_of_options_are_zero)
{
	struct shf_opts out;

	theirs_init();
	theirs.s[STAGING].staging.reserved = 1;
	CHECK_RC(gathers(&out), SHEAF_EINVAL, &err);
	CHECK_STR(err.msg, "opts.staging.reserved is 1; it must be 0");
	theirs_init();
	theirs.s[NOTIFY].notify.reserved = -2;
	CHECK_RC(gathers(&out), SHEAF_EINVAL, &err);
	CHECK_STR(err.msg, "opts.notify.reserved is -2; it must be 0");
}

/* ---- of one rank ---- */

TEST(texts_are_copied)
{
	char pattern[] = "model/x*", other[] = "model/y", note[] = "loss", agent[] = "sock",
	     folder[] = "signals", cpus[] = "0-1";
	const char *ignore[] = { pattern, other, NULL };
	struct shf_opts in = { .ignore = ignore, .keep_last = 1,
		.keep_best = 1, .best_note = note, .agent = agent, .signal_dir = folder,
		.copy_cpus = cpus }, out;

	CHECK_RC(shf_opts_take(&out, &in, &err), 0, &err);
	pattern[0] = other[0] = note[0] = agent[0] = folder[0] = cpus[0] = '!';
	ignore[0] = NULL;
	CHECK_STR(out.ignore[0], "model/x*");
	CHECK_STR(out.ignore[1], "model/y");
	CHECK(!out.ignore[2]);
	CHECK_STR(out.best_note, "loss");
	CHECK_STR(out.agent, "sock");
	CHECK_STR(out.signal_dir, "signals");
	CHECK_STR(out.copy_cpus, "0-1");
	shf_opts_release(&out);
	CHECK(!out.ignore && !out.best_note && !out.agent && !out.signal_dir && !out.copy_cpus);
	in.keep_best = 0;
	in.best_note = NULL;
	ignore[0] = NULL;
	in.copy_cpus = NULL;
	CHECK_RC(shf_opts_take(&out, &in, &err), 0, &err);
	CHECK(!out.ignore && !out.best_note && !out.copy_cpus);
	shf_opts_release(&out);
}

static char path[SHF_AGENT_MAX + 1];

TEST(what_makes_no_sense_is_refused_with_its_sentence)
{
	struct sheaf_group *some = (struct sheaf_group *)path;
	const struct {
		struct shf_opts o;
		const char *sentence;   /* NULL: it is taken */
	} rows[] = {
		{ { .flags = UINT64_C(1) << 62 | SHEAF_RUN_CREATE },
		  "opts.flags: flags 0x4000000000000000 are unknown to this version of sheaf; "
		  "clear them, or use a newer sheaf" },
		{ { .keep_best = 1 }, "opts.retention.keep_best needs opts.retention.best_note, "
			"the key of a note" },
		{ { .keep_best = 1, .best_note = "" },
		  "opts.retention.keep_best needs opts.retention.best_note, the key of a note" },
		{ { .best_note = "loss" }, "opts.retention.best_note is set, but "
			"opts.retention.keep_best is 0; set it to the number of best checkpoints "
			"to keep" },
		{ { .agent = "" },
		  "opts.memory_tier.agent must be \"auto\" or the path of a socket, shorter than "
		  "104 bytes" },
		{ { .agent = path },
		  "opts.memory_tier.agent must be \"auto\" or the path of a socket, shorter than "
		  "104 bytes" },
		{ { .agent = path + 1 }, NULL }, { { .copies = 1 }, NULL },
		{ { .copies = 2 }, "opts.memory_tier.copies is 2, but opts.memory_tier.agent is "
			"NULL: only checkpoints in memory have copies" },
		{ { .copies = 1, .agent = "auto", .copies_group = some },
		  "opts.memory_tier.copies_group needs opts.memory_tier.copies 2 and "
		  "opts.staging.buffers_max 0 or at least 3" },
		{ { .copies = 2, .agent = "auto", .copies_group = some, .images_max = 2 },
		  "opts.memory_tier.copies_group needs opts.memory_tier.copies 2 and "
		  "opts.staging.buffers_max 0 or at least 3" },
		{ { .copies = 2, .agent = "auto", .copies_group = some, .images_max = 3 }, NULL },
		{ { .copy_cpus = "0-" },
		  "opts.staging.copy_cpus is '0-'; expected a list of processors like 0-3,8" },
		{ { .signal_dir = "" }, "opts.notify.signal_dir is an empty string; set it to NULL "
			"for no done files" },
		{ { .staging_bytes_max = 1 }, "opts.staging.bytes_max is 1, must be 0 or at least "
			"131072" },
		{ { .staging_bytes_max = 2 * SHF_WINDOW_MIN - 1 },
		  "opts.staging.bytes_max is 131071, must be 0 or at least 131072" },
		{ { .staging_bytes_max = 2 * SHF_WINDOW_MIN }, NULL },
		{ { .flags = SHEAF_RUN_CREATE | SHEAF_RUN_READONLY },
		  "SHEAF_RUN_CREATE and SHEAF_RUN_READONLY cannot be combined" },
		{ { .flags = SHEAF_RUN_METRICS | SHEAF_RUN_READONLY },
		  "SHEAF_RUN_METRICS and SHEAF_RUN_READONLY cannot be combined" },
		{ { .flags = SHEAF_RUN_READONLY }, NULL },
	};

	memset(path, 'a', SHF_AGENT_MAX);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct shf_opts in = rows[i].o, out;

		if (rows[i].sentence)
			refuses(&in, rows[i].sentence);
		else
			CHECK_RC(takes(&in, &out), 0, &err);
	}
}

/* ---- of several ranks ---- */

static const struct differ {
	struct shf_opts one;          /* of rank 1 */
	const char *dir, *sentence;
} differs[] = {
	{ { .file_bytes_max = 1000 }, "run",
	  "run: ranks opened with different opts.file_bytes_max (1000 and 5000000000)" },
	{ { .flags = SHEAF_RUN_BUFFERED }, "run",
	  "run: ranks opened with SHEAF_RUN_BUFFERED and without" },
	{ { .keep_last = 1 }, "run",
	  "run: ranks opened with different opts.retention.keep_last or keep_every" },
	{ { .keep_every = 1 }, "run",
	  "run: ranks opened with different opts.retention.keep_last or keep_every" },
	{ { .keep_best = 1, .best_note = "loss" }, "run",
	  "run: ranks opened with different opts.retention.keep_best, best_largest or best_note" },
	{ { .best_largest = 1 }, "run",
	  "run: ranks opened with different opts.retention.keep_best, best_largest or best_note" },
	{ { .images_max = 7 }, "run",
	  "run: ranks opened with different opts.staging.buffers_max (0 and 7)" },
	{ { .agent = "auto" }, "run", "run: ranks opened with opts.memory_tier.agent and without" },
	{ { .io_threads = 2 }, "other", "ranks opened different directories" },
	{ { .io_threads = 2, .timeout_ms = 61000, .grace_s = 1, .copy_threads = 2,
	    .staging_bytes_max = 1 << 20, .signal_dir = "s", .copy_cpus = "0" }, "run", NULL },
};

static int opens(struct hand *h)
{
	const struct differ *d = &differs[h->play->variant];
	struct shf_opts o = h->rank ? d->one : h->play->opts;
	int rc;

	o.flags |= SHEAF_RUN_CREATE;
	o.keep_last = o.keep_last ? o.keep_last : 5;    /* which the other rules need */
	o.timeout_ms = o.timeout_ms ? o.timeout_ms : 60000;
	rc = shf_run_open(&h->run, h->rank ? d->dir : "run", h->group, &o, h->sys, &h->err);
	if (rc == 0) {
		shf_run_close(h->run);
		h->run = NULL;
	}
	return rc;
}

TEST(ranks_that_open_a_run_in_different_ways_are_told_in_which)
{
	for (size_t i = 0; i < sizeof(differs) / sizeof(differs[0]); i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, NULL);

		p.path = "";
		p.variant = (int)i;
		CHECK_RC(hands_run(&p, opens, false), differs[i].sentence ? SHEAF_EINVAL : 0,
		         &p.err);
		if (differs[i].sentence && !strstr(p.err.msg, differs[i].sentence))
			CHECK_STR(p.err.msg, differs[i].sentence);
		simdisk_free(disk);
	}
}

static int opens_by_no_name(struct hand *h)
{
	static const char *const dirs[] = { "", NULL };

	return shf_run_open(&h->run, dirs[h->play->variant], h->group, &h->play->opts, h->sys,
	                    &h->err);
}

TEST(a_run_has_a_name)
{
	for (int i = 0; i < 2; i++) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 1, NULL);

		p.path = "";
		p.variant = i;
		CHECK_RC(hands_run(&p, opens_by_no_name, false), SHEAF_EINVAL, &p.err);
		CHECK_STR(p.err.msg, "argument 'dir' is NULL or empty");
		simdisk_free(disk);
	}
}

static int opens_with_its_own_group(struct hand *h)
{
	struct shf_opts o = h->play->opts;

	o.agent = "auto";
	o.copies = 2;
	o.copies_group = h->group;
	return shf_run_open(&h->run, "run", h->group, &o, h->sys, &h->err);
}

TEST(copies_do_not_go_over_the_runs_own_group)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, NULL);

	p.path = "";
	CHECK_RC(hands_run(&p, opens_with_its_own_group, false), SHEAF_EINVAL, &p.err);
	CHECK(strstr(p.err.msg, "opts.memory_tier.copies_group is the run's own group; pass a "
	             "second group of the same ranks, because copies are sent in the "
		     "background") != NULL);
	simdisk_free(disk);
}
