/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of Hugging Face with weights in torch.save files: pytorch_model.bin, or several
 * pytorch_model-00001-of-00003.bin and an index, and the same of adapters (PEFT). The files say
 * what they have; an index is only compared with them, and may be missing, damaged or wrong.
 * Weights in safetensors files are read here only if a trainer's files are beside them
 * (hf_trainer.c).
 *
 * Source: modeling_utils.py of transformers 4.57, which was the last to write them. */
#include "torch_folder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "shards.h"
#include "sort.h"
#include "torch_zip.h"
#include "valid.h"
#include "zip_verify.h"

#define INDEX_MAX (UINT64_C(256) << 20)

/* Names of weights: <stem><tail>, and shards of it. */
struct weights_name { const char *stem, *tail; };
static const struct weights_name weights_names[] = { { "model", ".safetensors" },
	{ "adapter_model", ".safetensors" }, { "pytorch_model", ".bin" },
	{ "adapter_model", ".bin" } };

/* Whether a file has weights: one file, or a shard. */
static bool is_weights_of(const char *name, const struct weights_name *of)
{
	size_t n = strlen(of->stem);
	struct shf_shard s;

	if (strncmp(name, of->stem, n))
		return false;
	return strcmp(name + n, of->tail) == 0 ||
	       (shf_shard_of(&s, name, of->tail) && (size_t)s.stem == n);
}

/* Finds weights in a directory: sets *of, and returns the name of a file of them, or NULL. */
static const char *find_weights(const struct shf_listing *l, const struct weights_name **of)
{
	for (size_t k = 0; k < sizeof(weights_names) / sizeof(weights_names[0]); k++)
		for (size_t i = 0; i < shf_listing_n(l); i++)
			if (is_weights_of(shf_listing_at(l, i), &weights_names[k])) {
				*of = &weights_names[k];
				return shf_listing_at(l, i);
			}
	return NULL;
}

/* Whether a directory has a safetensors file: then only these are read. */
static bool has_safetensors(const struct shf_listing *l)
{
	for (size_t i = 0; i < shf_listing_n(l); i++) {
		const char *end = strrchr(shf_listing_at(l, i), '.');

		if (end && strcmp(end, ".safetensors") == 0)
			return true;
	}
	return false;
}

/* Returns 1 if a file is an archive of torch.save, 2 if it is a legacy one, 0 if neither. */
static int file_kind(const struct shf_region *r, struct sheaf_error *err)
{
	const char *why;
	int rc = shf_torch_save.is_file(r, &why, err);

	if (rc == 0)
		rc = 2 * shf_torch_legacy.is_file(r, &why, err);
	return rc < 0 ? err->code : rc;
}

int shf_torch_file_kind(const struct shf_sys *sys, int dir, const char *path, const char *name,
                        struct sheaf_error *err)
{
	int fd = shf_sys_open(sys, dir, name, 0, 0), rc = 0;
	struct shf_stat st;
	char where[800];

	if (fd >= 0 && shf_sys_fstat(sys, fd, &st) >= 0 && st.type == SHF_T_FILE) {
		struct shf_region r = { sys, fd, 0, st.bytes, where, NULL, false };

		snprintf(where, sizeof(where), "%.500s/%s", path, name);
		rc = file_kind(&r, err);
	}
	if (fd >= 0)
		shf_sys_close(sys, fd);
	return rc;
}

static int is_torch_folder(const struct shf_sys *sys, int dir, const char *path, const char **why,
                           struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_listing l;
	const struct weights_name *of;
	const char *name = NULL;
	int rc = shf_listing_read(&l, &arena, sys, dir, path, err);

	if (rc == 0 && !has_safetensors(&l))
		name = find_weights(&l, &of);
	if (name)
		rc = shf_torch_file_kind(sys, dir, path, name, err);
	*why = "torch.save files with the names of weights of Hugging Face";
	shf_buf_release(&l.a);
	shf_arena_release(&arena);
	return rc > 0 ? 1 : rc;
}

/* ---- reading it ---- */

struct torch_folder {
	struct shf_foreign *f;
	struct sheaf_error *err;
	const struct shf_listing *l;    /* borrowed; the names in the directory */
	const struct weights_name *of;
	char index_name[64];
	struct shf_index index;
	bool indexed;                   /* index is filled in */
	struct shf_buf files;           /* owned; of const char * */
	const char *file;               /* the file whose weights are being added */
	char prefix[16];                /* what their names begin with */
};

static int folder_no_memory(const struct torch_folder *d)
{
	return shf_fail(d->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", d->f->path);
}

/* Keeps what is wrong with the index, as evidence for a person. */
static int keep_flaw(struct torch_folder *d, const char *what)
{
	struct shf_buf text = SHF_BUF_INIT;

	shf_buf_addf(&text, "%s; the files themselves were read instead", what);
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
	char whole[64];
	int rc;

	snprintf(d->index_name, sizeof(d->index_name), "%s%s.index.json", d->of->stem,
	         d->of->tail);
	if (!shf_listing_has(d->l, d->index_name))
		return 0;
	rc = shf_foreign_slurp(d->f, NULL, d->index_name, INDEX_MAX, &bytes, d->err);
	if (rc == 0) {
		rc = shf_index_parse(&d->index, &d->f->arena, bytes.data, bytes.len, d->index_name,
		                     &flaw);
		if (rc == 0 && !d->index.n)
			rc = shf_fail(&flaw, SHEAF_EFORMAT, "%s: it lists no tensor",
			              d->index_name);
		snprintf(whole, sizeof(whole), "%s%s", d->of->stem, d->of->tail);
		if (rc == 0 && shf_shards_are_beside(&d->index, whole,
		                                     (char *const *)(void *)d->l->a.data,
		                                     shf_listing_n(d->l)))
			rc = shf_fail(&flaw, SHEAF_EFORMAT, "%s: names other files, and %s is "
			              "there, which transformers reads instead; remove what is "
			              "old", d->index_name, whole);
		d->indexed = rc == 0;
		if (rc == SHEAF_EFORMAT && !d->index.leaves)
			rc = keep_flaw(d, flaw.msg);
		else if (rc < 0)
			rc = shf_fail(d->err, rc, "%s/%s", d->f->path, flaw.msg);
	}
	shf_buf_release(&bytes);
	return rc;
}

/* Lists the files by their names: only <stem>.bin, or all shards. EFORMAT: there is none, or one is
 * missing. */
static int files_by_name(struct torch_folder *d, struct sheaf_error *err)
{
	char *const *names = (char *const *)(void *)d->l->a.data;
	size_t n = shf_listing_n(d->l);
	char one[64], want[300];
	bool alone;

	snprintf(one, sizeof(one), "%s%s", d->of->stem, d->of->tail);
	alone = shf_listing_has(d->l, one);
	for (size_t i = 0; i < n; i++) {
		if (alone ? strcmp(names[i], one) != 0 : !is_weights_of(names[i], d->of))
			continue;
		shf_buf_add(&d->files, &names[i], sizeof(names[i]));
		if (shf_shard_is_missing(names, n, names[i], d->of->tail, want))
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
	if (shf_shards_of_index(&d->files, &d->index, (char *const *)(void *)d->l->a.data,
	                        shf_listing_n(d->l), d->of->tail, &missing) < 0)
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

int shf_torch_file_add(struct shf_foreign *f, uint32_t file, const struct shf_torch_show *show,
                       struct sheaf_error *err)
{
	struct shf_region r;
	int rc = shf_foreign_region(f, file, &r, err), kind;

	if (rc < 0)
		return rc;
	kind = file_kind(&r, err);
	shf_foreign_region_end(f, file);
	if (kind == 0)
		return shf_fail(err, SHEAF_EFORMAT, "%s: is not a torch.save file", r.where);
	return kind < 0 ? kind : kind == 1 ? shf_torch_save_add(f, file, show, err)
	                                   : shf_torch_legacy_add(f, file, show, err);
}

/* ---- weights ---- */

/* Keeps the name of a weight that is not read. An index lists it like any other. */
static int add_unread(struct torch_folder *d, const char *name, size_t n)
{
	struct shf_index_entry e = { shf_arena_strdup(&d->f->arena, name, n), d->file };

	shf_buf_add(&d->f->unread, &e, sizeof(e));
	return e.name && !d->f->unread.oom ? 0 : folder_no_memory(d);
}

/* Keeps the names of all weights in a torch.save file that are not read, such as quantised
 * ones. */
static int add_all_unread(void *arg, const struct shf_pk *root, const char *where,
                          struct sheaf_error *err)
{
	struct torch_folder *d = arg;
	struct shf_torch_tensor t;
	const char *why;
	int rc = 0;

	(void)where;
	(void)err;      /* it is d->err */
	for (uint32_t i = 0; root->kind == SHF_PK_DICT && i < root->n && rc == 0; i++) {
		const struct shf_pk *key = root->u.a[2 * i];

		if (key->kind == SHF_PK_STR && !memchr(key->u.s, 0, key->n) &&
		    shf_torch_tensor_of(&t, root->u.a[2 * i + 1], &why) == SHF_TENSOR_UNREAD)
			rc = add_unread(d, key->u.s, key->n);
	}
	return rc;
}

static void show_weight(void *arg, const char *name, size_t n, const char **family,
                        struct shf_buf *shown)
{
	const struct torch_folder *d = arg;

	(void)family;
	shf_buf_adds(shown, d->prefix);
	shf_buf_add(shown, name, n);
}

/* Adds a tensor of a safetensors file. */
static int add_st_tensor(struct torch_folder *d, const struct shf_foreign_tensor *x,
                         const char *name)
{
	struct shf_buf shown = SHF_BUF_INIT;
	const char *family;
	int rc;

	show_weight(d, name, strlen(name), &family, &shown);
	rc = shown.oom ? folder_no_memory(d)
	   : shf_foreign_add_tensor(d->f, x, shown.len ? (const char *)shown.data : "", shown.len,
	                            d->err);
	shf_buf_release(&shown);
	return rc;
}

/* Adds the tensors of a safetensors file. */
static int add_safetensors(struct torch_folder *d, const char *name)
{
	struct shf_foreign *f = d->f;
	struct shf_st st;
	uint32_t file;
	int rc = shf_foreign_st_read(f, name, &file, &st, d->err);

	for (size_t i = 0; i < st.n && rc == 0; i++) {
		const struct shf_st_tensor *t = &st.tensors[i];
		struct shf_foreign_tensor x = { .dtype = t->dtype, .ndim = t->ndim,
			.dims = t->shape, .n = 1 };
		struct shf_foreign_piece p = { .file = file, .at = st.header_bytes + t->off };

		if (shf_dtype(t->dtype)->bits < 8) {
			f->unread_n++;
			rc = shf_foreign_note(f, d->err, t->name, strlen(t->name), "a tensor of a "
			                      "type smaller than a byte, which sheaf does not "
			                      "read");
			if (rc == 0)
				rc = add_unread(d, t->name, strlen(t->name));
			continue;
		}
		shf_buf_add(&f->pieces, &p, sizeof(p));
		rc = add_st_tensor(d, &x, t->name);
	}
	return rc;
}

static int add_weights_of(struct torch_folder *d, const char *name)
{
	const struct shf_torch_show show = { .begin = add_all_unread, .show = show_weight,
		.arg = d };
	uint32_t file;
	int rc;

	d->file = name;
	if (d->of->tail[1] == 's')
		return add_safetensors(d, name);
	rc = shf_foreign_add_file(d->f, name, strlen(name), &file, d->err);
	return rc < 0 ? rc : shf_torch_file_add(d->f, file, &show, d->err);
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

/* Refuses an index that lists a weight which none of the files has, because a file may be
 * missing. */
static int check_all_listed(struct torch_folder *d)
{
	const struct shf_index_entry *unread = (const void *)d->f->unread.data;
	size_t n, m = d->f->unread.len / sizeof(*unread);
	const struct shf_foreign_tensor *t = shf_foreign_tensors(d->f, &n);
	const char **names = shf_alloc(n + m + 1, sizeof(*names));
	int rc = names ? 0 : folder_no_memory(d);

	for (size_t i = 0; names && i < n; i++)
		names[i] = t[i].name;
	for (size_t i = 0; names && i < m; i++)
		names[n + i] = unread[i].name;
	if (names && n + m)
		qsort(names, n + m, sizeof(*names), torch_names_order);
	for (size_t i = 0; i < d->index.n && rc == 0; i++) {
		const struct shf_index_entry *e = &d->index.entries[i];

		if (!bsearch(&e->name, names, n + m, sizeof(*names), torch_names_order))
			rc = shf_fail(d->err, SHEAF_EFORMAT, "%s: the index says that tensor %.*s "
			              "is in %s, but neither that file nor another one of the "
			              "index has it", d->f->path, shf_name_show(e->name), e->name,
			              e->file);
	}
	shf_free(names);
	return rc;
}

/* Compares what the index says of a weight with the file that has it. */
static void compare_weight(const struct torch_folder *d, const char *name, const char *file,
                           struct shf_index_wrong *moved, struct shf_index_wrong *unlisted)
{
	const char *said = file_of_entry(&d->index, name);
	struct shf_index_wrong *wrong = said ? moved : unlisted;

	if (!said || strcmp(said, file))
		wrong->name = wrong->n++ ? wrong->name : name;
}

/* Compares the index, whose entries are sorted here, with what the files have. */
static int compare_index(struct torch_folder *d)
{
	struct shf_index_wrong moved = { 0, NULL }, unlisted = { 0, NULL };
	const struct shf_foreign_piece *piece = (const void *)d->f->pieces.data;
	const struct shf_index_entry *unread = (const void *)d->f->unread.data;
	struct shf_buf text = SHF_BUF_INIT;
	size_t n;
	const struct shf_foreign_tensor *t = shf_foreign_tensors(d->f, &n);
	int rc;

	qsort(d->index.entries, d->index.n, sizeof(*d->index.entries), torch_entries_order);
	rc = check_all_listed(d);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++)
		compare_weight(d, t[i].name, shf_foreign_file(d->f, piece[t[i].first].file)->name,
		               &moved, &unlisted);
	for (size_t i = 0; i < d->f->unread.len / sizeof(*unread); i++)
		compare_weight(d, unread[i].name, unread[i].file, &moved, &unlisted);
	if (!moved.n && !unlisted.n)
		return 0;
	shf_index_describe(&text, d->index_name, moved, unlisted);
	shf_buf_u8(&text, 0);
	rc = text.oom ? folder_no_memory(d) : keep_flaw(d, (const char *)text.data);
	shf_buf_release(&text);
	return rc;
}

int shf_torch_folder_weights(struct shf_foreign *f, const struct shf_listing *l,
                             struct sheaf_error *err)
{
	struct torch_folder d = { .f = f, .l = l, .err = err };
	int rc = 0;

	f->may_have_index = true;
	if (!find_weights(l, &d.of))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: has changed while it was being opened",
		              f->path);
	if (rc == 0)
		rc = folder_index(&d);
	if (rc == 0)
		rc = folder_files(&d);
	for (size_t i = 0; rc == 0 && i < d.files.len / sizeof(char *); i++)
		rc = add_weights_of(&d, ((const char **)(void *)d.files.data)[i]);
	if (rc == 0)
		rc = shf_foreign_check_names(f, err);
	if (rc == 0 && d.indexed)
		rc = compare_index(&d);
	shf_buf_release(&d.files);
	return rc;
}

int shf_torch_folder_more(struct shf_foreign *f, const struct shf_listing *l, int i,
                          struct sheaf_error *err)
{
	static const struct weights_name names[] = { { "model", ".safetensors" },
		{ "pytorch_model", ".bin" } };
	struct torch_folder d = { .f = f, .l = l, .err = err };
	char name[64];
	const char *own;
	int rc;

	snprintf(d.prefix, sizeof(d.prefix), "model_%d.", i);
	for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
		d.of = &names[k];
		snprintf(name, sizeof(name), "%s_%d%s", d.of->stem, i, d.of->tail);
		if (!shf_listing_has(l, name))
			continue;
		f->may_have_index = false;      /* an index is of one model */
		own = shf_arena_strdup(&f->arena, name, strlen(name));
		rc = own ? add_weights_of(&d, own) : folder_no_memory(&d);
		rc = rc < 0 ? rc : shf_foreign_check_names(f, err);
		return rc < 0 ? rc : 1;
	}
	return 0;
}

bool shf_torch_folder_has_weights(const struct shf_listing *l)
{
	const struct weights_name *of;

	return find_weights(l, &of) != NULL;
}

static int open_torch_folder(struct shf_foreign *f, struct sheaf_error *err)
{
	struct shf_listing l;
	int rc = shf_listing_read(&l, &f->arena, f->in, f->dir, f->path, err);

	if (rc == 0)
		rc = shf_torch_folder_weights(f, &l, err);
	shf_buf_release(&l.a);
	return rc;
}

const struct shf_foreign_format shf_torch_folder = {
	.name = "torch.save (hf)",
	.is_dir = is_torch_folder,
	.open = open_torch_folder,
	.verify = shf_zip_verify_files,
};
