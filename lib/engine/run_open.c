/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a run. The order matters: arguments that must be equal are compared before anything is
 * changed; rank 0 takes the lock and cleans up; then the other ranks open the same run; then all
 * ranks check that they see the same file system. If any rank fails, all close the run. */
#include "run_open.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "crc64.h"
#include "done_files.h"
#include "err.h"
#include "flags.h"
#include "memory_tier.h"
#include "opts.h"
#include "prune_task.h"
#include "run.h"
#include "run_env.h"
#include "save_blocked.h"
#include "save_submit.h"
#include "scrub_run.h"
#include "tries_settle.h"

/* What rank 0 broadcasts after it has opened the run. */
struct opened {
	char run[33], session[33];
	uint8_t no_dir_fsync, pad[5];
};

#define CWD_MAX 4096

/* Makes a relative opts.notify.signal_dir absolute, because a commit looks it up, and the program
 * may have changed its working directory by then. Where /proc is not mounted the path stays as it
 * is. */
static int fix_signal_dir(struct sheaf_run *run, struct sheaf_error *err)
{
	const char *dir = run->opts.signal_dir;
	char cwd[CWD_MAX], *path;
	size_t bytes;
	int n;

	if (!dir || dir[0] == '/')
		return 0;
	n = shf_sys_readlink(run->sys, SHF_CWD, "/proc/self/cwd", cwd, sizeof(cwd));
	if (n <= 0 || n >= CWD_MAX || cwd[0] != '/')
		return 0;
	bytes = (size_t)n + 1 + strlen(dir) + 1;
	path = shf_alloc(bytes, 1);
	if (!path)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for a path");
	snprintf(path, bytes, "%.*s/%s", n, cwd, dir);
	shf_free((void *)(uintptr_t)dir);
	run->opts.signal_dir = path;
	return 0;
}

/* Opens the run on rank 0: with the lock, unless it is opened read-only. Files that dead jobs left
 * are deleted, for at most a quarter of the deadline. */
static int own(struct sheaf_run *run, const char *dir, struct opened *told, struct sheaf_error *err)
{
	const struct shf_opts *o = &run->opts;
	struct shf_owning how = { .create = o->flags & SHEAF_RUN_CREATE, .folder = o->folder,
		.wait_ms = shf_opts_wait_ms(o, SHF_LOCK_WAIT_MS),
		.clear_ms = shf_opts_clear_ms(o) };
	int rc = o->flags & SHEAF_RUN_READONLY
		 ? shf_store_open_as(&run->store, run->sys, dir, o->folder, err)
		 : shf_store_own_as(&run->store, run->sys, dir, &how, err);

	if (rc < 0)
		return rc;
	if (run->store.late)
		shf_log(run, 1, "%s: some leftovers of earlier jobs are not deleted yet, because "
		        "time was short; the next job that opens the run goes on", run->store.path);
	run->life.foreign = false;
	rc = fix_signal_dir(run, err);
	if (rc < 0)
		return rc;
	run->store.attempts_max = run->opts.resume_attempts_max;
	/* Steps that killed too many jobs while they were loaded are marked bad now, before this
	 * job looks for the latest step. */
	rc = run->opts.flags & SHEAF_RUN_READONLY ? 0 : shf_tries_settle(&run->store);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s/.sheaf/tries", run->store.path);
	/* The memory for the path that opts.notify.committed gets is allocated here, because a
	 * commit should not fail for want of memory. */
	run->saves.commit_path_bytes = strlen(run->store.path) + 1 + SHF_STEP_NAME;
	if (run->opts.committed)
		run->saves.commit_path = shf_alloc(run->saves.commit_path_bytes, 1);
	if (run->opts.committed && !run->saves.commit_path)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", run->store.path);
	memcpy(told->run, run->store.run, sizeof(told->run));
	memcpy(told->session, run->store.session, sizeof(told->session));
	told->no_dir_fsync = run->store.no_dir_fsync;
	return 0;
}

/* Opens the run on the other ranks. ENOENT becomes EIO, because it would mean that there is no run,
 * and rank 0 has just opened it: this rank sees another file system, or a network file system that
 * is far behind. */
static int join_run(struct sheaf_run *run, const char *dir, const struct opened *told,
                    struct sheaf_error *err)
{
	int most = shf_opts_wait_ms(&run->opts, SHF_LOCK_WAIT_MS), rc;

	/* A network file system may show a new directory to other hosts some seconds later. */
	for (int slept = 0, ms = 10;; slept += ms, ms = ms < 500 ? 2 * ms : 1000) {
		rc = run->opts.flags & SHEAF_RUN_READONLY
		   ? shf_store_open_as(&run->store, run->sys, dir, run->opts.folder, err)
		   : shf_store_join(&run->store, run->sys, dir, told->run, told->session, err);
		if (rc != SHEAF_ENOENT || slept >= most)
			break;
		shf_sys_sleep_ms(run->sys, ms);
	}
	if (rc == SHEAF_ENOENT)
		rc = shf_fail(err, SHEAF_EIO, "%s: rank 0 has opened the run, but this rank does "
		              "not see it; check that all nodes mount the same file system there",
		              dir);

	if (rc == 0) {
		run->life.foreign = false;
		run->store.no_dir_fsync = told->no_dir_fsync;
	}
	return rc;
}

/* Checks that all ranks see a file that rank 0 writes, and so the same file system. EINVAL names a
 * rank that does not. [collective] */
static int prove_one_file_system(struct sheaf_run *run, struct sheaf_error *err)
{
	char token[33] = "";
	uint8_t bits[16];
	int rc = 0;

	if (run->team.ranks == 1 || run->opts.flags & SHEAF_RUN_READONLY)
		return 0;
	if (run->team.rank == 0) {
		rc = shf_sys_random(run->sys, bits, sizeof(bits));
		if (rc < 0)
			rc = shf_fail_sys(err, -rc, "reading random bytes");
		for (size_t i = 0; i < sizeof(bits); i++)
			snprintf(token + 2 * i, 3, "%02x", bits[i]);
		if (rc == 0)
			rc = shf_store_proof_write(&run->store, token, err);
	}
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, 0, token, sizeof(token), err);
	if (rc == 0)
		rc = shf_agree(&run->team, run->team.rank
		               ? shf_store_proof_read(&run->store, token, err) : 0, err);
	if (run->team.rank == 0)
		shf_store_proof_remove(&run->store, token);
	return rc;
}

/* Checks opts.commit_group: it must have the same ranks as the run's group, and be another
 * group, because a thread uses it while the run's group is in use. */
static int background_check(const struct sheaf_run *run, struct sheaf_error *err)
{
	const struct sheaf_group *g = run->opts.commit_group;

	if (!g)
		return 0;
	if (g == run->team.group || g == run->opts.copies_group)
		return shf_fail(err, SHEAF_EINVAL, "opts.commit_group is %s; make a second group "
		                "of the same ranks for it, because a thread of Sheaf uses it at "
		                "any time",
		                g == run->team.group ? "the run's own group" : "copies_group");
	if (g->ops.rank != run->team.rank || g->ops.ranks != run->team.ranks)
		return shf_fail(err, SHEAF_EINVAL, "opts.commit_group is a group of other ranks; "
		                "pass a second group of the same ranks");
	return 0;
}

/* Checks opts.memory_tier.copies_group: it must have the same ranks as the run's group, and be
 * another group, because replicas are sent in the background while the run's group is in use. */
static int copies_check(const struct sheaf_run *run, struct sheaf_error *err)
{
	const struct sheaf_group *g = run->opts.copies_group;

	if (!g || (g != run->team.group && g->ops.rank == run->team.rank &&
	           g->ops.ranks == run->team.ranks))
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "opts.memory_tier.copies_group is %s",
	                g == run->team.group
	                ? "the run's own group; pass a second group of the same ranks, because "
	                  "copies are sent in the background"
	                : "a group of other ranks; pass a second group of the same ranks");
}

/* Returns the hash by which strings are compared; 0 for NULL. */
static uint64_t text_hash(const char *s)
{
	return s ? shf_crc64(s, strlen(s)) : 0;
}

/* Compares the arguments that must be equal on all ranks. If several differ, the
 * first one of the table is named. */
static int same_arguments(struct sheaf_run *run, const char *dir, struct sheaf_error *err)
{
	const struct shf_opts *o = &run->opts;
	enum { PLAIN, NUMBERS, FLAGS };
	const struct {
		uint64_t x;
		const char *differs;            /* the end of the sentence */
		int more;                       /* NUMBERS: it also has the smallest and the
		                                 * largest value; FLAGS: a flag that only some
		                                 * ranks gave */
	} a[] = {
		{ o->copies == 2, "with opts.memory_tier.copies 2 and without", PLAIN },
		{ o->copies_group != NULL, "with opts.memory_tier.copies_group and without",
		  PLAIN },
		{ o->commit_group != NULL, "with opts.commit_group and without", PLAIN },
		{ o->agent != NULL, "with opts.memory_tier.agent and without", PLAIN },
		{ (uint64_t)o->images_max, "with different opts.staging.buffers_max", NUMBERS },
		{ (uint64_t)o->keep_best << 1 | (o->best_largest != 0),
		  "with different opts.retention.keep_best, best_largest or best_note", PLAIN },
		{ text_hash(o->best_note),
		  "with different opts.retention.keep_best, best_largest or best_note", PLAIN },
		{ (uint64_t)o->keep_last << 32 | (uint32_t)o->keep_every,
		  "with different opts.retention.keep_last or keep_every", PLAIN },
		{ text_hash(dir), "different directories", PLAIN },
		{ text_hash(o->folder), "with different opts.folder", PLAIN },
		{ o->flags, "with", FLAGS },
		{ o->file_bytes_max, "with different opts.file_bytes_max", NUMBERS },
	};
	enum { N = sizeof(a) / sizeof(a[0]) };
	uint64_t x[N], same, lo[N], hi[N];
	int rc;

	for (int i = 0; i < N; i++)
		x[i] = a[i].x;
	rc = shf_same(&run->team, 0, x, N, &same, lo, hi, err);
	for (int i = 0; rc == 0 && i < N; i++) {
		if (lo[i] != hi[i] && a[i].more == PLAIN)
			rc = shf_fail(err, SHEAF_EINVAL, "%s: ranks opened %s", dir, a[i].differs);
		if (lo[i] != hi[i] && a[i].more == NUMBERS)
			rc = shf_fail(err, SHEAF_EINVAL, "%s: ranks opened %s (%" PRIu64 " and %"
			              PRIu64 ")", dir, a[i].differs, lo[i], hi[i]);
		if (lo[i] != hi[i] && a[i].more == FLAGS)
			rc = shf_fail(err, SHEAF_EINVAL, "%s: ranks opened %s %s and without", dir,
			              a[i].differs, shf_flag_name(lo[i] ^ hi[i]));
	}
	return rc;
}

/* Writes the done file of the newest step, if it is missing: a job that died right after the
 * publish may not have written it. [rank 0] */
static void announce_newest(struct sheaf_run *run)
{
	struct sheaf_error err;

	if (run->team.rank || !run->opts.signal_dir || run->opts.flags & SHEAF_RUN_READONLY)
		return;
	if (shf_done_put_newest(&run->store, run->opts.signal_dir, &err) < 0)
		shf_log(run, 1, "%s: the done files of the newest step could not all be written to "
		        "opts.notify.signal_dir: %s",
		        run->store.path, err.msg);
}

/* Ends the threads and connections of the run before it is freed. Called through run->life.end, so
 * that lib/run does not depend on the rooms whose functions are called here. */
static void end(struct sheaf_run *run)
{
	shf_scrub_run_stop(run);
	shf_prune_task_finish(run);
	shf_memory_tier_close(run, run->life.clean);
	/* Last, because the tasks stopped above use the lock. */
	pthread_mutex_destroy(&run->tier->guests.lock);
}

/* Allocates the parts of a run that a bare run (without a directory) does not have. */
static int parts_new(struct sheaf_run *run, struct sheaf_error *err)
{
	run->retain.behind = shf_zalloc(1, sizeof(*run->retain.behind));
	run->retain.pruning = shf_zalloc(1, sizeof(*run->retain.pruning));
	run->tier = shf_zalloc(1, sizeof(*run->tier));
	run->saves.stalls = shf_zalloc(1, sizeof(*run->saves.stalls));
	if (!run->retain.behind || !run->retain.pruning || !run->tier || !run->saves.stalls)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for a run");
	run->retain.behind->now.step = run->retain.behind->next.step = -1;
	run->tier->keep = run->tier->newest = -1;
	run->tier->passed = run->tier->base_step = run->tier->beyond = -1;
	run->tier->from_step = -1;
	run->tier->guests.image = run->tier->guests.copied = -1;
	run->tier->guests.to = -1;
	run->tier->guests.coming = -1;
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		run->tier->steps[i] = -1;
	pthread_mutex_init(&run->tier->guests.lock, NULL);
	run->life.end = end;
	return 0;
}

/* If any rank fails, all ranks release the run, which closes what was opened. [collective] */
int shf_run_open(struct sheaf_run **out, const char *dir, struct sheaf_group *group,
                 const struct shf_opts *opts, const struct shf_sys *sys,
                 struct sheaf_error *err)
{
	struct sheaf_run *run = NULL;
	struct opened told = { .run = "" };
	int rc = shf_run_open_bare(&run, group, opts, sys, NULL, SHF_CALL_RUN_OPEN, err);

	if (rc < 0)
		return rc;
	rc = parts_new(run, err);
	/* From here on every part ends with an agreement, so that either all ranks go on or none
	 * does. */
	if (rc == 0)
		rc = dir && dir[0] ? copies_check(run, err)
		                   : shf_fail(err, SHEAF_EINVAL, "argument 'dir' is NULL or empty");
	if (rc == 0)
		rc = background_check(run, err);
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = same_arguments(run, dir, err);
	if (rc == 0)
		rc =
		    shf_agree(&run->team, run->team.rank == 0 ? own(run, dir, &told, err) : 0, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, 0, &told, sizeof(told), err);
	if (rc == 0)
		rc = shf_agree(&run->team, run->team.rank ? join_run(run, dir, &told, err) : 0,
		               err);
	if (rc == 0)
		rc = prove_one_file_system(run, err);
	if (rc == 0)
		rc = shf_memory_tier_open(run, err);
	if (rc == 0)
		rc = shf_committer_open(run, err);
	if (rc < 0) {
		shf_run_put(run);
		return rc;
	}
	announce_newest(run);
	*out = run;
	return 0;
}
