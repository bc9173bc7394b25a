/* SPDX-License-Identifier: Apache-2.0 */
/* The index that Hugging Face loaders read (doc/format.md, section 5).
 *
 * The parser reads other people's indexes as well as ours, so unknown members are skipped and
 * odd metadata is tolerated. The map is different: its values become paths below the step, so
 * each of them is checked before the caller sees any. */
#include "index.h"

#include <inttypes.h>
#include <string.h>

#include "err.h"
#include "json.h"
#include "valid.h"

/* The state of one parse. The JSON reader walks the bytes once, and only names are copied. Entries
 * grow in a buffer on the heap, because their number is unknown until the map ends; they move to
 * the arena when the whole map was accepted. */
struct reader {
	struct shf_json json;
	struct shf_arena *arena;        /* borrowed */
	struct shf_buf entries;         /* of struct shf_index_entry */
	const char *where;
	struct sheaf_error *err;
	uint64_t total_size;
	bool has_metadata, has_map, leaves;
};

static int index_no_memory(struct reader *r)
{
	return shf_fail(r->err, SHEAF_ENOMEM, "%s: out of memory for the index", r->where);
}

/* Fails at the token that was just returned. If the JSON reader itself refused the bytes (kind is
 * SHF_JSON_ERROR), its sentence is used, as it says what is wrong with the text. The JSON reader
 * stops with SHF_JSON_ERROR too when memory runs out, which must not be reported as a damaged
 * file. */
static int index_fail(struct reader *r, enum shf_json_kind kind, const char *why)
{
	if (kind != SHF_JSON_ERROR)
		return shf_fail(r->err, SHEAF_EFORMAT, "%s: %s at byte %zu", r->where, why,
				r->json.at);
	if (r->json.scratch.oom)
		return index_no_memory(r);
	return shf_fail(r->err, SHEAF_EFORMAT, "%s: %s", r->where, r->json.why);
}

/* Returns whether the text of the last token is `want`. */
static bool index_text_is(const struct reader *r, const char *want)
{
	size_t n;
	const char *text = shf_json_text(&r->json, &n);

	return n == strlen(want) && !memcmp(text, want, n);
}

static int skip(struct reader *r, enum shf_json_kind first)
{
	return shf_json_skip(&r->json, first) ? 0 : index_fail(r, SHF_JSON_ERROR, "");
}

/* Reads "metadata" and keeps total_size, if it is a whole number. Some writers store a float or a
 * string; no reader needs the value, so such an index stays readable and total_size stays
 * UINT64_MAX. */
static int index_read_metadata(struct reader *r)
{
	enum shf_json_kind kind;
	bool is_total;
	int rc;

	if (r->has_metadata)
		return index_fail(r, SHF_JSON_KEY, "metadata twice");
	r->has_metadata = true;
	kind = shf_json_next(&r->json);
	if (kind != SHF_JSON_OBJECT)
		return skip(r, kind);
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_KEY) {
		is_total = index_text_is(r, "total_size");
		kind = shf_json_next(&r->json);
		if (is_total)
			shf_json_u64(&r->json, &r->total_size);
		rc = skip(r, kind);
		if (rc < 0)
			return rc;
	}
	return kind == SHF_JSON_OBJECT_END ? 0 : index_fail(r, kind, "");
}

/* Reads one member of weight_map, whose key was just returned. The checks come before the copies,
 * so that no name is stored that could leave the directory: a plain name has no slash and is not
 * "." or "..". The test for a NUL comes first because shf_plain_is_valid() takes a C string and
 * would see only the part before the NUL. */
static int index_read_entry(struct reader *r)
{
	struct shf_index_entry e, *last;
	enum shf_json_kind kind;
	size_t n;
	const char *text = shf_json_text(&r->json, &n);

	e.name = shf_name_escape(r->arena, text, n);
	if (!e.name)
		return index_no_memory(r);
	kind = shf_json_next(&r->json);
	if (kind != SHF_JSON_STRING)
		return index_fail(r, kind, "value in weight_map that is not a string");
	text = shf_json_text(&r->json, &n);
	r->leaves = memchr(text, 0, n) || !shf_plain_is_valid(text);
	if (r->leaves)
		return index_fail(r, kind,
		                  "file in weight_map that is not a plain file name");
	/* Neighbouring tensors mostly are in the same file, whose name is stored once. */
	last = r->entries.len ? (struct shf_index_entry *)(void *)
	       (r->entries.data + r->entries.len - sizeof(*last)) : NULL;
	e.file = last && !strcmp(last->file, text) ? last->file :
		 shf_arena_strdup(r->arena, text, n);
	if (e.file)
		shf_buf_add(&r->entries, &e, sizeof(e));
	return e.file && !r->entries.oom ? 0 : index_no_memory(r);
}

/* Reads weight_map. The JSON reader does not refuse duplicate keys, and a second map would silently
 * add to the first, so that is checked here. */
static int read_map(struct reader *r)
{
	enum shf_json_kind kind;
	int rc;

	if (r->has_map)
		return index_fail(r, SHF_JSON_KEY, "weight_map twice");
	r->has_map = true;
	kind = shf_json_next(&r->json);
	if (kind != SHF_JSON_OBJECT)
		return index_fail(r, kind, "weight_map is not an object");
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_KEY) {
		rc = index_read_entry(r);
		if (rc < 0)
			return rc;
	}
	return kind == SHF_JSON_OBJECT_END ? 0 : index_fail(r, kind, "");
}

/* Reads the whole document: one object, and nothing after it but white space. Members may come in
 * any order, so only at the end is it known whether there was a map. */
static int read_document(struct reader *r)
{
	enum shf_json_kind kind = shf_json_next(&r->json);
	int rc;

	if (kind != SHF_JSON_OBJECT)
		return index_fail(r, kind, "the index is not an object");
	while ((kind = shf_json_next(&r->json)) == SHF_JSON_KEY) {
		if (index_text_is(r, "metadata"))
			rc = index_read_metadata(r);
		else if (index_text_is(r, "weight_map"))
			rc = read_map(r);
		else
			rc = skip(r, shf_json_next(&r->json));
		if (rc < 0)
			return rc;
	}
	if (kind != SHF_JSON_OBJECT_END)
		return index_fail(r, kind, "");
	kind = shf_json_next(&r->json);
	if (kind != SHF_JSON_END)
		return index_fail(r, kind, "");
	return r->has_map ? 0 : shf_fail(r->err, SHEAF_EFORMAT, "%s: the index has no weight_map",
					 r->where);
}

/* Refuses a map in which a name occurs twice. Sorting pointers to the names takes n log n, where
 * comparing all pairs in a hostile index would take n^2. The pointers are a copy, so `entries` stay
 * in the order of the index. */
static int index_check_unique(struct reader *r, const struct shf_index_entry *entries, size_t n)
{
	const char **names = shf_alloc(n, sizeof(*names)), *twice;
	int rc = 0;

	if (!names)
		return index_no_memory(r);
	for (size_t i = 0; i < n; i++)
		names[i] = entries[i].name;
	twice = shf_names_twice(names, n);
	if (twice)
		rc = shf_fail(r->err, SHEAF_EFORMAT, "%s: tensor \"%.*s\" twice in weight_map",
			      r->where, shf_name_show(twice), twice);
	shf_free(names);
	return rc;
}

/* After a failure only ix->leaves is written. Names that were copied to the arena stay there until
 * the caller releases it, also after an error. */
int shf_index_parse(struct shf_index *ix, struct shf_arena *arena, const uint8_t *bytes, size_t n,
		    const char *where, struct sheaf_error *err)
{
	struct reader r = { .arena = arena, .where = where, .err = err, .total_size = UINT64_MAX };
	struct shf_index_entry *entries;
	size_t entries_n;
	int rc;

	shf_json_init(&r.json, bytes, n);
	rc = read_document(&r);
	if (rc < 0)
		goto out;
	entries_n = r.entries.len / sizeof(*entries);
	entries = shf_arena_alloc(arena, entries_n, sizeof(*entries));
	if (!entries) {
		rc = index_no_memory(&r);
		goto out;
	}
	if (entries_n)
		memcpy(entries, r.entries.data, r.entries.len);
	rc = index_check_unique(&r, entries, entries_n);
	if (rc == 0)
		*ix = (struct shf_index){ entries, entries_n, r.total_size, false };
out:
	if (rc < 0)
		ix->leaves = r.leaves;
	shf_json_release(&r.json);
	shf_buf_release(&r.entries);
	return rc;
}

/* Writes the map with two spaces of indent, as Hugging Face's own writers do. The bytes are a
 * function of the arguments alone: the same state must give the same index, whatever ranks
 * saved it. */
int shf_index_write(struct shf_buf *out, const struct shf_index_entry *entries, size_t n,
		    uint64_t total_size)
{
	shf_buf_adds(out, "{\n  \"metadata\": {");
	if (total_size != UINT64_MAX)
		shf_buf_addf(out, "\n    \"total_size\": %" PRIu64 "\n  ", total_size);
	shf_buf_adds(out, "},\n  \"weight_map\": {");
	for (size_t i = 0; i < n; i++) {
		shf_buf_adds(out, i ? ",\n    " : "\n    ");
		shf_json_put(out, entries[i].name, strlen(entries[i].name));
		shf_buf_adds(out, ": ");
		shf_json_put(out, entries[i].file, strlen(entries[i].file));
	}
	shf_buf_adds(out, n ? "\n  }\n}\n" : "}\n}\n");
	return out->oom ? SHEAF_ENOMEM : 0;
}

static void describe_wrong(struct shf_buf *out, struct shf_index_wrong w, const char *one,
                           const char *many)
{
	if (w.n == 1)
		shf_buf_addf(out, "tensor %.*s %s", shf_name_show(w.name), w.name, one);
	else if (w.n)
		shf_buf_addf(out, "%zu tensors, such as %.*s, %s", w.n, shf_name_show(w.name),
		             w.name, many);
}

void shf_index_describe(struct shf_buf *out, const char *where, struct shf_index_wrong moved,
                        struct shf_index_wrong unlisted)
{
	shf_buf_addf(out, "%s: ", where);
	describe_wrong(out, moved, "is in another file than it says",
	               "are in other files than it says");
	shf_buf_adds(out, moved.n && unlisted.n ? "; " : "");
	describe_wrong(out, unlisted, "is not in it", "are not in it");
}
