/* SPDX-License-Identifier: Apache-2.0 */
/* Files that paddle.save wrote: .pdparams, .pdopt, .pdema. A dictionary with only tensors is
 * written as arrays, with one more entry for the names that the parameters have at run time. With
 * protocol 2 or 3 an array of more than 1 GiB is cut into parts, which are entries of their own,
 * and one more entry says how they are joined.
 *
 * Source: python/paddle/framework/io.py and io_utils.py of Paddle 3.3, and files that it wrote. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "paddle_tensor.h"
#include "valid.h"

static int is_paddle_save(const struct shf_region *r, const char **why, struct sheaf_error *err)
{
	*why = "a pickle with NumPy arrays, as paddle.save writes it";
	return shf_paddle_is_pickle(r, err);
}

static enum shf_tensor_kind look_for_paddle(const struct shf_pk *v, const char **why)
{
	struct shf_numpy_array a;

	return shf_paddle_tensor_of(&a, v, why);
}

static int add_of_paddle(void *arg, struct shf_foreign *f, const struct shf_pk *v, const char *name,
                         size_t n, struct sheaf_error *err)
{
	struct shf_foreign_piece piece;
	struct shf_foreign_tensor x;
	struct shf_numpy_array a;
	const char *why;
	int rc;

	(void)arg;
	if (!always(shf_paddle_tensor_of(&a, v, &why) == SHF_TENSOR_READ))
		return shf_fail(err, SHEAF_EBUG, "%s: a tensor is none any more", f->path);
	rc = shf_numpy_shown(f, &a, 0, &x, &piece, err);
	if (rc == 0)
		shf_buf_add(&f->pieces, &piece, sizeof(piece));
	return rc < 0 ? rc : shf_foreign_add_tensor(f, &x, name, n, err);
}

/* ---- arrays in parts ---- */

struct part { const struct shf_pk *name, *value; };     /* value NULL: not found yet */
struct parts {
	struct shf_foreign *f;
	struct sheaf_error *err;
	struct part *a;                 /* owned; sorted by name */
	size_t n;
};

static int parts_bad(const struct parts *p, const struct shf_pk *name, const char *why)
{
	const char *shown = name->kind == SHF_PK_STR
	                  ? shf_name_escape(&p->f->arena, name->u.s, name->n) : "?";

	if (!shown)
		return shf_fail(p->err, SHEAF_ENOMEM, "%s: no memory for a name", p->f->path);
	return shf_fail(p->err, SHEAF_EFORMAT, "%s: tensor %.*s, which is stored in parts: %s",
	                p->f->path, shf_name_show(shown), shown, why);
}

static int part_order(const void *a, const void *b)
{
	const struct shf_pk *x = ((const struct part *)a)->name;
	const struct shf_pk *y = ((const struct part *)b)->name;
	int c = memcmp(x->u.s, y->u.s, x->n < y->n ? x->n : y->n);

	return c ? c : (x->n > y->n) - (x->n < y->n);
}

static struct part *part_find(const struct parts *p, const struct shf_pk *name)
{
	struct part want = { .name = name };

	return p->n && name->kind == SHF_PK_STR
	     ? bsearch(&want, p->a, p->n, sizeof(want), part_order) : NULL;
}

/* Returns the names of the parts of one array, or NULL if they are unknown. */
static const struct shf_pk *slices_of(const struct shf_pk *info)
{
	const struct shf_pk *v = shf_pk_get(info, "slices");

	if (!v || (v->kind != SHF_PK_LIST && v->kind != SHF_PK_TUPLE))
		return NULL;
	for (uint32_t i = 0; i < v->n; i++)
		if (v->u.a[i]->kind != SHF_PK_STR)
			return NULL;
	return v;
}

/* Lists the names of all parts. A part belongs to one array only, and is one of `most` values. */
static int parts_list(struct parts *p, const struct shf_pk *infos, uint32_t most)
{
	size_t n = 0;

	for (uint32_t i = 0; i < infos->n; i++) {
		const struct shf_pk *slices = slices_of(infos->u.a[2 * i + 1]);

		if (!slices)
			return parts_bad(p, infos->u.a[2 * i], "its parts are not a list of names");
		n += slices->n;
		if (n > most)
			return parts_bad(p, infos->u.a[2 * i], "there are more parts than values, "
			                 "so a part is named twice or missing");
	}
	p->a = shf_zalloc(n + 1, sizeof(*p->a));
	if (!p->a)
		return shf_fail(p->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
		                p->f->path);
	for (uint32_t i = 0; i < infos->n; i++) {
		const struct shf_pk *slices = slices_of(infos->u.a[2 * i + 1]);

		for (uint32_t k = 0; k < slices->n; k++)
			p->a[p->n++].name = slices->u.a[k];
	}
	if (p->n)
		qsort(p->a, p->n, sizeof(*p->a), part_order);
	for (size_t i = 1; i < p->n; i++)
		if (part_order(&p->a[i - 1], &p->a[i]) == 0)
			return parts_bad(p, p->a[i].name, "a part is named twice");
	return 0;
}

/* Adds the ranges of one array. Returns the number of pieces. */
static int parts_pieces(struct parts *p, const struct shf_pk *name, const struct shf_pk *slices,
                        struct shf_foreign_tensor *x, uint64_t items)
{
	struct shf_foreign_range r = { .lo = 0 };
	struct shf_foreign_piece piece;
	struct shf_foreign_tensor own;
	struct shf_numpy_array a;
	const char *why;
	int pieces = 0;

	for (uint32_t k = 0; k < slices->n; k++) {
		const struct part *part = part_find(p, slices->u.a[k]);
		int n;

		if (!part->value)
			return parts_bad(p, name, "a part is missing");
		if (shf_paddle_tensor_of(&a, part->value, &why) != SHF_TENSOR_READ || a.pair ||
		    a.ndim != 1)
			return parts_bad(p, name, "a part is not an array of one dimension");
		if (k && a.dtype != x->dtype)
			return parts_bad(p, name, "its parts have different types");
		x->dtype = a.dtype;
		r.hi = r.lo + (uint64_t)a.dims->u.a[0]->u.i;
		if (r.hi > items)
			return parts_bad(p, name, "its parts have more items than its shape");
		n = shf_numpy_shown(p->f, &a, 0, &own, &piece, p->err);
		if (n < 0)
			return n;
		r.at = piece.at;
		r.text = piece.text;
		n = shf_foreign_add_range(p->f, x, &r, p->err);
		if (n < 0)
			return n;
		pieces += n;
		r.lo = r.hi;
	}
	if (!slices->n || r.lo != items)
		return parts_bad(p, name, "its parts have fewer items than its shape");
	return pieces;
}

/* Adds an array that is stored in parts. */
static int parts_join(struct parts *p, const struct shf_pk *name, const struct shf_pk *info)
{
	const struct shf_pk *shape = shf_pk_get(info, "OriginShape");
	int64_t dims[SHEAF_DIMS_MAX];
	struct shf_foreign_tensor x = { .dims = dims };
	uint64_t items = 1;
	int n;

	if (name->kind != SHF_PK_STR || !shape || shape->kind != SHF_PK_TUPLE ||
	    shape->n > SHEAF_DIMS_MAX)
		return parts_bad(p, name, "its shape is not known");
	for (uint32_t d = 0; d < shape->n; d++)
		if (!shf_pk_int(shape->u.a[d], &dims[d]) || dims[d] <= 0 ||
		    !shf_mul64(&items, items, (uint64_t)dims[d]) || items > INT64_MAX / 16)
			return parts_bad(p, name, "its shape is not known");
	x.ndim = (int32_t)shape->n;
	n = parts_pieces(p, name, slices_of(info), &x, items);
	if (n < 0)
		return n;
	x.n = (size_t)n;
	return shf_foreign_add_tensor(p->f, &x, name->u.s, name->n, p->err);
}

/* ---- the dictionary ---- */

/* Fills `rest`, whose array has room for them, with the entries of root that are no parts of an
 * array and not about other entries. */
static int rest_of(struct parts *p, const struct shf_pk *root, struct shf_pk *rest)
{
	for (uint32_t i = 0; i < root->n; i++) {
		struct shf_pk *key = root->u.a[2 * i], *value = root->u.a[2 * i + 1];
		struct part *part = part_find(p, key);

		if (shf_pk_text_is(key, SHF_PADDLE_PARTS))
			continue;
		if (shf_pk_text_is(key, SHF_PADDLE_NAMES) && value->kind == SHF_PK_DICT) {
			int rc = shf_foreign_note(p->f, p->err, key->u.s, key->n, "the run-time "
			                          "names of %" PRIu32 " parameters", value->n);

			if (rc < 0)
				return rc;
		} else if (part) {
			part->value = value;    /* the last one, as Python has it */
		} else {
			rest->u.a[2 * rest->n] = key;
			rest->u.a[2 * rest->n++ + 1] = value;
		}
	}
	return 0;
}

static int add_dict(struct parts *p, struct shf_pickle *pickle, const struct shf_walk_kind *by)
{
	const struct shf_pk *root = pickle->root, *infos = shf_pk_get(root, SHF_PADDLE_PARTS);
	struct shf_pk rest = { .kind = SHF_PK_DICT };
	int rc = 0;

	rest.u.a = shf_arena_alloc(&pickle->arena, 2 * (size_t)root->n + 1, sizeof(*rest.u.a));
	if (!rest.u.a)
		return shf_fail(p->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
		                p->f->path);
	if (infos && infos->kind == SHF_PK_DICT)
		rc = parts_list(p, infos, root->n);
	else
		infos = NULL;
	if (rc == 0)
		rc = rest_of(p, root, &rest);
	for (uint32_t i = 0; infos && i < infos->n && rc == 0; i++)
		rc = parts_join(p, infos->u.a[2 * i], infos->u.a[2 * i + 1]);
	return rc < 0 ? rc : shf_walk(p->f, pickle, &rest, by, p->err);
}

static int open_paddle_save(struct shf_foreign *f, struct sheaf_error *err)
{
	static const struct shf_walk_kind by = { .look = look_for_paddle, .add = add_of_paddle };
	struct parts parts = { .f = f, .err = err };
	struct shf_pickle pickle = { 0 };
	struct shf_region r;
	int rc = shf_foreign_region(f, 0, &r, err);

	if (rc == 0)
		rc = shf_paddle_read(&pickle, &r, NULL, err);
	if (rc == 0)
		rc = pickle.root->kind == SHF_PK_DICT ? add_dict(&parts, &pickle, &by)
		                                      : shf_walk(f, &pickle, pickle.root, &by, err);
	shf_free(parts.a);
	shf_pickle_release(&pickle);
	return rc;
}

const struct shf_foreign_format shf_paddle_save = {
	.name = "paddle.save",
	.is_file = is_paddle_save,
	.open = open_paddle_save,
};
