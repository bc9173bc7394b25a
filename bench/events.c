/* SPDX-License-Identifier: Apache-2.0 */
/* Output of sheaf-bench: events for programs, lines for people
 *
 * An event is one write(2), so that a line is not interleaved with others in a file that is shared,
 * and is complete before a kill right after.
 */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int bench_events_open(struct bench_events *e, const struct bench_opts *o, int rank,
		      struct sheaf_error *err)
{
	*e = (struct bench_events){ .speaks = rank == 0, .json = o->json, .fd = -1,
				    .path = o->events, .failed = e->failed };
	if (!e->speaks || !o->events)
		return 0;
	e->fd = open(o->events, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (e->fd < 0)
		return wl_fail(err, SHEAF_EIO, "%s: %s", o->events, strerror(errno));
	return 0;
}

void bench_events_close(struct bench_events *e)
{
	if (e->fd >= 0)
		close(e->fd);
	e->fd = -1;
}

/* Reports a write error once. A full disk stops the events, but not the job. */
static void not_written(const struct bench_events *e, const char *where, int error)
{
	if (*e->failed)
		return;
	*e->failed = 1;
	fputs("sheaf-bench: ", stderr);
	wl_put(stderr, where);
	fprintf(stderr, ": %s: events are lost\n", strerror(error));
}

static int write_line(int fd, const char *line, size_t n)
{
	ssize_t put;

	do
		put = write(fd, line, n);
	while (put < 0 && errno == EINTR);
	/* A pipe with a slow reader may accept only a part. */
	while (put > 0 && (size_t)put < n) {
		line += put;
		n -= (size_t)put;
		do
			put = write(fd, line, n);
		while (put < 0 && errno == EINTR);
	}
	return put < 0 ? -errno : (size_t)put == n ? 0 : -EIO;
}

void bench_event(const struct bench_events *e, json_t *event)
{
	char *text;
	size_t n;
	int rc;

	if (e->speaks && (e->json || e->fd >= 0) && event) {
		text = json_dumps(event, JSON_COMPACT | JSON_ENSURE_ASCII |
				  JSON_REAL_PRECISION(9));
		if (text) {
			n = strlen(text);
			text[n] = '\n'; /* replaces the NUL: one buffer, one write */
			rc = e->json ? write_line(STDOUT_FILENO, text, n + 1) : 0;
			if (rc < 0)
				not_written(e, "stdout", -rc);
			rc = e->fd >= 0 ? write_line(e->fd, text, n + 1) : 0;
			if (rc < 0)
				not_written(e, e->path, -rc);
			free(text);
		}
	}
	json_decref(event);
}

void bench_say(const struct bench_events *e, const char *fmt, ...)
{
	va_list ap;

	if (!e->speaks || e->json)
		return;
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	if (fflush(stdout) != 0)
		not_written(e, "stdout", errno);
}

int bench_exit_code(int code)
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
		return code > 0 ? 1 : 2; /* EVALUE */
	}
}

/* Converts text of unknown origin to JSON; bytes that are not UTF-8 become '?'. */
static json_t *text_of(const char *s)
{
	json_t *v = json_string(s);
	char *copy;

	if (v)
		return v;
	copy = strdup(s);
	for (char *p = copy; p && *p; p++)
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	v = copy ? json_string(copy) : json_null();
	free(copy);
	return v;
}

int bench_error(const struct bench *b, int64_t step, int code, const struct sheaf_error *err)
{
	if (!b->events.speaks)
		return code;
	fprintf(stderr, "sheaf-bench: %s: ", b->o->verb_name);
	if (step >= 0)
		fprintf(stderr, "step %lld: ", (long long)step);
	fprintf(stderr, "%s: ", wl_code_name(code));
	wl_put(stderr, err->msg);
	fputc('\n', stderr);
	bench_event(&b->events, json_pack("{s:s,s:s,s:o,s:s,s:i,s:o}", "event", "error", "verb",
					  b->o->verb_name, "step",
					  step >= 0 ? json_integer(step) : json_null(), "code",
					  wl_code_name(code), "rank", err->rank, "message",
					  text_of(err->msg)));
	return code;
}
