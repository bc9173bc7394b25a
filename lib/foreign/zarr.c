/* SPDX-License-Identifier: Apache-2.0 */
/* Each chunk of an array is the value of a key, or one of the chunks of a shard that is. Chunks at
 * the border of an array are stored whole, with items that are not part of it. Chunks that are not
 * stored have the fill value. */
#include "zarr.h"
#include <inttypes.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "valid.h"
#include "zarr_meta.h"

#define META_MAX (UINT64_C(1) << 20)
#define SHARD_CHUNKS_MAX (UINT64_C(1) << 22)
#define CRC_BYTES 4
#define ROOT_NAME "array"       /* of an array that is the whole store */
#define MISSING UINT64_MAX      /* in the index of a shard: a chunk that is not stored */

struct zarr_adding {            /* an array that is being added */
	struct shf_zarr_store *s;
	struct sheaf_error *err;
	struct shf_zarr_array z;
	const char *shown;              /* its name, for sentences */
	const int64_t *stride;          /* of a chunk, in bytes */
	uint64_t chunk_bytes;           /* of the items of a chunk, or of one in a shard */
	uint64_t stored, grid;          /* chunks stored, and chunks of the full grid */
	int ndim;                       /* with that of a pair */
};

static int zarr_no_memory(const struct shf_zarr_store *s, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", s->path);
}

static int array_bad(const struct zarr_adding *a, const char *why)
{
	return shf_fail(a->err, SHEAF_EFORMAT, "%s: array %.*s: %s", a->s->path,
	                shf_name_show(a->shown), a->shown, why);
}

static int chunk_bad(const struct zarr_adding *a, const struct shf_kv *kv, uint64_t want)
{
	return shf_fail(a->err, SHEAF_EFORMAT, "%s: %.*s has %" PRIu64 " bytes, but a chunk of its "
	                "array has %" PRIu64, a->s->path, shf_name_show(kv->key), kv->key,
	                kv->bytes, want);
}

int shf_kv_read(struct shf_foreign *f, const struct shf_kv *kv, uint64_t most, struct shf_buf *out,
                struct sheaf_error *err)
{
	struct shf_region r;
	int rc;

	if (kv->bytes > most)
		return shf_fail(err, SHEAF_EFORMAT, "%s: %.*s has %" PRIu64 " bytes, at most %"
		                PRIu64 " are read", f->path, shf_name_show(kv->key), kv->key,
		                kv->bytes, most);
	if (kv->bytes && !shf_buf_room(out, (size_t)kv->bytes))
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
		                f->path);
	if (kv->here || !kv->bytes) {
		if (kv->bytes)
			memcpy(out->data, kv->here, (size_t)kv->bytes);
		return 0;
	}
	rc = shf_foreign_region(f, kv->file, &r, err);
	if (rc < 0)
		return rc;
	rc = shf_region_read(&r, out->data, kv->bytes, kv->at, err);
	shf_foreign_region_end(f, kv->file);
	return rc;
}

/* ---- chunks ---- */

/* Reads a number without leading zeros. */
static bool key_number(const char **p, int64_t *v)
{
	const char *from = *p;

	*v = 0;
	for (; **p >= '0' && **p <= '9'; ++*p) {
		if (*v > (INT64_MAX - 9) / 10)
			return false;
		*v = *v * 10 + (**p - '0');
	}
	return *p > from && (*from != '0' || *p == from + 1);
}

/* Reads the place of a chunk in the grid from its key. Returns false if it is the key of none. */
static bool key_to_place(const struct shf_zarr_array *z, const char *key, int64_t *at)
{
	if (z->key_prefix && *key++ != z->key_prefix)
		return false;
	if (!z->ndim)
		return strcmp(key, z->key_prefix ? "" : "0") == 0;
	for (int d = 0; d < z->ndim; d++) {
		if ((d || z->key_prefix) && *key++ != z->separator)
			return false;
		if (!key_number(&key, &at[d]))
			return false;
	}
	return *key == '\0';
}

/* Multiplies. Returns false if the product is beyond 60 bits. */
static bool grow(uint64_t *n, uint64_t by)
{
	return shf_mul64(n, *n, by) && *n < UINT64_C(1) << 60;
}

/* Computes the strides of the items of a chunk of this shape, and its size. */
static int set_strides(struct zarr_adding *a, const int64_t *shape)
{
	int64_t *stride = shf_foreign_numbers(a->s->f, (size_t)a->ndim);
	uint64_t item = shf_dtype(a->z.dtype)->bits / 8u, n = item;

	if (!stride)
		return zarr_no_memory(a->s, a->err);
	if (a->z.pair) {
		stride[a->z.ndim] = (int64_t)item;
		n *= 2;
	}
	for (int i = a->z.ndim - 1; i >= 0; i--) {
		int d = a->z.coding.order[i];

		stride[d] = (int64_t)n;
		if (!grow(&n, (uint64_t)shape[d]))
			return array_bad(a, "has chunks of a size beyond 60 bits");
	}
	a->stride = stride;
	a->chunk_bytes = n;
	return 0;
}

/* Adds a chunk as a piece. kv: its bytes. start: its first item; shape: of the whole chunk. */
static int add_chunk(struct zarr_adding *a, const struct shf_kv *kv, const int64_t *start,
                     const int64_t *shape)
{
	struct shf_foreign *f = a->s->f;
	const struct shf_zarr_coding *c = &a->z.coding;
	int64_t *own = shf_foreign_numbers(f, 2 * (size_t)a->ndim), *count;
	struct shf_foreign_piece p = { .start = own, .stride = a->stride,
		.file = kv->file, .at = kv->at };
	struct shf_packed packed = { .here = kv->here, .at = kv->at, .bytes = kv->bytes,
		.decoded = a->chunk_bytes + (c->crc_inside ? CRC_BYTES : 0), .codec = c->codec,
		.sum_after = c->crc_outside, .sum_inside = c->crc_inside };
	struct shf_packed *kept = NULL;

	if (!own)
		return zarr_no_memory(a->s, a->err);
	p.count = count = own + a->ndim;
	for (int d = 0; d < a->ndim; d++) {
		bool is_pair = d == a->z.ndim;

		own[d] = is_pair ? 0 : start[d];
		count[d] = a->z.shape[d] - own[d];
		if (!is_pair && count[d] > shape[d])
			count[d] = shape[d];
	}
	if (packed.sum_after && packed.bytes < CRC_BYTES)
		return chunk_bad(a, kv, a->chunk_bytes + CRC_BYTES);
	packed.bytes -= packed.sum_after ? CRC_BYTES : 0;
	if (packed.codec == SHF_CODEC_NONE && packed.bytes != packed.decoded)
		return chunk_bad(a, kv, packed.decoded + (packed.sum_after ? CRC_BYTES : 0));
	if (packed.codec != SHF_CODEC_NONE || packed.here || packed.sum_after) {
		kept = shf_arena_alloc(&f->arena, 1, sizeof(*kept));
		if (!kept)
			return zarr_no_memory(a->s, a->err);
		*kept = packed;
		p.at = 0;
	}
	p.packed = kept;
	a->stored++;
	shf_buf_add(&f->pieces, &p, sizeof(p));
	return f->pieces.oom ? zarr_no_memory(a->s, a->err) : 0;
}

/* Adds the chunks of a shard that have an entry in its index. start: its first item. */
static int add_shard(struct zarr_adding *a, const struct shf_kv *kv, const int64_t *start)
{
	const struct shf_zarr_array *z = &a->z;
	struct shf_buf index = SHF_BUF_INIT;
	struct shf_kv part = *kv;
	uint64_t n = 1, bytes;
	int64_t at[SHF_ZARR_DIMS_MAX] = { 0 };
	int rc, d;

	for (d = 0; d < z->ndim; d++)
		if (!grow(&n, (uint64_t)(z->chunk[d] / z->inner[d])) || n > SHARD_CHUNKS_MAX)
			return array_bad(a, "has shards of more than 4194304 chunks");
	bytes = 16 * n + (z->index_crc ? CRC_BYTES : 0);
	if (kv->bytes < bytes)
		return chunk_bad(a, kv, bytes);
	part.bytes = bytes;
	if (!z->index_first && kv->here)
		part.here += kv->bytes - bytes;
	if (!z->index_first)
		part.at += kv->bytes - bytes;
	rc = shf_kv_read(a->s->f, &part, bytes, &index, a->err);
	if (rc == 0 && z->index_crc &&
	    shf_crc32_more(&a->s->crc, 0, index.data, (size_t)(16 * n)) !=
	    shf_get32(index.data + 16 * n))
		rc = shf_fail(a->err, SHEAF_EFORMAT, "%s: %.*s is a shard whose index has another "
		              "CRC-32C: it is damaged", a->s->path, shf_name_show(kv->key),
		              kv->key);
	for (uint64_t i = 0; i < n && rc == 0; i++) {
		uint64_t off = shf_get64(index.data + 16 * i);
		uint64_t len = shf_get64(index.data + 16 * i + 8);
		int64_t first[SHF_ZARR_DIMS_MAX];
		bool stored = off != MISSING || len != MISSING;

		for (d = 0; d < z->ndim; d++) {
			first[d] = start[d] + at[d] * z->inner[d];
			stored &= first[d] < z->shape[d];
		}
		if (stored && (off > kv->bytes || len > kv->bytes - off)) {
			rc = array_bad(a, "has a shard with a chunk beyond its end");
		} else if (stored) {
			part = (struct shf_kv){ kv->key, kv->here ? kv->here + off : NULL,
				kv->at + off, len, kv->file };
			rc = add_chunk(a, &part, first, z->inner);
		}
		for (d = z->ndim - 1; d >= 0 && ++at[d] == z->chunk[d] / z->inner[d]; d--)
			at[d] = 0;
	}
	shf_buf_release(&index);
	return rc;
}

/* ---- arrays ---- */

/* Computes how many chunks there would be. */
static void set_grid(struct zarr_adding *a)
{
	const int64_t *chunk = a->z.sharded ? a->z.inner : a->z.chunk;

	a->grid = 1;
	for (int d = 0; d < a->z.ndim; d++)
		if (!shf_mul64(&a->grid, a->grid,
		               (uint64_t)((a->z.shape[d] - 1) / chunk[d] + 1)))
			a->grid = UINT64_MAX;
}

/* Adds the chunks of an array, whose keys are those from lo to hi. skip: bytes of a key before that
 * of the chunk. */
static int add_chunks(struct zarr_adding *a, size_t lo, size_t hi, size_t skip)
{
	const struct shf_zarr_array *z = &a->z;
	int rc = set_strides(a, z->sharded ? z->inner : z->chunk);

	for (int d = 0; d < z->ndim; d++)
		if (z->shape[d] == 0)
			return rc;
	set_grid(a);
	for (size_t i = lo; i < hi && rc == 0; i++) {
		const struct shf_kv *kv = &a->s->kv[i];
		int64_t at[SHF_ZARR_DIMS_MAX] = { 0 };
		bool inside = key_to_place(z, kv->key + skip, at);

		/* A key beyond the grid is left of a larger array, and TensorStore ignores it. */
		for (int d = 0; d < z->ndim && inside; d++) {
			inside = at[d] <= (z->shape[d] - 1) / z->chunk[d];
			at[d] *= inside ? z->chunk[d] : 0;
		}
		if (inside)
			rc = z->sharded ? add_shard(a, kv, at) : add_chunk(a, kv, at, z->chunk);
	}
	return rc;
}

/* Adds an array as a tensor. */
static int add_array(struct zarr_adding *a, const char *name, size_t lo, size_t hi, size_t skip)
{
	struct shf_foreign *f = a->s->f;
	struct shf_foreign_tensor x = { .dtype = a->z.dtype, .dims = a->z.shape };
	size_t before = f->pieces.len / sizeof(struct shf_foreign_piece);
	uint8_t *fill;
	int rc;

	a->ndim = x.ndim = a->z.ndim + a->z.pair;
	rc = add_chunks(a, lo, hi, skip);
	if (rc < 0)
		return rc;
	x.n = f->pieces.len / sizeof(struct shf_foreign_piece) - before;
	if (a->stored < a->grid) {
		if (a->s->all_stored)
			return shf_fail(a->err, SHEAF_EFORMAT, "%s: array %.*s has %" PRIu64 " of "
			                "%" PRIu64 " chunks; the others are missing", a->s->path,
			                shf_name_show(a->shown), a->shown, a->stored, a->grid);
		if (!a->z.fill_known)
			return array_bad(a, "has chunks that are not stored, and a fill value for "
			                    "them that is not read");
		fill = shf_arena_alloc(&f->arena, 1, sizeof(a->z.fill));
		if (!fill)
			return zarr_no_memory(a->s, a->err);
		memcpy(fill, a->z.fill, sizeof(a->z.fill));
		x.fill = fill;
	}
	return shf_foreign_add_tensor(f, &x, name, strlen(name), a->err);
}

/* Returns the version if it is the key of metadata, and sets *n to the bytes before its last part,
 * or 0. */
static int is_metadata(const char *key, size_t *n)
{
	const char *slash = strrchr(key, '/'), *last = slash ? slash + 1 : key;

	*n = (size_t)(last - key);
	return strcmp(last, ".zarray") == 0 ? 2 : strcmp(last, "zarr.json") == 0 ? 3 : 0;
}

/* Returns the name that the array has as a tensor, or NULL. n: bytes of its key, with the slash. */
static char *array_name(struct shf_zarr_store *s, const char *key, size_t n)
{
	struct shf_buf b = SHF_BUF_INIT;
	char *name = NULL;

	shf_buf_adds(&b, s->prefix);
	if (n)
		shf_buf_add(&b, key, n - 1);
	else
		shf_buf_adds(&b, ROOT_NAME);
	if (!b.oom)
		name = shf_arena_strdup(s->arena, (const char *)b.data, b.len);
	shf_buf_release(&b);
	return name;
}

/* Adds the array whose metadata is the value of key i. n: bytes of its key, with the slash. */
static int add_metadata(struct shf_zarr_store *s, size_t i, size_t n, int version,
                        struct sheaf_error *err)
{
	struct zarr_adding a = { .s = s, .err = err };
	const char *key = s->kv[i].key, *name = array_name(s, key, n), *why;
	struct shf_buf text = SHF_BUF_INIT;
	size_t lo = i, hi = i + 1;
	bool oom = false;
	int rc = shf_kv_read(s->f, &s->kv[i], META_MAX, &text, err);

	a.shown = name ? shf_name_escape(s->arena, name, strlen(name)) : NULL;
	if (rc == 0 && !a.shown)
		rc = zarr_no_memory(s, err);
	if (rc == 0) {
		why = shf_zarr_parse(&a.z, s->arena, version, text.data, text.len, &oom);
		if (oom)
			rc = zarr_no_memory(s, err);
		else if (why)
			rc = shf_fail(err, SHEAF_EFORMAT, "%s: array %.*s: its metadata %s",
			              s->path, shf_name_show(a.shown), a.shown, why);
	}
	shf_buf_release(&text);
	if (rc < 0 || a.z.is_group)
		return rc;
	shf_buf_add(&s->names, &name, sizeof(name));
	if (s->names.oom)
		return zarr_no_memory(s, err);
	s->f->unread_n += a.z.unread != NULL;
	if (a.z.unread)
		return shf_foreign_note(s->f, err, name, strlen(name), "%s, which sheaf does not "
		                        "read", a.z.unread);
	while (lo > 0 && strncmp(s->kv[lo - 1].key, key, n) == 0)
		lo--;
	while (hi < s->n && strncmp(s->kv[hi].key, key, n) == 0)
		hi++;
	return add_array(&a, name, lo, hi, n);
}

int shf_zarr_add(struct shf_zarr_store *s, struct sheaf_error *err)
{
	int rc = 0;

	shf_crc32c_init(&s->crc);
	for (size_t i = 0; i < s->n && rc == 0; i++) {
		size_t n;
		int version = is_metadata(s->kv[i].key, &n);

		if (version)
			rc = add_metadata(s, i, n, version, err);
	}
	return rc;
}

/* ---- checksums ---- */

#define VERIFY_CHUNK (UINT64_C(1) << 20)

/* Sums bytes of a part, decoded or as they are stored. p: what is read. */
static int sum_part(const struct shf_crc32 *crc, const struct shf_packed *p, uint64_t n,
                    const struct shf_region *r, uint8_t *buf, uint32_t *sum, uint32_t *want,
                    struct sheaf_error *err)
{
	struct shf_unpacker u;
	uint8_t last[CRC_BYTES] = { 0 };
	int rc = 0;

	shf_unpacker_init(&u, p, p->codec == SHF_CODEC_BLOSC ? SHF_UNPACK_ROOM : VERIFY_CHUNK);
	*sum = 0;
	for (uint64_t at = 0; at < n && rc == 0; at += VERIFY_CHUNK) {
		uint64_t some = n - at < VERIFY_CHUNK ? n - at : VERIFY_CHUNK;

		rc = shf_unpacker_read(&u, r, buf, some, at, err);
		if (rc == 0)
			*sum = shf_crc32_more(crc, *sum, buf, (size_t)some);
	}
	if (rc == 0 && p->decoded - n == CRC_BYTES)
		rc = shf_unpacker_read(&u, r, last, CRC_BYTES, n, err);
	*want = shf_get32(last);
	shf_unpacker_release(&u);
	return rc;
}

static int chunk_damaged(const struct shf_packed *p, const struct shf_region *r, uint32_t sum,
                         uint32_t want, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ECORRUPT, "%s: the chunk at byte %" PRIu64 " has CRC-32C %08x, "
	                "want %08x", r->where, p->at, sum, want);
}

/* Checks one part. Returns ECORRUPT or EFORMAT if it is damaged. */
static int check_part(const struct shf_crc32 *crc, const struct shf_packed *p,
                      const struct shf_region *r, uint8_t *buf, struct sheaf_error *err)
{
	struct shf_packed stored = *p;
	uint32_t sum = 0, want = 0;
	int rc = 0;

	if (p->sum_after) {
		stored.codec = SHF_CODEC_NONE;
		stored.bytes = stored.decoded = p->bytes + CRC_BYTES;
		rc = sum_part(crc, &stored, p->bytes, r, buf, &sum, &want, err);
		if (rc == 0 && sum != want)
			return chunk_damaged(p, r, sum, want, err);
	}
	if (rc < 0 || p->codec == SHF_CODEC_NONE)
		return rc;
	rc = sum_part(crc, p, p->decoded - (p->sum_inside ? CRC_BYTES : 0), r, buf, &sum, &want,
	              err);
	if (rc == 0 && p->sum_inside && sum != want)
		return chunk_damaged(p, r, sum, want, err);
	return rc;
}

int shf_zarr_verify(struct shf_foreign *f, struct shf_foreign_findings *to,
                    struct sheaf_error *err)
{
	const struct shf_foreign_piece *p = (const void *)f->pieces.data;
	size_t n = f->pieces.len / sizeof(*p);
	uint8_t *buf = shf_alloc(VERIFY_CHUNK, 1);
	struct shf_crc32 crc;
	int rc = buf ? 0 : shf_fail(err, SHEAF_ENOMEM, "%s: no memory to verify it", f->path);

	shf_crc32c_init(&crc);
	for (size_t i = 0; i < n && rc == 0; i++) {
		const struct shf_packed *packed = p[i].packed;
		struct sheaf_error e = { 0 };
		struct shf_region r;

		to->unproved |= !packed || (!packed->sum_after && !packed->sum_inside);
		if (!packed)
			continue;
		rc = shf_foreign_region(f, p[i].file, &r, err);
		if (rc < 0)
			break;
		rc = check_part(&crc, packed, &r, buf, &e);
		shf_foreign_region_end(f, p[i].file);
		to->bytes += packed->bytes;
		if (rc == SHEAF_ECORRUPT || rc == SHEAF_EFORMAT) {
			to->found(to->arg, rc == SHEAF_ECORRUPT,
			          shf_foreign_file(f, p[i].file)->name,
			          packed->here ? -1 : (int64_t)packed->at, &e);
			rc = 0;
		} else if (rc < 0) {
			*err = e;
		}
	}
	shf_free(buf);
	return rc;
}
