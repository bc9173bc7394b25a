/* SPDX-License-Identifier: Apache-2.0 */
/* Begins a save: agrees with the other ranks, plans, makes the stage, and copies or starts the copy
 * threads.
 *
 * There are two ways. Usually a step is saved like the one before, so each rank has the plan and a
 * free image already (is_ready_to_begin), and one agreement is enough. Otherwise the ranks make a
 * plan and set up an image together (set_up), which takes more collective operations. */
#include "save.h"
#include <inttypes.h>
#include <string.h>
#include "agent_link.h"
#include "averages.h"
#include "err.h"
#include "flags.h"
#include "image.h"
#include "memory_tier.h"
#include "run_env.h"
#include "save_averages.h"
#include "save_blocked.h"
#include "save_copier.h"
#include "save_end.h"
#include "save_gates.h"
#include "save_status.h"
#include "save_image.h"
#include "save_plan.h"
#include "save_rounds.h"
#include "save_stage.h"
#include "save_write.h"
#include "sheaf-stat.h"
#include "state.h"
#include "struct_size.h"
#include "unstaged.h"
#include "work.h"

#define SAVE_OPTS_MIN (offsetof(struct sheaf_save_opts, flags) + sizeof(uint64_t))

/* Checks *opts (NULL: the defaults) and takes its flags and loss. */
static int known_flags(const struct sheaf_save_opts *opts, uint64_t *flags, double *loss,
                       struct sheaf_error *err)
{
	struct sheaf_save_opts own = { 0 };
	int rc = opts ? shf_struct_take(&own, opts, sizeof(own), SAVE_OPTS_MIN, "save_opts",
	                                "save_opts", err)
	              : 0;

	*flags = 0;
	*loss = 0;
	if (rc < 0)
		return rc;
	if (own.reserved)
		return shf_fail(err, SHEAF_EINVAL, "save_opts.reserved is %u; it must be 0",
		                (unsigned)own.reserved);
	rc = shf_flags_check(own.flags, SHF_SAVE_FLAGS, "save_opts.flags", err);
	if (rc < 0)
		return rc;
	if (own.flags & (SHEAF_SAVE_CHECK | SHEAF_SAVE_LATER) && !(own.flags & SHEAF_SAVE_LAZY))
		return shf_fail(err, SHEAF_EINVAL, "%s needs SHEAF_SAVE_LAZY",
		                own.flags & SHEAF_SAVE_CHECK ? "SHEAF_SAVE_CHECK"
		                        : "SHEAF_SAVE_LATER");
	*flags = own.flags;
	*loss = own.loss;
	return 0;
}

/* Makes the checks of may_begin that concern the state, for SHEAF_SAVE_LATER, where the data of
 * slices may be NULL until they are put. */
static int may_begin_later(int64_t step, struct sheaf_state *state, struct sheaf_error *err)
{
	if (state && state->emas_n > 0)
		return shf_fail(err, SHEAF_EINVAL,
		                "step %" PRId64 ": SHEAF_SAVE_LATER cannot be combined with "
		                "averages (sheaf_state_ema)", step);
	return shf_state_ready(state, false, err);
}

/* Checks whether this rank may begin a save of that step. Its number must be larger than those of
 * all saves in flight and of the steps that the run continues from. [local] */
static int may_begin(struct sheaf_run *run, int64_t step, struct sheaf_state *state,
                     uint64_t flags, struct sheaf_error *err)
{
	int rc = shf_run_may_train(run, step, err);

	if (rc == 0)
		rc = shf_save_gates_check_forked(state, err);
	if (rc < 0)
		return rc;
	for (struct sheaf_save *s = run->saves.first; s; s = s->next) {
		if (s->at.end != SHF_OVER && s->id.step == step)
			return shf_fail(err, SHEAF_EEXIST, "step %" PRId64 " is being saved "
			                "already; commit or free that save first", step);
		if (s->at.end != SHF_OVER && s->id.step > step)
			return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is older than step "
			                "%" PRId64 ", which is being saved; steps must be saved in "
			                "ascending order", step, s->id.step);
		/* The new save may need the image of save s, and would wait inside begin until all
		 * slices of s are put. The caller cannot put them meanwhile. */
		if (s->at.end != SHF_OVER && shf_save_gates_unput(s) >= 0 &&
		    shf_save_failure(s, NULL) == 0)
			return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": the save of step "
			                "%" PRId64 " still waits for slices; call "
			                "sheaf_save_slice_ready for each of them first",
			                step, s->id.step);
	}
	if (run->tier->beyond >= 0)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": an older step was loaded, "
		                "but step %" PRId64 " is in memory; call sheaf_run_rewind to save "
		                "after an older step", step,
		                run->tier->beyond);
	if (!shf_memory_tier_is_later(run, step, !(flags & SHEAF_SAVE_NO_DISK)))
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is not newer than step "
		                "%" PRId64 " in memory; call sheaf_run_rewind to save after an "
		                "older step", step,
		                run->tier->steps[run->tier->newest]);
	return flags & SHEAF_SAVE_LATER ? may_begin_later(step, state, err)
	                           : shf_state_ready(state, true, err);
}

/* Allocates the tables of the save now, so that a lack of memory fails begin, and not the copy.
 * shf_save_unreserve frees them. ENOMEM. */
static int reserve(struct sheaf_save *save, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_layout *l = &save->plan->layout;
	size_t blocks = 0;

	for (size_t i = 0; i < w->segs_n; i++)
		blocks += (size_t)((w->segs[i].hi - 1) / SHF_BLOCK - w->segs[i].lo / SHF_BLOCK + 1);
	save->disk.fds = shf_alloc(l->files_n, sizeof(*save->disk.fds));
	save->disk.directs = shf_zalloc(l->files_n, sizeof(*save->disk.directs));
	for (size_t f = 0; save->disk.fds && f < l->files_n; f++)
		save->disk.fds[f] = -1;
	save->copy.held = shf_zalloc(l->tensors_n, sizeof(*save->copy.held));
	save->copy.headers = shf_zalloc(l->files_n, sizeof(*save->copy.headers));
	save->copy.blocks = shf_alloc(blocks, sizeof(*save->copy.blocks));
	save->disk.ios = shf_zalloc(w->segs_n, sizeof(*save->disk.ios));
	save->disk.sizes = shf_zalloc(l->files_n, sizeof(*save->disk.sizes));
	if (!save->disk.fds || !save->disk.directs || !save->copy.held || !save->copy.headers ||
	    !save->copy.blocks || !save->disk.ios || !save->disk.sizes)
		return shf_fail(err, SHEAF_ENOMEM, "step %" PRId64 ": no memory for %zu segments",
		                save->id.step, w->segs_n);
	atomic_store(&save->took.to_write, save->id.flags & SHEAF_SAVE_NO_DISK ? 0 : w->bytes);
	return shf_unstaged_new(save, err);
}

/* Appends the save to the run's list, in the order of the begins. If the save has no stage yet, the
 * step that it follows is looked up again, because begin may have made the stage of an older save,
 * and that can change what this save follows. */
static void list_add(struct sheaf_run *run, struct sheaf_save *save)
{
	if (save->at.disk == SHF_DISK_UNSTAGED)
		shf_save_follow(save);
	if (run->saves.last)
		run->saves.last->next = save;
	else
		run->saves.first = save;
	run->saves.last = save;
	run->saves.in_flight++;
	save->end.listed = true;
	save->took.images_busy =
	    atomic_fetch_add(&run->image.busy, save->copy.image >= 0) + (save->copy.image >= 0);
}

/* Returns a new save without plan and image, or NULL: no memory. The save holds references to the
 * run and the state. */
static struct sheaf_save *save_new(struct sheaf_run *run, int64_t step, struct sheaf_state *state,
                                   uint64_t flags)
{
	struct sheaf_save *save = shf_zalloc(1, sizeof(*save));

	if (!save)
		return NULL;
	save->disk.io.done = save->disk.syncs.io.done = shf_save_io_done;
	save->run = run;
	shf_run_get(run);
	save->id.step = step;
	save->copy.reader = (struct shf_reader){ .step = step,
	        .reads = shf_save_gates_reader_reads };
	shf_save_follow(save);
	save->id.loads = run->lineage.loads;
	save->id.flags = flags;
	save->disk.stage.dir = save->disk.stage.alive = -1;
	save->copy.image = save->copy.card = -1;
	pthread_mutex_init(&save->end.lock, NULL);
	pthread_mutex_init(&save->end.write_lock, NULL);
	if (state) {
		save->state = state;
		state->refs++;
	}
	return save;
}

/* Allocates what the save needs besides its image. A lazy save that takes several rounds is copied
 * inside begin: the rounds share one image, so each must be written before the next is copied. */
static int prepare(struct sheaf_save *save, struct sheaf_error *err)
{
	bool now = save->plan->work.rounds > 1;
	int rc = reserve(save, err);

	if (rc < 0 || !(save->id.flags & SHEAF_SAVE_LAZY))
		return rc;
	if (save->id.flags & SHEAF_SAVE_LATER && (now || save->plan->slotted))
		return shf_fail(err, SHEAF_EINVAL,
		                "step %" PRId64 ": SHEAF_SAVE_LATER needs staging for the whole "
		                "state: %s", save->id.step,
		                now ? "opts.staging.bytes_max is too small for it"
		                    : "SHEAF_SLICE_IN_PLACE keeps some slices out of it");
	if (now)
		shf_log(save->run, 1, "step %" PRId64 ": copied synchronously in sheaf_save_begin, "
		        "because opts.staging.bytes_max cannot hold the whole state",
		        save->id.step);
	return shf_save_copier_new(save, now, err);
}

/* Fails a memory-only save that has no agent: EINVAL if the run was opened without
 * opts.memory_tier.agent, else EAGAIN, because an agent may answer later. */
static int no_agent(const struct sheaf_save *save, struct sheaf_error *err)
{
	if (!save->run->tier->wanted)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": SHEAF_SAVE_NO_DISK needs "
		                "opts.memory_tier.agent", save->id.step);
	return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": not saved, because on some node no "
	                "agent answers, or its --memory-max is too small (check with sheaf agent "
	                "RUN --status on each node)", save->id.step);
}

/* Takes an image for the save, gives it the size that the plan needs, and allocates the rest.
 * [collective] */
static int begin_memory(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	int64_t from = shf_now(run);
	int rc = shf_save_image_take(run, shf_save_images(save), save->id.flags, &save->copy.image,
	                             err);

	shf_save_blocked_add(run, save, SHF_IN_IMAGE, from);
	if (rc == 0 && save->id.flags & SHEAF_SAVE_NO_DISK && !shf_save_fits_memory(save))
		rc = shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": SHEAF_SAVE_NO_DISK %s",
		              save->id.step, save->plan->slotted
		              ? "cannot be combined with slices that are SHEAF_SLICE_IN_PLACE"
		              : "needs two staging buffers: raise opts.staging.buffers_max or "
		                      "opts.staging.bytes_max");
	if (rc == 0)
		shf_memory_tier_card_reuse(run, save->copy.image); /* clears its card, before any
		                                                    * rank copies into it (M1) */
	if (rc == 0)
		rc = shf_image_reserve(run, prepare(save, err), save->copy.image,
		                       save->plan->work.image_bytes, err);
	if (rc == 0 && save->id.flags & SHEAF_SAVE_NO_DISK) /* the agent may refuse memory of this
	                                                     * size */
		rc = shf_agree(&run->team, run->tier->keep < 0 ? no_agent(save, err) : 0, err);
	return rc;
}

/* Begins the long way: makes the plan and sets up the image, on all ranks together. [collective] */
static int set_up(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	int rc = shf_plan_get(run, save->state, &save->plan, err);

	/* A step without tensors is allowed, because the caller may want only its attached files.
	 * But if it is a mistake, a restart would load nothing, so it is logged. */
	if (rc == 0 && save->plan->layout.tensors_n == 0 && run->team.rank == 0)
		shf_log(run, 1, "%s: step %" PRId64 " will have no tensors: opts.ignore matches "
		        "all slices, or no slice was added", run->store.path, save->id.step);
	if (rc == 0)
		rc = begin_memory(save, err);
	if (rc == 0)
		shf_save_rounds_init(save);
	/* No rank may copy into the image of another rank that has not initialised its controls yet
	 * (shf_save_rounds_init). A save to disk agrees on this when it makes its stage; a
	 * memory-only save has no stage. */
	if (rc == 0 && save->id.flags & SHEAF_SAVE_NO_DISK)
		rc = shf_agree(&run->team, 0, err);
	return rc;
}

/* Does C0 and the copy, for a save that is copied inside begin. The result of this rank's part of
 * C0 (joined) goes into the first agreement of the rounds, which saves an agreement of its own.
 * [collective] */
static int stage_and_copy(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	int64_t from;
	int joined, rc = shf_save_stage_make(save, &joined, err);

	from = shf_now(run);
	if (rc == 0)
		rc = shf_save_rounds_run(save, joined, err);
	rc = shf_save_staged(save, rc, err);
	if (rc < 0)
		return rc;
	save->took.rounds_ns = (uint64_t)(shf_now(run) - from);
	atomic_store(&save->took.copy_ns, (uint64_t)(shf_now(run) - save->took.began));
	atomic_store(&save->took.phase, SHEAF_PHASE_WRITING);
	if (!save->copy.lazy)
		save->at.copy = SHF_ASKED;
	return 0;
}

/* Does the rest of begin, once the arguments are known to be valid and equal on all ranks. ready:
 * the plan and the image are set up on all ranks. [collective] */
static int begin_agreed(struct sheaf_save *save, bool ready, struct sheaf_error *err)
{
	int rc = ready ? 0 : set_up(save, err);

	if (rc < 0)
		return rc;
	if (!shf_save_is_async(save))
		return stage_and_copy(save, err);
	if (ready)
		return 0; /* commit makes the stage, so begin needs no more collectives */
	rc = shf_save_stage(save, err);
	return rc == 0 ? shf_save_copier_begin(save, err) : rc;
}

/* ---- begun with one agreement ---- */

/* Undoes what is_ready_to_begin has set up, so that set_up can start from the beginning. */
static void unprepare(struct sheaf_save *save)
{
	shf_save_copier_free(save->copy.lazy, true);
	shf_streams_release(&save->copy.streams);
	shf_save_unreserve(save, true);
	shf_plan_put(save->plan);
	save->copy.lazy = NULL;
	save->plan = NULL;
	save->copy.image = -1;
	save->at.disk = SHF_DISK_UNSTAGED;
	atomic_store(&save->took.to_send, 0);
}

/* Whether a lazy save can begin with one agreement. The longest stream must be known, because
 * finding it takes another all-reduce. No segment may lie in a slot (SHEAF_SLICE_IN_PLACE), because
 * slots are written during the copy, so their files must exist before the copy starts. */
static bool is_ready_behind(const struct shf_plan *plan)
{
	return plan->most_known && !plan->slotted;
}

/* Whether this rank has all that the save needs: a cached plan, and an image of its size that is
 * free here. If so, sets both up for the save. *of: the save that still has the image, or NULL.
 * [local] */
static bool is_ready_to_begin(struct sheaf_save *save, struct sheaf_save **of)
{
	struct sheaf_run *run = save->run;
	struct shf_plan *plan = shf_plan_cached(run, save->state);
	bool lazy = save->id.flags & SHEAF_SAVE_LAZY;
	struct sheaf_error unsaid; /* not reported here: set_up() reports the failure if it happens
	                            * again */

	if (!plan || (lazy && !is_ready_behind(plan)))
		return false;
	plan->refs++;
	save->plan = plan;
	if (save->id.flags & SHEAF_SAVE_NO_DISK && !shf_save_fits_memory(save)) {
		unprepare(save);
		return false;
	}
	save->copy.image = shf_save_image_choose(run, shf_save_images(save), of);
	if (shf_save_image_is_free(run, save->copy.image, *of, plan->work.image_bytes) &&
	    prepare(save, &unsaid) == 0 &&
	    (!lazy || shf_save_rounds_open(save, 0, &unsaid) == 0)) {
		/* A peer that returns from the agreement first may copy into this rank's image
		 * before this rank returns. So the card is cleared before the agreement (M1). */
		save->copy.hidden = shf_memory_tier_card_hide(run, save->copy.image);
		if (lazy && save->id.flags & SHEAF_SAVE_NO_DISK)
			save->at.disk = SHF_DISK_STAGED;
		shf_save_rounds_init(save);
		return true;
	}
	unprepare(save);
	return false;
}

/* Whether this is a memory-only save, and some rank has no agent that would keep it. */
static bool is_away(const struct sheaf_save *save)
{
	return save->id.flags & SHEAF_SAVE_NO_DISK && save->at.memory == SHF_MEMORY_NOT_KEPT;
}

/* One word for the loss and the rules of the averages: what ranks must agree on before they update
 * any. */
static uint64_t loss_and_rules(const struct sheaf_state *state, double loss)
{
	return shf_ema_loss_word(loss) ^ shf_emas_hash(state);
}

/* Returns the memory-only save that another save may wait for: the oldest one, if it was submitted.
 * One with SHEAF_SAVE_CHECK is committed only once the caller has come to all its gates, so the
 * caller must not wait for it. Equal on all ranks that have submitted the same saves. */
static struct sheaf_save *oldest_submitted(const struct sheaf_run *run)
{
	for (struct sheaf_save *s = run->saves.first; s; s = s->next)
		if (s->id.flags & SHEAF_SAVE_NO_DISK)
			return s->behind.submitted && !(s->id.flags & SHEAF_SAVE_CHECK) ? s : NULL;
	return NULL;
}

/* Makes the first agreement of a begin, which is the only one if all ranks are ready (*ready). rc:
 * the result of this rank's checks. [collective]
 *
 * The words of the call: 0 step, 1 flags, 2 loss and rules of averages, 3 hash of the plan, 4
 * image, 5 saves in flight, 6 this rank is not ready. If words 0 to 5 are equal on all ranks and
 * word 6 is 0, all ranks are ready. Word 7 is 0 if this rank has no agent; else it is the larger,
 * the fewer images the agent has room for. Words 8 and 9: this rank needs the image of a submitted
 * memory-only save, and there is none to wait for. *waits: begin again when that save is over. */
static int enter_begin_call(struct sheaf_run *run, struct sheaf_save *save, int rc, bool *ready,
                            bool *waits, double loss, struct sheaf_error *err)
{
	enum { STEP, FLAGS, LOSS, PLAN, IMAGE, SAVES, NOT_READY, ROOM, WAITS, NONE };
	struct sheaf_save *of = NULL;
	struct shf_call m = { .kind = SHF_CALL_BEGIN, .handle = run->life.made };
	bool here = rc == 0 && is_ready_to_begin(save, &of);
	int met;

	if (rc == 0) {
		m.x[STEP] = (uint64_t)save->id.step;
		/* When slices become ready concerns only the rank that has them. */
		m.x[FLAGS] = save->id.flags & ~SHEAF_SAVE_LATER;
		m.x[LOSS] = loss_and_rules(save->state, loss);
		m.x[PLAN] = here ? save->plan->hash : 0;
		m.x[IMAGE] = (uint64_t)(here ? save->copy.image : -1);
		m.x[SAVES] = shf_saves_hash(run);
		m.x[NOT_READY] = !here;
		m.x[ROOM] = shf_agent_limit(run);
		m.x[WAITS] = of && of->behind.submitted && of->id.flags & SHEAF_SAVE_NO_DISK &&
		             !(save->id.flags & SHEAF_SAVE_MAY_DROP);
		m.x[NONE] = !oldest_submitted(run);
	}
	met = shf_call_enter(&run->team, &m, rc, err);
	if (met == 0) {
		save->id.made = m.number;
		save->at.memory = m.lo[ROOM] ? SHF_MEMORY_TO_BE_KEPT : SHF_MEMORY_NOT_KEPT;
		shf_agent_set_limit(run, m.hi[ROOM]);
	}
	*waits = met == 0 && m.hi[WAITS] && !m.hi[NONE];
	*ready = met == 0 && m.hi[NOT_READY] == 0 && !is_away(save);
	for (unsigned i = STEP; i <= SAVES; i++)
		*ready = *ready && !shf_call_differs(&m, i);
	if (*ready)
		shf_memory_tier_card_reuse(run, save->copy.image);
	else if (here && met != SHEAF_ELOST)    /* after ELOST another rank may be copying into the
	                                         * image */
		shf_memory_tier_card_show(run, save->copy.image, save->copy.hidden);
	if (here && !*ready)
		unprepare(save);
	if (*ready && of)
		shf_save_image_leave(of);
	if (met < 0)
		return met;
	if (shf_call_differs(&m, STEP))
		return shf_fail(err, SHEAF_EINVAL, "ranks pass different steps to "
		                "sheaf_save_begin: %" PRIu64 " and %" PRIu64, m.lo[STEP],
		                m.hi[STEP]);
	if (shf_call_differs(&m, FLAGS))
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": ranks pass different flags "
		                "to sheaf_save_begin",
		                save->id.step);
	if (shf_call_differs(&m, LOSS))
		return shf_fail(err, SHEAF_EINVAL,
		                "step %" PRId64 ": ranks pass different save_opts.loss%s",
		                save->id.step, save->state->emas_n
		                ? ", or have averages with different rules (sheaf_state_ema)" : "");
	return 0;
}

/* Finishes the updates of averages that the copy inside begin has not made, even if that copy has
 * failed: an update is never left out. For a background copy, the copy threads or the end of the
 * save make the updates. */
static void finish_averages(struct sheaf_save *save)
{
	for (size_t s = 0; save->copy.due && !shf_save_is_async(save) && s < save->state->n; s++)
		shf_emas_update(save->state, save->copy.fresh, &save->copy.due[s], INT64_MAX);
}

/* Whether the call was wrong, so that it has done nothing: ranks find that before any of them
 * copies. */
static bool is_refusal(int rc)
{
	return rc == SHEAF_EINVAL || rc == SHEAF_EEXIST || rc == SHEAF_ELAYOUT;
}

/* Continues a begin after the first agreement. The step counts in the averages, even if the save
 * then fails, unless it is refused: the caller may give the number of another step. [collective] */
static int begin_after_agreement(struct sheaf_save *save, bool ready, struct sheaf_error *err)
{
	int rc;

	shf_save_averages_finish(save->state, save->copy.fresh);
	rc = is_away(save) ? no_agent(save, err) : begin_agreed(save, ready, err);
	if (is_refusal(rc)) {
		shf_save_copier_leave_averages(save);
		return rc;
	}
	shf_emas_count(save->state, save->id.step, save->copy.fresh);
	shf_emas_describe(save->state, save->copy.emas);
	save->copy.emas_n = save->state->emas_n;
	finish_averages(save);
	return rc;
}

int shf_save_begin_unless(struct sheaf_save **out, struct sheaf_run *run, int64_t step,
                          struct sheaf_state *state, const struct sheaf_save_opts *opts,
                          struct sheaf_save **of, struct sheaf_error *err)
{
	struct sheaf_save *save = NULL;
	uint64_t flags = 0;
	double loss = 0;
	int64_t from = shf_now(run);
	bool ready = false, waits = false;
	int rc = shf_emas_ready(state, err);

	if (rc == 0)
		rc = known_flags(opts, &flags, &loss, err);
	if (rc == 0)
		rc = may_begin(run, step, state, flags, err);
	if (rc == 0 && !(save = save_new(run, step, state, flags)))
		rc = shf_fail(err, SHEAF_ENOMEM, "step %" PRId64 ": no memory", step);
	if (rc == 0) {
		shf_emas_decide(state, run->store.run, step, loss, save->copy.fresh);
		rc = shf_emas_windows(state, save->copy.fresh, &save->copy.due, err);
	}
	rc = enter_begin_call(run, save, rc, &ready, &waits, loss, err);
	*of = rc == 0 && waits ? oldest_submitted(run) : NULL;
	if (*of) {
		shf_save_free(save);
		return SHEAF_EAGAIN;
	}
	if (save)
		save->took.began = from;
	if (rc == 0)
		rc = begin_after_agreement(save, ready, err);
	if (rc == 0 && ready && shf_save_is_async(save))
		shf_save_copier_start(save);
	shf_save_blocked_add(run, save, SHF_IN_BEGIN, from);
	shf_save_blocked_begun(run, rc);
	if (rc < 0)
		shf_save_blocked_write(run, save, step, rc);
	if (rc == 0) {
		state->fixed = true;
		list_add(run, save);
		*out = save;
		return 0;
	}
	shf_save_free(save);
	return rc;
}

int shf_save_begin(struct sheaf_save **out, struct sheaf_run *run, int64_t step,
                   struct sheaf_state *state, const struct sheaf_save_opts *opts,
                   struct sheaf_error *err)
{
	struct sheaf_save *of;

	return shf_save_begin_unless(out, run, step, state, opts, &of, err);
}
