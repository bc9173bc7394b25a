/* SPDX-License-Identifier: Apache-2.0 */
#include "harmedit.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "harmrun.h"
#include "plaincrc.h"

#define TAIL 31                 /* bytes of `self` with the comma before it */

struct scan {
	const char *text;
	size_t at, n;
	struct harm_values *out;
};

static char peek(struct scan *s)
{
	while (s->at < s->n && isspace((unsigned char)s->text[s->at]))
		s->at++;
	if (s->at == s->n)
		abort();
	return s->text[s->at];
}

static void skip_string(struct scan *s)
{
	const char *end = memchr(s->text + s->at + 1, '"', s->n - s->at - 1);

	if (!end)
		abort();
	s->at = (size_t)(end - s->text) + 1;
}

static void scan_value(struct scan *s, size_t member, const char *path);

static void scan_list(struct scan *s, const char *path, char close)
{
	char below[160], sep = *path ? '.' : '\0';

	s->at++;
	for (int i = 0; peek(s) != close; i++) {
		size_t member = s->at;

		if (close == '}') {
			skip_string(s);
			snprintf(below, sizeof(below), "%.60s%.1s%.*s", path, &sep,
			         (int)(s->at - member - 2), s->text + member + 1);
			if (peek(s) != ':')
				abort();
			s->at++;
		} else {
			snprintf(below, sizeof(below), "%.60s[%d]", path, i);
		}
		scan_value(s, member, below);
		if (peek(s) == ',')
			s->at++;
	}
	s->at++;
}

static void scan_value(struct scan *s, size_t member, const char *path)
{
	char c = peek(s);
	struct harm_value *v = &s->out->v[s->out->n++];

	if (s->out->n == HARM_VALUES)
		abort();
	*v = (struct harm_value){ .member = member, .at = s->at };
	snprintf(v->path, sizeof(v->path), "%s", path);
	if (member == s->at && *path && path[strlen(path) - 1] != ']')
		abort();
	if (c == '"')
		skip_string(s);
	else if (c == '{' || c == '[')
		scan_list(s, path, c == '{' ? '}' : ']');
	else
		while (isalnum((unsigned char)s->text[s->at]))
			s->at++;
	v->end = s->at;
}

void harm_values(struct harm_values *out, const char *text, size_t n)
{
	struct scan s = { text, 0, n, out };

	out->n = 0;
	scan_value(&s, 0, "");
}

/* Writes the replacement of a value to `to`; "": no replacement. */
static void other(const char *was, size_t n, enum harm_edit edit, char *to, size_t to_n)
{
	bool text = was[0] == '"', list = was[0] == '{' || was[0] == '[';
	bool null = was[0] == 'n';
	char last = n > 2 ? was[n - 2] : '\0';

	to[0] = '\0';
	if (edit == HARM_OTHER && text && n > 2)
		snprintf(to, to_n, "%.*s%c\"", (int)(n - 2), was,
		         last == 'a' || last == '0' ? last + 1 : last == 'z' ? 'y'
		         : isalpha((unsigned char)last) ? 'a' : '0');
	else if (edit == HARM_OTHER && !text && !list && !null)
		snprintf(to, to_n, "%llu", strtoull(was, NULL, 10) + 1);
	else if (edit == HARM_EMPTY && text && n > 2)
		snprintf(to, to_n, "\"\"");
	else if (edit == HARM_EMPTY && list && n > 2)
		snprintf(to, to_n, "%c%c", was[0], was[0] == '[' ? ']' : '}');
	else if (edit == HARM_EMPTY && !text && !list && !null && was[0] != '0')
		snprintf(to, to_n, "0");
	else if (edit == HARM_KIND)
		snprintf(to, to_n, null ? "7" : "null");
}

/* Extends the range to the whole member or item with the comma before it, or with the one after
 * it. */
static void whole_member(const char *text, size_t *from, size_t *end)
{
	size_t before = *from;

	while (before > 0 && isspace((unsigned char)text[before - 1]))
		before--;
	if (before > 0 && text[before - 1] == ',') {
		*from = before - 1;
		return;
	}
	if (text[*end] == ',')
		++*end;
}

char *harm_edit(const char *text, size_t *n, const struct harm_value *v, enum harm_edit edit,
                bool prove)
{
	size_t from = edit == HARM_GONE ? v->member : v->at, end = v->end, to_n;
	char *to = calloc(1, *n + 64), *out = calloc(1, 2 * *n + 64);

	if (!to || !out)
		abort();
	other(text + v->at, v->end - v->at, edit, to, *n + 64);
	to_n = strlen(to);
	if (edit == HARM_GONE)
		whole_member(text, &from, &end);
	memcpy(out, text, from);
	memcpy(out + from, to, to_n);
	memcpy(out + from + to_n, text + end, *n - end);
	*n = from + to_n + *n - end;
	free(to);
	if (edit != HARM_GONE && to_n == 0) {
		free(out);
		return NULL;
	}
	if (prove && *n > TAIL)
		snprintf(out + *n - TAIL, TAIL + 1, ",\n \"self\": \"%016" PRIx64 "\"}\n",
		         plain_crc(out, *n - TAIL));
	return out;
}
