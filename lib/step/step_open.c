/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a step: of a run by number, or any directory or file by path. Only rank 0 finds out what
 * it is and sends the result to all ranks, so that all open the same thing even if the directory
 * changes meanwhile. Every rank then opens the directory for itself.
 *
 * Nothing here assumes that the directory stays: a prune by another process may remove it at any
 * moment. Once a lease is taken (lease.h), the step stays. Until then, a step that vanishes is EIO
 * with sys ENOENT ("has just gone"), and open_from_disk() tries again. It is not SHEAF_ENOENT,
 * because a training script takes that code to mean that there is no checkpoint and starts from
 * scratch. */
#include "step_open.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "catalog.h"
#include "err.h"
#include "foreign.h"
#include "hub_cache.h"
#include "latest_search.h"
#include "lease.h"
#include "memory_choose.h"
#include "memory_steps.h"
#include "memory_tier.h"
#include "natural.h"
#include "nodes.h"
#include "opts.h"
#include "place.h"
#include "prune_task.h"
#include "run_env.h"
#include "step.h"
#include "step_files.h"
#include "step_foreign.h"
#include "step_lookup.h"

#define LOOKS 8                 /* attempts, if the latest step vanishes after it was listed */
#define SEEN_MS 10000           /* how long to retry until all ranks see what rank 0 found */

void shf_step_get(struct sheaf_checkpoint *step)
{
	step->refs++;
}

/* A forked child closes its descriptors only: the lease belongs to the parent, and the memory of
 * the view is not mapped in the child. */
void shf_step_put(struct sheaf_checkpoint *step)
{
	const struct shf_sys *sys;
	bool ours;

	if (!step || --step->refs > 0)
		return;
	sys = step->run->sys;
	ours = shf_sys_pid(sys) == step->pid;
	for (size_t f = 0; step->fds && f < step->layout.files_n; f++)
		if (step->fds[f] >= 0)
			shf_sys_close(sys, step->fds[f]);
	shf_step_direct_close(step, (uint32_t)step->layout.files_n);
	/* Only the process that opened the step unlocks: the lock is shared with forked children,
	 * which must not release it for the parent. */
	if (step->lease >= 0 && ours)
		(void)shf_sys_unlock(sys, step->lease);
	if (step->lease >= 0)
		shf_sys_close(sys, step->lease);
	if (step->dir >= 0)
		shf_sys_close(sys, step->dir);
	shf_step_lookup_release(step);
	for (size_t i = 0; i < step->files_n; i++) {
		shf_free(step->files[i].name);
		shf_free(step->files[i].bytes);
	}
	shf_free(step->files);
	shf_free(step->fds);
	shf_free(step->direct);
	shf_free(step->file_bytes);
	shf_free(step->seen);
	shf_free(step->sums_bytes);
	shf_free(step->peeked);
	shf_buf_release(&step->passed);
	shf_free(step->path);
	shf_layout_release(&step->layout);
	shf_arena_release(&step->arena);
	shf_run_put(step->run);
	if (ours)
		shf_view_free(step->view);      /* last, because run->sys is part of the view */
	shf_free(step);
}

/* Allocates an empty step that holds a reference to the run. NULL: no memory. */
static struct sheaf_checkpoint *step_new(struct sheaf_run *run)
{
	struct sheaf_checkpoint *step = shf_zalloc(1, sizeof(*step));

	if (!step)
		return NULL;
	step->run = run;
	step->refs = 1;
	step->made = run->life.made;
	shf_run_get(run);
	step->pid = shf_sys_pid(run->sys);
	step->number = -1;
	step->rewinds = run->lineage.rewinds;
	step->dir = step->lease = step->peek.fd = -1;
	step->format = "";
	return step;
}

/* ---- tables of families and files ---- */

/* Orders by family, then by natural order of the name, as struct shf_layout wants its ties. */
static int tied_order(const void *a, const void *b)
{
	const struct shf_lt_tied *x = a, *y = b;

	if (x->family != y->family)
		return x->family < y->family ? -1 : 1;
	return shf_natural(x->name, y->name);
}

/* Fills the layout with the families, files and ties of the manifest. Sizes and tensors are filled
 * in later, from the headers. */
static int files_of_manifest(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	const struct shf_manifest *m = &step->manifest;
	struct shf_layout *l = &step->layout;
	uint64_t total = 0, at = 0;

	for (size_t i = 0; i < m->families_n; i++)
		total += m->families[i].files;
	if (!always(total == m->files_n)) /* shf_manifest_decode has checked it */
		return shf_fail(err, SHEAF_EBUG, "%s/sheaf.json: says %" PRIu64 " files, but lists "
		                "%zu",
				step->path, total, m->files_n);
	l->families = shf_arena_alloc(&l->arena, m->families_n + 1, sizeof(*l->families));
	l->files = shf_arena_alloc(&l->arena, m->files_n + 1, sizeof(*l->files));
	if (!l->families || !l->files)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu files", m->files_n);
	for (size_t i = 0; i < m->families_n; i++) {
		l->families[i] = (struct shf_lt_family){ m->families[i].name, m->families[i].dir,
			(uint32_t)at, (uint32_t)m->families[i].files, 0, 0, 0 };
		for (uint64_t f = 0; f < m->families[i].files; f++, at++)
			l->files[at] = (struct shf_lt_file){ .name = m->files[at].name,
			                                     .family = (uint32_t)i };
	}
	l->families_n = m->families_n;
	l->files_n = m->files_n;
	l->tied = shf_arena_alloc(&l->arena, m->tied_n + 1, sizeof(*l->tied));
	if (!l->tied)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for ties");
	for (size_t i = 0; i < m->tied_n; i++) {
		int64_t fam = shf_layout_family(l, m->tied[i].family);

		if (fam < 0)
			return shf_fail(err, SHEAF_ECORRUPT,
					"%s/sheaf.json: %s/%s is tied in a family that it does not "
					"have",
					step->path, m->tied[i].family, m->tied[i].name);
		l->tied[l->tied_n++] = (struct shf_lt_tied){ (uint32_t)fam, m->tied[i].name,
		                                             m->tied[i].to };
	}
	if (l->tied_n)
		qsort(l->tied, l->tied_n, sizeof(*l->tied), tied_order);
	step->plain = m->attached;
	step->plain_n = m->attached_n;
	return 0;
}

/* Fills the layout of a foreign step: one family, "model", with all files in it. */
static int files_of_found(struct sheaf_checkpoint *step, const struct shf_step_found *found,
                          struct sheaf_error *err)
{
	struct shf_layout *l = &step->layout;

	if (found->foreign)
		return shf_step_foreign_files(step, err);
	l->families = shf_arena_alloc(&l->arena, 1, sizeof(*l->families));
	l->files = shf_arena_alloc(&l->arena, found->files_n + 1, sizeof(*l->files));
	if (!l->families || !l->files)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu files", found->files_n);
	l->families[0] =
	    (struct shf_lt_family){ "model", ".", 0, (uint32_t)found->files_n, 0, 0, 0 };
	l->families_n = 1;
	l->files_n = found->files_n;
	for (size_t i = 0; i < found->files_n; i++)
		l->files[i] = (struct shf_lt_file){ .name = found->files[i] };
	step->plain = found->plain;
	step->plain_n = found->plain_n;
	return 0;
}

/* Allocates the tables of descriptors and sizes by file, with nothing open or known yet. */
static int make_file_tables(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	size_t n = step->layout.files_n;

	step->fds = shf_alloc(n, sizeof(*step->fds));
	step->direct = shf_alloc(n, sizeof(*step->direct));
	step->file_bytes = shf_alloc(n, sizeof(*step->file_bytes));
	step->seen = shf_zalloc(n, sizeof(*step->seen));
	for (size_t f = 0; f < n; f++) {
		if (step->fds)
			step->fds[f] = -1;
		if (step->direct)
			step->direct[f] = -1;
		if (step->file_bytes)
			step->file_bytes[f] = UINT64_MAX;
	}
	if (!step->fds || !step->direct || !step->file_bytes || !step->seen)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu files", n);
	return 0;
}

/* ---- sums: rank 0 reads the table, all check it ---- */

/* Opens sheaf.sums. A missing table is damage, and so is a symbolic link in its place, because the
 * step was published with a plain file. [rank 0] */
static int sums_open_file(struct sheaf_checkpoint *step)
{
	const struct shf_sys *sys = step->run->sys;
	int fd = shf_sys_open(sys, step->dir, "sheaf.sums", shf_step_follow(step), 0);

	if (fd == -ENOENT || fd == -ELOOP)
		return shf_fail(&step->sums_err, SHEAF_ECORRUPT, "%s/sheaf.sums: %s", step->path,
		                fd == -ENOENT ? "missing" : "missing: a symbolic link has its "
		                        "name");
	return fd < 0 ? shf_fail_sys(&step->sums_err, -fd, "%s/sheaf.sums", step->path) : fd;
}

/* Reads the whole table. Its size is compared with the manifest's before memory is allocated, so
 * that a damaged table cannot make a job allocate terabytes. A failure counts as a fault of the
 * step, so its message goes to sums_err. [rank 0] */
static int sums_read(struct sheaf_checkpoint *step, struct shf_buf *out)
{
	const struct shf_sys *sys = step->run->sys;
	uint64_t want = step->manifest.sums.bytes;
	struct shf_stat st;
	int64_t got = 0;
	int fd = sums_open_file(step), rc = fd;

	if (fd < 0)
		return fd;
	rc = shf_sys_fstat(sys, fd, &st);
	if (rc < 0)
		rc = shf_fail_sys(&step->sums_err, -rc, "%s/sheaf.sums", step->path);
	else if (st.type != SHF_T_FILE)
		rc = shf_fail(&step->sums_err, SHEAF_ECORRUPT, "%s/sheaf.sums: missing: its name "
		              "belongs to something that is not a regular file", step->path);
	else if (st.bytes != want)
		rc = shf_fail(&step->sums_err, SHEAF_ECORRUPT, "%s/sheaf.sums: %" PRIu64 " bytes, "
		              "the manifest says %" PRIu64, step->path, st.bytes, want);
	else
		rc = shf_step_sums_fit(step, fd, &step->sums_err);
	if (rc == 0 && !shf_buf_extend(out, (size_t)want))
		rc = shf_fail(&step->sums_err, SHEAF_ENOMEM, "no memory for %" PRIu64 " bytes of "
		              "sums", want);
	if (rc == 0)
		got = shf_sys_pread(sys, fd, out->data, (size_t)want, 0);
	if (got < 0)
		rc = shf_fail_sys(&step->sums_err, (int)-got, "%s/sheaf.sums", step->path);
	else if (rc == 0 && (uint64_t)got != want)
		rc = shf_fail(&step->sums_err, SHEAF_ECORRUPT, "%s/sheaf.sums: shorter than its "
		              "header says", step->path);
	shf_sys_close(sys, fd);
	return rc;
}

/* Checks that the table describes the files that the manifest names, with the same sizes. */
static int sums_files_match(struct sheaf_checkpoint *step)
{
	const struct shf_manifest *m = &step->manifest;

	if (step->sums.head.files_n != m->files_n)
		return shf_fail(&step->sums_err, SHEAF_ECORRUPT, "%s/sheaf.sums: %" PRIu64
		                " files, the manifest has %zu", step->path,
		                step->sums.head.files_n, m->files_n);
	for (size_t f = 0; f < m->files_n; f++)
		if (shf_sums_file(&step->sums, f).bytes != m->files[f].bytes)
			return shf_fail(&step->sums_err, SHEAF_ECORRUPT, "%s/sheaf.sums: %s has "
			                "another size in the manifest", step->path,
			                m->files[f].name);
	return 0;
}

/* Rank 0 reads the table and broadcasts it. Every rank checks its own copy, because it will rely on
 * it. The return value is a failure of the group; a fault of the table goes to sums_rc and
 * sums_err. [collective] */
static int sums_open(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	struct shf_team *team = &step->run->team;
	struct { int rc, sys; char msg[500]; } told = { 0 };
	struct shf_buf b = SHF_BUF_INIT;
	char where[600];
	int rc;

	if (team->rank == 0) {
		told.rc = sums_read(step, &b);
		told.sys = step->sums_err.sys;
		/* Code and message are broadcast, so that all ranks report the same error. */
		memcpy(told.msg, step->sums_err.msg, sizeof(told.msg));
	}
	rc = shf_bcast(team, 0, &told, sizeof(told), err);
	if (rc == 0 && told.rc == 0)
		rc = shf_bcast_buf(team, 0, &b, err);
	if (rc == 0 && told.rc < 0) {
		shf_fail(&step->sums_err, told.rc, "%s", told.msg);
		step->sums_err.sys = told.sys;
		step->sums_rc = told.rc;
	} else if (rc == 0) {
		snprintf(where, sizeof(where), "%.500s/sheaf.sums", step->path);
		step->sums_rc = shf_sums_open(&step->sums, b.data, b.len, step->manifest.sums.crc,
		                              where, &step->sums_err);
		if (step->sums_rc == 0)
			step->sums_rc = sums_files_match(step);
		step->sums_bytes = b.data;
		b = (struct shf_buf)SHF_BUF_INIT;
	}
	shf_buf_release(&b);
	return rc;
}

/* ---- opening a step of either kind ---- */

/* Takes a lease on the step, so that no prune deletes it while it is open. EIO: the directory has
 * gone, or another one has its name. The caller then looks for the step again, because another save
 * of the same number may be there. */
static int lease_take(struct sheaf_checkpoint *step, const struct shf_step_found *found,
                      struct sheaf_error *err)
{
	struct shf_leased of = { step->dir, found->in_run ? step->run->store.dir : SHF_CWD,
		found->in_run ? found->name : found->dir, step->run->life.foreign };

	/* A step in memory has no name on disk that could be taken away. */
	if (step->view)
		of.name = NULL;
	return shf_lease_take(step->run->sys, &of, &step->lease) < 0
	       ? shf_fail_io(err, ENOENT, "%s: was deleted or moved while it was being opened",
	                     step->path) : 0;
}

/* Warns if an index file is missing. That is no damage: this library does not read index files,
 * other programs do. [rank 0] */
static void warn_lost_index(const struct sheaf_checkpoint *step)
{
	const struct shf_sys *sys = step->run->sys;
	const struct shf_manifest *m = &step->manifest;

	for (size_t i = 0; i < m->attached_n; i++) {
		const char *name = m->attached[i].name;
		size_t n = strlen(name);
		struct shf_stat st;

		if (n < 11 || strcmp(name + n - 11, ".index.json"))
			continue;
		if (!strchr(name, '/') &&
		    shf_sys_stat(sys, step->dir, name, true, &st) == -ENOENT)
			shf_log(step->run, 1, "%s/%s: the index is missing; rebuilt in memory from "
			        "the file headers", step->path, name);
	}
}

/* Opens a step that has a manifest. A single process reads only the head of the table at first
 * (step_lookup.c), because it may want only one tensor. [collective] */
static int open_sound(struct sheaf_checkpoint *step, const struct shf_step_found *found,
                      struct sheaf_error *err)
{
	const struct shf_buf *raw = &found->manifest;
	struct shf_team *team = &step->run->team;
	char where[600];
	int rc;

	snprintf(where, sizeof(where), "%.500s/sheaf.json", step->path);
	step->sound = true;
	step->format = "sheaf";
	rc = shf_manifest_decode(&step->manifest, &step->arena, raw->data, raw->len, where, err);
	if (rc == 0)
		rc = files_of_manifest(step, err);
	if (rc == 0)
		rc = make_file_tables(step, err);
	if (rc == 0)
		rc = lease_take(step, found, err);
	/* The lease is taken before the long reads below, so that no prune removes the step under
	 * them. */
	rc = shf_agree(team, rc, err);
	if (rc == 0) {
		step->number = step->manifest.step;
		if (team->rank == 0)
			warn_lost_index(step);
		/* A load by several ranks usually wants most of the step, so they read the whole
		 * table at once. */
		if (team->ranks == 1 && shf_step_lookup_init(step))
			return 0;
		rc = sums_open(step, err);
	}
	return rc == 0 ? shf_catalog_read(step, NULL, err) : rc;
}

/* The old copy of the table is kept in `peeked`, because callers may hold names that point into
 * it. */
int shf_step_wake(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	if (!step->asleep)
		return 0;
	err = err ? err : &own;
	shf_step_lookup_release(step);
	step->asleep = false;
	step->peeked = step->sums_bytes;
	step->sums_bytes = NULL;
	step->sums = (struct shf_sums){ 0 };
	rc = sums_open(step, err);
	if (always(rc == 0)) /* a group of one rank cannot fail */
		rc = shf_catalog_read(step, NULL, err);
	if (rc < 0) {
		step->cat_rc = rc;
		step->cat_err = *err;
	}
	return rc;
}

/* Opens a step without a manifest, by its headers and its index. [collective] */
static int open_foreign(struct sheaf_checkpoint *step, const struct shf_step_found *found,
                        struct sheaf_error *err)
{
	int rc = files_of_found(step, found, err);

	step->format = found->foreign ? step->foreign->format->name
	             : found->single ? "safetensors" : "hf";
	if (rc == 0)
		rc = make_file_tables(step, err);
	rc = shf_agree(&step->run->team, rc, err);
	return rc == 0 ? shf_step_foreign_catalog(step, found, err) : rc;
}

/* Opens the directory that rank 0 found. If this rank does not see it, the code is EIO and never
 * ENOENT, which a training script takes to mean that there is no checkpoint. */
static int open_found(struct sheaf_checkpoint *step, const struct shf_step_found *found,
                      struct sheaf_error *err)
{
	const struct shf_sys *sys = step->run->sys;
	int dir = shf_sys_open(sys, found->in_run ? step->run->store.dir : SHF_CWD,
			       found->in_run ? found->name : found->dir,
	                         SHF_O_DIR | shf_step_follow(step), 0);

	if (dir >= 0)
		step->dir = dir;
	if (dir == -ENOENT || dir == -ESTALE)
		return shf_fail_io(err, -dir, "%s: rank 0 has opened it, but this rank does not "
		                   "see it; check that all nodes mount the same file system there",
		                   step->path);
	if (dir < 0)
		return shf_fail_io(err, -dir, "%s", step->path);
	if (step->run->team.rank == 0 && !shf_step_find_is_same(found, sys, dir))
		return shf_fail_io(err, ENOENT, "%s: was deleted or moved while it was being "
		                   "opened", step->path);
	return 0;
}

/* Opens what rank 0 found and encoded in `told`. rc: on rank 0 the result of its search, on other
 * ranks 0. After each part that may fail on a single rank the ranks agree, so that the step is open
 * on all ranks or on none. [collective] */
static int open_encoded(struct sheaf_checkpoint *step, struct shf_buf *told, int rc,
                        struct sheaf_error *err)
{
	struct shf_team *team = &step->run->team;
	struct shf_step_found found = { 0 };

	rc = shf_agree(team, rc, err);
	if (rc == 0)
		rc = shf_bcast_buf(team, 0, told, err);
	if (rc == 0) {
		rc = shf_step_find_decode(&found, &step->arena, told, err);
		if (rc == 0) {
			step->path = shf_strdup(found.path);
			if (!step->path)
				rc = shf_fail(err, SHEAF_ENOMEM, "no memory for a path");
		}
		if (rc == 0 && found.foreign && !step->foreign)
			rc = shf_step_foreign_show(step, err);
		if (rc == 0)
			rc = open_found(step, &found, err);
		rc = shf_agree(team, rc, err);
	}
	if (rc == 0 && found.foreign)
		rc = shf_step_foreign_compare(step, err);
	if (rc == 0 && found.sound)
		rc = open_sound(step, &found, err);
	else if (rc == 0)
		rc = open_foreign(step, &found, err);
	/* A directory that was renamed by hand is refused, because the next save would continue
	 * from the wrong number. */
	if (rc == 0 && found.in_run && step->manifest.step != found.step)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s: its manifest is that of step %" PRId64,
			      step->path, step->manifest.step);
	if (rc == 0 && found.in_run && step->run->store.run[0] &&
	    strcmp(step->manifest.run, step->run->store.run))
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s: its manifest is that of another run (%s; "
		              "%s/.sheaf/run says %s)", step->path, step->manifest.run,
		              step->run->store.path, step->run->store.run);
	/* The checks above may differ by rank, because each rank read .sheaf/run for itself when it
	 * opened the run. */
	return shf_agree(&step->run->team, rc, err);
}

/* Opens what rank 0 has found on a bare run, and releases the caller's references to the run and to
 * *told; the step holds its own. rc: whether this rank has a step, and rank 0 has found it.
 * [collective] */
static int open_bare(struct sheaf_checkpoint **out, struct sheaf_checkpoint *step,
                     struct sheaf_run *bare, struct shf_buf *told, int rc, struct sheaf_error *err)
{
	/* Agrees before open_encoded(), because there may be no step on this rank for want of
	 * memory. */
	rc = shf_agree(&bare->team, rc, err);
	if (rc == 0)
		rc = open_encoded(step, told, rc, err);
	shf_buf_release(told);
	shf_run_put(bare);
	if (rc == 0)
		*out = step;
	else
		shf_step_put(step);
	return rc;
}

/* The step gets a bare run of its own, whose sys is the view's: it shows the step as a
 * directory. */
int shf_step_open_view(struct sheaf_checkpoint **out, struct shf_view *view,
                       struct sheaf_group *group,
                       const struct shf_nodes *place, const struct shf_opts *opts,
                       const char *run, const char *name, struct sheaf_error *err)
{
	struct sheaf_run *bare = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct shf_buf told = SHF_BUF_INIT;
	struct shf_buf where = SHF_BUF_INIT;
	const uint8_t *text;
	const char *path;
	size_t n;
	int rc = shf_run_open_bare(&bare, group, opts, shf_view_sys(view), place, SHF_CALL_NONE,
	                           err);

	if (rc < 0) {
		shf_view_free(view);
		return rc;
	}
	shf_view_manifest_bytes(view, &text, &n);
	shf_buf_adds(&where, "memory of ");
	path = shf_path_join(&where, run, name);
	step = path ? step_new(bare) : NULL;
	if (step)
		step->view = view;
	rc = step ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a step");
	if (rc == 0 && bare->team.rank == 0)
		rc = shf_step_find_memory(path, SHF_VIEW_DIR, text, n, &told, err);
	rc = open_bare(out, step, bare, &told, rc, err);
	shf_buf_release(&where);
	if (!step)
		shf_view_free(view);
	return rc;
}

/* ---- opening a step of a run, or the latest ---- */

/* The argument of report_skipped. */
struct seeking {
	struct sheaf_run *run;
	struct shf_latest_search *sought;
};

/* Callback of shf_store_seek, for each step on disk that the search passes over: logs it, and adds
 * it to sought->passed. */
static void report_skipped(void *arg, int64_t step, const char *why)
{
	struct seeking *k = arg;
	char name[SHF_STEP_NAME];

	shf_name_of_step(&k->run->store, name, step);
	shf_log(k->run, 1, "%s/%s: skipped: %s", k->run->store.path, name, why);
	shf_latest_search_pass(k->sought, name, why);
}

/* Finds the latest step on disk that is a candidate of `sought` and has a number above `floor`.
 * [rank 0] */
static int seek(struct sheaf_run *run, struct shf_latest_search *sought, int64_t floor,
                int64_t *step, struct sheaf_error *err)
{
	struct seeking to = { run, sought };
	struct shf_seek k = { .below = shf_latest_search_below(sought), .floor = floor,
		.passed = report_skipped, .arg = &to };

	return shf_store_seek(&run->store, &k, step, err);
}

/* Finds the latest step on disk and encodes what the other ranks need to open it. Returns ENOENT
 * only if there is no step in memory either, because a training script takes ENOENT to mean that it
 * should start from scratch. [rank 0] */
static int find_latest_on_disk(struct sheaf_run *run, struct shf_latest_search *sought,
                               struct shf_buf *told, struct sheaf_error *err)
{
	size_t passed = sought->passed.len;
	int rc = 0;

	/* A prune or a rewind may take the step away after it was found; then the search starts
	 * again. Only an empty list proves that there is no step at all. */
	for (int looks = 0; looks < LOOKS; looks++) {
		sought->passed.len = passed;
		rc = seek(run, sought, -1, &sought->at.step, err);
		if (rc < 0)
			break;
		rc = shf_step_find_number(run, sought->at.step, told, err);
		if (rc != SHEAF_ENOENT)
			return rc;
		rc = shf_fail_io(err, ENOENT, "%s: step %" PRId64 ", the latest, is listed, but "
		                 "cannot be opened: it is being deleted; open again",
		                 run->store.path, sought->at.step);
	}
	if (rc != SHEAF_ENOENT || run->tier->passed < 0)
		return rc;
	return shf_fail(err, SHEAF_ECORRUPT, "%s: step %" PRId64 " is in memory alone, and the "
	                "step on disk that it follows is missing (bring that back, or start afresh "
	                "after sheaf agent %s --stop)", run->store.path, run->tier->passed,
	                run->store.path);
}

/* Opens a step from disk. If some rank does not see what rank 0 found, all ranks try again for
 * SEEN_MS: the step may have just been removed, or the rank's network file system may still show an
 * old state of the directory. [collective] */
static int open_from_disk(struct sheaf_checkpoint **out, struct sheaf_run *run, int64_t n,
                          struct shf_latest_search *sought, struct sheaf_error *err)
{
	int most = shf_opts_wait_ms(&run->opts, SEEN_MS), slept = 0, ms = 10, rc;
	size_t passed = sought ? sought->passed.len : 0;
	struct sheaf_error own;

	err = err ? err : &own;
	for (;;) {
		struct sheaf_checkpoint *step = step_new(run);
		struct shf_buf told = SHF_BUF_INIT;

		rc = step ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a step");
		rc = shf_agree(&run->team, rc, err);
		if (rc == 0) {
			rc = run->team.rank ? 0 : sought ? find_latest_on_disk(run, sought, &told,
			                                                       err)
			                                 : shf_step_find_number(run, n, &told, err);
			rc = open_encoded(step, &told, rc, err);
		}
		shf_buf_release(&told);
		if (rc == 0) {
			*out = step;
			return 0;
		}
		shf_step_put(step);
		/* Only a step that has just vanished is worth another attempt. */
		if (rc != SHEAF_EIO || (err->sys != ENOENT && err->sys != ESTALE) || slept >= most)
			return rc;
		if (sought)
			sought->passed.len = passed;
		shf_sys_sleep_ms(run->sys, ms);
		slept += ms;
		ms = ms < 500 ? 2 * ms : 1000;
	}
}

/* Opens the step that shf_memory_choose found in memory. Steps on disk that are newer, all of which
 * shf_memory_choose passed over, are added to sought->passed. [collective] */
static int open_from_memory(struct sheaf_checkpoint **out, struct sheaf_run *run,
                            struct shf_view *view,
                            const struct shf_base *base, struct shf_latest_search *sought,
                            struct sheaf_error *err)
{
	struct sheaf_error own;
	char name[SHF_STEP_NAME];
	int64_t none;
	int rc;

	if (sought)
		sought->at = (struct shf_candidate){ shf_view_manifest(view)->step, true };
	/* The result does not matter: the search is made only for its callback, which records the
	 * steps that it passes over. */
	if (sought && run->team.rank == 0)
		(void)seek(run, sought, sought->at.step, &none, &own);
	shf_name_of_step(&run->store, name, shf_view_manifest(view)->step);
	rc = shf_step_open_view(out, view, run->team.group, &run->place, &run->opts,
	                        run->store.path, name, err);
	if (rc == 0) {
		(*out)->run->lineage.memory_of = run;
		(*out)->run->lineage.base = *base;
		shf_run_get(run);
	}
	return rc;
}

/* Opens step n, or if n is SHEAF_LATEST the next candidate of `sought`. memory_too: also looks in
 * agents' memory. [collective] */
static int open_one(struct sheaf_checkpoint **out, struct sheaf_run *run, int64_t n,
                    bool memory_too, struct shf_latest_search *sought, struct sheaf_error *err)
{
	struct shf_view *view = NULL;
	struct shf_base base;
	struct shf_call m = { .kind = SHF_CALL_STEP_OPEN, .handle = run->life.made,
		.x = { (uint64_t)n } };
	int rc = run->life.closed ? shf_fail(err, SHEAF_EINVAL, "the run is closed") : 0;

	if (rc == 0 && n < SHEAF_LATEST)
		rc = shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is negative", n);
	rc = shf_call_enter(&run->team, &m, rc, err);
	if (rc == 0 && shf_call_differs(&m, 0))
		rc = shf_fail(err, SHEAF_EINVAL,
			      "ranks pass different steps to sheaf_checkpoint_open: %" PRId64 " "
			      "and %" PRId64,
		              (int64_t)m.lo[0], (int64_t)m.hi[0]);
	shf_prune_task_finish(run); /* a prune in progress could delete the very step */
	if (rc == 0 && memory_too)
		rc = shf_memory_choose(run, n, sought, &view, &base, err);
	if (rc == 0 && view)
		return open_from_memory(out, run, view, &base, sought, err);
	if (rc == 0)
		rc = open_from_disk(out, run, n, sought, err);
	if (rc == 0)
		(*out)->made = m.number;
	return rc;
}

int shf_step_open_latest(struct sheaf_checkpoint **out, struct sheaf_run *run,
                         struct shf_latest_search *sought, struct sheaf_error *err)
{
	int rc;

	sought->at = (struct shf_candidate){ -1, false };
	rc = open_one(out, run, SHEAF_LATEST, true, sought, err);
	if (rc < 0)
		return rc;
	(*out)->latest = true;
	/* From now on the list of passed candidates belongs to the step. */
	(*out)->passed = sought->passed;
	sought->passed = (struct shf_buf)SHF_BUF_INIT;
	return 0;
}

int shf_step_open(struct sheaf_checkpoint **out, struct sheaf_run *run, int64_t n,
                  struct sheaf_error *err)
{
	struct shf_latest_search sought = { .after = SHF_FROM_THE_NEWEST, .passed = SHF_BUF_INIT };
	int rc = n == SHEAF_LATEST ? shf_step_open_latest(out, run, &sought, err)
	                           : open_one(out, run, n, true, NULL, err);

	shf_buf_release(&sought.passed);
	return rc;
}

int shf_step_open_disk(struct sheaf_checkpoint **out, struct sheaf_run *run, int64_t n,
                       struct sheaf_error *err)
{
	return open_one(out, run, n, false, NULL, err);
}

/* The step gets a bare run of its own, which has no run directory. */
int shf_step_open_path(struct sheaf_checkpoint **out, const char *path, struct sheaf_group *group,
                       const struct shf_opts *opts, const struct shf_sys *sys,
                       struct sheaf_error *err)
{
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct shf_buf told = SHF_BUF_INIT;
	int rc = shf_run_open_bare(&run, group, opts, sys, NULL, SHF_CALL_STEP_OPEN_PATH, err);

	if (rc < 0)
		return rc;
	step = step_new(run);
	rc = step ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory");
	if (step && (!path || !path[0]))
		rc = shf_fail(err, SHEAF_EINVAL, "argument 'path' is NULL or empty");
	if (rc == 0 && run->team.rank == 0)
		rc = shf_hub_cache_find(run, path, &told, err);
	return open_bare(out, step, run, &told, rc, err);
}

int shf_step_open_shown(struct sheaf_checkpoint **out, struct shf_foreign *f,
                        const struct shf_opts *opts, struct sheaf_error *err)
{
	struct sheaf_run *bare = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct shf_buf told = SHF_BUF_INIT;
	int rc = shf_run_open_bare(&bare, NULL, opts, f->in, NULL, SHF_CALL_NONE, err);

	if (rc == 0) {
		step = step_new(bare);
		rc = step ? shf_step_find_shown(f->path, &told, err)
		          : shf_fail(err, SHEAF_ENOMEM, "no memory for a step");
	}
	if (rc < 0)
		shf_foreign_free(f);
	else
		rc = shf_step_foreign_take(step, f, err);
	return bare ? open_bare(out, step, bare, &told, rc, err) : rc;
}
