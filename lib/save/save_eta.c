/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates how long a save will still take. Copying and writing overlap, so the slower of the two
 * counts. The exchange, the fsyncs and the publish follow one after the other. Speeds are computed
 * from when requests finished, not from when the estimate was asked for. Everything read here is
 * atomic, because another thread may be in the save's commit. */
#include "save_eta.h"
#include "run_env.h"
#include "run_io.h"
#include "save.h"
#include "save_status.h"
#include "sheaf-stat.h"

#define UNKNOWN (-1.0)

/* Returns the ns for what a lazy save still has to copy. 0 if nothing was copied yet: then the
 * estimate rests on the writes, which follow the copy. */
static double copy_ns(struct sheaf_save *save)
{
	uint64_t all = shf_save_is_async(save) ? save->plan->turns.bytes : 0;
	uint64_t done = atomic_load(&save->took.copied);
	int64_t passed = shf_now(save->run) - save->took.copy_from_ns;

	if (all <= done || done == 0)
		return 0;
	return (double)(all - done) / (double)done * (double)passed;
}

/* Returns the ns for writing this many bytes, at a mean of the speeds of earlier saves and of this
 * one. The more of this save is written, the more its own speed counts, because a write shows up
 * only when it has finished. If the save has taken longer than the earlier ones, only its own speed
 * counts. */
static double write_ns(struct sheaf_save *save, uint64_t bytes)
{
	uint64_t done = atomic_load(&save->took.written), all = atomic_load(&save->took.to_write);
	int64_t from = atomic_load(&save->took.write_from_ns);
	int64_t to = atomic_load(&save->disk.io.pending) > 0 ? shf_now(save->run)
	                                                : atomic_load(&save->took.write_to_ns);
	double before = shf_rate_ns(&save->run->saves.pace.write, all), own, part;

	if (bytes == 0)
		return 0;
	if (done == 0 || to <= from)
		return shf_rate_ns(&save->run->saves.pace.write, bytes);
	part = (double)done / (double)all;
	own = (double)(to - from) / part;       /* for all bytes of the save, like `before` */
	if (before >= 0 && (double)(to - from) <= before)
		own = part * own + (1 - part) * before;
	return own * (double)bytes / (double)all;
}

/* Returns how many ns are left of an operation that takes `all` ns as a whole and began at from_ns
 * (0: it has not begun yet). */
static double rest_ns(const struct sheaf_save *save, int64_t from_ns, double all)
{
	double rest = from_ns ? all - (double)(shf_now(save->run) - from_ns) : all;

	return rest > 0 ? rest : 0;
}

/* Returns the ns for C3 and all that follows. If no step of the run was synced yet, the fsyncs are
 * assumed to take as long as the writes; if none was published yet, the publish as long as the
 * fsyncs. */
static double end_ns(struct sheaf_save *save, double writing)
{
	const struct shf_save_pace *pace = &save->run->saves.pace;
	int64_t syncing = atomic_load(&save->disk.syncs.from_ns);
	int64_t publishing = atomic_load(&save->took.publish_from_ns);
	double sync = (double)shf_durations_ns(&pace->sync);
	double publish = (double)shf_durations_ns(&pace->publish);

	sync = sync > 0 ? sync : writing;
	publish = publish > 0 ? publish : sync;
	if (publish <= 0)
		return UNKNOWN;
	if (publishing)
		return rest_ns(save, publishing, publish);
	if (atomic_load(&save->disk.syncs.over) ||
	    (syncing && atomic_load(&save->disk.syncs.io.pending) == 0))
		return publish;
	return rest_ns(save, syncing, sync) + publish;
}

/* Returns the ns for C0, or 0 if the stage is made already. */
static double stage_ns(struct sheaf_save *save)
{
	bool staged;

	pthread_mutex_lock(&save->end.write_lock);
	staged = save->at.disk >= SHF_DISK_STAGED;
	pthread_mutex_unlock(&save->end.write_lock);
	return staged ? 0 : (double)shf_durations_ns(&save->run->saves.pace.stage);
}

int64_t shf_save_eta_ms(struct sheaf_save *save)
{
	double part[4], all;
	uint64_t to_write, to_send;

	if (atomic_load(&save->took.phase) == SHEAF_PHASE_FINISHED)
		return shf_save_rc(save, NULL) == 0 ? 0 : -1;
	(void)shf_io_drain(save->run, &save->disk.io, 0);
	(void)shf_io_drain(save->run, &save->disk.syncs.io, 0);
	if (shf_save_failure(save, NULL) < 0)
		return -1;
	to_write = atomic_load(&save->took.to_write);
	to_send = atomic_load(&save->took.to_send) - atomic_load(&save->took.sent);
	part[0] = write_ns(save, to_write - atomic_load(&save->took.written));
	part[1] = save->id.flags & SHEAF_SAVE_NO_DISK ? 0 : end_ns(save, write_ns(save, to_write));
	part[2] = shf_rate_ns(&save->run->saves.pace.send, to_send);
	part[3] = stage_ns(save);
	for (int i = 0; i < 4; i++)
		if (part[i] < 0)
			return -1;
	all = copy_ns(save);
	all = (all > part[0] ? all : part[0]) + part[1] + part[2] + part[3];
	all /= 1e6;
	return all < 1 ? 1 : all < 1e15 ? (int64_t)all + 1 : -1;
}
