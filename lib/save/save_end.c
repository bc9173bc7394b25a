/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a save: stops its threads and requests, closes or deletes its stage, updates the run, and
 * frees memory. */
#include "save_end.h"
#include "err.h"
#include "run_env.h"
#include "run_io.h"
#include "save.h"
#include "save_blocked.h"
#include "save_copier.h"
#include "save_status.h"
#include "save_image.h"
#include "save_memory.h"
#include "save_plan.h"
#include "sheaf-stat.h"
#include "state.h"
#include "unstaged.h"

void shf_save_unreserve(struct sheaf_save *save, bool ours)
{
	shf_free(save->disk.fds);
	shf_free(save->disk.directs);
	shf_free(save->copy.held);
	shf_free(save->copy.headers);
	shf_free(save->copy.blocks);
	shf_free(save->disk.ios);
	shf_free(save->disk.sizes);
	shf_free(save->disk.syncs.ios);
	shf_unstaged_free(save->copy.slots, ours);
	save->copy.slots = NULL;
	save->disk.syncs.ios = NULL;
	save->disk.fds = save->disk.directs = NULL;
	save->copy.held = save->copy.headers = NULL;
	save->copy.blocks = NULL;
	save->disk.ios = save->disk.sizes = NULL;
}

/* Removes the save from the run's list, if it is in the list. */
static void list_remove(struct sheaf_run *run, struct sheaf_save *save)
{
	struct sheaf_save **at = &run->saves.first, *before = NULL;

	while (*at && *at != save) {
		before = *at;
		at = &(*at)->next;
	}
	if (!*at)
		return;
	*at = save->next;
	if (run->saves.last == save)
		run->saves.last = before;
	run->saves.in_flight--;
	save->end.listed = false;
}

static void files_close(struct sheaf_save *save)
{
	const struct shf_sys *sys = save->run->sys;

	for (size_t f = 0; save->disk.fds && save->plan && f < save->plan->layout.files_n; f++) {
		if (save->disk.fds[f] >= 0)
			shf_sys_close(sys, save->disk.fds[f]);
		if (save->disk.directs && save->disk.directs[f])
			shf_sys_close(sys, save->disk.directs[f]);
	}
}

/* Stops the save and releases what only the process that began it may touch. The order matters:
 * first the threads that copy are stopped, then no write can be submitted any more, then the
 * submitted ones are waited for, and only then are files closed. */
static void let_go(struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;

	shf_save_copier_stop(save);
	if (shf_save_is_async(save) && save->at.copy == SHF_COPYING && save->copy.image >= 0)
		run->image.all[save->copy.image].dirty = true; /* other ranks may still be copying
		                                                * into it */
	shf_save_image_give_up(save); /* from here on no thread submits a write */
	(void)shf_save_drain(save, -1);
	(void)shf_io_drain(run, &save->disk.syncs.io, -1);
	if (save->at.disk >= SHF_DISK_PUBLISHING && run->team.rank == 0)
		(void)shf_save_publish_end(save, NULL); /* finished, not dropped: all ranks agreed
		                                         * to publish, and to finish takes no longer
		                                         * than to delete the stage */
	files_close(save);
	if (save->at.end != SHF_OVER && save->disk.stage.dir >= 0 && run->team.rank == 0)
		shf_stage_discard(&run->store, &save->disk.stage);
	else
		shf_stage_close(&run->store, &save->disk.stage);
}

void shf_save_settle(struct sheaf_save *save, int rc, const struct sheaf_error *err)
{
	/* In doubt or lost: the step may be published, so the stage must not be deleted. let_go()
	 * does not delete it if OVER is set. */
	if (rc == 0 || rc == SHEAF_EINDOUBT || rc == SHEAF_ELOST)
		save->at.end = SHF_OVER;
	if (rc < 0)
		shf_save_stick(save, rc, err); /* recorded before let_go() wakes callers at gates */
	let_go(save);
	for (size_t f = 0; f < save->plan->layout.files_n; f++) {
		save->disk.fds[f] = -1;
		save->disk.directs[f] = 0;
	}
	save->at.end = SHF_OVER;
	shf_save_publish_release(&save->publishing);
	if (rc < 0 && rc != SHEAF_EINDOUBT && rc != SHEAF_ELOST)
		shf_save_memory_remove(save);
	shf_save_blocked_end(save, rc == 0 ? (int64_t)shf_save_bytes(save) : -1);
	atomic_store(&save->took.phase, SHEAF_PHASE_FINISHED);
	list_remove(save->run, save);
}

/* Returns the code that the metrics have for an abandoned save. No call returns this code. */
static int left_code(const struct sheaf_save *save)
{
	return save->at.disk >= SHF_DISK_PUBLISHING ? SHEAF_EINDOUBT : SHEAF_EFAILED;
}

void shf_save_abandon(struct sheaf_run *run)
{
	for (struct sheaf_save *s = run->saves.first; s; s = s->next) {
		struct sheaf_error err;

		shf_save_memory_abandon(s);
		shf_save_stick(s, shf_fail(&err, SHEAF_EFAILED, "the run was closed before the "
		                           "save was committed"), &err);
		let_go(s);
		shf_free(s->disk.fds);
		s->disk.fds = NULL;
		s->at.end = SHF_OVER;
		atomic_store(&s->took.phase, SHEAF_PHASE_FINISHED);
		shf_save_blocked_end(s, -1);
		shf_save_blocked_write(run, s, s->id.step, left_code(s));
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
		shf_stage_leave(&save->run->store, &save->disk.stage);
		shf_save_copier_forget(save);
	}
	if (ours && save->end.listed && save->at.end != SHF_OVER) {
		shf_save_memory_abandon(save);
		if (save->at.disk >= SHF_DISK_PUBLISHING)
			shf_save_doubt(save);
		shf_save_blocked_end(save, -1);
		shf_save_blocked_write(save->run, save, save->id.step, left_code(save));
	}
	if (save->end.listed)
		list_remove(save->run, save);
	for (size_t i = 0; i < save->given.attached_n; i++) {
		shf_free(save->given.attached[i].name);
		shf_free(save->given.attached[i].bytes);
	}
	for (size_t i = 0; i < save->given.notes_n; i++) {
		shf_free(save->given.notes[i].key);
		shf_free(save->given.notes[i].value);
	}
	for (size_t i = 0; i < save->given.ranks_n; i++) {
		shf_free(save->given.ranks[i].stream);
		shf_free(save->given.ranks[i].bytes);
	}
	shf_free(save->given.attached);
	shf_free(save->given.notes);
	shf_free(save->given.ranks);
	shf_free(save->copy.due);
	shf_save_unreserve(save, ours);
	shf_streams_release(&save->copy.streams);
	shf_save_publish_release(&save->publishing);
	shf_save_copier_free(save->copy.lazy, ours);
	shf_plan_put(save->plan);
	shf_state_put(save->state);
	shf_run_put(save->run);
	pthread_mutex_destroy(&save->end.lock);
	pthread_mutex_destroy(&save->end.write_lock);
	shf_free(save);
}

void shf_save_doubt(struct sheaf_save *save)
{
	shf_save_memory_doubt(save);
	save->run->lineage.doubtful = save->id.step;
	for (struct sheaf_save *s = save->run->saves.first; s; s = s->next)
		if (s->id.step > save->id.step)
			(void)shf_save_fail(s, "it is not known whether the save before it is on "
			                    "disk", NULL);
}
