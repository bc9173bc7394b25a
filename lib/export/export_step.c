/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the files of the format, its indexes, and copies of other files that lie
 * beside the source, such as config.json, if the format is that of a model. */
#include "export_step.h"
#include <string.h>
#include "err.h"
#include "export_beside.h"
#include "export_dir.h"
#include "export_format.h"
#include "export_pass.h"
#include "memory_dir.h"
#include "step_files.h"

/* Writes the small files of the plan, and the indexes of a format, if it has any. */
static int put_small_files(struct shf_export_dir *d, struct shf_export *x, struct sheaf_error *err)
{
	const struct shf_export_format *format = x->plan.format;
	const struct shf_export_small *small;
	const char *name = "";
	int rc = 0;

	for (size_t i = 0; rc == 0 && (small = shf_export_small(&x->plan, i)); i++)
		rc = shf_export_dir_put(d, small->name, small->bytes.data, small->bytes.len, err);
	for (size_t i = 0; format->index && name && rc == 0; i++) {
		struct shf_buf text = SHF_BUF_INIT;

		name = format->index(&x->plan, x->opts, i, &text, &rc, err);
		if (rc == 0 && name)
			rc = shf_export_dir_put(d, name, text.data, text.len, err);
		shf_buf_release(&text);
	}
	return rc;
}

/* Writes everything into DIR.partial, and renames it, or the one file in it, to DIR. The files of
 * tensors come last, because they take longest: if another file cannot be written, the export fails
 * early. Files that lie beside the source are copied after the small files are written, because a
 * copy must not replace one of these. */
static int fill(struct shf_export *x, struct shf_export_dir *d, struct sheaf_error *err)
{
	const struct shf_export_format *format = x->plan.format;
	struct shf_export_beside beside = { .sys = d->sys, .dir = d->dir, .path = d->partial,
		.plan = &x->plan, .weights_alone = x->opts->family != NULL,
		.renamed = x->opts->prefix[0] != '\0' };
	size_t families = x->plan.out.families_n;
	int *dirs = shf_arena_alloc(&x->plan.out.arena, families, sizeof(*dirs));
	int rc = dirs ? shf_export_dir_sweep(d, &x->plan, err)
	              : shf_fail(err, SHEAF_ENOMEM, "no memory for %zu families", families);

	for (size_t i = 0; dirs && i < families; i++)
		dirs[i] = d->dir;       /* names of files begin with their folders */
	x->dirs = dirs;
	x->part = SHF_EXPORT_PART;
	x->path = d->path;
	x->partial = d->partial;
	if (rc == 0)
		rc = shf_export_targets_make(x, err);
	if (rc == 0)
		rc = put_small_files(d, x, err);
	if (rc == 0 && format->copies_files)
		rc = shf_export_beside_copy(&beside, x->step, err);
	shf_export_beside_release(&beside);
	if (rc == 0)
		rc = shf_export_files(x, err);
	if (rc == 0 && !x->step->sound)
		rc = shf_step_check_unchanged(x->step, err);
	if (rc == 0)
		rc = format->is_file ? shf_export_dir_publish_file(d, x->plan.files[0].name, err)
		                     : shf_export_dir_publish(d, err);
	return rc;
}

int shf_step_export(struct sheaf_checkpoint *step, const char *path,
                    const struct shf_export_opts *opts, struct sheaf_report *report,
                    struct sheaf_error *err)
{
	struct shf_export x = { .step = step, .opts = opts, .sys = step->run->sys };
	struct shf_export_dir d = { .parent = -1, .dir = -1, .mark = -1, .sys = x.sys };
	int rc = shf_export_look(step, err);

	if (rc < 0)
		return rc;
	pthread_mutex_init(&x.lock, NULL);
	rc = shf_export_plan_make(&x.plan, step, opts, err);
	if (rc == 0)
		rc = shf_export_dir_open(&d, x.sys, path, err);
	if (rc == 0)
		rc = fill(&x, &d, err);
	if (rc == SHEAF_ECORRUPT && shf_view_check_unchanged(step->view, step->path, err) < 0)
		rc = SHEAF_EAGAIN;
	if (report) {
		report->held = x.written;
		report->files = x.plan.out.files_n;
		report->loaded = x.plan.out.tensors_n;
		report->ignored = x.plan.steps_n;
		for (size_t i = 0; i < x.plan.out.families_n; i++)
			report->bytes += x.plan.out.families[i].bytes;
	}
	shf_export_dir_close(&d);
	shf_export_targets_release(&x);
	shf_export_plan_release(&x.plan);
	pthread_mutex_destroy(&x.lock);
	return rc;
}
