/* SPDX-License-Identifier: Apache-2.0 */
/* Output: errors, text of unknown origin, JSON lines */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include "sheaf-inspect.h"
#include "workload.h"

void cli_put(FILE *f, const char *text)
{
	wl_put(f, text);
}

int cli_width(const char *text)
{
	return wl_width(text);
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
	/* This is not UTF-8: each invalid byte becomes U+FFFD. */
	copy = to = malloc(3 * strlen(text) + 1);
	if (!copy)
		return json_null();
	for (const unsigned char *s = (const unsigned char *)text; *s;) {
		uint32_t cp;
		size_t n = wl_utf8_at(s, &cp);

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

/* Escapes characters that jansson prints as they are and a terminal may interpret. */
static int put_ascii(const char *text, size_t n, void *f)
{
	for (size_t i = 0; i < n; i++)
		if (text[i] == 0x7f)
			fputs("\\u007f", f);
		else
			fputc(text[i], f);
	return 0;
}

static void dump(FILE *f, json_t *value)
{
	if (value)
		json_dump_callback(value, put_ascii, f, JSON_COMPACT | JSON_ENSURE_ASCII |
				   JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
	json_decref(value);
}

void cli_part(json_t *value)
{
	dump(stdout, value);
}

void cli_open(json_t *object)
{
	char *text = json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));

	if (text && *text)
		put_ascii(text, strlen(text) - 1, stdout);
	free(text);
	json_decref(object);
}

void cli_line(json_t *object)
{
	dump(stdout, object);
	putchar('\n');
}

const int64_t *cli_dims(const struct sheaf_tensor *t)
{
	return t->ndim <= SHEAF_DIMS_MAX ? t->shape : t->dims;
}

void cli_shape(FILE *f, int ndim, const int64_t *shape)
{
	fputc('[', f);
	for (int d = 0; d < ndim && shape; d++)
		fprintf(f, "%s%lld", d ? ", " : "", (long long)shape[d]);
	if (!shape)
		fprintf(f, "%d dimensions", ndim);
	fputc(']', f);
}

json_t *cli_shape_json(int ndim, const int64_t *shape)
{
	json_t *v = shape ? json_array() : json_null();

	for (int d = 0; d < ndim && shape; d++)
		json_array_append_new(v, json_integer(shape[d]));
	return v;
}

/* --- errors ------------------------------------------------------------------------------- */

int cli_exit_code(int code)
{
	switch (code) {
	case SHEAF_OK:
		return 0;
	case SHEAF_EEXIST:
	case SHEAF_ECORRUPT:
	case SHEAF_EDIVERGED:
	case SHEAF_ELAYOUT:
	case SHEAF_EFORMAT:
		return 1;
	default:
		return 2;
	}
}

#define WHERE_MAX 120 /* the library shows as much of a path */
#define WHERE_HALF ((WHERE_MAX - 3) / 2)

/* Prints a place. One of more than WHERE_MAX bytes is shortened in the middle. */
static void put_where(const char *where)
{
	char part[WHERE_HALF + 1];
	size_t n = strlen(where), half = WHERE_HALF, from = n - half;

	if (n <= WHERE_MAX) {
		cli_put(stderr, where);
		return;
	}
	while (half && ((unsigned char)where[half] & 0xc0) == 0x80)
		half--;
	while (from < n && ((unsigned char)where[from] & 0xc0) == 0x80)
		from++;
	memcpy(part, where, half);
	part[half] = '\0';
	cli_put(stderr, part);
	fputs("...", stderr);
	cli_put(stderr, where + from);
}

/* Returns whether the message begins with the place; if the place is shortened there, whether it
 * begins with the first half. */
static int begins_with(const char *why, const char *where)
{
	size_t n = strlen(where), half = WHERE_HALF;

	if (strncmp(why, where, n) == 0)
		return 1;
	while (half && half < n && ((unsigned char)where[half] & 0xc0) == 0x80)
		half--;
	return n > half && strncmp(why, where, half) == 0 && strncmp(why + half, "...", 3) == 0;
}

void cli_say_of(const char *path)
{
	fputs("sheaf: ", stderr);
	cli_put(stderr, path);
	fputs(": ", stderr);
}

static void say(const struct cli_args *a, const char *error, const char *where, const char *why,
		const char *hint)
{
	const char *what = a->verb ? a->verb->name : "";

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
	/* The library's messages often begin with the place. */
	if (where && *where && !begins_with(why, where)) {
		put_where(where);
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

/* Returns the length of a message of the library without advice at its end that is for programs:
 * the command has no such flags. */
static size_t length_without_flags(const char *msg)
{
	static const char *const advice[] = { ", or open with SHEAF_RUN_READONLY",
		" (SHEAF_RUN_CREATE makes one)", " (SHEAF_RUN_CREATE makes it one)" };
	size_t n = strlen(msg);

	for (size_t i = 0; i < sizeof(advice) / sizeof(advice[0]); i++) {
		size_t end = strlen(advice[i]);

		if (n >= end && strcmp(msg + n - end, advice[i]) == 0)
			return n - end;
	}
	return n;
}

int cli_error(const struct cli_args *a, int code, const char *where, const char *why,
	      const char *hint)
{
	const char *msg = why && *why ? why : sheaf_strerror(code);
	char *shown = strndup(msg, length_without_flags(msg));

	say(a, wl_code_name(code), where, shown ? shown : msg, hint);
	free(shown);
	return cli_exit_code(code);
}

int cli_nomem(const struct cli_args *a)
{
	return cli_error(a, SHEAF_ENOMEM, "", "no memory", NULL);
}
