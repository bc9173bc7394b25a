/* SPDX-License-Identifier: Apache-2.0 */
#include "runevents.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_MAX 1000000000000000       /* the largest value of the option `steps` */
#define NUMBER_MAX 1e300

static int no_memory(struct tr_error *err)
{
	return tr_fail(err, TR_ENOMEM, "no memory for the events");
}

/* Returns room for one more item of `bytes` after n of them, or NULL. The memory doubles. */
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

/* Returns a member that is a number, or a string that tr_json_hex has made of one; otherwise
 * NaN. */
static double number(const json_t *event, const char *key)
{
	const json_t *member = json_object_get(event, key);
	const char *text = json_string_value(member);
	char *end;
	double x;

	if (json_is_number(member))
		return json_number_value(member);
	x = text ? strtod(text, &end) : NAN;
	return text && *text && !*end ? x : NAN;
}

/* Returns whether a number can be drawn. The sums of a job do not become larger, and the difference
 * of larger ones may be infinite. */
static int is_drawn(double y)
{
	return fabs(y) <= NUMBER_MAX;
}

static int64_t whole(const json_t *event, const char *key)
{
	return json_integer_value(json_object_get(event, key));
}

/* Returns the step of an event, or -1 if no job has such a step. */
static int64_t step_of(const json_t *event)
{
	int64_t step = whole(event, "step");

	return json_is_integer(json_object_get(event, "step")) && step >= 0 && step <= STEP_MAX ?
		step : -1;
}

static int take_start(struct tr_runevents *r, const json_t *event, int64_t step,
		      struct tr_error *err)
{
	const json_t *mesh = json_object_get(event, "mesh");
	const char *job = json_string_value(json_object_get(event, "job"));
	int evaluates = job && strcmp(job, "eval") == 0;
	struct tr_resumption *at;
	int rc = 0;

	/* An evaluation of a checkpoint trains nothing, so only its own points are apart. */
	for (int c = 0; rc == 0 && c < TR_CURVES; c++)
		if (r->curve[c].n && (!evaluates || c == TR_CURVE_EVAL))
			rc = add_point(&r->curve[c], (double)step, NAN, err);
	if (rc < 0 || step == 0 || evaluates)
		return rc;
	at = realloc(r->resumed, (r->resumed_n + 1) * sizeof(*at));
	if (!at)
		return no_memory(err);
	r->resumed = at;
	at[r->resumed_n++] = (struct tr_resumption){
		.step = step, .ranks = whole(event, "ranks"),
		.dp = whole(mesh, "dp"), .tp = whole(mesh, "tp"), .pp = whole(mesh, "pp") };
	return 0;
}

static int take_step(struct tr_runevents *r, const json_t *event, int64_t step,
		     struct tr_error *err)
{
	static const struct {
		enum tr_curve curve;
		const char *key;
	} member[] = {
		{ TR_CURVE_LOSS, "loss" }, { TR_CURVE_NORM, "grad_norm_hex" },
		{ TR_CURVE_RATE, "lr_hex" }, { TR_CURVE_SPEED, "tokens_per_s" },
		{ TR_CURVE_STALL, "blocked_ms" },
	};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(member) / sizeof(member[0]); i++) {
		double y = number(event, member[i].key);

		if (is_drawn(y))
			rc = add_point(&r->curve[member[i].curve], (double)step, y, err);
	}
	return rc;
}

static int take_eval(struct tr_runevents *r, const json_t *event, int64_t step,
		     struct tr_error *err)
{
	double y = number(event, "loss");

	return is_drawn(y) ? add_point(&r->curve[TR_CURVE_EVAL], (double)step, y, err) : 0;
}

static int take_line(struct tr_runevents *r, const char *line, size_t n, struct tr_error *err)
{
	static const struct {
		const char *name;
		int (*take)(struct tr_runevents *, const json_t *, int64_t, struct tr_error *);
	} kind[] = { { "start", take_start }, { "step", take_step }, { "eval", take_eval } };
	json_t *event = json_loadb(line, n, 0, NULL);
	const char *name = json_string_value(json_object_get(event, "event"));
	int64_t step = step_of(event);
	int rc = 0;

	r->odd_lines += !name;
	for (size_t i = 0; name && i < sizeof(kind) / sizeof(kind[0]); i++) {
		if (strcmp(name, kind[i].name) != 0)
			continue;
		r->odd_lines += step < 0;
		if (step >= 0)
			rc = kind[i].take(r, event, step, err);
	}
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
