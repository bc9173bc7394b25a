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

#define AT(field) offsetof(struct shf_opts, field), #field
static const struct number {
	size_t at;
	const char *name;
	int32_t least, most;
} numbers[] = {
	{ AT(io_threads), 0, 256 }, { AT(images_max), 0, SHF_IMAGES_MAX },
	{ AT(copy_threads), 0, 256 }, { AT(copies), 0, 2 }, { AT(timeout_ms), 0, INT32_MAX },
	{ AT(keep_last), 0, INT32_MAX }, { AT(keep_every), 0, INT32_MAX },
	{ AT(keep_best), 0, INT32_MAX }, { AT(grace_s), -1, INT32_MAX },
	{ AT(resume_attempts_max), 0, INT32_MAX },
};

static struct shf_opts with(const struct number *n, int32_t x)
{
	struct shf_opts o = { .agent = "auto", .best_note = "loss",
		.keep_last = 1 };

	memcpy((char *)&o + n->at, &x, sizeof(x));
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
	CHECK_INT(out.grace_s, 600);
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
	CHECK_INT(out.grace_s, 0);
	CHECK_INT(out.images_max, 4);
	CHECK_INT(shf_opts_wait_ms(&out, 499), 499);
	CHECK_INT(shf_opts_wait_ms(&out, 501), 500);
	CHECK_INT(shf_opts_clear_ms(&out), 250);
}

TEST(a_struct_of_another_sheaf_is_taken_as_far_as_it_is_known)
{
	enum { MIN = offsetof(struct sheaf_opts, ignore), MOST = 4096 };
	static const char *const none[] = { "model/*", NULL };
	union {
		struct sheaf_opts o;
		uint8_t bytes[MOST + 1];
	} in = { .o = { .keep_last = 3, .ignore = none, .timeout_ms = 7 } };
	struct shf_opts out;
	char want[100];

	for (uint32_t size = MIN - 1; size <= MOST + 1; size += size == MIN ? MOST - MIN : 1) {
		in.o.size = size;
		if (size >= MIN && size <= MOST) {
			CHECK_RC(shf_opts_gather(&out, &in.o, &err), 0, &err);
			CHECK_INT(out.keep_last, 3);
			CHECK((out.ignore != NULL) == (size > MIN));
			continue;
		}
		snprintf(want, sizeof(want), "opts.size is %u; set it to sizeof(struct sheaf_opts)",
		         size);
		CHECK_RC(shf_opts_gather(&out, &in.o, &err), SHEAF_EINVAL, &err);
		CHECK_STR(err.msg, want);
		CHECK_INT(out.keep_last, 0);
		CHECK_INT(out.timeout_ms, size >= MIN ? 7 : 0);
	}
	for (size_t at = sizeof(in.o); at < MOST; at += at == sizeof(in.o) ? MOST - at - 1 : 1) {
		in.bytes[at] = 1;
		in.o.size = (uint32_t)at;
		CHECK_RC(shf_opts_gather(&out, &in.o, &err), 0, &err);
		in.o.size = (uint32_t)at + 1;
		CHECK_RC(shf_opts_gather(&out, &in.o, &err), SHEAF_EINVAL, &err);
		CHECK_STR(err.msg, "opts has a field set that this version of sheaf does not know; "
		          "set it to 0, or use a newer sheaf");
		in.bytes[at] = 0;
	}
}

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
	in.keep_best = 0;       /* then nobody asks for a note */
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
		{ { .keep_best = 1 }, "opts.keep_best needs opts.best_note, the key of a note" },
		{ { .keep_best = 1, .best_note = "" },
		  "opts.keep_best needs opts.best_note, the key of a note" },
		{ { .agent = "" },
		  "opts.agent must be \"auto\" or the path of a socket, shorter than 104 bytes" },
		{ { .agent = path },
		  "opts.agent must be \"auto\" or the path of a socket, shorter than 104 bytes" },
		{ { .agent = path + 1 }, NULL }, { { .copies = 1 }, NULL },
		{ { .copies = 2 }, "opts.copies is 2, but opts.agent is NULL: only checkpoints in "
			"memory have copies" },
		{ { .copies = 1, .agent = "auto", .copies_group = some },
		  "opts.copies_group needs opts.copies 2 and opts.images_max 0 or at least 3" },
		{ { .copies = 2, .agent = "auto", .copies_group = some, .images_max = 2 },
		  "opts.copies_group needs opts.copies 2 and opts.images_max 0 or at least 3" },
		{ { .copies = 2, .agent = "auto", .copies_group = some, .images_max = 3 }, NULL },
		{ { .copy_cpus = "0-" },
		  "opts.copy_cpus is '0-'; expected a list of processors like 0-3,8" },
		{ { .signal_dir = "" }, "opts.signal_dir is an empty string; set it to NULL for no "
			"done files" },
		{ { .staging_bytes_max = 1 }, "opts.staging_bytes_max is 1, must be 0 or at least "
			"131072" },
		{ { .staging_bytes_max = 2 * SHF_WINDOW_MIN - 1 },
		  "opts.staging_bytes_max is 131071, must be 0 or at least 131072" },
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
	  "run: ranks opened with different opts.keep_last or keep_every" },
	{ { .keep_every = 1 }, "run",
	  "run: ranks opened with different opts.keep_last or keep_every" },
	{ { .keep_best = 1, .best_note = "loss" }, "run",
	  "run: ranks opened with different opts.keep_best, best_largest or best_note" },
	{ { .best_largest = 1 }, "run",
	  "run: ranks opened with different opts.keep_best, best_largest or best_note" },
	{ { .images_max = 7 }, "run",
	  "run: ranks opened with different opts.images_max (0 and 7)" },
	{ { .agent = "auto" }, "run", "run: ranks opened with opts.agent and without" },
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
	CHECK(strstr(p.err.msg, "opts.copies_group is the run's own group; pass a second group of "
	             "the same ranks, because copies are sent in the background") != NULL);
	simdisk_free(disk);
}
