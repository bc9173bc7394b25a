/* SPDX-License-Identifier: Apache-2.0 */
/* Collects every message and every log line of some calls, complete and in order, as one text. Any
 * wrong number, exchanged numbers, and missing or additional lines change the text. Include once,
 * in the test's only file. */
#ifndef SENTENCES_H
#define SENTENCES_H
#include <stdarg.h>
#include <stdlib.h>
#include "hands.h"
#include "t.h"
#include "save_commit.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };
static char told[65536];

__attribute__((format(printf, 1, 2))) static inline void tell(const char *fmt, ...)
{
	size_t at = strlen(told);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(told + at, sizeof(told) - at, fmt, ap);
	va_end(ap);
}

static inline void hear(void *arg, int level, const char *line)
{
	(void)arg;
	tell("%d %s\n", level, line);
}

/* Appends what a call returned on rank 0. Returns 0. */
static inline int said(struct hand *h, int rc)
{
	if (h->rank == 0 && rc < 0)
		tell("%d: %s\n", rc, h->err.msg);
	else if (h->rank == 0)
		tell("%d\n", rc);
	h->err.msg[0] = '\0';
	return 0;
}

/* The same for a call without a message. */
static inline void coded(struct hand *h, const char *what, int rc)
{
	if (h->rank == 0)
		tell("%s %d\n", what, rc);
}

/* Moves lines that end in the number of a rank other than 0 to the end, in the order of their
 * ranks, because the order of events on different ranks is not defined. In place. */
static inline void by_rank(char *text)
{
	static char zero[sizeof(told)], others[sizeof(told)];

	zero[0] = others[0] = '\0';
	for (int rank = -1; rank < 8; rank++)
		for (char *line = text, *end; *line; line = end) {
			int of = -1;

			end = strchr(line, '\n');
			end = end ? end + 1 : line + strlen(line);
			if (end - line > 8 && strncmp(end - 8, " rank ", 6) == 0)
				of = end[-2] - '0';
			of = of == 0 ? -1 : of;
			if (of == rank)
				strncat(rank < 0 ? zero : others, line, (size_t)(end - line));
		}
	snprintf(text, sizeof(told), "%s%s", zero, others);
}

static inline void is_text(const char *want)
{
	static char sorted[sizeof(told)];

	snprintf(sorted, sizeof(sorted), "%s", want);
	by_rank(sorted);
	by_rank(told);
	if (strcmp(told, sorted))
		print_error("%s", told);
	CHECK_STR(told, sorted);
}

static inline void story(struct play *p, int (*act)(struct hand *h), const char *want)
{
	told[0] = '\0';
	p->opts.log = hear;
	CHECK_RC(hands_run(p, act, true), 0, &p->err);
	is_text(want);
	simdisk_free(p->disk);
}

static inline struct sheaf_save *begun(struct hand *h, int64_t step, uint64_t flags)
{
	struct sheaf_save_opts o = { .size = sizeof(o), .flags = flags };
	struct sheaf_save *save = NULL;

	said(h, shf_save_begin(&save, h->run, step, h->state, &o, &h->err));
	return save;
}

static inline void committed(struct hand *h, struct sheaf_save *save, int timeout_ms)
{
	said(h, shf_save_commit(save, timeout_ms, &h->err));
}

static inline void two(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 64, 256), 1, h->rank, h->ranks);
	hand_cut(hand_add(h, "optimizer", "b", SHEAF_F32, 1, 100), 0, h->rank, h->ranks);
}
#endif
