/* SPDX-License-Identifier: Apache-2.0 */
/* The publication on rank 0, part by part, in a commit or in a background task. */
#include "save_publish.h"
#include <inttypes.h>
#include "name_in_step.h"
#include "prune_task.h"
#include "publish.h"
#include "run_env.h"
#include "save.h"
#include "small_files.h"

/* The parts of the work, in order; publishing.turn is the next one. A background task does one part
 * in each turn, so it can be stopped between two parts. */
enum { SMALLS, PUBLISH, ENDED };

/* Writes an index file into the folder of its family. */
static int index_write(struct sheaf_save *save, struct shf_small_files *smalls,
                       const struct shf_mf_file *file, const struct shf_buf *text,
                       struct sheaf_error *err)
{
	const struct shf_sys *sys = save->run->sys;
	int top = save->disk.stage.dir, dir, rc;
	const char *base;

	dir = shf_in_step_enter(sys, top, file->name, SHF_O_NOFOLLOW, &base);
	if (dir < 0)
		return shf_stage_fail(err, -dir, "step %" PRId64 ": %.*s", save->id.step,
		                      (int)(base - file->name - 1), file->name);
	rc = shf_small_files_put(smalls, dir, base, text->data, text->len, err);
	shf_in_step_leave(sys, top, dir);
	return rc;
}

/* C5: writes the index files, the sums, the files of opaque bytes and, if rank 0 is to write them,
 * the attached files. Fsyncs all of them. */
static int smalls_write(struct sheaf_save *save, struct sheaf_error *err)
{
	const struct shf_save_publish *p = &save->publishing;
	struct shf_small_files smalls = { .run = save->run, .step = save->id.step };
	size_t first = p->by_zero ? 0 : p->given.attached_n;
	int rc = 0;

	for (size_t i = first; rc == 0 && i < p->given.files_n; i++)
		rc = shf_small_files_put(&smalls, save->disk.stage.dir, p->given.files[i].name,
		                         p->given.data[i], (size_t)p->given.files[i].bytes, err);
	for (size_t i = 0; rc == 0 && i < p->record.indexes_n; i++)
		rc = index_write(save, &smalls, &p->record.index_files[i], &p->record.indexes[i],
		                 err);
	if (rc == 0)
		rc = shf_small_files_put(&smalls, save->disk.stage.dir, "sheaf.sums",
		                         p->sums.table.data, p->sums.table.len, err);
	return shf_small_files_sync(&smalls, rc, err);
}

/* Does the next part. False: no part is left, or one has failed. [rank 0] */
static bool take_turn(void *arg)
{
	struct sheaf_save *save = arg;
	struct shf_save_publish *p = &save->publishing;

	if (p->turn == SMALLS)
		p->rc = smalls_write(save, &p->err);
	else if (p->turn == PUBLISH)
		p->rc = shf_stage_publish(&save->run->store, &save->disk.stage, &p->record.manifest,
		                          &p->err);
	p->turn = p->rc < 0 || p->turn == PUBLISH ? ENDED : p->turn + 1;
	if (p->turn != ENDED)
		return true;
	p->over_ns = shf_now(save->run);
	return false;
}

void shf_save_publish_begin(struct sheaf_save *save)
{
	struct shf_save_publish *p = &save->publishing;

	if (p->rc == 0)
		p->rc = shf_save_record_make(&p->record, save, &p->given, &p->sums, &p->arena,
		                             &p->err);
	p->turn = p->rc < 0 ? ENDED : SMALLS;
	p->over_ns = shf_now(save->run);
}

bool shf_save_publish_runs(struct sheaf_save *save)
{
	struct shf_save_publish *p = &save->publishing;

	if (p->behind.task)
		return shf_background_runs(&p->behind);
	if (p->turn == ENDED)
		return false;
	if (shf_prune_task_runs(save->run)) /* a prune runs in the background: the task starts after
	                                     * it */
		return true;
	return shf_background_start(&p->behind, save->run->sys, take_turn, save) >= 0;
}

/* Stops the task, and does the remaining parts on this thread. A prune in the background is
 * finished first. */
static void publish_rest(struct sheaf_save *save)
{
	struct shf_save_publish *p = &save->publishing;

	shf_background_stop(&p->behind);
	if (p->turn != ENDED)
		shf_prune_task_finish(save->run);
	while (p->turn != ENDED)
		(void)take_turn(save);
}

int shf_save_publish_end(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_save_publish *p = &save->publishing;

	publish_rest(save);
	if (p->rc < 0 && err)
		*err = p->err;
	return p->rc;
}

struct sheaf_save *shf_save_publish_current(const struct sheaf_run *run)
{
	for (struct sheaf_save *s = run->saves.first; s; s = s->next)
		if (s->at.disk >= SHF_DISK_PUBLISHING && s->at.end != SHF_OVER)
			return s;
	return NULL;
}

void shf_save_publish_finish(struct sheaf_run *run)
{
	struct sheaf_save *save = run->team.rank == 0 ? shf_save_publish_current(run) : NULL;

	if (save)
		publish_rest(save);
}

void shf_save_publish_release(struct shf_save_publish *p)
{
	shf_save_record_release(&p->record);
	shf_buf_release(&p->sums.table);
	shf_buf_release(&p->in);
	shf_buf_release(&p->owners);
	shf_arena_release(&p->arena);
	p->record = (struct shf_save_record){ 0 };
	p->given = (struct shf_given){ 0 };
}
