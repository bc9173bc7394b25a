/* SPDX-License-Identifier: Apache-2.0 */
/* What a training tells: lines of JSON for programs, lines of text for people. Rank 0 speaks. */
#ifndef TRAINEVENTS_H
#define TRAINEVENTS_H
#include <jansson.h>

#include "tr_error.h"

struct tr_events {
	int speaks;                     /* this is rank 0 */
	int json;                       /* to stdout */
	int fd;                         /* of the file of events; -1: none */
	int lost;                       /* a line could not be written, and that was said */
};
/* path NULL: no file. */
int tr_events_open(struct tr_events *e, int speaks, int json, const char *path,
		   struct tr_error *err);
void tr_events_close(struct tr_events *e);
/* Writes an event as one line with one write(2), and releases it. */
void tr_event(struct tr_events *e, json_t *event);
/* A line for people, unless stdout is for events. */
void tr_say(struct tr_events *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A double as C prints it with %a. */
json_t *tr_json_hex(double x);
/* 16 digits. */
json_t *tr_json_hash(unsigned long long hash);
#endif
