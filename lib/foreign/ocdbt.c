/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest, and every node, is a header, a body that may be compressed by zstd, and a CRC-32C. A
 * node refers to its children, and a leaf to values, by the number of a data file, an offset and a
 * length. Keys in a node are relative to a prefix that its parent defines.
 *
 * manifest.ocdbt has the configuration and the versions. In a database with numbered manifests it
 * has the configuration only, and each version is in a file manifest.<16 hexadecimal digits> that
 * is never written again, for stores that cannot replace a file atomically. The highest number is
 * the newest version.
 *
 * Source: tensorstore/kvstore/ocdbt/index.rst, format/ and io/manifest_cache.cc of TensorStore
 * 0.1.86, and databases that it wrote.
 *
 * What bounds memory: a node has at most NODE_MAX bytes, a tree at most HEIGHT_MAX levels, no node
 * is read more often than the files have room for it, and keys ascend. */
#include "ocdbt.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "crc32.h"
#include "err.h"
#include "valid.h"

#define MANIFEST_MAGIC 0x0cdb3a2au      /* big-endian, as those of nodes; all else is
                                         * little-endian */
#define NODE_MAGIC 0x0cdb20deu
#define HEAD_BYTES 14                   /* magic, length, and at least one byte each for version
                                         * and compression */
#define NODE_MAX (UINT64_C(32) << 20)   /* TensorStore writes up to 8 MiB */
#define HEIGHT_MAX 16
#define DIGITS 16               /* in the name of a numbered manifest */
#define KEY_MAX 4096
#define PATH_MAX_BYTES 4096
#define ENTRIES_MAX (1u << 20)          /* of a node, as TensorStore has it; and data files */
#define KEYS_ROOM (UINT64_C(64) << 20)  /* bytes of all keys together, with KEY_COST each, plus 16
                                         * for each byte of a node */
#define KEY_COST 64
#define MISSING UINT64_MAX              /* offset and length of a root that has no keys */

struct ocdbt {
	struct shf_foreign *f;
	const char *folder;
	const struct shf_listing *names;        /* of the files in its directory */
	struct shf_arena *arena;
	struct shf_buf *out;
	struct sheaf_error *err;
	struct shf_crc32 crc;           /* tables */
	uint64_t nodes_bytes, keys_bytes;       /* read so far */
};
/* A body that is being decoded. */
struct body {
	struct ocdbt *db;
	struct shf_cur c;
	struct shf_arena arena;         /* of the tables below */
	struct shf_buf bytes;           /* owned */
	const char *where;              /* its file; and where in it, for sentences */
	uint64_t at;
	struct data_file *files;
	uint64_t files_n;
};
struct data_file {
	const char *path;               /* without the transitive path */
	size_t n, base_n;
};
/* Where a node is, and what holds for the keys in it. */
struct node_ref {
	uint32_t file;
	uint64_t at, bytes;
	const char *base;               /* transitive path of its data files */
	size_t base_n;
	const char *prefix;             /* of all its keys */
	size_t prefix_n;
	unsigned height;
};

static int ocdbt_bad(const struct body *b, const char *why)
{
	return shf_fail(b->db->err, SHEAF_EFORMAT, "%s: OCDBT, byte %" PRIu64 ": %s", b->where,
	                b->at, why);
}

static int ocdbt_no_memory(const struct ocdbt *db)
{
	return shf_fail(db->err, SHEAF_ENOMEM, "%s: no memory for its keys", db->f->path);
}

static uint64_t varint(struct shf_cur *c)
{
	uint64_t v = 0;

	for (int shift = 0; shift < 64; shift += 7) {
		uint8_t byte = shf_cur_u8(c);

		if (shift == 63 && byte > 1)
			break;
		v |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return v;
	}
	c->bad = true;
	return 0;
}

static size_t left_in(const struct shf_cur *c)
{
	return (size_t)(c->end - c->p);
}

/* ---- headers, compression and checksums ---- */

/* Checks the header and the checksum of what is in b->bytes, and lets b->c be its body, which is
 * decoded if it is compressed. */
static int body_open(struct body *b, uint32_t magic)
{
	struct shf_buf plain = SHF_BUF_INIT;
	const uint8_t *p = b->bytes.data;
	size_t n = b->bytes.len;
	uint64_t version, compression;
	const char *why;
	uint32_t sum, want;

	if (n < HEAD_BYTES + 4 ||
	    ((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]) != magic)
		return ocdbt_bad(b, "does not begin with the magic number of a manifest or node");
	if (shf_get64(p + 4) != n)
		return ocdbt_bad(b, "has another length than its header says");
	sum = shf_crc32_more(&b->db->crc, 0, p, n - 4);
	want = shf_get32(p + n - 4);
	if (sum != want)
		return shf_fail(b->db->err, SHEAF_EFORMAT, "%s: OCDBT, byte %" PRIu64 ": its "
		                "CRC-32C is %08x, want %08x: it is damaged", b->where, b->at, sum,
		                want);
	b->c = (struct shf_cur){ p + 12, p + n - 4, false };
	version = varint(&b->c);
	compression = varint(&b->c);
	if (b->c.bad || version)
		return ocdbt_bad(b, "is of an unknown version");
	if (compression > 1)
		return ocdbt_bad(b, "has an unknown compression");
	if (!compression)
		return 0;
	if (!shf_codec_is_built(SHF_CODEC_ZSTD))
		return shf_fail(b->db->err, SHEAF_EFORMAT, "%s: has zstd data, and this library "
		                "was built without what decodes them", b->where);
	if (!shf_unpack_all(SHF_CODEC_ZSTD, b->c.p, left_in(&b->c), NODE_MAX, &plain, &why)) {
		bool oom = plain.oom;

		shf_buf_release(&plain);
		return oom ? ocdbt_no_memory(b->db) : ocdbt_bad(b, why);
	}
	shf_buf_release(&b->bytes);
	b->bytes = plain;
	b->c = (struct shf_cur){ plain.data, plain.data + plain.len, false };
	return 0;
}

static void body_release(struct body *b)
{
	shf_buf_release(&b->bytes);
	shf_arena_release(&b->arena);
}

/* Reads n bytes of a file as a body. */
static int body_read(struct body *b, uint32_t file, uint64_t at, uint64_t n, uint32_t magic)
{
	struct ocdbt *db = b->db;
	struct shf_region r;
	uint64_t room = 0;
	int rc;

	b->where = shf_foreign_file(db->f, file)->where;
	b->at = at;
	if (n > NODE_MAX)
		return ocdbt_bad(b, "is larger than 32 MiB");
	db->nodes_bytes += n;
	for (uint32_t i = 0; i < shf_foreign_files(db->f); i++)
		room += shf_foreign_file(db->f, i)->bytes;
	if (db->nodes_bytes > room)
		return ocdbt_bad(b, "is reached in several ways, and not by a tree");
	rc = shf_foreign_region(db->f, file, &r, db->err);
	if (rc < 0)
		return rc;
	if (n && !shf_buf_room(&b->bytes, (size_t)n))
		rc = ocdbt_no_memory(db);
	else if (n)
		rc = shf_region_read(&r, b->bytes.data, n, at, db->err);
	shf_foreign_region_end(db->f, file);
	return rc < 0 ? rc : body_open(b, magic);
}

/* ---- data files ---- */

/* Reads the table of the data files that a body refers to. */
static int ocdbt_files(struct body *b)
{
	uint64_t n = varint(&b->c), *prefix, *suffix, total = 0;

	if (b->c.bad || n > left_in(&b->c) || n > ENTRIES_MAX)
		return ocdbt_bad(b, "its table of data files does not end");
	b->files = shf_arena_alloc(&b->arena, (size_t)n + 1, sizeof(*b->files));
	prefix = shf_arena_alloc(&b->arena, (size_t)n + 1, sizeof(*prefix));
	suffix = shf_arena_alloc(&b->arena, (size_t)n + 1, sizeof(*suffix));
	if (!b->files || !prefix || !suffix)
		return ocdbt_no_memory(b->db);
	b->files_n = n;
	for (uint64_t i = 1; i < n; i++)
		prefix[i] = varint(&b->c);
	for (uint64_t i = 0; i < n; i++)
		suffix[i] = varint(&b->c);
	for (uint64_t i = 0; i < n; i++) {
		struct data_file *x = &b->files[i];

		x->base_n = (size_t)varint(&b->c);
		if (b->c.bad || prefix[i] > (i ? x[-1].n : 0) || suffix[i] > PATH_MAX_BYTES ||
		    prefix[i] + suffix[i] > PATH_MAX_BYTES || x->base_n > prefix[i] + suffix[i])
			return ocdbt_bad(b, "its table of data files has a path that is too long");
		x->n = (size_t)(prefix[i] + suffix[i]);
		total += x->n;
	}
	if (total > NODE_MAX)
		return ocdbt_bad(b, "its table of data files has a path that is too long");
	for (uint64_t i = 0; i < n; i++) {
		struct data_file *x = &b->files[i];
		char *path = shf_arena_alloc(&b->arena, x->n + 1, 1);
		const uint8_t *p = shf_cur_bytes(&b->c, (size_t)suffix[i]);

		if (!path)
			return ocdbt_no_memory(b->db);
		if (!p)
			return ocdbt_bad(b, "its table of data files does not end");
		if (prefix[i])
			memcpy(path, x[-1].path, (size_t)prefix[i]);
		memcpy(path + prefix[i], p, (size_t)suffix[i]);
		x->path = path;
	}
	return 0;
}

/* Adds data file i to the checkpoint. base: the transitive path. */
static int use_file(struct body *b, const char *base, size_t base_n, uint64_t i, uint32_t *file)
{
	struct ocdbt *db = b->db;
	struct shf_buf dir = SHF_BUF_INIT, path = SHF_BUF_INIT;
	const char *whole, *slash;
	size_t n;
	int rc;

	if (i >= b->files_n)
		return ocdbt_bad(b, "refers to a data file that its table does not have");
	shf_buf_add(&path, base, base_n);
	shf_buf_add(&path, b->files[i].path, b->files[i].n);
	shf_buf_u8(&path, 0);
	whole = (const char *)path.data;
	slash = path.oom ? NULL : memrchr(whole, '/', path.len - 1);
	if (db->folder)
		shf_buf_adds(&dir, db->folder);
	if (slash) {
		shf_buf_adds(&dir, dir.len ? "/" : "");
		shf_buf_add(&dir, whole, (size_t)(slash - whole));
		whole = slash + 1;
	}
	shf_buf_u8(&dir, 0);
	n = path.oom ? 0 : (size_t)((const char *)path.data + path.len - 1 - whole);
	if (path.oom || dir.oom)
		rc = ocdbt_no_memory(db);
	else
		rc = shf_foreign_add_file_in(db->f, dir.len > 1 ? (const char *)dir.data : NULL,
		                             whole, n, file, db->err);
	shf_buf_release(&dir);
	shf_buf_release(&path);
	return rc;
}

/* ---- nodes ---- */

struct entry {
	const char *key;                /* whole, in the arena of the body */
	size_t n;
	uint64_t subtree;               /* bytes of it that all keys of the child begin with */
};

/* Reads the columns of the keys. */
static int ocdbt_keys(struct body *b, const struct node_ref *node, struct entry **out, uint64_t *n)
{
	uint64_t *prefix, *suffix, prefix_n = node->prefix_n;
	struct entry *e;

	*n = varint(&b->c);
	if (b->c.bad || !*n || *n > left_in(&b->c) || *n > ENTRIES_MAX)
		return ocdbt_bad(b, "has no keys, or more than it has bytes");
	e = *out = shf_arena_alloc(&b->arena, (size_t)*n, sizeof(*e));
	prefix = shf_arena_alloc(&b->arena, (size_t)*n, sizeof(*prefix));
	suffix = shf_arena_alloc(&b->arena, (size_t)*n, sizeof(*suffix));
	if (!e || !prefix || !suffix)
		return ocdbt_no_memory(b->db);
	for (uint64_t i = 1; i < *n; i++)
		prefix[i] = varint(&b->c);
	for (uint64_t i = 0; i < *n; i++)
		suffix[i] = varint(&b->c);
	for (uint64_t i = 0; i < *n && node->height; i++)
		e[i].subtree = varint(&b->c);
	for (uint64_t i = 0; i < *n; i++) {
		const uint8_t *p = b->c.bad ? NULL : shf_cur_bytes(&b->c, (size_t)suffix[i]);
		char *key;

		if (!p || prefix[i] > (i ? e[i - 1].n - prefix_n : 0) ||
		    prefix_n + prefix[i] + suffix[i] > KEY_MAX ||
		    e[i].subtree > prefix[i] + suffix[i])
			return ocdbt_bad(b, "has a key that is longer than the node, or than 4096 "
			                    "bytes");
		e[i].n = (size_t)(prefix_n + prefix[i] + suffix[i]);
		b->db->keys_bytes += e[i].n + KEY_COST;
		if (b->db->keys_bytes > KEYS_ROOM + 16 * b->db->nodes_bytes)
			return ocdbt_bad(b, "its keys are longer than is read");
		key = shf_arena_alloc(&b->arena, e[i].n + 1, 1);
		if (!key)
			return ocdbt_no_memory(b->db);
		memcpy(key, i ? e[i - 1].key : node->prefix, (size_t)(prefix_n + prefix[i]));
		memcpy(key + prefix_n + prefix[i], p, (size_t)suffix[i]);
		e[i].key = key;
	}
	return 0;
}

/* Appends a value. Its key must come after the last one. */
static int add_value(struct body *b, const struct entry *e, struct shf_kv *kv)
{
	struct ocdbt *db = b->db;
	const struct shf_kv *last = (const void *)db->out->data;

	kv->key = shf_arena_strdup(db->arena, e->key, e->n);
	if (!kv->key)
		return ocdbt_no_memory(db);
	for (size_t i = 0; i < e->n; i++)
		if ((uint8_t)e->key[i] < 0x20 || e->key[i] == 0x7f)
			return ocdbt_bad(b, "has a key with a control character");
	if (db->out->len && strcmp(last[db->out->len / sizeof(*last) - 1].key, kv->key) >= 0)
		return ocdbt_bad(b, "its keys do not ascend");
	shf_buf_add(db->out, kv, sizeof(*kv));
	return db->out->oom ? ocdbt_no_memory(db) : 0;
}

/* Reads where the values of the keys of a leaf are. A leaf has them by columns: the lengths of all
 * values, then the kinds, then the files and the offsets of those that are in files, and at its end
 * the bytes of those that are in the leaf itself. */
static int ocdbt_values(struct body *b, const struct node_ref *node, const struct entry *e,
                       uint64_t n)
{
	struct shf_kv *kv = shf_arena_alloc(&b->arena, (size_t)n, sizeof(*kv));
	const uint8_t *kinds;
	int rc = 0;

	if (!kv)
		return ocdbt_no_memory(b->db);
	for (uint64_t i = 0; i < n; i++)
		kv[i].bytes = varint(&b->c);
	kinds = shf_cur_bytes(&b->c, (size_t)n);
	for (uint64_t i = 0; i < n && rc == 0; i++) {
		if (!kinds || kinds[i] > 1)
			rc = ocdbt_bad(b, "has a value of unknown kind");
		else if (kinds[i])
			rc = use_file(b, node->base, node->base_n, varint(&b->c), &kv[i].file);
	}
	for (uint64_t i = 0; i < n && rc == 0; i++)
		kv[i].at = kinds[i] ? varint(&b->c) : 0;
	for (uint64_t i = 0; i < n && rc == 0; i++) {
		uint64_t bytes = kinds[i] ? shf_foreign_file(b->db->f, kv[i].file)->bytes : 0;
		const uint8_t *p;

		if (kinds[i] && (kv[i].at > bytes || kv[i].bytes > bytes - kv[i].at))
			return shf_fail(b->db->err, SHEAF_EFORMAT, "%s: has bytes %" PRIu64 " to %"
			                PRIu64 " as the value of a key, beyond the end of its %"
			                PRIu64 " bytes",
			                shf_foreign_file(b->db->f, kv[i].file)->where, kv[i].at,
			                kv[i].at + kv[i].bytes, bytes);
		if (!kinds[i]) {
			p = kv[i].bytes <= left_in(&b->c)
			  ? shf_cur_bytes(&b->c, (size_t)kv[i].bytes) : NULL;
			kv[i].file = node->file;
			kv[i].here = !p ? NULL : (const uint8_t *)shf_arena_strdup(&b->db->f->arena,
			                               (const char *)p, (size_t)kv[i].bytes);
			if (!p)
				return ocdbt_bad(b, "ends inside its values");
			if (!kv[i].here)
				return ocdbt_no_memory(b->db);
		}
		rc = add_value(b, &e[i], &kv[i]);
	}
	if (rc == 0 && (b->c.bad || left_in(&b->c)))
		rc = ocdbt_bad(b, "does not end where its values do");
	return rc;
}

/* Reads the columns of the children. The texts of *out are in the arena of the body. */
static int ocdbt_children(struct body *b, const struct node_ref *node, const struct entry *e,
                         uint64_t n, struct node_ref **out)
{
	struct node_ref *kids = *out = shf_arena_alloc(&b->arena, (size_t)n, sizeof(*kids));
	int rc = 0;

	if (!kids)
		return ocdbt_no_memory(b->db);
	for (uint64_t i = 0; i < n && rc == 0; i++) {
		uint64_t id = varint(&b->c);
		char *base;

		rc = use_file(b, node->base, node->base_n, id, &kids[i].file);
		if (rc < 0)
			break;
		kids[i].base_n = node->base_n + b->files[id].base_n;
		base = shf_arena_alloc(&b->arena, kids[i].base_n + 1, 1);
		if (!base)
			return ocdbt_no_memory(b->db);
		memcpy(base, node->base, node->base_n);
		memcpy(base + node->base_n, b->files[id].path, b->files[id].base_n);
		kids[i].base = base;
		kids[i].prefix = e[i].key;
		kids[i].prefix_n = node->prefix_n + (size_t)e[i].subtree;
		kids[i].height = node->height - 1;
	}
	for (uint64_t i = 0; i < n && rc == 0; i++)
		kids[i].at = varint(&b->c);
	for (uint64_t i = 0; i < n && rc == 0; i++)
		kids[i].bytes = varint(&b->c);
	/* Counts of keys, of bytes of nodes, and of bytes of values. */
	for (uint64_t i = 0; i < 3 * n && rc == 0; i++)
		varint(&b->c);
	if (rc == 0 && (b->c.bad || left_in(&b->c)))
		rc = ocdbt_bad(b, "does not end where its children do");
	return rc;
}

/* Reads a node and all that is below it. */
static int ocdbt_node(struct ocdbt *db, const struct node_ref *node)
{
	struct body b = { .db = db };
	struct node_ref *kids = NULL;
	struct entry *e = NULL;
	uint64_t n = 0;
	int rc = body_read(&b, node->file, node->at, node->bytes, NODE_MAGIC);

	if (rc == 0 && shf_cur_u8(&b.c) != node->height)
		rc = ocdbt_bad(&b, "is at another level of the tree than its parent says");
	if (rc == 0)
		rc = ocdbt_files(&b);
	if (rc == 0)
		rc = ocdbt_keys(&b, node, &e, &n);
	if (rc == 0)
		rc = node->height ? ocdbt_children(&b, node, e, n, &kids)
		                  : ocdbt_values(&b, node, e, n);
	shf_buf_release(&b.bytes);
	for (uint64_t i = 0; i < n && rc == 0 && kids; i++)
		rc = ocdbt_node(db, &kids[i]);
	body_release(&b);
	return rc;
}

/* ---- the manifest ---- */

struct ocdbt_config {           /* the parts of the configuration that are used */
	uint8_t uuid[16];
	bool numbered;                  /* the versions are in numbered manifests */
};

/* Reads the configuration, which comes first in the body of a manifest. */
static int ocdbt_config(struct body *b, struct ocdbt_config *config)
{
	const uint8_t *uuid = shf_cur_bytes(&b->c, sizeof(config->uuid));
	uint64_t kind = shf_cur_u8(&b->c), method;

	varint(&b->c);                          /* max_inline_value_bytes */
	varint(&b->c);                          /* max_decoded_node_bytes */
	shf_cur_u8(&b->c);                      /* version_tree_arity_log2 */
	method = varint(&b->c);
	if (method == 1)
		shf_cur_u32(&b->c);             /* level */
	if (b->c.bad || method > 1 || kind > 1)
		return ocdbt_bad(b, "its configuration is not known");
	memcpy(config->uuid, uuid, sizeof(config->uuid));
	config->numbered = kind == 1;
	return 0;
}

/* Reads the header and the configuration of a manifest. */
static int manifest_open(struct body *b, const char *name, struct ocdbt_config *config)
{
	struct ocdbt *db = b->db;
	uint32_t file;
	int rc = shf_foreign_add_file_in(db->f, db->folder, name, strlen(name), &file, db->err);

	if (rc == 0)
		rc = body_read(b, file, 0, shf_foreign_file(db->f, file)->bytes, MANIFEST_MAGIC);
	return rc < 0 ? rc : ocdbt_config(b, config);
}

/* Finds the newest version: *root gets the root of its tree, and *number the number of the version.
 * root->bytes MISSING: it has no keys. The texts of *root are in the arena of the body. */
static int ocdbt_root(struct body *b, struct node_ref *root, uint64_t *number)
{
	uint64_t n = varint(&b->c), generation = 0, file = 0;
	int rc = 0;

	if (b->c.bad || !n || n > left_in(&b->c))
		return ocdbt_bad(b, "has no versions");
	for (uint64_t i = 0; i < n && rc == 0; i++) {
		uint64_t next = varint(&b->c);

		if (next <= generation)
			rc = ocdbt_bad(b, "its versions do not ascend");
		generation = next;
	}
	*number = generation;
	for (uint64_t i = 0; i < n; i++)
		root->height = shf_cur_u8(&b->c);
	for (uint64_t i = 0; i < n; i++)
		file = varint(&b->c);
	for (uint64_t i = 0; i < n; i++)
		root->at = varint(&b->c);
	for (uint64_t i = 0; i < n; i++)
		root->bytes = varint(&b->c);
	if (rc < 0 || root->bytes == MISSING)
		return rc;
	if (b->c.bad)
		return ocdbt_bad(b, "ends inside its versions");
	if (root->height >= HEIGHT_MAX)
		return ocdbt_bad(b, "its tree has more levels than are read");
	rc = use_file(b, "", 0, file, &root->file);
	if (rc < 0)
		return rc;
	root->base = b->files[file].path;
	root->base_n = b->files[file].base_n;
	root->prefix = "";
	return 0;
}

/* Returns the name of the numbered manifest with the highest number, or NULL if there is none. All
 * names have the same number of digits, so strcmp orders them by number. */
static const char *newest_manifest(const struct shf_listing *names)
{
	static const char head[] = "manifest.", digits[] = "0123456789abcdef";
	const char *newest = NULL;

	for (size_t i = 0; i < shf_listing_n(names); i++) {
		const char *name = shf_listing_at(names, i);

		if (strncmp(name, head, sizeof(head) - 1) == 0 &&
		    strlen(name) == sizeof(head) - 1 + DIGITS &&
		    strspn(name + sizeof(head) - 1, digits) == DIGITS &&
		    (!newest || strcmp(name, newest) > 0))
			newest = name;
	}
	return newest;
}

/* Closes manifest.ocdbt, whose configuration is `of`, and opens the newest numbered manifest.
 * *number gets the number in its name. */
static int numbered_open(struct body *b, const struct ocdbt_config *of, uint64_t *number)
{
	const char *name = newest_manifest(b->db->names);
	struct ocdbt_config own;
	int rc;

	if (left_in(&b->c))
		return ocdbt_bad(b, "goes on after its configuration");
	if (!name)
		return ocdbt_bad(b, "its versions are in numbered manifests (manifest.<16 "
		                    "digits>), and there are none: nothing was written, or they "
		                    "are lost");
	body_release(b);
	*b = (struct body){ .db = b->db };
	rc = manifest_open(b, name, &own);
	if (rc < 0)
		return rc;
	*number = strtoull(name + strlen(name) - DIGITS, NULL, 16);
	if (own.numbered)
		return ocdbt_bad(b, "is named as a manifest with versions, and has none");
	if (memcmp(own.uuid, of->uuid, sizeof(own.uuid)))
		return ocdbt_bad(b, "is of another database than manifest.ocdbt");
	return 0;
}

int shf_ocdbt_read(struct shf_foreign *f, const char *folder, const struct shf_listing *names,
                   struct shf_arena *arena, struct shf_buf *out, struct sheaf_error *err)
{
	struct ocdbt db = { .f = f, .folder = folder, .names = names, .arena = arena, .out = out,
		.err = err };
	struct body b = { .db = &db };
	struct node_ref root = { .bytes = MISSING };
	struct ocdbt_config config;
	uint64_t named = 0, number = 0;
	int rc;

	shf_crc32c_init(&db.crc);
	rc = manifest_open(&b, SHF_OCDBT_MANIFEST, &config);
	if (rc == 0 && config.numbered)
		rc = numbered_open(&b, &config, &named);
	if (rc == 0)
		rc = ocdbt_files(&b);
	if (rc == 0)
		rc = ocdbt_root(&b, &root, &number);
	if (rc == 0 && config.numbered && number != named)
		rc = ocdbt_bad(&b, "has another version than the one in its name; was it renamed?");
	if (rc == 0 && root.bytes != MISSING)
		rc = ocdbt_node(&db, &root);
	body_release(&b);
	return rc;
}
