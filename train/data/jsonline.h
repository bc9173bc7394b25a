/* SPDX-License-Identifier: Apache-2.0 */
/* A line of JSONL that is a document. */
#ifndef JSONLINE_H
#define JSONLINE_H
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

struct tr_jsonline {
	/* The text of the document: the prompt, which may be empty, and what comes after it. */
	const char *prompt, *text;
	size_t prompt_n, text_n;
	int has_prompt;
	json_t *root;                   /* owned */
	char why[JSON_ERROR_TEXT_LENGTH + 80]; /* of a line that is not a document */
};

/* Reads the next line into *line, as getline does, but no more than `most` + 1 bytes. Returns how
 * many were read: `most` + 1 if the line is too long, and 0 at the end of the file. -1: errno says
 * why. The caller sets *line to NULL and *room to 0 before the first call, and frees *line. */
int64_t tr_line_get(FILE *f, char **line, size_t *room, int64_t most);
/* Reads a line. The document is valid until tr_jsonline_release, which must follow. Returns 1 if
 * the line is a document, 0 if it is blank, and -1 otherwise; then l->why says why it is none. */
int tr_jsonline_read(struct tr_jsonline *l, const char *line, size_t n);
void tr_jsonline_release(struct tr_jsonline *l);
#endif
