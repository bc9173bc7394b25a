/* SPDX-License-Identifier: Apache-2.0 */
/* A dataclass is pickled as an object without arguments that gets a dictionary as its state.
 * Numbers may be those of NumPy: scalar(dtype, bytes). */
#include "paddle_flex_index.h"
#include "foreign.h"
#include <string.h>
#include "sort.h"

const struct shf_flex_folder shf_flex_folders[SHF_FLEX_FOLDERS] = {
	{ "model_state", "model", "" }, { "optimizer_state", "optimizer", NULL },
	{ "master_weight", "master_weights", ".w_0" }, { "ema_state", "ema", ".w_0" },
};

/* Returns the state of an object of this class, or NULL. The module moved after Paddle 3.0. */
static const struct shf_pk *flex_state_of(const struct shf_pk *v, const char *name)
{
	static const char *const modules[] = { "paddle.distributed.flex_checkpoint.dcp.metadata.",
		"paddle.distributed.checkpoint.metadata." };
	const struct shf_pk_call *c = v && v->kind == SHF_PK_CALL ? v->u.call : NULL;

	for (size_t i = 0; c && i < sizeof(modules) / sizeof(modules[0]); i++) {
		size_t n = strlen(modules[i]);

		if (strncmp(c->func->u.s, modules[i], n) == 0 && c->func->n == n - 1 &&
		    strcmp(c->func->u.s + n, name) == 0 && c->args->n == 0 && !c->kwargs &&
		    !c->list && !c->dict && c->state && c->state->kind == SHF_PK_DICT)
			return c->state;
	}
	return NULL;
}

/* Reads an INT, or a number of NumPy of up to 8 bytes. */
static bool flex_int(const struct shf_pk *v, int64_t *out)
{
	const struct shf_pk_call *c = shf_pk_call_of(v, "numpy.core.multiarray.scalar");
	const struct shf_pk *bytes;
	uint64_t x = 0;

	c = c ? c : shf_pk_call_of(v, "numpy._core.multiarray.scalar");
	bytes = c ? shf_pk_at(c->args, 1) : NULL;
	if (!bytes)
		return shf_pk_int(v, out);
	if (bytes->kind != SHF_PK_BYTES || (bytes->n != 8 && bytes->n != 4))
		return false;
	for (uint32_t i = 0; i < bytes->n; i++)
		x |= (uint64_t)(uint8_t)bytes->u.s[i] << 8 * i;
	*out = bytes->n == 8 ? (int64_t)x : (int32_t)(uint32_t)x;
	return true;
}

bool shf_flex_number(const struct shf_pk *v, uint32_t i, int64_t *out)
{
	return flex_int(shf_pk_at(v, i), out) && *out >= 0;
}

static bool is_row(const struct shf_pk *v)
{
	return v && (v->kind == SHF_PK_TUPLE || v->kind == SHF_PK_LIST);
}

static bool is_short_row(const struct shf_pk *v)
{
	return is_row(v) && v->n <= SHF_FOREIGN_DIMS_MAX;
}

/* Reads what LocalTensorMetadata and LocalTensorIndex have in common. */
static bool read_flex_part(struct shf_flex_part *part, const struct shf_pk *state)
{
	const struct shf_pk *flat = shf_pk_get(state, "is_flattened");
	const struct shf_pk *range = shf_pk_get(state, "flattened_range");

	part->offset = shf_pk_get(state, "global_offset");
	part->shape = shf_pk_get(state, "local_shape");
	part->flat = flat && flat->kind == SHF_PK_BOOL && flat->u.i && range &&
	             range->kind != SHF_PK_NONE;
	if (part->shape && part->shape->kind == SHF_PK_NONE)
		part->shape = NULL;
	if (part->flat && (!shf_flex_number(range, 0, &part->lo) ||
	                   !shf_flex_number(range, 1, &part->hi) || range->n != 2 ||
	                   part->hi < part->lo))
		return false;
	return is_short_row(part->offset) && (!part->shape || is_short_row(part->shape));
}

static bool add_parts(struct shf_flex_index *x, const struct shf_pk *key, const struct shf_pk *list)
{
	if (key->kind != SHF_PK_STR || !is_row(list))
		return false;
	for (uint32_t i = 0; i < list->n; i++) {
		const struct shf_pk *s = flex_state_of(list->u.a[i], "LocalTensorMetadata");
		struct shf_flex_part part = { .key = key };

		if (!s || !read_flex_part(&part, s) || !part.shape)
			return false;
		part.global = shf_pk_get(s, "global_shape");
		part.global = is_row(part.global) ? part.global : NULL;
		part.dtype = shf_pk_get(s, "dtype");
		part.dtype = part.dtype && part.dtype->kind == SHF_PK_STR ? part.dtype : NULL;
		shf_buf_add(&x->parts, &part, sizeof(part));
	}
	return true;
}

static bool add_place(struct shf_flex_index *x, const struct shf_pk *index,
                      const struct shf_pk *file)
{
	const struct shf_pk *s = flex_state_of(index, "LocalTensorIndex"), *replica;
	struct shf_flex_part part = { .file = file };

	part.key = shf_pk_get(s, "tensor_key");
	replica = shf_pk_get(s, "replica_id");
	if (!s || !part.key || part.key->kind != SHF_PK_STR || file->kind != SHF_PK_STR ||
	    !read_flex_part(&part, s))
		return false;
	if (replica && replica->kind != SHF_PK_NONE && !flex_int(replica, &part.replica))
		return false;
	shf_buf_add(&x->places, &part, sizeof(part));
	return true;
}

bool shf_flex_index_add(struct shf_flex_index *x, const struct shf_pk *root)
{
	const struct shf_pk *s = flex_state_of(root, "Metadata");
	const struct shf_pk *tensors = shf_pk_get(s, "state_dict_metadata");
	const struct shf_pk *places = shf_pk_get(s, "storage_metadata");

	if (!tensors || tensors->kind != SHF_PK_DICT || !places || places->kind != SHF_PK_DICT)
		return false;
	for (uint32_t i = 0; i < tensors->n; i++)
		if (!add_parts(x, tensors->u.a[2 * i], tensors->u.a[2 * i + 1]))
			return false;
	for (uint32_t i = 0; i < places->n; i++)
		if (!add_place(x, places->u.a[2 * i], places->u.a[2 * i + 1]))
			return false;
	return true;
}

static int key_compare(const struct shf_pk *a, const struct shf_pk *b)
{
	int c = a == b ? 0 : memcmp(a->u.s, b->u.s, a->n < b->n ? a->n : b->n);

	return c ? c : (a->n > b->n) - (a->n < b->n);
}

static int row_compare(const struct shf_pk *a, const struct shf_pk *b)
{
	for (uint32_t i = 0; i < a->n && i < b->n; i++) {
		int64_t x = 0, y = 0;

		(void)flex_int(a->u.a[i], &x);
		(void)flex_int(b->u.a[i], &y);
		if (x != y)
			return x < y ? -1 : 1;
	}
	return (a->n > b->n) - (a->n < b->n);
}

/* Compares two parts. The index of an older version has no shapes, which then say nothing. */
static int flex_compare(const struct shf_flex_part *x, const struct shf_flex_part *y)
{
	int c = key_compare(x->key, y->key);

	c = c ? c : row_compare(x->offset, y->offset);
	c = c ? c : x->flat - y->flat;
	c = c ? c : (x->lo > y->lo) - (x->lo < y->lo);
	c = c ? c : (x->hi > y->hi) - (x->hi < y->hi);
	return c || !x->shape || !y->shape ? c : row_compare(x->shape, y->shape);
}

static int places_order(const void *a, const void *b)
{
	const struct shf_flex_part *x = a, *y = b;
	int c = flex_compare(x, y);

	c = c ? c : (x->replica > y->replica) - (x->replica < y->replica);
	return c ? c : key_compare(x->file, y->file);
}

void shf_flex_index_settle(struct shf_flex_index *x)
{
	shf_records_sort(x->places.data, x->places.len / sizeof(struct shf_flex_part),
	                 sizeof(struct shf_flex_part), places_order);
}

struct shf_flex_part *shf_flex_index_find(const struct shf_flex_index *x,
                                          const struct shf_flex_part *part)
{
	struct shf_flex_part *a = (struct shf_flex_part *)(void *)x->places.data;
	size_t lo = 0, hi = x->places.len / sizeof(*a), end = hi;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (flex_compare(&a[mid], part) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < end && flex_compare(&a[lo], part) == 0 ? &a[lo] : NULL;
}

void shf_flex_index_release(struct shf_flex_index *x)
{
	shf_buf_release(&x->parts);
	shf_buf_release(&x->places);
}
