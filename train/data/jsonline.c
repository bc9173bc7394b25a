/* SPDX-License-Identifier: Apache-2.0 */
#include "jsonline.h"

#include <stdlib.h>
#include <string.h>

int64_t tr_line_get(FILE *f, char **line, size_t *room, int64_t most)
{
	size_t n = 0;
	int c = 0;

	while (c != '\n' && n <= (size_t)most && (c = getc_unlocked(f)) != EOF) {
		if (n == *room) {
			size_t size = *room ? 2 * *room : 1 << 16;
			char *more = realloc(*line, size);

			if (!more)
				return -1;
			*line = more;
			*room = size;
		}
		(*line)[n++] = (char)c;
	}
	return ferror(f) ? -1 : (int64_t)n;
}

static int is_blank(const char *line, size_t n)
{
	size_t i = 0;

	while (i < n && strchr(" \t\r\n", line[i]) && line[i])
		i++;
	return i == n;
}

static int fails(struct tr_jsonline *l, const char *what, const char *more)
{
	snprintf(l->why, sizeof(l->why), "%s%s", what, more);
	return -1;
}

/* Looks up a text of the object. Returns 1 if it is there, 0 if not, and -1 if it is no text. */
static int find_text(struct tr_jsonline *l, const char *key, const char **text, size_t *n)
{
	const json_t *value = json_object_get(l->root, key);

	*text = "";
	*n = 0;
	if (!value)
		return 0;
	if (!json_is_string(value))
		return fails(l, key, " is not a string");
	*text = json_string_value(value);
	*n = json_string_length(value);
	return 1;
}

/* Returns whether the line is JSON that the parser cannot represent. */
static int is_beyond(const json_error_t *why)
{
	enum json_error_code code = json_error_code(why);

	return code == json_error_numeric_overflow || code == json_error_null_byte_in_key;
}

int tr_jsonline_read(struct tr_jsonline *l, const char *line, size_t n)
{
	size_t response_n;
	const char *response;
	int text, prompt, answer;
	json_error_t why;

	*l = (struct tr_jsonline){ .root = NULL };
	if (is_blank(line, n))
		return 0;
	l->root = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL |
			     JSON_DECODE_INT_AS_REAL, &why);
	if (!l->root)
		return fails(l, is_beyond(&why) ? "it cannot be read: " : "it is not JSON: ",
			     why.text);
	if (!json_is_object(l->root))
		return fails(l, "it is not an object", "");
	text = find_text(l, "text", &l->text, &l->text_n);
	prompt = find_text(l, "prompt", &l->prompt, &l->prompt_n);
	answer = find_text(l, "response", &response, &response_n);
	if (text < 0 || prompt < 0 || answer < 0)
		return -1;
	if (text + prompt == 2 || prompt != answer || text == prompt)
		return fails(l, "it must have text, or prompt and response", "");
	l->has_prompt = prompt;
	if (answer) {
		l->text = response;
		l->text_n = response_n;
	}
	return 1;
}

void tr_jsonline_release(struct tr_jsonline *l)
{
	json_decref(l->root);
	l->root = NULL;
}
