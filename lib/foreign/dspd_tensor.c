/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of which each rank of tensor parallelism has a box. DeepSpeed's AutoTP writes which one:
 * universal_checkpoint_info.affine_map has an entry for each parameter, with its whole shape and,
 * for each rank, pieces of strided memory. It is used if the part of each rank is one piece that is
 * a box of the whole, in row-major order. */
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "dspd_save.h"
#include "sort.h"
#include "torch_place.h"
#include "valid.h"

/* ---- the map ---- */

static int boxes_order(const void *a, const void *b)
{
	const struct shf_dspd_box *x = a, *y = b;
	int c = strcmp(x->name, y->name);

	return c ? c : (x->mp > y->mp) - (x->mp < y->mp);
}

/* Finds the box of a rank, where there are boxes. NULL: it has none. */
static const struct shf_dspd_box *box_of(const struct shf_dspd *d, const char *name, int mp)
{
	const struct shf_dspd_box want = { .name = name, .mp = mp };

	return bsearch(&want, d->boxes.data, d->boxes.len / sizeof(want), sizeof(want),
	               boxes_order);
}

/* Removes the escapes from a regular expression ^...$ that matches one name only. Returns the
 * length of that name, or 0 if the expression could match other names. */
static size_t literal_of(char *name, size_t max, const struct shf_pk *key)
{
	size_t n = 0;

	if (key->kind != SHF_PK_STR || key->n < 3 || key->n > max || key->u.s[0] != '^' ||
	    key->u.s[key->n - 1] != '$')
		return 0;
	for (uint32_t i = 1; i + 1 < key->n; i++) {
		char c = key->u.s[i];

		if (c == '\\') {
			c = key->u.s[++i];
			if (i + 1 >= key->n || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			    (c >= '0' && c <= '9'))
				return 0;
		} else if (strchr(".^$*+?{}[]|()", c)) {
			return 0;
		}
		name[n++] = c;
	}
	return n;
}

/* Reads up to SHEAF_DIMS_MAX numbers >= 0. Returns how many, or -1. */
static int read_dims_of(int64_t *dims, const struct shf_pk *v)
{
	if (!v || (v->kind != SHF_PK_LIST && v->kind != SHF_PK_TUPLE) || v->n > SHEAF_DIMS_MAX)
		return -1;
	for (uint32_t i = 0; i < v->n; i++)
		if (!shf_pk_int(v->u.a[i], &dims[i]) || dims[i] < 0 || dims[i] > INT32_MAX)
			return -1;
	return (int)v->n;
}

/* Whether [offset, strides] are those of row-major memory of these dimensions; *at: the offset. */
static bool is_dense(const struct shf_pk *v, int ndim, const int64_t *dims, int64_t *at)
{
	const struct shf_pk *strides = shf_pk_at(v, 1);
	int64_t row = 1, is;

	if (!shf_pk_int(shf_pk_at(v, 0), at) || *at < 0 || !strides || strides->n != (uint32_t)ndim)
		return false;
	for (int k = ndim - 1; k >= 0; k--) {
		if (!shf_pk_int(shf_pk_at(strides, (uint32_t)k), &is) || is != row ||
		    row > INT64_MAX / INT32_MAX / 4)
			return false;
		row *= dims[k];
	}
	return true;
}

/* Reads the box of one rank. Returns false if it has another form. */
static bool read_rank_box(struct shf_dspd_box *b, const struct shf_pk *rank, int64_t *start,
                     int64_t *count)
{
	const struct shf_pk *pieces = shf_pk_get(rank, "pieces"), *piece = shf_pk_at(pieces, 0);
	int64_t shard[SHEAF_DIMS_MAX], at, zero;

	if (!piece || pieces->n != 1 ||
	    read_dims_of(count, shf_pk_get(piece, "shape")) != b->ndim ||
	    read_dims_of(shard, shf_pk_get(rank, "shard_shape")) != b->ndim ||
	    memcmp(count, shard, (size_t)b->ndim * sizeof(*shard)) ||
	    !is_dense(shf_pk_get(piece, "dest"), b->ndim, count, &zero) || zero ||
	    !is_dense(shf_pk_get(piece, "source"), b->ndim, b->dims, &at))
		return false;
	for (int k = b->ndim - 1; k >= 0; k--) {
		if (b->dims[k] == 0)
			return false;
		start[k] = at % b->dims[k];
		at /= b->dims[k];
		if (count[k] > b->dims[k] - start[k])
			return false;
	}
	b->start = start;
	b->count = count;
	return at == 0;
}

/* Adds the boxes of one parameter, unless they have another form. */
static int add_boxes(struct shf_dspd *d, const char *name, size_t n, const struct shf_pk *v)
{
	const struct shf_pk *ranks = shf_pk_get(v, "ranks");
	int64_t *dims = shf_foreign_numbers(d->f, SHEAF_DIMS_MAX), rank;
	struct shf_dspd_box b = { .dims = dims };
	size_t had = d->boxes.len;
	const int64_t *first_start = NULL, *first_count = NULL;
	uint32_t i = 0;

	if (!dims)
		return shf_dspd_no_memory(d);
	b.ndim = read_dims_of(dims, shf_pk_get(v, "logical_shape"));
	if (b.ndim < 0 || !ranks || ranks->kind != SHF_PK_DICT || ranks->n != (uint32_t)d->mp_n)
		return 0;
	b.name = shf_dspd_keep(d, name, n);
	if (!b.name)
		return d->err->code;
	for (; i < ranks->n; i++) {
		int64_t *start = shf_foreign_numbers(d->f, 2 * SHEAF_DIMS_MAX);

		if (!start)
			return shf_dspd_no_memory(d);
		if (!shf_pk_int(ranks->u.a[2 * i], &rank) || rank != (int64_t)i ||
		    !read_rank_box(&b, ranks->u.a[2 * i + 1], start, start + SHEAF_DIMS_MAX))
			break;
		b.mp = (int)i;
		/* Another rank has the same: that of rank 0 is read. */
		b.replica = first_start && !memcmp(first_start, b.start, (size_t)b.ndim * 8) &&
		            !memcmp(first_count, b.count, (size_t)b.ndim * 8);
		first_start = first_start ? first_start : b.start;
		first_count = first_count ? first_count : b.count;
		shf_buf_add(&d->boxes, &b, sizeof(b));
	}
	if (i < ranks->n)
		d->boxes.len = had;
	return d->boxes.oom ? shf_dspd_no_memory(d) : 0;
}

int shf_dspd_boxes(struct shf_dspd *d, const struct shf_pk *root)
{
	const struct shf_pk *map = shf_pk_get(shf_pk_get(root, "universal_checkpoint_info"),
	                                      "affine_map");
	const struct shf_pk *params = shf_pk_get(map, "params"), *module;
	char name[1024];
	int rc = 0;

	/* A map with more entries than the model has weights is none: keys may be shared. */
	module = shf_pk_get(root, "module");
	if (d->tp_n < 2 || d->tp_n != d->mp_n || d->mp || !params || !module ||
	    params->kind != SHF_PK_DICT || module->kind != SHF_PK_DICT || params->n > module->n)
		return 0;
	for (uint32_t i = 0; i < params->n && rc == 0; i++) {
		size_t n = literal_of(name, sizeof(name), params->u.a[2 * i]);

		if (n)
			rc = add_boxes(d, name, n, params->u.a[2 * i + 1]);
	}
	if (d->boxes.len)
		shf_records_sort(d->boxes.data, d->boxes.len / sizeof(struct shf_dspd_box),
		                 sizeof(struct shf_dspd_box), boxes_order);
	return rc;
}

/* ---- joining ---- */

/* Moves the pieces of a box to where the box lies in the whole. */
static int move_pieces(struct shf_dspd *d, const struct shf_dspd_box *b,
                       const struct shf_foreign_tensor *x)
{
	struct shf_foreign_piece *p = (struct shf_foreign_piece *)(void *)d->f->pieces.data;

	p += d->f->pieces.len / sizeof(*p) - x->n;
	for (size_t i = 0; i < x->n; i++) {
		int64_t *start = shf_foreign_numbers(d->f, (size_t)x->ndim);
		int64_t *count = shf_foreign_numbers(d->f, (size_t)x->ndim);

		if (!start || !count)
			return shf_dspd_no_memory(d);
		for (int k = 0; k < x->ndim; k++) {
			start[k] = b->start[k] + (p[i].start ? p[i].start[k] : 0);
			count[k] = p[i].start ? p[i].count[k] : x->dims[k];
		}
		p[i].start = start;
		p[i].count = count;
		shf_buf_add(&d->box_pieces, &p[i], sizeof(p[i]));
	}
	d->f->pieces.len -= x->n * sizeof(*p);
	return d->box_pieces.oom ? shf_dspd_no_memory(d) : 0;
}

int shf_dspd_boxed(struct shf_dspd *d, const struct shf_foreign_tensor *x, const char *name,
                   size_t n, const char *key)
{
	char text[1024];
	const struct shf_dspd_box *b;
	struct shf_dspd_boxed part = { .family = x->family ? x->family : "model", .key = key };
	int rc;

	if (d->tp_n < 2 || d->boxes.len == 0 || n >= sizeof(text) || x->flip_every)
		return 0;
	memcpy(text, name, n);
	text[n] = '\0';
	b = box_of(d, text, d->mp);
	if (!b)
		return 0;
	if (x->ndim != b->ndim || memcmp(x->dims, b->count, (size_t)x->ndim * sizeof(*x->dims)))
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: tensor %.*s: the part of rank %d of "
		                "model parallelism has not the shape that affine_map says",
		                d->f->path, shf_name_show(b->name), b->name, d->mp);
	if (b->replica) {
		d->f->pieces.len -= x->n * sizeof(struct shf_foreign_piece);
		return 1;
	}
	if (shf_dspd_charge(d, SHF_DSPD_TENSOR_COST) < 0)
		return d->err->code;
	part.box = *b;
	part.dtype = x->dtype;
	part.first = d->box_pieces.len / sizeof(struct shf_foreign_piece);
	part.n = x->n;
	rc = move_pieces(d, b, x);
	shf_buf_add(&d->boxed, &part, sizeof(part));
	return rc < 0 ? rc : d->boxed.oom ? shf_dspd_no_memory(d) : 1;
}

static int boxed_order(const void *a, const void *b)
{
	const struct shf_dspd_boxed *x = a, *y = b;
	int c = strcmp(x->family, y->family);

	c = c ? c : strcmp(x->box.name, y->box.name);
	c = c ? c : strcmp(x->key ? x->key : "", y->key ? y->key : "");
	return c ? c : (x->box.mp > y->box.mp) - (x->box.mp < y->box.mp);
}

/* Adds the tensor of which ranks have these n boxes. */
static int add_whole_tensor(struct shf_dspd *d, const struct shf_dspd_boxed *t, size_t n)
{
	const struct shf_foreign_piece *p = (const void *)d->box_pieces.data;
	struct shf_foreign_tensor x = { .family = t->family, .dtype = t->dtype,
		.ndim = t->box.ndim, .dims = t->box.dims };
	const char *shown;
	char why[300];
	int rc;

	for (size_t i = 0; i < n; i++) {
		if (t[i].dtype != t->dtype)
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: tensor %.*s is of another type "
			                "on rank %d of model parallelism", d->f->path,
			                shf_name_show(t->box.name), t->box.name, t[i].box.mp);
		shf_buf_add(&d->f->pieces, p + t[i].first, t[i].n * sizeof(*p));
		x.n += t[i].n;
	}
	if (d->f->pieces.oom)
		return shf_dspd_no_memory(d);
	rc = shf_foreign_cover(d->f, &x, x.n, why);
	if (rc)
		return rc < 0 ? shf_dspd_no_memory(d)
		     : shf_fail(d->err, SHEAF_EFORMAT, "%s: tensor %.*s %s", d->f->path,
		                shf_name_show(t->box.name), t->box.name, why);
	shown = shf_dspd_shown(d, t->box.name, strlen(t->box.name), t->key);
	return shown ? shf_foreign_add_tensor(d->f, &x, shown, strlen(shown), d->err)
	             : d->err->code;
}

int shf_dspd_join_boxes(struct shf_dspd *d)
{
	struct shf_dspd_boxed *t = (struct shf_dspd_boxed *)(void *)d->boxed.data;
	size_t n = d->boxed.len / sizeof(*t), same;
	int rc = 0;

	d->tp_n = 1;
	shf_records_sort(t, n, sizeof(*t), boxed_order);
	for (size_t i = 0; i < n && rc == 0; i += same) {
		for (same = 1; i + same < n && !strcmp(t[i].family, t[i + same].family) &&
		     !strcmp(t[i].box.name, t[i + same].box.name) &&
		     !strcmp(t[i].key ? t[i].key : "", t[i + same].key ? t[i + same].key : "");)
			same++;
		rc = add_whole_tensor(d, &t[i], same);
	}
	return rc;
}

int shf_dspd_add(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v,
                 const char *family, const char *name, size_t n)
{
	int64_t dims[SHF_FOREIGN_DIMS_MAX];
	struct shf_foreign_piece piece;
	struct shf_foreign_tensor of;
	struct shf_torch_tensor t;
	const char *why, *own;
	int rc;

	if (shf_torch_tensor_of(&t, v, &why) != SHF_TENSOR_READ)
		return 0;
	own = shf_dspd_shown(d, name, n, NULL);
	if (!own)
		return d->err->code;
	of = shf_torch_shown(&t, dims);
	of.family = family;
	of.n = 1;
	rc = shf_dspd_place(d, x, &t, own, &piece);
	if (rc < 0)
		return rc;
	shf_buf_add(&d->f->pieces, &piece, sizeof(piece));
	if (d->f->pieces.oom)
		return shf_dspd_no_memory(d);
	rc = shf_dspd_boxed(d, &of, name, n, NULL);
	if (rc)
		return rc;
	rc = shf_foreign_add_tensor(d->f, &of, own, n + strlen(own + n), d->err);
	return rc < 0 ? rc : 1;
}
