/* SPDX-License-Identifier: Apache-2.0 */
#include "json_walk.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"

struct level {                  /* an object or an array that is open */
	size_t path_n;                  /* length of its path */
	uint64_t item;                  /* of an array: number of the next item */
	bool is_array;
};
struct walk {
	struct shf_buf path;            /* without a NUL */
	struct level levels[SHF_JSON_DEPTH + 1];
	int depth;                      /* of levels that are open */
	int arrays;                     /* how many of them are arrays */
	int odd_at;                     /* depth of the outermost key in the path that has a dot
	                                 * or a NUL; 0: none has */
};

/* Makes the path end with a key of the innermost level, or with the number of its next item. key
 * NULL: the level is an array. */
static void walk_step(struct walk *w, const char *key, size_t n)
{
	size_t at = w->levels[w->depth].path_n;
	char number[24];

	if (w->odd_at >= w->depth)
		w->odd_at = 0;
	w->path.len = at < w->path.len ? at : w->path.len;
	if (!key) {
		n = (size_t)snprintf(number, sizeof(number), "%" PRIu64,
		                     w->levels[w->depth].item++);
		key = number;
	} else if (!w->odd_at && (memchr(key, '.', n) || memchr(key, 0, n))) {
		w->odd_at = w->depth;
	}
	if (w->depth > 1)
		shf_buf_u8(&w->path, '.');
	shf_buf_add(&w->path, key, n);
}

static void walk_open(struct walk *w, bool is_array)
{
	w->arrays += is_array;
	w->levels[++w->depth] = (struct level){ .path_n = w->path.len, .is_array = is_array };
}

static void walk_close(struct walk *w)
{
	w->arrays -= w->levels[w->depth].is_array;
	if (w->odd_at >= w->depth)
		w->odd_at = 0;
	w->depth--;
}

/* Takes one token. Returns the code of a callback that fails. */
static int walk_token(struct walk *w, struct shf_json *j, enum shf_json_kind kind,
                      int (*leaf)(void *, const struct shf_json_leaf *, struct sheaf_error *),
                      void *arg, struct sheaf_error *err)
{
	struct shf_json_leaf x = { .kind = kind, .text = "" };

	if (kind == SHF_JSON_KEY) {
		x.text = shf_json_text(j, &x.text_n);
		walk_step(w, x.text, x.text_n);
		return 0;
	}
	if (kind == SHF_JSON_OBJECT_END || kind == SHF_JSON_ARRAY_END) {
		walk_close(w);
		return 0;
	}
	if (w->depth && w->levels[w->depth].is_array)
		walk_step(w, NULL, 0);
	if (kind == SHF_JSON_OBJECT || kind == SHF_JSON_ARRAY) {
		walk_open(w, kind == SHF_JSON_ARRAY);
		return 0;
	}
	if (kind == SHF_JSON_STRING || kind == SHF_JSON_NUMBER)
		x.text = shf_json_text(j, &x.text_n);
	shf_buf_u8(&w->path, 0);
	if (w->path.oom)
		return 0;               /* shf_json_walk says so */
	x.path = (const char *)w->path.data;
	x.path_n = --w->path.len;
	x.in_n = w->levels[w->depth].path_n;
	x.in_array = w->arrays > 0;
	x.is_plain = !w->odd_at;
	return leaf(arg, &x, err);
}

int shf_json_walk(const void *bytes, size_t n, const char *name,
                  int (*leaf)(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err),
                  void *arg, struct sheaf_error *err)
{
	struct walk w = { .path = SHF_BUF_INIT };
	enum shf_json_kind kind;
	struct shf_json j;
	int rc = 0;

	shf_json_init(&j, bytes, n);
	kind = shf_json_next(&j);
	if (kind != SHF_JSON_OBJECT && kind != SHF_JSON_ERROR)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: is not a JSON object", name);
	while (rc == 0 && kind != SHF_JSON_END && kind != SHF_JSON_ERROR && !w.path.oom) {
		rc = walk_token(&w, &j, kind, leaf, arg, err);
		kind = shf_json_next(&j);
	}
	if (rc == 0 && (w.path.oom || j.scratch.oom))
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory to read it", name);
	else if (rc == 0 && kind == SHF_JSON_ERROR)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: is not JSON: %s", name, j.why);
	shf_json_release(&j);
	shf_buf_release(&w.path);
	return rc;
}

int shf_json_facts_add(struct shf_json_facts *facts, const struct shf_json_leaf *leaf,
                       struct sheaf_error *err)
{
	struct shf_json_fact f = { .kind = leaf->kind };

	if (!leaf->is_plain)
		return 0;
	f.path = shf_arena_strdup(&facts->arena, leaf->path, leaf->path_n);
	f.text = shf_arena_strdup(&facts->arena, leaf->text, leaf->text_n);
	if (f.path && f.text)
		shf_buf_add(&facts->list, &f, sizeof(f));
	if (!f.path || !f.text || facts->list.oom)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for a value of a JSON file");
	return 0;
}

static int facts_leaf(void *arg, const struct shf_json_leaf *leaf, struct sheaf_error *err)
{
	return shf_json_facts_add(arg, leaf, err);
}

int shf_json_facts_read(struct shf_json_facts *facts, const void *bytes, size_t n, const char *name,
                        struct sheaf_error *err)
{
	return shf_json_walk(bytes, n, name, facts_leaf, facts, err);
}

const struct shf_json_fact *shf_json_fact(const struct shf_json_facts *facts, const char *path)
{
	const struct shf_json_fact *f = (const void *)facts->list.data;

	for (size_t i = facts->list.len / sizeof(*f); i > 0; i--)
		if (strcmp(f[i - 1].path, path) == 0)
			return f[i - 1].kind == SHF_JSON_NULL ? NULL : &f[i - 1];
	return NULL;
}

const char *shf_json_fact_text(const struct shf_json_facts *facts, const char *path)
{
	const struct shf_json_fact *f = shf_json_fact(facts, path);

	return f && f->kind == SHF_JSON_STRING ? f->text : NULL;
}

void shf_json_facts_release(struct shf_json_facts *facts)
{
	shf_buf_release(&facts->list);
	shf_arena_release(&facts->arena);
}
