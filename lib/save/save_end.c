/* SPDX-License-Identifier: Apache-2.0 */
/* How a save ends: frees what it holds, closes its stage or deletes it, and tells the run. */
#include "save_end.h"
#include "err.h"
#include "run_env.h"
#include "run_io.h"
#include "save.h"
#include "save_blocked.h"
#include "save_copier.h"
#include "save_handle.h"
#include "save_image.h"
#include "save_memory.h"
#include "save_net.h"
#include "save_plan.h"
#include "state.h"
#include "unstaged.h"

void shf_save_unreserve(struct sheaf_save *save, bool ours)
{
	shf_free(save->fds);
	shf_free(save->directs);
	shf_free(save->held);
	shf_free(save->headers);
	shf_free(save->blocks);
	shf_free(save->ios);
	shf_free(save->sizes);
	shf_free(save->syncs.ios);
	shf_slots_free(save->slots, ours);
	save->slots = NULL;
	save->syncs.ios = NULL;
	save->fds = save->directs = NULL;
	save->held = save->headers = NULL;
	save->blocks = NULL;
	save->ios = save->sizes = NULL;
}

static void list_remove(struct sheaf_run *run, struct sheaf_save *save)
{
	struct sheaf_save **at = &run->first, *before = NULL;

	while (*at && *at != save) {
		before = *at;
		at = &(*at)->next;
	}
	if (!*at)
		return;
	*at = save->next;
	if (run->last == save)
		run->last = before;
	run->in_flight--;
	save->listed = false;
}

static void files_close(struct sheaf_save *save)
{
	const struct shf_sys *sys = save->run->sys;

	for (size_t f = 0; save->fds && save->plan && f < save->plan->layout.files_n; f++) {
		if (save->fds[f] >= 0)
			shf_sys_close(sys, save->fds[f]);
		if (save->directs && save->directs[f])
			shf_sys_close(sys, save->directs[f]);
	}
}

/* Release what only the process that began the save may touch. */
static void let_go(struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;

	shf_lazy_stop(save);
	if (shf_lazy_is_behind(save) && !save->together && save->image >= 0)
		run->images[save->image].dirty = true; /* others may still copy into it */
	shf_image_give(save); /* from here on nobody submits a write of it */
	(void)shf_save_drain(save, -1);
	(void)shf_io_drain(run, &save->syncs.io, -1);
	if (save->publishing.begun && run->team.rank == 0)
		(void)shf_publishing_end(save, NULL); /* all agreed to it, and it takes no longer
		                                       * than throwing the stage away */
	files_close(save);
	if (!save->over && save->stage.dir >= 0 && run->team.rank == 0)
		shf_stage_discard(&run->store, &save->stage);
	else
		shf_stage_close(&run->store, &save->stage);
}

void shf_save_settle(struct sheaf_save *save, int rc, const struct sheaf_error *err)
{
	/* In doubt or lost: perhaps it was published, and then it is not ours to delete. */
	save->over = rc == 0 || rc == SHEAF_EINDOUBT || rc == SHEAF_ELOST;
	if (rc < 0)
		shf_save_stick(save, rc, err); /* before who waits at a gate is let go */
	let_go(save);
	for (size_t f = 0; f < save->plan->layout.files_n; f++) {
		save->fds[f] = -1;
		save->directs[f] = 0;
	}
	save->over = true;
	shf_publishing_release(&save->publishing);
	if (rc < 0 && rc != SHEAF_EINDOUBT && rc != SHEAF_ELOST)
		shf_tier_unsaved(save);
	shf_stall_over(save, rc == 0 ? (int64_t)shf_save_bytes(save) : -1);
	atomic_store(&save->phase, 3);
	list_remove(save->run, save);
}

/* What became of one that was left: nobody else hears of it. */
static int left_code(const struct sheaf_save *save)
{
	return save->publishing.begun ? SHEAF_EINDOUBT : SHEAF_EFAILED;
}

void shf_save_abandon(struct sheaf_run *run)
{
	for (struct sheaf_save *s = run->first; s; s = s->next) {
		struct sheaf_error err;

		shf_tier_left(s);
		shf_save_stick(s, shf_fail(&err, SHEAF_EFAILED, "the run was closed"), &err);
		let_go(s);
		shf_free(s->fds);
		s->fds = NULL;
		s->over = true;
		shf_stall_over(s, -1);
		shf_stall_tell(run, s, s->step, left_code(s));
	}
}

void shf_save_free(struct sheaf_save *save)
{
	if (!save)
		return;
	bool ours = shf_run_is_ours(save->run);

	if (ours) {
		let_go(save);
	} else {
		files_close(save);
		shf_stage_leave(&save->run->store, &save->stage);
		shf_lazy_forget(save);
	}
	if (ours && save->listed && !save->over) {
		shf_tier_left(save);
		if (save->publishing.begun)
			shf_save_doubt(save);
		shf_stall_over(save, -1);
		shf_stall_tell(save->run, save, save->step, left_code(save));
	}
	if (save->listed)
		list_remove(save->run, save);
	for (size_t i = 0; i < save->attached_n; i++) {
		shf_free(save->attached[i].name);
		shf_free(save->attached[i].bytes);
	}
	for (size_t i = 0; i < save->notes_n; i++) {
		shf_free(save->notes[i].key);
		shf_free(save->notes[i].value);
	}
	shf_free(save->attached);
	shf_free(save->notes);
	shf_free(save->due);
	shf_save_unreserve(save, ours);
	shf_net_release(&save->net);
	shf_publishing_release(&save->publishing);
	shf_lazy_free(save->lazy, ours);
	shf_plan_put(save->plan);
	shf_state_put(save->state);
	shf_run_put(save->run);
	pthread_mutex_destroy(&save->lock);
	pthread_mutex_destroy(&save->looking);
	shf_free(save);
}

void shf_save_doubt(struct sheaf_save *save)
{
	shf_tier_doubt(save);
	save->run->doubtful = save->step;
	for (struct sheaf_save *s = save->run->first; s; s = s->next)
		if (s->step > save->step)
			(void)shf_save_fail(s, "the save before it is in doubt");
}
