/* SPDX-License-Identifier: Apache-2.0 */
/* Reads options from YAML by the events of libyaml. The document is a mapping whose values are
 * scalars, or mappings or lists of them. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "trainopts.h"

/* As many keys as there may be options, and one that is refused because there is no such option. */
enum { TEXT_MAX = 4096, KEYS_MAX = TR_OPTS_MAX + 1 };

struct reader {
	yaml_parser_t parser;
	yaml_event_t event;
	int has_event;
	struct tr_opts *o;
	const char *name;
	enum tr_source source;
	char keys[KEYS_MAX][40];        /* that were set, to find duplicates */
	int keys_n;
	struct tr_error *err;
};

static int refuse(struct reader *r, const char *why)
{
	return tr_fail(r->err, TR_EINVAL, "%s: line %zu: %s", r->name,
		       r->event.start_mark.line + 1, why);
}

/* Reads the next event. Anchors, aliases and tags are refused: they change what is read, and
 * options do not need them. */
static int next(struct reader *r)
{
	if (r->has_event)
		yaml_event_delete(&r->event);
	r->has_event = 0;
	if (!yaml_parser_parse(&r->parser, &r->event))
		return tr_fail(r->err, TR_EINVAL, "%s: line %zu: not YAML: %s", r->name,
			       r->parser.problem_mark.line + 1,
			       r->parser.problem ? r->parser.problem : "no memory");
	r->has_event = 1;
	switch (r->event.type) {
	case YAML_ALIAS_EVENT:
		return refuse(r, "an alias; write the value out");
	case YAML_SEQUENCE_START_EVENT:
		if (r->event.data.sequence_start.anchor || r->event.data.sequence_start.tag)
			return refuse(r, "an anchor or a tag; remove it");
		return 0;
	case YAML_SCALAR_EVENT:
		if (r->event.data.scalar.anchor)
			return refuse(r, "an anchor; remove it");
		if (r->event.data.scalar.tag)
			return refuse(r, "a tag; remove it");
		if (strlen((const char *)r->event.data.scalar.value) !=
		    r->event.data.scalar.length ||
		    r->event.data.scalar.length >= TEXT_MAX)
			return refuse(r, "a value that is too long or has a zero byte; write "
				      "another");
		return 0;
	case YAML_MAPPING_START_EVENT:
		if (r->event.data.mapping_start.anchor || r->event.data.mapping_start.tag)
			return refuse(r, "an anchor or a tag; remove it");
		return 0;
	default:
		return 0;
	}
}

static const char *scalar(const struct reader *r)
{
	return r->event.type == YAML_SCALAR_EVENT ? (const char *)r->event.data.scalar.value : NULL;
}

/* Reads a list, whose start was read, as "a,b". */
static int read_list(struct reader *r, const char *key, char *to, size_t size)
{
	size_t n = 0;

	to[0] = 0;
	for (;;) {
		int rc = next(r);

		if (rc < 0)
			return rc;
		if (r->event.type == YAML_SEQUENCE_END_EVENT)
			return 0;
		if (!scalar(r) || n + 28 > size)
			return tr_fail(r->err, TR_EINVAL, "%s: line %zu: %s: a list has single "
				       "values only, and not too many; write it such as [3, 2, 3]",
				       r->name, r->event.start_mark.line + 1, key);
		n += (size_t)snprintf(to + n, size - n, "%s%.24s", n ? "," : "", scalar(r));
	}
}

/* Reads a mapping, whose start was read, as "a=1,b=2". */
static int read_inner(struct reader *r, char *to, size_t size)
{
	size_t n = 0;

	to[0] = 0;
	for (;;) {
		int rc = next(r);

		if (rc < 0)
			return rc;
		if (r->event.type == YAML_MAPPING_END_EVENT)
			return 0;
		if (!scalar(r))
			return refuse(r, "more than a value within a mapping; write one");
		n += (size_t)snprintf(to + n, size - n, "%s%.20s", n ? "," : "", scalar(r));
		rc = next(r);
		if (rc < 0)
			return rc;
		if (!scalar(r))
			return refuse(r, "more than a value within a mapping; write one");
		n += (size_t)snprintf(to + n, size - n, "=%.24s", scalar(r));
		if (n + 52 > size)
			return refuse(r, "too many entries in a mapping; remove some");
	}
}

static int note_key(struct reader *r, const char *key)
{
	for (int i = 0; i < r->keys_n; i++)
		if (strncmp(r->keys[i], key, sizeof(r->keys[i]) - 1) == 0)
			return tr_fail(r->err, TR_EINVAL, "%s: line %zu: %s: an option that was "
				       "set above; remove one of them", r->name,
				       r->event.start_mark.line + 1, key);
	assert(r->keys_n < KEYS_MAX);
	snprintf(r->keys[r->keys_n++], sizeof(r->keys[0]), "%s", key);
	return 0;
}

/* Reads the value of the option whose key was read, and sets it. */
static int read_option(struct reader *r)
{
	char key[40], where[300], text[TEXT_MAX];
	int rc;

	snprintf(key, sizeof(key), "%s", scalar(r));
	snprintf(where, sizeof(where), "%.240s: line %zu: ", r->name,
		 r->event.start_mark.line + 1);
	rc = note_key(r, key);
	if (rc == 0)
		rc = next(r);
	if (rc < 0)
		return rc;
	if (scalar(r))
		snprintf(text, sizeof(text), "%s", scalar(r));
	else if (r->event.type == YAML_SEQUENCE_START_EVENT && !tr_opts_is_list(key))
		rc = tr_fail(r->err, TR_EINVAL, "%s%s: a list; write one value", where, key);
	else if (r->event.type == YAML_SEQUENCE_START_EVENT)
		rc = read_list(r, key, text, sizeof(text));
	else
		rc = read_inner(r, text, sizeof(text));
	return rc < 0 ? rc : tr_opts_set(r->o, key, text, r->source, where, r->err);
}

static int read_document(struct reader *r)
{
	int rc = next(r);

	if (rc < 0)
		return rc;
	if (r->event.type != YAML_MAPPING_START_EVENT)
		return refuse(r, "the options must be a mapping, such as `steps: 100`");
	for (;;) {
		rc = next(r);
		if (rc < 0 || r->event.type == YAML_MAPPING_END_EVENT)
			return rc;
		if (!scalar(r))
			return refuse(r, "a key must be the name of an option");
		rc = read_option(r);
		if (rc < 0)
			return rc;
	}
}

static int read_stream(struct reader *r)
{
	int rc = next(r); /* the start of the stream */

	if (rc == 0)
		rc = next(r);
	if (rc < 0 || r->event.type == YAML_STREAM_END_EVENT)
		return rc;
	rc = read_document(r);
	if (rc == 0)
		rc = next(r); /* the end of the document */
	if (rc == 0)
		rc = next(r);
	if (rc == 0 && r->event.type != YAML_STREAM_END_EVENT)
		return refuse(r, "a second document; remove it");
	return rc;
}

int tr_opts_read_yaml(struct tr_opts *o, const char *text, size_t n, const char *name,
		      enum tr_source source, struct tr_error *err)
{
	struct reader *r = calloc(1, sizeof(*r));
	int rc;

	if (!r || !yaml_parser_initialize(&r->parser)) {
		free(r);
		return tr_fail(err, TR_ENOMEM, "%s: no memory to read it", name);
	}
	r->o = o;
	r->name = name;
	r->source = source;
	r->err = err;
	yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, n);
	rc = read_stream(r);
	if (r->has_event)
		yaml_event_delete(&r->event);
	yaml_parser_delete(&r->parser);
	free(r);
	return rc;
}
