/* SPDX-License-Identifier: Apache-2.0 */
/* Which names may stand for a tensor, a family, a file, a note. Everything that becomes part of
 * a path or is shown to a person passes here, whoever wrote it. */
#include "decimal.h"
#include "json.h"
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

/* No Unicode control characters: C0, DEL and C1 (U+0080..U+009F, in UTF-8 c2 80..9f). */
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

bool shf_name_is_valid(const char *s, size_t n)
{
	static const char metadata[] = "__metadata__";

	if (n < 1 || n > SHF_NAME_MAX || has_controls(s, n) || !shf_utf8_is_valid(s, n))
		return false;
	return n != sizeof(metadata) - 1 || memcmp(s, metadata, n) != 0;
}

static bool is_lower(char c)
{
	return c >= 'a' && c <= 'z';
}

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

/* Has s 1 to `most` bytes, each a small letter, a digit, one of `more`, or if `upper` a capital? */
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
	/* Ours: sheaf.json, sheaf.sums, alive-<node> in the stage, and all weights. */
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

const char *shf_names_twice(const char **names, size_t n)
{
	if (n > 1)
		qsort(names, n, sizeof(*names), names_by_text);
	for (size_t i = 1; i < n; i++)
		if (!strcmp(names[i - 1], names[i]))
			return names[i];
	return NULL;
}

int shf_name_show(const char *s)
{
	size_t n = strlen(s), max = 120;

	if (n <= max)
		return (int)n;
	while (max && ((uint8_t)s[max] & 0xc0) == 0x80)
		max--;                  /* not through the middle of a character */
	return (int)max;
}
