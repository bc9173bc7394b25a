/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether a step is loaded from memory, and which. Rank 0 compares the steps that the
 * agents of all nodes have with the steps on disk. A step in memory is usable if it is complete,
 * newer than all steps on disk, and follows the newest of them; or if the same save is the newest
 * on disk. If it does not follow the newest step on disk, the run was rewound, or another job went
 * on from an older step. */
#include "memory_choose.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "agent_link.h"
#include "aside.h"
#include "err.h"
#include "fresh_list.h"
#include "latest_search.h"
#include "manifest_read.h"
#include "marks.h"
#include "memory_map.h"
#include "memory_steps.h"
#include "memory_tier.h"
#include "run_env.h"
#include "tries.h"

#define CONDEMNED "jobs resumed from it and ended without saving"

/* What rank 0 has chosen; broadcast as it is. */
struct choice {
	bool memory;                    /* a step in memory is chosen */
	bool on_disk;                   /* parts that no node has in memory are read from the same
	                                 * step on disk */
	struct shf_memory_step which;
	int64_t base_step;              /* step on disk that the chosen step follows, or the chosen
	                                 * step itself; -1: none */
	char base_session[33];
	int64_t beyond;                 /* see struct shf_base (run.h) */
};
/* The state of the search on rank 0. */
struct choosing {
	struct sheaf_run *run;
	struct shf_newest disk;         /* the newest steps on disk */
	int64_t n;                      /* the number that is searched for */
	struct shf_latest_search *sought;      /* NULL: step n is searched for, not the latest */
	struct choice *choice;
	struct shf_memory_step last;    /* a condemned step that is taken if no other step is; ranks
	                                 * 0: no such step */
	int rc;                         /* a code: the search failed, and *err says why */
	struct sheaf_error *err;
};

/* Returns whether step n is searched for by its number, and the same save lies on disk, marked bad.
 * Steps that are marked bad do not count in disk.newest and disk.known. */
static bool has_bad_twin(struct choosing *c, const struct shf_memory_step *r)
{
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct sheaf_error err;
	bool twin;

	if (c->sought || !c->disk.exists || !c->disk.is_bad)
		return false;
	twin = shf_store_manifest(&c->run->store, r->step, &m, &arena, &err) == 0 &&
	       strcmp(m.session, r->session) == 0;
	shf_arena_release(&arena);
	return twin;
}

/* Sets the choice to this step. If parts of some ranks are missing and the same save is on disk,
 * they are read from disk. */
static void choose_step(struct choosing *c, const struct shf_memory_step *r)
{
	bool same = r->step == c->disk.known && strcmp(r->session, c->disk.session) == 0;

	c->choice->memory = true;
	c->choice->on_disk = same && r->here != r->ranks;
	c->choice->which = *r;
	c->choice->base_step = c->disk.known;
	memcpy(c->choice->base_session, c->disk.session, sizeof(c->disk.session));
	if (has_bad_twin(c, r)) {
		c->choice->base_step = r->step;
		memcpy(c->choice->base_session, r->session, sizeof(r->session));
	}
}

/* Returns whether the step was tried too often (condemned). This counts only in a search for the
 * latest step. */
static bool tries_are_spent(struct choosing *c, const struct shf_memory_step *r)
{
	return c->sought && shf_tries_spent(&c->run->store, r->step, r->session);
}

/* Returns whether the search still has to try this step in memory: it comes after s->after, the
 * candidate that was tried before. If that one was on disk, the step counts only if the same save
 * is on disk too (`same`), because a step that is only in memory must be newer than all steps on
 * disk. If none was tried yet, after.step is INT64_MAX. */
static bool is_asked_for(const struct shf_latest_search *s, const struct shf_memory_step *r,
                         bool same)
{
	return r->step < s->after.step && (same || s->after.memory || s->after.step == INT64_MAX);
}

/* Logs why the step is not taken. In a search for the latest step the reason is also added to the
 * caller's report. */
static void pass_over_in_memory(struct choosing *c, const struct shf_memory_step *r,
                                const char *why)
{
	char name[20 + SHF_STEP_NAME], t[SHF_STEP_NAME];

	shf_log(c->run, 1, "%s: step %" PRId64 " in memory is passed over: %s", c->run->store.path,
	        r->step, why);
	if (!c->sought)
		return;
	shf_name_of_step(&c->run->store, t, r->step);
	snprintf(name, sizeof(name), "memory of %s", t);
	shf_latest_search_pass(c->sought, name, why);
	if (r->here == r->ranks && c->run->tier->passed < r->step)
		c->run->tier->passed = r->step;
}

/* Handles a condemned step. If there is no older step on disk, the condemned step is kept in
 * c->last, because the job may have nothing else to go on from. If another step was in c->last, it
 * is passed over now. */
static void condemn(struct choosing *c, const struct shf_memory_step *r)
{
	bool last = shf_step_older(&c->run->store, r->step) < 0;

	if (!last)
		pass_over_in_memory(c, r, CONDEMNED);
	else if (c->last.ranks)
		pass_over_in_memory(c, &c->last, CONDEMNED);
	if (last)
		c->last = *r;
}

/* Returns 1 if the step is not marked bad, 0 if it is, or EIO if its mark cannot be read. */
static int is_good(const struct choosing *c, const struct shf_memory_step *r)
{
	int bad = shf_store_is_bad(&c->run->store, r->step, r->session, c->err);

	return bad < 0 ? bad : !bad;
}

/* Returns 1 if step n was asked for by its number, and this step is a newer one that a search for
 * the latest step would take from memory; 0 if not, or EIO. */
static int is_beyond(const struct choosing *c, const struct shf_memory_step *r)
{
	struct shf_store *store = &c->run->store;
	int rc;

	if (c->sought || r->step <= c->n || r->step <= c->disk.newest || r->here != r->ranks)
		return 0;
	rc = shf_memory_step_follows(store, r, &c->disk, c->err);
	if (rc == 1)
		rc = is_good(c, r);
	return rc == 1 ? !shf_tries_spent(store, r->step, r->session) : rc;
}

/* Returns why this step, which was requested, must not be taken; NULL: it may be. *rc: 0, or EIO if
 * that cannot be found out. The checks are in the order of what is most useful to a person who
 * reads the log: that a step is incomplete before that it is marked bad. same: it is on disk. */
static const char *why_not(const struct choosing *c, const struct shf_memory_step *r, bool same,
                           int *rc)
{
	if (r->here != r->ranks && !same)
		return "not all of it is in memory";
	*rc = same ? 1 : shf_memory_step_follows(&c->run->store, r, &c->disk, c->err);
	if (*rc == 0)
		return "it does not follow the newest step on disk";
	/* A step that is asked for by its number is taken from disk even if it is marked bad. */
	if (*rc == 1 && (c->sought || !c->disk.exists))
		*rc = is_good(c, r);
	if (*rc == 0)
		return "it is marked bad";
	*rc = *rc < 0 ? *rc : 0;
	return NULL;
}

/* Called for each step in memory, in the order of shf_memory_steps_join, until one is chosen or
 * c->rc is a code. Then it returns a value other than 0. */
static int consider_for_load(void *arg, const struct shf_memory_step *r)
{
	struct choosing *c = arg;
	bool same = r->step == c->disk.known && strcmp(r->session, c->disk.session) == 0;
	const char *why;
	int beyond = c->choice->beyond < 0 ? is_beyond(c, r) : 0;

	if (beyond < 0)
		return c->rc = beyond;
	if (beyond)
		c->choice->beyond = r->step;
	if (c->sought ? !is_asked_for(c->sought, r, same) : r->step != c->n)
		return 0;
	/* If the disk has a newer step, that one is the latest, even if it cannot be read. */
	if (c->sought && r->step <= c->disk.newest && (!same || c->disk.known != c->disk.newest))
		return 0;
	why = why_not(c, r, same, &c->rc);
	/* The same step is a candidate on disk, and the search there reports the mark. */
	if (c->rc < 0 && c->sought && same)
		return c->rc = 0;
	if (c->rc < 0)
		return c->rc;
	if (why)
		pass_over_in_memory(c, r, why);
	else if (tries_are_spent(c, r))
		condemn(c, r);
	else
		choose_step(c, r);
	return c->choice->memory;
}

/* Chooses a step from the cards of all agents. A condemned step is taken if no other
 * step is. *copied: the ranks of the chosen step of which only replicas were found. [rank 0] */
static int choose_from_memory(struct sheaf_run *run, int64_t n, struct shf_latest_search *sought,
                              struct shf_buf *cards, struct choice *choice, struct shf_buf *copied,
                              struct sheaf_error *err)
{
	struct choosing c = { .run = run, .n = n, .sought = sought, .choice = choice, .err = err };
	int64_t below = sought ? shf_latest_search_below(sought) : INT64_MAX;
	int rc = shf_store_newest_below(&run->store, below, sought ? 0 : n, &c.disk, err);

	run->tier->passed = -1;
	if (rc == 0 && shf_memory_steps_join(cards, consider_for_load, &c) < 0)
		rc = c.rc < 0 ? c.rc
		     : shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	/* If a better step than the condemned one was found, the condemned one is passed over; else
	 * it is taken. */
	if (rc == 0 && choice->memory && c.last.ranks)
		pass_over_in_memory(&c, &c.last, CONDEMNED);
	else if (rc == 0 && c.last.ranks)
		choose_step(&c, &c.last);
	if (rc == 0 && choice->which.copied &&
	    shf_memory_step_replicas(cards, &choice->which, copied) < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	return rc;
}

/* If an agent fails, the call does not: its steps are left out, and the log has a warning.
 * [collective] */
int shf_memory_choose_gather(struct sheaf_run *run, struct shf_buf *mine, bool *asked,
                             struct shf_buf *all, struct sheaf_error *err)
{
	int rc = 0;

	*asked = shf_agent_is_up(run) && run->place.node_first == run->team.rank;
	if (*asked)
		rc = shf_memory_steps_read_cards(run->sys, run->tier->keep, run->store.run, true,
		                                 mine);
	if (rc < 0) {
		struct sheaf_error why;

		shf_fail_sys(&why, -rc, "sending a request to the agent");
		shf_log(run, 1, "%s: the checkpoints in memory are not known: %s, rank %d",
		        run->store.path, why.msg, run->team.rank);
		shf_buf_reset(mine);
		*asked = false;
	}
	return shf_gatherv(&run->team, 0, mine, all, err);
}

/* Opens a view of the parts of the step that this node has. The node may have no parts. */
static int open_own_parts(struct sheaf_run *run, const struct choice *choice,
                          const struct shf_buf *copied, struct shf_view **view,
                          struct sheaf_error *err)
{
	if (run->tier->keep >= 0)
		return shf_memory_step_open_parts(run->sys, run->tier->keep, &choice->which, copied,
		                                  view, err);
	*view = shf_view_new(run->sys);
	return *view ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a step in memory");
}

/* Opens the view on all ranks, or on no rank: then *view is NULL, and the caller goes on with the
 * disk. Returns an error only for the loss of a rank. [collective] */
static int open_all(struct sheaf_run *run, const struct choice *choice,
                    const struct shf_buf *copied, struct shf_latest_search *sought,
                    struct shf_view **view, struct sheaf_error *err)
{
	struct sheaf_error own = { .rank = -1 };
	char name[20 + SHF_STEP_NAME], t[SHF_STEP_NAME];
	int rc = shf_agree(&run->team, open_own_parts(run, choice, copied, view, &own), &own);

	shf_name_of_step(&run->store, t, choice->which.step);
	snprintf(name, sizeof(name), "memory of %s", t);
	if (rc == 0)
		rc = shf_memory_map_finish(run, *view, choice->on_disk ? t : NULL, &own);
	if (rc == 0)
		return 0;
	shf_view_free(*view);
	*view = NULL;
	if (rc == SHEAF_ELOST) {
		if (err)
			*err = own;
		return rc;
	}
	shf_log(run, 1, "%s: step %" PRId64 " is not loaded from memory: %s, rank %d",
	        run->store.path, choice->which.step, own.msg, own.rank);
	if (sought && run->team.rank == 0)
		shf_latest_search_pass(sought, name, own.msg);
	return 0;
}

/* The choice is broadcast with the list of replicas that it needs. After that all ranks open their
 * part of the same step. [collective] */
int shf_memory_choose(struct sheaf_run *run, int64_t n, struct shf_latest_search *sought,
                      struct shf_view **view, struct shf_base *base, struct sheaf_error *err)
{
	struct choice choice = { .beyond = -1 };
	struct shf_buf mine = SHF_BUF_INIT, cards = SHF_BUF_INIT, copied = SHF_BUF_INIT;
	bool asked;
	int rc;

	*view = NULL;
	if (!run->tier->wanted)
		return 0;
	rc = shf_memory_choose_gather(run, &mine, &asked, &cards, err);
	shf_buf_release(&mine);
	if (rc == 0)
		rc = shf_agree(&run->team, run->team.rank == 0
		               ? choose_from_memory(run, n, sought, &cards, &choice, &copied, err)
		               : 0, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, 0, &choice, sizeof(choice), err);
	if (rc == 0)
		rc = shf_bcast_buf(&run->team, 0, &copied, err);
	shf_buf_release(&cards);
	if (rc == 0 && choice.memory)
		rc = open_all(run, &choice, &copied, sought, view, err);
	shf_buf_release(&copied);
	if (rc == 0 && *view) {
		base->step = choice.base_step;
		base->tries = choice.which.tries;
		base->beyond = choice.beyond;
		base->newest = shf_memory_tier_newest(run);
		memcpy(base->session, choice.base_session, sizeof(base->session));
	}
	return rc;
}
