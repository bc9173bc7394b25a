/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's options for a run: checked, copied, defaults filled in. Strings are copied, so that
 * the caller may free its own when the call returns. */
#include "opts.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "cpulist.h"
#include "err.h"
#include "flags.h"
#include "match.h"
#include "sheaf-opts.h"
#include "struct_size.h"
#include "valid.h"

/* The least sizes of the caller's structs that are accepted: every version of the headers has the
 * fields before these. */
#define OPTS_MIN offsetof(struct sheaf_opts, folder)
#define GROUP_MIN (2 * sizeof(uint32_t))

/* Copies the key of the note by which keep_best chooses steps, if there is one. */
static int note_copy(struct shf_opts *out, const char *note, struct sheaf_error *err)
{
	out->best_note = out->keep_best ? shf_strdup(note) : NULL;
	return out->best_note || !out->keep_best
		   ? 0
		   : shf_fail(err, SHEAF_ENOMEM, "no memory for the key of a note");
}

/* Copies a string option, which may be NULL. */
static int path_copy(const char **out, const char *path, struct sheaf_error *err)
{
	*out = path ? shf_strdup(path) : NULL;
	return *out || !path ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a path");
}

/* Copies the list of patterns and its strings into one allocation. */
static int ignore_copy(struct shf_opts *out, const char *const *in, struct sheaf_error *err)
{
	size_t n = 0, bytes = 0;
	char *text;

	out->ignore = NULL;
	if (!in || !in[0])
		return 0;
	for (; in[n]; n++)
		bytes += strlen(in[n]) + 1;
	const char **list = shf_zalloc(1, (n + 1) * sizeof(*list) + bytes);
	if (!list)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu patterns", n);
	text = (char *)(list + n + 1);
	for (size_t i = 0; i < n; i++) {
		size_t len = strlen(in[i]) + 1;

		list[i] = memcpy(text, in[i], len);
		text += len;
	}
	out->ignore = list;
	return 0;
}

void shf_opts_release(struct shf_opts *opts)
{
	shf_free((void *)(uintptr_t)opts->ignore);
	shf_free((void *)(uintptr_t)opts->best_note);
	shf_free((void *)(uintptr_t)opts->agent);
	shf_free((void *)(uintptr_t)opts->signal_dir);
	shf_free((void *)(uintptr_t)opts->copy_cpus);
	shf_free((void *)(uintptr_t)opts->folder);
	opts->ignore = NULL;
	opts->best_note = opts->agent = opts->signal_dir = opts->copy_cpus = opts->folder = NULL;
}

/* Checks the bounds of numbers. The message names the option and the bound. */
static int opts_check_bounds(const struct shf_opts *o, struct sheaf_error *err)
{
	const struct {
		const char *name;
		int32_t value, least, most;
	} all[] = {
		{ "timeout_ms", o->timeout_ms, 0, INT32_MAX },
		{ "io_threads", o->io_threads, 0, 256 },
		{ "resume_attempts_max", o->resume_attempts_max, 0, INT32_MAX },
		{ "staging.buffers_max", o->images_max, 0, SHF_IMAGES_MAX },
		{ "staging.copy_threads", o->copy_threads, 0, 256 },
		{ "retention.keep_last", o->keep_last, 0, INT32_MAX },
		{ "retention.keep_every", o->keep_every, 0, INT32_MAX },
		{ "retention.keep_best", o->keep_best, 0, INT32_MAX },
		{ "retention.grace_s", o->grace_s, -1, INT32_MAX },
		{ "memory_tier.copies", o->copies, 0, 2 },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (all[i].value < all[i].least)
			return shf_fail(err, SHEAF_EINVAL, "opts.%s is %d, must be at least %d",
			                all[i].name, (int)all[i].value, (int)all[i].least);
		if (all[i].value > all[i].most)
			return shf_fail(err, SHEAF_EINVAL, "opts.%s is %d, must be at most %d",
			                all[i].name, (int)all[i].value, (int)all[i].most);
	}
	return 0;
}

/* Checks all options: flags, bounds, strings, and options that exclude or need each other. */
static int opts_check(const struct shf_opts *o, struct sheaf_error *err)
{
	uint64_t cpus[SHF_CPUS_WORDS];
	int rc = shf_flags_check(o->flags, SHF_RUN_FLAGS, "opts.flags", err);

	if (rc == 0)
		rc = opts_check_bounds(o, err);
	if (rc < 0)
		return rc;
	if (o->keep_best && (!o->best_note || !shf_note_key_is_valid(o->best_note)))
		return shf_fail(err, SHEAF_EINVAL, "opts.retention.keep_best needs "
		                "opts.retention.best_note, the key of a note");
	if (o->best_note && !o->keep_best)
		return shf_fail(err, SHEAF_EINVAL, "opts.retention.best_note is set, but "
		                "opts.retention.keep_best is 0; set it to the number of best "
		                "checkpoints to keep");
	if (!o->keep_last && (o->keep_every || o->keep_best))
		return shf_fail(err, SHEAF_EINVAL, "opts.retention.%s needs "
		                "opts.retention.keep_last: without it all checkpoints are kept",
		                o->keep_every ? "keep_every" : "keep_best");
	if (o->agent && (!o->agent[0] || strlen(o->agent) >= SHF_AGENT_MAX))
		return shf_fail(err, SHEAF_EINVAL, "opts.memory_tier.agent must be \"auto\" or the "
		                "path of a socket, shorter than %d bytes", SHF_AGENT_MAX);
	if (o->copies == 2 && !o->agent)
		return shf_fail(err, SHEAF_EINVAL, "opts.memory_tier.copies is 2, but "
		                "opts.memory_tier.agent is NULL: only checkpoints in memory "
		                "have copies");
	if (o->copies_group && (o->copies != 2 || (o->images_max && o->images_max < 3)))
		return shf_fail(err, SHEAF_EINVAL, "opts.memory_tier.copies_group needs "
		                "opts.memory_tier.copies 2 and opts.staging.buffers_max 0 or "
		                "at least 3");
	if (o->copy_cpus && !shf_cpulist(o->copy_cpus, cpus))
		return shf_fail(err, SHEAF_EINVAL, "opts.staging.copy_cpus is '%.40s'; expected a "
		                "list of processors like 0-3,8", o->copy_cpus);
	if (o->signal_dir && !o->signal_dir[0])
		return shf_fail(err, SHEAF_EINVAL, "opts.notify.signal_dir is an empty string; set "
		                "it to NULL for no done files");
	if (o->staging_bytes_max && o->staging_bytes_max < 2 * SHF_WINDOW_MIN)
		return shf_fail(err, SHEAF_EINVAL,
				"opts.staging.bytes_max is %" PRIu64 ", must be 0 or at least "
				"%" PRIu64,
				o->staging_bytes_max, 2 * SHF_WINDOW_MIN);
	if (o->flags & SHEAF_RUN_CREATE && o->flags & SHEAF_RUN_READONLY)
		return shf_fail(err, SHEAF_EINVAL,
				"SHEAF_RUN_CREATE and SHEAF_RUN_READONLY cannot be combined");
	if (o->flags & SHEAF_RUN_METRICS && o->flags & SHEAF_RUN_READONLY)
		return shf_fail(err, SHEAF_EINVAL,
				"SHEAF_RUN_METRICS and SHEAF_RUN_READONLY cannot be combined");
	return 0;
}

/* Copies the caller's struct `theirs`, one of a group of options, to *own; NULL: all zeros. name:
 * of the field of sheaf_opts that points to the struct, and of the struct without `sheaf_`. */
static int group_take(void *own, const void *theirs, size_t bytes, const char *name,
                      struct sheaf_error *err)
{
	char arg[40];

	if (!theirs)
		return 0;
	snprintf(arg, sizeof(arg), "opts.%s", name);
	return shf_struct_take(own, theirs, bytes, GROUP_MIN, arg, name, err);
}

/* All public structs of options. */
struct groups {
	struct sheaf_opts top;
	struct sheaf_staging staging;
	struct sheaf_retention retention;
	struct sheaf_memory_tier tier;
	struct sheaf_notify notify;
};

/* Copies the caller's structs, as far as their sizes say. */
static int groups_take(struct groups *g, const struct sheaf_opts *in, struct sheaf_error *err)
{
	int rc = shf_struct_take(&g->top, in, sizeof(g->top), OPTS_MIN, "opts", "opts", err);

	if (rc == 0)
		rc = group_take(&g->staging, g->top.staging, sizeof(g->staging), "staging", err);
	if (rc == 0)
		rc = group_take(&g->retention, g->top.retention, sizeof(g->retention), "retention",
		                err);
	if (rc == 0)
		rc = group_take(&g->tier, g->top.memory_tier, sizeof(g->tier), "memory_tier", err);
	if (rc == 0)
		rc = group_take(&g->notify, g->top.notify, sizeof(g->notify), "notify", err);
	if (rc == 0 && g->staging.reserved)
		rc = shf_fail(err, SHEAF_EINVAL, "opts.staging.reserved is %d; it must be 0",
		              (int)g->staging.reserved);
	if (rc == 0 && g->notify.reserved)
		rc = shf_fail(err, SHEAF_EINVAL, "opts.notify.reserved is %d; it must be 0",
		              (int)g->notify.reserved);
	return rc;
}

int shf_opts_gather(struct shf_opts *out, const struct sheaf_opts *in, struct sheaf_error *err)
{
	struct groups g = { .top = { 0 } };
	const struct sheaf_opts *o = &g.top;
	int rc = in ? groups_take(&g, in, err) : 0;

	*out = (struct shf_opts){ 0 };
	if (rc < 0) {
		/* The other ranks wait for this one only as long as the caller wished. */
		if (in->size >= OPTS_MIN && in->timeout_ms > 0)
			out->timeout_ms = in->timeout_ms;
		return rc;
	}
	*out = (struct shf_opts){
		.flags = o->flags, .timeout_ms = o->timeout_ms, .io_threads = o->io_threads,
		.resume_attempts_max = o->resume_attempts_max,
		.file_bytes_max = o->file_bytes_max, .folder = o->folder, .ignore = o->ignore,
		.log = o->log, .progress = o->progress, .arg = o->arg,
		.commit_group = o->commit_group,
		.staging_bytes_max = g.staging.bytes_max, .images_max = g.staging.buffers_max,
		.copy_threads = g.staging.copy_threads, .copy_cpus = g.staging.copy_cpus,
		.copy_rate_max = g.staging.copy_rate_max,
		.keep_last = g.retention.keep_last, .keep_every = g.retention.keep_every,
		.keep_best = g.retention.keep_best, .best_note = g.retention.best_note,
		.best_largest = g.retention.best_largest, .grace_s = g.retention.grace_s,
		.copies = g.tier.copies, .agent = g.tier.agent,
		.copies_group = g.tier.copies_group,
		.committed = g.notify.committed, .committed_arg = g.notify.arg,
		.signal_dir = g.notify.signal_dir,
	};
	return 0;
}

int shf_opts_take(struct shf_opts *out, const struct shf_opts *in, struct sheaf_error *err)
{
	struct shf_opts o = { 0 };

	*out = o;
	if (in)
		o = *in;
	int rc = opts_check(&o, err);
	if (rc < 0)
		return rc;
	o.file_bytes_max = o.file_bytes_max ? o.file_bytes_max : SHF_FILE_BYTES;
	o.io_threads = o.io_threads ? o.io_threads : 4;
	o.timeout_ms = o.timeout_ms ? o.timeout_ms : SHF_TIMEOUT_MS;
	if (o.copies_group && !o.images_max)
		o.images_max = 4;
	struct shf_opts theirs = o;
	o.ignore = NULL;
	o.best_note = o.agent = o.signal_dir = o.copy_cpus = o.folder = NULL;
	rc = ignore_copy(&o, theirs.ignore, err);
	if (rc == 0)
		rc = note_copy(&o, theirs.best_note, err);
	if (rc == 0)
		rc = path_copy(&o.agent, theirs.agent, err);
	if (rc == 0)
		rc = path_copy(&o.signal_dir, theirs.signal_dir, err);
	if (rc == 0)
		rc = path_copy(&o.copy_cpus, theirs.copy_cpus, err);
	if (rc == 0)
		rc = path_copy(&o.folder, theirs.folder, err);
	if (rc < 0)
		shf_opts_release(&o);
	else
		*out = o;
	return rc;
}

int shf_opts_wait_ms(const struct shf_opts *opts, int most_ms)
{
	return opts->timeout_ms / 2 < most_ms ? opts->timeout_ms / 2 : most_ms;
}

int shf_opts_clear_ms(const struct shf_opts *opts)
{
	return opts->timeout_ms / 4;
}
