/* SPDX-License-Identifier: Apache-2.0 */
/* Records the calls of two ranks, so that a test can compare their results. Include once, in the
 * test's only file. */
#ifndef SEEN_H
#define SEEN_H
#include "hands.h"
#include "t.h"
#include "save_commit.h"
#include "save_end.h"

/* Results of each call on each rank, compared when the ranks are done. */
enum { RANKS = 2, CALLS = 24 };
static struct seen {
	int rc[CALLS], n;
	char msg[CALLS][160];
} seen[RANKS];

static inline int note(struct hand *h, int rc)
{
	struct seen *s = &seen[h->rank];

	if (s->n < CALLS) {
		s->rc[s->n] = rc;
		snprintf(s->msg[s->n++], sizeof(s->msg[0]), "%.150s", rc ? h->err.msg : "");
	}
	return rc;
}

static inline int run_all(struct play *p, int (*act)(struct hand *h))
{
	memset(seen, 0, sizeof(seen));
	return hands_run(p, act, true);
}

/* Checks that call i returned rc on both ranks, and that both messages have the reason. */
static inline void check_seen(int i, int rc, const char *reason)
{
	for (int r = 0; r < RANKS; r++) {
		CHECK(i < seen[r].n);
		if (seen[r].rc[i] != rc || !strstr(seen[r].msg[i], reason))
			print_error("rank %d, call %d: %d: %s\n", r, i, seen[r].rc[i],
			            seen[r].msg[i]);
		CHECK_INT(seen[r].rc[i], rc);
		CHECK(strstr(seen[r].msg[i], reason) != NULL);
	}
}

static inline int begin(struct hand *h, struct sheaf_save **save, int64_t step)
{
	*save = NULL;
	return note(h, shf_save_begin(save, h->run, step, h->state, NULL, &h->err));
}

static inline int commit(struct hand *h, struct sheaf_save *save, int timeout_ms)
{
	return note(h, shf_save_commit(save, timeout_ms, &h->err));
}

static inline int save_step(struct hand *h, int64_t step)
{
	struct sheaf_save *save;
	int rc = begin(h, &save, step);

	rc = rc ? rc : commit(h, save, -1);
	shf_save_free(save);
	return rc;
}

static inline void little(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_F32, 2, 16, 32), 1, h->rank, h->ranks);
}
#endif
