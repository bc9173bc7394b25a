/* SPDX-License-Identifier: Apache-2.0 */
/* A dataclass is pickled as an object without arguments that gets a dictionary as its state. Of the
 * metadata only the classes below are read; what planners keep beside them is not needed. */
#include "torch_dcp_index.h"
#include <string.h>
#include "sort.h"
#include "torch_tensor.h"

#define METADATA "torch.distributed.checkpoint.metadata."

/* Returns the state of an object of this class, or NULL. */
static const struct shf_pk *dcp_state_of(const struct shf_pk *v, const char *name)
{
	const struct shf_pk_call *c = shf_pk_call_of(v, name);

	return c && c->args->n == 0 ? c->state : NULL;
}

bool shf_dcp_chunk(const struct shf_pk *v, const struct shf_pk **offsets,
                   const struct shf_pk **sizes)
{
	const struct shf_pk *s = dcp_state_of(v, METADATA "ChunkStorageMetadata");

	*offsets = shf_torch_size(shf_pk_get(s, "offsets"));
	*sizes = shf_torch_size(shf_pk_get(s, "sizes"));
	return *offsets && *sizes;
}

/* Reads TensorStorageMetadata, or BytesStorageMetadata, which has no members. */
static bool read_tensor(struct shf_dcp_tensor *t, const struct shf_pk *v)
{
	const struct shf_pk *s = dcp_state_of(v, METADATA "TensorStorageMetadata"), *properties;

	if (shf_pk_call_of(v, METADATA "BytesStorageMetadata"))
		return true;
	properties = dcp_state_of(shf_pk_get(s, "properties"), METADATA "TensorProperties");
	if (!properties)        /* its name before torch 2.0 */
		properties = dcp_state_of(shf_pk_get(s, "properties"),
		                      "torch.distributed._shard.sharded_tensor.metadata."
		                      "TensorProperties");
	t->dtype = properties && properties->kind == SHF_PK_DICT ? shf_pk_get(properties, "dtype")
	                                                         : shf_pk_at(properties, 0);
	t->size = shf_torch_size(shf_pk_get(s, "size"));
	t->chunks = shf_pk_get(s, "chunks");
	return t->dtype && t->size && t->chunks && t->chunks->kind == SHF_PK_LIST;
}

/* Reads MetadataIndex and _StorageInfo. */
static bool read_dcp_entry(struct shf_dcp_entry *e, const struct shf_pk *key,
                           const struct shf_pk *value)
{
	const struct shf_pk *k = dcp_state_of(key, METADATA "MetadataIndex"), *name, *path, *offset;
	const struct shf_pk *v = dcp_state_of(value, "torch.distributed.checkpoint.filesystem."
	                                  "_StorageInfo"), *by;
	int64_t at, bytes;

	name = shf_pk_get(k, "fqn");
	path = shf_pk_get(v, "relative_path");
	offset = shf_pk_get(k, "offset");
	by = shf_pk_get(v, "transform_descriptors");
	if (!name || name->kind != SHF_PK_STR || !path || path->kind != SHF_PK_STR ||
	    !shf_pk_int(shf_pk_get(v, "offset"), &at) || at < 0 ||
	    !shf_pk_int(shf_pk_get(v, "length"), &bytes) || bytes < 0)
		return false;
	e->offsets = offset && offset->kind != SHF_PK_NONE ? shf_torch_size(offset) : NULL;
	if (offset && offset->kind != SHF_PK_NONE && !e->offsets)
		return false;
	e->name = name->u.s;
	e->name_n = name->n;
	e->path = path->u.s;
	e->path_n = path->n;
	e->at = (uint64_t)at;
	e->bytes = (uint64_t)bytes;
	e->transformed = by && by->kind != SHF_PK_NONE && by->n > 0;
	return true;
}

bool shf_dcp_index_add(struct shf_dcp_index *x, const struct shf_pk *root)
{
	const struct shf_pk *s = dcp_state_of(root, METADATA "Metadata");
	const struct shf_pk *tensors = shf_pk_get(s, "state_dict_metadata");
	const struct shf_pk *data = shf_pk_get(s, "storage_data");

	if (!tensors || tensors->kind != SHF_PK_DICT || !data || data->kind != SHF_PK_DICT)
		return false;
	for (uint32_t i = 0; i < tensors->n; i++) {
		const struct shf_pk *name = tensors->u.a[2 * i];
		struct shf_dcp_tensor t = { .name = name->u.s, .name_n = name->n,
			.order = (uint32_t)(x->tensors.len / sizeof(t)), .file = x->files };

		if (name->kind != SHF_PK_STR || !read_tensor(&t, tensors->u.a[2 * i + 1]))
			return false;
		shf_buf_add(&x->tensors, &t, sizeof(t));
	}
	for (uint32_t i = 0; i < data->n; i++) {
		struct shf_dcp_entry e = { .order = (uint32_t)(x->a.len / sizeof(e)),
			.file = x->files };

		if (!read_dcp_entry(&e, data->u.a[2 * i], data->u.a[2 * i + 1]))
			return false;
		shf_buf_add(&x->a, &e, sizeof(e));
	}
	x->files++;
	return true;
}

static int text_compare(const char *a, uint32_t a_n, const char *b, uint32_t b_n)
{
	int c = a == b && a_n == b_n ? 0 : memcmp(a, b, a_n < b_n ? a_n : b_n);

	return c ? c : (a_n > b_n) - (a_n < b_n);
}

static int dcp_tensor_order(const void *a, const void *b)
{
	const struct shf_dcp_tensor *x = a, *y = b;
	int c = text_compare(x->name, x->name_n, y->name, y->name_n);

	return c ? c : (x->order > y->order) - (x->order < y->order);
}

/* Compares two places: by tensor and offsets. NULL, of bytes, comes first. Names are compared only
 * of entries that are of no tensor. */
static int dcp_place_compare(const struct shf_dcp_entry *x, const struct shf_dcp_entry *y)
{
	int c = (x->tensor > y->tensor) - (x->tensor < y->tensor);
	uint32_t n = x->offsets ? x->offsets->n : 0, m = y->offsets ? y->offsets->n : 0;

	if (!c && x->tensor == UINT32_MAX)
		c = text_compare(x->name, x->name_n, y->name, y->name_n);
	if (c || !x->offsets || !y->offsets)
		return c ? c : (x->offsets != NULL) - (y->offsets != NULL);
	for (uint32_t i = 0; i < n && i < m; i++) {
		int64_t a = 0, b = 0;

		(void)shf_pk_int(x->offsets->u.a[i], &a);
		(void)shf_pk_int(y->offsets->u.a[i], &b);
		if (a != b)
			return a < b ? -1 : 1;
	}
	return (n > m) - (n < m);
}

static int dcp_entry_order(const void *a, const void *b)
{
	const struct shf_dcp_entry *x = a, *y = b;
	int c = dcp_place_compare(x, y);

	return c ? c : (x->order > y->order) - (x->order < y->order);
}

/* Finds the first of n sorted tensors that has this name. */
static uint32_t first_of_name(const struct shf_dcp_tensor *t, size_t n, const char *name,
                              uint32_t name_n)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (text_compare(t[mid].name, t[mid].name_n, name, name_n) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < n && text_compare(t[lo].name, t[lo].name_n, name, name_n) == 0 ? (uint32_t)lo
	                                                                         : UINT32_MAX;
}

/* Names are looked up once for the entries of a tensor, which mostly follow one another and have
 * one text. */
const struct shf_dcp_entry *shf_dcp_index_settle(struct shf_dcp_index *x)
{
	struct shf_dcp_entry *a = (struct shf_dcp_entry *)(void *)x->a.data;
	struct shf_dcp_tensor *t = (struct shf_dcp_tensor *)(void *)x->tensors.data;
	size_t n = x->tensors.len / sizeof(*t), m = x->a.len / sizeof(*a);

	shf_records_sort(t, n, sizeof(*t), dcp_tensor_order);
	for (size_t i = 0; i < n; i++)
		t[i].first = i && text_compare(t[i - 1].name, t[i - 1].name_n, t[i].name,
		                               t[i].name_n) == 0 ? t[i - 1].first : (uint32_t)i;
	for (size_t i = 0; i < m; i++)
		a[i].tensor = i && a[i - 1].name == a[i].name && a[i - 1].name_n == a[i].name_n
		            ? a[i - 1].tensor : first_of_name(t, n, a[i].name, a[i].name_n);
	shf_records_sort(a, m, sizeof(*a), dcp_entry_order);
	for (size_t i = 1; i < m; i++)
		if (a[i - 1].file == a[i].file && dcp_place_compare(&a[i - 1], &a[i]) == 0)
			return &a[i];
	return NULL;
}

/* Finds the first one that was added. */
const struct shf_dcp_entry *shf_dcp_index_find(const struct shf_dcp_index *x,
                                               const struct shf_dcp_tensor *t,
                                               const struct shf_pk *offsets)
{
	const struct shf_dcp_entry *a = (const void *)x->a.data;
	struct shf_dcp_entry want = { .tensor = t->first, .offsets = offsets };
	size_t lo = 0, hi = x->a.len / sizeof(*a), end = hi;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (dcp_place_compare(&a[mid], &want) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < end && dcp_place_compare(&a[lo], &want) == 0 ? &a[lo] : NULL;
}

bool shf_dcp_is_same(const struct shf_dcp_tensor *a, const struct shf_dcp_tensor *b)
{
	int64_t x = 0, y = 0;

	if (!a->chunks || !b->chunks || a->size->n != b->size->n ||
	    a->dtype->kind != SHF_PK_GLOBAL || b->dtype->kind != SHF_PK_GLOBAL ||
	    strcmp(a->dtype->u.s, b->dtype->u.s))
		return false;
	for (uint32_t i = 0; i < a->size->n; i++)
		if (!shf_pk_int(a->size->u.a[i], &x) || !shf_pk_int(b->size->u.a[i], &y) || x != y)
			return false;
	return true;
}

void shf_dcp_index_release(struct shf_dcp_index *x)
{
	shf_buf_release(&x->tensors);
	shf_buf_release(&x->a);
}
