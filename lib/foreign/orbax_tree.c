/* SPDX-License-Identifier: Apache-2.0 */
#include "orbax_tree.h"
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "foreign_st.h"
#include "json.h"
#include "valid.h"

#define NAME "_METADATA"
#define TREE_MAX (UINT64_C(256) << 20)

struct tree_reading {
	struct shf_orbax_tree *t;
	struct shf_foreign *f;
	const char *prefix;
	struct shf_arena *arena;
	struct shf_json j;
	struct shf_buf name;            /* owned; of the leaf: keys joined by dots */
	char type[32];                  /* of its value */
	bool oom;
};

/* Goes to the next key of an object, and compares it with a list of keys, which ends in NULL.
 * Returns its number; the number of keys if it is another one; -1 at the end, or an error. Then the
 * first token of its value is *kind. */
static int next_key(struct tree_reading *r, const char *const *keys, enum shf_json_kind *kind)
{
	size_t n;
	int i = 0;

	*kind = shf_json_next(&r->j);
	if (*kind != SHF_JSON_KEY)
		return -1;
	while (keys[i]) {
		const char *text = shf_json_text(&r->j, &n);

		if (strlen(keys[i]) == n && memcmp(keys[i], text, n) == 0)
			break;
		i++;
	}
	*kind = shf_json_next(&r->j);
	return *kind == SHF_JSON_ERROR ? -1 : i;
}

/* Reads {"key": ..., "key_type": ...}, and appends the key. */
static bool tree_key(struct tree_reading *r)
{
	static const char *const keys[] = { "key", NULL };
	enum shf_json_kind kind;
	int at;

	while ((at = next_key(r, keys, &kind)) >= 0) {
		const char *text;
		size_t n;

		if (at == 0 && kind != SHF_JSON_STRING && kind != SHF_JSON_NUMBER)
			return false;
		if (at == 0) {
			text = shf_json_text(&r->j, &n);
			shf_buf_adds(&r->name, r->name.len > strlen(r->prefix) ? "." : "");
			shf_buf_add(&r->name, text, n);
		} else if (!shf_json_skip(&r->j, kind)) {
			return false;
		}
	}
	return kind == SHF_JSON_OBJECT_END;
}

/* Reads {"value_type": ..., ...}. */
static bool tree_type(struct tree_reading *r)
{
	static const char *const keys[] = { "value_type", NULL };
	enum shf_json_kind kind;
	int at;

	while ((at = next_key(r, keys, &kind)) >= 0) {
		if (at == 0 && kind == SHF_JSON_STRING) {
			size_t n;
			const char *text = shf_json_text(&r->j, &n);

			n = n < sizeof(r->type) - 1 ? n : sizeof(r->type) - 1;
			memcpy(r->type, text, n);
			r->type[n] = '\0';
		} else if (!shf_json_skip(&r->j, kind)) {
			return false;
		}
	}
	return kind == SHF_JSON_OBJECT_END;
}

/* Reads the description of a leaf, whose opening bracket was just read. */
static bool tree_leaf(struct tree_reading *r)
{
	static const char *const keys[] = { "key_metadata", "value_metadata", NULL };
	static const char *const arrays[] = { "jax.Array", "np.ndarray", "scalar" };
	enum shf_json_kind kind;
	char *own;
	int at;

	shf_buf_reset(&r->name);
	shf_buf_adds(&r->name, r->prefix);
	r->type[0] = '\0';
	while ((at = next_key(r, keys, &kind)) >= 0) {
		bool good = at != 0 || kind == SHF_JSON_ARRAY;

		if (at == 0 && good) {
			while (good && (kind = shf_json_next(&r->j)) == SHF_JSON_OBJECT)
				good = tree_key(r);
			good = good && kind == SHF_JSON_ARRAY_END;
		} else if (at == 1 && kind == SHF_JSON_OBJECT) {
			good = tree_type(r);
		} else {
			good = good && shf_json_skip(&r->j, kind);
		}
		if (!good)
			return false;
	}
	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
		if (strcmp(r->type, arrays[i]))
			continue;
		own = shf_arena_strdup(r->arena, (const char *)r->name.data, r->name.len);
		r->oom |= r->name.oom || !own;
		if (own)
			shf_buf_add(&r->t->leaves, &own, sizeof(own));
	}
	return kind == SHF_JSON_OBJECT_END;
}

/* Reads the whole file. Returns false if it has another form. */
static bool read_tree(struct tree_reading *r)
{
	static const char *const keys[] = { "tree_metadata", "store_array_data_equal_to_fill_value",
	                                    NULL };
	static const char *const none[] = { NULL };
	enum shf_json_kind kind;
	int at;

	if (shf_json_next(&r->j) != SHF_JSON_OBJECT)
		return false;
	while ((at = next_key(r, keys, &kind)) >= 0) {
		if (at == 1)
			r->t->all_stored = kind == SHF_JSON_TRUE;
		if (at != 0) {
			if (!shf_json_skip(&r->j, kind))
				return false;
			continue;
		}
		if (kind != SHF_JSON_OBJECT)
			return false;
		while (next_key(r, none, &kind) >= 0)
			if (kind != SHF_JSON_OBJECT || !tree_leaf(r))
				return false;
		if (kind != SHF_JSON_OBJECT_END)
			return false;
	}
	return kind == SHF_JSON_OBJECT_END && shf_json_next(&r->j) == SHF_JSON_END;
}

int shf_orbax_tree_read(struct shf_orbax_tree *t, struct shf_foreign *f, const char *folder,
                        const char *prefix, struct shf_arena *arena, struct sheaf_error *err)
{
	struct tree_reading r = { .t = t, .f = f, .prefix = prefix, .arena = arena };
	struct shf_buf bytes = SHF_BUF_INIT;
	int rc = shf_foreign_slurp(f, folder, NAME, TREE_MAX, &bytes, err);

	if (rc < 0)
		return rc;
	shf_json_init(&r.j, bytes.data, bytes.len);
	if (!read_tree(&r))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s%s%s/_METADATA: has an unknown structure",
		              f->path, folder ? "/" : "", folder ? folder : "");
	if (r.oom || t->leaves.oom || r.j.scratch.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", f->path);
	shf_json_release(&r.j);
	shf_buf_release(&r.name);
	shf_buf_release(&bytes);
	return rc;
}

static int leaf_order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int shf_orbax_tree_check(const struct shf_orbax_tree *t, const struct shf_foreign *f,
                         struct shf_buf *arrays, struct sheaf_error *err)
{
	char *const *leaf = (char *const *)(void *)t->leaves.data;
	size_t n = arrays->len / sizeof(*leaf);

	if (n)
		qsort(arrays->data, n, sizeof(*leaf), leaf_order);
	for (size_t i = 0; i < t->leaves.len / sizeof(*leaf); i++)
		if (!n || !bsearch(&leaf[i], arrays->data, n, sizeof(*leaf), leaf_order))
			return shf_fail(err, SHEAF_EFORMAT, "%s: array %.*s is missing, but "
			                "_METADATA lists it", f->path, shf_name_show(leaf[i]),
			                leaf[i]);
	return 0;
}

void shf_orbax_tree_release(struct shf_orbax_tree *t)
{
	shf_buf_release(&t->leaves);
}
