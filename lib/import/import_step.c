/* SPDX-License-Identifier: Apache-2.0 */
/* The stage of an import is that of a copy, .sheaf/stage/copy-<step>-<key>, so recovery keeps it
 * for a week. The key is a hash of the plan: which tensors are written, and where. So the next
 * import of the same tensors under the same number takes it up. Tensor files that have their names
 * in the stage were finished, and are compared with the source. All other files are deleted first.
 *
 * Always true: sheaf.sums and the manifest have the sums of what was read from the source, and what
 * was written is read back and compared with them before the stage is published. */
#include "import_step.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "import_record.h"
#include "memory_dir.h"
#include "opts.h"
#include "run_files.h"
#include "step_files.h"

/* ---- the run ---- */

/* Opens the run and takes its lock, or creates the run. */
static int open_destination(struct shf_import *m, const char *path, struct sheaf_error *err)
{
	const struct sheaf_run *run = m->step->run;
	struct shf_owning how = { .create = true,
		.wait_ms = shf_opts_wait_ms(&run->opts, SHF_LOCK_WAIT_MS),
		.clear_ms = shf_opts_clear_ms(&run->opts) };
	int rc = shf_store_is_no_step(run->sys, path, err);

	if (rc == 0)
		rc = shf_store_own_as(&m->dst, run->sys, path, &how, err);
	if (rc < 0)
		return rc;
	snprintf(m->part, sizeof(m->part), "part-%.16s-", m->dst.session);
	shf_name_of_step(&m->dst, m->name, m->number);
	shf_buf_addf(&m->path, "%s/%s", m->dst.path, m->name);
	shf_buf_u8(&m->path, 0);
	return m->path.oom ? shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", path) : 0;
}

/* Makes the stage, or opens the one that an earlier import left, and opens the folders of the
 * families. */
static int open_stage(struct shf_import *m, struct sheaf_error *err)
{
	const struct shf_layout *l = &m->x.plan.out;
	const char **folders = shf_zalloc(l->families_n + 1, sizeof(*folders));
	uint64_t hash = shf_layout_hash(l);
	char key[33];
	int rc;

	m->dirs = shf_alloc(l->families_n, sizeof(*m->dirs));
	for (size_t i = 0; m->dirs && i < l->families_n; i++)
		m->dirs[i] = -1;
	if (!folders || !m->dirs) {
		shf_free(folders);
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to import it", m->step->path);
	}
	for (size_t i = 0; i < l->families_n; i++)
		folders[i] = l->families[i].dir;
	snprintf(key, sizeof(key), "%016llx%016llx", (unsigned long long)hash,
	         (unsigned long long)shf_crc64(&hash, sizeof(hash)));
	rc = shf_stage_copy(&m->dst, &m->stage, m->number, key, folders, err);
	shf_free(folders);
	if (rc == SHEAF_EEXIST)
		return shf_fail(err, rc, "%s: exists; choose another number, as in %s@N",
		                (char *)m->path.data, m->dst.path);
	if (rc < 0)
		return rc;
	shf_buf_addf(&m->where, "%s/.sheaf/stage/%s", m->dst.path, m->stage.name);
	shf_buf_u8(&m->where, 0);
	if (m->where.oom)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", m->dst.path);
	for (size_t i = 0; i < l->families_n && rc >= 0; i++)
		rc = m->dirs[i] = shf_dir_open(m->dst.sys, m->stage.dir, l->families[i].dir);
	return rc < 0 ? shf_fail_io(err, -rc, "%s", (char *)m->where.data) : 0;
}

/* Returns whether the plan has a file of that name in the folder of the family. */
static bool is_planned_file(const struct shf_layout *l, uint32_t family, const char *name)
{
	const struct shf_lt_family *fam = &l->families[family];

	for (uint32_t f = fam->first_file; f < fam->first_file + fam->files_n; f++) {
		const char *slash = strrchr(l->files[f].name, '/');

		if (strcmp(slash ? slash + 1 : l->files[f].name, name) == 0)
			return true;
	}
	return false;
}

/* Removes from the folder `dir` of the stage everything but the files of the plan that belong to
 * this family (-1: of none). top: the folder is the stage itself, in which the folders of families
 * stay, too. */
static int sweep_folder(struct shf_import *m, int dir, int64_t family, bool top,
                        struct sheaf_error *err)
{
	const struct shf_layout *l = &m->x.plan.out;
	struct shf_names names;
	int rc = shf_names_read(m->dst.sys, dir, &names);

	if (rc < 0)
		return shf_fail_io(err, -rc, "%s", (char *)m->where.data);
	for (const char *p = NULL; rc >= 0 && (p = shf_names_next(&names, p)) != NULL;) {
		int64_t of = top ? shf_layout_family(l, p) : -1;

		if ((family >= 0 && is_planned_file(l, (uint32_t)family, p)) ||
		    (of >= 0 && strcmp(l->families[of].dir, p) == 0))
			continue;
		rc = shf_tree_remove(m->dst.sys, dir, p);
	}
	shf_names_release(&names);
	return rc < 0 ? shf_fail_io(err, -rc, "%s", (char *)m->where.data) : 0;
}

static int sweep_stage(struct shf_import *m, struct sheaf_error *err)
{
	const struct shf_layout *l = &m->x.plan.out;
	int64_t top = shf_layout_family(l, "model");
	int rc = sweep_folder(m, m->stage.dir, top, true, err);

	for (size_t i = 0; i < l->families_n && rc == 0; i++)
		if ((int64_t)i != top)
			rc = sweep_folder(m, m->dirs[i], (int64_t)i, false, err);
	return rc;
}

/* ---- the import ---- */

/* Writes everything into the stage, and publishes it. The small files come first: if one of them
 * cannot be copied, that is known before the tensors are written. */
static int import_stage(struct shf_import *m, struct sheaf_error *err)
{
	struct shf_export *x = &m->x;
	int rc = sweep_stage(m, err);

	m->beside = (struct shf_export_beside){ .sys = m->dst.sys, .dir = m->stage.dir,
		.path = (char *)m->where.data, .step = &x->plan.out,
		.rank_files = !m->opts->how.family, .renamed = m->opts->how.prefix[0] != '\0' };
	x->dirs = m->dirs;
	x->part = m->part;
	x->path = (char *)m->path.data;
	x->partial = (char *)m->where.data;
	x->digests = shf_arena_alloc(&m->arena, x->plan.out.tensors_n, sizeof(*x->digests));
	if (rc == 0 && !x->digests)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its checksums", x->path);
	if (rc == 0)
		rc = shf_export_targets_make(x, err);
	if (rc == 0)
		rc = shf_export_beside_copy(&m->beside, m->step, err);
	if (rc == 0)
		rc = shf_export_files(x, err);
	if (rc == 0 && !m->step->sound)
		rc = shf_step_check_unchanged(m->step, err);
	if (rc == 0)
		rc = shf_import_record(m, err);
	return rc == 0 ? shf_stage_publish(&m->dst, &m->stage, &m->manifest, err) : rc;
}

/* Does C0 to C9 of the import. If the source is damaged, the stage is deleted. After any other
 * failure it is kept for the next import. */
static int import(struct shf_import *m, const char *path, struct sheaf_error *err)
{
	int rc = open_destination(m, path, err);

	m->stage.dir = m->stage.alive = -1;
	if (rc == 0)
		rc = open_stage(m, err);
	if (rc == 0)
		rc = import_stage(m, err);
	if (rc == SHEAF_ECORRUPT && m->stage.dir >= 0)
		shf_stage_discard(&m->dst, &m->stage);
	for (size_t i = 0; m->dirs && i < m->x.plan.out.families_n; i++)
		shf_fd_close(m->dst.sys, &m->dirs[i]);
	shf_stage_close(&m->dst, &m->stage);
	shf_store_close(&m->dst);
	return rc;
}

int shf_step_import(struct sheaf_checkpoint *step, const char *path,
                    const struct shf_import_opts *opts, struct sheaf_report *report,
                    struct sheaf_error *err)
{
	struct shf_import m = { .step = step, .opts = opts,
		.x = { .step = step, .opts = &opts->how, .sys = step->run->sys } };
	const struct shf_layout *out = &m.x.plan.out;
	int rc = shf_export_look(step, err);

	if (rc == 0)
		rc = shf_import_number(&m.number, step, opts->number, err);
	if (rc < 0)
		return rc;
	pthread_mutex_init(&m.x.lock, NULL);
	rc = shf_export_plan_make(&m.x.plan, step, &opts->how, err);
	if (rc == 0)
		rc = import(&m, path, err);
	if (rc == SHEAF_ECORRUPT && shf_view_check_unchanged(step->view, step->path, err) < 0)
		rc = SHEAF_EAGAIN;
	if (report) {
		report->step = m.number;
		report->held = m.x.written;
		report->files = out->files_n;
		report->loaded = out->tensors_n;
		report->ignored = step->manifest.notes_n - m.manifest.notes_n;
		report->unexpected = m.beside.left_out;
		for (size_t i = 0; i < out->families_n; i++)
			report->bytes += out->families[i].bytes;
	}
	shf_export_beside_release(&m.beside);
	shf_export_targets_release(&m.x);
	shf_export_plan_release(&m.x.plan);
	shf_arena_release(&m.arena);
	shf_buf_release(&m.path);
	shf_buf_release(&m.where);
	shf_free(m.dirs);
	pthread_mutex_destroy(&m.x.lock);
	return rc;
}
