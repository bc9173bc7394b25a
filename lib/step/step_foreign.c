/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a step that lib/foreign reads. It is shown as a directory of safetensors files, and from
 * then on read like a directory of Hugging Face. */
#include "step_foreign.h"
#include <stdlib.h>
#include <string.h>
#include "catalog.h"
#include "err.h"
#include "foreign.h"
#include "foreign_dir.h"
#include "run_env.h"

static void free_foreign(void *arg)
{
	shf_foreign_free(arg);
}

int shf_step_foreign_take(struct sheaf_checkpoint *step, struct shf_foreign *f,
                          struct sheaf_error *err)
{
	int rc = shf_run_set_sys(step->run, shf_foreign_sys(f), free_foreign, f, err);

	if (rc < 0)
		shf_foreign_free(f);
	else
		step->foreign = f;
	return rc;
}

int shf_step_foreign_show(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	struct shf_foreign *f;
	int rc = shf_foreign_open(&f, step->run->sys, step->path, err);

	return rc < 0 ? rc : shf_step_foreign_take(step, f, err);
}

/* Compares what the ranks see. Each reads the description itself, and a file may change while it is
 * being read. [collective] */
int shf_step_foreign_compare(const struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	uint64_t own = shf_foreign_digest(step->foreign), x[2] = { own, ~own };
	int rc = shf_allreduce(&step->run->team, x, 2, SHEAF_MAX, err);

	if (rc < 0 || x[0] == ~x[1])
		return rc;
	return shf_fail(err, SHEAF_EIO, "%s: ranks see different contents; check that all nodes "
	                "mount the same file system there, and that no program is writing it",
	                step->path);
}

static int notes_by_key(const void *a, const void *b)
{
	return strcmp(((const struct shf_mf_note *)a)->key, ((const struct shf_mf_note *)b)->key);
}

/* Makes a family of the files that follow one another and show tensors of one. */
static void fill_families(struct shf_layout *l, const struct shf_foreign *f)
{
	for (size_t i = 0; i < l->files_n; i++) {
		const char *name = shf_foreign_shown_family(f, i);

		if (i == 0 || strcmp(l->families[l->families_n - 1].name, name))
			l->families[l->families_n++] = (struct shf_lt_family){ .name = name,
				.dir = ".", .first_file = (uint32_t)i };
		l->families[l->families_n - 1].files_n++;
		l->files[i] = (struct shf_lt_file){ .name = shf_foreign_shown(f, i),
			.family = (uint32_t)(l->families_n - 1) };
	}
}

/* Fills the layout of a step that lib/foreign shows. The values that are no tensors become its
 * notes. */
int shf_step_foreign_files(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	const struct shf_foreign *f = step->foreign;
	const struct shf_foreign_note *notes = (const void *)f->notes.data;
	size_t files_n = 0, notes_n = f->notes.len / sizeof(*notes);
	struct shf_manifest *m = &step->manifest;
	struct shf_layout *l = &step->layout;

	while (shf_foreign_shown(f, files_n))
		files_n++;
	l->families = shf_arena_alloc(&l->arena, files_n + 1, sizeof(*l->families));
	l->files = shf_arena_alloc(&l->arena, files_n + 1, sizeof(*l->files));
	m->notes = shf_arena_alloc(&step->arena, notes_n + 1, sizeof(*m->notes));
	if (!l->families || !l->files || !m->notes)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu files", files_n);
	l->files_n = files_n;
	fill_families(l, f);
	for (size_t i = 0; i < notes_n; i++) {
		m->notes[i].key = notes[i].key;
		m->notes[i].value = notes[i].text;
	}
	m->notes_n = notes_n;
	if (notes_n)
		qsort(m->notes, notes_n, sizeof(*m->notes), notes_by_key);
	return 0;
}

/* Reads a number of 1 to 18 digits. */
static bool is_number(const char *text, int64_t *number)
{
	int64_t n = 0;
	size_t i;

	for (i = 0; i < 18 && text[i] >= '0' && text[i] <= '9'; i++)
		n = 10 * n + (text[i] - '0');
	if (i == 0 || text[i])
		return false;
	*number = n;
	return true;
}

int64_t shf_step_said_number(struct sheaf_checkpoint *step)
{
	static const char *const keys[] = { "step", "global_step", "iteration",
		"trainer_state.global_step" };
	int64_t number = -1;

	step = shf_step_behind_maps(step);
	if (step->sound)
		return step->manifest.step;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		const char *text = shf_manifest_note(&step->manifest, keys[i]);

		if (text && is_number(text, &number))
			break;
	}
	return number;
}

/* Says, for a person, why the headers were read instead of the index. */
static int report_index(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;

	if (step->index_flaw)
		shf_buf_adds(&text, step->index_flaw);
	else
		shf_buf_addf(&text, "%s: missing", step->index_name);
	shf_buf_adds(&text, "; the headers of the files were read instead");
	if (!text.oom)
		step->index_evidence = shf_arena_strdup(&step->arena, (const char *)text.data,
		                                        text.len);
	shf_buf_release(&text);
	if (!step->index_evidence)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the index");
	if (step->run->team.rank == 0)
		shf_log(step->run, 1, "%s/%s", step->path, step->index_evidence);
	return 0;
}

int shf_step_foreign_catalog(struct sheaf_checkpoint *step, const struct shf_step_found *found,
                             struct sheaf_error *err)
{
	int rc;

	step->index_name = found->index_name[0] ? found->index_name : NULL;
	step->index_flaw = found->index_flaw[0] ? found->index_flaw : NULL;
	rc = shf_catalog_read(step, found->has_index ? &found->index : NULL, err);
	if (rc == 0 && step->cat_rc == 0 &&
	    (step->index_flaw || (step->index_name && !found->has_index)))
		rc = report_index(step, err);
	return rc;
}
