/* SPDX-License-Identifier: Apache-2.0 */
/* Committing a save: the steps C2 to C10 that ranks do together. What one rank does in the run
 * directory, and the invariants, stand in lib/store/publish.c.
 *
 *   C2  what must still travel; every write of every rank finished
 *   C3  each writer fsyncs each file through the descriptor it wrote with, or wrote the edges with
 *       where the rest went past the page cache
 *   C4  agreement; what was copied from memory is what was put into pages, tensor by tensor
 *   C5  index, attached files and sums written by their owners, fsynced; of who just asks rank
 *       0 writes the attached files, too, if they are little
 *   C6-C9  rank 0 publishes (save_publish.h), behind a caller who just asks
 *   C10 all learn the outcome
 *
 * A failure before C6 on any rank is its code on all, and the step never appears (I7).
 */
#include "save_commit.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "memory_tier.h"
#include "prune_task.h"
#include "run_env.h"
#include "run_io.h"
#include "save.h"
#include "save_attach.h"
#include "save_averages.h"
#include "save_blocked.h"
#include "save_end.h"
#include "save_gates.h"
#include "save_handle.h"
#include "save_memory.h"
#include "save_net.h"
#include "save_stage.h"
#include "save_sums.h"
#include "scrub_run.h"

/* How long a commit may take: as the least patient rank says. */
struct limit {
	int64_t until_ns;               /* by this rank's clock */
	bool asks;                      /* it just asks: nothing is waited for, but what is left
	                                 * when nothing need be waited for is done */
};

static bool is_late(const struct sheaf_save *save, const struct limit *l, int64_t cost_ns)
{
	return shf_now(save->run) + cost_ns > l->until_ns;
}

/* EAGAIN on all where some rank has not the time for what cannot be given up half way, going by how
 * long that took before. Whoever comes again is not refused again, so that a caller who always has
 * little time gets there. [collective] */
static int has_time(struct sheaf_save *save, const struct limit *l, const struct shf_lasted *took,
                    struct sheaf_error *err)
{
	uint64_t late = is_late(save, l, shf_lasted_ns(took));
	int rc;

	if (l->asks || save->refused)
		return 0;
	rc = shf_allreduce(&save->run->team, &late, 1, SHEAF_MAX, err);
	if (rc < 0 || !late)
		return rc;
	save->refused = true;
	return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": too little time is left to publish "
	                "it", save->step);
}

/* ---- C3 ---- */

static int fsync_submit(struct sheaf_save *save, struct shf_io *ios, struct sheaf_error *err)
{
	int rc = 0;

	for (size_t f = 0; f < save->plan->layout.files_n && rc == 0; f++) {
		if (save->fds[f] < 0)
			continue;
		ios[f] = (struct shf_io){ .op = SHF_IO_FSYNC, .fd = save->fds[f], .off = f };
		rc = shf_io_submit(save->run, &save->syncs.io, &ios[f]);
		if (rc < 0)
			rc = shf_submit_fail(err, rc, "step %" PRId64 ": submitting an fsync",
			                     save->step);
	}
	return rc;
}

static int close_files(struct sheaf_save *save, struct sheaf_error *err)
{
	const struct shf_sys *sys = save->run->sys;
	int rc = 0;

	for (size_t f = 0; f < save->plan->layout.files_n; f++) {
		int closed;

		if (save->fds[f] < 0)
			continue;
		if (save->directs[f])
			sys->ops->close(sys->arg, save->directs[f]);
		save->directs[f] = 0;
		closed = sys->ops->close(sys->arg, save->fds[f]);
		save->fds[f] = -1;
		if (rc == 0 && closed < 0)
			rc = shf_stage_fail(err, -closed, "step %" PRId64 ": closing %s",
			                    save->step, save->plan->layout.files[f].name);
	}
	return rc;
}

/* C3 begins. [local] */
static int sync_begin(struct sheaf_save *save, struct sheaf_error *err)
{
	size_t files_n = save->plan->layout.files_n;

	atomic_store(&save->syncs.from_ns, shf_now(save->run));
	save->syncs.ios = shf_zalloc(files_n, sizeof(*save->syncs.ios));
	return save->syncs.ios ? fsync_submit(save, save->syncs.ios, err)
	                       : shf_fail(err, SHEAF_ENOMEM, "no memory to sync %zu files",
	                                  files_n);
}

/* How long it took, whenever it was asked after. */
static void sync_took(struct sheaf_save *save)
{
	int64_t from = atomic_load(&save->syncs.from_ns), to = from;

	for (size_t f = 0; f < save->plan->layout.files_n; f++)
		if (save->syncs.ios[f].done_ns > to)
			to = save->syncs.ios[f].done_ns;
	shf_lasted_add(&save->run->pace.sync, to - from);
}

/* C3. It goes on behind a commit whose time was up; the next one waits for the same requests.
 * [collective] */
static int all_synced(struct sheaf_save *save, const struct limit *l, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	int rc = 0;

	if (atomic_load(&save->syncs.over))
		return 0;
	if (!save->syncs.ios)
		rc = shf_agree(team, sync_begin(save, err), err);
	if (rc == 0)
		rc = shf_save_drain_together(save, &save->syncs.io, l->until_ns, err);
	if (rc == 0) {
		sync_took(save);
		rc = shf_agree(team, close_files(save, err), err);
	}
	atomic_store(&save->syncs.over, rc == 0);
	return rc;
}

/* ---- agreement ---- */

/* Those to disk are committed in their order, those to memory alone in theirs. */
static int refuse(const struct sheaf_save *save, struct sheaf_error *err)
{
	const struct sheaf_save *first = save->run->first;

	if (!shf_run_is_ours(save->run))
		return shf_fail(err, SHEAF_EINVAL, "the save was begun by another process");
	if (save->over)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": the save is over",
				save->step);
	while (first && (first->flags ^ save->flags) & SHEAF_NO_DISK)
		first = first->next;
	if (first != save)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": step %" PRId64
		                " was begun before it and is not committed", save->step,
		                first ? first->step : -1);
	return 0;
}

/* All of it is in images: from now on it is in the memory tier, too. For a save to disk that is an
 * extra, and no reason to fail. */
static int to_memory(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	if (!save->in_memory || save->stamped || save->image < 0 || !shf_save_fits_memory(save))
		return 0;
	save->stamped = true;
	rc = shf_tier_commit(save, &own);
	if (rc < 0 && rc != SHEAF_ELOST && !(save->flags & SHEAF_NO_DISK)) {
		shf_log(save->run, 1, "%s: step %" PRId64 " is not kept in memory: %s",
		        save->run->store.path, save->step, own.msg);
		return 0;
	}
	save->kept = rc == 0;
	if (rc == 0)
		shf_run_resumed(save->run);
	if (rc < 0 && err)
		*err = own;
	return rc;
}

#define PORTION (UINT64_C(4) << 20)    /* bytes that travel at once, to begin with, */
#define PORTION_MAX (UINT64_C(1) << 30)
#define PORTION_NS 100000000           /* and how long that should take at most */

/* What must still travel, in portions that leave time to look at the clock. [collective] */
static int all_sent(struct sheaf_save *save, const struct limit *l, struct sheaf_error *err)
{
	uint64_t part = l->asks ? UINT64_C(1) << 20 : PORTION, x[2] = { 0 };
	int rc = 0;

	while (rc == 0) {
		int64_t from = shf_now(save->run);

		rc = shf_net_finish(save, part, err);
		if (rc != SHEAF_EAGAIN)
			return rc;
		if (l->asks)
			break;
		x[0] = is_late(save, l, 0);
		x[1] = shf_now(save->run) - from > PORTION_NS;
		rc = shf_allreduce(&save->run->team, x, 2, SHEAF_MAX, err);
		if (x[0])
			break;
		part = x[1] ? part / 2 : part * 2;
		part = part < PORTION / 4 ? PORTION / 4 : part > PORTION_MAX ? PORTION_MAX : part;
	}
	return rc < 0 && rc != SHEAF_EAGAIN
	       ? rc : shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": bytes must still travel",
	                       save->step);
}

/* C0, where begin had no time for it. */
static int is_staged(struct sheaf_save *save, const struct limit *l, struct sheaf_error *err)
{
	int rc;

	if (save->staged)
		return 0;
	/* Where it is kept in memory, too, that is worth it: only then does it get there. */
	rc = save->in_memory ? 0 : has_time(save, l, &save->run->pace.stage, err);
	return rc == 0 ? shf_save_stage(save, err) : rc;
}

/* C2 and C3, and is there time for the rest? EAGAIN on all: call again. */
static int is_ready(struct sheaf_save *save, const struct limit *l, struct sheaf_error *err)
{
	int rc = is_staged(save, l, err);

	if (rc == 0)
		rc = all_sent(save, l, err);
	if (rc == 0)
		rc = to_memory(save, err);
	if (rc == 0)
		rc = shf_save_drain_together(save, &save->io, l->until_ns, err);
	if (rc == 0)
		shf_rate_set(&save->run->pace.write, atomic_load(&save->to_write),
		             atomic_load(&save->write_to_ns) - atomic_load(&save->write_from_ns));
	if (rc == 0) /* a save to memory alone is complete here: nobody can fail it any more */
		rc = shf_agree(&save->run->team, save->flags & SHEAF_NO_DISK
		                                 ? shf_save_seal(save, err)
		                                 : shf_save_failure(save, err), err);
	if (save->flags & SHEAF_NO_DISK)
		return rc;
	if (rc == 0)
		rc = all_synced(save, l, err);
	if (rc == 0)
		rc = has_time(save, l, &save->run->pace.publish, err);
	return rc;
}

/* ---- C4 to C10 ---- */

#define CARRY_MAX (UINT64_C(16) << 20) /* of all attached files, that rank 0 may write */
#define CARRY_FILES_MAX 256

/* Who attached a file need not sync it himself, where others wait for him and rank 0 has a thread
 * for it. [collective] */
static int may_carry(struct sheaf_save *save, bool *carry, struct sheaf_error *err)
{
	uint64_t x[2] = { save->attached_n, 0 };
	int rc;

	for (size_t i = 0; i < save->attached_n; i++)
		x[1] += save->attached[i].n;
	rc = shf_allreduce(&save->run->team, x, 2, SHEAF_SUM, err);
	*carry = rc == 0 && x[0] <= CARRY_FILES_MAX && x[1] <= CARRY_MAX;
	return rc;
}

/* C4 and C5 as far as all ranks do it. From then on nothing but the disk can keep the step from
 * appearing. [collective] */
static int gather(struct sheaf_save *save, const struct limit *l, struct sheaf_error *err)
{
	struct shf_publishing *p = &save->publishing;
	int rc = 0;

	atomic_store(&save->publish_from_ns, shf_now(save->run));
	if (l->asks)
		rc = may_carry(save, &p->carried, err);
	if (rc == 0)
		rc = shf_sums_gather(save, &p->arena, &p->sums, err);
	if (rc == 0)
		rc = p->carried ? shf_attach_carry(save, &p->arena, &p->given, &p->in, err)
		                : shf_attach_gather(save, &p->arena, &p->given, err);
	if (rc == 0)
		rc = shf_tier_publishing(save, err);
	if (rc < 0)
		return rc;
	p->begun = true;
	if (save->run->team.rank == 0)
		shf_publishing_begin(save);
	return 0;
}

/* Is it left to go on behind this call? Who has little time waits only for what should be over by
 * then. EAGAIN: it is. [collective] */
static int goes_on(struct sheaf_save *save, const struct limit *l, struct sheaf_error *err)
{
	int64_t due = atomic_load(&save->publish_from_ns) +
	              shf_lasted_ns(&save->run->pace.publish);
	uint64_t on = save->run->team.rank == 0 && (l->asks || due > l->until_ns) &&
	              shf_publishing_goes_on(save);
	int rc = shf_bcast(&save->run->team, 0, &on, sizeof(on), err);

	save->publishing.behind = true;
	return rc < 0 || !on ? rc
	       : shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": it is being published",
	                  save->step);
}

/* How long it took; of what went on behind only rank 0 knows. */
static void publish_took(struct sheaf_save *save)
{
	const struct shf_publishing *p = &save->publishing;
	int64_t to = p->behind && save->run->team.rank == 0 ? p->over_ns : shf_now(save->run);

	if (!p->behind || save->run->team.rank == 0)
		shf_lasted_add(&save->run->pace.publish, to - atomic_load(&save->publish_from_ns));
}

/* C4 to C9, and what came of it on all. *again: it goes on behind. */
static int finish(struct sheaf_save *save, const struct limit *l, bool *again,
                  struct sheaf_error *err)
{
	struct shf_publishing *p = &save->publishing;
	struct shf_team *team = &save->run->team;
	int rc;

	if (save->flags & SHEAF_NO_DISK)
		return 0;       /* it is where it should be */
	rc = p->begun ? 0 : gather(save, l, err);
	if (rc == 0 && (l->asks || p->behind)) {
		rc = goes_on(save, l, err);
		*again = rc == SHEAF_EAGAIN;
	}
	if (rc < 0)
		return rc;
	rc = shf_agree(team, team->rank == 0 ? shf_publishing_end(save, err) : 0, err);
	publish_took(save);
	return rc;
}

/* Committed: this one is the parent of the next save, whether that has begun or not. */
static void succeed(struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;

	if (save->flags & SHEAF_NO_DISK) {
		shf_log(run, 2, "%s: step %" PRId64 " is in memory, rank %d", run->store.path,
		        save->step, run->team.rank);
		return;
	}
	shf_tier_published(save);
	shf_run_goes_on_from(run, save->step, save->session);
	run->loaded = run->doubtful = -1;
	shf_log(run, 2, "%s: step %" PRId64 " committed, rank %d", run->store.path, save->step,
	        run->team.rank);
}

/* C10 is over: those outside may know. [rank 0] */
static void announce(const struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;
	const struct sheaf_opts *o = &run->opts;
	struct sheaf_error err;

	if (o->signal_dir && shf_done_put(&run->store, o->signal_dir, save->step, save->session,
	                                  &err) < 0)
		shf_log(run, 1, "%s: step %" PRId64 " is committed, its done files are not all "
		        "there: %s", run->store.path, save->step, err.msg);
	if (!o->committed)
		return;
	snprintf(run->told, run->told_bytes, "%s/checkpoint-%" PRId64, run->store.path,
	         save->step);
	o->committed(o->arg, save->step, run->told);
}

/* Meets the other ranks in the commit of this save. *wait_ms becomes the shortest of their
 * timeouts. [collective] */
static int meet(struct sheaf_save *save, int *wait_ms, struct sheaf_error *err)
{
	struct shf_call m = { .kind = SHF_CALL_COMMIT, .handle = save->made,
		.x = { (uint64_t)*wait_ms } };
	int rc = shf_call_enter(&save->run->team, &m, refuse(save, err), err);

	if (rc == 0)
		*wait_ms = (int)m.lo[0];
	return rc;
}

/* Of a lazy save all is asked for, and so copied, on all ranks. */
static int all_asked(struct sheaf_save *save, const struct limit *l, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	int rc;

	if (!save->lazy || save->asked)
		return 0;
	rc = shf_agree(team, shf_lazy_unasked(save, err), err);
	if (rc == 0)
		rc = shf_agree(team, shf_emas_copied(save, l->until_ns, err), err);
	if (rc < 0)
		return rc;
	save->asked = save->together = true;
	if (shf_lazy_is_behind(save))
		(void)shf_lazy_finish(save, -1); /* what nobody can ask for */
	return 0;
}

/* It is over, one way or the other. */
static void conclude(struct sheaf_save *save, int rc, const struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;

	shf_save_settle(save, rc, err);
	if (rc == SHEAF_EINDOUBT)
		shf_save_doubt(save);
	if (rc == 0)
		succeed(save);
	if (rc == 0 && !(save->flags & SHEAF_NO_DISK)) {
		if (run->opts.keep_last)
			shf_behind_next(run, save->step, save->session, shf_save_bytes(save));
		shf_run_prune_behind(run, save->publishing.behind);
		if (run->team.rank == 0)
			announce(save);
	}
	shf_stall_tell_all(save, rc); /* last: it may wait for a rank that died since */
}

/* Who gives it up now need not fear for it while its nodes live. */
static void say_kept(struct sheaf_error *err)
{
	size_t at = err ? strlen(err->msg) : 0;

	if (err)
		snprintf(err->msg + at, sizeof(err->msg) - at, "; it is in memory");
}

/* Given up: its copies are nothing before any rank's own card is, or a node alone might have all
 * of it. [collective] */
static int uncopy(struct sheaf_save *save, int rc, struct sheaf_error *err)
{
	struct shf_guests *g = &save->run->tier->guests;
	struct sheaf_error own;

	if (rc == 0 || rc == SHEAF_EINDOUBT || rc == SHEAF_ELOST || !save->kept || g->to < 0)
		return rc;
	shf_guests_forget(g, save->step);
	if (shf_agree(&save->run->team, 0, &own) == 0)
		return rc;
	if (err)
		*err = own;
	return SHEAF_ELOST;
}

/* Turns EINVAL into EFAILED: when notes and attachments of the ranks turn out not to fit together,
 * all tensors are written, and EINVAL would mean that nothing has happened. */
static int failed_for_good(int rc, struct sheaf_error *err)
{
	if (rc != SHEAF_EINVAL)
		return rc;
	if (err)
		err->code = SHEAF_EFAILED;
	return SHEAF_EFAILED;
}

/* All that comes before C4. *again: nothing has happened, or it was not enough. */
static int get_ready(struct sheaf_save *save, const struct limit *l, bool *again,
                     struct sheaf_error *err)
{
	int rc = shf_agree(&save->run->team, shf_save_failure(save, err), err);

	if (rc == 0) {
		rc = all_asked(save, l, err);
		*again = rc < 0; /* whatever it is */
	}
	if (rc == 0) {
		rc = is_ready(save, l, err);
		*again = rc == SHEAF_EAGAIN;
	}
	return rc;
}

int shf_save_commit(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	int64_t from = shf_now(run);
	int wait = timeout_ms < 0 ? run->opts.timeout_ms : timeout_ms;
	struct limit limit;
	bool again = false;
	int rc = meet(save, &wait, err);

	if (rc < 0)
		return rc;
	limit = (struct limit){ from + (int64_t)wait * 1000000, wait == 0 };
	if (!save->publishing.begun)
		rc = get_ready(save, &limit, &again, err);
	if (rc == 0)
		rc = finish(save, &limit, &again, err);
	if (!again)
		rc = uncopy(save, failed_for_good(rc, err), err);
	shf_stalled(run, save, SHF_IN_COMMIT, from);
	if (!again)
		conclude(save, rc, err);
	else if (rc == SHEAF_EAGAIN && save->in_memory && shf_tier_has(save))
		say_kept(err);
	return rc;
}
