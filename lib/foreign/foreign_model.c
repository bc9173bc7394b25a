/* SPDX-License-Identifier: Apache-2.0 */
/* What all formats fill in: tensors and notes. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "foreign.h"
#include "json.h"
#include "sort.h"
#include "valid.h"

#define NOTES_MAX 4096
#define NOTE_BYTES_MAX 1024
#define NOTE_KEY_MAX 256

const struct shf_foreign_tensor *shf_foreign_tensors(const struct shf_foreign *f, size_t *n)
{
	*n = f->tensors.len / sizeof(struct shf_foreign_tensor);
	return (const struct shf_foreign_tensor *)(const void *)f->tensors.data;
}

static int foreign_no_memory(const struct shf_foreign *f, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", f->path);
}

int64_t *shf_foreign_numbers(struct shf_foreign *f, size_t n)
{
	return shf_arena_alloc(&f->arena, n ? n : 1, sizeof(int64_t));
}

/* Returns why safetensors cannot have this name, or NULL if it can. */
static const char *name_flaw(const char *name, size_t n)
{
	static const char reserved[] = "__metadata__";

	if (!shf_utf8_is_valid(name, n))
		return "is not UTF-8";
	if (memchr(name, 0, n))
		return "has a NUL";
	if (n == strlen(reserved) && memcmp(name, reserved, n) == 0)
		return "is __metadata__, which safetensors reserves";
	return NULL;
}

static int too_large(struct shf_foreign *f, const char *name, size_t n, struct sheaf_error *err)
{
	const char *shown = shf_name_escape(&f->arena, name, n);

	if (!shown)
		return foreign_no_memory(f, err);
	return shf_fail(err, SHEAF_EFORMAT, "%s: tensor %.*s has a size beyond 63 bits", f->path,
	                shf_name_show(shown), shown);
}

int shf_foreign_add_tensor(struct shf_foreign *f, const struct shf_foreign_tensor *t,
                           const char *name, size_t n, struct sheaf_error *err)
{
	struct shf_foreign_tensor x = *t;
	uint64_t items = 1, product = 1;
	int64_t *dims = shf_foreign_numbers(f, (size_t)t->ndim);
	char *own = shf_arena_strdup(&f->arena, name, n);
	const char *why = name_flaw(name, n);

	if (!dims || !own)
		return foreign_no_memory(f, err);
	if (why) {
		f->pieces.len -= x.n * sizeof(struct shf_foreign_piece);
		f->unread_n++;
		return shf_foreign_note(f, err, name, n, "a tensor whose name %s, which sheaf does "
		                        "not read", why);
	}
	for (int d = 0; d < t->ndim; d++) {
		dims[d] = t->dims[d];
		items *= (uint64_t)dims[d];
		if (dims[d] && !shf_mul64(&product, product, (uint64_t)dims[d]))
			product = UINT64_MAX;
		if (product > INT64_MAX / 16)
			return too_large(f, name, n, err);
	}
	x.name = own;
	x.family = x.family && strcmp(x.family, "model") ? x.family : NULL;
	x.dims = dims;
	if (!f->format || !f->format->make_pieces)
		x.first = f->pieces.len / sizeof(struct shf_foreign_piece) - x.n;
	if (!always(shf_dtype_bytes(&x.bytes, x.dtype, items)))
		return shf_fail(err, SHEAF_EBUG, "%s: a tensor ends inside a byte", f->path);
	shf_buf_add(&f->tensors, &x, sizeof(x));
	return f->tensors.oom || f->pieces.oom ? foreign_no_memory(f, err) : 0;
}

struct family_name { const char *family, *name; };

static int family_name_order(const void *a, const void *b)
{
	const struct family_name *x = a, *y = b;
	int c = strcmp(x->family, y->family);

	return c ? c : strcmp(x->name, y->name);
}

int shf_foreign_check_names(const struct shf_foreign *f, struct sheaf_error *err)
{
	size_t n;
	const struct shf_foreign_tensor *t = shf_foreign_tensors(f, &n);
	struct family_name *all = shf_alloc(n, sizeof(*all));
	int rc = 0;

	if (!all)
		return foreign_no_memory(f, err);
	for (size_t i = 0; i < n; i++)
		all[i] = (struct family_name){ t[i].family ? t[i].family : "model", t[i].name };
	shf_records_sort(all, n, sizeof(*all), family_name_order);
	for (size_t i = 1; i < n && rc == 0; i++)
		if (family_name_order(&all[i - 1], &all[i]) == 0)
			rc = shf_fail(err, SHEAF_EFORMAT, "%s: two tensors have the name %.*s%s",
			              f->path, shf_name_show(all[i].name), all[i].name,
			              f->dir < 0 ? ", because keys are joined by dots" : "");
	shf_free(all);
	return rc;
}

/* Copies a key for show, of a long one its beginning: one key may be that of all notes. */
static const char *note_key(struct shf_foreign *f, const char *key, size_t n)
{
	char text[NOTE_KEY_MAX + 4];
	bool cut = n > NOTE_KEY_MAX;

	n = cut ? NOTE_KEY_MAX : n;
	while (cut && n > NOTE_KEY_MAX - 4 && ((uint8_t)key[n] & 0xc0) == 0x80)
		n--;
	if (!shf_utf8_is_valid(key, n))
		return shf_name_escape(&f->arena, "?", 1);
	memcpy(text, key, n);
	memcpy(text + n, "...", 3);
	return shf_name_escape(&f->arena, text, n + (cut ? 3 : 0));
}

static int note_add(struct shf_foreign *f, struct sheaf_error *err, const char *key,
                    size_t key_n, const char *fmt, va_list ap)
{
	struct shf_foreign_note x;
	char text[NOTE_BYTES_MAX];
	size_t n;

	vsnprintf(text, sizeof(text), fmt, ap);
	/* A text cut inside a character, or not UTF-8, ends before the first bad byte. */
	for (n = strlen(text); n && !shf_utf8_is_valid(text, n);)
		text[--n] = '\0';
	x.key = note_key(f, key, key_n);
	x.text = shf_name_escape(&f->arena, text, n);
	if (!x.key || !x.text)
		return foreign_no_memory(f, err);
	shf_buf_add(&f->notes, &x, sizeof(x));
	return f->notes.oom ? foreign_no_memory(f, err) : 0;
}

int shf_foreign_note(struct shf_foreign *f, struct sheaf_error *err, const char *key, size_t key_n,
                     const char *fmt, ...)
{
	va_list ap;
	int rc;

	if (f->notes.len / sizeof(struct shf_foreign_note) >= NOTES_MAX) {
		f->notes_left++;
		return 0;
	}
	va_start(ap, fmt);
	rc = note_add(f, err, key, key_n, fmt, ap);
	va_end(ap);
	return rc;
}

/* Adds a note, also beyond the limit. */
static int __attribute__((format(printf, 4, 5)))
note_more(struct shf_foreign *f, struct sheaf_error *err, const char *key, const char *fmt, ...)
{
	va_list ap;
	int rc;

	va_start(ap, fmt);
	rc = note_add(f, err, key, strlen(key), fmt, ap);
	va_end(ap);
	return rc;
}

int shf_foreign_notes_end(struct shf_foreign *f, struct sheaf_error *err)
{
	int rc = 0;

	if (f->unread_n)
		rc = note_more(f, err, SHF_UNREAD_NOTE, "%" PRIu64, f->unread_n);
	if (rc == 0 && f->notes_left)
		rc = note_more(f, err, "...", "%" PRIu64 " more values are not listed",
		               f->notes_left);
	return rc;
}
