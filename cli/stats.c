/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf stats: reports how long saves blocked the training, from the lines that a job wrote about
 * them (.sheaf/metrics.jsonl). Anybody may have written these lines: values of a wrong type or
 * range are not used, and lines that are not metrics are counted. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "workload.h"

#define FILE_MAX (2 << 20)      /* bytes read at a file's end; a writer keeps to half as many */
#define MS_MAX 1e15

enum {
	BEGIN, IMAGE, GATES, GATE_MAX, EXCHANGE, WAIT, COMMIT, COPY, WALL, BLOCKED, TIMES
};
static const char *const times[TIMES] = {
	"begin_ms", "image_ms", "gates_ms", "gate_max_ms", "exchange_ms", "wait_ms", "commit_ms",
	"copy_ms", "wall_ms", "blocked_ms"
};
enum { COMMITTED, DROPPED, FAILED, WHATS };
static const char *const whats[WHATS] = {
	[COMMITTED] = "committed", [DROPPED] = "dropped", [FAILED] = "failed"
};
struct row {                    /* one save */
	int what;
	bool lazy, disk;
	char session[33], at[21];
	int64_t step, code, ranks, of, images, bytes, gates, gates_waited;
	double ms[TIMES];
};
struct rows {
	struct row *a;                  /* owned; newest last */
	size_t n, cap, bad;
	bool any;                       /* there is a file */
};

/* ---- reading ---- */

static bool take_time(const json_t *o, const char *name, double *ms)
{
	const json_t *v = json_object_get(o, name);

	*ms = json_number_value(v);
	return json_is_number(v) && *ms >= 0 && *ms <= MS_MAX;
}

static bool take_count(const json_t *o, const char *name, int64_t *n)
{
	const json_t *v = json_object_get(o, name);

	*n = json_integer_value(v);
	return json_is_integer(v) && *n >= 0;
}

/* Copies a member if it has only these letters; otherwise none of it. */
static void take_word(const json_t *o, const char *name, const char *letters, char *out, size_t n)
{
	const char *s = json_string_value(json_object_get(o, name));

	if (s && strlen(s) < n && strspn(s, letters) == strlen(s))
		memcpy(out, s, strlen(s) + 1);
}

static bool take_row(const json_t *o, struct row *r)
{
	const char *what = json_string_value(json_object_get(o, "what"));
	const json_t *code = json_object_get(o, "code");

	for (r->what = 0; r->what < WHATS; r->what++)
		if (what && strcmp(what, whats[r->what]) == 0)
			break;
	if (r->what == WHATS || !json_is_integer(json_object_get(o, "step")) ||
	    !json_is_integer(code) || !take_count(o, "ranks", &r->ranks) ||
	    !take_count(o, "of", &r->of) || !take_count(o, "images", &r->images) ||
	    !take_count(o, "bytes", &r->bytes) || !take_count(o, "gates", &r->gates) ||
	    !take_count(o, "gates_waited", &r->gates_waited))
		return false;
	r->step = json_integer_value(json_object_get(o, "step"));
	r->code = json_integer_value(code);
	r->lazy = json_is_true(json_object_get(o, "lazy"));
	r->disk = !json_is_false(json_object_get(o, "disk"));
	take_word(o, "session", "0123456789abcdef", r->session, sizeof(r->session));
	take_word(o, "at", "0123456789-:TZ", r->at, sizeof(r->at));
	for (int i = 0; i < BLOCKED; i++)
		if (!take_time(o, times[i], &r->ms[i]))
			return false;
	r->ms[BLOCKED] = r->ms[BEGIN] + r->ms[GATES] + r->ms[EXCHANGE] + r->ms[WAIT] +
			 r->ms[COMMIT];
	return true;
}

static bool row_add(struct rows *rows, const struct row *r)
{
	size_t cap = rows->cap ? 2 * rows->cap : 256;
	struct row *more;

	if (rows->n == rows->cap) {
		more = realloc(rows->a, cap * sizeof(*more));
		if (!more)
			return false;
		rows->a = more;
		rows->cap = cap;
	}
	rows->a[rows->n++] = *r;
	return true;
}

static bool take_line(struct rows *rows, const char *line, size_t n)
{
	struct row r = { 0 };
	json_t *o;
	bool good;

	if (n == 0)
		return true;
	o = json_loadb(line, n, JSON_REJECT_DUPLICATES, NULL);
	good = o && json_is_object(o) && take_row(o, &r);
	json_decref(o);
	rows->bad += !good;
	return !good || row_add(rows, &r);
}

/* Reads a file; a missing one counts as empty. Returns 0 or a negative errno. */
static int take_file(struct rows *rows, int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), rc = 0;
	char *text = NULL, *p, *end;
	struct stat st;
	ssize_t n = 0;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (fstat(fd, &st) < 0)
		rc = -errno;
	else if (!S_ISREG(st.st_mode))
		rc = -EINVAL;
	else if (!(text = malloc(FILE_MAX + 1)))
		rc = -ENOMEM;
	if (rc == 0)
		n = pread(fd, text, FILE_MAX, st.st_size > FILE_MAX ? st.st_size - FILE_MAX : 0);
	if (n < 0)
		rc = -errno;
	rows->any |= rc == 0;
	for (p = text, end = text + n; rc == 0 && p < end;) {
		char *eol = memchr(p, '\n', (size_t)(end - p));
		size_t len = (size_t)((eol ? eol : end) - p);

		if (!take_line(rows, p, len))
			rc = -ENOMEM;
		p += len + 1;
	}
	free(text);
	close(fd);
	return rc;
}

static int take_all(const struct cli_args *a, const char *path, struct rows *rows)
{
	int run = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), dot, rc;

	dot = run < 0 ? -1
		      : openat(run, ".sheaf", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	rc = dot < 0 && errno != ENOENT ? -errno : 0;
	if (dot >= 0)
		rc = take_file(rows, dot, "metrics.1.jsonl");
	if (dot >= 0 && rc == 0)
		rc = take_file(rows, dot, "metrics.jsonl");
	if (dot >= 0)
		close(dot);
	if (run >= 0)
		close(run);
	if (rc < 0)
		return cli_error(a, rc == -ENOMEM ? SHEAF_ENOMEM : SHEAF_EIO, path, strerror(-rc),
				 NULL);
	if (!rows->any)
		return cli_error(a, SHEAF_ENOENT, path, "no job has written metrics here",
		                 "open the run with SHEAF_RUN_METRICS, in Python with "
		                 "metrics=True");
	return 0;
}

/* ---- sums ---- */

struct sums {
	size_t saves, of[WHATS];
	int64_t bytes;                  /* of committed saves */
	double sum[TIMES];              /* of all saves */
	double median[TIMES], p99[TIMES], most[TIMES]; /* of committed saves */
};

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Percentiles are by nearest rank. Returns false if there is no memory. */
static bool sum_up(struct sums *s, const struct row *r, size_t n)
{
	double *x = malloc((n ? n : 1) * sizeof(*x));

	if (!x)
		return false;
	*s = (struct sums){ .saves = n };
	for (size_t i = 0; i < n; i++) {
		s->of[r[i].what]++;
		if (r[i].what == COMMITTED && s->bytes <= INT64_MAX - r[i].bytes)
			s->bytes += r[i].bytes;
	}
	for (int t = 0; t < TIMES; t++) {
		size_t k = 0;

		for (size_t i = 0; i < n; i++) {
			s->sum[t] += r[i].ms[t];
			if (r[i].what == COMMITTED)
				x[k++] = r[i].ms[t];
		}
		if (k == 0)
			continue;
		qsort(x, k, sizeof(*x), by_size);
		s->median[t] = x[(k + 1) / 2 - 1];
		s->p99[t] = x[(k * 99 + 99) / 100 - 1];
		s->most[t] = x[k - 1];
	}
	free(x);
	return true;
}

/* ---- output ---- */

/* Converts bytes and milliseconds to GB/s. */
static double gb_s(int64_t bytes, double ms)
{
	return ms > 0 ? (double)bytes / 1e6 / ms : 0;
}

static void print_row(const struct row *r)
{
	char size[32];

	printf("%10lld  %-9s  %9.2f  %9.2f  %9.2f  %9.2f  %9.2f  %9.2f  %9.2f  %9.2f  %6lld  "
	       "%10s  %6.2f\n", (long long)r->step, whats[r->what], r->ms[BLOCKED], r->ms[BEGIN],
	       r->ms[IMAGE], r->ms[GATES], r->ms[GATE_MAX], r->ms[EXCHANGE], r->ms[COMMIT],
	       r->ms[WALL], (long long)r->images, wl_size(size, (uint64_t)r->bytes),
	       r->what == COMMITTED ? gb_s(r->bytes, r->ms[WALL]) : 0.0);
}

static void print_table(const struct row *r, size_t n, size_t shown, const struct sums *s)
{
	static const int causes[] = { BLOCKED, BEGIN, IMAGE, GATES, GATE_MAX, EXCHANGE, WAIT,
		COMMIT, COPY, WALL };
	char size[32];

	printf("%10s  %-9s  %9s  %9s  %9s  %9s  %9s  %9s  %9s  %9s  %6s  %10s  %6s\n", "STEP",
	       "WHAT", "BLOCKED", "BEGIN", "IMAGE", "GATES", "LONGEST", "EXCHANGE", "COMMIT",
	       "WALL", "IMAGES", "SIZE", "GB/S");
	for (size_t i = n - shown; i < n; i++)
		print_row(&r[i]);
	printf("\n%zu saves: %zu committed, %zu dropped, %zu failed; %s\n\n", s->saves,
	       s->of[COMMITTED], s->of[DROPPED], s->of[FAILED],
	       wl_size(size, (uint64_t)s->bytes));
	printf("%-11s  %12s  %10s  %10s  %10s\n", "", "SUM", "MEDIAN", "P99", "MOST");
	for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++) {
		int t = causes[i];

		printf("%-11s  %12.2f  %10.2f  %10.2f  %10.2f\n", times[t], s->sum[t],
		       s->median[t], s->p99[t], s->most[t]);
	}
}

static void line_row(const struct row *r)
{
	json_t *o = json_pack("{s:s,s:I,s:o,s:o,s:I,s:I,s:I,s:b,s:b,s:I,s:I,s:I,s:I}", "what",
			      whats[r->what], "step", (json_int_t)r->step, "session",
			      cli_str(r->session), "at", cli_str(r->at), "code",
			      (json_int_t)r->code, "ranks", (json_int_t)r->ranks, "of",
			      (json_int_t)r->of, "lazy", r->lazy, "disk", r->disk,
			      "images", (json_int_t)r->images, "bytes", (json_int_t)r->bytes,
			      "gates", (json_int_t)r->gates, "gates_waited",
			      (json_int_t)r->gates_waited);

	for (int t = 0; t < TIMES; t++)
		json_object_set_new(o, times[t], json_real(r->ms[t]));
	json_object_set_new(o, "gb_s", json_real(gb_s(r->bytes, r->ms[WALL])));
	cli_line(o);
}

static void line_sums(const struct sums *s, size_t bad)
{
	json_t *o = json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "what", "sums", "saves",
			      (json_int_t)s->saves, "committed", (json_int_t)s->of[COMMITTED],
			      "dropped", (json_int_t)s->of[DROPPED], "failed",
			      (json_int_t)s->of[FAILED], "bytes", (json_int_t)s->bytes,
			      "bad_lines", (json_int_t)bad);

	for (int t = 0; t < TIMES; t++)
		json_object_set_new(o, times[t], json_pack("{s:f,s:f,s:f,s:f}", "sum", s->sum[t],
				    "median", s->median[t], "p99", s->p99[t], "most", s->most[t]));
	cli_line(o);
}

static int say(const struct cli_args *a, const struct rows *rows, size_t n, size_t shown)
{
	const struct row *r = rows->a ? rows->a + rows->n - n : NULL;
	struct sums s;

	if (!sum_up(&s, r, n))
		return cli_nomem(a);
	if (!a->json) {
		print_table(r, n, shown < n ? shown : n, &s);
		return 0;
	}
	for (size_t i = 0; i < n; i++)
		line_row(&r[i]);
	line_sums(&s, rows->bad);
	return 0;
}

static int run(const struct cli_args *a)
{
	struct cli_place place = { 0 };
	struct rows rows = { 0 };
	int64_t last = 0;
	int rc = cli_int(a, "last", 1, INT32_MAX, &last);
	char why[80];

	if (!rc)
		rc = cli_place_run(&place, a, a->pos[0]);
	if (!rc)
		rc = take_all(a, place.path, &rows);
	if (!rc && last && (size_t)last < rows.n)
		rc = say(a, &rows, (size_t)last, (size_t)last);
	else if (!rc)
		rc = say(a, &rows, rows.n, last ? rows.n : 20);
	if (!rc && rows.bad) {
		snprintf(why, sizeof(why), "%zu %s not valid metrics and skipped", rows.bad,
			 rows.bad == 1 ? "line is" : "lines are");
		(void)cli_error(a, SHEAF_EFORMAT, place.path, why, NULL);
	}
	free(rows.a);
	cli_place_release(&place);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "last", "N", "the newest N saves alone" },
	{ 0 },
};
const struct cli_verb cli_stats = {
	.name = "stats",
	.brief = "where saves blocked the training",
	.synopsis = "sheaf stats RUN [--last N] [--json]",
	.text = "Reads what a job that asked for it (SHEAF_RUN_METRICS) wrote of its saves, and\n"
		"prints the newest 20, then sums of all: how long the callers were blocked in\n"
		"begin (of it IMAGE until an image was free), in the gates of lazy saves\n"
		"(LONGEST: in one of them), in exchange, in wait and in commit, and WALL, from\n"
		"begin until the save was over. Times are milliseconds; each is that of the\n"
		"slowest rank. Sums are of all saves, MEDIAN, P99 and MOST of the committed\n"
		"ones. With --last only those N are looked at.\n\n"
		"Lines that are no metrics, as a power loss may leave one, are passed over and\n"
		"counted on stderr.\n\n"
		"With --json an object for each save: {what, step, session, at, code, ranks,\n"
		"of, lazy, disk, images, bytes, gates, gates_waited, begin_ms, image_ms,\n"
		"gates_ms, gate_max_ms, exchange_ms, wait_ms, commit_ms, copy_ms, wall_ms,\n"
		"blocked_ms, gb_s}; and a last one of what \"sums\": {saves, committed,\n"
		"dropped, failed, bytes, bad_lines} and {sum, median, p99, most} of each time.",
	.exits = "  0  printed\n"
		 "  2  no such run, no metrics in it, or they could not be read",
	.examples = "  sheaf stats runs/gpt\n"
		    "  sheaf stats runs/gpt --json | jq 'select(.what==\"sums\").blocked_ms'",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "RUN",
	.run = run,
};
