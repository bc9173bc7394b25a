/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the metadata are first found as ranges of the text and then parsed one by one, because
 * JSON has no order of keys: what a codec is follows from its name.
 *
 * Source: the specifications of Zarr 2 and 3 (zarr-specs.readthedocs.io), and arrays that
 * TensorStore wrote, which adds types of machine learning to version 2. */
#include "zarr_meta.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "decimal.h"
#include "dtype.h"
#include "json.h"

#define CODECS_MAX 8

struct span { const char *p; size_t n; };       /* a value of the text; p NULL: there is none */
struct reading {                /* of metadata */
	struct shf_zarr_array *z;
	struct shf_arena *arena;
	const char *odd;                /* NULL, or what is wrong */
	bool oom;
};

/* Types: the names of version 3, which TensorStore uses for the last ones in version 2, too, and
 * those of NumPy, without the byte order. */
static const struct zarr_type {
	const char *name, *numpy;
	int32_t type;
	bool pair;
} zarr_types[] = {
	{ "float32", "f4", SHEAF_F32, false }, { "float64", "f8", SHEAF_F64, false },
	{ "float16", "f2", SHEAF_F16, false }, { "bool", "b1", SHEAF_BOOL, false },
	{ "int8", "i1", SHEAF_I8, false }, { "int16", "i2", SHEAF_I16, false },
	{ "int32", "i4", SHEAF_I32, false }, { "int64", "i8", SHEAF_I64, false },
	{ "uint8", "u1", SHEAF_U8, false }, { "uint16", "u2", SHEAF_U16, false },
	{ "uint32", "u4", SHEAF_U32, false }, { "uint64", "u8", SHEAF_U64, false },
	{ "complex64", "c8", SHEAF_C64, false }, { "complex128", "c16", SHEAF_F64, true },
	{ "bfloat16", "", SHEAF_BF16, false }, { "float8_e4m3fn", "", SHEAF_F8_E4M3, false },
	{ "float8_e5m2", "", SHEAF_F8_E5M2, false },
	{ "float8_e4m3fnuz", "", SHEAF_F8_E4M3FNUZ, false },
	{ "float8_e5m2fnuz", "", SHEAF_F8_E5M2FNUZ, false },
};

static bool zarr_is_text(const char *text, size_t n, const char *want)
{
	return strlen(want) == n && memcmp(text, want, n) == 0;
}

/* ---- values of the text ---- */

static void json_end(struct reading *r, struct shf_json *j)
{
	r->oom |= j->scratch.oom;
	shf_json_release(j);
}

/* Passes over the value whose first token was just read, and takes its range. */
static bool take_span(struct shf_json *j, enum shf_json_kind kind, struct span *out)
{
	const uint8_t *from = j->bytes + j->at;

	if (!shf_json_skip(j, kind))
		return false;
	*out = (struct span){ (const char *)from, (size_t)(j->p - from) };
	return true;
}

/* Finds the values of some keys of an object. Returns false if it is not an object, or has one of
 * them twice. */
static bool find_values(struct reading *r, struct span object, const char *const *keys,
                        struct span *out, int n)
{
	enum shf_json_kind kind;
	struct shf_json j;
	bool good;

	for (int i = 0; i < n; i++)
		out[i] = (struct span){ NULL, 0 };
	shf_json_init(&j, object.p, object.n);
	good = object.p && shf_json_next(&j) == SHF_JSON_OBJECT;
	while (good && (kind = shf_json_next(&j)) != SHF_JSON_OBJECT_END) {
		struct span value;
		size_t len = 0;
		int at = n;

		good = kind == SHF_JSON_KEY;
		for (int i = 0; i < n && good; i++) {
			const char *text = shf_json_text(&j, &len);

			at = zarr_is_text(text, len, keys[i]) ? i : at;
		}
		good = good && take_span(&j, shf_json_next(&j), &value);
		if (good && at < n) {
			good = !out[at].p;
			out[at] = value;
		}
	}
	good = good && shf_json_next(&j) == SHF_JSON_END;
	json_end(r, &j);
	return good;
}

/* Finds the items of an array. Returns how many, or -1 if it is not an array or has more than
 * `most`. */
static int find_items(struct reading *r, struct span array, struct span *out, int most)
{
	enum shf_json_kind kind;
	struct shf_json j;
	bool good;
	int n = 0;

	shf_json_init(&j, array.p, array.n);
	good = array.p && shf_json_next(&j) == SHF_JSON_ARRAY;
	while (good && (kind = shf_json_next(&j)) != SHF_JSON_ARRAY_END)
		good = n < most && kind != SHF_JSON_ERROR && take_span(&j, kind, &out[n++]);
	json_end(r, &j);
	return good ? n : -1;
}

/* Reads a text. Returns false if it is not a text, or has more than 63 bytes. */
static bool zarr_text(struct reading *r, struct span s, char out[64])
{
	struct shf_json j;
	const char *text;
	size_t n = 0;
	bool good;

	shf_json_init(&j, s.p, s.n);
	good = s.p && shf_json_next(&j) == SHF_JSON_STRING;
	text = good ? shf_json_text(&j, &n) : "";
	good = good && n < 64 && !memchr(text, 0, n);
	if (good)
		snprintf(out, 64, "%s", text);
	json_end(r, &j);
	return good;
}

static bool zarr_number(struct reading *r, struct span s, int64_t *v)
{
	struct shf_json j;
	bool good;

	shf_json_init(&j, s.p, s.n);
	good = s.p && shf_json_next(&j) == SHF_JSON_NUMBER && shf_json_i64(&j, v) && *v >= 0;
	json_end(r, &j);
	return good;
}

static bool is_null(struct span s)
{
	return !s.p || zarr_is_text(s.p, s.n, "null");
}

/* Whether it is null or an empty array. */
static bool is_empty(struct reading *r, struct span s)
{
	struct span one;

	return is_null(s) || find_items(r, s, &one, 1) == 0;
}

/* ---- what the metadata say ---- */

static void zarr_odd(struct reading *r, const char *why)
{
	r->odd = r->odd ? r->odd : why;
}

/* Says why the array is not read, unless that was said before. */
static void zarr_unread(struct reading *r, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static void zarr_unread(struct reading *r, const char *fmt, ...)
{
	char text[200];
	va_list ap;

	if (r->z->unread)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	r->z->unread = shf_name_escape(r->arena, text, strlen(text));
	r->oom |= !r->z->unread;
}

/* Reads sizes of dimensions. Returns how many. */
static int get_sizes(struct reading *r, struct span s, int64_t *out, const char *what)
{
	struct span items[SHF_ZARR_DIMS_MAX + 1];
	int n = find_items(r, s, items, SHF_ZARR_DIMS_MAX + 1);

	if (n > SHF_ZARR_DIMS_MAX) {
		zarr_unread(r, "an array of more than %d dimensions", SHF_ZARR_DIMS_MAX);
		return 0;
	}
	for (int i = 0; i < n; i++)
		if (!zarr_number(r, items[i], &out[i]))
			n = -1;
	if (n < 0)
		zarr_odd(r, what);
	return n < 0 ? 0 : n;
}

/* Sets the type by a name of version 3, or of NumPy. */
static void set_type(struct reading *r, const char *name, bool numpy)
{
	char order = numpy && strchr("<>|=", name[0]) ? name[0] : 0;

	for (size_t i = 0; i < sizeof(zarr_types) / sizeof(zarr_types[0]); i++) {
		const struct zarr_type *t = &zarr_types[i];

		if (strcmp(name, t->name) && (!order || strcmp(name + 1, t->numpy)))
			continue;
		r->z->dtype = t->type;
		r->z->pair = t->pair;
		if (order == '>' && shf_dtype(t->type)->bits > 8)
			zarr_unread(r, "a big-endian array of type %s", name);
		return;
	}
	zarr_unread(r, "an array of type %s", name);
}

/* Whether an integer type has this whole number, which is at most 9e15. A bool has 0 and 1. */
static bool is_in_range(const struct shf_dtype *d, double v)
{
	double half = d->bits < 64 ? (double)(UINT64_C(1) << (d->bits - 1)) : 9e15;

	if (d->kind == 'i')
		return v >= -half && v < half;
	return v >= 0 && v < (d->kind == 'b' ? 2 : 2 * half);
}

/* Converts a number to an item. */
static bool number_to_item(struct shf_zarr_array *z, const char *text)
{
	const struct shf_dtype *d = shf_dtype(z->dtype);
	char *end = NULL;
	double v = shf_decimal_strtod(text, &end);

	if (end == text || *end)
		return false;
	if (d->kind == 'f' && !z->pair)
		return shf_convert(z->fill, z->dtype, &v, SHEAF_F64, 1) == 0;
	/* Others are exact as a double up to 2^53. */
	if (d->kind == 'c' || z->pair || !(v >= -9e15 && v <= 9e15) || v != (double)(int64_t)v ||
	    !is_in_range(d, v))
		return v == 0;
	shf_put64(z->fill, (uint64_t)(int64_t)v);
	return true;
}

/* Whether both are the number 0, in any form. */
static bool parts_are_zero(const struct span *parts)
{
	for (int i = 0; i < 2; i++)
		for (size_t k = 0; k < parts[i].n; k++)
			if (!strchr("0.-", parts[i].p[k]))
				return false;
	return true;
}

/* Reads the item of chunks that are not stored. A fill value of unknown form matters only if there
 * are such chunks. */
static void get_fill(struct reading *r, struct span s)
{
	static const struct { const char *name; double v; } words[] = {
		{ "NaN", __builtin_nan("") }, { "Infinity", __builtin_inf() },
		{ "-Infinity", -__builtin_inf() },
	};
	struct shf_zarr_array *z = r->z;
	struct span parts[2];
	char text[64];
	bool is_float = shf_dtype(z->dtype)->kind == 'f' && !z->pair;

	z->fill_known = is_null(s) || zarr_is_text(s.p, s.n, "false");
	if (z->fill_known)
		return;
	if (zarr_is_text(s.p, s.n, "true")) {
		z->fill_known = z->dtype == SHEAF_BOOL;
		z->fill[0] = 1;
	} else if (zarr_text(r, s, text)) {
		for (size_t i = 0; i < 3 && is_float; i++)
			if (strcmp(text, words[i].name) == 0)
				z->fill_known = shf_convert(z->fill, z->dtype, &words[i].v,
				                            SHEAF_F64, 1) == 0;
	} else if (find_items(r, s, parts, 2) == 2) {
		/* Two parts of a complex number. */
		z->fill_known = parts_are_zero(parts);
	} else if (s.n < sizeof(text)) {
		memcpy(text, s.p, s.n);
		text[s.n] = '\0';
		z->fill_known = number_to_item(z, text);
	}
}

/* Sets the order of dimensions to that of C, or the reverse. */
static void set_order(struct shf_zarr_array *z, bool fortran)
{
	for (int i = 0; i < z->ndim; i++)
		z->coding.order[i] = fortran ? z->ndim - 1 - i : i;
}

static bool codec_from(const char *name, enum shf_codec *codec)
{
	static const enum shf_codec all[] = { SHF_CODEC_ZLIB, SHF_CODEC_GZIP, SHF_CODEC_ZSTD,
	                                      SHF_CODEC_BLOSC };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (strcmp(shf_codec_name(all[i]), name) == 0) {
			*codec = all[i];
			return true;
		}
	return false;
}

/* ---- version 2 ---- */

static void parse_2(struct reading *r, struct span text)
{
	enum { FORMAT, SHAPE, CHUNKS, DTYPE, COMPRESSOR, FILL, ORDER, FILTERS, SEPARATOR, KEYS };
	static const char *const keys[] = { "zarr_format", "shape", "chunks", "dtype", "compressor",
		"fill_value", "order", "filters", "dimension_separator" };
	static const char *const id_key[] = { "id" };
	struct shf_zarr_array *z = r->z;
	struct span v[KEYS], id;
	char name[64];
	int64_t format;
	int chunks_n;

	if (!find_values(r, text, keys, v, KEYS) || !zarr_number(r, v[FORMAT], &format) ||
	    format != 2) {
		zarr_odd(r, "are not metadata of Zarr 2");
		return;
	}
	z->ndim = get_sizes(r, v[SHAPE], z->shape, "have no shape");
	chunks_n = get_sizes(r, v[CHUNKS], z->chunk, "have no shape of chunks");
	if (chunks_n != z->ndim)
		zarr_odd(r, "have chunks whose number of dimensions differs from that of the "
		         "array");
	if (zarr_text(r, v[DTYPE], name))
		set_type(r, name, true);
	else
		zarr_unread(r, "a structured array");
	if (!is_null(v[COMPRESSOR])) {
		if (!find_values(r, v[COMPRESSOR], id_key, &id, 1) || !zarr_text(r, id, name))
			zarr_odd(r, "have a compressor without a name");
		else if (!codec_from(name, &z->coding.codec))
			zarr_unread(r, "an array that is compressed by %s", name);
	}
	if (!is_empty(r, v[FILTERS]))
		zarr_unread(r, "an array with filters");
	set_order(z, v[ORDER].p && zarr_is_text(v[ORDER].p, v[ORDER].n, "\"F\""));
	z->separator = v[SEPARATOR].p && zarr_is_text(v[SEPARATOR].p, v[SEPARATOR].n, "\"/\"") ? '/'
	                                                                                  : '.';
	if (!z->unread)
		get_fill(r, v[FILL]);
}

/* ---- version 3 ---- */

/* Reads a value {"name": ..., "configuration": {...}}, or only the name. */
static bool get_named(struct reading *r, struct span s, char name[64], struct span *configuration)
{
	static const char *const keys[] = { "name", "configuration" };
	struct span v[2];

	*configuration = (struct span){ NULL, 0 };
	if (zarr_text(r, s, name))
		return true;
	if (!find_values(r, s, keys, v, 2) || !zarr_text(r, v[0], name))
		return false;
	*configuration = v[1];
	return true;
}

/* Takes the codec transpose. */
static void take_transpose(struct reading *r, struct span configuration,
                           struct shf_zarr_coding *to)
{
	static const char *const keys[] = { "order" };
	int64_t order[SHF_ZARR_DIMS_MAX + 1];
	int before[SHF_ZARR_DIMS_MAX], ndim = r->z->ndim;
	unsigned seen = 0;
	struct span v;

	memcpy(before, to->order, sizeof(before));
	if (!find_values(r, configuration, keys, &v, 1) ||
	    get_sizes(r, v, order, "have a transposition without an order") != ndim) {
		zarr_odd(r, "have a transposition without an order");
		return;
	}
	for (int i = 0; i < ndim; i++) {
		if (order[i] >= ndim || seen & 1u << order[i]) {
			zarr_odd(r, "have a transposition that is not a permutation");
			return;
		}
		seen |= 1u << order[i];
		to->order[i] = before[order[i]];
	}
}

static void parse_codecs(struct reading *r, struct span s, struct shf_zarr_coding *to, bool inner);

/* Takes the codec sharding_indexed. */
static void take_sharding(struct reading *r, struct span configuration)
{
	enum { SHAPE, CODECS, INDEX, LOCATION, KEYS };
	static const char *const keys[] = { "chunk_shape", "codecs", "index_codecs",
	                                    "index_location" };
	struct shf_zarr_coding index = { .codec = SHF_CODEC_NONE };
	struct shf_zarr_array *z = r->z;
	struct span v[KEYS];

	for (int i = 0; i < z->ndim; i++)
		if (z->coding.order[i] != i)
			zarr_unread(r, "an array of transposed shards");
	if (!find_values(r, configuration, keys, v, KEYS)) {
		zarr_odd(r, "have shards without a configuration");
		return;
	}
	z->sharded = true;
	if (get_sizes(r, v[SHAPE], z->inner, "have shards without a shape of chunks") != z->ndim)
		zarr_odd(r, "have shards without a shape of chunks");
	for (int i = 0; i < z->ndim && !r->odd; i++)
		if (z->inner[i] <= 0 || z->chunk[i] % z->inner[i])
			zarr_odd(r, "have shards whose chunks do not divide them");
	parse_codecs(r, v[CODECS], &z->coding, true);
	parse_codecs(r, v[INDEX], &index, true);
	if (index.codec != SHF_CODEC_NONE || index.crc_inside)
		zarr_unread(r, "an array whose shards have a compressed index");
	z->index_crc = index.crc_outside;
	z->index_first = v[LOCATION].p && zarr_is_text(v[LOCATION].p, v[LOCATION].n, "\"start\"");
}

/* Takes one codec. *bytes: whether the items have become bytes. */
static void take_codec(struct reading *r, struct span s, struct shf_zarr_coding *to, bool *bytes,
                       bool inner)
{
	static const char *const keys[] = { "endian" };
	struct span configuration, endian = { NULL, 0 };
	enum shf_codec codec;
	char name[64];

	if (!get_named(r, s, name, &configuration)) {
		zarr_odd(r, "have a codec without a name");
	} else if (strcmp(name, "transpose") == 0 && !*bytes) {
		take_transpose(r, configuration, to);
	} else if (strcmp(name, "bytes") == 0 && !*bytes) {
		*bytes = true;
		if (configuration.p && find_values(r, configuration, keys, &endian, 1) &&
		    endian.p && zarr_is_text(endian.p, endian.n, "\"big\""))
			zarr_unread(r, "a big-endian array");
	} else if (strcmp(name, "sharding_indexed") == 0 && !*bytes && !inner) {
		*bytes = true;
		take_sharding(r, configuration);
	} else if (strcmp(name, "crc32c") == 0 && *bytes && !r->z->sharded == !inner &&
	           !to->crc_outside) {
		to->crc_outside = true;
	} else if (*bytes && codec_from(name, &codec) && to->codec == SHF_CODEC_NONE &&
	           !r->z->sharded == !inner) {
		to->codec = codec;
		to->crc_inside = to->crc_outside;
		to->crc_outside = false;
	} else {
		zarr_unread(r, "an array whose chunks are made by the codec %s", name);
	}
}

/* Parses a list of codecs. inner: of chunks in a shard, or of its index. */
static void parse_codecs(struct reading *r, struct span s, struct shf_zarr_coding *to, bool inner)
{
	struct span items[CODECS_MAX];
	int n = find_items(r, s, items, CODECS_MAX);
	bool bytes = false;

	for (int i = 0; i < r->z->ndim; i++)
		to->order[i] = i;
	for (int i = 0; i < n && !r->odd; i++)
		take_codec(r, items[i], to, &bytes, inner);
	if (n < 0 || !bytes)
		zarr_odd(r, "have no list of codecs that makes bytes of items");
}

/* Reads the grid of chunks. */
static void get_grid(struct reading *r, struct span s)
{
	static const char *const keys[] = { "chunk_shape" };
	struct span configuration, shape;
	char name[64];

	if (!get_named(r, s, name, &configuration))
		zarr_odd(r, "have no grid of chunks");
	else if (strcmp(name, "regular"))
		zarr_unread(r, "an array with a grid of chunks that is %s", name);
	else if (!find_values(r, configuration, keys, &shape, 1) ||
	         get_sizes(r, shape, r->z->chunk, "have no shape of chunks") != r->z->ndim)
		zarr_odd(r, "have no shape of chunks");
}

/* Reads how the keys of chunks are made. */
static void get_key_encoding(struct reading *r, struct span s)
{
	static const char *const keys[] = { "separator" };
	struct span configuration, separator = { NULL, 0 };
	char name[64];
	bool plain;

	if (!get_named(r, s, name, &configuration)) {
		zarr_odd(r, "have no encoding of the keys of chunks");
		return;
	}
	plain = strcmp(name, "v2") == 0;
	if (!plain && strcmp(name, "default"))
		zarr_unread(r, "an array with an encoding of keys that is %s", name);
	r->z->key_prefix = plain ? '\0' : 'c';
	r->z->separator = plain ? '.' : '/';
	if (configuration.p && find_values(r, configuration, keys, &separator, 1) && separator.p)
		r->z->separator = zarr_is_text(separator.p, separator.n, "\".\"") ? '.' : '/';
}

static void parse_3(struct reading *r, struct span text)
{
	enum { FORMAT, NODE, SHAPE, TYPE, GRID, KEY, FILL, CODECS, TRANSFORMERS, KEYS };
	static const char *const keys[] = { "zarr_format", "node_type", "shape", "data_type",
		"chunk_grid", "chunk_key_encoding", "fill_value", "codecs",
		"storage_transformers" };
	struct shf_zarr_array *z = r->z;
	struct span v[KEYS];
	char name[64];
	int64_t format;

	if (!find_values(r, text, keys, v, KEYS) || !zarr_number(r, v[FORMAT], &format) ||
	    format != 3 || !zarr_text(r, v[NODE], name)) {
		zarr_odd(r, "are not metadata of Zarr 3");
		return;
	}
	z->is_group = strcmp(name, "group") == 0;
	if (z->is_group)
		return;
	z->ndim = get_sizes(r, v[SHAPE], z->shape, "have no shape");
	if (zarr_text(r, v[TYPE], name))
		set_type(r, name, false);
	else
		zarr_unread(r, "an array of a type that has parameters");
	if (!is_empty(r, v[TRANSFORMERS]))
		zarr_unread(r, "an array with storage transformers");
	if (!r->odd && !z->unread)
		get_grid(r, v[GRID]);
	if (!r->odd && !z->unread)
		get_key_encoding(r, v[KEY]);
	if (!r->odd && !z->unread)
		parse_codecs(r, v[CODECS], &z->coding, false);
	if (!r->odd && !z->unread)
		get_fill(r, v[FILL]);
}

const char *shf_zarr_parse(struct shf_zarr_array *z, struct shf_arena *arena, int version,
                           const void *json, size_t n, bool *oom)
{
	struct reading r = { .z = z, .arena = arena };
	bool empty = false;

	*z = (struct shf_zarr_array){ 0 };
	if (version == 2)
		parse_2(&r, (struct span){ json, n });
	else
		parse_3(&r, (struct span){ json, n });
	*oom = r.oom;
	if (r.odd || z->unread || z->is_group)
		return r.odd;
	for (int i = 0; i < z->ndim; i++)
		empty |= z->shape[i] == 0;
	for (int i = 0; i < z->ndim; i++)
		if (z->chunk[i] <= 0 && !empty)
			return "have a chunk without items";
	if (z->pair)
		z->shape[z->ndim] = 2;
	return NULL;
}
