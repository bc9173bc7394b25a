/* SPDX-License-Identifier: Apache-2.0 */
/* Puts a tensor together from its cells, each of which is in one or several tensors of the
 * source. */
#include "map_make.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "map_sizes.h"
#include "valid.h"

#define PIECES_MAX (UINT64_C(1) << 24)

int shf_map_no_memory(const struct shf_mapper *p)
{
	return shf_fail(p->err, SHEAF_ENOMEM, "%s: no memory to map it", p->path);
}

int shf_map_spend(struct shf_mapper *p, uint64_t n, const struct shf_map_tensor *t)
{
	if (n <= p->left) {
		p->left -= n;
		return 0;
	}
	return shf_fail(p->err, SHEAF_EINVAL, "%s:%d: %.200s counts far more names than %s has "
	                "tensors; check it against config.json", p->m->path, t->line, t->text,
	                p->path);
}

int shf_map_source_name(struct shf_mapper *p, const struct shf_map_tensor *t, const char *star)
{
	const struct shf_map_place *x = &p->site->from;
	int rc;

	shf_buf_reset(&p->text);
	shf_buf_addf(&p->text, "%s%s", p->how->prefix, x->before);
	rc = shf_map_name_make(&p->values, t, star, &p->text, p->err);
	shf_buf_adds(&p->text, x->after);
	shf_buf_u8(&p->text, 0);
	return rc == 0 && p->text.oom ? shf_map_no_memory(p) : rc;
}

/* Returns the tensor of the source with the current numbers, of the pattern of a cell. */
static uint32_t taken_now(const struct shf_mapper *p, const struct shf_map_cell *c)
{
	const struct shf_map_takes *x = &p->takes[c->other];
	uint64_t at = shf_map_count_at(&x->count);

	return x->n ? x->from[at] : SHF_MAP_NONE;
}

struct making {                 /* a tensor that is being made */
	const struct shf_map_tensor *t;
	struct shf_map_sizes sizes;
	struct shf_map_made made;
	int64_t dims[SHEAF_DIMS_MAX];
	int32_t type;                   /* that its sources have; 0: not known */
	uint64_t found, lacking;        /* tensors of the source for it */
	bool single;                    /* each of them has one item */
	bool shared;                    /* one of them is no item of its weight, but a value for
	                                 * all of it, such as the number of its updates */
	const char *name_lacking;       /* the name of one that is lacking, in the arena */
};

static void dims_of(const struct shf_mapper *p, uint32_t from, struct shf_map_dims *out)
{
	const struct shf_lt_tensor *t = &p->l->tensors[from];

	*out = (struct shf_map_dims){ t->name, t->wide ? t->wide : t->items.ndim,
		t->wide ? t->dims : t->items.dim };
}

/* What is done with a tensor of the source that a cell is made of. */
typedef int for_source(struct shf_mapper *p, struct making *k, const struct shf_map_cell *c,
                       uint32_t from);

/* Does it with each of them. */
static int each_source(struct shf_mapper *p, struct making *k, const struct shf_map_cell *c,
                       for_source *f)
{
	const struct shf_map_tensor *s = shf_map_src(p, (uint32_t)c->other);
	struct shf_map_count spread = { &p->values, p->rule, s->outer & ~k->t->outer };
	uint64_t n = shf_map_count_begin(&spread);
	int rc = shf_map_spend(p, n, s);        /* n names fit: they were looked up */

	for (uint64_t i = 0; i < n && rc == 0; i++) {
		rc = f(p, k, c, taken_now(p, c));
		shf_map_count_next(&spread);
	}
	return rc;
}

/* Finds the weight that a tensor of the current site is state of. *at is negative if the source
 * does not have it. */
static int find_weight(struct shf_mapper *p, const char *name, int64_t *at)
{
	static const char *const families[] = { "model", "master_weights" };
	const struct shf_map_place *x = &p->site->from;
	size_t skip = strlen(p->how->prefix) + strlen(x->before), after = strlen(x->after);
	size_t n = strlen(name);

	*at = -1;
	if (n < skip + after)           /* a tensor that another name is tied to */
		return 0;
	shf_buf_reset(&p->text);
	shf_buf_adds(&p->text, p->how->prefix);
	shf_buf_add(&p->text, name + skip, n - skip - after);
	shf_buf_u8(&p->text, 0);
	if (p->text.oom)
		return shf_map_no_memory(p);
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]) && *at < 0; i++)
		*at = shf_layout_find(p->l, families[i], (char *)p->text.data);
	return 0;
}

/* Decides whether state of one item is a value for all of its weight, or the item of a weight that
 * has one. If neither its key nor the shape of the weight says so, it is the former. */
static int classify_item(struct shf_mapper *p, struct making *k, uint32_t from)
{
	struct shf_map_dims have, weight;
	int64_t at;
	int rc = find_weight(p, p->l->tensors[from].name, &at);

	if (rc < 0)
		return rc;
	if (at < 0 || p->site->has == SHF_MAP_VALUE) {
		k->shared = p->site->has != SHF_MAP_ITEMS;
		return 0;
	}
	dims_of(p, from, &have);
	dims_of(p, (uint32_t)at, &weight);
	k->shared = have.ndim != weight.ndim ||
	            memcmp(have.dims, weight.dims, (size_t)have.ndim * sizeof(*have.dims));
	return 0;
}

static int count_source(struct shf_mapper *p, struct making *k, const struct shf_map_cell *c,
                        uint32_t from)
{
	int rc;

	if (from != SHF_MAP_NONE) {
		const struct shf_lt_tensor *t = &p->l->tensors[from];

		k->found++;
		k->single &= t->bytes * 8 == shf_dtype(t->dtype)->bits;
		return p->site->state && k->single && !k->shared ? classify_item(p, k, from) : 0;
	}
	k->lacking++;
	if (k->name_lacking)
		return 0;
	rc = shf_map_source_name(p, shf_map_src(p, (uint32_t)c->other), NULL);
	if (rc == 0)
		k->name_lacking = shf_arena_strdup(&p->plan->arena, (char *)p->text.data,
		                                   p->text.len);
	return rc == 0 && !k->name_lacking ? shf_map_no_memory(p) : rc;
}

static int size_source(struct shf_mapper *p, struct making *k, const struct shf_map_cell *c,
                       uint32_t from)
{
	struct shf_map_dims have;
	int rc;

	dims_of(p, from, &have);
	do
		rc = shf_map_sizes_take(&k->sizes, shf_map_src(p, (uint32_t)c->other), &have,
		                        p->err);
	while (rc > 0);
	return rc;
}

static int match_source(struct shf_mapper *p, struct making *k, const struct shf_map_cell *c,
                        uint32_t from)
{
	struct shf_map_dims have;

	dims_of(p, from, &have);
	return shf_map_sizes_match(&k->sizes, shf_map_src(p, (uint32_t)c->other), &have, p->err);
}

/* Takes over the type of a tensor of the source. */
static int type_source(struct shf_mapper *p, struct making *k, const struct shf_map_cell *c,
                       uint32_t from)
{
	const struct shf_lt_tensor *t = &p->l->tensors[from];
	const struct shf_map_tensor *s = shf_map_src(p, (uint32_t)c->other);
	bool counts = !p->site->state && strcmp(p->site->from.family, "model") == 0;
	int32_t type = counts && s->bits ? s->dtype : t->dtype;

	if (shf_dtype(t->dtype)->bits < 8)
		return shf_fail(p->err, SHEAF_ELAYOUT, "%.*s: has items smaller than a byte, which "
		                "cannot be mapped", shf_name_show(t->name), t->name);
	if (counts && s->dtype && (s->bits ? shf_dtype(s->dtype)->bits != shf_dtype(t->dtype)->bits
	                                   : s->dtype != t->dtype))
		return shf_fail(p->err, SHEAF_ELAYOUT, "%.*s has type %s, which does not fit "
		                "%s:%d: %s", shf_name_show(t->name), t->name,
		                shf_dtype(t->dtype)->name, p->m->path, s->line,
		                shf_dtype(s->dtype)->name);
	if (k->type && k->type != type)
		return shf_fail(p->err, SHEAF_ELAYOUT, "%.*s has type %s, and other parts of "
		                "%.200s have type %s, which one tensor cannot have",
		                shf_name_show(t->name), t->name, shf_dtype(type)->name,
		                k->t->text, shf_dtype(k->type)->name);
	k->type = k->made.stored = k->made.dtype = type;
	if (!counts || !k->t->dtype)
		return 0;
	k->made.dtype = k->t->dtype;
	if (k->t->bits && shf_dtype(k->t->dtype)->bits == shf_dtype(type)->bits)
		k->made.stored = k->t->dtype;
	else if (k->t->bits || !shf_can_convert(k->t->dtype, type))
		return shf_fail(p->err, SHEAF_ELAYOUT, "%s:%d: %.200s: %s cannot become %s",
		                p->m->path, k->t->line, k->t->text, shf_dtype(type)->name,
		                shf_dtype(k->t->dtype)->name);
	return 0;
}

static int each_cell(struct shf_mapper *p, struct making *k, for_source *f)
{
	int rc = 0;

	for (uint32_t i = 0; i < k->t->cells_n && rc == 0; i++)
		if (!k->t->cells[i].padding)
			rc = each_source(p, k, &k->t->cells[i], f);
	return rc;
}

/* Makes the box of a cell: the axes that are in the dimensions of both tensors, without those of
 * one item, the one with the smallest steps last, and merged where one continues another. */
static struct shf_map_box *box_make(struct shf_mapper *p, const struct making *k, uint32_t axes,
                                    const uint64_t *src, const uint64_t *dst)
{
	struct shf_map_box *box = shf_arena_alloc(&p->plan->arena, 1, sizeof(*box));
	struct shf_axis a[SHF_MAP_AXES_MAX], *kept;
	int n = 0;

	for (int i = 0; i < p->rule->axes_n; i++) {
		int at = n;

		if (!(axes >> i & 1) || k->sizes.size[i] == 1)
			continue;
		for (; at > 0 && a[at - 1].dst < dst[i]; at--)
			a[at] = a[at - 1];
		a[at] = (struct shf_axis){ (uint64_t)k->sizes.size[i], src[i], dst[i] };
		n++;
	}
	for (int i = n - 2; i >= 0; i--)
		if (a[i].src == a[i + 1].n * a[i + 1].src &&
		    a[i].dst == a[i + 1].n * a[i + 1].dst) {
			a[i + 1].n *= a[i].n;
			memmove(&a[i], &a[i + 1], (size_t)(--n - i) * sizeof(a[0]));
		}
	kept = shf_arena_alloc(&p->plan->arena, (size_t)n + 1, sizeof(*kept));
	if (!box || !kept)
		return NULL;
	memcpy(kept, a, (size_t)n * sizeof(*kept));
	*box = (struct shf_map_box){ kept, n };
	return box;
}

struct cell_place { const struct shf_map_box *box; uint64_t src, dst; const uint64_t *ss, *ds; };

/* Adds a piece for each tensor of the source that a cell is made of. */
static int put_spread(struct shf_mapper *p, struct making *k, const struct shf_map_cell *c,
                      const struct cell_place *x)
{
	const struct shf_map_tensor *s = shf_map_src(p, (uint32_t)c->other);
	struct shf_map_count spread = { &p->values, p->rule, s->outer & ~k->t->outer };
	uint64_t n = shf_map_count_begin(&spread), span = 1, items = 1;

	for (int i = 0; i < x->box->n; i++) {
		if (x->box->axis[i].n == 0)
			return 0;
		items *= x->box->axis[i].n;
		span += (x->box->axis[i].n - 1) * x->box->axis[i].dst;
	}
	for (uint64_t i = 0; i < n; i++) {
		struct shf_map_piece piece = { x->box, taken_now(p, c), x->src, x->dst, span };

		for (int a = 0; a < p->rule->axes_n; a++) {
			uint64_t at = p->rule->axes[a].counted
			            ? (uint64_t)p->values.index[p->rule->axes[a].var] : 0;

			/* A number in only one of the names is an axis in the other tensor. */
			if (spread.axes >> a & 1)
				piece.dst += at * x->ds[a];
			if ((k->t->outer & ~s->outer) >> a & 1)
				piece.src += at * x->ss[a];
		}
		shf_buf_add(&p->plan->pieces, &piece, sizeof(piece));
		p->covered[piece.from] += items;
		shf_map_count_next(&spread);
	}
	if (p->plan->pieces.len / sizeof(struct shf_map_piece) > PIECES_MAX)
		return shf_fail(p->err, SHEAF_EINVAL, "%s:%d: the map has too many parts of "
		                "tensors", p->m->path, k->t->line);
	return p->plan->pieces.oom ? shf_map_no_memory(p) : 0;
}

/* Adds the pieces of a cell. */
static int put_cell(struct shf_mapper *p, struct making *k, const struct shf_map_cell *c)
{
	const struct shf_map_tensor *s = shf_map_src(p, (uint32_t)c->other);
	const struct shf_map_cell *sc = &s->cells[c->other_cell];
	uint64_t ss[SHF_MAP_AXES_MAX] = { 0 }, ds[SHF_MAP_AXES_MAX] = { 0 };
	int64_t dims[SHEAF_DIMS_MAX];
	struct cell_place x = { .ss = ss, .ds = ds };
	int rc = shf_map_sizes_dims(&k->sizes, s, dims, p->err);

	if (rc < 0)
		return rc;
	shf_map_sizes_place(&k->sizes, s, sc, dims, &x.src, ss);
	shf_map_sizes_place(&k->sizes, k->t, c, k->dims, &x.dst, ds);
	x.box = box_make(p, k, c->inner & sc->inner, ss, ds);
	return x.box ? put_spread(p, k, c, &x) : shf_map_no_memory(p);
}

/* Adds one piece that has all items of a tensor of the source, for a rename. */
static int put_whole(struct shf_mapper *p, struct making *k, const struct shf_map_cell *c,
                     uint32_t from)
{
	const struct shf_lt_tensor *t = &p->l->tensors[from];
	struct shf_map_box *box = shf_arena_alloc(&p->plan->arena, 1, sizeof(*box));
	struct shf_axis *axis = shf_arena_alloc(&p->plan->arena, 1, sizeof(*axis));
	uint64_t items = t->bytes / (shf_dtype(t->dtype)->bits / 8);
	struct shf_map_piece piece = { box, from, 0, 0, items };
	struct shf_map_dims have;
	int64_t *dims;

	(void)c;
	dims_of(p, from, &have);
	dims = shf_arena_alloc(&p->plan->arena, (size_t)have.ndim + 1, sizeof(*dims));
	if (!box || !axis || !dims)
		return shf_map_no_memory(p);
	if (have.ndim)
		memcpy(dims, have.dims, (size_t)have.ndim * sizeof(*dims));
	k->made.ndim = have.ndim;
	k->made.dims = dims;
	*axis = (struct shf_axis){ items, 1, 1 };
	*box = (struct shf_map_box){ axis, 1 };
	p->covered[from] = items;
	if (items)
		shf_buf_add(&p->plan->pieces, &piece, sizeof(piece));
	return p->plan->pieces.oom ? shf_map_no_memory(p) : 0;
}

/* Compares the value of a tensor of one item with that of the first, and adds a piece if it is the
 * first. */
static int put_single(struct shf_mapper *p, struct making *k, const struct shf_map_cell *c,
                      uint32_t from)
{
	const struct shf_map_piece *all = (const void *)p->plan->pieces.data;
	const struct shf_map_piece *first = all ? all + k->made.first : NULL;
	size_t n = p->plan->pieces.len / sizeof(*all) - k->made.first;
	const struct shf_lt_tensor *t = &p->l->tensors[from];
	uint8_t x[16] = { 0 }, y[16] = { 0 };
	int rc;

	p->covered[from] = 1;
	if (n == 0)
		return put_whole(p, k, c, from);
	if (first->from == from)
		return 0;
	rc = p->how->read(p->how->arg, from, x, t->bytes, p->err);
	if (rc == 0)
		rc = p->how->read(p->how->arg, first->from, y, t->bytes, p->err);
	if (rc < 0 || memcmp(x, y, t->bytes) == 0)
		return rc;
	return shf_fail(p->err, SHEAF_ELAYOUT, "%.*s and %.*s have one value each, and the rule of "
	                "%s:%d makes one tensor of them, but the values differ",
	                shf_name_show(t->name), t->name,
	                shf_name_show(p->l->tensors[first->from].name),
	                p->l->tensors[first->from].name, p->m->path, k->t->line);
}

/* Decides sizes, and adds the pieces. */
static int put_shaped(struct shf_mapper *p, struct making *k)
{
	int64_t *dims;
	int rc = each_cell(p, k, size_source);

	/* A second pass, because a size may follow from that of a tensor that came later. */
	if (rc == 0)
		rc = each_cell(p, k, size_source);
	if (rc == 0)
		rc = each_cell(p, k, match_source);
	if (rc == 0)
		rc = shf_map_sizes_dims(&k->sizes, k->t, k->dims, p->err);
	for (uint32_t i = 0; i < k->t->cells_n && rc == 0; i++) {
		if (k->t->cells[i].padding)
			k->made.padded = true;
		else
			rc = put_cell(p, k, &k->t->cells[i]);
	}
	if (rc < 0)
		return rc;
	dims = shf_arena_alloc(&p->plan->arena, SHEAF_DIMS_MAX, sizeof(*dims));
	if (!dims)
		return shf_map_no_memory(p);
	memcpy(dims, k->dims, sizeof(k->dims));
	k->made.ndim = k->t->ndim;
	k->made.dims = dims;
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct shf_map_piece *x = a, *y = b;

	return (x->dst > y->dst) - (x->dst < y->dst);
}

/* EINVAL: the caller chose one family, reads the same one of the result, and the map has moved
 * state of it to another one, where it would be overlooked. State that moves out of the weights,
 * family model, is no part of a model. */
static int check_family(const struct shf_mapper *p, const char *name)
{
	const char *chosen = p->how->family, *to = p->site->to.family;

	if (!chosen || strcmp(chosen, "model") == 0 || strcmp(chosen, to) == 0)
		return 0;
	return shf_fail(p->err, SHEAF_EINVAL, "%s: family %.60s cannot be mapped alone, because %s "
	                "makes its %.*s in family %.60s; map all families, or add 'in %.60s' to "
	                "the also line of the map", p->path, chosen, p->m->path,
	                shf_name_show(name), name, to, chosen);
}

/* Makes the name of a tensor, and lists it. */
static int put_made(struct shf_mapper *p, struct making *k, const char *star)
{
	const struct shf_map_place *x = &p->site->to;
	struct shf_map_piece *pieces;
	int rc;

	shf_buf_reset(&p->text);
	shf_buf_adds(&p->text, x->before);
	rc = shf_map_name_make(&p->values, k->t, star, &p->text, p->err);
	shf_buf_adds(&p->text, x->after);
	if (rc < 0)
		return rc;
	if (!p->text.oom && !shf_name_is_valid((char *)p->text.data, p->text.len))
		return shf_fail(p->err, SHEAF_EINVAL, "%s:%d: %.200s makes a name that no tensor "
		                "can have; it must have from 1 to %d bytes", p->m->path, k->t->line,
		                k->t->text, SHF_MAP_NAME_MAX);
	k->made.name = shf_arena_strdup(&p->plan->arena, (char *)p->text.data, p->text.len);
	k->made.family = x->family;
	k->made.line = k->t->line;
	k->made.n = p->plan->pieces.len / sizeof(*pieces) - k->made.first;
	k->made.items = 1;
	for (int32_t d = 0; d < k->made.ndim; d++)
		k->made.items *= (uint64_t)k->made.dims[d];
	pieces = (struct shf_map_piece *)(void *)p->plan->pieces.data;
	for (size_t i = k->made.first; i < k->made.first + k->made.n; i++)
		k->made.turned |= pieces[i].box->n &&
		                  pieces[i].box->axis[pieces[i].box->n - 1].src != 1;
	if (k->made.n)
		qsort(pieces + k->made.first, k->made.n, sizeof(*pieces), by_place);
	shf_buf_add(&p->plan->made, &k->made, sizeof(k->made));
	if (!k->made.name || p->plan->made.oom || p->text.oom)
		return shf_map_no_memory(p);
	return check_family(p, k->made.name);
}

/* A tensor of the source is lacking. That is wrong if others that belong to the same tensor are
 * there, or if it is a weight that the rule must find and the site has any weight at all: the
 * latter is known when all rules are applied (apply_lines). */
static int note_lacking(struct shf_mapper *p, const struct making *k)
{
	bool may = p->rule->maybe || p->site->state || p->site->missing.code ||
	           strcmp(p->site->from.family, "model");

	if (!k->found && may)
		return 0;
	shf_fail(k->found ? p->err : &p->site->missing, SHEAF_ELAYOUT, "%s: has no tensor %.*s, "
	         "which %s:%d needs; check that map and config.json are those of this model",
	         p->path, shf_name_show(k->name_lacking), k->name_lacking, p->m->path, k->t->line);
	return k->found ? SHEAF_ELAYOUT : 0;
}

int shf_map_make(struct shf_mapper *p, const struct shf_map_tensor *t, const char *star)
{
	struct making k = { .t = t, .single = true, .made.first = p->plan->pieces.len /
	                    sizeof(struct shf_map_piece) };
	int rc;

	shf_map_sizes_init(&k.sizes, p->m, p->rule, &p->values);
	rc = each_cell(p, &k, count_source);
	if (rc == 0 && k.lacking)
		return note_lacking(p, &k);
	if (rc < 0 || !k.found)
		return rc;
	rc = each_cell(p, &k, type_source);
	if (rc == 0 && k.single && k.shared)
		rc = each_cell(p, &k, put_single);
	else if (rc == 0)
		rc = t->shaped ? put_shaped(p, &k) : each_cell(p, &k, put_whole);
	return rc == 0 ? put_made(p, &k, star) : rc;
}

