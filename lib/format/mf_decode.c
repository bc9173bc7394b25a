/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes sheaf.json: first the tail and the sum over everything before it, then whether this
 * version can read the rest (sheaf, needs), then the members, then the rules of mf_check.
 *
 * Each kind of object has a table of fields: a field has a name, a kind of value and a place in the
 * struct. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "crc64.h"
#include "err.h"
#include "json.h"
#include "manifest.h"
#include "mf_check.h"
#include "valid.h"

/* The state of one decoding. Texts are copied to the arena, so the manifest outlives the bytes. */
struct decoder {
	struct shf_json json;
	struct shf_arena *arena;        /* borrowed */
	const char *where;
	struct sheaf_error *err;
};
/* What a value must be, and how it is stored in the struct. */
enum kind {
	K_TEXT,                         /* const char * */
	K_TEXT_OR_NULL,
	K_FIXED,                        /* char[size]: text that fits with its NUL */
	K_U64, K_I64,
	K_HEX,                          /* uint64_t as 16 lower-case hex digits */
	K_OTHER                         /* the function `read` stores the value */
};
/* One member of an object. read is set for K_OTHER only. It gets the record, the struct that the
 * table's offsets refer to. size matters for K_FIXED only and includes the NUL. */
struct field {
	const char *name;
	enum kind kind;
	bool optional;
	size_t off, size;
	/* Called when the first token of the value, `first`, was just returned. */
	int (*read)(struct decoder *d, void *record, enum shf_json_kind first);
};
/* The most fields in one table: read_members() has a flag for each on its stack. */
#define FIELDS_MAX 32

static int mf_no_memory(struct decoder *d)
{
	return shf_fail(d->err, SHEAF_ENOMEM, "%s: out of memory", d->where);
}

/* Fails because the JSON reader stopped: the document is broken, or there is no memory. */
static int mf_json_fail(struct decoder *d)
{
	if (d->json.scratch.oom)
		return mf_no_memory(d);
	return shf_fail(d->err, SHEAF_ECORRUPT, "%s: %s", d->where, d->json.why);
}

/* Fails at a member. If the token was an error, the JSON reader's sentence is used: it says why the
 * text is broken. */
static int fail_at_member(struct decoder *d, enum shf_json_kind kind, const char *member,
                          const char *why)
{
	if (kind == SHF_JSON_ERROR)
		return mf_json_fail(d);
	return shf_fail(d->err, SHEAF_ECORRUPT, "%s: member \"%s\" %s at byte %zu", d->where,
			member,
			why, d->json.at);
}

static bool mf_text_is(const struct decoder *d, const char *want)
{
	size_t n;
	const char *text = shf_json_text(&d->json, &n);

	return n == strlen(want) && !memcmp(text, want, n);
}

/* Copies the string that was just returned to the arena. A NUL inside is legal JSON but is refused:
 * the struct has C strings, so what follows the NUL would be lost unseen, and two different names
 * could become one. */
static int read_text(struct decoder *d, const char *member, const char **out)
{
	size_t n;
	const char *text = shf_json_text(&d->json, &n);

	if (memchr(text, 0, n))
		return fail_at_member(d, SHF_JSON_STRING, member, "holds a NUL");
	*out = shf_arena_strdup(d->arena, text, n);
	return *out ? 0 : mf_no_memory(d);
}

/* Copies a string into an array of the struct. It must leave room for the NUL, hence >=. */
static int read_fixed(struct decoder *d, const struct field *f, char *out)
{
	size_t n;
	const char *text = shf_json_text(&d->json, &n);

	if (n >= f->size || memchr(text, 0, n))
		return fail_at_member(d, SHF_JSON_STRING, f->name, "is too long");
	memcpy(out, text, n);
	out[n] = 0;
	return 0;
}

/* Reads 16 lower-case hex digits as a number, the highest first. Returns false for any other
 * text. */
static bool parse_hex(const char *text, uint64_t *v)
{
	uint64_t x = 0;

	if (!shf_hex_is_valid(text, 16))
		return false;
	for (int i = 0; i < 16; i++)
		x = x << 4 | (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
	*v = x;
	return true;
}

static int read_hex(struct decoder *d, const struct field *f, uint64_t *out)
{
	size_t n;
	const char *text = shf_json_text(&d->json, &n);

	if (n != 16 || !parse_hex(text, out))
		return fail_at_member(d, SHF_JSON_STRING, f->name,
		                      "is not 16 lower-case hex digits");
	return 0;
}

/* Reads the value of one field into the record. `place` is the member at f->off. The casts go
 * through void *; the alignment is right because the offset comes from offsetof() of a member of
 * that very type.
 *
 * A null where it is allowed leaves the member NULL: records are zeroed at the start. */
static int read_value(struct decoder *d, const struct field *f, void *record)
{
	enum shf_json_kind kind = shf_json_next(&d->json);
	char *place = (char *)record + f->off;

	if (kind == SHF_JSON_ERROR)
		return mf_json_fail(d);
	if (f->kind == K_OTHER)
		return f->read(d, record, kind);
	if (f->kind == K_U64 || f->kind == K_I64) {
		bool fits = f->kind == K_U64 ?
			    shf_json_u64(&d->json, (uint64_t *)(void *)place) :
			    shf_json_i64(&d->json, (int64_t *)(void *)place);

		return fits ? 0 : fail_at_member(d, kind, f->name, "is not a whole number in "
		                                 "range");
	}
	if (f->kind == K_TEXT_OR_NULL && kind == SHF_JSON_NULL)
		return 0;
	if (kind != SHF_JSON_STRING)
		return fail_at_member(d, kind, f->name, "is not a string");
	if (f->kind == K_FIXED)
		return read_fixed(d, f, place);
	if (f->kind == K_HEX)
		return read_hex(d, f, (uint64_t *)(void *)place);
	return read_text(d, f->name, (const char **)(void *)place);
}

/* Reads the members of an object that was just opened. Each field may occur once, in any order;
 * unknown members are ignored, so that later versions can add some. A duplicate is damage: two
 * readers might use different ones.
 *
 * Fields are searched for one after another. The largest table has 25, and a manifest has one root;
 * objects in lists have five fields at most. */
static int read_members(struct decoder *d, void *record, const struct field *fields, size_t n)
{
	bool seen[FIELDS_MAX] = { false };
	enum shf_json_kind kind;
	int rc = 0;

	while (rc == 0 && (kind = shf_json_next(&d->json)) != SHF_JSON_OBJECT_END) {
		size_t i = 0;

		if (kind != SHF_JSON_KEY)
			return mf_json_fail(d);
		while (i < n && !mf_text_is(d, fields[i].name))
			i++;
		if (i == n) {
			if (!shf_json_skip(&d->json, shf_json_next(&d->json)))
				rc = mf_json_fail(d);
		} else if (seen[i]) {
			rc = fail_at_member(d, kind, fields[i].name, "is there twice");
		} else {
			seen[i] = true;
			rc = read_value(d, &fields[i], record);
		}
	}
	for (size_t i = 0; i < n && rc == 0; i++)
		if (!seen[i] && !fields[i].optional)
			rc = fail_at_member(d, SHF_JSON_KEY, fields[i].name,
			                    "is missing from the object that ends");
	return rc;
}

/* Describes a list of objects that becomes an array in the arena. */
struct list {
	const char *name;
	size_t size;                    /* of one item */
	const struct field *fields;
	size_t fields_n;
};

/* Reads a list into a buffer and copies it to the arena when its length is known. Items are zeroed
 * by shf_buf_extend(), as read_value() requires. The pointer into the buffer is not used any more
 * when the next item may move the buffer. */
static int read_list(struct decoder *d, const struct list *l, enum shf_json_kind first,
		     void **items, size_t *items_n)
{
	struct shf_buf got = SHF_BUF_INIT;
	enum shf_json_kind kind;
	int rc = 0;

	if (first != SHF_JSON_ARRAY)
		return fail_at_member(d, first, l->name, "is not an array");
	while (rc == 0 && (kind = shf_json_next(&d->json)) != SHF_JSON_ARRAY_END) {
		uint8_t *item = shf_buf_extend(&got, l->size);

		if (!item)
			rc = mf_no_memory(d);
		else if (kind != SHF_JSON_OBJECT)
			rc = fail_at_member(d, kind, l->name, "holds something that is not an "
			                    "object");
		else
			rc = read_members(d, item, l->fields, l->fields_n);
	}
	if (rc == 0) {
		*items = shf_arena_alloc(d->arena, got.len / l->size, l->size);
		*items_n = got.len / l->size;
		if (!*items)
			rc = mf_no_memory(d);
		else if (got.len)
			memcpy(*items, got.data, got.len);
	}
	shf_buf_release(&got);
	return rc;
}

static const struct field file_fields[] = {
	{ "name", K_TEXT, false, offsetof(struct shf_mf_file, name), 0, NULL },
	{ "bytes", K_U64, false, offsetof(struct shf_mf_file, bytes), 0, NULL },
	{ "crc", K_HEX, false, offsetof(struct shf_mf_file, crc), 0, NULL },
};
static const struct field family_fields[] = {
	{ "name", K_TEXT, false, offsetof(struct shf_mf_family, name), 0, NULL },
	{ "dir", K_TEXT, false, offsetof(struct shf_mf_family, dir), 0, NULL },
	{ "files", K_U64, false, offsetof(struct shf_mf_family, files), 0, NULL },
	{ "tensors", K_U64, false, offsetof(struct shf_mf_family, tensors), 0, NULL },
	{ "bytes", K_U64, false, offsetof(struct shf_mf_family, bytes), 0, NULL },
};
static const struct field parent_fields[] = {
	{ "step", K_I64, false, offsetof(struct shf_manifest, parent_step), 0, NULL },
	{ "session", K_FIXED, false, offsetof(struct shf_manifest, parent_session), 33, NULL },
	{ "run", K_FIXED, true, offsetof(struct shf_manifest, parent_run), 33, NULL },
};
static const struct field writer_fields[] = {
	{ "version", K_TEXT, false, offsetof(struct shf_manifest, version), 0, NULL },
	{ "commit", K_TEXT, false, offsetof(struct shf_manifest, commit), 0, NULL },
	{ "compiler", K_TEXT, false, offsetof(struct shf_manifest, compiler), 0, NULL },
};
static const struct field ema_fields[] = {
	{ "name", K_TEXT, false, offsetof(struct shf_mf_ema, name), 0, NULL },
	{ "of", K_TEXT, false, offsetof(struct shf_mf_ema, of), 0, NULL },
	{ "coef", K_FIXED, false, offsetof(struct shf_mf_ema, coef), 32, NULL },
	{ "interval", K_I64, false, offsetof(struct shf_mf_ema, interval), 0, NULL },
	{ "updates", K_I64, false, offsetof(struct shf_mf_ema, updates), 0, NULL },
};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The readers of the members K_OTHER. Each gets the manifest as its record, and the first token of
 * the value. */
static int read_families(struct decoder *d, void *record, enum shf_json_kind first)
{
	static const struct list l = { "families", sizeof(struct shf_mf_family), family_fields,
				       COUNT(family_fields) };
	struct shf_manifest *m = record;
	void *items;
	int rc = read_list(d, &l, first, &items, &m->families_n);

	if (rc == 0)
		m->families = items;
	return rc;
}

static int read_files(struct decoder *d, void *record, enum shf_json_kind first)
{
	static const struct list l = { "files", sizeof(struct shf_mf_file), file_fields,
				       COUNT(file_fields) };
	struct shf_manifest *m = record;
	void *items;
	int rc = read_list(d, &l, first, &items, &m->files_n);

	if (rc == 0)
		m->files = items;
	return rc;
}

static int read_attached(struct decoder *d, void *record, enum shf_json_kind first)
{
	static const struct list l = { "attached", sizeof(struct shf_mf_file), file_fields,
				       COUNT(file_fields) };
	struct shf_manifest *m = record;
	void *items;
	int rc = read_list(d, &l, first, &items, &m->attached_n);

	if (rc == 0)
		m->attached = items;
	return rc;
}

static int read_emas(struct decoder *d, void *record, enum shf_json_kind first)
{
	static const struct list l = { "ema", sizeof(struct shf_mf_ema), ema_fields,
				       COUNT(ema_fields) };
	struct shf_manifest *m = record;
	void *items;
	int rc = read_list(d, &l, first, &items, &m->emas_n);

	if (rc == 0)
		m->emas = items;
	return rc;
}

static int read_sums(struct decoder *d, void *record, enum shf_json_kind first)
{
	struct shf_manifest *m = record;

	if (first != SHF_JSON_OBJECT)
		return fail_at_member(d, first, "sums", "is not an object");
	return read_members(d, &m->sums, file_fields, COUNT(file_fields));
}

/* Reads the parent, which is null for a step that does not go on from another one. */
static int read_parent(struct decoder *d, void *record, enum shf_json_kind first)
{
	struct shf_manifest *m = record;

	if (first == SHF_JSON_NULL)
		return 0;
	if (first != SHF_JSON_OBJECT)
		return fail_at_member(d, first, "parent", "is not an object");
	m->has_parent = true;
	return read_members(d, m, parent_fields, COUNT(parent_fields));
}

static int read_writer(struct decoder *d, void *record, enum shf_json_kind first)
{
	if (first != SHF_JSON_OBJECT)
		return fail_at_member(d, first, "writer", "is not an object");
	return read_members(d, record, writer_fields, COUNT(writer_fields));
}

/* Flags are informative, so unknown flags are ignored. Features that a reader must know are listed
 * in "needs". */
static int read_flags(struct decoder *d, void *record, enum shf_json_kind first)
{
	struct shf_manifest *m = record;
	enum shf_json_kind kind;

	if (first != SHF_JSON_ARRAY)
		return fail_at_member(d, first, "flags", "is not an array");
	while ((kind = shf_json_next(&d->json)) == SHF_JSON_STRING)
		if (mf_text_is(d, "no-dir-fsync"))
			m->no_dir_fsync = true;
	return kind == SHF_JSON_ARRAY_END ? 0 : fail_at_member(d, kind, "flags",
	                                                       "holds something that is not a "
	                                                       "string");
}

/* Reads one tie, whose opening bracket was just returned. It must have exactly three strings: a
 * fourth would have a meaning that this reader does not know. */
static int read_tied_one(struct decoder *d, struct shf_mf_tied *t)
{
	const char **parts[] = { &t->family, &t->name, &t->to };
	enum shf_json_kind kind;

	for (size_t i = 0; i < COUNT(parts); i++) {
		int rc;

		kind = shf_json_next(&d->json);
		if (kind != SHF_JSON_STRING)
			return fail_at_member(d, kind, "tied", "holds something that is not three "
			                      "strings");
		rc = read_text(d, "tied", parts[i]);
		if (rc < 0)
			return rc;
	}
	kind = shf_json_next(&d->json);
	return kind == SHF_JSON_ARRAY_END ? 0 : fail_at_member(d, kind, "tied",
	                                                       "holds something that is not three "
	                                                       "strings");
}

/* Reads the ties, which are arrays, so read_list() cannot read them. The length is computed before
 * the array is allocated; with no ties the array has length 0. */
static int read_tied(struct decoder *d, void *record, enum shf_json_kind first)
{
	struct shf_manifest *m = record;
	struct shf_buf got = SHF_BUF_INIT;
	enum shf_json_kind kind;
	int rc = 0;

	if (first != SHF_JSON_ARRAY)
		return fail_at_member(d, first, "tied", "is not an array");
	while (rc == 0 && (kind = shf_json_next(&d->json)) != SHF_JSON_ARRAY_END) {
		struct shf_mf_tied t;

		rc = kind == SHF_JSON_ARRAY ? read_tied_one(d, &t) :
		     fail_at_member(d, kind, "tied", "holds something that is not an array");
		if (rc == 0)
			shf_buf_add(&got, &t, sizeof(t));
	}
	m->tied_n = got.len / sizeof(*m->tied);
	if (rc == 0) {
		m->tied = shf_arena_alloc(d->arena, m->tied_n, sizeof(*m->tied));
		if (!m->tied || got.oom)
			rc = mf_no_memory(d);
		else if (got.len)
			memcpy(m->tied, got.data, got.len);
	}
	shf_buf_release(&got);
	return rc;
}

/* Reads the notes: an object whose keys are free, so no table of fields describes it. Duplicate
 * keys pass here and are refused by shf_manifest_check(), which sorts them. */
static int read_notes(struct decoder *d, void *record, enum shf_json_kind first)
{
	struct shf_manifest *m = record;
	struct shf_buf got = SHF_BUF_INIT;
	enum shf_json_kind kind;
	int rc = 0;

	if (first != SHF_JSON_OBJECT)
		return fail_at_member(d, first, "notes", "is not an object");
	while (rc == 0 && (kind = shf_json_next(&d->json)) != SHF_JSON_OBJECT_END) {
		struct shf_mf_note note;

		rc = kind == SHF_JSON_KEY ? read_text(d, "notes", &note.key) : mf_json_fail(d);
		if (rc < 0)
			break;
		kind = shf_json_next(&d->json);
		rc = kind == SHF_JSON_STRING ? read_text(d, "notes", &note.value) :
		     fail_at_member(d, kind, "notes", "holds something that is not a string");
		if (rc == 0)
			shf_buf_add(&got, &note, sizeof(note));
	}
	m->notes_n = got.len / sizeof(*m->notes);
	if (rc == 0) {
		m->notes = shf_arena_alloc(d->arena, m->notes_n, sizeof(*m->notes));
		if (!m->notes || got.oom)
			rc = mf_no_memory(d);
		else if (got.len)
			memcpy(m->notes, got.data, got.len);
	}
	shf_buf_release(&got);
	return rc;
}

/* Accepts only an empty list. check_needs() has already refused a list with a string, so whatever
 * is in the list here is damage. */
static int read_needs(struct decoder *d, void *record, enum shf_json_kind first)
{
	enum shf_json_kind kind;

	(void)record;
	if (first != SHF_JSON_ARRAY)
		return fail_at_member(d, first, "needs", "is not an array");
	kind = shf_json_next(&d->json);
	return kind == SHF_JSON_ARRAY_END ? 0 : fail_at_member(d, kind, "needs",
	                                                       "holds something that is not a "
	                                                       "string");
}

/* Checks a constant of this version: with another value, the format would be another one. */
static int read_constant(struct decoder *d, const char *member, uint64_t want)
{
	uint64_t got;

	if (!shf_json_u64(&d->json, &got))
		return fail_at_member(d, SHF_JSON_KEY, member, "is not a whole number");
	if (got != want)
		return shf_fail(d->err, SHEAF_EFORMAT,
				"%s: %s %" PRIu64 ", but this version of sheaf reads %" PRIu64 "; "
				"use a newer sheaf",
				d->where, member, got, want);
	return 0;
}

static int read_version(struct decoder *d, void *record, enum shf_json_kind first)
{
	(void)record;
	(void)first;
	return read_constant(d, "sheaf", 1);
}

static int read_page(struct decoder *d, void *record, enum shf_json_kind first)
{
	(void)record;
	(void)first;
	return read_constant(d, "page", 4096);
}

static int read_block_size(struct decoder *d, void *record, enum shf_json_kind first)
{
	(void)record;
	(void)first;
	return read_constant(d, "block", 1048576);
}

/* Checks the name of the checksum, which is a constant of this version too. */
static int read_sum(struct decoder *d, void *record, enum shf_json_kind first)
{
	(void)record;
	if (first != SHF_JSON_STRING)
		return fail_at_member(d, first, "sum", "is not a string");
	if (!mf_text_is(d, "crc64nvme"))
		return shf_fail(d->err, SHEAF_EFORMAT,
				"%s: checksum \"%.40s\", but this version of sheaf knows "
				"crc64nvme; use a newer sheaf",
				d->where, shf_json_text(&d->json, NULL));
	return 0;
}

/* check_self() has verified the value at the end of the file. The entry in the table makes a
 * second "self" a duplicate. */
static int read_self(struct decoder *d, void *record, enum shf_json_kind first)
{
	(void)record;
	return first == SHF_JSON_STRING ? 0 : fail_at_member(d, first, "self", "is not a string");
}

/* AT() takes offset and size from the struct, so a K_FIXED field needs no change when the length of
 * its array changes. */
#define OTHER(name, read) { name, K_OTHER, false, 0, 0, read }
#define AT(name, kind, member) { name, kind, false, offsetof(struct shf_manifest, member), \
	sizeof(((struct shf_manifest *)0)->member), NULL }
static const struct field root_fields[] = {
	OTHER("sheaf", read_version),
	OTHER("needs", read_needs),
	AT("step", K_I64, step),
	AT("session", K_FIXED, session),
	AT("run", K_FIXED, run),
	OTHER("parent", read_parent),
	AT("created", K_FIXED, created),
	OTHER("writer", read_writer),
	AT("config", K_TEXT_OR_NULL, config),
	OTHER("flags", read_flags),
	OTHER("page", read_page),
	OTHER("block", read_block_size),
	OTHER("sum", read_sum),
	AT("file_bytes_max", K_U64, file_bytes_max),
	AT("ranks", K_I64, ranks),
	{ "mesh", K_TEXT, true, offsetof(struct shf_manifest, mesh), 0, NULL },
	AT("plan", K_HEX, plan),
	OTHER("families", read_families),
	OTHER("files", read_files),
	OTHER("attached", read_attached),
	OTHER("tied", read_tied),
	OTHER("notes", read_notes),
	{ "ema", K_OTHER, true, 0, 0, read_emas },
	OTHER("sums", read_sums),
	OTHER("self", read_self),
};
_Static_assert(COUNT(root_fields) <= FIELDS_MAX, "read_members counts on it");

/* Checks "needs". Version 1 knows no needs, so any string in the list is one that it does not know.
 * kind is the first token of the value. A value of another kind is skipped here and refused as
 * damage by read_needs(). */
static int check_needs(struct decoder *d, enum shf_json_kind kind)
{
	if (kind != SHF_JSON_ARRAY)
		return shf_json_skip(&d->json, kind) ? 0 : mf_json_fail(d);
	kind = shf_json_next(&d->json);
	if (kind == SHF_JSON_STRING)
		return shf_fail(d->err, SHEAF_EFORMAT,
				"%s: needs \"%.60s\", which this version of sheaf does not know; "
				"use a newer sheaf",
				d->where, shf_json_text(&d->json, NULL));
	if (kind == SHF_JSON_ARRAY_END)
		return 0;
	return fail_at_member(d, kind, "needs", "holds something that is not a string");
}

/* Walks the whole document once, only for "sheaf" and "needs". The members may come in any order,
 * and a newer format may give all others new meanings, so nothing else may be judged before these
 * two are known. A step from a newer sheaf must be reported as EFORMAT, not as damaged (ECORRUPT),
 * because a resume treats the two differently.
 *
 * The walk also verifies that the document is one object with nothing after it, so the second pass
 * need not check that. */
static int check_version(struct decoder *d)
{
	enum shf_json_kind kind = shf_json_next(&d->json);
	uint64_t version;
	int rc = 0;

	if (kind != SHF_JSON_OBJECT)
		return kind == SHF_JSON_ERROR ? mf_json_fail(d) :
		       shf_fail(d->err, SHEAF_ECORRUPT, "%s: is not a JSON object", d->where);
	while (rc == 0 && (kind = shf_json_next(&d->json)) == SHF_JSON_KEY) {
		bool is_version = mf_text_is(d, "sheaf"), is_needs = mf_text_is(d, "needs");

		kind = shf_json_next(&d->json);
		if (is_version && shf_json_u64(&d->json, &version) && version > 1)
			rc = shf_fail(d->err, SHEAF_EFORMAT, "%s: format %" PRIu64 " was written "
				      "by a newer sheaf; use that version", d->where, version);
		else if (is_needs)
			rc = check_needs(d, kind);
		else if (!shf_json_skip(&d->json, kind))
			rc = mf_json_fail(d);
	}
	if (rc == 0 && (kind != SHF_JSON_OBJECT_END || shf_json_next(&d->json) != SHF_JSON_END))
		rc = mf_json_fail(d);
	return rc;
}

/* The last 31 bytes of every manifest: 12 of TAIL_HEAD, 16 hex digits, 3 of TAIL_END. */
#define TAIL_HEAD ",\n \"self\": \""
#define TAIL_END "\"}\n"
#define TAIL_BYTES (sizeof(TAIL_HEAD) - 1 + 16 + sizeof(TAIL_END) - 1)

/* Verifies the checksum in the manifest's tail. The tail has a fixed form and length, so it is
 * found from the end without parsing; a manifest that was cut short or appended to fails here. Only
 * bytes that pass reach the JSON reader. */
static int check_self(struct decoder *d, const uint8_t *bytes, size_t n)
{
	const uint8_t *tail, *digits;
	uint64_t want, got;

	if (n >= SHF_MANIFEST_MAX)
		return shf_fail(d->err, SHEAF_ECORRUPT, "%s: %zu bytes, must be less than %" PRIu64,
				d->where, n, SHF_MANIFEST_MAX);
	if (n < TAIL_BYTES)
		return shf_fail(d->err, SHEAF_ECORRUPT, "%s: %zu bytes are too short for a "
		                "manifest",
				d->where, n);
	tail = bytes + n - TAIL_BYTES;
	digits = tail + sizeof(TAIL_HEAD) - 1;
	if (memcmp(tail, TAIL_HEAD, sizeof(TAIL_HEAD) - 1) ||
	    memcmp(digits + 16, TAIL_END, sizeof(TAIL_END) - 1) ||
	    !parse_hex((const char *)digits, &want))
		return shf_fail(d->err, SHEAF_ECORRUPT,
				"%s: does not end in its own checksum, as every manifest does",
				d->where);
	got = shf_crc64(bytes, n - TAIL_BYTES);
	if (got != want)
		return shf_fail(d->err, SHEAF_ECORRUPT,
				"%s: checksum %016" PRIx64 ", want %016" PRIx64,
				d->where, got, want);
	return 0;
}

/* The order of the checks is that of doc/format.md, section 6: the sum, the version, the members,
 * the rules. Each one makes the next one meaningful: without the sum any damage would be reported
 * as some odd member. *m is written on success only. */
int shf_manifest_decode(struct shf_manifest *m, struct shf_arena *arena, const uint8_t *bytes,
			size_t n, const char *where, struct sheaf_error *err)
{
	struct decoder d = { .arena = arena, .where = where, .err = err };
	struct shf_manifest got;
	int rc = check_self(&d, bytes, n);

	if (rc < 0)
		return rc;
	memset(&got, 0, sizeof(got));
	shf_json_init(&d.json, bytes, n);
	rc = check_version(&d);
	shf_json_release(&d.json);
	shf_json_init(&d.json, bytes, n);
	if (rc == 0 && shf_json_next(&d.json) != SHF_JSON_OBJECT)
		rc = mf_json_fail(&d);
	if (rc == 0)
		rc = read_members(&d, &got, root_fields, COUNT(root_fields));
	if (rc == 0)
		rc = shf_manifest_check(&got, SHEAF_ECORRUPT, where, err);
	if (rc == 0)
		*m = got;
	shf_json_release(&d.json);
	return rc;
}
