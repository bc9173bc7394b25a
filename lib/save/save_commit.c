/* SPDX-License-Identifier: Apache-2.0 */
/* Commits a save: the part of C2 to C10 that all ranks do together. What rank 0 does alone in the
 * run directory, and the invariants I1 to I12, are in lib/store/publish.c.
 *
 *   C2  exchange the bytes that must go to other nodes; finish every write of this rank
 *       (save_sync.h)
 *   C3  each writer fsyncs each file through the descriptor it wrote with (where it wrote with
 *       O_DIRECT: the one that it wrote the unaligned edges with) (save_sync.h)
 *   C4  agree that all ranks have come this far, and that what was copied from memory is what was
 *       put into pages, tensor by tensor (save_gather.h)
 *   C5  rank 0 writes indexes and sums. It writes the attached files, too, if they are small; else
 *       each is written by a rank that attached it. All are fsynced
 *   C6 to C9  rank 0 publishes (save_publish.h); in the background if the timeout is 0
 *   C10  all ranks learn the outcome
 *
 * If any rank fails before C6, all ranks return its code, and the step never appears (I7).
 *
 * Each operation of the group is expensive at thousands of ranks. So what a rank knows when it
 * enters the call is sent with the operation that begins the call (struct entry). */
#include "save_commit.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "done_files.h"
#include "err.h"
#include "memory_tier.h"
#include "prune_task.h"
#include "rank_files.h"
#include "run_env.h"
#include "save.h"
#include "save_attach_gather.h"
#include "save_averages.h"
#include "save_blocked.h"
#include "save_end.h"
#include "save_gates.h"
#include "save_gather.h"
#include "save_status.h"
#include "save_memory.h"
#include "save_net.h"
#include "save_stage.h"
#include "save_sync.h"
#include "scrub_run.h"

/* How long a commit may take: the shortest timeout of all ranks decides. */
struct limit {
	int64_t until_ns;               /* by this rank's monotonic clock */
	bool asks;                      /* the shortest timeout is 0: the call does not wait, but
	                                 * does work that is possible without waiting */
};

/* Whether something that takes cost_ns from now would end after until_ns. */
static bool is_late(const struct sheaf_save *save, int64_t until_ns, int64_t cost_ns)
{
	return shf_now(save->run) + cost_ns > until_ns;
}

/* Returns EAGAIN, on all ranks. do_it: what there is no time for. The next commit of this save does
 * not check this again, so a caller whose timeouts are always short still gets the step
 * published. */
static int too_late(struct sheaf_save *save, const char *do_it, struct sheaf_error *err)
{
	save->end.refused = true;
	return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": too little time is left to %s; "
	                "commit again",
	                save->id.step, do_it);
}

/* Fails with EAGAIN because a rank is still writing. */
static int still_writing(const struct sheaf_save *save, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": at least one rank is still writing; "
	                "commit again",
	                save->id.step);
}

/* ---- until all of it is durable ---- */

/* Result of this rank's stamp of the card, between the stamp and the agreement on it. */
struct stamping {
	bool pending;                   /* the stamp was tried here, and ranks have not agreed on
	                                 * the result yet */
	int rc;
	struct sheaf_error err;
};

/* Returns what a failure rc to keep the step in memory means for the commit. A save to disk goes on
 * without the memory tier: logs that, and returns 0. For a memory-only save, and for ELOST, returns
 * rc. */
static int memory_failed(struct sheaf_save *save, int rc, const struct sheaf_error *own,
                         struct sheaf_error *err)
{
	if (rc != SHEAF_ELOST && !(save->id.flags & SHEAF_SAVE_NO_DISK)) {
		shf_log(save->run, 1, "%s: step %" PRId64 " is not kept in memory: %s",
		        save->run->store.path, save->id.step, own->msg);
		return 0;
	}
	if (err)
		*err = *own;
	return rc;
}

/* Stamps the card of the image on each rank, if agents are to keep the step, now that all its bytes
 * are in images. The ranks agree on the result later (in_memory), together with the first check of
 * the writes. A memory-only save is sealed here: once the ranks have agreed, it takes the place of
 * the step before it, so a failure that was accepted must be part of what they agree on.
 * [collective] */
static int to_memory(struct sheaf_save *save, struct stamping *st, struct sheaf_error *err)
{
	int rc;

	if (save->at.memory != SHF_MEMORY_TO_BE_KEPT || save->copy.image < 0 ||
	    !shf_save_fits_memory(save))
		return 0;
	save->at.memory = SHF_MEMORY_TRIED;
	rc = shf_save_memory_stamp(save, &st->rc, &st->err);
	st->pending = rc == 0;
	if (rc == 0 && st->rc == 0 && save->id.flags & SHEAF_SAVE_NO_DISK)
		st->rc = shf_save_seal(save, &st->err);
	if (rc < 0)
		return memory_failed(save, shf_save_memory_stamp_end(save, rc, &st->err), &st->err,
		                     err);
	return 0;
}

/* Agrees on the stamps. The step is in the memory tier only if all ranks have stamped. failed: some
 * rank has not. [collective] */
static int in_memory(struct sheaf_save *save, struct stamping *st, bool failed,
                     struct sheaf_error *err)
{
	int rc = failed ? shf_agree(&save->run->team, st->rc, &st->err) : 0;

	st->pending = false;
	rc = shf_save_memory_stamp_end(save, rc, &st->err);
	if (rc == 0)
		save->at.memory = SHF_MEMORY_KEPT;
	if (rc == 0)
		shf_run_resumed(save->run);
	return rc < 0 ? memory_failed(save, rc, &st->err, err) : 0;
}

#define PORTION (UINT64_C(4) << 20)    /* bytes that are exchanged in the first portion */
#define PORTION_MAX (UINT64_C(1) << 30) /* bytes of the largest portion */
#define PORTION_NS 100000000           /* how long a portion should take at most, in ns */
#define TURN_NS 20000000                /* for how long a turn of the commit thread begins portions,
                                         * in ns: a begin may wait for the end of the turn */

/* Exchanges what must still go to other nodes, in portions, so that ranks can look at the clock in
 * between. All ranks use the same portion: it is halved if the last one took too long on any rank,
 * else doubled. EAGAIN on all ranks if the time is up on any rank. [collective] */
static int all_sent(struct sheaf_save *save, const struct limit *l, struct sheaf_error *err)
{
	bool turn = shf_turns_is_turn(save->run), once = l->asks && !turn;
	int64_t until = turn ? shf_now(save->run) + TURN_NS : l->until_ns;
	uint64_t part = once ? UINT64_C(1) << 20 : PORTION, x[2] = { 0 };
	int rc = 0;

	while (rc == 0) {
		int64_t from = shf_now(save->run);

		rc = shf_save_net_finish(save, part, err);
		if (rc != SHEAF_EAGAIN)
			return rc;
		if (once)
			break;
		x[0] = is_late(save, until, 0);
		x[1] = shf_now(save->run) - from > PORTION_NS;
		rc = shf_allreduce(&save->run->team, x, 2, SHEAF_MAX, err);
		if (x[0])
			break;
		part = x[1] ? part / 2 : part * 2;
		part = part < PORTION / 4 ? PORTION / 4 : part > PORTION_MAX ? PORTION_MAX : part;
	}
	return rc < 0 && rc != SHEAF_EAGAIN
	       ? rc : shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": bytes must still be sent "
	                       "between nodes; commit again",
	                       save->id.step);
}

/* Makes the stage (C0) if begin did not. late: on some rank too little time is left to make a
 * stage. [collective] */
static int is_staged(struct sheaf_save *save, const struct limit *l, bool late,
                     struct sheaf_error *err)
{
	if (save->at.disk >= SHF_DISK_STAGED)
		return 0;
	/* A save that agents can keep is staged even if time is short, because it gets into memory
	 * only after the stage. */
	if (late && (save->at.memory == SHF_MEMORY_NOT_KEPT || !shf_save_fits_memory(save)) &&
	    !l->asks && !save->end.refused)
		return too_late(save, "create its files", err);
	return shf_save_stage(save, err);
}

/* How far this rank is: each of the first five words is 1 if it is so, else 0. After the all-reduce
 * (sum) it is the number of ranks on which it is so. late: the timeout is over; too_late: less time
 * is left than a publication takes. */
struct standing {
	uint64_t writing, late, too_late, failed, unstamped;
	uint64_t files_n, files_bytes;  /* number and total size of attached files */
};
#define STANDING_WORDS (sizeof(struct standing) / sizeof(uint64_t))

/* Continues C2 and C3 of this rank for a time slice, and notes in *s how far it is. */
static void look_here(struct sheaf_save *save, const struct limit *l, const struct stamping *st,
                      struct standing *s)
{
	/* While the agreement on the stamp is pending, nothing is waited for, because the step is
	 * in memory only after it. */
	int ms = st->pending ? 0 : shf_save_poll_ms(save->run, l->until_ns);

	*s = (struct standing){ .files_n = save->given.attached_n };
	s->unstamped = st->pending && st->rc < 0;
	s->writing = !shf_save_sync(save, ms);
	s->late = shf_save_poll_ms(save->run, l->until_ns) == 0;
	s->too_late = is_late(save, l->until_ns, shf_durations_ns(&save->run->saves.pace.publish));
	s->failed = shf_save_failure(save, NULL) < 0;
	for (size_t i = 0; i < save->given.attached_n; i++)
		s->files_bytes += save->given.attached[i].n;
}

/* Rank 0 writes the attached files of all ranks if their total size and their number are at most
 * this; else each file is written by a rank that attached it. */
#define BY_ZERO_BYTES (UINT64_C(16) << 20)
#define BY_ZERO_FILES 256

/* Waits for C2 and C3 on all ranks, and checks that there is time for the rest. EAGAIN on all ranks
 * if the timeout is over. A failure is returned only when no rank writes any more, because until
 * then images are in use (I10). [collective] */
static int all_durable(struct sheaf_save *save, const struct limit *l, struct stamping *st,
                       struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	union {
		struct standing s;
		uint64_t words[STANDING_WORDS];
	} u;
	int rc;

	do {
		look_here(save, l, st, &u.s);
		shf_save_progress(save);
		rc = shf_allreduce(team, u.words, STANDING_WORDS, SHEAF_SUM, err);
		if (rc == 0 && st->pending)
			rc = in_memory(save, st, u.s.unstamped > 0, err);
	} while (rc == 0 && u.s.writing && !u.s.late);
	if (rc < 0)
		return rc;
	if (u.s.writing)
		return still_writing(save, err);
	if (save->id.flags & SHEAF_SAVE_NO_DISK) /* complete, and sealed since it was stamped */
		return save->at.memory == SHF_MEMORY_KEPT
		       ? 0 : shf_agree(team, shf_save_seal(save, err), err);
	if (u.s.failed) /* some rank had failed when it filled u.s; others may have failed since */
		rc = shf_agree(team, shf_save_failure(save, err), err);
	save->publishing.by_zero =
	    u.s.files_n <= BY_ZERO_FILES && u.s.files_bytes <= BY_ZERO_BYTES;
	if (rc == 0 && u.s.too_late && !l->asks && !save->end.refused)
		rc = too_late(save, "publish it", err);
	return rc;
}

/* Does the part of a commit from C0 to C3. EAGAIN on all ranks: not finished, call again.
 * [collective] */
static int stage_send_and_sync(struct sheaf_save *save, const struct limit *l, bool late,
                    struct sheaf_error *err)
{
	struct stamping st = { .pending = false };
	int rc = is_staged(save, l, late, err);

	if (rc == 0)
		rc = all_sent(save, l, err);
	if (rc == 0)
		rc = to_memory(save, &st, err);
	return rc == 0 ? all_durable(save, l, &st, err) : rc;
}

/* ---- C4 to C10 ---- */

/* Broadcasts which rank writes which attached file, and each rank writes its own. [collective] */
static int write_attached(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_save_publish *p = &save->publishing;
	struct shf_team *team = &save->run->team;
	int rc = p->rc;

	if (rc < 0 && err)
		*err = p->err;
	rc = shf_bcast_buf(team, rc, &p->owners, err);
	return rc == 0 ? shf_agree(team, shf_save_attach_write(save, &p->owners, err), err) : rc;
}

/* Does the part of C4 and C5 that all ranks do. Afterwards only the disk, or what rank 0 finds
 * wrong in the gathered data, can keep the step from appearing. [collective] */
static int settle(struct sheaf_save *save, bool doubt, struct sheaf_error *err)
{
	struct shf_save_publish *p = &save->publishing;
	int rc = shf_save_seal(save, err);

	if (rc == 0 && !always(save->at.copy == SHF_ASKED && save->at.disk == SHF_DISK_STAGED))
		rc = shf_fail(err, SHEAF_EBUG, "step %" PRId64 ": its files are not complete",
		              save->id.step);
	atomic_store(&save->took.publish_from_ns, shf_now(save->run));
	if (save->at.sums == SHF_SUMS_GATHERED) {
		shf_save_gather_again(save);
		rc = shf_agree(&save->run->team, rc, err);
	} else {
		rc = shf_save_gather(save, rc, p->by_zero, err);
	}
	if (rc == 0 && !p->by_zero)
		rc = write_attached(save, err);
	if (rc == 0)
		rc = shf_save_memory_publishing(save, doubt, err);
	if (rc < 0)
		return rc;
	save->at.disk = SHF_DISK_PUBLISHING;
	if (save->run->team.rank == 0)
		shf_save_publish_begin(save);
	return 0;
}

static int is_publishing(const struct sheaf_save *save, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": it is being published; commit again "
	                "for the result",
	                save->id.step);
}

/* Decides whether this call returns while rank 0 goes on publishing in the background; returns
 * EAGAIN on all ranks if so. A call with timeout 0 does not wait. Any other call waits only if the
 * publication should end within its timeout, judging by how long earlier publications took. Rank 0
 * decides for all. [collective] */
static int goes_on(struct sheaf_save *save, const struct limit *l, struct sheaf_error *err)
{
	int64_t due = atomic_load(&save->took.publish_from_ns) +
	              shf_durations_ns(&save->run->saves.pace.publish);
	uint64_t on = save->run->team.rank == 0 && (l->asks || due > l->until_ns) &&
	              shf_save_publish_runs(save);
	int rc = shf_bcast(&save->run->team, 0, &on, sizeof(on), err);

	save->at.disk = SHF_DISK_BEHIND;
	return rc < 0 || !on ? rc : is_publishing(save, err);
}

/* Records how long the publication took. If it ran in the background, only rank 0 knows when it
 * ended, so only rank 0 records it. */
static void publish_took(struct sheaf_save *save)
{
	bool behind = save->at.disk == SHF_DISK_BEHIND, zero = save->run->team.rank == 0;
	int64_t to = behind && zero ? save->publishing.over_ns : shf_now(save->run);

	if (!behind || zero)
		shf_durations_add(&save->run->saves.pace.publish,
		                  to - atomic_load(&save->took.publish_from_ns));
}

/* Does C4 to C9, and agrees on the outcome. *again: rank 0 goes on publishing in the background,
 * and the caller must call again. [collective] */
static int publish_together(struct sheaf_save *save, const struct limit *l, bool doubt,
                            bool *again, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	int rc;

	if (save->id.flags & SHEAF_SAVE_NO_DISK)
		return 0;       /* a memory-only step is not published */
	rc = save->at.disk >= SHF_DISK_PUBLISHING ? 0 : settle(save, doubt, err);
	if (rc == 0 && (l->asks || save->at.disk == SHF_DISK_BEHIND)) {
		rc = goes_on(save, l, err);
		*again = rc == SHEAF_EAGAIN;
	}
	if (rc < 0)
		return rc;
	rc = shf_agree(team, team->rank == 0 ? shf_save_publish_end(save, err) : 0, err);
	publish_took(save);
	return rc;
}

/* Called when the step was committed: makes it the parent of all later saves, including those in
 * flight. */
static void succeed(struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;

	if (save->id.flags & SHEAF_SAVE_NO_DISK) {
		shf_log(run, 2, "%s: step %" PRId64 " is in memory, rank %d", run->store.path,
		        save->id.step, run->team.rank);
		return;
	}
	shf_save_memory_published(save);
	shf_run_set_parent(run, save->id.step, save->id.session);
	run->lineage.loaded = run->lineage.doubtful = -1;
	shf_log(run, 2, "%s: step %" PRId64 " committed, rank %d", run->store.path, save->id.step,
	        run->team.rank);
}

/* Writes the done files and calls opts.notify.committed. A failure is only logged. [rank 0] */
static void announce_committed(const struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;
	const struct shf_opts *o = &run->opts;
	char name[SHF_STEP_NAME];
	struct sheaf_error err;

	if (o->signal_dir && shf_done_put(&run->store, o->signal_dir, save->id.step,
	                                  save->id.session, &err) < 0)
		shf_log(run, 1, "%s: step %" PRId64 " is committed, but its done files could not "
		        "all be written to opts.notify.signal_dir: %s",
		        run->store.path, save->id.step, err.msg);
	if (!o->committed)
		return;
	shf_name_of_step(&run->store, name, save->id.step);
	snprintf(run->saves.commit_path, run->saves.commit_path_bytes, "%s/%s", run->store.path,
	         name);
	o->committed(o->committed_arg, save->id.step, run->saves.commit_path);
}

void shf_save_announce(const struct sheaf_save *save)
{
	struct shf_turns *t = &save->run->turns;

	if (save->run->team.rank)
		return;
	if (t->on)
		pthread_mutex_lock(&t->announce_lock);
	announce_committed(save);
	if (t->on)
		pthread_mutex_unlock(&t->announce_lock);
}

/* ---- the first operation ---- */

/* Checks that this save may be committed now. Saves to disk are committed in the order of their
 * begins; memory-only saves have an order of their own. */
static int refuse(const struct sheaf_save *save, struct sheaf_error *err)
{
	const struct sheaf_save *first = save->run->saves.first;

	if (!shf_run_is_ours(save->run))
		return shf_fail(err, SHEAF_EINVAL, "the save was begun by another process; only "
		                "that process can commit it");
	if (save->at.end == SHF_OVER)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": the save has ended; free it",
				save->id.step);
	if (save->behind.submitted && !shf_turns_is_turn(save->run))
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": the save was submitted; call "
		                "sheaf_save_result for its outcome", save->id.step);
	while (first && (first->id.flags ^ save->id.flags) & SHEAF_SAVE_NO_DISK)
		first = first->next;
	if (first != save)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": step %" PRId64 " was begun "
		                "before it; %s", save->id.step, first ? first->id.step : -1,
		                first && first->behind.submitted
		                ? "wait for that save with sheaf_save_result"
		                : "commit or free that save first");
	return 0;
}

/* What a rank knows when it enters a commit. It is sent with the call, and all ranks get the
 * maximum of each word over all ranks. */
struct entry {
	uint64_t failed;                /* the save has failed on some rank */
	uint64_t uncopied;              /* lazy: on some rank a slice was not put, or is not copied
	                                 * yet */
	uint64_t late;                  /* some rank's timeout is too short to make a stage */
	uint64_t busy;                  /* the timeout is 0 and some rank still writes, so the call
	                                 * returns at once */
	uint64_t publishing;            /* the timeout is 0 and rank 0 still publishes in the
	                                 * background, so the call returns at once */
	uint64_t not_kept;              /* some rank's part of the step is not in memory */
	uint64_t doubt;                 /* some rank has an earlier step in doubt */
	uint64_t scrubbing;             /* some node still re-reads a committed step */
	uint64_t emas;                  /* some rank's state has averages, which must be waited
	                                 * for */
	uint64_t rank_bytes;            /* opaque bytes that the rank was given */
};
enum { WAIT_WORD, ENTRY_WORD };
_Static_assert(ENTRY_WORD + sizeof(struct entry) / sizeof(uint64_t) <= SHF_CALL_ARGS,
               "an entry travels with the call");

/* Whether nothing is left to do before C4 except to wait for writes. Equal on all ranks. */
static bool is_all_submitted(const struct sheaf_save *save)
{
	return save->at.disk >= SHF_DISK_STAGED && save->copy.exchanged &&
	       save->at.copy == SHF_ASKED &&
	       save->at.memory != SHF_MEMORY_TO_BE_KEPT;
}

/* Fills this rank's entry. from_ns: when the call was entered. */
static struct entry entry_of(struct sheaf_save *save, int wait_ms, int64_t from_ns)
{
	int64_t until = from_ns + shf_ms_ns(wait_ms);
	bool asks = wait_ms == 0;
	const struct shf_memory_tier *t = save->run->tier;
	struct entry e = { .not_kept = !shf_save_memory_is_here(save),
		.doubt = t->wanted && t->doubt != 0,
		.scrubbing = shf_scrub_run_is_busy(save->run), .emas = save->state->emas_n > 0 };

	if (save->at.disk >= SHF_DISK_PUBLISHING) {
		e.publishing = asks && save->run->team.rank == 0 && shf_save_publish_runs(save);
		return e;
	}
	e.failed = shf_save_failure(save, NULL) < 0;
	e.rank_bytes = save->given.ranks_bytes;
	/* The commit thread does not ask: it goes on once all is copied on all ranks. */
	e.uncopied = save->at.copy < SHF_ASKED && !save->behind.submitted &&
	             shf_save_gates_check_asked(save, NULL) < 0;
	e.late = save->at.disk == SHF_DISK_UNSTAGED &&
	         is_late(save, until, shf_durations_ns(&save->run->saves.pace.stage));
	e.busy = asks && !e.failed && is_all_submitted(save) && !shf_save_sync(save, 0);
	return e;
}

/* Enters the commit with the other ranks. *wait_ms becomes the shortest of all timeouts, *e the
 * maximum of all entries. [collective] */
static int enter_commit_call(struct sheaf_save *save, int *wait_ms, struct entry *e,
                             int64_t from_ns, struct sheaf_error *err)
{
	struct shf_call m = { .kind = SHF_CALL_COMMIT, .handle = save->id.made };
	int rc = refuse(save, err);

	if (rc == 0) {
		*e = entry_of(save, *wait_ms, from_ns);
		m.x[WAIT_WORD] = (uint64_t)*wait_ms;
		memcpy(&m.x[ENTRY_WORD], e, sizeof(*e));
	}
	rc = shf_call_enter(&save->run->team, &m, rc, err);
	if (rc == 0) {
		*wait_ms = (int)m.lo[WAIT_WORD];
		memcpy(e, &m.hi[ENTRY_WORD], sizeof(*e));
	}
	return rc;
}

/* Waits until the averages of this rank are copied. EAGAIN: they were not by until_ns. If the save
 * has failed, returns its failure: a failed save copies nothing more, and the wait ends early. */
static int averages_copied(struct sheaf_save *save, int64_t until_ns, struct sheaf_error *err)
{
	int rc = shf_save_averages_wait(save, until_ns, err);

	return rc == 0 ? shf_save_failure(save, err) : rc;
}

/* Copies what is left of a lazy save on this rank, as the gates of all slices do. So a caller whose
 * tensors no longer change, as at the end of a run, need not call the gates. The outcome is seen in
 * the entry: slices that are not copied, or the failure of the save. With SHEAF_SAVE_CHECK a call
 * that does not wait opens no gate: a gate that the caller forgot would compare too early to find
 * the change. [local] */
static void copy_rest(struct sheaf_save *save, int wait_ms)
{
	struct sheaf_error own;

	if (wait_ms == 0 && save->id.flags & SHEAF_SAVE_CHECK)
		return;
	if (refuse(save, &own) == 0 && save->copy.lazy && save->at.copy < SHF_ASKED &&
	    !save->behind.submitted && shf_save_gates_unput(save) < 0)
		(void)shf_save_gates_copied(save, SHEAF_ALL_SLICES, wait_ms, &own);
}

/* Copies the rest on all ranks, a time slice at a time, until everything is copied, some rank's
 * timeout is over, or a rank cannot go on. The ranks agree after each time slice, so that none of
 * them waits for another one longer than that. [collective] */
static int copy_rest_together(struct sheaf_save *save, const struct limit *l,
                              struct sheaf_error *err)
{
	enum { COPYING, ENOUGH };
	uint64_t x[2];
	int rc;

	do {
		int ms = shf_save_poll_ms(save->run, l->until_ns), own;

		copy_rest(save, ms);
		shf_save_progress(save);
		own = shf_save_gates_check_asked(save, NULL);
		x[COPYING] = own == SHEAF_EAGAIN;
		x[ENOUGH] = ms == 0 || own == SHEAF_EINVAL || shf_save_failure(save, NULL) < 0;
		rc = shf_allreduce(&save->run->team, x, 2, SHEAF_MAX, err);
	} while (rc == 0 && x[COPYING] && !x[ENOUGH]);
	return rc;
}

/* Checks that on all ranks every slice of a lazy save is copied, and waits until its averages are
 * copied. EINVAL names a slice that was not put; but a call that does not wait returns EAGAIN, as
 * the caller may still put it. EAGAIN: not all slices or averages are copied when the time is over.
 * If the save has failed, returns its failure. [collective] */
static int all_asked(struct sheaf_save *save, const struct limit *l, const struct entry *e,
                     struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	int rc = 0;

	if (save->at.copy == SHF_ASKED)
		return 0;
	if (e->uncopied && !l->asks)
		rc = copy_rest_together(save, l, err);
	if (rc == 0 && e->uncopied) {
		rc = shf_save_failure(save, err);
		if (rc == 0)
			rc = shf_save_gates_check_asked(save, err);
		if (rc == SHEAF_EINVAL && l->asks)
			rc = shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": not all slices are "
			              "ready yet (sheaf_save_slice_ready)", save->id.step);
		rc = shf_agree(team, rc, err);
	}
	if (rc == 0 && e->emas)
		rc = shf_agree(team, averages_copied(save, l->until_ns, err), err);
	if (rc < 0)
		return rc;
	save->at.copy = SHF_ASKED;
	if (shf_save_is_async(save))
		(void)shf_save_gates_finish(save, -1); /* the rest, which has no gate: header pages,
		                                        * and slices of averages */
	return 0;
}

/* Ends the save with its outcome, and after a commit to disk starts what follows: re-reading the
 * step, pruning, announcing. scrubbing: some node still re-reads an earlier step. */
static void conclude(struct sheaf_save *save, int rc, bool scrubbing, const struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;

	shf_save_settle(save, rc, err);
	if (rc == SHEAF_EINDOUBT)
		shf_save_doubt(save);
	if (rc == 0)
		succeed(save);
	if (rc == 0 && !(save->id.flags & SHEAF_SAVE_NO_DISK)) {
		if (run->opts.keep_last)
			shf_scrub_run_next(run, save->id.step, save->id.session,
			                   shf_save_bytes(save));
		shf_run_prune_auto(run, scrubbing, save->at.disk == SHF_DISK_BEHIND);
		if (!save->behind.submitted) /* else the commit thread announces it after its turn,
		                              * because opts.notify.committed may take long */
			shf_save_announce(save);
	}
	shf_save_blocked_write_all(save, rc); /* last, because it may wait for a rank that has died
	                                       * since */
}

/* Adds to the sentence of an EAGAIN that the step is in memory: a caller that must stop now loses
 * the step only if nodes fail. */
static void say_kept(struct sheaf_error *err)
{
	size_t at = err ? strlen(err->msg) : 0;

	if (err)
		snprintf(err->msg + at, sizeof(err->msg) - at,
		         "; it is safe in the agents' memory");
}

/* Clears the step of a save that has failed after it got into memory: all ranks clear the replicas
 * of the step before any rank clears its own card. Otherwise a node that has cards of some ranks
 * and replicas of the others could seem to have the whole step. Returns rc, or ELOST.
 * [collective] */
static int clear_failed_step(struct sheaf_save *save, int rc, struct sheaf_error *err)
{
	struct shf_replicas *g = &save->run->tier->guests;
	struct sheaf_error own;

	if (rc == 0 || rc == SHEAF_EINDOUBT || rc == SHEAF_ELOST ||
	    save->at.memory != SHF_MEMORY_KEPT || g->to < 0)
		return rc;
	shf_replicas_clear(g, save->id.step);
	if (shf_agree(&save->run->team, 0, &own) == 0)
		return rc;
	if (err)
		*err = own;
	return SHEAF_ELOST;
}

/* Checks that the opaque bytes of all ranks are not more together than rank 0 has to hold. No
 * message is needed if even the largest of them, given by all ranks, would fit. [collective] */
static int rank_bytes_fit(const struct sheaf_save *save, const struct entry *e,
                          struct sheaf_error *err)
{
	uint64_t all = save->given.ranks_bytes;
	int rc = 0;

	if (e->rank_bytes > SHF_RANK_BYTES_ALL / (uint64_t)save->run->team.ranks)
		rc = shf_allreduce(&save->run->team, &all, 1, SHEAF_SUM, err);
	else
		all = 0;
	if (rc == 0 && all > SHF_RANK_BYTES_ALL)
		rc = shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": sheaf_save_rank_bytes was "
		              "given %" PRIu64 " bytes on all ranks together, at most 512 MiB",
		              save->id.step, all);
	return rc;
}

/* Does all that comes before C4. *again: the save is not over, and the caller may call again.
 * [collective] */
static int get_ready(struct sheaf_save *save, const struct limit *l, const struct entry *e,
                     bool *again, struct sheaf_error *err)
{
	int rc = e->failed ? shf_agree(&save->run->team, shf_save_failure(save, err), err) : 0;

	if (rc == 0)
		rc = rank_bytes_fit(save, e, err);
	if (rc == 0) {
		rc = all_asked(save, l, e, err);
		*again = rc == SHEAF_EINVAL || /* the caller can still put and ask for it */
		         rc == SHEAF_EAGAIN;
	}
	if (rc == 0) {
		rc = stage_send_and_sync(save, l, e->late, err);
		*again = rc == SHEAF_EAGAIN;
	}
	return rc;
}

/* Does everything between the first operation and the end of the save. *again: the save is not
 * over, because work is left or something must still be done by the caller. [collective] */
static int go_on(struct sheaf_save *save, const struct limit *l, const struct entry *e,
                 bool *again, struct sheaf_error *err)
{
	int rc = 0;

	*again = true;
	if (l->asks && e->busy && !e->failed)
		return still_writing(save, err);
	if (l->asks && e->publishing)
		return is_publishing(save, err);
	*again = false;
	if (save->at.disk < SHF_DISK_PUBLISHING)
		rc = get_ready(save, l, e, again, err);
	if (rc == 0)
		rc = publish_together(save, l, e->doubt, again, err);
	return *again ? rc : clear_failed_step(save, shf_save_failed_for_good(rc, err), err);
}

int shf_save_commit(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	int64_t from = shf_now(run);
	int wait = timeout_ms < 0 ? run->opts.timeout_ms : timeout_ms;
	struct entry entry;
	struct limit limit;
	bool again, waiting;
	int rc;

	copy_rest(save, 0);
	rc = enter_commit_call(save, &wait, &entry, from, err);
	if (rc < 0)
		return rc;
	limit = (struct limit){ from + shf_ms_ns(wait), wait == 0 };
	waiting = limit.asks && (entry.busy || entry.publishing);
	rc = go_on(save, &limit, &entry, &again, err);
	if (!save->behind.submitted) /* else no caller was blocked */
		shf_save_blocked_add(run, save, SHF_IN_COMMIT, from);
	if (!again)
		conclude(save, rc, entry.scrubbing, err);
	else if (rc == SHEAF_EAGAIN && save->at.memory != SHF_MEMORY_NOT_KEPT &&
	         (waiting ? !entry.not_kept : shf_save_memory_is_whole(save)))
		say_kept(err);
	return rc;
}
