/* SPDX-License-Identifier: Apache-2.0 */
/* C2 and C3 on this rank. Waits for the writes of a save, then fsyncs each file that this rank
 * wrote through the descriptor it was written with, and closes it. No rank waits for another one
 * here: every rank that wrote to a file makes an fsync of its own, which covers what it wrote. */
#include "save_sync.h"
#include <inttypes.h>
#include "err.h"
#include "run_env.h"
#include "run_io.h"
#include "save_status.h"

/* Submits an fsync for each file that is open. */
static int fsync_submit(struct sheaf_save *save, struct shf_io *ios, struct sheaf_error *err)
{
	int rc = 0;

	for (size_t f = 0; f < save->plan->layout.files_n && rc == 0; f++) {
		if (save->disk.fds[f] < 0)
			continue;
		ios[f] = (struct shf_io){ .op = SHF_IO_FSYNC, .fd = save->disk.fds[f], .off = f };
		rc = shf_io_submit(save->run, &save->disk.syncs.io, &ios[f]);
		if (rc < 0)
			rc = shf_submit_fail(err, rc, "step %" PRId64 ": submitting an fsync",
			                     save->id.step);
	}
	return rc;
}

/* Closes all files. Returns the first failure of a close of a descriptor that was fsynced. A
 * descriptor with O_DIRECT has reported its errors in its writes. */
static int close_files(struct sheaf_save *save, struct sheaf_error *err)
{
	const struct shf_sys *sys = save->run->sys;
	int rc = 0;

	for (size_t f = 0; f < save->plan->layout.files_n; f++) {
		int closed;

		if (save->disk.fds[f] < 0)
			continue;
		if (save->disk.directs[f])
			shf_sys_close(sys, save->disk.directs[f]);
		save->disk.directs[f] = 0;
		closed = shf_sys_close(sys, save->disk.fds[f]);
		save->disk.fds[f] = -1;
		if (rc == 0 && closed < 0)
			rc = shf_stage_fail(err, -closed, "step %" PRId64 ": closing %s",
			                    save->id.step, save->plan->layout.files[f].name);
	}
	return rc;
}

/* Begins C3: allocates and submits the fsyncs. [local] */
static int sync_begin(struct sheaf_save *save, struct sheaf_error *err)
{
	size_t files_n = save->plan->layout.files_n;

	atomic_store(&save->disk.syncs.from_ns, shf_now(save->run));
	save->disk.syncs.ios = shf_zalloc(files_n, sizeof(*save->disk.syncs.ios));
	return save->disk.syncs.ios ? fsync_submit(save, save->disk.syncs.ios, err)
	       : shf_fail(err, SHEAF_ENOMEM, "no memory to sync %zu files", files_n);
}

/* Records how long the fsyncs took, by when the last one finished, not by when a call noticed
 * it. */
static void sync_took(struct sheaf_save *save)
{
	int64_t from = atomic_load(&save->disk.syncs.from_ns), to = from;

	for (size_t f = 0; f < save->plan->layout.files_n; f++)
		if (save->disk.syncs.ios[f].done_ns > to)
			to = save->disk.syncs.ios[f].done_ns;
	shf_durations_add(&save->run->saves.pace.sync, to - from);
}

/* Waits for the writes of this rank, for at most ms. Once they are done, records their speed.
 * False: some are still in flight. */
static bool own_writes_are_done(struct sheaf_save *save, int ms)
{
	if (shf_io_drain(save->run, &save->disk.io, ms) == SHEAF_EAGAIN)
		return false;
	if (atomic_load(&save->disk.syncs.from_ns) == 0)
		shf_rate_set(&save->run->saves.pace.write, atomic_load(&save->took.to_write),
		             atomic_load(&save->took.write_to_ns) -
		             atomic_load(&save->took.write_from_ns));
	return true;
}

bool shf_save_sync(struct sheaf_save *save, int ms)
{
	int64_t until = shf_now(save->run) + shf_ms_ns(ms);
	struct sheaf_error err;
	int rc = 0;

	if (atomic_load(&save->disk.syncs.over))
		return true;
	if (!own_writes_are_done(save, ms))
		return false;
	if (save->id.flags & SHEAF_SAVE_NO_DISK || shf_save_failure(save, NULL) < 0)
		return true;
	if (!save->disk.syncs.ios)
		rc = sync_begin(save, &err);
	/* If the time of this commit is up, the fsyncs go on, and the next commit waits for
	 * them. */
	if (rc == 0 && shf_io_drain(save->run, &save->disk.syncs.io,
	                            shf_ms_left(save->run, until)) == SHEAF_EAGAIN)
		return false;
	if (rc == 0 && shf_save_rc(save, NULL) == 0) {
		sync_took(save);
		rc = close_files(save, &err);
		atomic_store(&save->disk.syncs.over, rc == 0);
	}
	if (rc < 0)
		shf_save_stick(save, rc, &err);
	return true;
}
