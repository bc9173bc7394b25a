/* SPDX-License-Identifier: Apache-2.0 */
#include "trainevents.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int open_to_append(const char *path)
{
	return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

int tr_events_open(struct tr_events *e, int writes, int json, const char *path,
		   struct tr_error *err)
{
	*e = (struct tr_events){ .writes = writes, .json = json, .path = path, .fd = -1 };
	if (!writes || !path)
		return 0;
	e->fd = open_to_append(path);
	if (e->fd < 0)
		return tr_fail(err, TR_EIO, "%s: %s", path, strerror(errno));
	return 0;
}

int tr_events_in_run(struct tr_events *e, const char *run, struct tr_error *err)
{
	if (e->path || !run)
		return 0;
	if (asprintf(&e->later, "%s/%s", run, TR_EVENTS_NAME) < 0) {
		e->later = NULL;
		return tr_fail(err, TR_ENOMEM, "no memory for the name of the file of events");
	}
	return 0;
}

void tr_events_take_over(struct tr_events *e)
{
	if (e->writes)
		return;
	e->writes = 1;
	e->fd = e->path ? open_to_append(e->path) : -1;
	if (e->path && e->fd < 0)
		fprintf(stderr, "sheaf-train: %s: %s\n", e->path, strerror(errno));
}

void tr_events_close(struct tr_events *e)
{
	free(e->later);
	e->later = NULL;
	if (e->fd >= 0)
		close(e->fd);
	e->fd = -1;
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
		fprintf(stderr, "sheaf-train: an event could not be written: %s; the training "
			"continues\n", strerror(errno));
	}
}

void tr_event(struct tr_events *e, json_t *event)
{
	char *text;
	size_t n;

	if (e->writes && e->fd < 0 && e->later)
		e->fd = open_to_append(e->later);
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
