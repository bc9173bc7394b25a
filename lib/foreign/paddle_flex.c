/* SPDX-License-Identifier: Apache-2.0 */
/* Flex checkpoints of paddle.distributed. <number>.metadata, a pickle, has for each tensor a list
 * of parts, and for each part the files that have it. A part is a box of the tensor, or a flat
 * range of a box. The file <rank>_<number>.distcp, which paddle.save wrote, has the parts of one
 * rank. A trainer puts up to four such directories into one.
 *
 * Source: python/paddle/distributed/flex_checkpoint/dcp of Paddle 3.3, and directories that it and
 * Paddle 3.0 wrote. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "paddle_facts.h"
#include "paddle_flex_index.h"
#include "paddle_tensor.h"
#include "sort.h"
#include "valid.h"

/* ---- recognising it ---- */

/* The metadata with the highest number: each save into the same directory takes the next number. */
struct newest {
	long number;                    /* -1: there are no metadata */
	int n;                          /* how many metadata there are */
	bool data;                      /* there are .distcp files */
};

static int see_metadata(void *arg, const char *name)
{
	struct newest *x = arg;
	char end[12];
	size_t n = strlen(name);
	unsigned number;

	if (sscanf(name, "%9u.%11s", &number, end) == 2 && strcmp(end, "metadata") == 0 &&
	    *name >= '0' && *name <= '9') {
		x->number = (long)number > x->number ? (long)number : x->number;
		x->n++;
	}
	x->data |= n > 7 && strcmp(name + n - 7, ".distcp") == 0;
	return 0;
}

/* Finds the newest metadata of a directory, or of a folder in it. Returns 1 if they are Paddle's, 0
 * if there are none, or a negative code. */
static int find_metadata(const struct shf_sys *sys, int dir, const char *path, const char *folder,
                         struct newest *x, struct sheaf_error *err)
{
	static const char *const modules[] = { "paddle.distributed.flex_checkpoint.dcp.metadata",
		"paddle.distributed.checkpoint.metadata" };
	int in = folder ? shf_sys_open(sys, dir, folder, SHF_O_DIR, 0) : dir, rc;
	char name[40];

	*x = (struct newest){ .number = -1 };
	if (in == -ENOENT || in == -ENOTDIR)
		return 0;
	rc = in < 0 ? in : shf_sys_list(sys, in, see_metadata, x);
	snprintf(name, sizeof(name), "%ld.metadata", x->number);
	if (rc < 0)
		rc = folder ? shf_fail_sys(err, -rc, "%s/%s", path, folder)
		            : shf_fail_sys(err, -rc, "%s", path);
	else if (x->number >= 0)
		rc = shf_begins_with_any(sys, in, name, modules, 2, err);
	if (folder && in >= 0)
		shf_sys_close(sys, in);
	return rc;
}

static int is_flex(const struct shf_sys *sys, int dir, const char *path, const char **why,
                   struct sheaf_error *err)
{
	struct newest x;
	int rc = find_metadata(sys, dir, path, NULL, &x, err);

	*why = "a directory with <number>.metadata, a pickle of paddle.distributed";
	for (size_t i = 0; i < SHF_FLEX_FOLDERS && rc == 0; i++) {
		rc = find_metadata(sys, dir, path, shf_flex_folders[i].folder, &x, err);
		if (rc == 1)
			*why = "folders such as model_state with <number>.metadata, pickles of "
			       "paddle.distributed";
	}
	return rc;
}

/* ---- what the files have ---- */

struct flex_array {             /* an entry of a .distcp file */
	uint32_t file;
	const char *key;                /* key_n bytes */
	uint32_t key_n;
	int32_t dtype, ndim;
	const int64_t *dims;
	struct shf_foreign_piece piece;
};
struct flex {
	struct shf_foreign *f;
	struct sheaf_error *err;
	const char *folder, *family, *tail;
	struct shf_flex_index index;
	struct shf_pickle pickle;
	struct shf_arena arena;         /* keys of the present file */
	struct shf_buf arrays;          /* owned; of struct flex_array: those of the present file,
	                                 * sorted by key */
	struct shf_buf words;           /* owned; uint64_t: parts by file, as shf_key packs them */
};

static int flex_no_memory(const struct flex *x)
{
	return shf_fail(x->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", x->f->path);
}

static int flex_bad(const struct flex *x, const struct shf_flex_tensor *t, const char *why)
{
	const char *shown = shf_name_escape(&x->f->arena, t->name, t->name_n);

	if (!shown)
		return flex_no_memory(x);
	return shf_fail(x->err, SHEAF_EFORMAT, "%s: tensor %.*s: %s", x->f->path,
	                shf_name_show(shown), shown, why);
}

/* Adds an array of a file to the list. */
static int flex_add_array(struct flex *x, uint32_t file, const struct shf_pk *key,
                          const struct shf_numpy_array *a)
{
	struct flex_array own = { .file = file, .key_n = key->n };
	struct shf_foreign_tensor t;
	int rc = shf_numpy_shown(x->f, a, file, &t, &own.piece, x->err);

	own.key = shf_arena_strdup(&x->arena, key->u.s, key->n);
	if (rc < 0 || !own.key)
		return rc < 0 ? rc : flex_no_memory(x);
	own.dtype = t.dtype;
	own.ndim = t.ndim;
	own.dims = t.dims;
	shf_buf_add(&x->arrays, &own, sizeof(own));
	return x->arrays.oom ? flex_no_memory(x) : 0;
}

/* Reads what a safetensors file has, which paddle.save can write instead of a pickle. */
static int flex_read_st(struct flex *x, uint32_t file)
{
	struct shf_st st;
	int rc = shf_foreign_st_head(x->f, file, &st, x->err);

	for (size_t i = 0; rc == 0 && i < st.n; i++) {
		const struct shf_st_tensor *t = &st.tensors[i];
		struct flex_array own = { .file = file, .key = t->name, .ndim = t->ndim,
			.key_n = (uint32_t)strlen(t->name), .piece = { .file = file,
			.at = st.header_bytes + t->off },
			.dtype = t->dtype == SHEAF_U16 ? SHEAF_BF16 : t->dtype };
		int64_t *dims = shf_foreign_numbers(x->f, (size_t)t->ndim);

		if (!dims)
			return flex_no_memory(x);
		if (t->ndim > SHEAF_DIMS_MAX || shf_dtype(t->dtype)->bits < 8)
			continue;
		memcpy(dims, t->shape, (size_t)t->ndim * sizeof(*dims));
		own.dims = dims;
		shf_buf_add(&x->arrays, &own, sizeof(own));
	}
	return rc < 0 ? rc : x->arrays.oom ? flex_no_memory(x) : 0;
}

static int flex_key_compare(const char *a, uint32_t n, const char *b, uint32_t m)
{
	int c = memcmp(a, b, n < m ? n : m);

	return c ? c : (n > m) - (n < m);
}

static int arrays_order(const void *a, const void *b)
{
	const struct flex_array *x = a, *y = b;

	return flex_key_compare(x->key, x->key_n, y->key, y->key_n);
}

/* Reads a file of paddle.save. */
static int flex_read_pickle(struct flex *x, uint32_t file)
{
	struct shf_pickle p = { 0 };
	struct shf_region r;
	int rc = shf_foreign_region(x->f, file, &r, x->err);

	if (rc < 0)
		return rc;
	rc = shf_paddle_read(&p, &r, x->err);
	if (rc == 0 && p.root->kind != SHF_PK_DICT)
		rc = shf_fail(x->err, SHEAF_EFORMAT, "%s: is not a dictionary of tensors", r.where);
	for (uint32_t i = 0; rc == 0 && i < p.root->n; i++) {
		const struct shf_pk *key = p.root->u.a[2 * i];
		struct shf_numpy_array a;
		const char *why;

		if (key->kind == SHF_PK_STR &&
		    shf_paddle_tensor_of(&a, p.root->u.a[2 * i + 1], &why) == SHF_TENSOR_READ)
			rc = flex_add_array(x, file, key, &a);
	}
	shf_pickle_release(&p);
	shf_foreign_region_end(x->f, file);
	return rc;
}

/* Refuses a file that has two arrays of the same key: nothing says which of them is meant. */
static int flex_prove_arrays(const struct flex *x)
{
	const struct flex_array *a = (const void *)x->arrays.data;

	for (size_t i = 1; i < x->arrays.len / sizeof(*a); i++)
		if (arrays_order(&a[i - 1], &a[i]) == 0)
			return shf_fail(x->err, SHEAF_EFORMAT, "%s: has two arrays for one tensor",
			                shf_foreign_file(x->f, a[i].file)->where);
	return 0;
}

/* Lists the arrays in a file of a rank. */
static int flex_read_file(struct flex *x, uint32_t file)
{
	const char *path = shf_foreign_file(x->f, file)->name;
	size_t n = strlen(path);
	int rc;

	shf_buf_reset(&x->arrays);
	shf_arena_release(&x->arena);
	x->arena = (struct shf_arena){ 0 };
	rc = n > 12 && strcmp(path + n - 12, ".safetensors") == 0 ? flex_read_st(x, file)
	                                                          : flex_read_pickle(x, file);
	shf_records_sort(x->arrays.data, x->arrays.len / sizeof(struct flex_array),
	                 sizeof(struct flex_array), arrays_order);
	return rc < 0 ? rc : flex_prove_arrays(x);
}

/* ---- tensors ---- */

static const int64_t *part_start(const struct shf_flex_tensor *t, uint32_t i)
{
	return t->boxes + (size_t)i * 2 * t->ndim;
}

/* Returns the dtype of an array. NumPy has no float8 types, so Paddle writes those as int8. */
static int32_t flex_dtype(const struct flex_array *a, const struct shf_flex_tensor *t)
{
	return a->dtype == SHEAF_I8 && t->said ? t->said : a->dtype;
}

/* Notes where the array of part i is. Refuses one that does not have the dtype and the shape that
 * the metadata say. */
static int flex_take_array(struct flex *x, struct shf_flex_tensor *t, uint32_t i,
                           const struct flex_array *a)
{
	const int64_t *count = part_start(t, i) + t->ndim;
	const int64_t *range = t->ranges ? &t->ranges[2 * (size_t)i] : NULL;
	struct shf_flex_spot *spot = &t->spots[i];
	struct shf_foreign_piece *own;

	if (t->dtype && t->dtype != flex_dtype(a, t))
		return flex_bad(x, t, "has parts of two types");
	t->dtype = flex_dtype(a, t);
	if (range && range[0] >= 0) {
		if ((uint64_t)range[1] > shf_foreign_box_items(count, (int32_t)t->ndim) ||
		    a->ndim != 1 || a->dims[0] != range[1] - range[0])
			return flex_bad(x, t, "has a flat range that its file does not have");
	} else if (a->ndim != (int32_t)t->ndim ||
	           memcmp(a->dims, count, t->ndim * sizeof(*count))) {
		return flex_bad(x, t, "has another shape in its file than the metadata say; is it "
		                "of another save?");
	}
	spot->at = a->piece.at;
	spot->file = a->file;
	if (!a->piece.stride && !a->piece.text)
		return 0;
	spot->piece = own = shf_arena_alloc(&x->index.arena, 1, sizeof(*own));
	if (own)
		*own = a->piece;
	return own ? 0 : flex_no_memory(x);
}

/* Adds the pieces of part i. Returns how many, or a negative code. */
static int flex_add_piece(struct flex *x, const struct shf_flex_tensor *t,
                          const struct shf_foreign_tensor *own, uint32_t i)
{
	const int64_t *start = part_start(t, i), *count = start + t->ndim;
	const int64_t *range = t->ranges ? &t->ranges[2 * (size_t)i] : NULL;
	const struct shf_flex_spot *spot = &t->spots[i];
	struct shf_foreign_piece piece = { .file = spot->file, .at = spot->at };

	if (spot->piece)
		piece = *spot->piece;
	if (range && range[0] >= 0) {
		const struct shf_foreign_range r = { start, count, (uint64_t)range[0],
			(uint64_t)range[1], piece.at, piece.file, piece.text };

		return shf_foreign_add_range(x->f, own, &r, x->err);
	}
	if (!shf_foreign_box_items(count, (int32_t)t->ndim))
		return 0;
	piece.start = start;
	piece.count = count;
	shf_buf_add(&x->f->pieces, &piece, sizeof(piece));
	return x->f->pieces.oom ? flex_no_memory(x) : 1;
}

/* Sets the shape of a tensor: that in the metadata, or, if they have none, the smallest one that
 * contains all parts. */
static void flex_shape(const struct shf_flex_tensor *t, int64_t *dims)
{
	for (uint32_t d = 0; d < t->ndim; d++) {
		dims[d] = t->dims ? t->dims[d] : 0;
		for (uint32_t i = 0; !t->dims && i < t->parts_n; i++) {
			int64_t end = part_start(t, i)[d] + part_start(t, i)[t->ndim + d];

			dims[d] = end > dims[d] ? end : dims[d];
		}
	}
}

/* Refuses a tensor whose description in the metadata cannot be right or is not known. */
static int flex_prove_tensor(const struct flex *x, const struct shf_flex_tensor *t)
{
	const char *why = NULL;

	if (t->ndim > 64)
		why = "has more than 64 dimensions";
	else if (t->again || !t->parts_n)
		why = "is in the metadata twice, or has no parts";
	else if (t->odd)
		why = "has a part of a form that is not known";
	else if (t->leaves)
		why = "has a part that leaves it";
	return why ? flex_bad(x, t, why) : 0;
}

/* Returns a copy of the name that Sheaf gives a tensor of the present folder. */
static char *flex_name(const struct flex *x, const struct shf_flex_tensor *t)
{
	char *name = shf_arena_strdup(&x->f->arena, t->name, t->name_n), *dot;
	size_t n = name ? strlen(name) : 0, m = x->tail ? strlen(x->tail) : 0;

	if (!name)
		return NULL;
	dot = strrchr(name, '.');
	if (!x->tail && dot)
		*dot = '/';
	else if (x->tail && n > m && strcmp(name + n - m, x->tail) == 0)
		name[n - m] = '\0';
	return name;
}

/* Adds a tensor. A part that several ranks have is read from one of them. */
static int flex_add_tensor(struct flex *x, const struct shf_flex_tensor *t)
{
	struct shf_foreign_tensor own = { .family = x->family, .ndim = (int32_t)t->ndim,
		.dtype = t->dtype };
	int64_t *dims = shf_foreign_numbers(x->f, t->ndim);
	const char *name = flex_name(x, t);
	char why[300];
	int rc = 0;

	if (!dims || !name)
		return flex_no_memory(x);
	flex_shape(t, dims);
	own.dims = dims;
	for (uint32_t i = 0; i < t->parts_n && rc == 0; i++) {
		int pieces = t->spots[i].file == SHF_FLEX_TWICE ? 0 : flex_add_piece(x, t, &own, i);

		rc = pieces < 0 ? pieces : 0;
		own.n += pieces < 0 ? 0 : (size_t)pieces;
	}
	if (rc == 0)
		rc = shf_foreign_cover(x->f, &own, own.n, why);
	if (rc)
		return rc == SHEAF_ENOMEM ? flex_no_memory(x)
		     : rc < 0 ? rc : flex_bad(x, t, why);
	return shf_foreign_add_tensor(x->f, &own, name, strlen(name), x->err);
}

/* ---- a directory ---- */

/* Reads the metadata into x->index. */
static int flex_read(struct flex *x, const struct newest *newest)
{
	const struct shf_pickle_taker taker = { shf_flex_index_take, &x->index };
	struct shf_region r;
	uint32_t file;
	char name[40];
	int rc;

	snprintf(name, sizeof(name), "%ld.metadata", newest->number);
	rc = shf_foreign_add_file_in(x->f, x->folder, name, strlen(name), &file, x->err);
	if (rc == 0)
		rc = shf_foreign_region(x->f, file, &r, x->err);
	if (rc < 0)
		return rc;
	x->index.kept = &x->f->arena;
	x->index.left = 64 * r.bytes + (1 << 20);
	rc = r.bytes > SHF_PICKLE_MAX
	   ? shf_fail(x->err, SHEAF_EFORMAT, "%s: is not a file of at most 1 GiB", r.where)
	   : shf_pickle_read_file(&x->pickle, &r, &taker, x->err);
	if (rc == 0 && !shf_flex_index_end(&x->index, x->pickle.root) && !x->index.oom)
		rc = shf_fail(x->err, SHEAF_EFORMAT, "%s: is not Metadata of paddle.distributed as "
		              "it is known", r.where);
	if (rc == 0 && x->index.oom)
		rc = flex_no_memory(x);
	shf_foreign_region_end(x->f, file);
	return rc;
}

/* Lists the parts to be read in x->words, sorted by file. */
static int flex_list_parts(struct flex *x)
{
	struct shf_buf spare = SHF_BUF_INIT;
	size_t n, bytes = x->index.parts_n * sizeof(uint64_t);
	const struct shf_flex_tensor *t = shf_flex_tensors(&x->index, &n);
	int rc = 0;

	for (size_t k = 0; k < n && rc == 0; k++) {
		rc = flex_prove_tensor(x, &t[k]);
		for (uint32_t i = 0; i < t[k].parts_n && rc == 0; i++) {
			uint64_t word = shf_key(t[k].spots[i].file, t[k].first + i);

			if (t[k].spots[i].file == SHF_FLEX_NOWHERE)
				return flex_bad(x, &t[k], "has a part that is in no file");
			if (t[k].spots[i].file != SHF_FLEX_TWICE)
				shf_buf_add(&x->words, &word, sizeof(word));
		}
	}
	if (rc < 0)
		return rc;
	if (!x->words.oom && bytes && shf_buf_extend(&spare, bytes))
		shf_keys_sort((uint64_t *)(void *)x->words.data, (uint64_t *)(void *)spare.data,
		              x->words.len / sizeof(uint64_t));
	n = spare.len;
	shf_buf_release(&spare);
	return x->words.oom || n < bytes ? flex_no_memory(x) : 0;
}

/* Returns the tensor of a part. part: its number, counted through all tensors. */
static struct shf_flex_tensor *tensor_of_part(const struct flex *x, uint32_t part)
{
	size_t n, lo = 0, hi;
	struct shf_flex_tensor *t = shf_flex_tensors(&x->index, &n);

	for (hi = n; lo + 1 < hi;) {
		size_t mid = lo + (hi - lo) / 2;

		if (t[mid].first <= part)
			lo = mid;
		else
			hi = mid;
	}
	return &t[lo];
}

/* Finds the arrays of all parts, file by file, so that only the list of one file is in memory. */
static int flex_find_arrays(struct flex *x)
{
	const uint64_t *word = (const uint64_t *)(const void *)x->words.data;
	size_t n = x->words.len / sizeof(*word), at = 0;
	int rc = 0;

	for (uint32_t k = 0; k < shf_text_count(&x->index.files) && rc == 0; k++) {
		const struct shf_text *name = shf_text_at(&x->index.files, k);
		uint32_t file;

		rc = shf_foreign_add_file_in(x->f, x->folder, name->s, name->n, &file, x->err);
		if (rc == 0)
			rc = flex_read_file(x, file);
		for (; rc == 0 && at < n && shf_key_of(word[at]) == k; at++) {
			uint32_t part = shf_key_item(word[at]);
			struct shf_flex_tensor *t = tensor_of_part(x, part);
			struct flex_array want = { .key = t->name, .key_n = t->name_n };
			const struct flex_array *a = x->arrays.len ?
				bsearch(&want, x->arrays.data, x->arrays.len / sizeof(want),
				        sizeof(want), arrays_order) : NULL;

			rc = a ? flex_take_array(x, t, part - t->first, a)
			       : flex_bad(x, t, "is not in the file that the metadata name");
		}
	}
	return rc;
}

/* Adds all tensors. Memory for one piece of each part is allocated first: most parts have one. */
static int flex_add_tensors(struct flex *x)
{
	size_t n;
	const struct shf_flex_tensor *t = shf_flex_tensors(&x->index, &n);
	int rc = x->f->pieces.len ? 0 : shf_buf_reserve(&x->f->pieces, x->index.parts_n *
	                                                sizeof(struct shf_foreign_piece));

	if (rc < 0)
		return flex_no_memory(x);
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = flex_add_tensor(x, &t[i]);
	return rc;
}

/* Reads one directory with metadata: f's own if folder is NULL. */
static int flex_folder(struct shf_foreign *f, const struct newest *newest, const char *folder,
                       const char *family, const char *tail, struct sheaf_error *err)
{
	struct flex x = { .f = f, .err = err, .folder = folder, .family = family, .tail = tail };
	int rc = flex_read(&x, newest);

	if (rc == 0)
		rc = flex_list_parts(&x);
	if (rc == 0)
		rc = flex_find_arrays(&x);
	shf_buf_release(&x.words);
	shf_buf_release(&x.arrays);
	if (rc == 0)
		rc = flex_add_tensors(&x);
	if (rc == 0 && newest->n > 1)
		rc = shf_foreign_note(f, err, folder ? folder : "(root)",
		                      folder ? strlen(folder) : 6, "has the metadata of %d saves; "
		                      "the newest, %ld, is read", newest->n, newest->number);
	shf_flex_index_release(&x.index);
	shf_pickle_release(&x.pickle);
	shf_arena_release(&x.arena);
	return rc;
}

static int open_flex(struct shf_foreign *f, struct sheaf_error *err)
{
	struct shf_listing names = { .arena = &f->arena };
	struct newest x;
	int rc = find_metadata(f->in, f->dir, f->path, NULL, &x, err);

	if (rc == 1)
		rc = flex_folder(f, &x, NULL, NULL, "", err);
	for (size_t i = 0; i < SHF_FLEX_FOLDERS && rc == 0; i++) {
		const struct shf_flex_folder *own = &shf_flex_folders[i];

		rc = find_metadata(f->in, f->dir, f->path, own->folder, &x, err);
		if (rc == 1)
			rc = flex_folder(f, &x, own->folder, own->family, own->tail, err);
		else if (rc == 0 && x.data)
			rc = shf_fail(err, SHEAF_EFORMAT, "%s/%s: has .distcp files, but no "
			              "metadata of paddle.distributed: its save has not finished",
			              f->path, own->folder);
	}
	if (rc == 0)
		rc = shf_foreign_check_names(f, err);
	if (rc == 0)
		rc = shf_listing_read(&names, &f->arena, f->in, f->dir, f->path, err);
	if (rc == 0)
		rc = shf_paddle_facts(f, &names, err);
	shf_buf_release(&names.a);
	return rc;
}

const struct shf_foreign_format shf_paddle_flex = {
	.name = "paddle.flex",
	.is_dir = is_flex,
	.open = open_flex,
};
