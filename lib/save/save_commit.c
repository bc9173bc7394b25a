/* SPDX-License-Identifier: Apache-2.0 */
/* Committing a save: the steps C2 to C10 that ranks do together. What one rank does in the run
 * directory, and the invariants, stand in lib/store/publish.c.
 *
 *   C2  what must still travel; every write of this rank finished (save_sync.h)
 *   C3  each writer fsyncs each file through the descriptor it wrote with, or wrote the edges with
 *       where the rest went past the page cache (save_sync.h)
 *   C4  all ranks have come so far; what was copied from memory is what was put into pages, tensor
 *       by tensor (save_gather.h)
 *   C5  index and sums written by rank 0, attached files by it, too, if they are little, else by
 *       who attached them, and fsynced
 *   C6-C9  rank 0 publishes (save_publish.h), behind a caller who just asks
 *   C10 all learn the outcome
 *
 * A failure before C6 on any rank is its code on all, and the step never appears (I7).
 *
 * Each operation of the group is expensive at thousands of ranks. So what a rank knows when it
 * enters the call is sent with the operation that begins the call (struct entry).
 */
#include "save_commit.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "done.h"
#include "err.h"
#include "memory_tier.h"
#include "prune_task.h"
#include "run_env.h"
#include "save.h"
#include "save_attach.h"
#include "save_averages.h"
#include "save_blocked.h"
#include "save_end.h"
#include "save_gates.h"
#include "save_gather.h"
#include "save_handle.h"
#include "save_memory.h"
#include "save_net.h"
#include "save_stage.h"
#include "save_sync.h"
#include "scrub_run.h"

/* How long a commit may take: as the least patient rank says. */
struct limit {
	int64_t until_ns;               /* by this rank's clock */
	bool asks;                      /* it just asks: nothing is waited for, but what is left
	                                 * when nothing need be waited for is done */
};

static bool is_late(const struct sheaf_save *save, int64_t until_ns, int64_t cost_ns)
{
	return shf_now(save->run) + cost_ns > until_ns;
}

/* EAGAIN on all ranks. The next commit of this save is not refused for this reason, so that a
 * caller whose timeouts are always short gets there. */
static int too_late(struct sheaf_save *save, struct sheaf_error *err)
{
	save->end.refused = true;
	return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": too little time is left to publish "
	                "it", save->id.step);
}

static int still_writing(const struct sheaf_save *save, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": some rank is still writing",
	                save->id.step);
}

/* ---- until all of it is durable ---- */

/* A step on its way to the memory tier. */
struct stamping {
	bool pending;                   /* this rank's card is stamped, or failed to be, and ranks
	                                 * have not agreed on it */
	int rc;
	struct sheaf_error err;
};

/* For a save to disk the memory tier is an extra, and no reason to fail. */
static int memory_failed(struct sheaf_save *save, int rc, const struct sheaf_error *own,
                         struct sheaf_error *err)
{
	if (rc != SHEAF_ELOST && !(save->id.flags & SHEAF_NO_DISK)) {
		shf_log(save->run, 1, "%s: step %" PRId64 " is not kept in memory: %s",
		        save->run->store.path, save->id.step, own->msg);
		return 0;
	}
	if (err)
		*err = *own;
	return rc;
}

/* All of it is in images: from now on it is in the memory tier, too, if all ranks find so. */
static int to_memory(struct sheaf_save *save, struct stamping *st, struct sheaf_error *err)
{
	int rc;

	if (save->at.memory != SHF_MEMORY_TO_BE_KEPT || save->copy.image < 0 ||
	    !shf_save_fits_memory(save))
		return 0;
	save->at.memory = SHF_MEMORY_TRIED;
	rc = shf_tier_stamp(save, &st->rc, &st->err);
	st->pending = rc == 0;
	if (rc < 0)
		return memory_failed(save, shf_tier_stamped(save, rc, &st->err), &st->err, err);
	return 0;
}

/* failed: some rank has no stamp. [collective] */
static int in_memory(struct sheaf_save *save, struct stamping *st, bool failed,
                     struct sheaf_error *err)
{
	int rc = failed ? shf_agree(&save->run->team, st->rc, &st->err) : 0;

	st->pending = false;
	rc = shf_tier_stamped(save, rc, &st->err);
	if (rc == 0)
		save->at.memory = SHF_MEMORY_KEPT;
	if (rc == 0)
		shf_run_resumed(save->run);
	return rc < 0 ? memory_failed(save, rc, &st->err, err) : 0;
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
		x[0] = is_late(save, l->until_ns, 0);
		x[1] = shf_now(save->run) - from > PORTION_NS;
		rc = shf_allreduce(&save->run->team, x, 2, SHEAF_MAX, err);
		if (x[0])
			break;
		part = x[1] ? part / 2 : part * 2;
		part = part < PORTION / 4 ? PORTION / 4 : part > PORTION_MAX ? PORTION_MAX : part;
	}
	return rc < 0 && rc != SHEAF_EAGAIN
	       ? rc : shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": bytes must still travel",
	                       save->id.step);
}

/* C0, where begin had no time for it. late: some rank has too little left for it. */
static int is_staged(struct sheaf_save *save, const struct limit *l, bool late,
                     struct sheaf_error *err)
{
	if (save->at.disk >= SHF_DISK_STAGED)
		return 0;
	/* Where it is kept in memory, too, that is worth it: only then does it get there. */
	if (late && save->at.memory == SHF_MEMORY_NOT_KEPT && !l->asks && !save->end.refused)
		return too_late(save, err);
	return shf_save_stage(save, err);
}

/* How far a rank is, and summed, in how many ranks that is so. late: the timeout is over; too_late:
 * what is left of it is less than a publication takes. */
struct standing {
	uint64_t writing, late, too_late, failed, unstamped;
	uint64_t files_n, files_bytes;  /* attached */
};
#define STANDING_WORDS (sizeof(struct standing) / sizeof(uint64_t))

static void look_here(struct sheaf_save *save, const struct limit *l, const struct stamping *st,
                      struct standing *s)
{
	/* What is in memory counts at once. */
	int ms = st->pending ? 0 : shf_save_slice_ms(save->run, l->until_ns);

	*s = (struct standing){ .files_n = save->given.attached_n };
	s->unstamped = st->pending && st->rc < 0;
	s->writing = !shf_save_sync(save, ms);
	s->late = shf_save_slice_ms(save->run, l->until_ns) == 0;
	s->too_late = is_late(save, l->until_ns, shf_lasted_ns(&save->run->saves.pace.publish));
	s->failed = shf_save_failure(save, NULL) < 0;
	for (size_t i = 0; i < save->given.attached_n; i++)
		s->files_bytes += save->given.attached[i].n;
}

#define BY_ZERO_BYTES (UINT64_C(16) << 20) /* of all attached files, that rank 0 may write */
#define BY_ZERO_FILES 256

/* C2 and C3 on all ranks, and is there time for the rest? No failure is told while some rank still
 * writes: its image would not be free (I10). [collective] */
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
	/* It is where it should be: nobody can fail it any more. */
	if (save->id.flags & SHEAF_NO_DISK)
		return shf_agree(team, shf_save_seal(save, err), err);
	if (u.s.failed) /* on one rank before the look, on others perhaps since */
		rc = shf_agree(team, shf_save_failure(save, err), err);
	save->publishing.by_zero =
	    u.s.files_n <= BY_ZERO_FILES && u.s.files_bytes <= BY_ZERO_BYTES;
	if (rc == 0 && u.s.too_late && !l->asks && !save->end.refused)
		rc = too_late(save, err);
	return rc;
}

/* EAGAIN on all: call again. */
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

/* Those who attached files write them. [collective] */
static int write_attached(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_publishing *p = &save->publishing;
	struct shf_team *team = &save->run->team;
	int rc = p->rc;

	if (rc < 0 && err)
		*err = p->err;
	rc = shf_bcast_buf(team, rc, &p->owners, err);
	return rc == 0 ? shf_agree(team, shf_attach_write(save, &p->owners, err), err) : rc;
}

/* C4 and C5 as far as all ranks do it. From then on nothing but the disk, or what rank 0 finds in
 * what was gathered, can keep the step from appearing. [collective] */
static int settle(struct sheaf_save *save, bool doubt, struct sheaf_error *err)
{
	struct shf_publishing *p = &save->publishing;
	int rc = shf_save_seal(save, err);

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
		rc = shf_tier_publishing(save, doubt, err);
	if (rc < 0)
		return rc;
	save->at.disk = SHF_DISK_PUBLISHING;
	if (save->run->team.rank == 0)
		shf_publishing_begin(save);
	return 0;
}

static int is_publishing(const struct sheaf_save *save, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": it is being published",
	                save->id.step);
}

/* Is it left to go on behind this call? Who has little time waits only for what should be over by
 * then. EAGAIN: it is. [collective] */
static int goes_on(struct sheaf_save *save, const struct limit *l, struct sheaf_error *err)
{
	int64_t due = atomic_load(&save->took.publish_from_ns) +
	              shf_lasted_ns(&save->run->saves.pace.publish);
	uint64_t on = save->run->team.rank == 0 && (l->asks || due > l->until_ns) &&
	              shf_publishing_goes_on(save);
	int rc = shf_bcast(&save->run->team, 0, &on, sizeof(on), err);

	save->at.disk = SHF_DISK_BEHIND;
	return rc < 0 || !on ? rc : is_publishing(save, err);
}

/* How long it took; of what went on behind only rank 0 knows. */
static void publish_took(struct sheaf_save *save)
{
	bool behind = save->at.disk == SHF_DISK_BEHIND, zero = save->run->team.rank == 0;
	int64_t to = behind && zero ? save->publishing.over_ns : shf_now(save->run);

	if (!behind || zero)
		shf_lasted_add(&save->run->saves.pace.publish,
		               to - atomic_load(&save->took.publish_from_ns));
}

/* C4 to C9, and what came of it on all. *again: it goes on behind. */
static int publish_together(struct sheaf_save *save, const struct limit *l, bool doubt,
                            bool *again, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	int rc;

	if (save->id.flags & SHEAF_NO_DISK)
		return 0;       /* it is where it should be */
	rc = save->at.disk >= SHF_DISK_PUBLISHING ? 0 : settle(save, doubt, err);
	if (rc == 0 && (l->asks || save->at.disk == SHF_DISK_BEHIND)) {
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

	if (save->id.flags & SHEAF_NO_DISK) {
		shf_log(run, 2, "%s: step %" PRId64 " is in memory, rank %d", run->store.path,
		        save->id.step, run->team.rank);
		return;
	}
	shf_tier_published(save);
	shf_run_goes_on_from(run, save->id.step, save->id.session);
	run->lineage.loaded = run->lineage.doubtful = -1;
	shf_log(run, 2, "%s: step %" PRId64 " committed, rank %d", run->store.path, save->id.step,
	        run->team.rank);
}

/* C10 is over: those outside may know. [rank 0] */
static void announce(const struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;
	const struct sheaf_opts *o = &run->opts;
	struct sheaf_error err;

	if (o->signal_dir && shf_done_put(&run->store, o->signal_dir, save->id.step,
	                                  save->id.session, &err) < 0)
		shf_log(run, 1, "%s: step %" PRId64 " is committed, its done files are not all "
		        "there: %s", run->store.path, save->id.step, err.msg);
	if (!o->committed)
		return;
	snprintf(run->saves.commit_path, run->saves.commit_path_bytes, "%s/checkpoint-%" PRId64,
	         run->store.path, save->id.step);
	o->committed(o->arg, save->id.step, run->saves.commit_path);
}

/* ---- the first operation ---- */

/* Those to disk are committed in their order, those to memory alone in theirs. */
static int refuse(const struct sheaf_save *save, struct sheaf_error *err)
{
	const struct sheaf_save *first = save->run->saves.first;

	if (!shf_run_is_ours(save->run))
		return shf_fail(err, SHEAF_EINVAL, "the save was begun by another process");
	if (save->at.end == SHF_OVER)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": the save is over",
				save->id.step);
	while (first && (first->id.flags ^ save->id.flags) & SHEAF_NO_DISK)
		first = first->next;
	if (first != save)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": step %" PRId64
		                " was begun before it and is not committed", save->id.step,
		                first ? first->id.step : -1);
	return 0;
}

/* What ranks know when they enter, as the words of a call: the largest of all ranks. */
struct entry {
	uint64_t failed;                /* some rank's save has */
	uint64_t unasked;               /* lazy: some slice was not asked for */
	uint64_t late;                  /* too little time for a stage, by the rank's own timeout */
	uint64_t busy;                  /* who just asks need not go on: it is being written, */
	uint64_t publishing;            /* or published */
	uint64_t not_kept;              /* some rank has not all of it in memory */
	uint64_t doubt;                 /* a step was in doubt before it */
	uint64_t scrubbing;             /* some node still reads a committed step again */
	uint64_t emas;                  /* some rank has averages */
};
enum { WAIT_WORD, ENTRY_WORD };
_Static_assert(ENTRY_WORD + sizeof(struct entry) / sizeof(uint64_t) <= SHF_CALL_ARGS,
               "an entry travels with the call");

/* Nothing is left to do for it but to wait. Equal on all ranks. */
static bool is_all_submitted(const struct sheaf_save *save)
{
	return save->at.disk >= SHF_DISK_STAGED && save->copy.exchanged &&
	       save->at.copy == SHF_ASKED &&
	       save->at.memory != SHF_MEMORY_TO_BE_KEPT;
}

static struct entry entry_of(struct sheaf_save *save, int wait_ms, int64_t from_ns)
{
	int64_t until = from_ns + (int64_t)wait_ms * 1000000;
	bool asks = wait_ms == 0;
	const struct shf_tier *t = save->run->tier;
	struct entry e = { .not_kept = !shf_tier_has_here(save),
		.doubt = t->wanted && t->doubt != 0,
		.scrubbing = shf_behind_is_busy(save->run), .emas = save->state->emas_n > 0 };

	if (save->at.disk >= SHF_DISK_PUBLISHING) {
		e.publishing = asks && save->run->team.rank == 0 && shf_publishing_goes_on(save);
		return e;
	}
	e.failed = shf_save_failure(save, NULL) < 0;
	e.unasked = save->at.copy < SHF_ASKED && shf_lazy_unasked(save, NULL) < 0;
	e.late = save->at.disk == SHF_DISK_UNSTAGED &&
	         is_late(save, until, shf_lasted_ns(&save->run->saves.pace.stage));
	e.busy = asks && !e.failed && is_all_submitted(save) && !shf_save_sync(save, 0);
	return e;
}

/* Meets the other ranks in the commit of this save. *wait_ms becomes the shortest of their
 * timeouts, *e what any of them says. [collective] */
static int meet_in_commit(struct sheaf_save *save, int *wait_ms, struct entry *e, int64_t from_ns,
                          struct sheaf_error *err)
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

/* Of a lazy save all is asked for, and so copied, on all ranks. */
static int all_asked(struct sheaf_save *save, const struct limit *l, const struct entry *e,
                     struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	int rc = 0;

	if (save->at.copy == SHF_ASKED)
		return 0;
	if (e->unasked)
		rc = shf_agree(team, shf_lazy_unasked(save, err), err);
	if (rc == 0 && e->emas)
		rc = shf_agree(team, shf_emas_copied(save, l->until_ns, err), err);
	if (rc < 0)
		return rc;
	save->at.copy = SHF_ASKED;
	if (shf_lazy_is_behind(save))
		(void)shf_lazy_finish(save, -1); /* what nobody can ask for */
	return 0;
}

/* It is over, one way or the other. */
static void conclude(struct sheaf_save *save, int rc, bool scrubbing, const struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;

	shf_save_settle(save, rc, err);
	if (rc == SHEAF_EINDOUBT)
		shf_save_doubt(save);
	if (rc == 0)
		succeed(save);
	if (rc == 0 && !(save->id.flags & SHEAF_NO_DISK)) {
		if (run->opts.keep_last)
			shf_behind_next(run, save->id.step, save->id.session, shf_save_bytes(save));
		shf_run_prune_behind(run, scrubbing, save->at.disk == SHF_DISK_BEHIND);
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

	if (rc == 0 || rc == SHEAF_EINDOUBT || rc == SHEAF_ELOST ||
	    save->at.memory != SHF_MEMORY_KEPT || g->to < 0)
		return rc;
	shf_guests_forget(g, save->id.step);
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
static int get_ready(struct sheaf_save *save, const struct limit *l, const struct entry *e,
                     bool *again, struct sheaf_error *err)
{
	int rc = e->failed ? shf_agree(&save->run->team, shf_save_failure(save, err), err) : 0;

	if (rc == 0) {
		rc = all_asked(save, l, e, err);
		*again = rc < 0; /* whatever it is */
	}
	if (rc == 0) {
		rc = stage_send_and_sync(save, l, e->late, err);
		*again = rc == SHEAF_EAGAIN;
	}
	return rc;
}

/* Everything between the first operation and the end of the save, if it has come to one. */
static int go_on(struct sheaf_save *save, const struct limit *l, const struct entry *e,
                 bool *again, struct sheaf_error *err)
{
	int rc = 0;

	*again = true;
	if (l->asks && e->busy)
		return still_writing(save, err);
	if (l->asks && e->publishing)
		return is_publishing(save, err);
	*again = false;
	if (save->at.disk < SHF_DISK_PUBLISHING)
		rc = get_ready(save, l, e, again, err);
	if (rc == 0)
		rc = publish_together(save, l, e->doubt, again, err);
	return *again ? rc : uncopy(save, failed_for_good(rc, err), err);
}

int shf_save_commit(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	int64_t from = shf_now(run);
	int wait = timeout_ms < 0 ? run->opts.timeout_ms : timeout_ms;
	struct entry entry;
	struct limit limit;
	bool again, waiting;
	int rc = meet_in_commit(save, &wait, &entry, from, err);

	if (rc < 0)
		return rc;
	limit = (struct limit){ from + (int64_t)wait * 1000000, wait == 0 };
	waiting = limit.asks && (entry.busy || entry.publishing);
	rc = go_on(save, &limit, &entry, &again, err);
	shf_stalled(run, save, SHF_IN_COMMIT, from);
	if (!again)
		conclude(save, rc, entry.scrubbing, err);
	else if (rc == SHEAF_EAGAIN && save->at.memory != SHF_MEMORY_NOT_KEPT &&
	         (waiting ? !entry.not_kept : shf_tier_has(save)))
		say_kept(err);
	return rc;
}
