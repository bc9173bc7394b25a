/* SPDX-License-Identifier: Apache-2.0 */
/* A dataclass is pickled as an object without arguments that gets a dictionary as its state.
 * Numbers may be those of NumPy: scalar(dtype, bytes).
 *
 * A pickle has its tensors first, and then the places of their parts, mostly in the same order. So
 * the part of a place is mostly found as soon as the place is read. Places whose part is not found
 * are kept, sorted, and given to their parts at the end. */
#include "paddle_flex_index.h"
#include <stdlib.h>
#include <string.h>
#include "foreign.h"
#include "sort.h"

#define TRIES 16                /* parts that are compared with a place when it is read */
#define PATH_KEYS_MAX 64        /* keys in the path of a nested dictionary */

const struct shf_flex_folder shf_flex_folders[SHF_FLEX_FOLDERS] = {
	{ "model_state", "model", "" }, { "optimizer_state", "optimizer", NULL },
	{ "master_weight", "master_weights", ".w_0" }, { "ema_state", "ema", ".w_0" },
};

struct shf_flex_place {         /* a place whose part was not found when it was read */
	uint32_t tensor;                /* number of its name in kept_names; once all tensors were
	                                 * read, in names */
	uint32_t ndim;
	const int64_t *start, *count;   /* of its box; count NULL: the place does not say it */
	int64_t lo, hi;                 /* the range, as in `ranges` of a tensor */
	uint32_t file;
	int64_t replica;
};

/* ---- values of the pickle ---- */

/* Returns whether a global is this class. The module moved after Paddle 3.0. */
static bool is_flex_class(const struct shf_pk *global, const char *name)
{
	static const char *const modules[] = { "paddle.distributed.flex_checkpoint.dcp.metadata.",
		"paddle.distributed.checkpoint.metadata." };

	for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {
		size_t n = strlen(modules[i]);

		if (global->n == n - 1 && strncmp(global->u.s, modules[i], n) == 0 &&
		    strcmp(global->u.s + n, name) == 0)
			return true;
	}
	return false;
}

/* Returns the state of an object of this class, or NULL. *last: the class as it was found last;
 * NULL: it was not found yet. */
static const struct shf_pk *flex_state_of(const struct shf_pk *v, const char *name,
                                          const struct shf_pk **last)
{
	const struct shf_pk_call *c = v && v->kind == SHF_PK_CALL ? v->u.call : NULL;

	if (!c || c->args->n || c->kwargs || c->list || c->dict || !c->state ||
	    c->state->kind != SHF_PK_DICT || (c->func != *last && !is_flex_class(c->func, name)))
		return NULL;
	*last = c->func;
	return c->state;
}

/* Returns which member has this name; SHF_FLEX_MEMBERS: none. */
static enum shf_flex_member member_by_name(const struct shf_pk *key)
{
	static const char *const names[SHF_FLEX_MEMBERS] = { "global_offset", "local_shape",
		"global_shape", "dtype", "is_flattened", "flattened_range", "tensor_key",
		"replica_id" };
	unsigned i = 0;

	while (i < SHF_FLEX_MEMBERS && !shf_pk_text_is(key, names[i]))
		i++;
	return (enum shf_flex_member)i;
}

/* Sorts the values of a dictionary by member; NULL: it has none. Of several values the last one
 * counts, as in Python. */
static void flex_members(struct shf_flex_index *x, const struct shf_pk *state,
                         const struct shf_pk *of[SHF_FLEX_MEMBERS + 1])
{
	memset(of, 0, (SHF_FLEX_MEMBERS + 1) * sizeof(*of));
	for (uint32_t i = 0; i < state->n; i++) {
		const struct shf_pk *key = state->u.a[2 * (size_t)i];
		size_t at = (uintptr_t)key / sizeof(*key) % SHF_FLEX_KEYS;

		if (x->keys[at].key != key) {
			enum shf_flex_member member = member_by_name(key);

			of[member] = state->u.a[2 * (size_t)i + 1];
			if (!key->shared)
				continue;
			x->keys[at].key = key;
			x->keys[at].member = member;
		}
		of[x->keys[at].member] = state->u.a[2 * (size_t)i + 1];
	}
}

/* Reads an INT, or a number of NumPy of 4 or 8 bytes. */
static bool flex_int(const struct shf_pk *v, int64_t *out)
{
	const struct shf_pk_call *c;
	const struct shf_pk *bytes;

	if (shf_pk_int(v, out))
		return true;
	c = shf_pk_call_of(v, "numpy.core.multiarray.scalar");
	c = c ? c : shf_pk_call_of(v, "numpy._core.multiarray.scalar");
	bytes = c ? shf_pk_at(c->args, 1) : NULL;
	if (!bytes || bytes->kind != SHF_PK_FEW || (bytes->n != 8 && bytes->n != 4))
		return false;
	*out = bytes->n == 8 ? bytes->u.i : (int32_t)bytes->u.i;
	return true;
}

static bool copy_row(int64_t *to, const struct shf_pk *v, uint32_t n)
{
	return shf_pk_counts(to, v, n, flex_int);
}

/* The members that LocalTensorMetadata and LocalTensorIndex have in common. */
struct flex_part {
	const struct shf_pk *offset;
	const struct shf_pk *shape;     /* NULL: there is none */
	int64_t lo, hi;                 /* the flat range; -1: there is none */
};

static bool read_flex_part(struct flex_part *part, const struct shf_pk *const of[SHF_FLEX_MEMBERS])
{
	const struct shf_pk *flat = of[SHF_FLEX_FLAT], *range = of[SHF_FLEX_RANGE];
	int64_t both[2];

	*part = (struct flex_part){ of[SHF_FLEX_OFFSET], of[SHF_FLEX_SHAPE], -1, -1 };
	if (part->shape && part->shape->kind == SHF_PK_NONE)
		part->shape = NULL;
	if (flat && flat->kind == SHF_PK_BOOL && flat->u.i && range &&
	    range->kind != SHF_PK_NONE) {
		if (!copy_row(both, range, 2) || both[1] < both[0])
			return false;
		part->lo = both[0];
		part->hi = both[1];
	}
	return shf_pk_is_row(part->offset) && part->offset->n <= SHF_FOREIGN_DIMS_MAX &&
	       (!part->shape ||
	        (shf_pk_is_row(part->shape) && part->shape->n <= SHF_FOREIGN_DIMS_MAX));
}

/* Adds a copy of a text to a table, unless the table has it, and returns its number. */
static uint32_t add_copy(struct shf_flex_index *x, struct shf_text_table *table,
                         const struct shf_pk *text)
{
	uint32_t i = shf_text_find(table, text->u.s, text->n);
	const char *copy;

	if (i != SHF_TEXT_NONE)
		return i;
	copy = shf_arena_strdup(&x->arena, text->u.s, text->n);
	i = copy ? shf_text_add(table, copy, text->n) : SHF_TEXT_NONE;
	x->oom |= i == SHF_TEXT_NONE;
	return i;
}

/* ---- tensors ---- */

static int64_t range_lo(const struct shf_flex_tensor *t, uint32_t i)
{
	return t->ranges ? t->ranges[2 * (size_t)i] : -1;
}

static int64_t range_hi(const struct shf_flex_tensor *t, uint32_t i)
{
	return t->ranges ? t->ranges[2 * (size_t)i + 1] : -1;
}

static int rows_compare(const int64_t *a, const int64_t *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

static int parts_compare(const struct shf_flex_tensor *t, uint32_t i, uint32_t k)
{
	int c = rows_compare(shf_flex_start(t, i), shf_flex_start(t, k), t->ndim);

	if (!c && t->sizes_differ)
		c = rows_compare(shf_flex_count(t, i), shf_flex_count(t, k), t->ndim);
	c = c ? c : (range_lo(t, i) > range_lo(t, k)) - (range_lo(t, i) < range_lo(t, k));
	return c ? c : (range_hi(t, i) > range_hi(t, k)) - (range_hi(t, i) < range_hi(t, k));
}

/* Allocates the parts of a tensor. Returns false if they take more memory than x->left, or if there
 * are too many parts. */
static bool make_parts(struct shf_flex_index *x, struct shf_flex_tensor *t)
{
	uint64_t each = sizeof(*t->spots) + 2 * (t->ndim + 1) * sizeof(int64_t);

	if (t->parts_n > x->left / each || t->parts_n > SHF_FLEX_TWICE - 1 - x->parts_n)
		return false;
	x->left -= t->parts_n * each;
	t->spots = shf_arena_alloc(&x->arena, t->parts_n, sizeof(*t->spots));
	t->starts = shf_arena_alloc(x->kept, t->parts_n, t->ndim * sizeof(int64_t));
	t->counts = shf_arena_alloc(x->kept, 1, t->ndim * sizeof(int64_t));
	x->oom |= !t->spots || !t->starts || !t->counts;
	return true;
}

/* Sets the range of part i. Memory for all ranges is allocated for the first part that has one. */
static void set_range(struct shf_flex_index *x, struct shf_flex_tensor *t, uint32_t i,
                      const struct flex_part *part)
{
	if (!t->ranges && part->lo >= 0) {
		t->ranges = shf_arena_alloc(&x->arena, t->parts_n, 2 * sizeof(int64_t));
		x->oom |= !t->ranges;
		for (uint32_t k = 0; t->ranges && k < 2 * t->parts_n; k++)
			t->ranges[k] = -1;
	}
	if (t->ranges) {
		t->ranges[2 * (size_t)i] = part->lo;
		t->ranges[2 * (size_t)i + 1] = part->hi;
	}
}

/* Sets the sizes of part i. Memory for the sizes of all parts is allocated for the first part whose
 * sizes differ from those of part 0. */
static void set_sizes(struct shf_flex_index *x, struct shf_flex_tensor *t, uint32_t i,
                      const int64_t *sizes)
{
	size_t bytes = t->ndim * sizeof(*sizes);
	const int64_t *one = t->counts;

	if (i && !t->sizes_differ) {
		if (memcmp(one, sizes, bytes) == 0)
			return;
		t->counts = shf_arena_alloc(x->kept, t->parts_n, bytes);
		t->sizes_differ = true;
		x->oom |= !t->counts;
		for (uint32_t k = 0; t->counts && k < i; k++)
			memcpy(t->counts + (size_t)k * t->ndim, one, bytes);
	}
	if (t->counts)
		memcpy(t->counts + (size_t)i * t->ndim, sizes, bytes);
}

/* Sets the box of part i. */
static void set_box(struct shf_flex_index *x, struct shf_flex_tensor *t, uint32_t i,
                    const struct flex_part *part)
{
	int64_t *start = t->starts + (size_t)i * t->ndim, sizes[SHF_FOREIGN_DIMS_MAX];

	if (!copy_row(sizes, part->shape, t->ndim) || !copy_row(start, part->offset, t->ndim)) {
		memset(start, 0, t->ndim * sizeof(*start));
		memset(sizes, 0, t->ndim * sizeof(*sizes));
		t->odd = true;
	}
	set_sizes(x, t, i, sizes);
}

/* Reads the shape of the whole tensor that a part has (v). The first one is kept, and the others
 * must be the same. */
static void take_shape(struct shf_flex_index *x, struct shf_flex_tensor *t, const struct shf_pk *v)
{
	int64_t dims[SHF_FOREIGN_DIMS_MAX], *own;

	if (!shf_pk_is_row(v))
		return;
	if (!copy_row(dims, v, t->ndim)) {
		t->odd = true;
	} else if (t->dims) {
		t->leaves |= rows_compare(t->dims, dims, t->ndim) != 0;
	} else {
		t->dims = own = shf_arena_alloc(x->kept, t->ndim, sizeof(*own));
		x->oom |= !own;
		if (own)
			memcpy(own, dims, t->ndim * sizeof(*own));
	}
}

/* Returns the type of this name, or 0. Paddle 3.0 writes some as "paddle.float32". */
static int32_t flex_type(const struct shf_pk *v)
{
	static const struct { const char *name; int32_t type; } types[] = {
		{ "bfloat16", SHEAF_BF16 }, { "float32", SHEAF_F32 }, { "float16", SHEAF_F16 },
		{ "float64", SHEAF_F64 }, { "float8_e4m3fn", SHEAF_F8_E4M3 },
		{ "float8_e5m2", SHEAF_F8_E5M2 }, { "int64", SHEAF_I64 }, { "int32", SHEAF_I32 },
		{ "int16", SHEAF_I16 }, { "int8", SHEAF_I8 }, { "uint8", SHEAF_U8 },
		{ "bool", SHEAF_BOOL }, { "complex64", SHEAF_C64 } };
	static const char prefix[] = "paddle.";
	const size_t n = sizeof(prefix) - 1;
	struct shf_pk name;

	if (!v || v->kind != SHF_PK_STR)
		return 0;
	name = *v;
	if (name.n > n && memcmp(name.u.s, prefix, n) == 0) {
		name.u.s += n;
		name.n -= (uint32_t)n;
	}
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (shf_pk_text_is(&name, types[i].name))
			return types[i].type;
	return 0;
}

/* Reads a LocalTensorMetadata into part i. *said: the type that the part before has, which is often
 * the same record; NULL: there is none. */
static bool take_part(struct shf_flex_index *x, struct shf_flex_tensor *t, uint32_t i,
                      const struct shf_pk *v, const struct shf_pk **said)
{
	const struct shf_pk *s = flex_state_of(v, "LocalTensorMetadata", &x->part_class);
	const struct shf_pk *of[SHF_FLEX_MEMBERS + 1];
	struct flex_part part;

	if (!s)
		return false;
	flex_members(x, s, of);
	if (!read_flex_part(&part, of) || !part.shape)
		return false;
	if (i == 0) {
		t->ndim = part.offset->n;
		if (!make_parts(x, t))
			return false;
		t->dtype = flex_type(of[SHF_FLEX_DTYPE]);
	} else if (of[SHF_FLEX_DTYPE] != *said) {
		t->two_types |= flex_type(of[SHF_FLEX_DTYPE]) != t->dtype;
	}
	*said = of[SHF_FLEX_DTYPE];
	if (x->oom)
		return true;
	t->spots[i] = (struct shf_flex_spot){ .file = SHF_FLEX_NOWHERE };
	set_range(x, t, i, &part);
	set_box(x, t, i, &part);
	take_shape(x, t, of[SHF_FLEX_WHOLE]);
	t->twice |= i && !x->oom && parts_compare(t, i - 1, i) >= 0;
	return true;
}

/* Sets t->leaves if a part leaves the tensor. */
static void look_at_parts(struct shf_flex_tensor *t)
{
	for (uint32_t i = 0; i < t->parts_n; i++)
		for (uint32_t d = 0; d < t->ndim; d++) {
			int64_t start = shf_flex_start(t, i)[d], count = shf_flex_count(t, i)[d];

			t->leaves |= count > INT64_MAX - start ||
			             (t->dims && start + count > t->dims[d]);
		}
}

/* Takes a tensor: its name, and the list of its parts. */
static bool flex_take_tensor(struct shf_flex_index *x, const struct shf_pk *key,
                             const struct shf_pk *list)
{
	struct shf_flex_tensor t = { .name_n = key->n, .parts_n = list->n, .first = x->parts_n };
	uint32_t before = shf_text_count(&x->names), number;
	const struct shf_pk *said = NULL;

	for (uint32_t i = 0; i < list->n; i++)
		if (!take_part(x, &t, i, list->u.a[i], &said))
			return false;
	number = add_copy(x, &x->names, key);
	t.name = x->oom ? NULL : shf_text_at(&x->names, number)->s;
	t.again = shf_text_count(&x->names) == before;
	if (!x->oom)
		look_at_parts(&t);
	/* A tensor with the name of an earlier one is listed, too, and refused later. */
	shf_buf_add(&x->tensors, &t, sizeof(t));
	x->oom |= x->tensors.oom;
	x->parts_n += t.parts_n;
	return true;
}

/* ---- places ---- */

static bool row_is(const int64_t *have, const struct shf_pk *row)
{
	int64_t v;

	for (uint32_t i = 0; i < row->n; i++)
		if (!flex_int(row->u.a[i], &v) || v != have[i])
			return false;
	return true;
}

/* Returns whether a place is that of part i. The places of an older version have no shapes. */
static bool part_is(const struct shf_flex_tensor *t, uint32_t i, const struct flex_part *part)
{
	return row_is(shf_flex_start(t, i), part->offset) && range_lo(t, i) == part->lo &&
	       range_hi(t, i) == part->hi &&
	       (!part->shape || row_is(shf_flex_count(t, i), part->shape));
}

/* Returns whether a place is to replace that of a spot: if it is of a replica with a lower number,
 * or of the same replica in a file that was named earlier. */
static bool comes_before(const struct shf_flex_spot *spot, int64_t replica, uint32_t file)
{
	return spot->file == SHF_FLEX_NOWHERE || replica < spot->replica ||
	       (replica == spot->replica && file < spot->file);
}

static void give(struct shf_flex_spot *spot, int64_t replica, uint32_t file)
{
	if (!comes_before(spot, replica, file))
		return;
	spot->file = file;
	spot->replica = (int32_t)replica;
}

/* Finds the part of a place and gives it the place. Returns false if the part was not found. */
static bool flex_give_place(struct shf_flex_index *x, const struct shf_pk *name,
                            const struct flex_part *part, int64_t replica, uint32_t file)
{
	uint32_t at = shf_text_find(&x->names, name->u.s, name->n);
	struct shf_flex_tensor *t;
	size_t n;

	/* Names and tensors have the same numbers until two tensors have the same name. */
	t = shf_flex_tensors(x, &n);
	if (at >= n || n != shf_text_count(&x->names) || replica != (int32_t)replica)
		return false;
	t += at;
	if (t->odd || part->offset->n != t->ndim || (part->shape && part->shape->n != t->ndim))
		return false;
	for (uint32_t k = 0; k < TRIES && k < t->parts_n; k++) {
		uint32_t i = (uint32_t)((t->next + (uint64_t)k) % t->parts_n);

		if (!part_is(t, i, part))
			continue;
		give(&t->spots[i], replica, file);
		t->next = i + 1 < t->parts_n ? i + 1 : 0;
		return true;
	}
	return false;
}

/* Keeps a place whose part was not found. */
static bool keep_place(struct shf_flex_index *x, const struct shf_pk *name,
                       const struct flex_part *part, int64_t replica, uint32_t file)
{
	uint32_t ndim = part->offset->n;
	int64_t *box = shf_arena_alloc(&x->arena, ndim, 2 * sizeof(*box));
	struct shf_flex_place p = { .tensor = add_copy(x, &x->kept_names, name), .ndim = ndim,
		.start = box, .count = part->shape ? box + ndim : NULL, .lo = part->lo,
		.hi = part->hi, .file = file, .replica = replica };

	x->oom |= !box;
	if (!box)
		return true;
	if (!copy_row(box, part->offset, ndim) ||
	    (part->shape && !copy_row(box + ndim, part->shape, ndim)))
		return false;
	shf_buf_add(&x->places, &p, sizeof(p));
	x->oom |= x->places.oom;
	return true;
}

/* Takes a place: a LocalTensorIndex, and the name of the file that has the part. */
static bool take_place(struct shf_flex_index *x, const struct shf_pk *key,
                       const struct shf_pk *value)
{
	const struct shf_pk *s = flex_state_of(key, "LocalTensorIndex", &x->place_class);
	const struct shf_pk *of[SHF_FLEX_MEMBERS + 1], *name, *replica;
	struct flex_part part;
	int64_t number = 0;
	uint32_t file;

	if (!s)
		return false;
	flex_members(x, s, of);
	name = of[SHF_FLEX_KEY];
	replica = of[SHF_FLEX_REPLICA];
	if (!name || name->kind != SHF_PK_STR || !read_flex_part(&part, of) ||
	    (replica && replica->kind != SHF_PK_NONE && !flex_int(replica, &number)))
		return false;
	file = add_copy(x, &x->files, value);
	if (!x->oom && !flex_give_place(x, name, &part, number, file) &&
	    !keep_place(x, name, &part, number, file))
		return false;
	x->places_n++;
	return true;
}

/* Returns whether v is a tuple of texts: the keys that were joined to a flat key. They are taken
 * out of the pickle and not used. */
static bool is_path(const struct shf_pk *v)
{
	for (uint32_t i = 0; i < v->n && v->n <= PATH_KEYS_MAX; i++)
		if (v->u.a[i]->kind != SHF_PK_STR)
			return false;
	return v->n > 0 && v->n <= PATH_KEYS_MAX;
}

bool shf_flex_index_take(void *arg, const struct shf_pk *key, const struct shf_pk *value)
{
	struct shf_flex_index *x = arg;

	if (key->kind == SHF_PK_CALL)
		return value->kind == SHF_PK_STR && take_place(x, key, value);
	if (key->kind != SHF_PK_STR || !shf_pk_is_row(value) || !value->n)
		return false;
	if (value->u.a[0]->kind == SHF_PK_CALL && flex_take_tensor(x, key, value)) {
		x->tensors_n++;
		return true;
	}
	if (value->kind == SHF_PK_TUPLE && is_path(value)) {
		x->paths_n++;
		return true;
	}
	return false;
}

/* ---- the end ---- */

struct same {                   /* a part; sorted, the same parts are neighbours */
	const struct shf_flex_tensor *t;
	uint32_t i;
};

static int same_order(const void *a, const void *b)
{
	const struct same *x = a, *y = b;
	const struct shf_flex_spot *s = &x->t->spots[x->i], *r = &y->t->spots[y->i];
	int c = parts_compare(x->t, x->i, y->i);

	/* Of parts that are the same, one that has a place comes first. */
	c = c ? c : (s->file == SHF_FLEX_NOWHERE) - (r->file == SHF_FLEX_NOWHERE);
	c = c ? c : (s->replica > r->replica) - (s->replica < r->replica);
	return c ? c : (x->i > y->i) - (x->i < y->i);
}

/* Of parts that are the same, marks all but the first. */
static void mark_twice(struct shf_flex_index *x, struct shf_flex_tensor *t)
{
	struct same *all = shf_alloc(t->parts_n, sizeof(*all));

	x->oom |= !all;
	for (uint32_t i = 0; all && i < t->parts_n; i++)
		all[i] = (struct same){ t, i };
	if (all)
		qsort(all, t->parts_n, sizeof(*all), same_order);
	for (uint32_t i = 1, first = 0; all && i < t->parts_n; i++) {
		if (parts_compare(t, all[first].i, all[i].i) == 0)
			t->spots[all[i].i].file = SHF_FLEX_TWICE;
		else
			first = i;
	}
	shf_free(all);
}

/* Compares two places by tensor, box and range. Sizes are compared if both places have them. */
static int place_compare(const struct shf_flex_place *x, const struct shf_flex_place *y)
{
	int c = (x->tensor > y->tensor) - (x->tensor < y->tensor);

	c = c ? c : (x->ndim > y->ndim) - (x->ndim < y->ndim);
	c = c ? c : rows_compare(x->start, y->start, x->ndim);
	c = c ? c : (x->lo > y->lo) - (x->lo < y->lo);
	c = c ? c : (x->hi > y->hi) - (x->hi < y->hi);
	return c || !x->count || !y->count ? c : rows_compare(x->count, y->count, x->ndim);
}

static int place_order(const void *a, const void *b)
{
	const struct shf_flex_place *x = a, *y = b;
	int c = place_compare(x, y);

	c = c ? c : (x->replica > y->replica) - (x->replica < y->replica);
	return c ? c : (x->file > y->file) - (x->file < y->file);
}

/* Gives part i of tensor `number` the first place that was kept for it, if there is one. */
static void give_kept(const struct shf_flex_index *x, struct shf_flex_tensor *t, uint32_t number,
                      uint32_t i)
{
	const struct shf_flex_place *a = (const void *)x->places.data;
	struct shf_flex_place want = { .tensor = number, .ndim = t->ndim,
		.start = shf_flex_start(t, i), .count = shf_flex_count(t, i),
		.lo = range_lo(t, i), .hi = range_hi(t, i) };
	size_t lo = 0, hi = x->places.len / sizeof(*a), n = hi;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (place_compare(&a[mid], &want) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo < n && place_compare(&a[lo], &want) == 0 && a[lo].replica == (int32_t)a[lo].replica)
		give(&t->spots[i], a[lo].replica, a[lo].file);
}

/* Gives the kept places to their parts, and marks parts that are the same as others. */
static void flex_settle(struct shf_flex_index *x)
{
	size_t n, kept = x->places.len / sizeof(struct shf_flex_place);
	struct shf_flex_tensor *t = shf_flex_tensors(x, &n);
	struct shf_flex_place *a = (struct shf_flex_place *)(void *)x->places.data;

	for (size_t i = 0; i < kept; i++) {
		const struct shf_text *name = shf_text_at(&x->kept_names, a[i].tensor);

		a[i].tensor = shf_text_find(&x->names, name->s, name->n);
	}
	shf_records_sort(a, kept, sizeof(struct shf_flex_place), place_order);
	for (uint32_t k = 0; k < n && !x->oom; k++) {
		for (uint32_t i = 0; kept && i < t[k].parts_n && !t[k].odd && !t[k].again; i++)
			give_kept(x, &t[k], shf_text_find(&x->names, t[k].name, t[k].name_n), i);
		if (t[k].twice && !t[k].odd)
			mark_twice(x, &t[k]);
	}
}

/* The pairs that were taken must be those of the dictionaries of the Metadata, and not of others.
 * Tensors without parts were not taken and are still in their dictionary. */
bool shf_flex_index_end(struct shf_flex_index *x, const struct shf_pk *root)
{
	const struct shf_pk *of = NULL, *s = flex_state_of(root, "Metadata", &of);
	const struct shf_pk *tensors = shf_pk_get(s, "state_dict_metadata");
	const struct shf_pk *places = shf_pk_get(s, "storage_metadata");
	const struct shf_pk *paths = shf_pk_get(s, "flat_mapping");

	if (!tensors || tensors->kind != SHF_PK_DICT || tensors->taken != x->tensors_n ||
	    !places || places->kind != SHF_PK_DICT || places->n || places->taken != x->places_n ||
	    tensors == places)
		return false;
	if (x->paths_n && (!paths || paths->kind != SHF_PK_DICT || paths->taken != x->paths_n))
		return false;
	for (uint32_t i = 0; i < tensors->n; i++) {
		const struct shf_pk *key = tensors->u.a[2 * i], *parts = tensors->u.a[2 * i + 1];

		if (key->kind != SHF_PK_STR || !shf_pk_is_row(parts) || parts->n ||
		    !flex_take_tensor(x, key, parts))
			return false;
	}
	if (!x->oom)
		flex_settle(x);
	return true;
}

void shf_flex_index_release(struct shf_flex_index *x)
{
	shf_buf_release(&x->tensors);
	shf_buf_release(&x->places);
	shf_text_table_release(&x->names);
	shf_text_table_release(&x->files);
	shf_text_table_release(&x->kept_names);
	shf_arena_release(&x->arena);
}
