/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the safetensors header. The file may come from anywhere and may be hostile.
 *
 * Invariants: memory and time are linear in the header (the sorts add a logarithm). Offsets in
 * sentences count from the start of the file, those in the data section from the start of the data.
 * An accepted header tiles the data section: every byte of it belongs to exactly one tensor. */
#include "safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "err.h"
#include "json.h"
#include "valid.h"

/* A tensor, and the byte of the file where the header names it: sentences about two tensors name
 * both places, when the JSON reader is far past them. */
struct item {
	struct shf_st_tensor t;
	size_t at;
};
/* The state of one parse. items and keys are on the heap until the whole header was accepted; texts
 * go to the arena at once. `st` is a local copy of the caller's struct, in which payload_bytes is
 * already set. */
struct reader {
	struct shf_json json;
	struct shf_arena *arena;        /* borrowed */
	struct shf_buf items;           /* of struct item */
	struct shf_buf keys;            /* of const char *: the keys of __metadata__ */
	struct shf_st *st;              /* borrowed */
	const char *where;
	struct sheaf_error *err;
	bool has_metadata;
};
/* One bit for each field of an entry that was seen, by its index in read_field(). */
enum { F_DTYPE = 1, F_SHAPE = 2, F_OFFSETS = 4, F_ALL = 7 };
/* One entry while its fields are read, which may come in any order. dtype, shape and offsets can be
 * compared only when all three were read. */
struct entry {
	struct item item;
	unsigned seen;                  /* F_... */
	uint64_t items;                 /* product of the dimensions */
	uint64_t from, to;              /* data_offsets */
};

static int header_no_memory(struct reader *r)
{
	return shf_fail(r->err, SHEAF_ENOMEM, "%s: out of memory for its header", r->where);
}

/* Fails because the JSON reader stopped. It also stops when memory runs out; that must not look
 * like a bad file, or the caller would skip a good checkpoint. */
static int header_json_fail(struct reader *r)
{
	if (r->json.scratch.oom)
		return header_no_memory(r);
	return shf_fail(r->err, SHEAF_EFORMAT, "%s: header: %s", r->where, r->json.why);
}

/* Both fail at the last token: bad_header for the whole header, bad_entry for a tensor's entry. */
static int bad_header(struct reader *r, const char *why)
{
	return shf_fail(r->err, SHEAF_EFORMAT, "%s: header: %s at byte %zu", r->where, why,
			r->json.at);
}

static int bad_entry(struct reader *r, const struct entry *e, const char *why)
{
	return shf_fail(r->err, SHEAF_EFORMAT, "%s: tensor \"%.*s\": %s at byte %zu", r->where,
			shf_name_show(e->item.t.name), e->item.t.name, why, r->json.at);
}

/* Fails because of an unexpected token: an error of the JSON reader or a value of the wrong kind. e
 * is NULL outside of an entry. */
static int bad_kind(struct reader *r, const struct entry *e, enum shf_json_kind kind,
		    const char *why)
{
	if (kind == SHF_JSON_ERROR)
		return header_json_fail(r);
	return e ? bad_entry(r, e, why) : bad_header(r, why);
}

/* Reads the name of a dtype. An unknown one is refused, because its size is unknown too. */
static int read_dtype(struct reader *r, struct entry *e)
{
	enum shf_json_kind kind = shf_json_next(&r->json);
	const char *text;
	size_t n;

	if (kind != SHF_JSON_STRING)
		return bad_kind(r, e, kind, "dtype is not a string");
	text = shf_json_text(&r->json, &n);
	e->item.t.dtype = shf_dtype_from(text, n);
	if (e->item.t.dtype)
		return 0;
	return shf_fail(r->err, SHEAF_EFORMAT,
			"%s: tensor \"%.*s\": unknown dtype \"%.*s\" at byte %zu", r->where,
			shf_name_show(e->item.t.name), e->item.t.name, shf_name_show(text), text,
			r->json.at);
}

/* Stores dimension i. The struct has room for SHEAF_DIMS_MAX of them. A longer shape moves to an
 * array of SHF_ST_DIMS_MAX in the arena. Dimensions beyond that are counted and dropped: NumPy and
 * torch have no more, and the bytes can still be read without a shape. */
static int add_dim(struct reader *r, struct entry *e, int64_t **dims, int64_t i, int64_t dim)
{
	if (i < SHEAF_DIMS_MAX)
		e->item.t.shape[i] = dim;
	if (i == SHEAF_DIMS_MAX) {
		*dims = shf_arena_alloc(r->arena, SHF_ST_DIMS_MAX, sizeof(**dims));
		if (!*dims)
			return shf_fail(r->err, SHEAF_ENOMEM, "%s: no memory for a shape",
			                r->where);
		memcpy(*dims, e->item.t.shape, sizeof(e->item.t.shape));
	}
	if (i >= SHEAF_DIMS_MAX && i < SHF_ST_DIMS_MAX)
		(*dims)[i] = dim;
	return 0;
}

/* Reads the shape. A zero makes the tensor empty, but the product of the other dimensions must fit
 * 63 bits all the same. So code that multiplies some of the dimensions, as for a stride, cannot
 * overflow.
 *
 * Time stays linear in the header, because each dimension is a token of it. */
static int read_shape(struct reader *r, struct entry *e)
{
	enum shf_json_kind kind = shf_json_next(&r->json);
	uint64_t product = 1, dim;
	int64_t ndim = 0, *dims = NULL;
	bool empty = false;
	int rc;

	if (kind != SHF_JSON_ARRAY)
		return bad_kind(r, e, kind, "shape is not an array");
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_NUMBER) {
		if (!shf_json_u64(&r->json, &dim) || dim > INT64_MAX)
			return bad_entry(r, e, "dimension that is not an integer of 63 bits");
		if (!dim)
			empty = true;
		else if (!shf_mul64(&product, product, dim) || product > INT64_MAX)
			return bad_entry(r, e, "the product of the dimensions overflows");
		rc = add_dim(r, e, &dims, ndim, (int64_t)dim);
		if (rc < 0)
			return rc;
		if (++ndim > INT32_MAX)
			return bad_entry(r, e, "too many dimensions");
	}
	if (kind != SHF_JSON_ARRAY_END)
		return bad_kind(r, e, kind, "dimension that is not an integer of 63 bits");
	if (ndim > SHEAF_DIMS_MAX)
		memset(e->item.t.shape, 0, sizeof(e->item.t.shape));
	e->item.t.dims = ndim > SHF_ST_DIMS_MAX ? NULL : dims;
	e->item.t.ndim = (int32_t)ndim;
	e->items = empty ? 0 : product;
	return 0;
}

/* Reads two offsets, which count from the start of the data section. The end is compared with
 * the size of that section here, so later differences of offsets cannot wrap. */
static int read_offsets(struct reader *r, struct entry *e)
{
	static const char why[] = "data_offsets are not two integers of 64 bits";
	enum shf_json_kind kind = shf_json_next(&r->json);
	uint64_t v[2];

	if (kind != SHF_JSON_ARRAY)
		return bad_kind(r, e, kind, why);
	for (int i = 0; i < 2; i++) {
		kind = shf_json_next(&r->json);
		if (kind != SHF_JSON_NUMBER || !shf_json_u64(&r->json, &v[i]))
			return bad_kind(r, e, kind, why);
	}
	kind = shf_json_next(&r->json);
	if (kind != SHF_JSON_ARRAY_END)
		return bad_kind(r, e, kind, why);
	if (v[0] > v[1])
		return bad_entry(r, e, "data_offsets that run backwards");
	if (v[1] > r->st->payload_bytes)
		return bad_entry(r, e, "data_offsets beyond the end of the file");
	e->from = v[0];
	e->to = v[1];
	return 0;
}

/* Reads one field of an entry. An unknown one is skipped, as the reference library does: a file
 * that every other program reads must not be refused here. */
static int read_field(struct reader *r, struct entry *e)
{
	static const char *const names[] = { "dtype", "shape", "data_offsets" };
	size_t n, i = 0;
	const char *text = shf_json_text(&r->json, &n);

	while (i < 3 && (n != strlen(names[i]) || memcmp(text, names[i], n)))
		i++;
	if (i == 3) {
		enum shf_json_kind kind = shf_json_next(&r->json);

		return shf_json_skip(&r->json, kind) ? 0 : header_json_fail(r);
	}
	if (e->seen & 1U << i)
		return bad_entry(r, e, "the same field twice");
	e->seen |= 1U << i;
	if (i == 0)
		return read_dtype(r, e);
	return i == 1 ? read_shape(r, e) : read_offsets(r, e);
}

/* Checks that the bytes computed from dtype and shape are those between the offsets. Types below 8
 * bits come in groups that fill whole bytes (dtype.h), and a tensor that ends inside a byte is
 * refused. */
static int check_tensor_size(struct reader *r, struct entry *e)
{
	const struct shf_dtype *d = shf_dtype(e->item.t.dtype);
	uint64_t want;

	if (e->items % d->group)
		return bad_entry(r, e, "items that do not fill whole bytes");
	if (!shf_dtype_bytes(&want, e->item.t.dtype, e->items))
		return bad_entry(r, e, "its size overflows");
	if (want != e->to - e->from)
		return shf_fail(r->err, SHEAF_EFORMAT,
				"%s: tensor \"%.*s\": %" PRIu64 " bytes by data_offsets, %" PRIu64
				" by dtype and shape, at byte %zu", r->where,
				shf_name_show(e->item.t.name), e->item.t.name, e->to - e->from,
				want, e->item.at);
	e->item.t.off = e->from;
	e->item.t.bytes = want;
	return 0;
}

/* Reads one entry of the header after its name. Each of the three fields must be there;
 * read_field() refuses a second one. */
static int read_tensor_entry(struct reader *r, struct entry *e)
{
	enum shf_json_kind kind = shf_json_next(&r->json);
	int rc;

	if (kind != SHF_JSON_OBJECT)
		return bad_kind(r, e, kind, "entry is not an object");
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_KEY) {
		rc = read_field(r, e);
		if (rc < 0)
			return rc;
	}
	if (kind != SHF_JSON_OBJECT_END)
		return header_json_fail(r);
	if (!(e->seen & F_DTYPE))
		return bad_entry(r, e, "no dtype before the end of the entry");
	if (!(e->seen & F_SHAPE))
		return bad_entry(r, e, "no shape before the end of the entry");
	if (!(e->seen & F_OFFSETS))
		return bad_entry(r, e, "no data_offsets before the end of the entry");
	rc = check_tensor_size(r, e);
	if (rc < 0)
		return rc;
	shf_buf_add(&r->items, &e->item, sizeof(e->item));
	return r->items.oom ? header_no_memory(r) : 0;
}

/* Stores a key of __metadata__, to find duplicates later. A key may have any text, even a NUL, so
 * it is stored in the escaped form, which is a C string. Escaping is one to one: equal escaped keys
 * are equal keys. */
static int add_metadata_key(struct reader *r, const char *text, size_t n)
{
	struct shf_buf quoted = SHF_BUF_INIT;
	const char *key = NULL;

	shf_json_put(&quoted, text, n);
	if (!quoted.oom)
		key = shf_arena_strdup(r->arena, (const char *)quoted.data, quoted.len);
	if (key)
		shf_buf_add(&r->keys, &key, sizeof(key));
	shf_buf_release(&quoted);
	return key && !r->keys.oom ? 0 : header_no_memory(r);
}

/* Refuses equal keys in __metadata__, which just ended. The keys are in their escaped form. */
static int check_metadata_keys(struct reader *r)
{
	size_t n = r->keys.len / sizeof(const char *);
	const char *twice = shf_names_twice((const char **)(void *)r->keys.data, n);

	if (!twice)
		return 0;
	return shf_fail(r->err, SHEAF_EFORMAT,
			"%s: header: key %.*s twice in __metadata__ that ends at byte %zu",
			r->where, shf_name_show(twice), twice, r->json.at);
}

/* Reads __metadata__. Values must be strings, as the format says; only those of "format" and
 * "DCP_SHARDING_INFO" are kept. A value with a NUL is ignored, since it is no C string and none
 * that we know. */
static int read_header_metadata(struct reader *r)
{
	enum shf_json_kind kind;
	const char *text;
	const char **kept;
	size_t n;
	int rc;

	if (r->has_metadata)
		return bad_header(r, "__metadata__ twice");
	r->has_metadata = true;
	kind = shf_json_next(&r->json);
	if (kind == SHF_JSON_NULL)
		return 0;
	if (kind != SHF_JSON_OBJECT)
		return bad_kind(r, NULL, kind, "__metadata__ is not an object");
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_KEY) {
		text = shf_json_text(&r->json, &n);
		kept = n == 6 && !memcmp(text, "format", 6) ? &r->st->format
		     : n == 17 && !memcmp(text, "DCP_SHARDING_INFO", 17) ? &r->st->sharding : NULL;
		rc = add_metadata_key(r, text, n);
		if (rc < 0)
			return rc;
		kind = shf_json_next(&r->json);
		if (kind != SHF_JSON_STRING)
			return bad_kind(r, NULL, kind, "value in __metadata__ that is not a "
			                "string");
		text = shf_json_text(&r->json, &n);
		if (!kept || memchr(text, 0, n))
			continue;
		*kept = shf_arena_strdup(r->arena, text, n);
		if (!*kept)
			return header_no_memory(r);
	}
	return kind == SHF_JSON_OBJECT_END ? check_metadata_keys(r) : header_json_fail(r);
}

/* Reads one member of the header, whose key was just returned. The name is copied before the
 * entry is read: the key's text in the JSON reader lives until the next token only, and every
 * sentence about the entry names the tensor. */
static int read_member(struct reader *r)
{
	struct entry e;
	size_t n;
	const char *text = shf_json_text(&r->json, &n);

	if (n == 12 && !memcmp(text, "__metadata__", n))
		return read_header_metadata(r);
	memset(&e, 0, sizeof(e));
	e.item.at = r->json.at;
	e.item.t.name = shf_name_escape(r->arena, text, n);
	if (!e.item.t.name)
		return header_no_memory(r);
	return read_tensor_entry(r, &e);
}

/* Reads the header's object, and the white space after it up to the end. The format says spaces
 * there, but the reference library takes what JSON calls white space. */
static int read_header(struct reader *r)
{
	enum shf_json_kind kind = shf_json_next(&r->json);
	int rc;

	if (kind != SHF_JSON_OBJECT)
		return bad_kind(r, NULL, kind, "is not a JSON object");
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_KEY) {
		rc = read_member(r);
		if (rc < 0)
			return rc;
	}
	if (kind != SHF_JSON_OBJECT_END)
		return header_json_fail(r);
	return shf_json_next(&r->json) == SHF_JSON_END ? 0 : header_json_fail(r);
}

static int items_by_name(const void *a, const void *b)
{
	return strcmp(((const struct item *)a)->t.name, ((const struct item *)b)->t.name);
}

/* Compares by offset, then by name. An empty tensor shares its offset with another one, and may
 * come before or after the tensor that begins there; check_tiling() accepts both. */
static int by_offset(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	if (x->t.off != y->t.off)
		return x->t.off < y->t.off ? -1 : 1;
	return strcmp(x->t.name, y->t.name);
}

/* Refuses equal names, which are neighbours after the sort. qsort() is not stable, so either of the
 * two may be first; the sentence names the smaller place first. */
static int check_item_names(struct reader *r, const struct item *items, size_t n)
{
	for (size_t i = 1; i < n; i++) {
		const struct item *a = &items[i - 1], *b = &items[i];

		if (!strcmp(a->t.name, b->t.name))
			return shf_fail(r->err, SHEAF_EFORMAT,
					"%s: tensor \"%.*s\" twice, at bytes %zu and %zu", r->where,
					shf_name_show(b->t.name), b->t.name,
					a->at < b->at ? a->at : b->at,
					a->at < b->at ? b->at : a->at);
	}
	return 0;
}

/* Checks that the tensors tile the data section: sorted by offset, each one begins where the one
 * before it ends. So every byte belongs to exactly one tensor, and a file cannot hide bytes from a
 * reader that reads it tensor by tensor.
 *
 * An empty tensor may lie where another one begins or ends. The sort may place it after a tensor
 * that begins at the same offset; pos has already moved past that one, so this case is accepted
 * before the comparison. t->off < pos implies that pos is not 0, so `last` is set. */
static int check_tiling(struct reader *r, const struct item *items, size_t n)
{
	const struct item *last = NULL; /* the last tensor so far that is not empty */
	uint64_t pos = 0;

	for (size_t i = 0; i < n; i++) {
		const struct shf_st_tensor *t = &items[i].t;

		if (last && !t->bytes && t->off == last->t.off)
			continue;
		if (t->off < pos)
			return shf_fail(r->err, SHEAF_EFORMAT,
					"%s: tensor \"%.*s\" (named at byte %zu) overlaps "
					"\"%.*s\" at byte %" PRIu64 " of the data", r->where,
					shf_name_show(t->name), t->name, items[i].at,
					shf_name_show(last->t.name), last->t.name, t->off);
		if (t->off > pos)
			return shf_fail(r->err, SHEAF_EFORMAT,
					"%s: hole at byte %" PRIu64 " of the data, before tensor "
					"\"%.*s\" (named at byte %zu)", r->where, pos,
					shf_name_show(t->name), t->name, items[i].at);
		if (t->bytes) {
			last = &items[i];
			pos += t->bytes;
		}
	}
	if (pos != r->st->payload_bytes)
		return shf_fail(r->err, SHEAF_EFORMAT,
				"%s: %" PRIu64 " bytes after the last tensor, from byte %" PRIu64
				" of the data", r->where, r->st->payload_bytes - pos, pos);
	return 0;
}

/* Sorts and checks the tensors, then moves them to the arena. Names are checked first because they
 * need another order; the caller gets the order by offset. */
static int header_finish(struct reader *r)
{
	struct item *items = (struct item *)(void *)r->items.data;
	size_t n = r->items.len / sizeof(*items);
	struct shf_st_tensor *tensors;
	int rc;

	if (n > 1)
		qsort(items, n, sizeof(*items), items_by_name);
	rc = check_item_names(r, items, n);
	if (rc < 0)
		return rc;
	if (n > 1)
		qsort(items, n, sizeof(*items), by_offset);
	rc = check_tiling(r, items, n);
	if (rc < 0)
		return rc;
	tensors = shf_arena_alloc(r->arena, n, sizeof(*tensors));
	if (!tensors)
		return header_no_memory(r);
	for (size_t i = 0; i < n; i++)
		tensors[i] = items[i].t;
	r->st->tensors = tensors;
	r->st->n = n;
	return 0;
}

/* N is compared with the size of the file before any memory is allocated for the header: a file of
 * a few bytes that claims a header of 100 MB costs nothing. n < 2 is too short for "{}". The
 * subtraction cannot wrap, because the file has at least 8 bytes. */
int shf_st_header_bytes(uint64_t *header_bytes, const uint8_t first[8], uint64_t file_bytes,
			const char *where, struct sheaf_error *err)
{
	uint64_t n;

	if (file_bytes < 8)
		return shf_fail(err, SHEAF_EFORMAT, "%s: %" PRIu64 " bytes are too short for a "
		                "safetensors file",
				where, file_bytes);
	n = shf_get64(first);
	if (n > SHF_ST_HEADER_MAX)
		return shf_fail(err, SHEAF_EFORMAT, "%s: not a safetensors file: its first 8 bytes "
				"are not the length of a header (%" PRIu64 ", at most %" PRIu64 ")",
				where, n, SHF_ST_HEADER_MAX);
	if (n < 2)
		return shf_fail(err, SHEAF_EFORMAT, "%s: header of %" PRIu64 " bytes is not a JSON "
				"object, at byte 0", where, n);
	if (n > file_bytes - 8)
		return shf_fail(err, SHEAF_EFORMAT, "%s: header of %" PRIu64
				" bytes in a file of %" PRIu64 ", at byte 0", where, n, file_bytes);
	*header_bytes = 8 + n;
	return 0;
}

/* *st is written on success only; texts of a header that was refused
 * stay in the arena until the caller releases it. */
int shf_st_parse(struct shf_st *st, struct shf_arena *arena, const uint8_t *bytes, size_t n,
		 uint64_t file_bytes, const char *where, struct sheaf_error *err)
{
	struct shf_st got = { 0 };
	struct reader r = { .arena = arena, .st = &got, .where = where, .err = err };
	int rc;

	if (n < 8)
		return shf_fail(err, SHEAF_EFORMAT, "%s: header ends early, at byte %zu", where, n);
	rc = shf_st_header_bytes(&got.header_bytes, bytes, file_bytes, where, err);
	if (rc < 0)
		return rc;
	if (n != got.header_bytes)
		return shf_fail(err, SHEAF_EFORMAT, "%s: header of %" PRIu64
				" bytes given as %zu", where, got.header_bytes, n);
	got.payload_bytes = file_bytes - got.header_bytes;
	shf_json_init(&r.json, bytes, n);
	r.json.depth_max = SHF_JSON_DEPTH_MAX;
	r.json.p += 8;                  /* so that offsets in sentences are those of the file */
	rc = read_header(&r);
	if (rc == 0)
		rc = header_finish(&r);
	if (rc == 0)
		*st = got;
	shf_json_release(&r.json);
	shf_buf_release(&r.items);
	shf_buf_release(&r.keys);
	return rc;
}
