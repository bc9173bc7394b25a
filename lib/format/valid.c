/* SPDX-License-Identifier: Apache-2.0 */
/* Which names are valid for a tensor, a family, a file, a note. Everything that becomes part of a
 * path or is shown to a person is checked here, wherever it comes from: a manifest from elsewhere
 * must not name a file outside of its step, nor send escape sequences to a terminal. */
#include "valid.h"
#include "decimal.h"
#include "json.h"
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns whether the text has a Unicode control character: C0 (below 0x20), DEL (0x7f) or C1
 * (U+0080..U+009F). C1 in UTF-8 is c2 followed by 80..9f, and terminals obey it as they obey ESC.
 * In valid UTF-8 the byte c2 is always the first of a sequence, so the test cannot match inside
 * another character. */
static bool has_controls(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint8_t c = (uint8_t)s[i];

		if (c < 0x20 || c == 0x7f)
			return true;
		if (c == 0xc2 && i + 1 < n && (uint8_t)s[i + 1] < 0xa0)
			return true;
	}
	return false;
}

/* __metadata__ is the one key of a header that is not a tensor, so no tensor may have that
 * name. */
bool shf_name_is_valid(const char *s, size_t n)
{
	static const char metadata[] = "__metadata__";

	if (n < 1 || n > SHF_NAME_MAX || has_controls(s, n) || !shf_utf8_is_valid(s, n))
		return false;
	return n != sizeof(metadata) - 1 || memcmp(s, metadata, n) != 0;
}

/* Each control character takes at most six bytes. */
const char *shf_name_escape(struct shf_arena *arena, const char *s, size_t n)
{
	size_t at = 0;
	char *out;

	if (!has_controls(s, n))
		return shf_arena_strdup(arena, s, n);
	out = n < SIZE_MAX / 6 ? shf_arena_alloc(arena, 6 * n + 1, 1) : NULL;
	for (size_t i = 0; out && i < n; i++) {
		uint8_t c = (uint8_t)s[i];

		if (c == 0xc2 && i + 1 < n && (uint8_t)s[i + 1] < 0xa0)
			c = (uint8_t)s[++i];
		else if (c >= 0x20 && c != 0x7f) {
			out[at++] = s[i];
			continue;
		}
		snprintf(out + at, 7, "\\u%04x", c);
		at += 6;
	}
	if (out)
		out[at] = '\0';
	return out;
}

static bool is_lower(char c)
{
	return c >= 'a' && c <= 'z';
}

/* A family is also the name of a folder and part of file names, hence the small alphabet, which
 * needs no quoting and is the same on file systems that fold case. */
bool shf_family_is_valid(const char *s)
{
	size_t n = 0;

	if (!s || !is_lower(*s))
		return false;
	for (; s[n]; n++)
		if (n >= 32 || !(is_lower(s[n]) || shf_is_digit(s[n]) || s[n] == '_'))
			return false;
	return true;
}

/* Returns whether s has 1 to `most` bytes, each a small letter, a digit, one of `more`, or, if
 * `upper`, a capital. The loop ends before the NUL, which strchr() would find in `more`. */
static bool is_word(const char *s, size_t most, bool upper, const char *more)
{
	size_t n = 0;

	if (!s || !*s)
		return false;
	for (; s[n]; n++)
		if (n >= most || !(is_lower(s[n]) || shf_is_digit(s[n]) ||
		                   (upper && s[n] >= 'A' && s[n] <= 'Z') || strchr(more, s[n])))
			return false;
	return true;
}

bool shf_attached_is_valid(const char *s)
{
	if (!is_word(s, 128, true, "._-") || !strcmp(s, ".") || !strcmp(s, ".."))
		return false;
	/* Reserved names: sheaf.json, sheaf.sums, alive-<node> in the stage, and all weights. */
	return strncmp(s, "sheaf.", 6) != 0 && strncmp(s, "alive-", 6) != 0 &&
	       !strstr(s, ".safetensors");
}

bool shf_note_key_is_valid(const char *s)
{
	return is_word(s, 64, true, "._/-");
}

bool shf_stream_is_valid(const char *s)
{
	return is_word(s, 57, false, "._-");
}

/* The most lenient rule, for files of steps that other programs wrote: any UTF-8 that is one
 * component of a path. 255 bytes are the limit of the common file systems. */
bool shf_plain_is_valid(const char *s)
{
	size_t n = s ? strlen(s) : 0;

	if (n < 1 || n > 255 || !strcmp(s, ".") || !strcmp(s, ".."))
		return false;
	return !memchr(s, '/', n) && !has_controls(s, n) && shf_utf8_is_valid(s, n);
}

static int names_by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Equal strings are neighbours after the sort. */
const char *shf_names_twice(const char **names, size_t n)
{
	if (n > 1)
		qsort(names, n, sizeof(*names), names_by_text);
	for (size_t i = 1; i < n; i++)
		if (!strcmp(names[i - 1], names[i]))
			return names[i];
	return NULL;
}

/* Returns how many bytes of s a sentence shows: all of a short name, else at most 120, cut
 * before a character that would not be whole. Bytes of the form 10xxxxxx continue a character. */
int shf_name_show(const char *s)
{
	size_t n = strlen(s), max = 120;

	if (n <= max)
		return (int)n;
	while (max && ((uint8_t)s[max] & 0xc0) == 0x80)
		max--;                  /* do not cut a character */
	return (int)max;
}
