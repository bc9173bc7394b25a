/* SPDX-License-Identifier: Apache-2.0 */
/* Reads committed steps again in the background, in a thread on the lowest rank of each node. Old
 * steps are deleted only when a newer one was read again and found whole (I9). So a disk that loses
 * or changes bytes after fsync costs one step at most.
 *
 * Steps are read one at a time. If several are committed meanwhile, the newest is next and those in
 * between are never read, because retention only needs the newest. */
#include "scrub_run.h"
#include <inttypes.h>
#include <stdio.h>
#include "err.h"
#include "opts.h"
#include "run.h"
#include "run_env.h"

/* A close waits for the reading of a share of at most LITTLE bytes, for at most WAIT_MS, so that a
 * run of small steps ends with as many steps as its keep rules say. */
#define LITTLE (UINT64_C(32) << 20)
#define WAIT_MS 3000

int shf_scrub_open(struct sheaf_run *run, int64_t step, const char *session, struct shf_scrub *r,
                   struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	char name[SHF_STEP_NAME], where[300];
	int dir, rc;

	shf_name_of_step(&run->store, name, step);
	snprintf(where, sizeof(where), "%.230s/%s", run->store.path, name);
	dir = shf_dir_open(sys, run->store.dir, name);
	if (dir < 0)
		return shf_fail_sys(err, -dir, "%s", where);
	rc = shf_scrub_init(r, sys, dir, step, session, where, err);
	if (rc == 0) {
		r->share = (uint32_t)run->place.node;
		r->shares = (uint32_t)run->place.nodes_n;
		r->buffered = run->opts.flags & SHEAF_RUN_BUFFERED;
	}
	return rc;
}

/* Opens the step and starts the thread that reads this node's share. [lowest rank of a node] */
static int start_scrub_here(struct sheaf_run *run, const struct shf_saved *saved,
                            struct shf_scrub *r, struct sheaf_error *err)
{
	int rc = shf_scrub_open(run, saved->step, saved->session, r, err);

	if (rc < 0)
		return rc;
	rc = shf_background_start(&run->retain.behind->task, run->sys, shf_scrub_turn, r);
	return rc == 0 ? 0 : shf_fail_sys(err, -rc, "%s: starting a thread to read it again",
	                                  r->where);
}

void shf_scrub_run_next(struct sheaf_run *run, int64_t step, const char *session, uint64_t bytes)
{
	struct shf_scrub_run *b = run->retain.behind;

	b->next.step = step;
	b->bytes = bytes;
	snprintf(b->next.session, sizeof(b->next.session), "%s", session);
}

/* All ranks note in `now` which step is being read, although only the lowest rank of each node
 * reads, because the result is collected from all ranks. */
void shf_scrub_run_start(struct sheaf_run *run)
{
	struct shf_scrub_run *b = run->retain.behind;
	struct sheaf_error err;
	int rc;

	if (b->now.step >= 0 || b->next.step < 0 ||
	    shf_saved_is_same(&b->next, &run->lineage.verified))
		return;
	b->now = b->next;
	b->next.step = -1;
	if (run->place.node_first != run->team.rank)
		return;
	b->reread = shf_zalloc(1, sizeof(*b->reread));
	if (!b->reread)
		return; /* scrub_answer() reports ENOMEM then */
	b->reread->dir = b->reread->sums_fd = b->reread->fd = b->reread->direct = -1;
	b->reread->sys = run->sys;
	rc = start_scrub_here(run, &b->now, b->reread, &err);
	if (rc < 0) {
		b->reread->rc = rc;
		b->reread->err = err;
	}
}

void shf_scrub_run_stop(struct sheaf_run *run)
{
	struct shf_scrub_run *b = run->retain.behind;

	shf_background_stop(&b->task);
	if (b->reread)
		shf_scrub_release(b->reread);
	shf_free(b->reread);
	b->reread = NULL;
	b->now.step = -1;
}

/* No older step may be deleted on account of a step that is marked bad or set aside. */
void shf_scrub_run_forget(struct sheaf_run *run, int64_t step)
{
	struct shf_scrub_run *b = run->retain.behind;

	if (b->now.step == step)
		shf_scrub_run_stop(run);
	if (b->next.step == step)
		b->next.step = -1;
	if (run->lineage.verified.step == step)
		run->lineage.verified.step = -1;
}

bool shf_scrub_run_is_busy(const struct sheaf_run *run)
{
	return run->retain.behind->now.step >= 0 && shf_background_runs(&run->retain.behind->task);
}

bool shf_scrub_run_is_small(const struct sheaf_run *run)
{
	return run->retain.behind->bytes / (uint64_t)run->place.nodes_n <= LITTLE;
}

/* Called only at close, and by a prune for which the program has asked. The wait is bounded, so
 * that a slow disk cannot hold up the end of a job. */
void shf_scrub_run_wait(struct sheaf_run *run)
{
	const struct shf_sys *sys = run->sys;
	int64_t until = shf_now(run) + shf_ms_ns(shf_opts_wait_ms(&run->opts, WAIT_MS));

	while (shf_background_runs(&run->retain.behind->task) && shf_now(run) < until)
		shf_sys_sleep_ms(sys, 1);
}

/* Returns the result of this rank's thread, which must have ended. *cut: see scrub.h. Ranks without
 * a thread return 0. */
static int scrub_answer(const struct sheaf_run *run, uint64_t *cut, struct sheaf_error *err)
{
	const struct shf_scrub_run *b = run->retain.behind;

	*cut = 0;
	if (run->place.node_first != run->team.rank)
		return 0;
	if (!b->reread)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to read step %" PRId64 " again",
		                b->now.step);
	if (b->reread->rc < 0)
		*err = b->reread->err;
	else
		*cut = b->reread->cut;
	return b->reread->rc;
}

/* Combines the results of all nodes. Damage on any node takes precedence over a failure to read on
 * another. If no node failed, the cuts must XOR to 0 (scrub.h). *why: the message of the result.
 * [collective] */
static int gather_scrub_answers(struct sheaf_run *run, struct sheaf_error *why,
                                struct sheaf_error *err)
{
	struct sheaf_error own;
	char name[SHF_STEP_NAME];
	uint64_t cut, bad;
	int rc = scrub_answer(run, &cut, why), told;

	bad = rc == SHEAF_ECORRUPT;
	told = shf_allreduce(&run->team, &cut, 1, SHEAF_XOR, err);
	if (told == 0)
		told = shf_allreduce(&run->team, &bad, 1, SHEAF_MAX, err);
	if (told < 0)
		return told;
	own = *why;
	/* If there is damage, ranks with another failure pass 0, so that the agreement returns the
	 * damage. */
	rc = shf_agree(&run->team, bad && rc != SHEAF_ECORRUPT ? 0 : rc, &own);
	shf_name_of_step(&run->store, name, run->retain.behind->now.step);
	if (rc == 0 && cut)
		rc = shf_fail(&own, SHEAF_ECORRUPT, "%s/%s: a tensor that several nodes read "
		              "together does not have the digest that was stored", run->store.path,
		              name);
	*why = own;
	return rc;
}

/* Does not wait: while some node is still reading, it returns 0 and changes nothing. Once all nodes
 * have ended and the step is whole, the step becomes the run's verified step. Failures other than a
 * lost rank are only logged, because the caller is working on another step. [collective] */
int shf_scrub_run_poll(struct sheaf_run *run, struct sheaf_error *err)
{
	struct shf_scrub_run *b = run->retain.behind;
	struct shf_saved now = b->now;
	struct sheaf_error why;
	uint64_t busy;
	int rc;

	if (now.step < 0)
		return 0;
	/* Ranks without a thread are never busy; the maximum shows whether any rank is. */
	busy = shf_background_runs(&b->task);
	rc = shf_allreduce(&run->team, &busy, 1, SHEAF_MAX, err);
	if (rc < 0 || busy)
		return rc;
	shf_error_clear(&why);
	rc = gather_scrub_answers(run, &why, err);
	shf_scrub_run_stop(run);
	if (rc == 0)
		run->lineage.verified = now;
	if (rc == SHEAF_ECORRUPT)
		b->damaged_n++;
	if (rc < 0 && run->team.rank == 0)
		shf_log(run, rc == SHEAF_ECORRUPT ? 0 : 1, "%s: step %" PRId64 "%s: %s (%" PRIu64
		        " damaged so far)", run->store.path, now.step, rc == SHEAF_ECORRUPT
		        ? " is damaged: it was read again after its commit"
		        : " could not be read again", why.msg, b->damaged_n);
	/* Any other failure concerns a step that was committed before; it was logged above. */
	if (rc != SHEAF_ELOST)
		return 0;
	if (err && why.msg[0])
		*err = why;
	return rc;
}
