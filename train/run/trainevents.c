/* SPDX-License-Identifier: Apache-2.0 */
#include "trainevents.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns whether the file ends within a line, as it does if a job was killed while it wrote. */
static int ends_within_line(const char *path, int fd)
{
	struct stat st;
	char last = '\n';
	int from;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
		return 0;
	from = open(path, O_RDONLY | O_CLOEXEC);
	if (from < 0)
		return 0;
	if (pread(from, &last, 1, st.st_size - 1) != 1)
		last = '\n';
	close(from);
	return last != '\n';
}

void tr_warn(const struct tr_events *e, const char *fmt, ...)
{
	va_list ap;

	if (!e->writes)
		return;
	va_start(ap, fmt);
	fputs("sheaf-train: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
}

static void put_line(struct tr_events *e, int fd, const char *line, size_t n)
{
	ssize_t put;

	do {
		put = write(fd, line, n);
		if (put > 0) {          /* a pipe may take less than all */
			line += put;
			n -= (size_t)put;
		}
	} while (n > 0 && (put > 0 || (put < 0 && errno == EINTR)));
	if (n > 0 && !e->lost) {
		e->lost = 1;
		tr_warn(e, "an event could not be written: %s; the training continues",
			strerror(errno));
	}
}

/* Opens the file of events. */
static int open_to_append(struct tr_events *e, const char *path)
{
	e->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (e->fd >= 0 && ends_within_line(path, e->fd))
		put_line(e, e->fd, "\n", 1);
	return e->fd < 0 ? -1 : 0;
}

int tr_events_open(struct tr_events *e, int writes, int json, const char *path,
		   struct tr_error *err)
{
	*e = (struct tr_events){ .writes = writes, .json = json, .path = path, .fd = -1 };
	if (!writes || !path)
		return 0;
	if (open_to_append(e, path) < 0)
		return tr_fail(err, TR_EIO, "%s: %s", path, strerror(errno));
	return 0;
}

int tr_events_in_run(struct tr_events *e, const char *run, struct tr_error *err)
{
	if (e->path || !run)
		return 0;
	if (asprintf(&e->in_run, "%s/%s", run, TR_EVENTS_NAME) < 0) {
		e->in_run = NULL;
		return tr_fail(err, TR_ENOMEM, "no memory for the name of the file of events");
	}
	return 0;
}

/* Opens the file of events. If it cannot be opened, the training goes on without it. */
static void open_or_say(struct tr_events *e, const char *path)
{
	if (open_to_append(e, path) < 0)
		tr_warn(e, "%s: %s; events are not written to it, and the training continues",
			path, strerror(errno));
}

void tr_events_begin(struct tr_events *e)
{
	e->began = 1;
	if (e->writes && e->in_run && e->fd < 0)
		open_or_say(e, e->in_run);
}

void tr_events_take_over(struct tr_events *e)
{
	if (e->writes)
		return;
	e->writes = 1;
	if (e->path || (e->in_run && e->began))
		open_or_say(e, e->path ? e->path : e->in_run);
}

void tr_events_close(struct tr_events *e)
{
	free(e->in_run);
	e->in_run = NULL;
	if (e->fd >= 0)
		close(e->fd);
	e->fd = -1;
}

void tr_event(struct tr_events *e, json_t *event)
{
	char *text;
	size_t n;

	if (e->writes && (e->json || e->fd >= 0) && event) {
		text = json_dumps(event, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
		if (text) {
			n = strlen(text);
			text[n++] = '\n'; /* over the final zero, so that one write is enough */
			if (e->json)
				put_line(e, STDOUT_FILENO, text, n);
			if (e->fd >= 0)
				put_line(e, e->fd, text, n);
			free(text);
		}
	}
	json_decref(event);
}

void tr_say(struct tr_events *e, const char *fmt, ...)
{
	va_list ap;

	if (!e->writes || e->json)
		return;
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

json_t *tr_json_hex(double x)
{
	char text[40];

	snprintf(text, sizeof(text), "%a", x);
	return json_string(text);
}

json_t *tr_json_hash(unsigned long long hash)
{
	char text[20];

	snprintf(text, sizeof(text), "%016llx", hash);
	return json_string(text);
}
