/* SPDX-License-Identifier: Apache-2.0 */
/* Saying things: errors, text of unknown origin, JSON lines. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include "workload.h"

/* The length of the UTF-8 sequence at s and its code point; 0: none. */
static size_t utf8_at(const unsigned char *s, uint32_t *cp)
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

/* Control characters move a terminal's cursor, C1 does the same in one byte more, and the
 * bidirectional ones show one name as another. */
static bool is_harmless(uint32_t cp)
{
	return cp >= 0x20 && !(cp >= 0x7f && cp < 0xa0) && !(cp >= 0x200b && cp <= 0x200f) &&
	       !(cp >= 0x2028 && cp <= 0x202e) && !(cp >= 0x2066 && cp <= 0x2069) && cp != 0xfeff;
}

void cli_put(FILE *f, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	while (*s) {
		uint32_t cp;
		size_t n = utf8_at(s, &cp);

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

int cli_width(const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	int width = 0;

	while (*s) {
		uint32_t cp;
		size_t n = utf8_at(s, &cp);

		width += n && is_harmless(cp) ? 1 : n > 1 ? 6 : 4;
		s += n ? n : 1;
	}
	return width;
}

json_t *cli_str(const char *text)
{
	json_t *v;
	char *copy, *to;

	if (!text || !*text)
		return json_null();
	v = json_string(text);
	if (v)
		return v;
	/* No UTF-8: each such byte becomes U+FFFD. */
	copy = to = malloc(3 * strlen(text) + 1);
	if (!copy)
		return json_null();
	for (const unsigned char *s = (const unsigned char *)text; *s;) {
		uint32_t cp;
		size_t n = utf8_at(s, &cp);

		memcpy(to, n ? (const void *)s : "\xef\xbf\xbd", n ? n : 3);
		to += n ? n : 3;
		s += n ? n : 1;
	}
	*to = '\0';
	v = json_string(copy);
	free(copy);
	return v ? v : json_null();
}

json_t *cli_num(int64_t v)
{
	return v == -1 ? json_null() : json_integer(v);
}

static void dump(FILE *f, json_t *value)
{
	if (value)
		json_dumpf(value, f, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY);
	json_decref(value);
}

void cli_part(json_t *value)
{
	dump(stdout, value);
}

void cli_line(json_t *object)
{
	dump(stdout, object);
	putchar('\n');
}

void cli_shape(FILE *f, int ndim, const int64_t *shape)
{
	fputc('[', f);
	for (int d = 0; d < ndim && d < SHEAF_DIMS_MAX; d++)
		fprintf(f, "%s%lld", d ? ", " : "", (long long)shape[d]);
	fputc(']', f);
}

json_t *cli_shape_json(int ndim, const int64_t *shape)
{
	json_t *v = json_array();

	for (int d = 0; d < ndim && d < SHEAF_DIMS_MAX; d++)
		json_array_append_new(v, json_integer(shape[d]));
	return v;
}

/* --- errors ------------------------------------------------------------------------------- */

int cli_exit_code(int code)
{
	switch (code) {
	case SHEAF_OK:
		return 0;
	case SHEAF_ECORRUPT:
	case SHEAF_EDIVERGED:
	case SHEAF_ELAYOUT:
	case SHEAF_EFORMAT:
		return 1;
	default:
		return 2;
	}
}

static void say(const struct cli_args *a, const char *error, const char *where, const char *why,
		const char *hint)
{
	const char *what = a->verb ? a->verb->name : "";
	size_t where_n = where ? strlen(where) : 0;

	fflush(stdout);
	if (a->json) {
		dump(stderr, json_pack("{s:s,s:o,s:o,s:o,s:o}", "error", error, "what",
				       cli_str(what), "where", cli_str(where), "why", cli_str(why),
				       "hint", cli_str(hint)));
		fputc('\n', stderr);
		return;
	}
	fputs("sheaf: ", stderr);
	if (*what)
		fprintf(stderr, "%s: ", what);
	/* The library's sentences often begin with the place. */
	if (where_n && strncmp(why, where, where_n) != 0) {
		cli_put(stderr, where);
		fputs(": ", stderr);
	}
	cli_put(stderr, why);
	if (hint && *hint) {
		fputs(" (", stderr);
		cli_put(stderr, hint);
		fputc(')', stderr);
	}
	fputc('\n', stderr);
}

int cli_usage(const struct cli_args *a, const char *where, const char *why, const char *hint)
{
	char page[64];

	if (!hint) {
		snprintf(page, sizeof(page), "sheaf help %s", a->verb ? a->verb->name : "");
		hint = page;
	}
	say(a, "USAGE", where, why, hint);
	return 2;
}

int cli_error(const struct cli_args *a, int code, const char *where, const char *why,
	      const char *hint)
{
	say(a, wl_code_name(code), where, why && *why ? why : sheaf_strerror(code), hint);
	return cli_exit_code(code);
}

int cli_nomem(const struct cli_args *a)
{
	return cli_error(a, SHEAF_ENOMEM, "", "no memory", NULL);
}
