/* SPDX-License-Identifier: Apache-2.0 */
/* Files that torch.save wrote before torch 1.6, and still writes on demand: a row of pickles (a
 * magic number, the version of the protocol, facts about the machine, the values, a list of keys),
 * and then, in the order of that list, each storage as a count of items and their bytes.
 *
 * The count is in items of the storage's type, which only the pickle of the values says, so
 * places are known when all of that was read. They have no checksums. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "foreign.h"
#include "torch_place.h"
#include "torch_walk.h"
#include "valid.h"

/* pickle.dumps(0x1950a86a20f9469cfc6c) without its head. The head is the protocol and, from
 * protocol 4 on, the length of what follows. */
static const uint8_t magic[] = { 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50,
	0x19, '.' };
#define MAGIC_MAX (2 + 9 + sizeof(magic))

struct legacy_storage {
	const struct shf_pk *key;       /* a STR of the list of keys */
	uint64_t at, bytes;             /* in the file */
	uint32_t item;                  /* bytes of an item; 0: no value refers to it */
};
struct legacy {
	struct shf_region region;
	uint32_t file;                  /* its number */
	struct shf_buf bytes;           /* owned; the pickles */
	struct shf_pickle values, keys;
	struct legacy_storage *a;       /* in keys.arena, in order of key */
	size_t n;
	uint64_t data;                  /* where the storages begin */
	bool cut;                       /* a pickle is longer than what was read */
};

static int legacy_bad(const struct legacy *l, const char *why, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EFORMAT, "%s: legacy torch.save file: %s", l->region.where,
	                why);
}

/* Returns the length of the pickled magic number at the beginning of n bytes, or 0 if they do not
 * begin with it. */
static size_t magic_bytes(const uint8_t *head, size_t n)
{
	size_t at = n > 2 && head[1] >= 4 && head[2] == 0x95 ? 11 : 2;

	if (n < at + sizeof(magic) || head[0] != 0x80 || head[1] < 2 || head[1] > 5 ||
	    (at == 11 && shf_get64(head + 3) != sizeof(magic)))
		return 0;
	return memcmp(head + at, magic, sizeof(magic)) ? 0 : at + sizeof(magic);
}

int shf_torch_is_legacy(const struct shf_region *r, const char **why, struct sheaf_error *err)
{
	uint8_t head[MAGIC_MAX];
	uint64_t n = r->bytes < MAGIC_MAX ? r->bytes : MAGIC_MAX;
	int rc = n ? shf_region_read(r, head, n, 0, err) : 0;

	*why = "the pickled magic number of torch.save, at the beginning of the file";
	return rc < 0 ? rc : magic_bytes(head, (size_t)n) > 0;
}

/* Reads the pickle at byte *at of l->bytes, and moves *at past it. */
static int next_pickle(struct legacy *l, struct shf_pickle *p, size_t *at,
                       struct sheaf_error *err)
{
	int rc = shf_pickle_read(p, l->bytes.data + *at, l->bytes.len - *at, l->region.where, err);

	*at += rc == 0 ? p->bytes : 0;
	l->cut = p->cut;
	return rc;
}

/* Reads version and facts, which must be those that this reader knows. */
static int read_facts(struct legacy *l, size_t *at, struct sheaf_error *err)
{
	struct shf_pickle p = { 0 };
	const struct shf_pk *little;
	int64_t version;
	int rc = next_pickle(l, &p, at, err);

	if (rc == 0 && (!shf_pk_int(p.root, &version) || version != 1001))
		rc = legacy_bad(l, "its version is not 1001", err);
	shf_pickle_release(&p);
	if (rc < 0)
		return rc;
	rc = next_pickle(l, &p, at, err);
	little = rc == 0 ? shf_pk_get(p.root, "little_endian") : NULL;
	if (rc == 0 && (!little || little->kind != SHF_PK_BOOL || !little->u.i))
		rc = legacy_bad(l, "it does not say that it is little-endian", err);
	shf_pickle_release(&p);
	return rc;
}

static int legacy_key_order(const void *a, const void *b)
{
	const struct shf_pk *x = ((const struct legacy_storage *)a)->key;
	const struct shf_pk *y = ((const struct legacy_storage *)b)->key;
	int c = memcmp(x->u.s, y->u.s, x->n < y->n ? x->n : y->n);

	return c ? c : (x->n > y->n) - (x->n < y->n);
}

static struct legacy_storage *storage_find(struct legacy *l, const struct shf_pk *key)
{
	struct legacy_storage want = { .key = key };

	return l->n ? bsearch(&want, l->a, l->n, sizeof(want), legacy_key_order) : NULL;
}

/* Reads the list of keys. Its order is kept in `at` until storages_place() replaces it. */
static int read_keys(struct legacy *l, struct sheaf_error *err)
{
	const struct shf_pk *keys = l->keys.root;

	if (keys->kind != SHF_PK_LIST)
		return legacy_bad(l, "it has no list of storages", err);
	l->a = shf_arena_alloc(&l->keys.arena, keys->n + (size_t)1, sizeof(*l->a));
	if (!l->a)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its storages",
				l->region.where);
	for (l->n = 0; l->n < keys->n; l->n++) {
		l->a[l->n] = (struct legacy_storage){ .key = keys->u.a[l->n], .at = l->n };
		if (l->a[l->n].key->kind != SHF_PK_STR)
			return legacy_bad(l, "a key of its storages is not a text", err);
	}
	if (l->n)
		qsort(l->a, l->n, sizeof(*l->a), legacy_key_order);
	for (size_t i = 1; i < l->n; i++)
		if (legacy_key_order(&l->a[i - 1], &l->a[i]) == 0)
			return legacy_bad(l, "it lists a storage twice", err);
	return 0;
}

/* Notes the item size of each storage that the pickle of the values refers to, also from objects
 * that are not read. */
static int see_storages(struct legacy *l, struct sheaf_error *err)
{
	const struct shf_pk *const *ids = (const void *)l->values.persids.data, *key;

	for (size_t i = 0; i < l->values.persids.len / sizeof(*ids); i++) {
		struct legacy_storage *s;
		uint32_t item;

		if (shf_pk_text_is(shf_pk_at(ids[i]->u.of, 0), "module"))
			continue;       /* a class of a model, with its source code */
		if (!shf_torch_storage(ids[i], &key, &item))
			return legacy_bad(l, "it has a storage of unknown structure", err);
		s = storage_find(l, key);
		if (!s)
			return legacy_bad(l, "a storage is not in the list of storages", err);
		if (s->item && s->item != item)
			return legacy_bad(l, "a storage is of two types", err);
		s->item = item;
	}
	return 0;
}

static int legacy_place_order(const void *a, const void *b)
{
	const struct legacy_storage *x = a, *y = b;

	return (x->at > y->at) - (x->at < y->at);
}

/* Finds the place of each storage, in the order of the list. One that no value refers to cannot be
 * skipped, because the size of its items is unknown. */
static int storages_place(struct legacy *l, struct sheaf_error *err)
{
	uint64_t at = l->data;

	if (l->n)
		qsort(l->a, l->n, sizeof(*l->a), legacy_place_order);
	for (size_t i = 0; i < l->n; i++) {
		struct legacy_storage *s = &l->a[i];
		uint8_t count[8];
		uint64_t n;
		int rc;

		if (!s->item)
			return legacy_bad(l, "its list has a storage that no value refers to", err);
		rc = shf_region_read(&l->region, count, 8, at, err);
		if (rc < 0)
			return rc;
		n = shf_get64(count);
		at += 8;
		if (n > (l->region.bytes - at) / s->item)
			return legacy_bad(l, "a storage is longer than the file", err);
		s->at = at;
		s->bytes = n * s->item;
		at += s->bytes;
	}
	if (l->n)
		qsort(l->a, l->n, sizeof(*l->a), legacy_key_order);
	return 0;
}

static int place_in_legacy(void *arg, struct shf_foreign *f, const struct shf_torch_tensor *t,
                           const char *name, struct shf_foreign_piece *piece,
                           struct sheaf_error *err)
{
	struct legacy *l = arg;
	const struct legacy_storage *s = storage_find(l, t->key);
	int64_t *stride = shf_foreign_numbers(f, (size_t)t->ndim + 1);
	int rc;

	if (!stride)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
				f->path);
	if (!always(s && s->item))
		return shf_fail(err, SHEAF_EBUG, "%s: a storage was not seen", f->path);
	rc = shf_torch_place(t, s->bytes, l->region.where, name, &piece->at, stride, err);
	piece->at += s->at;
	piece->file = l->file;
	piece->stride = stride;
	return rc;
}

/* Reads the pickles. Nothing says how long they are: the storages follow them in the same file. So
 * the first part of the file is read, and four times as much if a pickle is not complete there. */
static int read_pickles(struct legacy *l, struct sheaf_error *err)
{
	uint64_t n = UINT64_C(1) << 20;
	uint64_t most = l->region.bytes < SHF_PICKLE_MAX ? l->region.bytes : SHF_PICKLE_MAX;
	int rc;

	for (;; n *= 4) {
		size_t at;

		n = n < most ? n : most;
		shf_pickle_release(&l->values);
		shf_pickle_release(&l->keys);
		shf_buf_reset(&l->bytes);
		if (!shf_buf_room(&l->bytes, (size_t)n))
			return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its pickle",
			                l->region.where);
		rc = shf_region_read(&l->region, l->bytes.data, n, 0, err);
		at = rc == 0 ? magic_bytes(l->bytes.data, (size_t)n) : 0;
		l->cut = false;
		if (rc == 0)
			rc = read_facts(l, &at, err);
		if (rc == 0)
			rc = next_pickle(l, &l->values, &at, err);
		if (rc == 0)
			rc = next_pickle(l, &l->keys, &at, err);
		l->data = at;
		if (rc != SHEAF_EFORMAT || !l->cut || n == most)
			return rc;
	}
}

int shf_torch_legacy_add(struct shf_foreign *f, uint32_t file, const struct shf_torch_show *show,
                         struct sheaf_error *err)
{
	struct legacy l = { .file = file };
	int rc = shf_foreign_region(f, file, &l.region, err);

	if (rc < 0)
		return rc;
	rc = read_pickles(&l, err);
	if (rc == 0)
		rc = read_keys(&l, err);
	if (rc == 0)
		rc = see_storages(&l, err);
	if (rc == 0)
		rc = storages_place(&l, err);
	if (rc == 0)
		rc = shf_torch_walk(f, &l.values, l.region.where, place_in_legacy, &l, show,
		                    err);
	shf_pickle_release(&l.values);
	shf_pickle_release(&l.keys);
	shf_buf_release(&l.bytes);
	shf_foreign_region_end(f, file);
	return rc;
}
