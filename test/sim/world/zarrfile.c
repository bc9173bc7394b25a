/* SPDX-License-Identifier: Apache-2.0 */
#include "zarrfile.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "packedfile.h"

static const char *const codec_names[] = { "", "zstd", "gzip", "blosc" };

void zarr_put(struct zarr_store *s, const char *key, struct torch_bytes value)
{
	struct zarr_kv *kv = &s->kv[s->n++];

	if (s->n > (int)(sizeof(s->kv) / sizeof(s->kv[0])))
		abort();
	snprintf(kv->key, sizeof(kv->key), "%s", key);
	kv->value = value;
}

struct torch_bytes *zarr_value(struct zarr_store *s, const char *key)
{
	for (int i = 0; i < s->n; i++)
		if (strcmp(s->kv[i].key, key) == 0)
			return &s->kv[i].value;
	abort();
}

void zarr_free(struct zarr_store *s)
{
	for (int i = 0; i < s->n; i++)
		free(s->kv[i].value.p);
	s->n = 0;
}

void zarr_dir(struct simdisk *disk, const char *dir, const struct zarr_store *s)
{
	char path[300];

	for (int i = 0; i < s->n; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, s->kv[i].key);
		if (simdisk_put(disk, path, s->kv[i].value.p, s->kv[i].value.n) < 0)
			abort();
	}
}

/* ---- arrays ---- */

static void put_text(struct torch_bytes *b, const char *s)
{
	torch_add(b, s, strlen(s));
}

static void put_sizes(struct torch_bytes *b, const int64_t *v, int n)
{
	char text[32];

	put_text(b, "[");
	for (int i = 0; i < n; i++) {
		snprintf(text, sizeof(text), "%s%" PRId64, i ? "," : "", v[i]);
		put_text(b, text);
	}
	put_text(b, "]");
}

static const char *type_of(int dtype, int version)
{
	switch (dtype) {
	case SHEAF_F64:
		return version == 2 ? "<f8" : "float64";
	case SHEAF_BF16:
		return "bfloat16";
	case SHEAF_I8:
		return version == 2 ? "|i1" : "int8";
	default:
		return version == 2 ? "<f4" : "float32";
	}
}

static void put_meta_2(struct torch_bytes *b, const struct torch_tensor *t,
                       const struct zarr_how *how)
{
	put_text(b, "{\"chunks\":");
	put_sizes(b, how->chunk, t->ndim);
	put_text(b, ",\"compressor\":");
	if (how->codec) {
		put_text(b, "{\"level\":1,\"id\":\"");
		put_text(b, codec_names[how->codec]);
		put_text(b, "\"}");
	} else {
		put_text(b, "null");
	}
	put_text(b, how->slash ? ",\"dimension_separator\":\"/\",\"dtype\":\"" : ",\"dtype\":\"");
	put_text(b, type_of(t->dtype, 2));
	put_text(b, "\",\"fill_value\":");
	put_text(b, how->fill ? how->fill : "null");
	put_text(b, how->fortran ? ",\"filters\":null,\"order\":\"F\",\"shape\":"
	                         : ",\"filters\":null,\"order\":\"C\",\"shape\":");
	put_sizes(b, t->shape, t->ndim);
	put_text(b, ",\"zarr_format\":2}");
}

static void put_codecs(struct torch_bytes *b, const struct torch_tensor *t,
                       const struct zarr_how *how)
{
	static const int64_t turned[] = { 7, 6, 5, 4, 3, 2, 1, 0 };

	put_text(b, "[");
	if (how->fortran && !how->inner[0]) {
		put_text(b, "{\"configuration\":{\"order\":");
		put_sizes(b, turned + 8 - t->ndim, t->ndim);
		put_text(b, "},\"name\":\"transpose\"},");
	}
	put_text(b, "{\"name\":\"bytes\",\"configuration\":{\"endian\":\"little\"}}");
	if (how->crc && how->crc_inside)
		put_text(b, ",{\"name\":\"crc32c\"}");
	if (how->codec) {
		put_text(b, ",{\"name\":\"");
		put_text(b, codec_names[how->codec]);
		put_text(b, "\",\"configuration\":{\"level\":3}}");
	}
	if (how->crc && !how->crc_inside)
		put_text(b, ",\"crc32c\"");
	put_text(b, "]");
}

static void put_meta_3(struct torch_bytes *b, const struct torch_tensor *t,
                       const struct zarr_how *how)
{
	put_text(b, "{\"chunk_grid\":{\"configuration\":{\"chunk_shape\":");
	put_sizes(b, how->chunk, t->ndim);
	put_text(b, "},\"name\":\"regular\"},\"chunk_key_encoding\":{\"name\":\"");
	put_text(b, how->slash ? "default\"}" : "v2\"}");
	put_text(b, ",\"codecs\":");
	if (how->inner[0]) {
		put_text(b, "[{\"configuration\":{\"chunk_shape\":");
		put_sizes(b, how->inner, t->ndim);
		put_text(b, ",\"codecs\":");
		put_codecs(b, t, how);
		put_text(b, ",\"index_codecs\":[{\"configuration\":{\"endian\":\"little\"},"
		         "\"name\":\"bytes\"},{\"name\":\"crc32c\"}]");
		put_text(b, how->index_first ? ",\"index_location\":\"start\"" : "");
		put_text(b, "},\"name\":\"sharding_indexed\"}]");
	} else {
		put_codecs(b, t, how);
	}
	put_text(b, ",\"data_type\":\"");
	put_text(b, type_of(t->dtype, 3));
	put_text(b, "\",\"fill_value\":");
	put_text(b, how->fill ? how->fill : "0.0");
	put_text(b, ",\"node_type\":\"array\",\"shape\":");
	put_sizes(b, t->shape, t->ndim);
	put_text(b, ",\"zarr_format\":3}");
}

/* Returns the items of a box that begins at `start`, in its order; items outside of the array are
 * 0xee bytes. */
static struct torch_bytes box_of(const struct torch_tensor *t, const int64_t *start,
                                 const int64_t *count, bool fortran)
{
	size_t item = (size_t)hand_bits(t->dtype) / 8;
	struct torch_bytes out = { NULL, 0, 0 };
	int64_t n = 1;

	for (int d = 0; d < t->ndim; d++)
		n *= count[d];
	for (int64_t i = 0; i < n; i++) {
		int64_t rest = i, global = 0, at[8];
		uint64_t v = UINT64_C(0xeeeeeeeeeeeeeeee);
		bool inside = true;

		for (int k = t->ndim - 1; k >= 0; k--) {
			int d = fortran ? t->ndim - 1 - k : k;

			at[d] = start[d] + rest % count[d];
			rest /= count[d];
		}
		for (int d = 0; d < t->ndim; d++) {
			inside &= at[d] < t->shape[d];
			global = global * t->shape[d] + at[d];
		}
		if (inside)
			v = hand_value("model", t->name, t->dtype, global);
		torch_add(&out, &v, item);
	}
	return out;
}

/* Encodes a box as a chunk, with checksums. */
static struct torch_bytes chunk_of(const struct torch_tensor *t, const struct zarr_how *how,
                                   const int64_t *start, const int64_t *count)
{
	struct torch_bytes plain = box_of(t, start, count, how->fortran && !how->inner[0]), out;

	if (how->crc && how->crc_inside)
		packed_number(&plain, packed_crc32c(plain.p, plain.n), 4);
	if (how->codec == ZARR_PLAIN)
		out = plain;
	else
		out = how->codec == ZARR_ZSTD ? packed_zstd(plain)
		    : how->codec == ZARR_GZIP ? packed_gzip(plain) : packed_blosc(plain);
	if (how->codec != ZARR_PLAIN)
		free(plain.p);
	if (how->crc && !how->crc_inside)
		packed_number(&out, packed_crc32c(out.p, out.n), 4);
	return out;
}

/* Goes to the next place in a grid. Returns false after the last one. */
static bool next_place(int64_t *at, const int64_t *n, int ndim)
{
	for (int d = ndim - 1; d >= 0; d--) {
		if (++at[d] < n[d])
			return true;
		at[d] = 0;
	}
	return false;
}

static struct torch_bytes shard_of(const struct torch_tensor *t, const struct zarr_how *how,
                                   const int64_t *start)
{
	struct torch_bytes index = { NULL, 0, 0 }, data = { NULL, 0, 0 }, out = { NULL, 0, 0 };
	int64_t at[8] = { 0 }, n[8], first[8];
	size_t all = 1, before;

	for (int d = 0; d < t->ndim; d++) {
		n[d] = how->chunk[d] / how->inner[d];
		all *= (size_t)n[d];
	}
	before = how->index_first ? 16 * all + 4 : 0;
	do {
		struct torch_bytes chunk;
		bool outside = false;

		for (int d = 0; d < t->ndim; d++) {
			first[d] = start[d] + at[d] * how->inner[d];
			outside |= first[d] >= t->shape[d];
		}
		if (outside) {
			packed_number(&index, UINT64_MAX, 8);
			packed_number(&index, UINT64_MAX, 8);
			continue;
		}
		chunk = chunk_of(t, how, first, how->inner);
		packed_number(&index, before + data.n, 8);
		packed_number(&index, chunk.n, 8);
		torch_add(&data, chunk.p, chunk.n);
		free(chunk.p);
	} while (next_place(at, n, t->ndim));
	packed_number(&index, packed_crc32c(index.p, index.n), 4);
	torch_add(&out, how->index_first ? index.p : data.p, how->index_first ? index.n : data.n);
	torch_add(&out, how->index_first ? data.p : index.p, how->index_first ? data.n : index.n);
	free(index.p);
	free(data.p);
	return out;
}

void zarr_add(struct zarr_store *s, const struct torch_tensor *t, const struct zarr_how *how)
{
	int64_t at[8] = { 0 }, n[8], start[8], skipped = 0;
	struct torch_bytes meta = { NULL, 0, 0 };
	bool default_keys = how->version == 3 && how->slash;
	char key[160], *p;

	snprintf(key, sizeof(key), how->version == 2 ? "%s/.zarray" : "%s/zarr.json", t->name);
	if (how->version == 2)
		put_meta_2(&meta, t, how);
	else
		put_meta_3(&meta, t, how);
	zarr_put(s, key, meta);
	for (int d = 0; d < t->ndim; d++)
		n[d] = (t->shape[d] + how->chunk[d] - 1) / how->chunk[d];
	do {
		p = key + snprintf(key, sizeof(key), "%s/%s", t->name, default_keys ? "c" : "");
		for (int d = 0; d < t->ndim; d++) {
			start[d] = at[d] * how->chunk[d];
			p += sprintf(p, "%s%" PRId64, d || default_keys ? how->slash ? "/" : "."
			                                                : "", at[d]);
		}
		if (t->ndim == 0 && !default_keys)
			sprintf(p, "0");
		if (skipped++ < how->skip)
			continue;
		zarr_put(s, key, how->inner[0] ? shard_of(t, how, start)
		                               : chunk_of(t, how, start, how->chunk));
	} while (next_place(at, n, t->ndim));
}

/* ---- OCDBT ---- */

static void put_varint(struct torch_bytes *b, uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		packed_number(b, (v & 0x7f) | 0x80, 1);
	packed_number(b, v, 1);
}

/* Appends a header, the body, and the checksum. */
static void put_coded(struct torch_bytes *out, uint32_t magic, struct torch_bytes body,
                      const struct ocdbt_how *how, bool last)
{
	struct torch_bytes coded = how->zstd ? packed_zstd(body) : body;
	enum ocdbt_flaw flaw = last ? how->flaw : OCDBT_SOUND;
	size_t from = out->n, n = 12 + 2 + coded.n + 4;
	uint32_t sum;

	magic += flaw == OCDBT_MAGIC;
	for (int shift = 24; shift >= 0; shift -= 8)
		packed_number(out, magic >> shift, 1);
	packed_number(out, n + (flaw == OCDBT_LENGTH), 8);
	put_varint(out, flaw == OCDBT_VERSION);
	put_varint(out, flaw == OCDBT_COMPRESSION ? 2 : how->zstd);
	torch_add(out, coded.p, coded.n);
	sum = packed_crc32c(out->p + from, out->n - from);
	packed_number(out, sum ^ (flaw == OCDBT_SUM), 4);
	if (how->zstd)
		free(coded.p);
}

/* Appends the table of data files. If files were merged, the base path in the manifest is the
 * folder of the process, which applies to references in its nodes. */
static void put_files(struct torch_bytes *b, const char *base, enum ocdbt_flaw flaw)
{
	bool out = flaw == OCDBT_PATH;
	size_t n = strlen(base), same = out ? 0 : n + 2;

	put_varint(b, 2);
	put_varint(b, same);
	put_varint(b, out ? 4 : n + 3);
	put_varint(b, flaw == OCDBT_LONG_PATH ? UINT64_C(1) << 62 : n + 3 - same);
	put_varint(b, out ? 0 : n);
	put_varint(b, n);
	put_text(b, out ? "../d" : base);
	put_text(b, out ? base : "d/0");
	put_text(b, out ? "d/1" : "1");
}

struct tree_node {              /* an entry of the next higher level */
	const char *key;
	size_t subtree;                 /* length of the prefix that all its keys share */
	int file;
	size_t at, bytes;
};

static size_t common(const char *a, const char *b)
{
	size_t n = 0;

	while (a[n] && a[n] == b[n])
		n++;
	return n;
}

static int kv_by_key(const void *a, const void *b)
{
	return strcmp((*(const struct zarr_kv *const *)a)->key,
	              (*(const struct zarr_kv *const *)b)->key);
}

/* Appends the columns of keys, without the first `prefix` bytes, which all keys of the node
 * share. */
static void put_keys(struct torch_bytes *b, const struct tree_node *e, int n, size_t prefix,
                     bool leaf, enum ocdbt_flaw flaw)
{
	put_varint(b, flaw == OCDBT_NO_KEYS ? 0 : (uint64_t)n);
	for (int i = 1; i < n; i++)
		put_varint(b, common(e[i - 1].key, e[i].key) - prefix +
		           (flaw == OCDBT_PREFIX && i == 1 ? 200 : 0));
	for (int i = 0; i < n; i++)
		put_varint(b, strlen(e[i].key) - (i ? common(e[i - 1].key, e[i].key) : prefix) +
		           (flaw == OCDBT_SUFFIX && i == 0 ? 5000 : 0));
	for (int i = 0; i < n && !leaf; i++)
		put_varint(b, e[i].subtree - prefix + (flaw == OCDBT_SUBTREE ? 200 : 0));
	for (int i = 0; i < n; i++) {
		const char *from = e[i].key + (i ? common(e[i - 1].key, e[i].key) : prefix);

		if (flaw == OCDBT_CONTROL && i == 0) {
			put_text(b, "\1");
			from++;
		}
		put_text(b, from);
	}
}

/* Appends a leaf to the data file. Sets *out to its place. */
static void put_leaf(struct torch_bytes *data, const struct zarr_kv *const *kv, int n,
                     const struct tree_node *values, const struct ocdbt_how *how, bool last,
                     struct tree_node *out)
{
	enum ocdbt_flaw flaw = last ? how->flaw : OCDBT_SOUND;
	struct torch_bytes body = { NULL, 0, 0 };

	packed_number(&body, flaw == OCDBT_HEIGHT, 1);
	put_files(&body, "", flaw);
	put_keys(&body, values, n, out->subtree, true, flaw);
	for (int i = 0; i < n; i++)
		put_varint(&body, kv[i]->value.n + (flaw == OCDBT_INLINE && i == 0 ? 100000 : 0));
	for (int i = 0; i < n; i++)
		packed_number(&body, flaw == OCDBT_KIND ? 2 : values[i].file >= 0, 1);
	for (int i = 0; i < n; i++)
		if (values[i].file >= 0)
			put_varint(&body, (uint64_t)values[i].file +
			           (flaw == OCDBT_FILE_ID ? 2 : 0));
	for (int i = 0; i < n; i++)
		if (values[i].file >= 0)
			put_varint(&body, values[i].at + (flaw == OCDBT_BEYOND ? 1000000 : 0));
	for (int i = 0; i < n; i++)
		if (values[i].file < 0)
			torch_add(&body, kv[i]->value.p, kv[i]->value.n);
	if (flaw == OCDBT_TAIL)
		packed_number(&body, 7, 1);
	out->at = data->n;
	put_coded(data, 0x0cdb20de, body, how, last);
	out->bytes = data->n - out->at;
	free(body.p);
}

static void put_inner(struct torch_bytes *data, const struct tree_node *e, int n, int height,
                      size_t prefix, const struct ocdbt_how *how, struct tree_node *out)
{
	struct torch_bytes body = { NULL, 0, 0 };

	packed_number(&body, (uint64_t)height, 1);
	put_files(&body, "", OCDBT_SOUND);
	put_keys(&body, e, n, prefix, false, how->flaw == OCDBT_SUBTREE ? how->flaw : OCDBT_SOUND);
	for (int i = 0; i < n; i++)
		put_varint(&body, (uint64_t)e[i].file);
	for (int i = 0; i < n; i++)
		put_varint(&body, e[how->flaw == OCDBT_LOOP ? 0 : i].at);
	for (int i = 0; i < n; i++)
		put_varint(&body, e[how->flaw == OCDBT_LOOP ? 0 : i].bytes);
	for (int i = 0; i < 3 * n; i++)
		put_varint(&body, 1);
	out->at = data->n;
	put_coded(data, 0x0cdb20de, body, how, false);
	out->bytes = data->n - out->at;
	free(body.p);
}

/* Appends the configuration. numbered: of the manifest that has only this. */
static void put_config(struct torch_bytes *body, const struct ocdbt_how *how, bool numbered)
{
	bool other = how->flaw == OCDBT_OTHER_UUID && numbered;

	for (int i = 0; i < 16; i++)
		packed_number(body, (other ? 0xb0 : 0xa0) + (unsigned)i, 1);
	packed_number(body, numbered || how->flaw == OCDBT_TWICE_NUMBERED, 1);
	put_varint(body, 100);
	put_varint(body, 8 << 20);
	packed_number(body, 4, 1);
	put_varint(body, how->zstd);
	if (how->zstd)
		packed_number(body, 0, 4);
	if (numbered && how->flaw == OCDBT_CONFIG)
		packed_number(body, 0, 1);
}

/* Appends the versions 1 to n; only the last one has keys. */
static void put_versions(struct torch_bytes *body, const struct tree_node *root, int height, int n,
                         bool none, enum ocdbt_flaw flaw)
{
	put_varint(body, flaw == OCDBT_NO_VERSION ? 0 : (uint64_t)n);
	for (int i = 0; i < n; i++)
		put_varint(body, flaw == OCDBT_OLD_LAST ? 9 - (unsigned)i : 1 + (unsigned)i);
	for (int i = 0; i < n; i++)
		packed_number(body, i + 1 < n ? 0 : flaw == OCDBT_DEEP ? 200 : (uint64_t)height, 1);
	for (int i = 0; i < n; i++)
		put_varint(body, i + 1 < n || none ? 0 : (uint64_t)root->file);
	for (int i = 0; i < n; i++)
		put_varint(body, i + 1 < n || none ? UINT64_MAX : root->at);
	for (int i = 0; i < n; i++)
		put_varint(body, i + 1 < n || none ? UINT64_MAX : root->bytes);
	for (int i = 0; i < 3 * n; i++)
		put_varint(body, 0);
	for (int i = 0; i < n; i++)
		packed_number(body, 1700000000, 8);
	put_varint(body, 0);
}

static void put_coded_file(struct simdisk *disk, const char *path, struct torch_bytes body,
                           const struct ocdbt_how *how)
{
	struct torch_bytes out = { NULL, 0, 0 };
	struct ocdbt_how of = *how;

	of.flaw = OCDBT_SOUND;
	put_coded(&out, 0x0cdb3a2a, body, &of, false);
	if (simdisk_put(disk, path, out.p, out.n) < 0)
		abort();
	free(body.p);
	free(out.p);
}

static void put_manifest(struct simdisk *disk, const char *dir, const struct tree_node *root,
                         int height, const struct ocdbt_how *how)
{
	const char *base = how->merged ? "p.1/" : "";
	bool none = how->flaw == OCDBT_EMPTY;
	int n = how->versions + 1;
	char path[300];

	/* If they are numbered, only the last one has keys. */
	for (int i = how->numbered ? 1 : n; i <= n && how->flaw != OCDBT_NO_NUMBER; i++) {
		struct torch_bytes body = { NULL, 0, 0 };

		put_config(&body, how, false);
		put_files(&body, base, OCDBT_SOUND);
		put_versions(&body, root, height, i, none || i < n, how->flaw);
		snprintf(path, sizeof(path), how->numbered ? "%s/manifest.%016x"
		                                           : "%s/manifest.ocdbt", dir,
		         (unsigned)i + (how->flaw == OCDBT_OTHER_NUMBER ? 0x1fu : 0));
		put_coded_file(disk, path, body, how);
	}
	if (how->numbered) {
		struct torch_bytes body = { NULL, 0, 0 };

		put_config(&body, how, true);
		snprintf(path, sizeof(path), "%s/manifest.ocdbt", dir);
		put_coded_file(disk, path, body, how);
	}
}

/* Makes a level of nodes from the one below it. The keys of a node share the prefix of the first
 * and the last one. Returns the number of nodes. */
static int put_level(struct torch_bytes *data, struct tree_node *e, int n, int height,
                     const struct zarr_kv *const *kv, const struct ocdbt_how *how)
{
	int made = 0;

	for (int i = 0; i < n; i += how->per_node) {
		int some = n - i < how->per_node ? n - i : how->per_node;
		struct tree_node x = { .key = e[i].key, .file = 1 };

		x.subtree = n <= how->per_node ? 0 : common(e[i].key, e[i + some - 1].key);
		for (int k = i; k < i + some && height; k++)
			x.subtree = x.subtree < e[k].subtree ? x.subtree : e[k].subtree;
		if (height)
			put_inner(data, e + i, some, height, x.subtree, how, &x);
		else
			put_leaf(data, kv + i, some, e + i, how, i + some == n, &x);
		e[made++] = x;
	}
	return made;
}

void zarr_ocdbt(struct simdisk *disk, const char *dir, const struct zarr_store *s,
                const struct ocdbt_how *how)
{
	const struct zarr_kv **kv = calloc((size_t)s->n, sizeof(struct zarr_kv *));
	struct tree_node *e = calloc((size_t)s->n + 1, sizeof(*e));
	struct torch_bytes data[2] = { { NULL, 0, 0 }, { NULL, 0, 0 } };
	int n = s->n, height = 0;
	char path[300];

	for (int i = 0; i < n; i++)
		kv[i] = &s->kv[i];
	qsort(kv, (size_t)n, sizeof(*kv), kv_by_key);
	if (how->flaw == OCDBT_ORDER || how->flaw == OCDBT_TWICE) {
		const struct zarr_kv *last = kv[n - 1];

		kv[n - 1] = kv[n - 2];
		kv[n - 2] = how->flaw == OCDBT_ORDER ? last : kv[n - 1];
	}
	for (int i = 0; i < n; i++) {
		int file = i % 2;

		e[i] = (struct tree_node){ .key = kv[i]->key, .file = -1 };
		if (kv[i]->value.n <= (size_t)how->inlined)
			continue;
		e[i].file = file;
		e[i].at = data[file].n;
		torch_add(&data[file], kv[i]->value.p, kv[i]->value.n);
	}
	n = put_level(&data[1], e, n, 0, kv, how);
	while (n > 1)
		n = put_level(&data[1], e, n, ++height, kv, how);
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%sd/%d", dir, how->merged ? "p.1/" : "", i);
		if (simdisk_put(disk, path, data[i].p ? (void *)data[i].p : "", data[i].n) < 0)
			abort();
		free(data[i].p);
	}
	put_manifest(disk, dir, &e[0], height, how);
	free(kv);
	free(e);
}
