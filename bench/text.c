/* SPDX-License-Identifier: Apache-2.0 */
/* Text of unknown origin: prints it, and parses names of steps. */
#include "workload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int wl_step_at(const char *text, size_t *run_n, int64_t *step)
{
	const char *at = strrchr(text, '@');
	unsigned long long v;
	struct stat st;

	if (!at || at == text || strchr(at, '/') || lstat(text, &st) == 0)
		return SHEAF_EEXIST;
	*run_n = (size_t)(at++ - text);
	*step = SHEAF_LATEST;
	if (strcmp(at, "latest") == 0)
		return 0;
	if (!*at || at[strspn(at, "0123456789")])
		return SHEAF_EINVAL;
	errno = 0;
	v = strtoull(at, NULL, 10);
	if (errno || v > INT64_MAX)
		return SHEAF_ENOENT;
	*step = (int64_t)v;
	return 0;
}

size_t wl_utf8_at(const unsigned char *s, uint32_t *cp)
{
	size_t n = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3
		 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	uint32_t v;

	if (n < 2) {
		*cp = s[0];
		return n;
	}
	v = s[0] & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		v = v << 6 | (s[i] & 0x3f);
	}
	if (v < least[n] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
		return 0;
	*cp = v;
	return n;
}

/* Returns false for control characters, which move a terminal's cursor (C1 does so in two bytes),
 * and for bidirectional ones, which make a name look like another. */
static bool is_harmless(uint32_t cp)
{
	return cp >= 0x20 && !(cp >= 0x7f && cp < 0xa0) && !(cp >= 0x200b && cp <= 0x200f) &&
	       !(cp >= 0x2028 && cp <= 0x202e) && !(cp >= 0x2066 && cp <= 0x2069) && cp != 0xfeff;
}

void wl_put(FILE *f, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	while (*s) {
		uint32_t cp;
		size_t n = wl_utf8_at(s, &cp);

		if (n && is_harmless(cp)) {
			fwrite(s, 1, n, f);
		} else if (n > 1) {
			fprintf(f, "\\u%04x", cp);
		} else {
			fprintf(f, "\\x%02x", *s);
			n = 1;
		}
		s += n;
	}
}

int wl_width(const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	int width = 0;

	while (*s) {
		uint32_t cp;
		size_t n = wl_utf8_at(s, &cp);

		width += n && is_harmless(cp) ? 1 : n > 1 ? 6 : 4;
		s += n ? n : 1;
	}
	return width;
}
