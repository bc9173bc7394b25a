/* SPDX-License-Identifier: Apache-2.0 */
/* The rules for a manifest. The encoder checks them before it writes and the decoder after it has
 * read, so that each accepts only what the other accepts, and no name in a manifest leads out of
 * its directory. */
#include "mf_check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "err.h"
#include "hexfloat.h"
#include "json.h"
#include "valid.h"

struct check {
	const struct shf_manifest *m;
	int code;                       /* EINVAL for the encoder, ECORRUPT for the decoder */
	const char *where;
	struct sheaf_error *err;
};

/* Fails with `what` and a name. The name may come from a hostile file, so only the bytes that
 * shf_name_show() allows are shown. */
static int fail_at_name(const struct check *c, const char *what, const char *name)
{
	return shf_fail(c->err, c->code, "%s: %s \"%.*s\"", c->where, what, shf_name_show(name),
			name);
}

bool shf_hex_is_valid(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!(s[i] >= '0' && s[i] <= '9') && !(s[i] >= 'a' && s[i] <= 'f'))
			return false;
	return true;
}

/* Returns whether id is 32 lower-case hex digits and a NUL. An id that is shorter, or that is not
 * terminated, is refused before any string function sees it. */
static bool is_id(const char id[33])
{
	return memchr(id, 0, 33) == id + 32 && shf_hex_is_valid(id, 32);
}

/* Checks only the form 2026-01-31T12:00:00Z: month 13 passes. sizeof(form) includes the NUL, so the
 * text must also end where the form ends. */
static bool is_time(const char s[32])
{
	static const char form[] = "dddd-dd-ddTdd:dd:ddZ";

	for (size_t i = 0; i < sizeof(form); i++) {
		if (form[i] == 'd' ? s[i] < '0' || s[i] > '9' : s[i] != form[i])
			return false;
	}
	return true;
}

static bool is_text(const char *s)
{
	return s && shf_utf8_is_valid(s, strlen(s));
}

static bool name_ends_in(const char *s, const char *tail)
{
	size_t n = strlen(s), tail_n = strlen(tail);

	return n >= tail_n && !strcmp(s + n - tail_n, tail);
}

/* Checks the members that are not lists, the informative ones too, because the encoder writes some
 * of them without escapes (manifest.c). */
static int check_scalars(const struct check *c)
{
	const struct shf_manifest *m = c->m;

	if (m->step < 0)
		return shf_fail(c->err, c->code, "%s: step %" PRId64, c->where, m->step);
	if (!is_id(m->session) || !is_id(m->run))
		return fail_at_name(c, "session or run is not 32 hex digits", "");
	if (m->has_parent && (m->parent_step < 0 || !is_id(m->parent_session) ||
			      (m->parent_run[0] && !is_id(m->parent_run))))
		return fail_at_name(c, "the parent is not a step with a session", "");
	if (!is_time(m->created))
		return fail_at_name(c, "created is not a time like", "2026-01-31T12:00:00Z");
	if (!is_text(m->version) || !is_text(m->commit) || !is_text(m->compiler))
		return fail_at_name(c, "writer is not valid UTF-8", "");
	if ((m->config && !is_text(m->config)) || (m->mesh && !is_text(m->mesh)))
		return fail_at_name(c, "config or mesh is not valid UTF-8", "");
	if (m->file_bytes_max < 1 || m->ranks < 1)
		return fail_at_name(c, "file_bytes_max or ranks is 0", "");
	return 0;
}

/* Refuses a list in which a string occurs twice. The string of item i is the pointer at items + i *
 * size, so the name or key must be the first member of the item's struct; that is true of families,
 * files, notes and averages. memcpy() reads it because the type of the struct is unknown here. */
static int check_twice(const struct check *c, const void *items, size_t n, size_t size,
		       const char *what)
{
	const char **names = shf_alloc(n, sizeof(*names)), *twice;
	int rc = 0;

	if (!names)
		return shf_fail(c->err, SHEAF_ENOMEM, "%s: out of memory", c->where);
	for (size_t i = 0; i < n; i++)
		memcpy(&names[i], (const char *)items + i * size, sizeof(names[i]));
	twice = shf_names_twice(names, n);
	if (twice)
		rc = fail_at_name(c, what, twice);
	shf_free(names);
	return rc;
}

/* Checks the families and, with them, the tensor files: the first f->files entries belong to
 * the first family, the next ones to the second. A file must lie in the folder of its family,
 * be one component below it, and end in .safetensors. So no name in the list leads out of the
 * step, and no tensor file hides in a foreign folder.
 *
 * The comparison with m->files_n - file cannot wrap, because `file` never passes files_n. */
static int check_mf_families(const struct check *c)
{
	const struct shf_manifest *m = c->m;
	size_t file = 0;

	for (size_t i = 0; i < m->families_n; i++) {
		const struct shf_mf_family *f = &m->families[i];
		size_t dir_n = strcmp(f->dir, ".") ? strlen(f->dir) + 1 : 0;

		if (!shf_family_is_valid(f->name))
			return fail_at_name(c, "invalid family", f->name);
		if (strcmp(f->dir, strcmp(f->name, "model") ? f->name : "."))
			return fail_at_name(c, "family in a directory of another name:", f->dir);
		if (f->files > m->files_n - file)
			return fail_at_name(c, "fewer files than it says in family", f->name);
		for (uint64_t k = 0; k < f->files; k++, file++) {
			const char *name = m->files[file].name;

			if ((dir_n && (strncmp(name, f->dir, dir_n - 1) ||
				       name[dir_n - 1] != '/')) ||
			    !shf_plain_is_valid(name + dir_n) ||
			    !name_ends_in(name, ".safetensors"))
				return fail_at_name(c, "invalid name of a tensor file", name);
		}
	}
	if (file != m->files_n)
		return fail_at_name(c, "file that belongs to no family", m->files[file].name);
	return 0;
}

/* Returns the family of this name, or NULL. The name needs no NUL, because is_index() asks for
 * a part of a longer string. A step has few families, so a linear search is enough. */
static const struct shf_mf_family *family_of(const struct shf_manifest *m, const char *name,
					     size_t n)
{
	for (size_t i = 0; i < m->families_n; i++)
		if (strlen(m->families[i].name) == n && !memcmp(m->families[i].name, name, n))
			return &m->families[i];
	return NULL;
}

/* Returns whether name is <family>.safetensors.index.json, in the folder of that family. The family
 * model lies in the step itself, and every other one in the folder of its name. So a name without a
 * slash can only be the index of model, and one with a slash only that of the family before the
 * slash.
 *
 * Indexes are listed with the attached files, but shf_attached_is_valid() refuses every name with
 * ".safetensors" in it, so that no caller attaches weights. This is the exception. */
static bool is_index(const struct shf_manifest *m, const char *name)
{
	static const char tail[] = ".safetensors.index.json";
	const char *slash = strchr(name, '/'), *base = slash ? slash + 1 : name;
	size_t dir_n = slash ? (size_t)(slash - name) : 0, n;

	if (!name_ends_in(base, tail))
		return false;
	n = strlen(base) - (sizeof(tail) - 1);
	if (!family_of(m, base, n))
		return false;
	if (!slash)
		return n == 5 && !memcmp(base, "model", n);
	return n == dir_n && !memcmp(base, name, n) && !(n == 5 && !memcmp(base, "model", n));
}

/* Checks the attached files. A file named as the folder of a family could not be created beside the
 * folder, so it is refused here and not when the save meets EEXIST. The folder of model is the step
 * itself, so an attached file may have that name. */
static int check_attached(const struct check *c)
{
	const struct shf_manifest *m = c->m;

	for (size_t i = 0; i < m->attached_n; i++) {
		const char *name = m->attached[i].name;

		if (!shf_attached_is_valid(name) && !is_index(m, name))
			return fail_at_name(c, "invalid name of an attached file", name);
		if (!strchr(name, '/') && strcmp(name, "model") && family_of(m, name, strlen(name)))
			return fail_at_name(c, "attached file named like the directory of family",
			                    name);
	}
	return 0;
}

/* Compares ties by family and name. The target is left out, so a name that is tied to two targets
 * compares equal and is found. */
static int by_tied(const void *a, const void *b)
{
	const struct shf_mf_tied *x = *(const struct shf_mf_tied *const *)a;
	const struct shf_mf_tied *y = *(const struct shf_mf_tied *const *)b;
	int order = strcmp(x->family, y->family);

	return order ? order : strcmp(x->name, y->name);
}

/* Refuses names that are tied twice, and chains: the target of a tie must not be tied itself, so
 * one lookup resolves every tie and there are no cycles. Both are found in one sorted array: equal
 * neighbours are duplicates, and each target is searched for with a key that has it in place of the
 * name. bsearch() passes pointers to elements, which are pointers themselves, hence the extra level
 * in `key`. */
static int check_tied_order(const struct check *c, const struct shf_mf_tied **tied, size_t n)
{
	if (n > 1)
		qsort(tied, n, sizeof(*tied), by_tied);
	for (size_t i = 0; i < n; i++) {
		struct shf_mf_tied target = { tied[i]->family, tied[i]->to, NULL };
		const struct shf_mf_tied *key = &target;

		if (i && !by_tied(&tied[i - 1], &tied[i]))
			return fail_at_name(c, "tied twice:", tied[i]->name);
		if (bsearch(&key, tied, n, sizeof(*tied), by_tied))
			return fail_at_name(c, "tied to a name that is tied itself:",
			                    tied[i]->name);
	}
	return 0;
}

/* Checks the names of all ties, then their order. Pointers are sorted, so the manifest keeps its
 * order. */
static int check_tied(const struct check *c)
{
	const struct shf_manifest *m = c->m;
	const struct shf_mf_tied **tied = shf_alloc(m->tied_n, sizeof(*tied));
	int rc = 0;

	if (!tied)
		return shf_fail(c->err, SHEAF_ENOMEM, "%s: out of memory", c->where);
	for (size_t i = 0; i < m->tied_n && rc == 0; i++) {
		tied[i] = &m->tied[i];
		if (!shf_family_is_valid(tied[i]->family))
			rc = fail_at_name(c, "invalid family of a tied name:", tied[i]->family);
		else if (!shf_name_is_valid(tied[i]->name, strlen(tied[i]->name)) ||
			 !shf_name_is_valid(tied[i]->to, strlen(tied[i]->to)))
			rc = fail_at_name(c, "invalid tied name", tied[i]->name);
	}
	if (rc == 0)
		rc = check_tied_order(c, tied, m->tied_n);
	shf_free(tied);
	return rc;
}

/* Checks the averages. The array coef is proved to hold a NUL before it is parsed. The test on
 * the coefficient is written so that NaN fails it: every comparison with NaN is false. A
 * coefficient of 1 would never let the average move. */
static int check_emas(const struct check *c)
{
	const struct shf_manifest *m = c->m;
	double coef;

	for (size_t i = 0; i < m->emas_n; i++) {
		const struct shf_mf_ema *e = &m->emas[i];

		if (!e->name || !shf_family_is_valid(e->name))
			return fail_at_name(c, "averages with an invalid name",
			                    e->name ? e->name : "");
		if (!is_text(e->of) || (e->of[0] && !shf_family_is_valid(e->of)))
			return fail_at_name(c, "averages of no family:", e->name);
		if (!memchr(e->coef, 0, sizeof(e->coef)) || !shf_hexfloat_get(&coef, e->coef) ||
		    !(coef >= 0 && coef < 1) || e->interval < 1 || e->updates < 0)
			return fail_at_name(c, "averages without coefficient, interval or updates:",
			                    e->name);
	}
	return 0;
}

/* Checks the notes and their sizes. The total is compared inside the loop, so it exceeds the limit
 * by one note at most and cannot overflow. */
static int check_notes(const struct check *c)
{
	const struct shf_manifest *m = c->m;
	size_t total = 0;

	for (size_t i = 0; i < m->notes_n; i++) {
		size_t n;

		if (!shf_note_key_is_valid(m->notes[i].key))
			return fail_at_name(c, "invalid key of a note", m->notes[i].key);
		if (!is_text(m->notes[i].value))
			return fail_at_name(c, "value that is not UTF-8 in note", m->notes[i].key);
		n = strlen(m->notes[i].value);
		total += n + strlen(m->notes[i].key);
		if (n > SHF_NOTE_MAX || total > SHF_NOTES_MAX)
			return fail_at_name(c, "more than 64 KiB in it or 512 KiB in all up to "
			                    "note", m->notes[i].key);
	}
	return 0;
}

/* Single items are checked before duplicates, because the search for duplicates sorts strings and
 * relies on every pointer being one. Families are checked before attached files, because is_index()
 * searches them. */
int shf_manifest_check(const struct shf_manifest *m, int code, const char *where,
		       struct sheaf_error *err)
{
	struct check c = { m, code, where, err };
	int rc = check_scalars(&c);

	if (rc == 0)
		rc = check_mf_families(&c);
	if (rc == 0)
		rc = check_twice(&c, m->families, m->families_n, sizeof(*m->families),
				 "twice among the families:");
	if (rc == 0)
		rc = check_twice(&c, m->files, m->files_n, sizeof(*m->files),
				 "twice among the files:");
	if (rc == 0)
		rc = check_attached(&c);
	if (rc == 0)
		rc = check_twice(&c, m->attached, m->attached_n, sizeof(*m->attached),
				 "twice among the attached files:");
	if (rc == 0)
		rc = check_tied(&c);
	if (rc == 0)
		rc = check_notes(&c);
	if (rc == 0)
		rc = check_emas(&c);
	if (rc == 0)
		rc = check_twice(&c, m->emas, m->emas_n, sizeof(*m->emas), "averages twice:");
	if (rc == 0)
		rc = check_twice(&c, m->notes, m->notes_n, sizeof(*m->notes),
				 "twice among the notes:");
	if (rc == 0 && (!m->sums.name || strcmp(m->sums.name, "sheaf.sums")))
		rc = fail_at_name(&c, "the file of checksums is not named sheaf.sums but",
		                  m->sums.name ? m->sums.name : "");
	return rc;
}
