/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the directory: model.safetensors, or numbered files with an index, and copies of other
 * files that lie beside the source, such as config.json. */
#include "export_hf.h"
#include <string.h>
#include "err.h"
#include "export_dir.h"
#include "export_pass.h"
#include "foreign.h"
#include "index.h"
#include "memory_dir.h"
#include "rank_files.h"
#include "step_attached.h"
#include "step_files.h"
#include "step_open.h"
#include "valid.h"

/* Writes model.safetensors.index.json. */
static int put_index(struct shf_export_dir *d, const struct shf_export_plan *plan,
                     struct sheaf_error *err)
{
	const struct shf_layout *l = &plan->out;
	struct shf_index_entry *entries = shf_alloc(l->tensors_n, sizeof(*entries));
	struct shf_buf text = SHF_BUF_INIT;
	int rc = SHEAF_ENOMEM;

	for (size_t i = 0; entries && i < l->tensors_n; i++)
		entries[i] = (struct shf_index_entry){ l->tensors[i].name,
			plan->files[l->tensors[i].file].name };
	if (entries)
		rc = shf_index_write(&text, entries, l->tensors_n, l->families[0].bytes);
	if (rc < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its index", d->path);
	else
		rc = shf_export_dir_put(d, "model.safetensors.index.json", text.data, text.len,
		                        err);
	shf_buf_release(&text);
	shf_free(entries);
	return rc;
}

/* Copies the attached files of a step, but not the opaque bytes of ranks. */
static int put_attached(struct shf_export_dir *d, struct sheaf_checkpoint *step,
                        struct sheaf_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < step->plain_n && rc == 0; i++) {
		const char *name = step->plain[i].name;
		const void *bytes;
		size_t n;

		if (!shf_attached_is_valid(name) || shf_rank_file_is(name) ||
		    strcmp(name, SHF_EXPORT_MARK) == 0)
			continue;
		rc = shf_step_attached(step, name, &bytes, &n, err);
		if (rc == 0)
			rc = shf_export_dir_put(d, name, bytes, n, err);
	}
	return rc;
}

static const char *const known[] = { "config.json", "generation_config.json", "tokenizer.json",
	"tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
	"chat_template.jinja", "chat_template.json", "preprocessor_config.json",
	"processor_config.json", "modules.json", "adapter_config.json" };
#define KNOWN_N (sizeof(known) / sizeof(known[0]))

static bool is_known(const char *name)
{
	for (size_t i = 0; i < KNOWN_N; i++)
		if (strcmp(known[i], name) == 0)
			return true;
	return false;
}

/* Copies the files that belong to a model of Hugging Face, whatever their size, if they lie in the
 * directory `from`, whose path is `path`. Files of any kind may lie beside a file of torch.save, so
 * only known names are copied. */
static int put_known(struct shf_export_dir *d, int from, const char *path, struct sheaf_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < KNOWN_N && rc == 0; i++)
		rc = shf_export_dir_copy(d, from, path, known[i], err);
	return rc;
}

/* Copies the known files of a Hugging Face directory, and its other plain files. */
static int put_plain(struct shf_export_dir *d, const struct sheaf_checkpoint *step,
                     struct sheaf_error *err)
{
	int rc = put_known(d, step->dir, step->path, err);

	for (size_t i = 0; i < step->plain_n && rc == 0; i++)
		if (!is_known(step->plain[i].name) && !shf_rank_file_is(step->plain[i].name))
			rc = shf_export_dir_copy(d, step->dir, step->path, step->plain[i].name,
			                         err);
	return rc;
}

/* Copies the known files that lie in the directory of a foreign checkpoint, or beside it if it is a
 * file. */
static int put_beside(struct shf_export_dir *d, const struct sheaf_checkpoint *step,
                      struct sheaf_error *err)
{
	const struct shf_foreign *f = step->foreign;
	char *path, *slash;
	const char *in;
	int from, rc;

	if (f->dir >= 0)
		return put_known(d, f->dir, f->path, err);
	path = shf_strdup(f->path);
	if (!path)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", f->path);
	slash = strrchr(path, '/');
	if (slash)
		slash[slash == path] = '\0';    /* the root keeps its slash */
	in = slash ? path : ".";
	from = shf_sys_open(d->sys, SHF_CWD, in, SHF_O_DIR, 0);
	rc = from < 0 ? shf_fail_io(err, -from, "%s: the directory that it lies in", f->path)
	              : put_known(d, from, in, err);
	shf_fd_close(d->sys, &from);
	shf_free(path);
	return rc;
}

/* Writes everything into DIR.partial, and renames it to DIR. The other files come first: if one of
 * them cannot be copied, that is known before the tensors are written. */
static int fill(struct shf_export *x, struct shf_export_dir *d, struct sheaf_error *err)
{
	int rc = shf_export_dir_sweep(d, &x->plan, err);

	x->dir = d->dir;
	x->path = d->path;
	x->partial = d->partial;
	if (rc == 0)
		rc = shf_export_targets_make(x, err);
	if (rc == 0)
		rc = x->step->foreign ? put_beside(d, x->step, err)
		     : x->step->sound ? put_attached(d, x->step, err)
		                      : put_plain(d, x->step, err);
	if (rc == 0)
		rc = shf_export_files(x, err);
	if (rc == 0 && !x->step->sound)
		rc = shf_step_check_unchanged(x->step, err);
	if (rc == 0 && x->plan.out.files_n > 1)
		rc = put_index(d, &x->plan, err);
	return rc == 0 ? shf_export_dir_publish(d, err) : rc;
}

/* Checks that this process can read the whole step, and reads its list of tensors. */
static int look_at_source(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	int rc;

	if (step->run->team.ranks != 1)
		return shf_fail(err, SHEAF_EINVAL, "%s: is open on %d ranks; open it in one "
		                "process alone to export it", step->path, step->run->team.ranks);
	if (step->view && shf_view_access(step->view))
		return shf_fail(err, SHEAF_EINVAL, "%s: is spread over the memory of several "
		                "nodes; use sheaf_agent_flush first", step->path);
	rc = shf_step_wake(step, err);
	if (rc == 0 && step->cat_rc < 0) {
		*err = step->cat_err;
		rc = step->cat_rc;
	}
	if (rc == 0 && step->sound && step->sums_rc < 0) {
		*err = step->sums_err;
		rc = step->sums_rc;
	}
	return rc;
}

int shf_step_export(struct sheaf_checkpoint *step, const char *path,
                    const struct shf_export_opts *opts, struct sheaf_report *report,
                    struct sheaf_error *err)
{
	struct shf_export x = { .step = step, .opts = opts, .sys = step->run->sys };
	struct shf_export_dir d = { .parent = -1, .dir = -1, .mark = -1, .sys = x.sys };
	int rc = look_at_source(step, err);

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
		report->bytes = x.plan.out.families_n ? x.plan.out.families[0].bytes : 0;
	}
	shf_export_dir_close(&d);
	shf_export_targets_release(&x);
	shf_export_plan_release(&x.plan);
	pthread_mutex_destroy(&x.lock);
	return rc;
}
