/* SPDX-License-Identifier: Apache-2.0 */
/* The output of a job, which rank 0 writes: events as JSON lines for programs; text on stdout and
 * warnings on stderr for people. */
#ifndef TRAINEVENTS_H
#define TRAINEVENTS_H
#include <jansson.h>

#include "tr_error.h"

/* The file of events in the directory of a run. */
#define TR_EVENTS_NAME "events.jsonl"

struct tr_events {
	int writes;                     /* 1 on rank 0; the other ranks write nothing */
	const char *path;               /* of the file of events, borrowed; NULL: none */
	int json;                       /* events go to stdout */
	int fd;                         /* of the file of events; -1: none */
	char *in_run;                   /* the file of tr_events_in_run; NULL: none */
	int began;                      /* 1: tr_events_begin was called */
	int lost;                       /* an event could not be written, and that was reported */
};
/* json  1: events go to stdout.
 * path  a file to which events are appended; NULL: none. */
int tr_events_open(struct tr_events *e, int writes, int json, const char *path,
		   struct tr_error *err);
/* Makes TR_EVENTS_NAME in the directory of a run the file of events, unless there is another one.
 * Events are written to it after tr_events_begin. */
int tr_events_in_run(struct tr_events *e, const char *run, struct tr_error *err);
/* Opens the file of tr_events_in_run. Call it when the run is open for writing: until then another
 * job may be training in it, and writing to this file. If the file cannot be opened, a message says
 * so, and the training goes on without it. */
void tr_events_begin(struct tr_events *e);
/* Makes this rank write events from now on, because the one that did is lost. */
void tr_events_take_over(struct tr_events *e);
void tr_events_close(struct tr_events *e);
/* Writes an event as one line with one write(2), and releases it. */
void tr_event(struct tr_events *e, json_t *event);
/* Prints a line for people, unless events go to stdout. */
void tr_say(struct tr_events *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints a warning to stderr, with the name of the program before it. */
void tr_warn(const struct tr_events *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns a double as the text that %a prints. */
json_t *tr_json_hex(double x);
/* Returns a hash as 16 digits. */
json_t *tr_json_hash(unsigned long long hash);
#endif
