/* SPDX-License-Identifier: Apache-2.0 */
#include "runevents.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct tr_error *err)
{
	return tr_fail(err, TR_ENOMEM, "no memory for the events");
}

/* Returns room for one more item of `bytes` behind n of them, or NULL. The memory doubles. */
static void *grow(void *at, size_t n, size_t *room, size_t bytes)
{
	size_t more = n < 64 ? 64 : 2 * n;

	if (n < *room)
		return at;
	at = more > SIZE_MAX / bytes ? NULL : realloc(at, more * bytes);
	if (at)
		*room = more;
	return at;
}

static int add_point(struct tr_points *p, double x, double y, struct tr_error *err)
{
	struct tr_point *at = grow(p->at, p->n, &p->room, sizeof(*at));

	if (!at)
		return no_memory(err);
	p->at = at;
	at[p->n++] = (struct tr_point){ x, y };
	return 0;
}

/* Returns a member that is a number, or one as hex in a string; otherwise NaN. */
static double number(const json_t *event, const char *key)
{
	const json_t *member = json_object_get(event, key);
	const char *text = json_string_value(member);

	if (json_is_number(member))
		return json_number_value(member);
	return text ? strtod(text, NULL) : NAN;
}

static int64_t whole(const json_t *event, const char *key)
{
	return json_integer_value(json_object_get(event, key));
}

static int take_start(struct tr_runevents *r, const json_t *event, struct tr_error *err)
{
	const json_t *mesh = json_object_get(event, "mesh");
	struct tr_resumption *at;
	int rc = 0;

	for (int c = 0; rc == 0 && c < TR_CURVES; c++)
		if (r->curve[c].n)
			rc = add_point(&r->curve[c], (double)whole(event, "step"), NAN, err);
	if (rc < 0 || whole(event, "step") == 0)
		return rc;
	at = realloc(r->resumed, (r->resumed_n + 1) * sizeof(*at));
	if (!at)
		return no_memory(err);
	r->resumed = at;
	at[r->resumed_n++] = (struct tr_resumption){
		.step = whole(event, "step"), .ranks = whole(event, "ranks"),
		.dp = whole(mesh, "dp"), .tp = whole(mesh, "tp"), .pp = whole(mesh, "pp") };
	return 0;
}

static int take_step(struct tr_runevents *r, const json_t *event, struct tr_error *err)
{
	static const struct {
		enum tr_curve curve;
		const char *key;
	} member[] = {
		{ TR_CURVE_LOSS, "loss" }, { TR_CURVE_NORM, "grad_norm_hex" },
		{ TR_CURVE_RATE, "lr_hex" }, { TR_CURVE_SPEED, "tokens_per_s" },
		{ TR_CURVE_STALL, "blocked_ms" },
	};
	double step = number(event, "step");
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(member) / sizeof(member[0]); i++) {
		double y = number(event, member[i].key);

		if (isfinite(y) && isfinite(step))
			rc = add_point(&r->curve[member[i].curve], step, y, err);
	}
	return rc;
}

static int take_eval(struct tr_runevents *r, const json_t *event, struct tr_error *err)
{
	double step = number(event, "step"), y = number(event, "loss");

	return isfinite(step) && isfinite(y) ? add_point(&r->curve[TR_CURVE_EVAL], step, y, err) :
		0;
}

static int take_line(struct tr_runevents *r, const char *line, size_t n, struct tr_error *err)
{
	json_t *event = json_loadb(line, n, 0, NULL);
	const char *name = json_string_value(json_object_get(event, "event"));
	int rc = 0;

	if (!name)
		r->odd_lines++;
	else if (strcmp(name, "start") == 0)
		rc = take_start(r, event, err);
	else if (strcmp(name, "step") == 0)
		rc = take_step(r, event, err);
	else if (strcmp(name, "eval") == 0)
		rc = take_eval(r, event, err);
	json_decref(event);
	return rc;
}

int tr_runevents_read(struct tr_runevents *r, const char *path, struct tr_error *err)
{
	FILE *f = fopen(path, "re");
	char *line = NULL;
	size_t room = 0;
	ssize_t n;
	int rc = 0;

	*r = (struct tr_runevents){ .resumed = NULL };
	if (!f)
		return tr_fail(err, errno == ENOENT ? TR_ENOENT : TR_EIO, "%s: %s", path,
			       strerror(errno));
	while (rc == 0 && (errno = 0, n = getline(&line, &room, f)) >= 0)
		rc = take_line(r, line, (size_t)n, err);
	if (rc == 0 && (ferror(f) || errno))
		rc = tr_fail(err, TR_EIO, "%s: %s", path, strerror(errno));
	if (rc == 0 && !r->curve[TR_CURVE_LOSS].n)
		rc = tr_fail(err, TR_EINVAL, "%s: it has no event of a step; give the directory of "
			     "a run or its file of events", path);
	free(line);
	fclose(f);
	if (rc < 0)
		tr_runevents_release(r);
	return rc;
}

void tr_runevents_release(struct tr_runevents *r)
{
	for (int c = 0; c < TR_CURVES; c++)
		free(r->curve[c].at);
	free(r->resumed);
	*r = (struct tr_runevents){ .resumed = NULL };
}
