/* SPDX-License-Identifier: Apache-2.0 */
/* A dataclass is pickled as an object without arguments that gets a dictionary as its state. Of the
 * metadata only the classes below are read; what planners keep beside them is not needed.
 *
 * A pickle has its tensors first, and then the places of chunks. So a place is mostly given to its
 * chunk at once. Other places are sorted, and found when their chunk is added. */
#include "torch_dcp_index.h"
#include <stdlib.h>
#include <string.h>
#include "foreign.h"
#include "sort.h"
#include "torch_tensor.h"
#include "valid.h"

#define METADATA "torch.distributed.checkpoint.metadata."
#define STORAGE_INFO "torch.distributed.checkpoint.filesystem._StorageInfo"
#define TRIES 16                /* chunks that are compared with a place when it is read */

/* Returns the state of an object of this class, or NULL. */
static const struct shf_pk *dcp_state_of(const struct shf_pk *v, const char *name)
{
	const struct shf_pk_call *c = shf_pk_call_of(v, name);

	return c && c->args->n == 0 ? c->state : NULL;
}

static struct shf_dcp_tensor *dcp_tensors(const struct shf_dcp_index *x)
{
	return (struct shf_dcp_tensor *)(void *)x->tensors.data;
}

/* Returns box i of a tensor; NULL: it is bytes. */
static int64_t *dcp_box(const struct shf_dcp_tensor *t, uint32_t i)
{
	return t->is_bytes ? NULL : t->boxes + (size_t)i * 2 * t->width;
}

/* ---- tensors ---- */

/* Copies the numbers of a torch.Size to `to`. Returns false if it has another number of them, or
 * one that is negative or none. */
static bool copy_size(int64_t *to, const struct shf_pk *v, int32_t n)
{
	return shf_pk_counts(to, shf_torch_size(v), (uint32_t)n, shf_pk_int);
}

/* Reads a ChunkStorageMetadata into a box. */
static bool read_dcp_box(int64_t *box, const struct shf_dcp_tensor *t, const struct shf_pk *v)
{
	const struct shf_pk *s = dcp_state_of(v, METADATA "ChunkStorageMetadata");

	if (!copy_size(box, shf_pk_get(s, "offsets"), t->ndim) ||
	    !copy_size(box + t->width, shf_pk_get(s, "sizes"), t->ndim))
		return false;
	if (t->width > (uint32_t)t->ndim)
		box[t->width + (uint32_t)t->ndim] = 2;
	return true;
}

/* Reads TensorStorageMetadata. Returns false if it has an unknown structure. */
static bool read_dcp_tensor(struct shf_dcp_index *x, struct shf_dcp_tensor *t,
                            const struct shf_pk *v)
{
	const struct shf_pk *s = dcp_state_of(v, METADATA "TensorStorageMetadata"), *properties;
	const struct shf_pk *size = shf_torch_size(shf_pk_get(s, "size"));
	const struct shf_pk *chunks = shf_pk_get(s, "chunks");
	uint64_t need;
	int64_t *dims;
	int32_t dtype;
	bool pair = false;

	properties = dcp_state_of(shf_pk_get(s, "properties"), METADATA "TensorProperties");
	if (!properties)        /* its name before torch 2.0 */
		properties = dcp_state_of(shf_pk_get(s, "properties"),
		                          "torch.distributed._shard.sharded_tensor.metadata."
		                          "TensorProperties");
	t->dtype = properties && properties->kind == SHF_PK_DICT ? shf_pk_get(properties, "dtype")
	                                                         : shf_pk_at(properties, 0);
	if (!t->dtype || t->dtype->kind != SHF_PK_GLOBAL || !size || !chunks ||
	    chunks->kind != SHF_PK_LIST)
		return false;
	t->ndim = (int32_t)size->n;
	t->chunks_n = chunks->n;
	if (t->ndim >= SHF_FOREIGN_DIMS_MAX)
		return true;            /* that is said when it is added */
	(void)shf_torch_dtype(t->dtype, &dtype, &pair);
	t->width = (uint32_t)t->ndim + pair;
	need = t->chunks_n * (sizeof(*t->places) + 2 * t->width * sizeof(int64_t));
	if (need > x->left)
		return false;
	x->left -= need;
	t->dims = dims = shf_arena_alloc(&x->arena, size->n, sizeof(*dims));
	t->places = shf_arena_alloc(&x->arena, t->chunks_n, sizeof(*t->places));
	t->boxes = shf_arena_alloc(x->kept, t->chunks_n, 2 * t->width * sizeof(int64_t));
	if (!t->dims || !t->places || !t->boxes) {
		x->oom = true;
		return true;
	}
	if (!copy_size(dims, shf_pk_get(s, "size"), t->ndim))
		return false;
	for (uint32_t i = 0; i < t->chunks_n; i++)
		if (!read_dcp_box(dcp_box(t, i), t, chunks->u.a[i]))
			t->is_odd = true;
	return true;
}

/* Takes a tensor, or BytesStorageMetadata, which has no members. */
static bool take_dcp_tensor(struct shf_dcp_index *x, const struct shf_pk *key,
                            const struct shf_pk *v)
{
	struct shf_dcp_tensor t = { .name = key->u.s, .name_n = key->n,
		.order = (uint32_t)(x->tensors.len / sizeof(t)), .file = x->files };

	t.is_bytes = shf_pk_call_of(v, METADATA "BytesStorageMetadata") != NULL;
	if (t.is_bytes) {
		t.chunks_n = 1;
		t.places = shf_arena_alloc(&x->arena, 1, sizeof(*t.places));
		x->oom |= !t.places;
	} else if (!shf_pk_call_of(v, METADATA "TensorStorageMetadata") ||
	           !read_dcp_tensor(x, &t, v)) {
		return false;
	}
	shf_buf_add(&x->tensors, &t, sizeof(t));
	x->oom |= x->tensors.oom;
	if (!x->oom && !x->many) {
		uint32_t before = shf_text_count(&x->names);

		x->oom |= shf_text_add(&x->names, t.name, t.name_n) == SHF_TEXT_NONE;
		x->again |= shf_text_count(&x->names) == before;
	}
	x->tensors_n++;
	return true;
}

/* ---- places ---- */

/* Returns whether the box begins at these offsets, and is not empty: such a box has no place. */
static bool box_begins_at(const int64_t *box, const struct shf_pk *offsets,
                          const struct shf_dcp_tensor *t)
{
	int64_t v;

	for (int32_t i = 0; i < t->ndim; i++)
		if (!shf_pk_int(offsets->u.a[i], &v) || v != box[i] ||
		    box[t->width + (uint32_t)i] == 0)
			return false;
	return true;
}

/* Sets the place of the chunk that begins at these offsets, or, if they are NULL, of an entry of
 * bytes. Returns false if it was not found, or has a place already. */
static bool give_place(struct shf_dcp_index *x, const char *name, uint32_t name_n,
                       const struct shf_pk *offsets, const struct shf_dcp_place *place)
{
	struct shf_dcp_tensor *t;
	uint32_t at;

	/* Names and tensors have the same numbers until a name comes again. */
	at = x->oom || x->again ? SHF_TEXT_NONE : shf_text_find(&x->names, name, name_n);
	t = at == SHF_TEXT_NONE ? NULL : &dcp_tensors(x)[at];
	if (!t || t->is_bytes != !offsets || (offsets && (offsets->n != (uint32_t)t->ndim ||
	                                                  !t->boxes || t->is_odd)))
		return false;
	for (uint32_t k = 0; k < TRIES && k < t->chunks_n; k++) {
		uint32_t i = (t->next + k) % t->chunks_n;

		if (t->places[i].known ||
		    (offsets && !box_begins_at(dcp_box(t, i), offsets, t)))
			continue;
		t->places[i] = *place;
		t->next = i + 1 < t->chunks_n ? i + 1 : 0;
		return true;
	}
	return false;
}

/* Keeps a place for later. */
static bool keep_entry(struct shf_dcp_index *x, struct shf_dcp_entry *e,
                       const struct shf_pk *offsets)
{
	int64_t *copy = NULL;

	if (offsets) {
		e->offsets_n = offsets->n;
		e->offsets = copy = shf_arena_alloc(&x->arena, offsets->n, sizeof(*copy));
		x->oom |= !copy;
	}
	for (uint32_t i = 0; copy && i < offsets->n; i++)
		if (!shf_pk_int(offsets->u.a[i], &copy[i]))
			return false;
	e->order = (uint32_t)(x->a.len / sizeof(*e));
	e->file = x->files;
	shf_buf_add(&x->a, e, sizeof(*e));
	x->oom |= x->a.oom;
	return true;
}

/* Returns whether a text is the descriptor of zstd, version 1: stream.zstd/1 or
 * stream.zstd/1.<anything>. */
static bool is_zstd(const struct shf_pk *v)
{
	static const char name[] = "stream.zstd/1";
	size_t n = sizeof(name) - 1;

	return v->kind == SHF_PK_STR && v->n >= n && memcmp(v->u.s, name, n) == 0 &&
	       (v->n == n || v->u.s[n] == '.');
}

/* Keeps the name of an unknown transformation, and returns its number. */
static uint8_t unknown_transform(struct shf_dcp_index *x, const struct shf_pk *list)
{
	struct shf_buf name = SHF_BUF_INIT;
	const struct shf_pk *v = shf_pk_at(list, 0);
	const char *safe = NULL;
	uint32_t i = 0;

	if (!v)
		shf_buf_adds(&name, "of unknown structure");
	for (uint32_t k = 0; v && name.len < 200; v = shf_pk_at(list, ++k)) {
		shf_buf_adds(&name, k ? ", " : "");
		if (v->kind == SHF_PK_STR)
			shf_buf_add(&name, v->u.s, v->n < 100 ? v->n : 100);
		else
			shf_buf_adds(&name, "?");
	}
	if (!name.oom)
		safe = shf_name_escape(&x->arena, (const char *)name.data, name.len);
	shf_buf_release(&name);
	x->oom |= !safe;
	while (safe && i < x->unknown_n && strcmp(x->unknown[i], safe))
		i++;
	if (safe && i == x->unknown_n && i < SHF_DCP_UNKNOWN_MAX)
		x->unknown[x->unknown_n++] = safe;
	i = i < SHF_DCP_UNKNOWN_MAX ? i : SHF_DCP_UNKNOWN_MAX - 1;
	return (uint8_t)(SHF_DCP_UNKNOWN + i);
}

/* Reads transform_descriptors. They say what was done with the bytes of an item, the last
 * transformation first. */
static uint8_t dcp_transform(struct shf_dcp_index *x, const struct shf_pk *list)
{
	if (!list || list->kind == SHF_PK_NONE ||
	    (shf_pk_is_row(list) && list->n == 0))
		return SHF_DCP_PLAIN;
	if (shf_pk_is_row(list) && list->n == 1 && is_zstd(list->u.a[0]))
		return SHF_DCP_ZSTD;
	return unknown_transform(x, list);
}

/* Takes MetadataIndex and _StorageInfo. */
static bool take_dcp_place(struct shf_dcp_index *x, const struct shf_pk *key,
                           const struct shf_pk *value)
{
	const struct shf_pk *k = dcp_state_of(key, METADATA "MetadataIndex"), *name, *path, *by;
	const struct shf_pk *v = dcp_state_of(value, STORAGE_INFO), *offset, *offsets = NULL;
	struct shf_dcp_entry e = { 0 };
	int64_t at, bytes;

	name = shf_pk_get(k, "fqn");
	path = shf_pk_get(v, "relative_path");
	offset = shf_pk_get(k, "offset");
	by = shf_pk_get(v, "transform_descriptors");
	if (!name || name->kind != SHF_PK_STR || !path || path->kind != SHF_PK_STR ||
	    !shf_pk_int(shf_pk_get(v, "offset"), &at) || at < 0 ||
	    !shf_pk_int(shf_pk_get(v, "length"), &bytes) || bytes < 0)
		return false;
	if (offset && offset->kind != SHF_PK_NONE) {
		offsets = shf_torch_size(offset);
		if (!offsets || offsets->n > SHF_FOREIGN_DIMS_MAX)
			return false;
	}
	e.name = name->u.s;
	e.name_n = name->n;
	e.place = (struct shf_dcp_place){ path->u.s, (uint64_t)at, (uint64_t)bytes, path->n, true,
		dcp_transform(x, by) };
	if ((x->many || !give_place(x, e.name, e.name_n, offsets, &e.place)) &&
	    !keep_entry(x, &e, offsets))
		return false;
	x->places_n++;
	return true;
}

static bool is_taken_class(const struct shf_pk *v)
{
	return shf_pk_is_global(v, METADATA "TensorStorageMetadata") ||
	       shf_pk_is_global(v, METADATA "BytesStorageMetadata") ||
	       shf_pk_is_global(v, STORAGE_INFO);
}

bool shf_dcp_index_take(void *arg, const struct shf_pk *key, const struct shf_pk *value)
{
	struct shf_dcp_index *x = arg;
	bool taken;

	if (value->kind != SHF_PK_CALL || value->u.call->func == x->other)
		return false;
	taken = key->kind == SHF_PK_STR ? take_dcp_tensor(x, key, value)
	      : key->kind == SHF_PK_CALL && take_dcp_place(x, key, value);
	if (!taken && !is_taken_class(value->u.call->func))
		x->other = value->u.call->func;
	return taken;
}

/* All that was taken must have been in the two dictionaries of the Metadata, and all of these. */
bool shf_dcp_index_end(struct shf_dcp_index *x, const struct shf_pk *root)
{
	const struct shf_pk *s = dcp_state_of(root, METADATA "Metadata");
	const struct shf_pk *tensors = shf_pk_get(s, "state_dict_metadata");
	const struct shf_pk *data = shf_pk_get(s, "storage_data");
	bool is_whole = tensors && tensors->kind == SHF_PK_DICT && data &&
	                data->kind == SHF_PK_DICT && tensors->n == 0 && data->n == 0 &&
	                tensors != data && tensors->taken == x->tensors_n &&
	                data->taken == x->places_n;

	x->files++;
	x->tensors_n = x->places_n = 0;
	return is_whole;
}

/* ---- what is kept, sorted ---- */

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

	if (!c && x->tensor == UINT32_MAX)
		c = text_compare(x->name, x->name_n, y->name, y->name_n);
	if (c || !x->offsets || !y->offsets)
		return c ? c : (x->offsets != NULL) - (y->offsets != NULL);
	for (uint32_t i = 0; i < x->offsets_n && i < y->offsets_n; i++)
		if (x->offsets[i] != y->offsets[i])
			return x->offsets[i] < y->offsets[i] ? -1 : 1;
	return (x->offsets_n > y->offsets_n) - (x->offsets_n < y->offsets_n);
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

/* Finds the first entry of tensor number `first` with these offsets. */
static const struct shf_dcp_entry *find_entry(const struct shf_dcp_index *x, uint32_t first,
                                              const int64_t *offsets, uint32_t n)
{
	const struct shf_dcp_entry *a = (const void *)x->a.data;
	struct shf_dcp_entry want = { .tensor = first, .offsets = offsets, .offsets_n = n };
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

/* Returns whether a chunk that was given a place has another one among the entries. */
static bool has_two_places(const struct shf_dcp_index *x, const struct shf_dcp_tensor *t)
{
	for (uint32_t i = 0; t->places && i < t->chunks_n && x->a.len; i++)
		if (t->places[i].known &&
		    find_entry(x, t->first, dcp_box(t, i), (uint32_t)t->ndim))
			return true;
	return false;
}

/* Names are looked up once for the entries of a tensor, which mostly follow one another and have
 * one text. */
int shf_dcp_index_settle(struct shf_dcp_index *x, const char **name, uint32_t *name_n)
{
	struct shf_dcp_entry *a = (struct shf_dcp_entry *)(void *)x->a.data;
	struct shf_dcp_tensor *t = dcp_tensors(x);
	size_t n = x->tensors.len / sizeof(*t), m = x->a.len / sizeof(*a);

	shf_records_sort(t, n, sizeof(*t), dcp_tensor_order);
	for (size_t i = 0; i < n; i++)
		t[i].first = i && text_compare(t[i - 1].name, t[i - 1].name_n, t[i].name,
		                               t[i].name_n) == 0 ? t[i - 1].first : (uint32_t)i;
	for (size_t i = 0; i < m; i++)
		a[i].tensor = i && a[i - 1].name == a[i].name && a[i - 1].name_n == a[i].name_n
		            ? a[i - 1].tensor : first_of_name(t, n, a[i].name, a[i].name_n);
	shf_records_sort(a, m, sizeof(*a), dcp_entry_order);
	for (size_t i = 0; i < n; i++)
		if (has_two_places(x, &t[i])) {
			*name = t[i].name;
			*name_n = t[i].name_n;
			return 1;
		}
	for (size_t i = 1; i < m; i++)
		if (a[i - 1].file == a[i].file && dcp_place_compare(&a[i - 1], &a[i]) == 0) {
			*name = a[i].name;
			*name_n = a[i].name_n;
			return 1;
		}
	return 0;
}

/* Of several entries with these offsets the first one that was added is found. */
const struct shf_dcp_place *shf_dcp_index_find(const struct shf_dcp_index *x,
                                               const struct shf_dcp_tensor *t, uint32_t i)
{
	const struct shf_dcp_entry *e;

	if (t->places[i].known)
		return &t->places[i];
	e = find_entry(x, t->first, dcp_box(t, i), (uint32_t)t->ndim);
	return e ? &e->place : NULL;
}

const char *shf_dcp_index_unknown(const struct shf_dcp_index *x, const struct shf_dcp_place *place)
{
	return place->transform < SHF_DCP_UNKNOWN ? NULL
	                                          : x->unknown[place->transform - SHF_DCP_UNKNOWN];
}

bool shf_dcp_is_same(const struct shf_dcp_tensor *a, const struct shf_dcp_tensor *b)
{
	return !a->is_bytes && !b->is_bytes && a->ndim == b->ndim &&
	       strcmp(a->dtype->u.s, b->dtype->u.s) == 0 &&
	       (!a->dims || !b->dims || a->ndim == 0 ||
	        memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof(*a->dims)) == 0);
}

void shf_dcp_index_release(struct shf_dcp_index *x)
{
	shf_buf_release(&x->tensors);
	shf_buf_release(&x->a);
	shf_text_table_release(&x->names);
	shf_arena_release(&x->arena);
}
