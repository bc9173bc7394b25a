/* SPDX-License-Identifier: Apache-2.0 */
/* Which step is taken from memory: what the agents of all nodes have, and what of it is better than
 * what lies on disk. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "recall.h"
#include "spread.h"
#include "tier.h"

#define TRIES_MAX 2             /* sessions that may load a step and come no further */

struct choice {
	bool memory;
	bool on_disk;                   /* what is in no memory is there */
	struct shf_recalled which;
	int64_t base_step;              /* of the disk, that it follows; -1: none */
	char base_session[33];
};
struct choosing {
	struct sheaf_run *run;
	struct shf_newest disk;
	int64_t n;
	struct choice *choice;
};

static int consider(void *arg, const struct shf_recalled *r)
{
	struct choosing *c = arg;
	bool same = r->step == c->disk.known && strcmp(r->session, c->disk.session) == 0;
	const char *why = NULL;

	if (c->n != SHEAF_LATEST && r->step != c->n)
		return 0;
	if (c->n == SHEAF_LATEST && r->step <= c->disk.newest && !same)
		return 0;       /* the disk's is newer */
	if (r->here != r->ranks && !same)
		why = "not all of it is there";
	else if (r->tries >= TRIES_MAX)
		why = "it failed to resume twice";
	else if (!same && !shf_recall_follows(&c->run->store, r, &c->disk))
		why = "it does not follow the newest step on disk";
	if (why) {
		shf_log(c->run, 1, "%s: step %" PRId64 " in memory is passed over: %s",
		        c->run->store.path, r->step, why);
		return 0;
	}
	c->choice->memory = true;
	c->choice->on_disk = same && r->here != r->ranks;
	c->choice->which = *r;
	c->choice->base_step = c->disk.known;
	memcpy(c->choice->base_session, c->disk.session, sizeof(c->disk.session));
	return 1;
}

/* [rank 0] */
static int choose(struct sheaf_run *run, int64_t n, struct shf_buf *cards, struct choice *choice,
                  struct shf_buf *copied, struct sheaf_error *err)
{
	struct choosing c = { .run = run, .n = n, .choice = choice };
	int rc = shf_store_newest(&run->store, n == SHEAF_LATEST ? 0 : n, &c.disk, err);

	if (rc == 0 && shf_store_rewinds(&run->store) == UINT64_MAX)
		rc = shf_fail(err, SHEAF_EIO, "%s/.sheaf/rewinds cannot be read: was what is in "
		              "memory rewound?", run->store.path);
	if (rc == 0 && (shf_recall_join(cards, consider, &c) < 0 ||
	                (choice->which.copied &&
	                 shf_recall_copied(cards, &choice->which, copied) < 0)))
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	return rc;
}

/* The cards of every agent, to rank 0; one of each node asks. [collective] */
static int gather(struct sheaf_run *run, struct shf_buf *all, struct sheaf_error *err)
{
	struct shf_buf mine = SHF_BUF_INIT;
	int asked = 0, rc;

	if (shf_tier_is_up(run) && run->place.node_first == run->team.rank)
		asked = shf_recall_cards(run->sys, run->tier.keep, run->store.run, true, &mine);
	if (asked < 0) {
		struct sheaf_error why;

		shf_fail_sys(&why, -asked, "asking the agent");
		shf_log(run, 1, "%s: what is in memory is not known: %s, rank %d",
		        run->store.path, why.msg, run->team.rank);
		shf_buf_reset(&mine);
	}
	rc = shf_to_zero(&run->team, &mine, all, err);
	shf_buf_release(&mine);
	return rc;
}

/* What of the step this node has: a view of it, which may be one of nothing. */
static int look(struct sheaf_run *run, const struct choice *choice, const struct shf_buf *copied,
                struct shf_view **view, struct sheaf_error *err)
{
	if (run->tier.keep >= 0)
		return shf_recall_parts(run->sys, run->tier.keep, &choice->which, copied, view,
		                        err);
	*view = shf_view_new(run->sys);
	return *view ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a step in memory");
}

/* All have a view of it, or nobody. [collective] */
static int open_all(struct sheaf_run *run, const struct choice *choice,
                    const struct shf_buf *copied, struct shf_view **view, struct sheaf_error *err)
{
	struct sheaf_error own = { .rank = -1 };
	char name[48];
	int rc = shf_agree(&run->team, look(run, choice, copied, view, &own), &own);

	snprintf(name, sizeof(name), "checkpoint-%" PRId64, choice->which.step);
	if (rc == 0)
		rc = shf_spread(run, *view, choice->on_disk ? name : NULL, &own);
	if (rc == 0)
		return 0;
	shf_view_free(*view);
	*view = NULL;
	if (rc == SHEAF_ELOST) {
		if (err)
			*err = own;
		return rc;
	}
	shf_log(run, 1, "%s: step %" PRId64 " is not taken from memory: %s, rank %d",
	        run->store.path, choice->which.step, own.msg, own.rank);
	return 0;
}

int shf_recall(struct sheaf_run *run, int64_t n, struct shf_view **view, struct shf_base *base,
               struct sheaf_error *err)
{
	struct choice choice = { .memory = false };
	struct shf_buf cards = SHF_BUF_INIT, copied = SHF_BUF_INIT;
	int rc;

	*view = NULL;
	if (!run->tier.wanted)
		return 0;
	rc = gather(run, &cards, err);
	if (rc == 0)
		rc = shf_agree(&run->team, run->team.rank == 0
		               ? choose(run, n, &cards, &choice, &copied, err) : 0, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, &choice, sizeof(choice), err);
	if (rc == 0)
		rc = shf_bcast_buf(&run->team, &copied, err);
	shf_buf_release(&cards);
	if (rc == 0 && choice.memory)
		rc = open_all(run, &choice, &copied, view, err);
	shf_buf_release(&copied);
	if (rc == 0 && *view) {
		base->step = choice.base_step;
		base->tries = choice.which.tries;
		memcpy(base->session, choice.base_session, sizeof(base->session));
	}
	return rc;
}
