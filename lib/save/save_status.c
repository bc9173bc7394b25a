/* SPDX-License-Identifier: Apache-2.0 */
/* The first failure of a save, its progress, its size, and waiting for its requests to the disk. */
#include "save_status.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include "agent_link.h"
#include "err.h"
#include "memory_tier.h"
#include "run_env.h"
#include "run_io.h"
#include "save.h"
#include "save_blocked.h"
#include "save_pieces.h"
#include "sheaf-stat.h"

void shf_save_stick(struct sheaf_save *save, int rc, const struct sheaf_error *err)
{
	pthread_mutex_lock(&save->end.lock);
	if (save->end.rc == 0) {
		save->end.rc = rc;
		if (err)
			save->end.err = *err;
		else
			shf_fail(&save->end.err, rc, "step %" PRId64 ": %s", save->id.step,
			         shf_strerror(rc));
	}
	pthread_mutex_unlock(&save->end.lock);
}

int shf_save_failed_for_good(int rc, struct sheaf_error *err)
{
	if (rc != SHEAF_EINVAL)
		return rc;
	if (err)
		err->code = SHEAF_EFAILED;
	return SHEAF_EFAILED;
}

int shf_save_rc(struct sheaf_save *save, struct sheaf_error *err)
{
	int rc;

	pthread_mutex_lock(&save->end.lock);
	rc = save->end.rc;
	if (rc < 0 && err)
		*err = save->end.err;
	pthread_mutex_unlock(&save->end.lock);
	return rc;
}

int shf_save_failure(struct sheaf_save *save, struct sheaf_error *err)
{
	if (atomic_load(&save->end.failed)) {
		int rc;

		pthread_mutex_lock(&save->end.lock);
		rc = shf_fail(err, SHEAF_EFAILED, "step %" PRId64 ": %s", save->id.step,
		              save->end.why);
		pthread_mutex_unlock(&save->end.lock);
		return rc;
	}
	return shf_save_rc(save, err);
}

int shf_save_seal(struct sheaf_save *save, struct sheaf_error *err)
{
	pthread_mutex_lock(&save->end.lock);
	save->at.end = SHF_SEALED;
	pthread_mutex_unlock(&save->end.lock);
	return shf_save_failure(save, err);
}

int shf_save_fail(struct sheaf_save *save, const char *why, struct sheaf_error *err)
{
	bool late;

	pthread_mutex_lock(&save->end.lock);
	/* If the save has failed already, another failure is accepted without an error. */
	late = save->at.end >= SHF_SEALED && save->end.rc == 0 && !atomic_load(&save->end.failed);
	if (!atomic_load(&save->end.failed) && save->at.end == SHF_OPEN) {
		snprintf(save->end.why, sizeof(save->end.why), "%s",
		         why ? why : "sheaf_save_abort was called without a reason");
		atomic_store(&save->end.failed, 1);
	}
	pthread_mutex_unlock(&save->end.lock);
	return late ? shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": it is too late to abort it: "
	                       "it is committed, or is being published", save->id.step) : 0;
}

void shf_save_stat(const struct sheaf_save *save, struct sheaf_stat *stat)
{
	const struct shf_save_blocked *s = &save->took.stall;
	uint64_t gates_ns = atomic_load(&s->ns[SHF_IN_GATES]);

	*stat = (struct sheaf_stat){ .size = sizeof(*stat), .phase = atomic_load(&save->took.phase),
		.held = save->plan ? save->plan->holds.bytes : 0,
		.copied = atomic_load(&save->took.copied),
		.to_write = atomic_load(&save->took.to_write),
		.written = atomic_load(&save->took.written),
		.sent = atomic_load(&save->took.sent),
		.begin_ns = atomic_load(&s->ns[SHF_IN_BEGIN]),
		.copied_ns = save->took.rounds_ns + gates_ns,
		.exchange_ns = atomic_load(&s->ns[SHF_IN_EXCHANGE]),
		.ready_ns = atomic_load(&s->ns[SHF_IN_WAIT]),
		.commit_ns = atomic_load(&s->ns[SHF_IN_COMMIT]),
		.buffer_ns = atomic_load(&s->ns[SHF_IN_IMAGE]),
		.buffers_busy = atomic_load(&save->run->image.busy),
		.at_once = save->copy.lazy && !shf_save_is_async(save),
		.gates = atomic_load(&s->gates), .gates_waited = atomic_load(&s->gates_waited),
		.gates_ns = gates_ns, .gate_ns_max = atomic_load(&s->gate_ns_max),
		.copy_ns = atomic_load(&save->took.copy_ns),
		.over_ns = atomic_load(&save->took.over_ns) };
	/* took.phase is never WRITTEN or PUBLISHING: these are derived here. */
	if (stat->phase == SHEAF_PHASE_WRITING && stat->written == stat->to_write)
		stat->phase = SHEAF_PHASE_WRITTEN;
	if (stat->phase == SHEAF_PHASE_WRITTEN && save->at.disk >= SHF_DISK_PUBLISHING)
		stat->phase = SHEAF_PHASE_PUBLISHING;
}

void shf_save_progress_now(struct sheaf_save *save)
{
	const struct shf_opts *o = &save->run->opts;
	struct sheaf_stat stat;

	if (!o->progress)
		return;
	shf_save_stat(save, &stat);
	if (o->progress(o->arg, &stat))
		(void)shf_save_fail(save, "opts.progress ended the call", NULL);
}

void shf_save_progress(struct sheaf_save *save)
{
	if (!shf_turns_is_turn(save->run)) /* in a turn no caller waits */
		shf_save_progress_now(save);
}

uint64_t shf_save_bytes(const struct sheaf_save *save)
{
	uint64_t bytes = 0;

	for (size_t f = 0; f < save->plan->layout.files_n; f++)
		bytes += save->plan->layout.files[f].bytes;
	return bytes;
}

int shf_save_images(const struct sheaf_save *save)
{
	int most = save->run->opts.images_max;

	/* The default is two images if one must stay busy while the next save is copied: for a lazy
	 * save, and with agents, which keep the newest step in an image. The result is never more
	 * than the agents and the plan allow. */
	most = most ? most : save->id.flags & SHEAF_SAVE_LAZY || save->run->tier->wanted ? 2 : 1;
	most = shf_agent_images_allowed(save->run, most);
	return most < save->plan->images ? most : save->plan->images;
}

bool shf_save_fits_memory(const struct sheaf_save *save)
{
	return shf_save_images(save) > 1 && save->plan->work.rounds <= 1 && !save->plan->slotted;
}

bool shf_save_is_async(const struct sheaf_save *save)
{
	return save->copy.lazy && save->copy.lazy->turns;
}

int shf_save_drain(struct sheaf_save *save, int timeout_ms)
{
	int rc = shf_io_drain(save->run, &save->disk.io, timeout_ms);

	return rc < 0 ? rc : shf_save_rc(save, NULL);
}

int shf_save_poll_ms(const struct sheaf_run *run, int64_t until_ns)
{
	int left = shf_ms_left(run, until_ns);

	return left < SHF_SAVE_POLL_MS ? left : SHF_SAVE_POLL_MS;
}

int shf_save_together(struct sheaf_save *save, bool (*part)(struct sheaf_save *save),
                      struct sheaf_error *err)
{
	uint64_t more;
	int rc;

	do {
		more = part(save);
		shf_save_progress(save);
		rc = shf_allreduce(&save->run->team, &more, 1, SHEAF_MAX, err);
	} while (rc == 0 && more);
	return rc;
}

/* Waits a time slice for the writes of this rank. True: some are still in flight. */
static bool is_writing(struct sheaf_save *save)
{
	return shf_io_drain(save->run, &save->disk.io, SHF_SAVE_POLL_MS) == SHEAF_EAGAIN;
}

int shf_save_drain_together(struct sheaf_save *save, struct sheaf_error *err)
{
	int rc = shf_save_together(save, is_writing, err);

	/* The failure is agreed on only now: while some rank writes, its image is in use, no matter
	 * which rank failed (I10). */
	return rc == 0 ? shf_agree(&save->run->team, shf_save_rc(save, err), err) : rc;
}
