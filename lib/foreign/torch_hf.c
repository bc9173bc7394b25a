/* SPDX-License-Identifier: Apache-2.0 */
/* Directories that the Hugging Face storage writer of torch.distributed.checkpoint made without
 * consolidating them. Each rank has safetensors files of its own, with boxes of tensors, and their
 * metadata say where each box begins in its tensor. The shape of a tensor is stored nowhere: it is
 * taken to be the smallest that contains all boxes, and the boxes must tile it.
 *
 * Source: torch/distributed/checkpoint/hf_storage.py of torch 2.13, and directories that it
 * wrote. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "foreign_st.h"
#include "json.h"
#include "sort.h"
#include "valid.h"

#define KEY "DCP_SHARDING_INFO"
#define LOOK (UINT64_C(64) << 10)       /* bytes in which the key is looked for: the metadata come
                                         * first in a header */

/* ---- recognising it ---- */

/* The safetensors file that comes first by name. */
struct first_file { char name[256]; };

static bool is_safetensors(const char *name)
{
	size_t n = strlen(name);

	return n > 12 && n < 256 && strcmp(name + n - 12, ".safetensors") == 0;
}

static int see_first(void *arg, const char *name)
{
	struct first_file *first = arg;

	if (is_safetensors(name) && (!first->name[0] || strcmp(name, first->name) < 0))
		memcpy(first->name, name, strlen(name) + 1);
	return 0;
}

/* If the file cannot be read, the directory is not recognised. It is then read as one of Hugging
 * Face, and that reader reports the error together with whatever else is wrong. */
static int is_torch_hf(const struct shf_sys *sys, int dir, const char *path, const char **why,
                       struct sheaf_error *err)
{
	struct first_file first = { "" };
	uint8_t *head = NULL;
	int fd, rc = shf_sys_list(sys, dir, see_first, &first);
	int64_t n = 0;

	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s", path);
	fd = first.name[0] ? shf_sys_open(sys, dir, first.name, 0, 0) : -1;
	if (fd < 0)
		return 0;
	head = shf_alloc(LOOK, 1);
	if (head)
		n = shf_sys_pread(sys, fd, head, LOOK, 0);
	rc = head ? n > 0 && memmem(head, (size_t)n, "\"" KEY "\"", sizeof(KEY) + 1)
	          : shf_fail(err, SHEAF_ENOMEM, "%s: no memory to look at it", path);
	*why = "safetensors files whose metadata have " KEY;
	shf_sys_close(sys, fd);
	shf_free(head);
	return rc;
}

/* ---- reading it ---- */

struct hf_box {                 /* a tensor of a file, which is a box of a tensor */
	const char *name;               /* in the arena, escaped */
	int32_t dtype, ndim;
	uint32_t file;
	uint64_t at;
	const int64_t *start, *count;   /* in the arena */
};
struct hf_offsets {             /* where a tensor of a file begins */
	const char *name;
	const int64_t *start;
	int32_t ndim;
};
struct torch_hf {
	struct shf_foreign *f;
	struct sheaf_error *err;
	struct shf_buf names;           /* of char *: the files */
	struct shf_buf boxes;           /* of struct hf_box */
	bool oom;
};

static int hf_bad(const struct torch_hf *h, const char *name, const char *why)
{
	return shf_fail(h->err, SHEAF_EFORMAT, "%s: tensor %.*s: %s", h->f->path,
	                shf_name_show(name), name, why);
}

static int hf_no_memory(const struct torch_hf *h)
{
	return shf_fail(h->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", h->f->path);
}

static int see_file(void *arg, const char *name)
{
	struct torch_hf *h = arg;
	char *own;

	if (!is_safetensors(name))
		return 0;
	own = shf_arena_strdup(&h->f->arena, name, strlen(name));
	if (own)
		shf_buf_add(&h->names, &own, sizeof(own));
	h->oom |= !own;
	return 0;
}

static int name_order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int offsets_order(const void *a, const void *b)
{
	return strcmp(((const struct hf_offsets *)a)->name, ((const struct hf_offsets *)b)->name);
}

/* Reads {"saved_offsets": [1, 2]}, after its opening bracket. Returns false if it has another
 * form. */
static bool hf_read_offsets(struct torch_hf *h, struct shf_json *j, struct hf_offsets *o)
{
	int64_t v[SHF_ST_DIMS_MAX], *own;
	enum shf_json_kind kind;
	bool is_it;
	size_t n;

	while ((kind = shf_json_next(j)) == SHF_JSON_KEY) {
		is_it = strcmp(shf_json_text(j, &n), "saved_offsets") == 0;
		kind = shf_json_next(j);
		if (!is_it) {
			if (!shf_json_skip(j, kind))
				return false;
			continue;
		}
		if (kind != SHF_JSON_ARRAY || o->start)
			return false;
		while ((kind = shf_json_next(j)) == SHF_JSON_NUMBER)
			if (o->ndim == SHF_ST_DIMS_MAX || !shf_json_i64(j, &v[o->ndim]) ||
			    v[o->ndim++] < 0)
				return false;
		own = shf_foreign_numbers(h->f, (size_t)o->ndim);
		h->oom |= !own;
		if (kind != SHF_JSON_ARRAY_END || !own)
			return false;
		memcpy(own, v, (size_t)o->ndim * sizeof(*own));
		o->start = own;
	}
	return kind == SHF_JSON_OBJECT_END && o->start;
}

/* Reads DCP_SHARDING_INFO of a file into `list`, an array of struct hf_offsets that is sorted by
 * name. Returns false if it has another form or there is no memory (h->oom). */
static bool read_sharding(struct torch_hf *h, const char *text, struct shf_buf *list)
{
	enum shf_json_kind kind = SHF_JSON_ERROR;
	struct shf_json j;
	bool fine;

	shf_json_init(&j, text, strlen(text));
	fine = shf_json_next(&j) == SHF_JSON_OBJECT;
	while (fine && (kind = shf_json_next(&j)) == SHF_JSON_KEY) {
		struct hf_offsets o = { 0 };
		size_t n;
		const char *name = shf_json_text(&j, &n);

		o.name = shf_name_escape(&h->f->arena, name, n);
		h->oom |= !o.name;
		fine = o.name && shf_json_next(&j) == SHF_JSON_OBJECT && hf_read_offsets(h, &j, &o);
		if (fine)
			shf_buf_add(list, &o, sizeof(o));
	}
	fine = fine && kind == SHF_JSON_OBJECT_END && shf_json_next(&j) == SHF_JSON_END;
	shf_json_release(&j);
	h->oom |= list->oom;
	if (fine && list->len)
		qsort(list->data, list->len / sizeof(struct hf_offsets), sizeof(struct hf_offsets),
		      offsets_order);
	return fine;
}

/* Adds a tensor of a file as a box. Without offsets it is a whole tensor. */
static int hf_add_box(struct torch_hf *h, const struct shf_st_tensor *t, uint32_t file,
                   uint64_t payload, const struct shf_buf *sharding)
{
	const struct hf_offsets want = { .name = t->name }, *o = NULL;
	struct hf_box b = { .name = t->name, .dtype = t->dtype, .ndim = t->ndim, .file = file,
		.at = payload + t->off };
	int64_t *count = shf_foreign_numbers(h->f, (size_t)t->ndim);
	int64_t *start = shf_foreign_numbers(h->f, (size_t)t->ndim);

	if (!count || !start)
		return hf_no_memory(h);
	if (t->ndim > SHEAF_DIMS_MAX || shf_dtype(t->dtype)->bits < 8)
		return hf_bad(h, t->name, "has more than 8 dimensions, or a dtype of less than a "
		              "byte, which sheaf does not read in parts");
	memcpy(count, t->shape, (size_t)t->ndim * sizeof(*count));
	if (sharding->len)
		o = bsearch(&want, sharding->data, sharding->len / sizeof(want), sizeof(want),
		            offsets_order);
	if (o && o->ndim != t->ndim)
		return hf_bad(h, t->name, "has a different number of dimensions from its place in "
		              KEY);
	if (o)
		memcpy(start, o->start, (size_t)t->ndim * sizeof(*start));
	b.start = start;
	b.count = count;
	shf_buf_add(&h->boxes, &b, sizeof(b));
	return h->boxes.oom ? hf_no_memory(h) : 0;
}

/* Adds the tensors of a file. */
static int add_file(struct torch_hf *h, const char *name)
{
	struct shf_buf sharding = SHF_BUF_INIT;
	struct shf_st st;
	uint32_t file;
	int rc = shf_foreign_st_read(h->f, name, &file, &st, h->err);

	if (rc == 0 && st.sharding && !read_sharding(h, st.sharding, &sharding))
		rc = h->oom ? hf_no_memory(h)
		            : shf_fail(h->err, SHEAF_EFORMAT, "%s: " KEY " has an unknown "
		                       "structure", shf_foreign_file(h->f, file)->where);
	for (size_t i = 0; i < st.n && rc == 0; i++)
		rc = hf_add_box(h, &st.tensors[i], file, st.header_bytes, &sharding);
	shf_buf_release(&sharding);
	return rc;
}

/* By name, then by place. Boxes at one place come in the order of their files. */
static int box_order(const void *a, const void *b)
{
	const struct hf_box *x = a, *y = b;
	int c = strcmp(x->name, y->name);

	if (!c)
		c = (x->ndim > y->ndim) - (x->ndim < y->ndim);
	for (int d = 0; !c && d < x->ndim; d++)
		c = (x->start[d] > y->start[d]) - (x->start[d] < y->start[d]);
	for (int d = 0; !c && d < x->ndim; d++)
		c = (x->count[d] > y->count[d]) - (x->count[d] < y->count[d]);
	return c ? c : (x->file > y->file) - (x->file < y->file);
}

/* Adds the tensor that consists of the n boxes. If several files have the same box, that of the
 * first file is taken. */
static int add_whole(struct torch_hf *h, const struct hf_box *b, size_t n)
{
	int64_t dims[SHEAF_DIMS_MAX] = { 0 };
	struct shf_foreign_tensor x = { .dtype = b->dtype, .ndim = b->ndim, .dims = dims };
	char why[300];
	int rc;

	for (size_t i = 0; i < n; i++) {
		size_t bytes = (size_t)b->ndim * sizeof(*dims);

		if (b[i].dtype != b->dtype || b[i].ndim != b->ndim)
			return hf_bad(h, b->name, "has another dtype or number of dimensions in "
			              "another file");
		for (int d = 0; d < b->ndim; d++) {
			if (b[i].count[d] > INT64_MAX - b[i].start[d])
				return hf_bad(h, b->name, "has a size beyond 63 bits");
			if (b[i].start[d] + b[i].count[d] > dims[d])
				dims[d] = b[i].start[d] + b[i].count[d];
		}
		if (i && memcmp(b[i].start, b[i - 1].start, bytes) == 0 &&
		    memcmp(b[i].count, b[i - 1].count, bytes) == 0)
			continue;
		shf_buf_add(&h->f->pieces, &(struct shf_foreign_piece){ .start = b[i].start,
		            .count = b[i].count, .file = b[i].file, .at = b[i].at },
		            sizeof(struct shf_foreign_piece));
		x.n++;
	}
	if (h->f->pieces.oom)
		return hf_no_memory(h);
	rc = shf_foreign_cover(h->f, &x, x.n, why);
	if (rc)
		return rc < 0 ? hf_no_memory(h) : hf_bad(h, b->name, why);
	return shf_foreign_add_tensor(h->f, &x, b->name, strlen(b->name), h->err);
}

static int open_torch_hf(struct shf_foreign *f, struct sheaf_error *err)
{
	struct torch_hf h = { .f = f, .err = err };
	const struct hf_box *b;
	size_t n, same;
	int rc = shf_sys_list(f->in, f->dir, see_file, &h);

	rc = rc < 0 ? shf_fail_sys(err, -rc, "%s", f->path)
	            : h.oom || h.names.oom ? hf_no_memory(&h) : 0;
	if (h.names.len)
		qsort(h.names.data, h.names.len / sizeof(char *), sizeof(char *), name_order);
	for (size_t i = 0; i < h.names.len / sizeof(char *) && rc == 0; i++)
		rc = add_file(&h, ((char **)(void *)h.names.data)[i]);
	n = h.boxes.len / sizeof(*b);
	if (rc == 0)
		shf_records_sort(h.boxes.data, n, sizeof(*b), box_order);
	b = (const struct hf_box *)(void *)h.boxes.data;
	for (size_t i = 0; i < n && rc == 0; i += same) {
		for (same = 1; i + same < n && strcmp(b[i].name, b[i + same].name) == 0;)
			same++;
		rc = add_whole(&h, &b[i], same);
	}
	shf_buf_release(&h.names);
	shf_buf_release(&h.boxes);
	return rc;
}

const struct shf_foreign_format shf_torch_hf = {
	.name = "torch.dcp (safetensors)",
	.is_dir = is_torch_hf,
	.open = open_torch_hf,
};
