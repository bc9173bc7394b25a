/* SPDX-License-Identifier: Apache-2.0 */
/* The first failure of a save, its progress, its size, and waiting for its requests to the disk. */
#include "save_handle.h"
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
	save->end.sealed = true;
	pthread_mutex_unlock(&save->end.lock);
	return shf_save_failure(save, err);
}

int shf_save_fail(struct sheaf_save *save, const char *why)
{
	bool late;

	pthread_mutex_lock(&save->end.lock);
	late = save->end.sealed && save->end.rc == 0 && !atomic_load(&save->end.failed);
	if (!atomic_load(&save->end.failed) && !save->end.sealed) {
		snprintf(save->end.why, sizeof(save->end.why), "%s",
		         why ? why : "no reason was given");
		atomic_store(&save->end.failed, 1);
	}
	pthread_mutex_unlock(&save->end.lock);
	return late ? SHEAF_EINVAL : 0;
}

void shf_save_stat(const struct sheaf_save *save, struct sheaf_stat *stat)
{
	const struct shf_stall *s = &save->took.stall;
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
		.wait_ns = atomic_load(&s->ns[SHF_IN_WAIT]),
		.commit_ns = atomic_load(&s->ns[SHF_IN_COMMIT]),
		.image_ns = atomic_load(&s->ns[SHF_IN_IMAGE]),
		.images_busy = atomic_load(&save->run->image.busy),
		.at_once = save->copy.lazy && !shf_lazy_is_behind(save),
		.gates = atomic_load(&s->gates), .gates_waited = atomic_load(&s->gates_waited),
		.gates_ns = gates_ns, .gate_ns_max = atomic_load(&s->gate_ns_max),
		.copy_ns = atomic_load(&save->took.copy_ns),
		.over_ns = atomic_load(&save->took.over_ns) };
	if (stat->phase == 1 && stat->written == stat->to_write)
		stat->phase = 2;
	if (stat->phase == 2 && save->publishing.begun)
		stat->phase = 6;
}

void shf_save_progress(const struct sheaf_save *save)
{
	const struct sheaf_opts *o = &save->run->opts;
	struct sheaf_stat stat;

	if (!o->progress)
		return;
	shf_save_stat(save, &stat);
	o->progress(o->arg, &stat);
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

	most = most ? most : save->id.flags & SHEAF_LAZY || save->run->tier->wanted ? 2 : 1;
	most = shf_tier_allows(save->run, most);
	return most < save->plan->images ? most : save->plan->images;
}

bool shf_save_fits_memory(const struct sheaf_save *save)
{
	return shf_save_images(save) > 1 && save->plan->work.rounds <= 1 && !save->plan->slotted;
}

bool shf_lazy_is_behind(const struct sheaf_save *save)
{
	return save->copy.lazy && save->copy.lazy->turns;
}

int shf_save_drain(struct sheaf_save *save, int timeout_ms)
{
	int rc = shf_io_drain(save->run, &save->disk.io, timeout_ms);

	return rc < 0 ? rc : shf_save_rc(save, NULL);
}

#define SLICE_MS 250   /* much shorter than the deadline */

int shf_save_slice_ms(const struct sheaf_run *run, int64_t until_ns)
{
	int left = until_ns < 0 ? SLICE_MS : shf_ms_left(run, until_ns);

	return left < SLICE_MS ? left : SLICE_MS;
}

int shf_save_drain_together(struct sheaf_save *save, struct shf_io_owner *owner, int64_t until_ns,
                            struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	bool pending;
	uint64_t x[2];
	int rc;

	do {
		x[0] = shf_io_drain(save->run, owner, shf_save_slice_ms(save->run, until_ns)) ==
		       SHEAF_EAGAIN;
		shf_save_progress(save);
		x[1] = until_ns >= 0 && shf_save_slice_ms(save->run, until_ns) == 0;
		rc = shf_allreduce(team, x, 2, SHEAF_MAX, err);
		pending = x[0];
	} while (rc == 0 && pending && !x[1]);
	/* Not before: the image of a rank that still writes is not free, whoever failed (I10). */
	if (rc == 0)
		rc = shf_agree(team, shf_save_rc(save, err), err);
	if (rc == 0 && pending)
		rc = shf_fail(err, SHEAF_EAGAIN, "step %lld: some rank is still writing",
		              (long long)save->id.step);
	return rc;
}
