/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a run: options, the group, nodes, the lock on rank 0, the proof that all
 * ranks see one file system. */
#include "run.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "cpulist.h"
#include "crc64.h"
#include "err.h"
#include "match.h"
#include "safetensors.h"
#include "tree.h"
#include "view.h"

#define OPTS_MIN offsetof(struct sheaf_opts, ignore)

static int note_copy(struct sheaf_opts *out, const char *note, struct sheaf_error *err)
{
	out->best_note = out->keep_best ? shf_strdup(note) : NULL;
	return out->best_note || !out->keep_best
		   ? 0
		   : shf_fail(err, SHEAF_ENOMEM, "no memory for the key of a note");
}

static int path_copy(const char **out, const char *path, struct sheaf_error *err)
{
	*out = path ? shf_strdup(path) : NULL;
	return *out || !path ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a path");
}

static int ignore_copy(struct sheaf_opts *out, const char *const *in, struct sheaf_error *err)
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

void shf_opts_release(struct sheaf_opts *opts)
{
	shf_free((void *)(uintptr_t)opts->ignore);
	shf_free((void *)(uintptr_t)opts->best_note);
	shf_free((void *)(uintptr_t)opts->agent);
	shf_free((void *)(uintptr_t)opts->signal_dir);
	shf_free((void *)(uintptr_t)opts->copy_cpus);
	opts->ignore = NULL;
	opts->best_note = opts->agent = opts->signal_dir = opts->copy_cpus = NULL;
}

/* Numbers that are out of their bounds. */
static int opts_check_bounds(const struct sheaf_opts *o, struct sheaf_error *err)
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
		{ "reserved", o->reserved, 0, 0 },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (all[i].value < all[i].least)
			return shf_fail(err, SHEAF_EINVAL, "opts.%s is %d, at least %d",
			                all[i].name, (int)all[i].value, (int)all[i].least);
		if (all[i].value > all[i].most)
			return shf_fail(err, SHEAF_EINVAL, "opts.%s is %d, at most %d",
			                all[i].name, (int)all[i].value, (int)all[i].most);
	}
	return 0;
}

static int opts_check(const struct sheaf_opts *o, struct sheaf_error *err)
{
	uint32_t known = SHEAF_CREATE | SHEAF_READONLY | SHEAF_REPLICAS | SHEAF_BUFFERED |
	                 SHEAF_UNVERIFIED | SHEAF_METRICS;
	uint64_t cpus[SHF_CPUS_WORDS];

	if (o->flags & ~known)
		return shf_fail(err, SHEAF_EINVAL, "opts.flags 0x%x are none of this sheaf's",
		                (unsigned)(o->flags & ~known));
	int rc = opts_check_bounds(o, err);
	if (rc < 0)
		return rc;
	if (o->keep_best && (!o->best_note || !shf_note_key_is_valid(o->best_note)))
		return shf_fail(err, SHEAF_EINVAL, "opts.keep_best needs best_note, the key of a "
		                "note");
	if (!o->keep_last && (o->keep_every || o->keep_best))
		return shf_fail(err, SHEAF_EINVAL, "opts.%s needs keep_last: without it all steps "
		                "are kept", o->keep_every ? "keep_every" : "keep_best");
	if (o->agent && (!o->agent[0] || strlen(o->agent) >= SHF_AGENT_MAX))
		return shf_fail(err, SHEAF_EINVAL, "opts.agent is \"auto\" or the path of a "
		                "socket, shorter than %d bytes", SHF_AGENT_MAX);
	if (o->copies == 2 && !o->agent)
		return shf_fail(err, SHEAF_EINVAL, "opts.copies are of steps in memory: they need "
		                "an agent");
	if (o->copies_group && (o->copies != 2 || (o->images_max && o->images_max < 3)))
		return shf_fail(err, SHEAF_EINVAL, "opts.copies_group is for copies 2, and needs "
		                "images_max 3 at least");
	if (o->copy_cpus && !shf_cpulist(o->copy_cpus, cpus))
		return shf_fail(err, SHEAF_EINVAL, "opts.copy_cpus is '%.40s', no list of "
		                "processors (0-3,8)", o->copy_cpus);
	if (o->signal_dir && !o->signal_dir[0])
		return shf_fail(err, SHEAF_EINVAL, "opts.signal_dir is empty; NULL is none");
	if (o->staging_bytes_max && o->staging_bytes_max < 2 * SHF_WINDOW_MIN)
		return shf_fail(err, SHEAF_EINVAL,
				"opts.staging_bytes_max is %" PRIu64 ", at least %" PRIu64,
				o->staging_bytes_max, 2 * SHF_WINDOW_MIN);
	if (o->flags & SHEAF_CREATE && o->flags & SHEAF_READONLY)
		return shf_fail(err, SHEAF_EINVAL,
				"SHEAF_CREATE and SHEAF_READONLY exclude each other");
	if (o->flags & SHEAF_METRICS && o->flags & SHEAF_READONLY)
		return shf_fail(err, SHEAF_EINVAL,
				"SHEAF_METRICS and SHEAF_READONLY exclude each other");
	return 0;
}

int shf_opts_take(struct sheaf_opts *out, const struct sheaf_opts *in, struct sheaf_error *err)
{
	struct sheaf_opts o = { .size = sizeof(o) };

	*out = o;
	if (in && (in->size < OPTS_MIN || in->size > SHF_STRUCT_MAX))
		return shf_fail(err, SHEAF_EINVAL, "opts.size is %u; set it to sizeof(struct "
		                "sheaf_opts)", (unsigned)in->size);
	if (in) {
		for (size_t i = sizeof(o); i < in->size; i++)
			if (((const uint8_t *)in)[i])
				return shf_fail(err, SHEAF_EINVAL,
						"opts asks for something newer than "
						"this sheaf");
		memcpy(&o, in, in->size < sizeof(o) ? in->size : sizeof(o));
		o.size = sizeof(o);
	}
	int rc = opts_check(&o, err);
	if (rc < 0)
		return rc;
	o.file_bytes_max = o.file_bytes_max ? o.file_bytes_max : UINT64_C(5000000000);
	o.io_threads = o.io_threads ? o.io_threads : 4;
	o.timeout_ms = o.timeout_ms ? o.timeout_ms : 600000;
	if (o.copies_group && !o.images_max)
		o.images_max = 4;
	o.grace_s = o.grace_s == 0 ? 600 : o.grace_s < 0 ? 0 : o.grace_s;
	struct sheaf_opts theirs = o;
	o.ignore = NULL;
	o.best_note = o.agent = o.signal_dir = o.copy_cpus = NULL;
	rc = ignore_copy(&o, theirs.ignore, err);
	if (rc == 0)
		rc = note_copy(&o, theirs.best_note, err);
	if (rc == 0)
		rc = path_copy(&o.agent, theirs.agent, err);
	if (rc == 0)
		rc = path_copy(&o.signal_dir, theirs.signal_dir, err);
	if (rc == 0)
		rc = path_copy(&o.copy_cpus, theirs.copy_cpus, err);
	if (rc < 0)
		shf_opts_release(&o);
	else
		*out = o;
	return rc;
}

int shf_opts_wait_ms(const struct sheaf_opts *opts, int most_ms)
{
	return opts->timeout_ms / 2 < most_ms ? opts->timeout_ms / 2 : most_ms;
}

int shf_opts_clear_ms(const struct sheaf_opts *opts)
{
	return opts->timeout_ms / 4;
}

void shf_log(const struct sheaf_run *run, int level, const char *fmt, ...)
{
	char line[600];
	va_list ap;

	if (!run->opts.log)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	run->opts.log(run->opts.arg, level, line);
}

int64_t shf_now(const struct sheaf_run *run)
{
	return run->sys->ops->mono_ns(run->sys->arg);
}

void shf_run_time(const struct sheaf_run *run, char out[32])
{
	time_t now = (time_t)run->sys->ops->wall_s(run->sys->arg);
	struct tm tm;

	gmtime_r(&now, &tm);
	strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

void shf_run_resumed(struct sheaf_run *run)
{
	struct sheaf_error err;

	if (run->unsure && run->team.rank == 0 && shf_tries_forget(&run->store, &err) < 0)
		shf_log(run, 1, "%s: a load stays counted though it went well: %s",
		        run->store.path, err.msg);
	run->unsure = false;
}

bool shf_run_is_ours(const struct sheaf_run *run)
{
	return run->sys->ops->pid(run->sys->arg) == run->pid;
}

int shf_run_may_train(const struct sheaf_run *run, int64_t step, struct sheaf_error *err)
{
	if (!shf_run_is_ours(run))
		return shf_fail(err, SHEAF_EINVAL, "the run was opened by another process");
	if (run->closed || run->foreign || run->opts.flags & SHEAF_READONLY)
		return shf_fail(err, SHEAF_EINVAL, "the run is not open for writing");
	if (step < 0 || step > SHF_STEP_MAX)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is %s", step,
		                step < 0 ? "negative" : "beyond the last number, 2^63 - 2");
	return 0;
}

void shf_run_get(struct sheaf_run *run)
{
	run->refs++;
}

void shf_run_put(struct sheaf_run *run)
{
	if (!run || --run->refs > 0)
		return;
	if (shf_run_is_ours(run)) { /* in a child, what a task holds may be half of anything */
		shf_behind_stop(run);
		shf_pruning_settle(run);
		shf_tier_close(run, run->clean);
		if (run->queue)
			run->sys->ops->queue_free(run->sys->arg, run->queue);
		shf_images_release(run);
		if (!run->foreign)
			shf_store_close(&run->store);
		pthread_cond_destroy(&run->in_turn);
		pthread_mutex_destroy(&run->in_lock);
		pthread_mutex_destroy(&run->tier.guests.lock);
		shf_view_free(run->view);
	} else { /* a forked child has copies of memory and descriptors, but no threads or images */
		for (int i = 0; i < SHF_IMAGES_MAX; i++)
			shf_free(run->images[i].peers);
		shf_store_leave(&run->store);
		if (run->team.group)
			run->team.group->ops.free = NULL; /* nor is the group */
	}
	shf_free(run->told);
	shf_run_put(run->of);
	shf_place_release(&run->place);
	shf_opts_release(&run->opts);
	if (run->team.group)
		shf_group_put(run->team.group);
	shf_free(run);
}

static struct shf_team team_of(struct sheaf_group *group, int timeout_ms, const struct shf_sys *sys)
{
	return (struct shf_team){ group, group ? group->ops.rank : 0, group ? group->ops.ranks : 1,
	                          timeout_ms ? timeout_ms : 600000, sys->ops->mono_ns, sys->arg };
}

/* Memory, group and options: what may fail before any agreement is possible. */
static int run_new(struct sheaf_run **out, struct sheaf_group *group,
                   const struct sheaf_opts *opts, const struct shf_sys *sys,
                   struct sheaf_error *err)
{
	struct sheaf_run *run = shf_zalloc(1, sizeof(*run));
	int rc = run ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a run");

	if (rc < 0)
		return rc;
	run->refs = 1;
	run->sys = sys;
	run->pid = sys->ops->pid(sys->arg);
	run->loaded = run->verified.step = run->parent = run->doubtful = -1;
	run->behind.now.step = run->behind.next.step = -1;
	run->tier.keep = run->tier.newest = -1;
	run->tier.passed = -1;
	run->tier.guests.image = run->tier.guests.copied = -1;
	run->tier.guests.to = -1;
	run->tier.guests.coming = -1;
	pthread_mutex_init(&run->tier.guests.lock, NULL);
	run->store.dir = run->store.dot = run->store.stage = run->store.lock = -1;
	run->store.door = -1;
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		run->images[i].own.fd = -1;
	pthread_mutex_init(&run->in_lock, NULL);
	shf_io_turn_init(&run->in_turn);
	run->foreign = true;
	rc = sys->ops->random(sys->arg, &run->id, sizeof(run->id));
	rc = rc < 0 ? shf_fail_sys(err, -rc, "drawing a number")
		    : shf_opts_take(&run->opts, opts, err);
	if (group)
		shf_group_get(group);
	else if (rc == 0 && shf_group_one(&group) < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for a group");
	run->team = team_of(group, run->opts.timeout_ms, sys);
	*out = run;
	return rc;
}

/* Enters the call. A rank that had no memory for a run does so too, so that the others do not wait
 * for it. */
static int meet_new(struct sheaf_run *run, struct sheaf_group *group, const struct shf_sys *sys,
                    enum shf_call_kind call, int rc, struct sheaf_error *err)
{
	struct shf_team bare = team_of(group, 0, sys);
	struct shf_call m = { .kind = call };

	if (!run || !run->team.group)
		return group ? shf_call_enter(&bare, &m, rc, err) : rc;
	rc = shf_call_enter(&run->team, &m, rc, err);
	run->made = m.number;
	return rc;
}

static int place_copy(struct shf_place_info *to, const struct shf_place_info *from, int ranks,
                      struct sheaf_error *err)
{
	int32_t *nodes = shf_alloc((size_t)ranks, sizeof(*nodes));

	if (!nodes)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %d ranks", ranks);
	memcpy(nodes, from->nodes, (size_t)ranks * sizeof(*nodes));
	*to = *from;
	to->nodes = nodes;
	return 0;
}

int shf_run_open_bare(struct sheaf_run **out, struct sheaf_group *group,
                      const struct sheaf_opts *opts, const struct shf_sys *sys,
                      const struct shf_place_info *place, enum shf_call_kind call,
                      struct sheaf_error *err)
{
	struct sheaf_run *run = NULL;
	int rc = run_new(&run, group, opts, sys, err);

	if (rc == 0) {
		rc = sys->ops->queue_new(sys->arg, &run->queue, run->opts.io_threads);
		if (rc < 0)
			rc =
			    shf_fail_sys(err, -rc, "starting %d I/O threads", run->opts.io_threads);
	}
	if (rc == 0 && place)
		rc = place_copy(&run->place, place, run->team.ranks, err);
	rc = meet_new(run, group, sys, call, rc, err);
	if (rc == 0 && !place)
		rc = shf_place_find(&run->team, sys, &run->place, err);
	if (rc == 0)
		*out = run;
	else
		shf_run_put(run);
	return rc;
}

/* Rank 0's outcome, run id and session, to all. */
struct opened {
	char run[33], session[33];
	uint8_t no_dir_fsync, pad[5];
};

static int own(struct sheaf_run *run, const char *dir, struct opened *told, struct sheaf_error *err)
{
	int wait = shf_opts_wait_ms(&run->opts, SHF_LOCK_WAIT_MS);
	int rc = run->opts.flags & SHEAF_READONLY
		     ? shf_store_open(&run->store, run->sys, dir, err)
		     : shf_store_own_as(&run->store, run->sys, dir, run->opts.flags & SHEAF_CREATE,
				     wait, shf_opts_clear_ms(&run->opts), NULL, err);

	if (rc < 0)
		return rc;
	if (run->store.late)
		shf_log(run, 1, "%s: not all that earlier jobs left could be deleted in time: the "
		        "next job goes on with it", run->store.path);
	run->foreign = false;
	run->store.attempts_max = run->opts.resume_attempts_max;
	rc = run->opts.flags & SHEAF_READONLY ? 0 : shf_tries_settle(&run->store);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s/.sheaf/tries", run->store.path);
	run->told_bytes = strlen(run->store.path) + 40;
	if (run->opts.committed && !(run->told = shf_alloc(run->told_bytes, 1)))
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", run->store.path);
	memcpy(told->run, run->store.run, sizeof(told->run));
	memcpy(told->session, run->store.session, sizeof(told->session));
	told->no_dir_fsync = run->store.no_dir_fsync;
	return 0;
}

/* ENOENT would tell the caller that there is no run, and rank 0 has opened it: a network file
 * system may show old names for a while, and then it is another file system. */
static int join(struct sheaf_run *run, const char *dir, const struct opened *told,
                struct sheaf_error *err)
{
	int most = shf_opts_wait_ms(&run->opts, SHF_LOCK_WAIT_MS), rc;

	for (int slept = 0, ms = 10;; slept += ms, ms = ms < 500 ? 2 * ms : 1000) {
		rc = run->opts.flags & SHEAF_READONLY
		   ? shf_store_open(&run->store, run->sys, dir, err)
		   : shf_store_join(&run->store, run->sys, dir, told->run, told->session, err);
		if (rc != SHEAF_ENOENT || slept >= most)
			break;
		run->sys->ops->sleep_ms(run->sys->arg, ms);
	}
	if (rc == SHEAF_ENOENT)
		rc = shf_fail(err, SHEAF_EIO, "%s: rank 0 has opened the run, but it is not to be "
		              "seen here: is it the same file system?", dir);

	if (rc == 0) {
		run->foreign = false;
		run->store.no_dir_fsync = told->no_dir_fsync;
	}
	return rc;
}

/* All ranks see what rank 0 wrote: one file system, or EINVAL naming the rank. */
static int prove(struct sheaf_run *run, struct sheaf_error *err)
{
	char token[33] = "";
	uint8_t bits[16];
	int rc = 0;

	if (run->team.ranks == 1 || run->opts.flags & SHEAF_READONLY)
		return 0;
	if (run->team.rank == 0) {
		rc = run->sys->ops->random(run->sys->arg, bits, sizeof(bits));
		if (rc < 0)
			rc = shf_fail_sys(err, -rc, "drawing a token");
		for (size_t i = 0; i < sizeof(bits); i++)
			snprintf(token + 2 * i, 3, "%02x", bits[i]);
		if (rc == 0)
			rc = shf_store_proof_write(&run->store, token, err);
	}
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, token, sizeof(token), err);
	if (rc == 0)
		rc = shf_agree(&run->team, run->team.rank
		               ? shf_store_proof_read(&run->store, token, err) : 0, err);
	if (run->team.rank == 0)
		shf_store_proof_remove(&run->store, token);
	return rc;
}

/* The group that copies go over has the same ranks, and is another one. */
static int copies_check(const struct sheaf_run *run, struct sheaf_error *err)
{
	const struct sheaf_group *g = run->opts.copies_group;

	if (!g || (g != run->team.group && g->ops.rank == run->team.rank &&
	           g->ops.ranks == run->team.ranks))
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "opts.copies_group is %s", g == run->team.group
	                ? "the run's own group: copies go behind its calls" : "of other ranks");
}

static uint64_t text_hash(const char *s)
{
	return s ? shf_crc64(s, strlen(s)) : 0;
}

/* Arguments that must be the same everywhere. */
static int same_arguments(struct sheaf_run *run, const char *dir, struct sheaf_error *err)
{
	uint64_t keep = (uint64_t)run->opts.keep_last << 32 | (uint32_t)run->opts.keep_every;
	uint64_t best = (uint64_t)run->opts.keep_best << 1 | (run->opts.best_largest != 0);
	uint64_t x[10] = { text_hash(dir), run->opts.flags, run->opts.file_bytes_max, keep, best,
		text_hash(run->opts.best_note), (uint64_t)run->opts.images_max,
		run->opts.agent != NULL, run->opts.copies == 2,
		run->opts.copies_group != NULL };
	uint64_t same, lo[10], hi[10];
	int rc = shf_same(&run->team, x, 10, &same, lo, hi, err);

	if (rc < 0 || same == 1023)
		return rc;
	if (!(same & 256) || !(same & 512))
		return shf_fail(err, SHEAF_EINVAL, "%s: ranks opened with %s and without", dir,
		                same & 256 ? "a copies_group" : "copies 2");
	if (!(same & 128))
		return shf_fail(err, SHEAF_EINVAL, "%s: ranks opened with an agent and without",
		                dir);
	if (!(same & 64))
		return shf_fail(err, SHEAF_EINVAL, "%s: ranks opened with different images_max (%"
		                PRIu64 " and %" PRIu64 ")", dir, lo[6], hi[6]);
	if (!(same & 16) || !(same & 32))
		return shf_fail(err, SHEAF_EINVAL, "%s: ranks opened with different keep_best, "
		                "best_largest or best_note", dir);
	if (!(same & 8))
		return shf_fail(err, SHEAF_EINVAL, "%s: ranks opened with different keep_last or "
		                "keep_every", dir);
	if (!(same & 1))
		return shf_fail(err, SHEAF_EINVAL, "%s: ranks opened different directories", dir);
	return shf_fail(err, SHEAF_EINVAL, "%s: ranks opened with different %s (%" PRIu64 " and %"
	                PRIu64 ")", dir, same & 2 ? "file_bytes_max" : "flags",
	                same & 2 ? lo[2] : lo[1], same & 2 ? hi[2] : hi[1]);
}

/* A job that died right after its publish told nobody. */
static void announce_newest(struct sheaf_run *run)
{
	struct sheaf_error err;

	if (run->team.rank || !run->opts.signal_dir || run->opts.flags & SHEAF_READONLY)
		return;
	if (shf_done_put_newest(&run->store, run->opts.signal_dir, &err) < 0)
		shf_log(run, 1, "%s: the done files of its newest step are not all there: %s",
		        run->store.path, err.msg);
}

int shf_run_open(struct sheaf_run **out, const char *dir, struct sheaf_group *group,
                 const struct sheaf_opts *opts, const struct shf_sys *sys,
                 struct sheaf_error *err)
{
	struct sheaf_run *run = NULL;
	struct opened told = { .run = "" };
	int rc = shf_run_open_bare(&run, group, opts, sys, NULL, SHF_CALL_RUN_OPEN, err);

	if (rc < 0)
		return rc;
	rc = shf_agree(&run->team, dir && dir[0] ? copies_check(run, err)
	               : shf_fail(err, SHEAF_EINVAL, "no directory was named"), err);
	if (rc == 0)
		rc = same_arguments(run, dir, err);
	if (rc == 0)
		rc =
		    shf_agree(&run->team, run->team.rank == 0 ? own(run, dir, &told, err) : 0, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, &told, sizeof(told), err);
	if (rc == 0)
		rc = shf_agree(&run->team, run->team.rank ? join(run, dir, &told, err) : 0, err);
	if (rc == 0)
		rc = prove(run, err);
	if (rc == 0)
		rc = shf_tier_open(run, err);
	if (rc < 0) {
		shf_run_put(run);
		return rc;
	}
	announce_newest(run);
	*out = run;
	return 0;
}
