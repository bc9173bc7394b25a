/* SPDX-License-Identifier: Apache-2.0 */
/* Flex checkpoints of paddle.distributed: <number>.metadata, a pickle, says of each tensor the
 * boxes that ranks have of it, or the flat range of a box, and in which file each of them is. A
 * file, <rank>_<number>.distcp, is one of paddle.save with what one rank has. A trainer puts up to
 * four such directories into one.
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

/* The metadata with the highest number: a save into the same directory takes the next one. */
struct newest { long number; int n; bool data; };

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

/* Finds the newest metadata of a directory, or of a folder in it. Returns 1 if it is Paddle's, 0 if
 * there is none. */
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
	const char *key;                /* in f's arena, key_n bytes */
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
	struct shf_buf bytes;           /* owned; the metadata */
	struct shf_pickle pickle;
	struct shf_buf arrays;          /* owned; of struct flex_array, sorted once all are read */
	struct shf_buf read;            /* owned; a byte for each file of f: 1 if it was read */
};

static int flex_no_memory(const struct flex *x)
{
	return shf_fail(x->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", x->f->path);
}

static int flex_bad(const struct flex *x, const struct shf_pk *key, const char *why)
{
	const char *shown = shf_name_escape(&x->f->arena, key->u.s, key->n);

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

	own.key = shf_arena_strdup(&x->f->arena, key->u.s, key->n);
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

/* Reads what a file of a rank has, unless it was read before. */
static int flex_read_file(struct flex *x, uint32_t file)
{
	const char *path = shf_foreign_file(x->f, file)->name, *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	struct shf_pickle p = { 0 };
	struct shf_region r;
	size_t n = strlen(name);
	int rc;

	if (x->read.len <= file && !shf_buf_extend(&x->read, file + 1 - x->read.len))
		return flex_no_memory(x);
	if (x->read.data[file])
		return 0;
	x->read.data[file] = 1;
	if (n > 12 && strcmp(name + n - 12, ".safetensors") == 0)
		return flex_read_st(x, file);
	rc = shf_foreign_region(x->f, file, &r, x->err);
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

static int flex_key_compare(const char *a, uint32_t n, const char *b, uint32_t m)
{
	int c = memcmp(a, b, n < m ? n : m);

	return c ? c : (n > m) - (n < m);
}

static int arrays_order(const void *a, const void *b)
{
	const struct flex_array *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return flex_key_compare(x->key, x->key_n, y->key, y->key_n);
}

static const struct flex_array *flex_array_find(const struct flex *x, uint32_t file,
                                                const struct shf_pk *key)
{
	struct flex_array want = { .file = file, .key = key->u.s, .key_n = key->n };

	return x->arrays.len ? bsearch(&want, x->arrays.data, x->arrays.len / sizeof(want),
	                               sizeof(want), arrays_order) : NULL;
}

/* ---- tensors ---- */

/* Reads n numbers into the arena; NULL: they are not n, or no numbers. */
static int64_t *flex_numbers(struct flex *x, const struct shf_pk *v, uint32_t n)
{
	int64_t *out = v->n == n ? shf_foreign_numbers(x->f, n) : NULL;

	for (uint32_t i = 0; out && i < n; i++)
		if (!shf_flex_number(v, i, &out[i]))
			return NULL;
	return out;
}

/* The float8 types of Paddle, which NumPy lacks: their bits are written as int8. */
static int32_t flex_dtype(const struct flex_array *a, const struct shf_pk *said)
{
	if (a->dtype == SHEAF_I8 && shf_pk_text_is(said, "float8_e4m3fn"))
		return SHEAF_F8_E4M3;
	if (a->dtype == SHEAF_I8 && shf_pk_text_is(said, "float8_e5m2"))
		return SHEAF_F8_E5M2;
	return a->dtype;
}

/* Adds the pieces of a part. start, count: its box. Returns how many. */
static int flex_add_piece(struct flex *x, const struct shf_flex_part *part,
                          const struct shf_foreign_tensor *t, const struct flex_array *a,
                          const int64_t *start, const int64_t *count)
{
	struct shf_foreign_range r = { start, count, (uint64_t)part->lo, (uint64_t)part->hi,
		a->piece.at, a->file, a->piece.text };
	struct shf_foreign_piece piece = a->piece;
	uint64_t items = 1;

	for (int d = 0; d < t->ndim; d++)
		items *= (uint64_t)count[d];    /* no more than the tensor has */
	if (part->flat) {
		if (r.hi > items || a->ndim != 1 || (uint64_t)a->dims[0] != r.hi - r.lo)
			return flex_bad(x, part->key, "has a flat range that its file does not "
			                "have");
		return shf_foreign_add_range(x->f, t, &r, x->err);
	}
	if (a->ndim != t->ndim || memcmp(a->dims, count, (size_t)t->ndim * sizeof(*count)))
		return flex_bad(x, part->key, "has another shape in its file than the metadata "
		                "say; is it of another save?");
	if (!items)
		return 0;
	piece.start = start;
	piece.count = count;
	shf_buf_add(&x->f->pieces, &piece, sizeof(piece));
	return x->f->pieces.oom ? flex_no_memory(x) : 1;
}

/* Finds the array of a part. Returns 1, 0 if the part was found before, or a negative code. */
static int flex_array_of(struct flex *x, const struct shf_flex_part *part,
                         const struct flex_array **a)
{
	struct shf_flex_part *place = shf_flex_index_find(&x->index, part);
	uint32_t file;
	int rc;

	if (!place)
		return flex_bad(x, part->key, "has a part that is in no file");
	if (place->used)
		return 0;
	place->used = true;
	rc = shf_foreign_add_file_in(x->f, x->folder, place->file->u.s, place->file->n, &file,
	                             x->err);
	if (rc < 0)
		return rc;
	*a = flex_array_find(x, file, part->key);
	return *a ? 1 : flex_bad(x, part->key, "is not in the file that the metadata name");
}

/* Finds the shape of a tensor: as the metadata say it, or the smallest that has all parts. */
static int flex_shape(struct flex *x, const struct shf_flex_part *part, size_t n, int64_t *dims)
{
	uint32_t ndim = part->offset->n;

	memset(dims, 0, ndim * sizeof(*dims));
	for (size_t i = 0; i < n; i++) {
		const int64_t *start = flex_numbers(x, part[i].offset, ndim);
		const int64_t *count = flex_numbers(x, part[i].shape, ndim);
		const int64_t *whole = part[i].global ? flex_numbers(x, part[i].global, ndim)
		                                      : NULL;

		if (!start || !count || (part[i].global && !whole))
			return flex_bad(x, part->key, "has a part of a form that is not known");
		for (uint32_t d = 0; d < ndim; d++) {
			if (count[d] > INT64_MAX - start[d] ||
			    (whole && (start[d] + count[d] > whole[d] ||
			               (i && whole[d] != dims[d]))))
				return flex_bad(x, part->key, "has a part that leaves it");
			if (whole)
				dims[d] = whole[d];
			else if (start[d] + count[d] > dims[d])
				dims[d] = start[d] + count[d];
		}
	}
	return 0;
}

/* Copies the name that Sheaf gives a tensor of the present folder. */
static char *flex_name(const struct flex *x, const struct shf_pk *key)
{
	char *name = shf_arena_strdup(&x->f->arena, key->u.s, key->n), *dot;
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

/* Adds a tensor of n parts. Ranks may have the same part: it is taken once. */
static int flex_add_tensor(struct flex *x, const struct shf_flex_part *part, size_t n)
{
	uint32_t ndim = part->offset->n;
	struct shf_foreign_tensor t = { .family = x->family, .ndim = (int32_t)ndim };
	int64_t *dims = shf_foreign_numbers(x->f, ndim);
	char why[300];
	const char *name = flex_name(x, part->key);
	int rc;

	if (!dims || !name)
		return flex_no_memory(x);
	if (ndim > 64)
		return flex_bad(x, part->key, "has more than 64 dimensions");
	rc = flex_shape(x, part, n, dims);
	t.dims = dims;
	for (size_t i = 0; i < n && rc == 0; i++) {
		const struct flex_array *a = NULL;
		const int64_t *start, *count;
		int pieces;

		rc = flex_array_of(x, &part[i], &a);
		if (rc <= 0)
			continue;
		start = flex_numbers(x, part[i].offset, ndim);
		count = flex_numbers(x, part[i].shape, ndim);
		if (!start || !count)   /* flex_shape has found them to be numbers */
			return flex_no_memory(x);
		if (i && t.dtype != flex_dtype(a, part[i].dtype))
			return flex_bad(x, part->key, "has parts of two types");
		t.dtype = flex_dtype(a, part[i].dtype);
		pieces = flex_add_piece(x, &part[i], &t, a, start, count);
		rc = pieces < 0 ? pieces : 0;
		t.n += pieces < 0 ? 0 : (size_t)pieces;
	}
	if (rc == 0 && !t.dtype)
		return flex_bad(x, part->key, "is in the metadata twice, or has no parts");
	if (rc == 0)
		rc = shf_foreign_cover(x->f, &t, t.n, why);
	if (rc)
		return rc == SHEAF_ENOMEM ? flex_no_memory(x) : rc < 0 ? rc : flex_bad(x, part->key,
		                                                                       why);
	return shf_foreign_add_tensor(x->f, &t, name, strlen(name), x->err);
}

/* ---- a directory ---- */

/* A key that a file has twice would be one of two arrays. */
static int flex_prove_arrays(const struct flex *x)
{
	const struct flex_array *a = (const void *)x->arrays.data;

	for (size_t i = 1; i < x->arrays.len / sizeof(*a); i++)
		if (arrays_order(&a[i - 1], &a[i]) == 0)
			return shf_fail(x->err, SHEAF_EFORMAT, "%s%s%s: one of its .distcp files "
			                "has two arrays for one tensor", x->f->path,
			                x->folder ? "/" : "", x->folder ? x->folder : "");
	return 0;
}

/* Reads the metadata, and all files that they name. */
static int flex_read(struct flex *x, const struct newest *newest)
{
	const struct shf_flex_part *place;
	char name[40], where[600];
	int rc;

	snprintf(name, sizeof(name), "%ld.metadata", newest->number);
	snprintf(where, sizeof(where), "%.400s/%s%s%s", x->f->path, x->folder ? x->folder : "",
	         x->folder ? "/" : "", name);
	rc = shf_foreign_slurp(x->f, x->folder, name, SHF_PICKLE_MAX, &x->bytes, x->err);
	if (rc == 0)
		rc = shf_pickle_read(&x->pickle, x->bytes.data, x->bytes.len, where, x->err);
	if (rc == 0 && !shf_flex_index_add(&x->index, x->pickle.root))
		rc = shf_fail(x->err, SHEAF_EFORMAT, "%s: is not Metadata of paddle.distributed as "
		              "it is known", where);
	if (rc == 0 && (x->index.parts.oom || x->index.places.oom))
		rc = flex_no_memory(x);
	if (rc < 0)
		return rc;
	shf_flex_index_settle(&x->index);
	place = (const void *)x->index.places.data;
	for (size_t i = 0; i < x->index.places.len / sizeof(*place) && rc == 0; i++) {
		uint32_t file;

		rc = shf_foreign_add_file_in(x->f, x->folder, place[i].file->u.s, place[i].file->n,
		                             &file, x->err);
		if (rc == 0)
			rc = flex_read_file(x, file);
	}
	shf_records_sort(x->arrays.data, x->arrays.len / sizeof(struct flex_array),
	                 sizeof(struct flex_array), arrays_order);
	return rc < 0 ? rc : flex_prove_arrays(x);
}

/* Reads one directory with metadata: f's own if folder is NULL. */
static int flex_folder(struct shf_foreign *f, const struct newest *newest, const char *folder,
                       const char *family, const char *tail, struct sheaf_error *err)
{
	struct flex x = { .f = f, .err = err, .folder = folder, .family = family, .tail = tail };
	const struct shf_flex_part *part;
	int rc = flex_read(&x, newest);
	size_t n, same;

	part = (const void *)x.index.parts.data;
	n = x.index.parts.len / sizeof(*part);
	for (size_t i = 0; i < n && rc == 0; i += same) {
		for (same = 1; i + same < n && part[i].key == part[i + same].key;)
			same++;
		rc = flex_add_tensor(&x, &part[i], same);
	}
	if (rc == 0 && newest->n > 1)
		rc = shf_foreign_note(f, err, folder ? folder : "(root)",
		                      folder ? strlen(folder) : 6, "has the metadata of %d saves; "
		                      "the newest, %ld, is read", newest->n, newest->number);
	shf_flex_index_release(&x.index);
	shf_pickle_release(&x.pickle);
	shf_buf_release(&x.bytes);
	shf_buf_release(&x.arrays);
	shf_buf_release(&x.read);
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
