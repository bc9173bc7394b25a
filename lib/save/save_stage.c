/* SPDX-License-Identifier: Apache-2.0 */
/* C0: makes the stage of a save. Finds the step that the save follows, checks the free space of the
 * disk, makes the directory and its lock, and opens the files that each rank writes. */
#include "save_stage.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "fresh_list.h"
#include "manifest_read.h"
#include "marks.h"
#include "memory_tier.h"
#include "prune_task.h"
#include "run_env.h"
#include "run_io.h"
#include "save.h"
#include "save_gates.h"
#include "save_status.h"
#include "scrub_run.h"
#include "work.h"

/* Fails with EEXIST, and says in the sentence how the step can be set aside. */
static int exists(struct sheaf_run *run, int64_t step, struct sheaf_error *err)
{
	int64_t older = shf_step_older(&run->store, step);

	if (older < 0)
		return shf_fail(err, SHEAF_EEXIST, "step %" PRId64 " exists in %s, and none before "
		                "it; save another step, or open a new run directory", step,
		                run->store.path);
	return shf_fail(err, SHEAF_EEXIST, "step %" PRId64 " exists in %s (sheaf rewind "
	                "%s@%" PRId64 " sets it aside; or save another step)", step,
	                run->store.path,
	                run->store.path, older);
}

/* Makes sure that no save follows the step with this number, because it is damaged and will be set
 * aside. Saves that would have followed it follow the newest step that is left. */
static void forget_parent(struct sheaf_run *run, struct sheaf_save *save, int64_t step)
{
	if (run->lineage.parent == step)
		run->lineage.parent = -1;
	if (save->id.parent == step)
		save->id.parent = -1;
	for (struct sheaf_save *s = run->saves.first; s; s = s->next)
		if (s->id.parent == step)
			s->id.parent = -1;
}

void shf_save_follow(struct sheaf_save *save)
{
	save->id.parent = save->run->lineage.parent;
	memcpy(save->id.parent_session, save->run->lineage.parent_session,
	       sizeof(save->id.parent_session));
	save->id.doubtful = save->run->lineage.doubtful;
}

void shf_run_set_parent(struct sheaf_run *run, int64_t step, const char session[33])
{
	run->lineage.parent = step;
	memcpy(run->lineage.parent_session, session, sizeof(run->lineage.parent_session));
	for (struct sheaf_save *s = run->saves.first; s; s = s->next) {
		if (s->id.step <= step)
			continue;
		s->id.parent = step;
		s->id.doubtful = -1;
		memcpy(s->id.parent_session, session, sizeof(s->id.parent_session));
	}
}

int shf_save_check_parent(const struct sheaf_save *save, const struct shf_newest *n,
                          struct sheaf_error *err)
{
	struct shf_store *store = &save->run->store;
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct sheaf_error own;
	bool there = n->known == save->id.parent &&
	             strcmp(n->session, save->id.parent_session) == 0;

	if (save->id.parent < 0 || there ||
	    !shf_store_is_aside(store, save->id.parent, save->id.parent_session))
		return 0;
	/* The step may have been copied back into the run directory since. */
	there = shf_store_manifest(store, save->id.parent, &m, &arena, &own) == 0 &&
	        strcmp(m.session, save->id.parent_session) == 0;
	shf_arena_release(&arena);
	return there ? 0
	     : shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " was loaded, but was set aside in %s "
	                "since; rewind the run to the step that the next save is to follow",
	                save->id.parent,
	                store->path);
}

/* Finds the step that this save follows. If a newer step than the save's exists, or one after the
 * parent, the save is refused until a rewind, because the new step would start a second branch. A
 * damaged step counts as existing; but if its manifest cannot be read, its session is unknown, so
 * no step can name it as parent. [rank 0] */
static int find_parent(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	const struct sheaf_save *before = shf_save_publish_current(run);
	int64_t step = save->id.step;
	struct shf_newest n;
	int rc = shf_store_newest(&run->store, step, &n, err);

	if (rc < 0)
		return rc;
	if (n.exists && !n.is_bad)
		return exists(run, step, err);
	if (n.newest > step)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is older than step %" PRId64
		                " in %s; call sheaf_run_rewind, or sheaf rewind, to save after an "
		                "older step", step, n.newest, run->store.path);
	if (before && n.newest == before->id.step) /* the parent is set when that publication is
	                                            * over */
		return 0;
	rc = shf_save_check_parent(save, &n, err);
	if (rc < 0)
		return rc;
	/* If the save has the number of a damaged step that it would follow, that step is set
	 * aside. Following it would leave all older steps on no branch. */
	if (n.exists)
		forget_parent(run, save, step);
	/* This handle published a step with an unknown outcome. If that step is on disk, it is this
	 * handle's own last step, so the save may follow it. */
	if (n.newest >= 0 && n.newest == n.known && n.newest == save->id.doubtful) {
		if (n.newest == run->lineage.doubtful)
			shf_run_set_parent(run, n.known, n.session);
		save->id.parent = -1;
	}
	if (save->id.parent >= 0 && n.newest > save->id.parent)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " was loaded, but %s has later "
		                "steps up to %" PRId64 "; call sheaf_run_rewind, or sheaf rewind, "
		                "to save after an older step", save->id.parent, run->store.path,
		                n.newest);
	if (n.known >= 0 && save->id.parent < 0) {
		save->id.parent = n.known;
		memcpy(save->id.parent_session, n.session, sizeof(save->id.parent_session));
	}
	return 0;
}

/* Checks that the disk has room for the tensor files of the step. If the disk does not say how much
 * room it has, the check passes. EIO, with ENOSPC in err->sys. */
static int room_check(struct sheaf_save *save, struct sheaf_error *err)
{
	const struct shf_layout *l = &save->plan->layout;
	const struct shf_sys *sys = save->run->sys;
	uint64_t need = 0, room;

	for (size_t f = 0; f < l->files_n; f++)
		need += l->files[f].bytes;
	if (shf_sys_free_bytes(sys, save->run->store.dir, &room) < 0 || room >= need)
		return 0;
	shf_fail(err, SHEAF_EIO, "step %" PRId64 ": needs %" PRIu64 " bytes, but %s has %" PRIu64
	         " free; free space there (pruned steps stay in .sheaf/trash for "
	         "opts.retention.grace_s seconds; with -1 they are deleted at once)",
	         save->id.step, need, save->run->store.path, room);
	err->sys = ENOSPC;
	return SHEAF_EIO;
}

/* Does rank 0's part of C0: all checks, then the stage directory with a folder for each family. */
static int stage_new(struct sheaf_save *save, struct sheaf_error *err)
{
	const struct shf_layout *l = &save->plan->layout;
	const char **folders = shf_zalloc(l->families_n + 1, sizeof(*folders));
	size_t n = 0;
	int rc;

	rc = folders ? find_parent(save, err)
	             : shf_fail(err, SHEAF_ENOMEM, "no memory for folders");
	for (size_t i = 0; rc == 0 && i < l->families_n; i++)
		if (strcmp(l->families[i].dir, "."))
			folders[n++] = l->families[i].dir;
	if (rc == 0)
		rc = room_check(save, err);
	if (rc == 0)
		rc = shf_stage_new(&save->run->store, &save->disk.stage, save->id.step, folders,
		                   err);
	shf_free(folders);
	return rc;
}

/* Opens a file or folder. If the process has run out of descriptors, closes the O_DIRECT
 * descriptors of all files, which are then written through the page cache, and tries again. */
static int open_for_save(struct sheaf_save *save, int dir, const char *name, int flags)
{
	const struct shf_sys *sys = save->run->sys;
	int rc = shf_sys_open(sys, dir, name, flags, 0666);

	if ((rc != -EMFILE && rc != -ENFILE) || save->disk.few_fds)
		return rc;
	save->disk.few_fds = true;
	for (size_t f = 0; f < save->plan->layout.files_n; f++) {
		if (save->disk.directs[f])
			shf_sys_close(sys, save->disk.directs[f]);
		save->disk.directs[f] = 0;
	}
	return flags & SHF_O_DIRECT ? rc : shf_sys_open(sys, dir, name, flags, 0666);
}

/* Sets the size of a file, which takes about a millisecond. For a background copy it is submitted
 * as a request, and only C2 waits for it. For a copy inside begin the size is set at once, because
 * the disk is fastest if a file has its size before it is written. */
static int file_size(struct sheaf_save *save, uint32_t f, struct sheaf_error *err)
{
	const struct shf_sys *sys = save->run->sys;
	struct shf_io *io = &save->disk.sizes[f];
	int rc;

	*io = (struct shf_io){ .op = SHF_IO_RESIZE, .fd = save->disk.fds[f], .off = f,
		.len = (size_t)save->plan->layout.files[f].bytes };
	rc = shf_save_is_async(save) ? shf_io_submit(save->run, &save->disk.io, io)
	                              : shf_sys_resize(sys, io->fd, io->len);
	return rc < 0 ? shf_submit_fail(err, rc, "step %" PRId64 ": %s: preallocating %zu bytes",
	                                save->id.step, save->plan->layout.files[f].name, io->len)
	              : 0;
}

/* Creates file f in the stage, opens it for writing (a large file a second time, with O_DIRECT),
 * and sets its size. */
static int file_open(struct sheaf_save *save, uint32_t f, struct sheaf_error *err)
{
	const struct shf_lt_file *file = &save->plan->layout.files[f];
	const struct shf_sys *sys = save->run->sys;
	const char *slash = strrchr(file->name, '/'), *name = slash ? slash + 1 : file->name;
	bool past = file->bytes >= SHF_DIRECT_MIN && !(save->run->opts.flags & SHEAF_RUN_BUFFERED);
	int dir = save->disk.stage.dir, direct = 0, rc;

	if (slash) {
		char folder[64];

		snprintf(folder, sizeof(folder), "%.*s", (int)(slash - file->name), file->name);
		dir = open_for_save(save, save->disk.stage.dir, folder, SHF_O_DIR | SHF_O_NOFOLLOW);
		if (dir < 0)
			return shf_stage_fail(err, -dir, "step %" PRId64 ": %s", save->id.step,
			                      folder);
	}
	rc = open_for_save(save, dir, name, SHF_O_WRITE | SHF_O_CREATE | SHF_O_NOFOLLOW);
	if (rc >= 0 && past && !save->disk.few_fds)
		direct = open_for_save(save, dir, name,
		                       SHF_O_WRITE | SHF_O_NOFOLLOW | SHF_O_DIRECT);
	if (slash)
		shf_sys_close(sys, dir);
	if (rc < 0)
		return shf_stage_fail(err, -rc, "step %" PRId64 ": %s", save->id.step, file->name);
	save->disk.fds[f] = rc;
	save->disk.directs[f] = direct > 0 ? direct : 0; /* 0 if O_DIRECT was refused: then the page
	                                                  * cache is used */
	return file_size(save, f, err);
}

/* Opens the files that this rank writes. Every writer of a file sets the same size. */
static int files_open(struct sheaf_save *save, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	int rc = 0;

	for (size_t i = 0; i < w->segs_n && rc == 0; i++)
		if (save->disk.fds[w->segs[i].file] < 0)
			rc = file_open(save, w->segs[i].file, err);
	return rc;
}

/* Takes the session of the save from the name of its stage, <step>-<32 hex>. */
static void take_session(struct sheaf_save *save, const char *stage)
{
	const char *dash = strrchr(stage, '-');

	snprintf(save->id.session, sizeof(save->id.session), "%.32s", always(dash) ? dash + 1 : "");
}

struct made {                   /* what rank 0 sends to all ranks about the stage that it has
                                 * made */
	char name[sizeof(((struct shf_stage *)0)->name)];
	bool rebase;                    /* the step that later steps in memory follow
	                                 * (tier->base_step) is not older than this save, so it is a
	                                 * damaged one that was set aside */
};

/* Makes the stage on rank 0, and sends its name to all ranks. [collective] */
static int make_once(struct sheaf_save *save, struct made *made, struct sheaf_error *err)
{
	int rc = save->run->team.rank == 0 ? stage_new(save, err) : 0;

	memcpy(made->name, save->disk.stage.name, sizeof(made->name));
	return shf_bcast(&save->run->team, rc, made, sizeof(*made), err);
}

/* Makes the stage; on a full disk once more after a prune. [collective] */
static int make(struct sheaf_save *save, struct made *made, struct sheaf_error *err)
{
	struct shf_memory_tier *tier = save->run->tier;
	int rc;

	made->rebase = tier->based && tier->base_step >= save->id.step;
	rc = make_once(save, made, err);
	/* Old steps are deleted after a successful commit. On a full disk no commit succeeds until
	 * some are deleted, so they are deleted here. */
	if (rc == SHEAF_EIO && err->sys == ENOSPC) {
		rc = shf_run_prune_now(save->run, err);
		if (rc == 0)
			rc = make_once(save, made, err);
	}
	/* A damaged step may have been set aside although the stage was not made. So what the steps
	 * in memory follow must be looked up again. */
	if (rc < 0 || made->rebase)
		tier->based = false;
	return rc;
}

/* Does this rank's part of C0: opens the stage, and the files that this rank will write. The lowest
 * rank of each node also makes the node's alive file there, which shows that the stage is in
 * use. */
static int join(struct sheaf_save *save, const struct made *made, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	int rc = 0;

	if (run->team.rank)
		rc = shf_stage_join(&run->store, &save->disk.stage, save->id.step, made->name, err);
	take_session(save, made->name);
	if (rc == 0 && run->place.node_first == run->team.rank)
		rc = shf_stage_alive(&run->store, &save->disk.stage, run->place.node, err);
	return rc == 0 ? files_open(save, err) : rc;
}

/* Sets whether the save is staged. The lock ensures that a thread that sees STAGED also sees the
 * descriptors of the files. */
static void set_staged(struct sheaf_save *save, bool staged)
{
	pthread_mutex_lock(&save->end.write_lock);
	save->at.disk = staged ? SHF_DISK_STAGED : SHF_DISK_UNSTAGED;
	pthread_mutex_unlock(&save->end.write_lock);
}

int shf_save_stage_make(struct sheaf_save *save, int *joined, struct sheaf_error *err)
{
	struct made made = { .rebase = false };
	int64_t from = shf_now(save->run);
	struct sheaf_error own;
	int rc = 0;

	err = err ? err : &own;
	if (!save->end.listed)
		shf_save_follow(save);
	*joined = 0;
	if (!(save->id.flags & SHEAF_SAVE_NO_DISK)) {
		shf_save_publish_finish(save->run); /* the time of a publication must not count as
		                                   * this stage's */
		from = shf_now(save->run);
		rc = make(save, &made, err);
		if (rc == 0)
			*joined = join(save, &made, err);
		if (rc == 0 && *joined == 0)
			shf_durations_add(&save->run->saves.pace.stage, shf_now(save->run) - from);
	}
	set_staged(save, rc == 0 && *joined == 0);
	return rc;
}

int shf_save_staged(struct sheaf_save *save, int rc, struct sheaf_error *err)
{
	if (rc < 0) {
		if (save->end.listed)
			rc = shf_save_failed_for_good(rc, err);
		set_staged(save, false);
		shf_save_stick(save, rc, err);
		return rc;
	}
	if (!(save->id.flags & SHEAF_SAVE_NO_DISK)) {
		shf_run_resumed(save->run);
		shf_scrub_run_forget(save->run, save->id.step); /* a damaged step of this number may
		                                              * have been set aside */
	}
	if (shf_save_is_async(save))
		(void)shf_save_gates_is_partial(save);
	return 0;
}

int shf_save_stage(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc, joined;

	if (save->at.disk >= SHF_DISK_STAGED)
		return 0;
	err = err ? err : &own;
	rc = shf_save_stage_make(save, &joined, err);
	/* This agreement is also made for a memory-only save, which has no files: no rank may copy
	 * before all ranks have set up their images. */
	if (rc == 0)
		rc = shf_agree(&save->run->team, joined, err);
	return shf_save_staged(save, rc, err);
}
