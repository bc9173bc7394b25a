/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's options for a run: checked, copied, defaults filled in. Strings are copied, so that
 * the caller may free its own when the call returns. */
#include "opts.h"
#include <inttypes.h>
#include <string.h>
#include "cpulist.h"
#include "err.h"
#include "flags.h"
#include "match.h"
#include "struct_size.h"
#include "valid.h"

#define OPTS_MIN offsetof(struct sheaf_opts, ignore)

/* Copies the key of the note by which keep_best chooses steps. Without keep_best the key is not
 * used. */
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
		{ "io_threads", o->io_threads, 0, 256 },
		{ "images_max", o->images_max, 0, SHF_IMAGES_MAX },
		{ "copy_threads", o->copy_threads, 0, 256 },
		{ "copies", o->copies, 0, 2 },
		{ "keep_last", o->keep_last, 0, INT32_MAX },
		{ "keep_every", o->keep_every, 0, INT32_MAX },
		{ "keep_best", o->keep_best, 0, INT32_MAX },
		{ "grace_s", o->grace_s, -1, INT32_MAX },
		{ "timeout_ms", o->timeout_ms, 0, INT32_MAX },
		{ "resume_attempts_max", o->resume_attempts_max, 0, INT32_MAX },
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
		return shf_fail(err, SHEAF_EINVAL, "opts.keep_best needs opts.best_note, the key "
		                "of a note");
	if (!o->keep_last && (o->keep_every || o->keep_best))
		return shf_fail(err, SHEAF_EINVAL, "opts.%s needs opts.keep_last: without it all "
		                "checkpoints are kept", o->keep_every ? "keep_every" : "keep_best");
	if (o->agent && (!o->agent[0] || strlen(o->agent) >= SHF_AGENT_MAX))
		return shf_fail(err, SHEAF_EINVAL, "opts.agent must be \"auto\" or the path of a "
		                "socket, shorter than %d bytes", SHF_AGENT_MAX);
	if (o->copies == 2 && !o->agent)
		return shf_fail(err, SHEAF_EINVAL, "opts.copies is 2, but opts.agent is NULL: only "
		                "checkpoints in memory have copies");
	if (o->copies_group && (o->copies != 2 || (o->images_max && o->images_max < 3)))
		return shf_fail(err, SHEAF_EINVAL, "opts.copies_group needs opts.copies 2 and "
		                "opts.images_max 0 or at least 3");
	if (o->copy_cpus && !shf_cpulist(o->copy_cpus, cpus))
		return shf_fail(err, SHEAF_EINVAL, "opts.copy_cpus is '%.40s'; expected a list of "
		                "processors like 0-3,8", o->copy_cpus);
	if (o->signal_dir && !o->signal_dir[0])
		return shf_fail(err, SHEAF_EINVAL, "opts.signal_dir is an empty string; set it to "
		                "NULL for no done files");
	if (o->staging_bytes_max && o->staging_bytes_max < 2 * SHF_WINDOW_MIN)
		return shf_fail(err, SHEAF_EINVAL,
				"opts.staging_bytes_max is %" PRIu64 ", must be 0 or at least "
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

int shf_opts_gather(struct shf_opts *out, const struct sheaf_opts *in, struct sheaf_error *err)
{
	struct sheaf_opts o = { 0 };
	int rc = in ? shf_struct_take(&o, in, sizeof(o), OPTS_MIN, "opts", err) : 0;

	*out = (struct shf_opts){ 0 };
	if (rc < 0) {
		/* The group may have to hear of it (shf_refuse_all), for as long as is usual. */
		if (in->size >= OPTS_MIN && in->timeout_ms > 0)
			out->timeout_ms = in->timeout_ms;
		return rc;
	}
	*out = (struct shf_opts){
		.flags = o.flags, .timeout_ms = o.timeout_ms, .io_threads = o.io_threads,
		.resume_attempts_max = o.resume_attempts_max,
		.file_bytes_max = o.file_bytes_max, .folder = o.folder, .ignore = o.ignore,
		.log = o.log, .progress = o.progress, .arg = o.arg,
		.commit_group = o.commit_group,
		.staging_bytes_max = o.staging_bytes_max, .copy_rate_max = o.copy_rate_max,
		.copy_cpus = o.copy_cpus, .images_max = o.images_max,
		.copy_threads = o.copy_threads,
		.keep_last = o.keep_last, .keep_every = o.keep_every, .keep_best = o.keep_best,
		.best_largest = o.best_largest, .best_note = o.best_note, .grace_s = o.grace_s,
		.copies = o.copies, .agent = o.agent, .copies_group = o.copies_group,
		.committed = o.committed, .committed_arg = o.arg, .signal_dir = o.signal_dir,
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
	o.file_bytes_max = o.file_bytes_max ? o.file_bytes_max : UINT64_C(5000000000);
	o.io_threads = o.io_threads ? o.io_threads : 4;
	o.timeout_ms = o.timeout_ms ? o.timeout_ms : SHF_TIMEOUT_MS;
	if (o.copies_group && !o.images_max)
		o.images_max = 4;
	o.grace_s = o.grace_s == 0 ? 600 : o.grace_s < 0 ? 0 : o.grace_s;
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
