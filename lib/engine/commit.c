/* SPDX-License-Identifier: Apache-2.0 */
/* Committing a save: the steps C2 to C10 that ranks do together. What one rank does in the run
 * directory, and the invariants, stand in lib/store/publish.c.
 *
 *   C2  what must still travel; every write of every rank finished
 *   C3  each writer fsyncs each file through the descriptor it wrote with, or wrote the edges with
 *       where the rest went past the page cache
 *   C4  agreement; what was copied from memory is what was put into pages, tensor by tensor
 *   C5  index, attached files and sums written by their owners, fsynced; agreement
 *   C6-C9  rank 0 publishes
 *   C10 all learn the outcome
 *
 * A failure before C6 on any rank is its code on all, and the step never appears (I7).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "crc64.h"
#include "engine.h"
#include "err.h"
#include "index.h"
#include "lazy.h"
#include "save.h"
#include "smalls.h"
#include "version.h"

/* ---- C3 ---- */

static int fsync_submit(struct sheaf_save *save, struct shf_io *ios, struct sheaf_error *err)
{
	int rc = 0;

	for (size_t f = 0; f < save->plan->layout.files_n && rc == 0; f++) {
		if (save->fds[f] < 0)
			continue;
		ios[f] = (struct shf_io){ .op = SHF_IO_FSYNC, .fd = save->fds[f], .off = f };
		rc = shf_io_submit(save->run, &save->io, &ios[f]);
		if (rc < 0)
			rc = shf_fail_sys(err, -rc, "step %" PRId64 ": submitting an fsync",
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
			rc = shf_fail_sys(err, -closed, "step %" PRId64 ": closing %s", save->step,
			                  save->plan->layout.files[f].name);
	}
	return rc;
}

/* C3 [collective] */
static int fsync_files(struct sheaf_save *save, struct sheaf_error *err)
{
	size_t files_n = save->plan->layout.files_n;
	struct shf_io *ios = shf_zalloc(files_n, sizeof(*ios));
	int rc = ios ? fsync_submit(save, ios, err)
	             : shf_fail(err, SHEAF_ENOMEM, "no memory to sync %zu files", files_n);

	rc = shf_agree(&save->run->team, rc, err);
	if (rc == 0)
		rc = shf_save_drain_together(save, -1, err);
	(void)shf_save_drain(save, -1); /* ios is ours until all of them are back */
	if (rc == 0)
		rc = shf_agree(&save->run->team, close_files(save, err), err);
	shf_free(ios);
	return rc;
}

/* ---- C5, rank 0 ---- */

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int index_bytes(const struct shf_layout *l, const struct shf_lt_family *fam,
                       struct shf_buf *out, struct sheaf_error *err)
{
	struct shf_index_entry *e = shf_alloc(fam->tensors_n, sizeof(*e));

	if (!e)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the index of %s", fam->name);
	for (uint32_t i = 0; i < fam->tensors_n; i++) {
		const struct shf_lt_tensor *t = &l->tensors[fam->first_tensor + i];

		e[i] = (struct shf_index_entry){ t->name, base_name(l->files[t->file].name) };
	}
	int rc = shf_index_write(out, e, fam->tensors_n, fam->bytes);
	shf_free(e);
	if (rc < 0 || out->oom)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the index of %s", fam->name);
	return 0;
}

static int index_write(struct sheaf_save *save, struct shf_smalls *smalls,
                       const struct shf_lt_family *fam, struct shf_arena *arena,
                       struct shf_mf_file *record, struct sheaf_error *err)
{
	const struct shf_sys *sys = save->run->sys;
	struct shf_buf text = SHF_BUF_INIT;
	char name[128];
	bool top = strcmp(fam->dir, ".") == 0;
	int rc = index_bytes(&save->plan->layout, fam, &text, err), dir = save->stage.dir;

	snprintf(name, sizeof(name), "%s%s%s.safetensors.index.json", top ? "" : fam->dir,
	         top ? "" : "/", fam->name);
	if (rc == 0 && !top) {
		dir = sys->ops->open(sys->arg, save->stage.dir, fam->dir,
		                     SHF_O_DIR | SHF_O_NOFOLLOW, 0);
		if (dir < 0)
			rc = shf_fail_sys(err, -dir, "step %" PRId64 ": %s", save->step, fam->dir);
	}
	if (rc == 0)
		rc = shf_small_put(smalls, dir, base_name(name), text.data, text.len, err);
	if (!top && dir >= 0)
		sys->ops->close(sys->arg, dir);
	*record = (struct shf_mf_file){ shf_arena_strdup(arena, name, strlen(name)), text.len,
	                                shf_crc64(text.data, text.len) };
	if (rc == 0 && !record->name)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	shf_buf_release(&text);
	return rc;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct shf_mf_file *)a)->name, ((const struct shf_mf_file *)b)->name);
}

static const char *note_of(const struct shf_given *given, const char *key)
{
	for (size_t i = 0; i < given->notes_n; i++)
		if (strcmp(given->notes[i].key, key) == 0)
			return given->notes[i].value;
	return NULL;
}

static void fill_head(const struct sheaf_save *save, const struct shf_given *given,
                      struct shf_manifest *m)
{
	const struct sheaf_run *run = save->run;
	time_t now = (time_t)run->sys->ops->wall_s(run->sys->arg);
	struct tm tm;

	m->step = save->step;
	memcpy(m->session, save->session, sizeof(m->session));
	memcpy(m->run, run->store.run, sizeof(m->run));
	m->has_parent = run->parent >= 0;
	m->parent_step = run->parent;
	memcpy(m->parent_session, run->parent_session, sizeof(m->parent_session));
	memcpy(m->parent_run, run->parent_run, sizeof(m->parent_run));
	gmtime_r(&now, &tm);
	strftime(m->created, sizeof(m->created), "%Y-%m-%dT%H:%M:%SZ", &tm);
	m->version = SHEAF_VERSION_TEXT;
	m->commit = SHEAF_COMMIT_TEXT;
	m->compiler = SHEAF_COMPILER_TEXT;
	m->config = note_of(given, "config.digest");
	m->mesh = note_of(given, "mesh");
	m->no_dir_fsync = run->store.no_dir_fsync;
	m->file_bytes_max = run->opts.file_bytes_max;
	m->ranks = run->team.ranks;
	m->plan = save->plan->hash;
	m->notes = given->notes;
	m->notes_n = given->notes_n;
	m->emas = (struct shf_mf_ema *)(uintptr_t)save->emas;
	m->emas_n = save->emas_n;
}

static int fill_lists(const struct sheaf_save *save, const struct shf_sums_out *sums,
                      struct shf_arena *arena, struct shf_manifest *m, struct sheaf_error *err)
{
	const struct shf_layout *l = &save->plan->layout;

	m->families = shf_arena_alloc(arena, l->families_n + 1, sizeof(*m->families));
	m->files = shf_arena_alloc(arena, l->files_n + 1, sizeof(*m->files));
	m->tied = shf_arena_alloc(arena, l->tied_n + 1, sizeof(*m->tied));
	if (!m->families || !m->files || !m->tied)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	for (size_t i = 0; i < l->families_n; i++) {
		const struct shf_lt_family *f = &l->families[i];

		m->families[i] = (struct shf_mf_family){ f->name, f->dir, f->files_n, f->tensors_n,
		                                         f->bytes };
	}
	for (size_t i = 0; i < l->files_n; i++)
		m->files[i] = (struct shf_mf_file){ l->files[i].name, l->files[i].bytes,
		                                    sums->file_crc[i] };
	for (size_t i = 0; i < l->tied_n; i++)
		m->tied[i] = (struct shf_mf_tied){ l->families[l->tied[i].family].name,
		                                   l->tied[i].name, l->tied[i].to };
	m->families_n = l->families_n;
	m->files_n = l->files_n;
	m->tied_n = l->tied_n;
	m->sums = (struct shf_mf_file){ "sheaf.sums", sums->table.len, sums->crc };
	return 0;
}

/* Index files, sums and the manifest's content; then C6 to C9. [rank 0] */
static int publish(struct sheaf_save *save, const struct shf_given *given,
                   const struct shf_sums_out *sums, struct shf_arena *arena,
                   struct sheaf_error *err)
{
	const struct shf_layout *l = &save->plan->layout;
	struct shf_smalls smalls = { .run = save->run };
	struct shf_manifest m = { 0 };
	size_t n = given->files_n + l->families_n;
	int rc = fill_lists(save, sums, arena, &m, err);

	fill_head(save, given, &m);
	m.attached = shf_arena_alloc(arena, n + 1, sizeof(*m.attached));
	if (rc == 0 && !m.attached)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	for (size_t i = 0; rc == 0 && i < given->files_n; i++)
		m.attached[m.attached_n++] = given->files[i];
	for (size_t i = 0; rc == 0 && i < l->families_n; i++)
		rc = index_write(save, &smalls, &l->families[i], arena,
		                 &m.attached[m.attached_n++], err);
	if (rc == 0 && n)
		qsort(m.attached, n, sizeof(*m.attached), by_name);
	if (rc == 0)
		rc = shf_small_put(&smalls, save->stage.dir, "sheaf.sums", sums->table.data,
		                   sums->table.len, err);
	rc = shf_smalls_sync(&smalls, rc, err);
	if (rc == 0)
		rc = shf_stage_publish(&save->run->store, &save->stage, &m, err);
	return rc;
}

/* ---- agreement ---- */

static int refuse(const struct sheaf_save *save, struct sheaf_error *err)
{
	if (!shf_run_is_ours(save->run))
		return shf_fail(err, SHEAF_EINVAL, "the save was begun by another process");
	if (save->over)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": the save is over",
				save->step);
	if (save->run->first != save)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": step %" PRId64
		                " was begun before it and is not committed", save->step,
		                save->run->first ? save->run->first->step : -1);
	return 0;
}

int shf_save_failure(struct sheaf_save *save, struct sheaf_error *err)
{
	if (atomic_load(&save->failed)) {
		int rc;

		pthread_mutex_lock(&save->lock);
		rc = shf_fail(err, SHEAF_EFAILED, "step %" PRId64 ": %s", save->step, save->why);
		pthread_mutex_unlock(&save->lock);
		return rc;
	}
	return shf_save_rc(save, err);
}

/* C2: EAGAIN on all while some rank's bytes are not written. All wait as long as the least
 * patient rank. */
static int all_written(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	uint64_t inv = ~(uint64_t)timeout_ms;
	int wait, rc = shf_allreduce(team, &inv, 1, SHEAF_MAX, err);

	if (rc < 0)
		return rc;
	wait = (int)~inv;
	do {
		rc = shf_net_finish(save, wait == 0 ? UINT64_C(1) << 20 : 0, err);
	} while (rc == SHEAF_EAGAIN && wait != 0);
	if (rc == SHEAF_EAGAIN)
		return shf_fail(err, rc, "step %" PRId64 ": bytes must still travel", save->step);
	return rc == 0 ? shf_save_drain_together(save, wait, err) : rc;
}

static int finish(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	struct shf_arena arena = { 0 };
	struct shf_given given = { 0 };
	struct shf_sums_out sums = { 0 };
	int rc = fsync_files(save, err);

	if (rc == 0)
		rc = shf_sums_gather(save, &arena, &sums, err);
	if (rc == 0)
		rc = shf_attach_gather(save, &arena, &given, err);
	if (rc == 0)
		rc = shf_agree(
		    team, team->rank == 0 ? publish(save, &given, &sums, &arena, err) : 0, err);
	shf_buf_release(&sums.table);
	shf_arena_release(&arena);
	return rc;
}

/* Committed: the next save's parent is this one. */
static void succeed(struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;

	run->parent = save->step;
	memcpy(run->parent_session, save->session, sizeof(run->parent_session));
	run->parent_run[0] = '\0';
	run->loaded = run->doubtful = -1;
	if (run->team.rank == 0)
		shf_run_resumed(run);
	shf_log(run, 2, "%s: step %" PRId64 " committed, rank %d", run->store.path, save->step,
	        run->team.rank);
}

static uint64_t bytes_of(const struct sheaf_save *save)
{
	uint64_t bytes = 0;

	for (size_t f = 0; f < save->plan->layout.files_n; f++)
		bytes += save->plan->layout.files[f].bytes;
	return bytes;
}

/* Perhaps it is on disk: saves begun after it would name the wrong parent. */
static void doubt(const struct sheaf_save *save)
{
	save->run->doubtful = save->step;
	for (struct sheaf_save *s = save->run->first; s; s = s->next)
		(void)shf_save_fail(s, "the save before it is in doubt");
}

static int same_step(const struct sheaf_save *save, struct sheaf_error *err)
{
	uint64_t x = (uint64_t)save->step, same, lo, hi;
	int rc = shf_same(&save->run->team, &x, 1, &same, &lo, &hi, err);

	if (rc == 0 && !same)
		rc = shf_fail(err, SHEAF_EINVAL, "ranks commit different steps: %" PRIu64 " and %"
		              PRIu64, lo, hi);
	return rc;
}

int shf_save_commit(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	int64_t from = shf_now(run);
	int wait = timeout_ms < 0 ? run->opts.timeout_ms : timeout_ms;
	int rc = shf_agree(&run->team, refuse(save, err), err);

	if (rc < 0)
		return rc;
	rc = same_step(save, err);
	if (rc < 0)
		return rc;
	rc = shf_agree(&run->team, shf_save_failure(save, err), err);
	if (rc == 0 && save->lazy && !save->asked) {
		rc = shf_agree(&run->team, shf_lazy_unasked(save, err), err);
		if (rc == 0)
			rc = shf_agree(&run->team, shf_emas_copied(save, wait, err), err);
		save->commit_ns += rc < 0 ? (uint64_t)(shf_now(run) - from) : 0;
		if (rc < 0)
			return rc;
		save->asked = save->together = true; /* asked for is copied, on all ranks */
		if (shf_lazy_is_behind(save))
			(void)shf_lazy_finish(save, -1); /* what nobody can ask for */
	}
	if (rc == 0)
		rc = shf_save_stage(save, err);
	if (rc == 0)
		rc = all_written(save, wait, err);
	if (rc == 0)
		rc = shf_agree(&run->team, shf_save_failure(save, err), err);
	if (rc == SHEAF_EAGAIN) {
		save->commit_ns += (uint64_t)(shf_now(run) - from);
		return rc;
	}
	if (rc == 0)
		rc = finish(save, err);
	save->commit_ns += (uint64_t)(shf_now(run) - from);
	shf_save_settle(save, rc, err);
	if (rc == SHEAF_EINDOUBT)
		doubt(save);
	if (rc == 0) {
		succeed(save);
		if (run->opts.keep_last)
			shf_behind_next(run, save->step, save->session, bytes_of(save));
		shf_run_prune_behind(run);
	}
	return rc;
}
