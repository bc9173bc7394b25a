/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: open, load, verify, copy, read a slice, and list their tensors, notes and files. */
#include <string.h>
#include "dtype.h"
#include "entry.h"
#include "err.h"
#include "export.h"
#include "export_format.h"
#include "export_step.h"
#include "import_step.h"
#include "foreign_dir.h"
#include "hexfloat.h"
#include "load.h"
#include "map_step.h"
#include "natural.h"
#include "place.h"
#include "read_slice.h"
#include "repair_index.h"
#include "sheaf-admin.h"
#include "sheaf-inspect.h"
#include "sheaf-state.h"
#include "state.h"
#include "step.h"
#include "step_attached.h"
#include "step_copy.h"
#include "step_lookup.h"
#include "step_open.h"
#include "struct_size.h"
#include "valid.h"
#include "verify_step.h"

#define INFO_MIN offsetof(struct sheaf_checkpoint_info, format)
#define TENSOR_MIN offsetof(struct sheaf_tensor, family)
#define EMA_INFO_MIN sizeof(struct sheaf_ema_info)

static int no_checkpoint(struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EINVAL, "argument 'checkpoint' is NULL");
}

/* Returns the code of an index that is past the end of a list. */
static int past_end(const char *what, size_t i, size_t n, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EEND, "%s %zu: the checkpoint has %zu", what, i, n);
}

/* Returns 0, or SHEAF_EINVAL if checkpoint is NULL or was opened by another process. */
static int step_check(const struct sheaf_checkpoint *checkpoint, struct sheaf_error *err)
{
	if (!checkpoint)
		return no_checkpoint(err);
	return shf_run_check(checkpoint->run, err);
}

SHEAF_API int sheaf_checkpoint_open(struct sheaf_checkpoint **checkpoint, struct sheaf_run *run,
                                    int64_t n, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0)
		rc = shf_turns_take(run, SHF_CALL_STEP_OPEN, err);
	if (rc == 0) {
		rc = checkpoint ? shf_step_open(checkpoint, run, n, err)
		                : shf_call_refuse(&run->team, SHF_CALL_STEP_OPEN, run->life.made,
		                                  no_checkpoint(err), err);
		shf_turns_give(run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_checkpoint_open_path(struct sheaf_checkpoint **checkpoint, const char *path,
                                         struct sheaf_group *group, const struct sheaf_opts *opts,
                                         struct sheaf_error *err)
{
	struct sheaf_error own;
	struct shf_opts o;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_open_check(checkpoint, "checkpoint", &o, opts, group, SHF_CALL_STEP_OPEN_PATH,
	                    err);
	if (rc == 0)
		rc = shf_step_open_path(checkpoint, path, group, &o, shf_sys_real(), err);
	return shf_ended(rc, err);
}

/* A reference to the run is taken, because the step may have the last one. */
SHEAF_API void sheaf_checkpoint_close(struct sheaf_checkpoint *checkpoint)
{
	struct sheaf_run *run = checkpoint ? shf_run_that_saves(checkpoint->run) : NULL;

	if (!run)
		return;
	shf_run_get(run);
	shf_turns_hold(run);
	shf_step_put(checkpoint);
	shf_turns_give(run);
	shf_run_put(run);
}

static const char *text_or_none(const char *s)
{
	return s ? s : "";
}

SHEAF_API int sheaf_checkpoint_get_info(struct sheaf_checkpoint *checkpoint,
                                        struct sheaf_checkpoint_info *info, struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	if (!checkpoint)
		return no_checkpoint(err);
	const struct shf_manifest *m = &checkpoint->manifest;
	struct sheaf_checkpoint_info out = { .size = sizeof(out), .ranks = (int32_t)m->ranks,
		.step = checkpoint->number,
		.parent = checkpoint->sound && m->has_parent ? m->parent_step : -1,
		.format = text_or_none(checkpoint->format), .path = text_or_none(checkpoint->path),
		.session = m->session, .run = m->run, .created = m->created,
		.writer = text_or_none(m->version), .commit = text_or_none(m->commit),
		.compiler = text_or_none(m->compiler), .files = checkpoint->layout.files_n };

	if (checkpoint->foreign) {
		out.evidence = checkpoint->foreign->why;
		out.files = shf_foreign_files(checkpoint->foreign);
	} else {
		out.evidence = checkpoint->sound ? "sheaf.json"
		             : checkpoint->index_evidence ? checkpoint->index_evidence
		             : "the header of a safetensors file";
	}

	/* If the catalog is broken or not read yet, the counts come from the manifest. */
	bool read = checkpoint->cat_rc == 0 && !checkpoint->asleep;

	if (read)
		out.tensors = checkpoint->layout.tensors_n;
	for (size_t i = 0; read && i < checkpoint->layout.families_n; i++)
		out.bytes += checkpoint->layout.families[i].bytes;
	for (size_t i = 0; !read && i < m->families_n; i++) {
		out.tensors += m->families[i].tensors;
		out.bytes += m->families[i].bytes;
	}
	return shf_struct_out(info, &out, sizeof(out), INFO_MIN, "checkpoint_info", err);
}

/* ---- tensors: one list of stored tensors and tied names, in the order of family and name ---- */

/* Returns how many stored tensors come before a tied name in the list. */
static size_t stored_before(const struct shf_layout *l, const struct shf_lt_tied *tied)
{
	size_t lo = 0, hi = l->tensors_n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct shf_lt_tensor *t = &l->tensors[mid];

		if (t->family < tied->family ||
		    (t->family == tied->family && shf_natural(t->name, tied->name) < 0))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Returns how many tied names are among the first i entries of the list. Tied name k is entry k +
 * stored_before(k), which grows with k, so a binary search finds it. */
static size_t tied_before(const struct shf_layout *l, size_t i)
{
	size_t lo = 0, hi = l->tied_n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (mid + stored_before(l, &l->tied[mid]) < i)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Reads the table of tensors if that was not done yet. Returns 0, or why it cannot be used. */
static int open_catalog(struct sheaf_checkpoint *checkpoint, struct sheaf_error *err)
{
	int rc = shf_step_wake(checkpoint, err);

	if (rc == 0 && checkpoint->cat_rc < 0) {
		*err = checkpoint->cat_err;
		rc = checkpoint->cat_rc;
	}
	return rc;
}

/* Fills in the caller's struct for tensor t. name: the name under which it was asked for; tied_to:
 * the name under which it is stored, or NULL if that is `name`. */
static int tensor_out(const struct sheaf_checkpoint *checkpoint, const struct shf_lt_tensor *t,
                      const char *name, const char *tied_to, struct sheaf_tensor *tensor,
                      struct sheaf_error *err)
{
	const struct shf_layout *l = &checkpoint->layout;
	struct sheaf_tensor out = { .size = sizeof(out), .dtype = t->dtype,
		.ndim = t->wide ? t->wide : t->items.ndim,
		.verified = checkpoint->sound && checkpoint->sums_rc == 0,
		.family = l->families[t->family].name, .name = name,
		.file = l->files[t->file].name, .tied_to = tied_to, .offset = t->off,
		.bytes = t->bytes, .dims = t->wide ? t->dims : NULL };

	for (int d = 0; !t->wide && d < t->items.ndim; d++)
		out.shape[d] = t->items.dim[d];
	if (out.verified)
		out.digest = t->digest;
	if (checkpoint->foreign)
		shf_foreign_where(checkpoint->foreign, out.file, t->off, &out.file, &out.offset);
	return shf_struct_out(tensor, &out, sizeof(out), TENSOR_MIN, "tensor", err);
}

/* Fills in the caller's struct for tied name k. */
static int tied_out(const struct sheaf_checkpoint *checkpoint, size_t k,
                    struct sheaf_tensor *tensor, struct sheaf_error *err)
{
	const struct shf_layout *l = &checkpoint->layout;
	const struct shf_lt_tied *tied = &l->tied[k];
	int64_t t = shf_layout_find(l, l->families[tied->family].name, tied->to);

	return t < 0 ? shf_fail(err, SHEAF_ECORRUPT, "%s: %s is tied to %s, which is not stored",
	                        checkpoint->path, tied->name, tied->to)
	             : tensor_out(checkpoint, &l->tensors[t], tied->name, tied->to, tensor, err);
}

/* Let k be the number of tied names before entry i of the list. Entry i is tied name k if that has
 * i - k stored tensors before it, else it is stored tensor i - k. */
SHEAF_API int sheaf_checkpoint_tensor(struct sheaf_checkpoint *checkpoint, size_t i,
                                      struct sheaf_tensor *tensor, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = checkpoint ? open_catalog(checkpoint, err) : no_checkpoint(err);
	if (rc < 0)
		return shf_ended(rc, err);
	const struct shf_layout *l = &checkpoint->layout;

	if (i >= l->tensors_n + l->tied_n)
		return past_end("tensor", i, l->tensors_n + l->tied_n, err);
	size_t k = tied_before(l, i);

	if (k < l->tied_n && k + stored_before(l, &l->tied[k]) == i)
		return tied_out(checkpoint, k, tensor, err);
	return tensor_out(checkpoint, &l->tensors[i - k], l->tensors[i - k].name, NULL, tensor,
	                  err);
}

SHEAF_API int sheaf_checkpoint_find(struct sheaf_checkpoint *checkpoint, const char *family,
                                    const char *name, struct sheaf_tensor *tensor,
                                    struct sheaf_error *err)
{
	struct shf_lt_tensor seen;
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	if (!checkpoint)
		return no_checkpoint(err);
	if (!name)
		return shf_fail(err, SHEAF_EINVAL, "argument 'name' is NULL");
	/* A step that is asleep is woken only if this quick lookup fails. */
	if (shf_step_lookup(checkpoint, family ? family : "model", name, &seen))
		return tensor_out(checkpoint, &seen, seen.name, NULL, tensor, err);
	rc = open_catalog(checkpoint, err);
	if (rc < 0)
		return shf_ended(rc, err);
	const struct shf_layout *l = &checkpoint->layout;
	int64_t fam = shf_layout_family(l, family ? family : "model");
	int64_t t = fam < 0 ? -1 : shf_layout_find(l, l->families[fam].name, name);

	if (t >= 0)
		return tensor_out(checkpoint, &l->tensors[t], l->tensors[t].name, NULL, tensor,
		                  err);
	/* The name is not stored: looks for it among the tied names, by binary search. */
	for (size_t lo = 0, hi = fam < 0 ? 0 : l->tied_n; lo < hi;) {
		size_t mid = lo + (hi - lo) / 2;
		const struct shf_lt_tied *tied = &l->tied[mid];
		int c = tied->family != fam ? (tied->family < fam ? -1 : 1)
		                            : shf_natural(tied->name, name);

		if (c == 0)
			return tied_out(checkpoint, mid, tensor, err);
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return shf_fail(err, SHEAF_ELAYOUT, "%s: no tensor %s/%.200s", checkpoint->path,
	                family ? family : "model", name);
}

/* ---- notes and files ---- */

SHEAF_API int64_t sheaf_checkpoint_number(const struct sheaf_checkpoint *checkpoint)
{
	return checkpoint ? checkpoint->number : -1;
}

SHEAF_API const char *sheaf_checkpoint_note(struct sheaf_checkpoint *checkpoint, const char *key)
{
	return checkpoint && key ? shf_manifest_note(&checkpoint->manifest, key) : NULL;
}

SHEAF_API int sheaf_checkpoint_note_at(struct sheaf_checkpoint *checkpoint, size_t i,
                                       const char **key, const char **value,
                                       struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	if (!checkpoint)
		return no_checkpoint(err);
	if (i >= checkpoint->manifest.notes_n)
		return past_end("note", i, checkpoint->manifest.notes_n, err);
	if (key)
		*key = checkpoint->manifest.notes[i].key;
	if (value)
		*value = checkpoint->manifest.notes[i].value;
	return 0;
}

SHEAF_API int sheaf_checkpoint_ema_at(struct sheaf_checkpoint *checkpoint, size_t i,
                                      struct sheaf_ema_info *info, struct sheaf_error *err)
{
	struct sheaf_ema_info x = { .size = sizeof(x) };
	const struct shf_mf_ema *e;
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	if (!checkpoint)
		return no_checkpoint(err);
	if (i >= checkpoint->manifest.emas_n)
		return past_end("averages", i, checkpoint->manifest.emas_n, err);
	e = &checkpoint->manifest.emas[i];
	x.name = e->name;
	x.of = e->of[0] ? e->of : NULL;
	x.interval = e->interval;
	x.updates = e->updates;
	(void)shf_hexfloat_get(&x.coef, e->coef); /* shf_manifest_decode has checked it */
	return shf_struct_out(info, &x, sizeof(x), EMA_INFO_MIN, "ema_info", err);
}

SHEAF_API int sheaf_checkpoint_file_at(struct sheaf_checkpoint *checkpoint, size_t i,
                                       const char **file, uint64_t *bytes,
                                       struct sheaf_error *err)
{
	struct sheaf_error own;

	err = shf_err_or(err, &own);
	if (!checkpoint)
		return no_checkpoint(err);
	/* The search continues at the last answer, because callers ask for the files in order. */
	size_t at = i < checkpoint->told_i ? 0 : checkpoint->told_i;

	for (size_t k = at ? checkpoint->told_k : 0; k < checkpoint->plain_n; k++) {
		/* Index files are in the manifest, too, but the caller did not attach them. */
		if (!shf_attached_is_valid(checkpoint->plain[k].name) || at++ < i)
			continue;
		checkpoint->told_i = i;
		checkpoint->told_k = k;
		if (file)
			*file = checkpoint->plain[k].name;
		if (bytes)
			*bytes = checkpoint->plain[k].bytes;
		return 0;
	}
	return past_end("attached file", i, at, err);
}

SHEAF_API int sheaf_checkpoint_file(struct sheaf_checkpoint *checkpoint, const char *file,
                                    const void **bytes, size_t *n, struct sheaf_error *err)
{
	struct sheaf_error own;
	const void *data;
	size_t size;
	int rc;

	err = shf_err_or(err, &own);
	rc = step_check(checkpoint, err);
	if (rc == 0 && (!file || !bytes || !n))
		rc = shf_fail(err, SHEAF_EINVAL, "argument '%s' is NULL",
		              !file ? "file" : !bytes ? "bytes" : "n");
	if (rc == 0)
		rc = shf_step_attached(checkpoint, file, &data, &size, err);
	if (rc == 0) {
		*bytes = data;
		*n = size;
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_checkpoint_rank_bytes(struct sheaf_checkpoint *checkpoint, const char *stream,
                                          int32_t rank, const void **bytes, size_t *n,
                                          struct sheaf_error *err)
{
	struct sheaf_error own;
	const void *data;
	size_t size;
	int rc;

	err = shf_err_or(err, &own);
	rc = step_check(checkpoint, err);
	if (rc == 0 && (!stream || !bytes || !n))
		rc = shf_fail(err, SHEAF_EINVAL, "argument '%s' is NULL",
		              !stream ? "stream" : !bytes ? "bytes" : "n");
	if (rc == 0)
		rc = shf_step_rank_bytes(checkpoint, stream, rank, &data, &size, err);
	if (rc == 0) {
		*bytes = data;
		*n = size;
	}
	return shf_ended(rc, err);
}

/* ---- bytes ---- */

SHEAF_API int sheaf_checkpoint_load(struct sheaf_checkpoint *checkpoint, struct sheaf_state *state,
                                    uint64_t flags,
                                    struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_reporting heard;
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = step_check(checkpoint, err);
	if (rc == 0)
		rc = shf_turns_take(shf_run_that_saves(checkpoint->run), SHF_CALL_LOAD, err);
	if (rc < 0)
		return shf_ended(rc, err);
	rc = shf_report_begin(&heard, report, err);
	if (rc < 0) {
		rc = shf_call_refuse(&checkpoint->run->team, SHF_CALL_LOAD, checkpoint->made, rc,
		                     err);
	} else {
		rc = shf_step_load(checkpoint, state, flags, &heard.own, err);
		shf_report_end(&heard, report);
	}
	shf_turns_give(shf_run_that_saves(checkpoint->run));
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_checkpoint_verify(struct sheaf_checkpoint *checkpoint,
                                      struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_reporting heard;
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = step_check(checkpoint, err);
	if (rc == 0)
		rc = shf_turns_take(shf_run_that_saves(checkpoint->run), SHF_CALL_VERIFY, err);
	if (rc < 0)
		return shf_ended(rc, err);
	rc = shf_report_begin(&heard, report, err);
	if (rc < 0) {
		rc = shf_call_refuse(&checkpoint->run->team, SHF_CALL_VERIFY, checkpoint->made, rc,
		                     err);
	} else {
		rc = shf_step_verify(checkpoint, &heard.own, err);
		shf_report_end(&heard, report);
	}
	shf_turns_give(shf_run_that_saves(checkpoint->run));
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_checkpoint_copy(struct sheaf_checkpoint *checkpoint, const char *dir,
                                    struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_reporting heard;
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = step_check(checkpoint, err);
	if (rc == 0)
		rc = shf_report_begin(&heard, report, err);
	if (rc == 0) {
		rc = shf_step_copy(checkpoint, dir, &heard.own, err);
		shf_report_end(&heard, report);
	}
	return shf_ended(rc, err);
}

/* Fills in the defaults of options that an export and an import share. */
static int export_defaults(struct shf_export_opts *o, struct sheaf_error *err)
{
	if (o->dtype && (!shf_dtype(o->dtype) || !shf_can_convert(o->dtype, SHEAF_F32)))
		return shf_fail(err, SHEAF_EINVAL, "how.dtype is %d: it must be F64, F32, F16, "
		                "BF16 or one of the types F8", o->dtype);
	o->prefix = o->prefix ? o->prefix : "";
	o->file_bytes_max = o->file_bytes_max ? o->file_bytes_max : SHF_FILE_BYTES;
	o->memory_bytes = o->memory_bytes ? o->memory_bytes : UINT64_C(256) << 20;
	return 0;
}

/* Finds the format, and checks that the options go with it. */
static int export_format_take(struct shf_export_opts *o, const struct sheaf_export *in,
                              struct sheaf_error *err)
{
	const char *name = in->format ? in->format : "hf";
	struct shf_buf all = SHF_BUF_INIT;
	int rc = 0;

	o->format = shf_export_format(name);
	if (!o->format) {
		shf_export_formats_list(&all);
		shf_buf_u8(&all, 0);
		rc = shf_fail(err, SHEAF_EINVAL, "how.format is '%.60s': there is no such format; "
		              "use one of %s", name, all.oom ? "hf" : (const char *)all.data);
		shf_buf_release(&all);
		return rc;
	}
	if ((o->format->is_file || o->format->is_divided) && in->file_bytes_max)
		return shf_fail(err, SHEAF_EINVAL, "how.file_bytes_max and how.format %s do not go "
		                "together: this format has %s", name,
		                o->format->is_file ? "one file" : "a file for each tensor");
	if (in->all_families && in->family)
		return shf_fail(err, SHEAF_EINVAL, "how.all_families and how.family do not go "
		                "together: a family is named to write it alone");
	if (in->all_families && !o->format->families)
		return shf_fail(err, SHEAF_EINVAL, "how.all_families and how.format %s do not go "
		                "together: such a directory has one family", name);
	return 0;
}

/* Takes the caller's options, and fills in the defaults. */
static int export_take(struct shf_export_opts *o, const struct sheaf_export *theirs,
                       struct sheaf_error *err)
{
	struct sheaf_export in = { .size = sizeof(in) };
	int rc = theirs ? shf_struct_take(&in, theirs, sizeof(in), sizeof(in), "how", "export", err)
	                : 0;

	*o = (struct shf_export_opts){ .dtype = in.dtype, .family = in.family ? in.family : "model",
		.as = "model", .prefix = in.prefix, .file_bytes_max = in.file_bytes_max,
		.memory_bytes = in.memory_bytes, .progress = in.progress, .arg = in.arg,
		.adam_step = in.adam_step, .beta1 = in.beta1, .beta2 = in.beta2 };
	if (rc == 0)
		rc = export_format_take(o, &in, err);
	if (rc == 0 && in.all_families)
		o->family = o->as = NULL;
	return rc == 0 ? export_defaults(o, err) : rc;
}

static int import_take(struct shf_import_opts *o, const struct sheaf_import *theirs,
                       struct sheaf_error *err)
{
	struct sheaf_import in = { .size = sizeof(in) };
	int rc = theirs ? shf_struct_take(&in, theirs, sizeof(in), sizeof(in), "how", "import", err)
	                : 0;

	o->how = (struct shf_export_opts){ .dtype = in.dtype, .family = in.family, .as = in.as,
		.prefix = in.prefix, .is_step = true, .file_bytes_max = in.file_bytes_max,
		.memory_bytes = in.memory_bytes, .progress = in.progress, .arg = in.arg };
	if (rc == 0 && in.as && !shf_family_is_valid(in.as))
		rc = shf_fail(err, SHEAF_EINVAL, "how.as is '%.60s': it must be the name of a "
		              "family, 1 to 32 characters a-z, 0-9 and _, the first a letter",
		              in.as);
	return rc == 0 ? export_defaults(&o->how, err) : rc;
}

SHEAF_API int sheaf_checkpoint_map(struct sheaf_checkpoint **mapped,
                                   struct sheaf_checkpoint *checkpoint,
                                   const struct sheaf_map *how, struct sheaf_error *err)
{
	struct sheaf_map in = { .size = sizeof(in) };
	struct shf_map_opts opts;
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = mapped ? step_check(checkpoint, err)
	            : shf_fail(err, SHEAF_EINVAL, "argument 'mapped' is NULL");
	if (rc == 0)
		rc = how ? shf_struct_take(&in, how, sizeof(in), sizeof(in), "how", "map", err)
		         : shf_fail(err, SHEAF_EINVAL, "argument 'how' is NULL");
	if (rc == 0 && (!in.file || !in.file[0]))
		rc = shf_fail(err, SHEAF_EINVAL, "how.file is NULL or empty");
	if (rc == 0) {
		opts = (struct shf_map_opts){ in.file, in.to, in.set, in.config, in.family,
			in.memory_bytes ? in.memory_bytes : UINT64_C(128) << 20,
			in.prefix ? in.prefix : "" };
		rc = shf_map_step(mapped, checkpoint, &opts, err);
	}
	return shf_ended(rc, err);
}

/* Begins a call that writes a checkpoint to the directory `dir`. */
static int writing_begin(struct shf_reporting *heard, struct sheaf_report *report, const char *dir,
                         struct sheaf_error *err)
{
	if (!dir || !dir[0])
		return shf_fail(err, SHEAF_EINVAL, "argument 'dir' is NULL or empty");
	return shf_report_begin(heard, report, err);
}

SHEAF_API int sheaf_checkpoint_export(struct sheaf_checkpoint *checkpoint, const char *dir,
                                      const struct sheaf_export *how, struct sheaf_report *report,
                                      struct sheaf_error *err)
{
	struct shf_export_opts opts;
	struct shf_reporting heard;
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = step_check(checkpoint, err);
	if (rc == 0)
		rc = export_take(&opts, how, err);
	if (rc == 0)
		rc = writing_begin(&heard, report, dir, err);
	if (rc == 0) {
		rc = shf_step_export(checkpoint, dir, &opts, &heard.own, err);
		shf_report_end(&heard, report);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_checkpoint_import(struct sheaf_checkpoint *checkpoint, const char *dir,
                                      int64_t number, const struct sheaf_import *how,
                                      struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_import_opts opts = { .number = number };
	struct shf_reporting heard;
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = step_check(checkpoint, err);
	if (rc == 0 && number < -1)
		rc = shf_fail(err, SHEAF_EINVAL, "argument 'number' is %lld", (long long)number);
	if (rc == 0)
		rc = import_take(&opts, how, err);
	if (rc == 0)
		rc = writing_begin(&heard, report, dir, err);
	if (rc == 0) {
		rc = shf_step_import(checkpoint, dir, &opts, &heard.own, err);
		shf_report_end(&heard, report);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_checkpoint_repair_index(struct sheaf_checkpoint *checkpoint,
                                            struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = step_check(checkpoint, err);
	if (rc == 0)
		rc = shf_step_repair_index(checkpoint, err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_checkpoint_read(struct sheaf_checkpoint *checkpoint,
                                    const struct sheaf_slice *slice, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = step_check(checkpoint, err);
	if (rc == 0)
		rc = shf_step_read(checkpoint, slice, err);
	return shf_ended(rc, err);
}
