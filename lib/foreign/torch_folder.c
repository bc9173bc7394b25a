/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of Hugging Face with weights in files of torch.save: pytorch_model.bin, or several
 * pytorch_model-00001-of-00003.bin and an index, and the same of adapters (PEFT). The files say
 * what they have; an index is only compared with them, and may be missing, damaged or wrong.
 *
 * Source: modeling_utils.py of transformers 4.57, which was the last to write them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "foreign_st.h"
#include "shards.h"
#include "sort.h"
#include "torch_walk.h"
#include "torch_zip.h"
#include "valid.h"

#define TAIL ".bin"
#define INDEX_TAIL ".bin.index.json"
#define INDEX_MAX (UINT64_C(256) << 20)

static const char *const stems[] = { "pytorch_model", "adapter_model" };

/* Whether a file is one of weights of this stem: <stem>.bin, or a shard. */
static bool is_weights_of(const char *name, const char *stem)
{
	size_t n = strlen(stem);
	struct shf_shard s;

	if (strncmp(name, stem, n))
		return false;
	return strcmp(name + n, TAIL) == 0 ||
	       (shf_shard_of(&s, name, TAIL) && (size_t)s.stem == n);
}

/* Finds weights in a directory: sets *stem, and returns the name of a file of them, or NULL. A
 * directory that also has safetensors files is read by these. */
static const char *find_weights(const struct shf_listing *l, const char **stem)
{
	for (size_t i = 0; i < shf_listing_n(l); i++) {
		const char *name = shf_listing_at(l, i), *end = strrchr(name, '.');

		if (end && strcmp(end, ".safetensors") == 0)
			return NULL;
	}
	for (size_t k = 0; k < sizeof(stems) / sizeof(stems[0]); k++)
		for (size_t i = 0; i < shf_listing_n(l); i++)
			if (is_weights_of(shf_listing_at(l, i), stems[k])) {
				*stem = stems[k];
				return shf_listing_at(l, i);
			}
	return NULL;
}

/* Returns 1 if a file is an archive of torch.save, 2 if it is a legacy one, 0 if neither. */
static int torch_kind(const struct shf_region *r, struct sheaf_error *err)
{
	const char *why;
	int rc = shf_torch_save.is_file(r, &why, err);

	if (rc == 0)
		rc = 2 * shf_torch_legacy.is_file(r, &why, err);
	return rc < 0 ? err->code : rc;
}

static int is_torch_folder(const struct shf_sys *sys, int dir, const char *path, const char **why,
                           struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_listing l;
	const char *stem, *name = NULL;
	struct shf_stat st;
	char where[800];
	int fd = -1, rc = shf_listing_read(&l, &arena, sys, dir, path, err);

	if (rc == 0)
		name = find_weights(&l, &stem);
	if (name)
		fd = shf_sys_open(sys, dir, name, 0, 0);
	if (fd >= 0 && shf_sys_fstat(sys, fd, &st) >= 0 && st.type == SHF_T_FILE) {
		struct shf_region r = { sys, fd, 0, st.bytes, where };

		snprintf(where, sizeof(where), "%.500s/%s", path, name);
		rc = torch_kind(&r, err);
		rc = rc > 0 ? 1 : rc;
	}
	if (fd >= 0)
		shf_sys_close(sys, fd);
	*why = "files of torch.save with the names of weights of Hugging Face";
	shf_buf_release(&l.a);
	shf_arena_release(&arena);
	return rc;
}

/* ---- reading it ---- */

struct torch_folder {
	struct shf_foreign *f;
	struct sheaf_error *err;
	struct shf_listing l;
	const char *stem;
	char index_name[64];
	struct shf_index index;
	bool indexed;                   /* index is filled in */
	struct shf_buf files;           /* owned; of const char * */
};

static int folder_no_memory(const struct torch_folder *d)
{
	return shf_fail(d->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", d->f->path);
}

/* Keeps what is wrong with the index, as evidence for a person. */
static int keep_flaw(struct torch_folder *d, const char *what)
{
	struct shf_buf text = SHF_BUF_INIT;

	shf_buf_addf(&text, "%s; the files of torch.save were read instead", what);
	d->f->index = shf_arena_strdup(&d->f->arena, d->index_name, strlen(d->index_name));
	d->f->why = text.oom ? NULL : shf_arena_strdup(&d->f->arena, (const char *)text.data,
	                                               text.len);
	shf_buf_release(&text);
	return d->f->index && d->f->why ? 0 : folder_no_memory(d);
}

/* Reads the index, if there is one. What cannot be parsed is a flaw, unless it leads out of the
 * directory. */
static int folder_index(struct torch_folder *d)
{
	struct shf_buf bytes = SHF_BUF_INIT;
	struct sheaf_error flaw = { 0 };
	int rc;

	snprintf(d->index_name, sizeof(d->index_name), "%s" INDEX_TAIL, d->stem);
	if (!shf_listing_has(&d->l, d->index_name))
		return 0;
	rc = shf_foreign_slurp(d->f, NULL, d->index_name, INDEX_MAX, &bytes, d->err);
	if (rc == 0) {
		rc = shf_index_parse(&d->index, &d->f->arena, bytes.data, bytes.len, d->index_name,
		                     &flaw);
		if (rc == 0 && !d->index.n)
			rc = shf_fail(&flaw, SHEAF_EFORMAT, "%s: it lists no tensor",
			              d->index_name);
		d->indexed = rc == 0;
		if (rc == SHEAF_EFORMAT && !d->index.leaves)
			rc = keep_flaw(d, flaw.msg);
		else if (rc < 0)
			rc = shf_fail(d->err, rc, "%s/%s", d->f->path, flaw.msg);
	}
	shf_buf_release(&bytes);
	return rc;
}

/* Lists the files by their names: <stem>.bin alone, or all shards. EFORMAT: there is none, or one
 * is missing. */
static int files_by_name(struct torch_folder *d, struct sheaf_error *err)
{
	char *const *names = (char *const *)(void *)d->l.a.data;
	size_t n = shf_listing_n(&d->l);
	char one[64], want[300];
	bool alone;

	snprintf(one, sizeof(one), "%s" TAIL, d->stem);
	alone = shf_listing_has(&d->l, one);
	for (size_t i = 0; i < n; i++) {
		if (alone ? strcmp(names[i], one) != 0 : !is_weights_of(names[i], d->stem))
			continue;
		shf_buf_add(&d->files, &names[i], sizeof(names[i]));
		if (shf_shard_is_missing(names, n, names[i], TAIL, want))
			return shf_fail(err, SHEAF_EFORMAT, "%s: %s is missing", d->f->path, want);
	}
	if (!d->files.len)
		return shf_fail(err, SHEAF_EFORMAT, "%s: has changed while it was being opened",
		                d->f->path);
	return d->files.oom ? folder_no_memory(d) : 0;
}

/* Lists the files by the index. If one of them is missing, they are listed by their names: the
 * tensors may be in others. */
static int folder_files(struct torch_folder *d)
{
	const char *missing = NULL;
	struct sheaf_error own;
	int rc;

	if (!d->indexed) {
		rc = files_by_name(d, d->err);
		if (rc < 0 || d->f->index || d->files.len == sizeof(char *))
			return rc;
		snprintf(own.msg, sizeof(own.msg), "%s: missing", d->index_name);
		return keep_flaw(d, own.msg);
	}
	if (shf_shards_of_index(&d->files, &d->index, (char *const *)(void *)d->l.a.data,
	                        shf_listing_n(&d->l), TAIL, &missing) < 0)
		return folder_no_memory(d);
	if (!missing)
		return 0;
	shf_buf_reset(&d->files);
	rc = files_by_name(d, &own);
	if (rc == SHEAF_ENOMEM)
		return folder_no_memory(d);
	return rc == 0 ? 0 : shf_fail(d->err, SHEAF_EFORMAT, "%s: the index names %s, which is "
	                              "missing", d->f->path, missing);
}

static int add_weights_file(struct torch_folder *d, const char *name)
{
	struct shf_region r;
	uint32_t file;
	int rc = shf_foreign_add_file(d->f, name, strlen(name), &file, d->err), kind;

	if (rc == 0)
		rc = shf_foreign_region(d->f, file, &r, d->err);
	if (rc < 0)
		return rc;
	kind = torch_kind(&r, d->err);
	shf_foreign_region_end(d->f, file);
	if (kind == 0)
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: is not a file of torch.save", r.where);
	return kind < 0 ? kind : kind == 1 ? shf_torch_save_add(d->f, file, NULL, d->err)
	                                   : shf_torch_legacy_add(d->f, file, NULL, d->err);
}

/* ---- the index ---- */

static int torch_names_order(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int torch_entries_order(const void *a, const void *b)
{
	return strcmp(((const struct shf_index_entry *)a)->name,
	              ((const struct shf_index_entry *)b)->name);
}

/* Returns the file in which a sorted index has the tensor, or NULL. */
static const char *file_of_entry(const struct shf_index *sorted, const char *name)
{
	struct shf_index_entry key = { name, NULL };
	const struct shf_index_entry *e = bsearch(&key, sorted->entries, sorted->n, sizeof(key),
	                                          torch_entries_order);

	return e ? e->file : NULL;
}

/* Refuses an index that lists a tensor which none of the files has. */
static int refuse_index(struct torch_folder *d, const struct shf_foreign_tensor *t, size_t n)
{
	const struct shf_index_entry *e = d->index.entries;
	const char **names = shf_alloc(n + 1, sizeof(*names));

	for (size_t i = 0; names && i < n; i++)
		names[i] = t[i].name;
	if (names)
		qsort(names, n, sizeof(*names), torch_names_order);
	for (size_t i = 0; names && i < d->index.n - 1; i++, e++)
		if (!bsearch(&e->name, names, n, sizeof(*names), torch_names_order))
			break;
	shf_free(names);
	return !names ? folder_no_memory(d)
	     : shf_fail(d->err, SHEAF_EFORMAT, "%s: the index says that tensor %.*s is in %s, but "
	                "neither that file nor another one of the index has it", d->f->path,
	                shf_name_show(e->name), e->name, e->file);
}

/* Compares the index, whose entries are sorted here, with what the files have. An index that lists
 * a tensor which no file has is refused, because a file may be missing. */
static int compare_index(struct torch_folder *d)
{
	struct shf_index_wrong moved = { 0, NULL }, unlisted = { 0, NULL };
	const struct shf_foreign_piece *piece = (const void *)d->f->pieces.data;
	struct shf_buf text = SHF_BUF_INIT;
	size_t n, found = 0;
	const struct shf_foreign_tensor *t = shf_foreign_tensors(d->f, &n);
	int rc;

	qsort(d->index.entries, d->index.n, sizeof(*d->index.entries), torch_entries_order);
	for (size_t i = 0; i < n; i++) {
		const char *file = file_of_entry(&d->index, t[i].name);

		found += file != NULL;
		if (!file)
			unlisted.name = unlisted.n++ ? unlisted.name : t[i].name;
		else if (strcmp(file, shf_foreign_file(d->f, piece[t[i].first].file)->name))
			moved.name = moved.n++ ? moved.name : t[i].name;
	}
	if (found < d->index.n)
		return refuse_index(d, t, n);
	if (!moved.n && !unlisted.n)
		return 0;
	shf_index_describe(&text, d->index_name, moved, unlisted);
	shf_buf_u8(&text, 0);
	rc = text.oom ? folder_no_memory(d) : keep_flaw(d, (const char *)text.data);
	shf_buf_release(&text);
	return rc;
}

static int open_torch_folder(struct shf_foreign *f, struct sheaf_error *err)
{
	struct torch_folder d = { .f = f, .err = err };
	int rc = shf_listing_read(&d.l, &f->arena, f->in, f->dir, f->path, err);

	if (rc == 0 && !find_weights(&d.l, &d.stem))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: has changed while it was being opened",
		              f->path);
	if (rc == 0)
		rc = folder_index(&d);
	if (rc == 0)
		rc = folder_files(&d);
	for (size_t i = 0; rc == 0 && i < d.files.len / sizeof(char *); i++)
		rc = add_weights_file(&d, ((const char **)(void *)d.files.data)[i]);
	if (rc == 0 && d.indexed)
		rc = compare_index(&d);
	shf_buf_release(&d.files);
	shf_buf_release(&d.l.a);
	return rc;
}

const struct shf_foreign_format shf_torch_folder = {
	.name = "torch.save (hf)",
	.is_dir = is_torch_folder,
	.open = open_torch_folder,
	.verify = shf_torch_zip_verify_files,
};
