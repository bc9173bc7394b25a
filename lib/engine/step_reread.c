/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a step on disk again, past the page cache, to find out whether it is really damaged, as a
 * load said, or was read wrong. The lowest rank of each node reads a share (scrub.h). All ranks
 * synchronize in between, so that no rank waits for the others longer than a quarter of the
 * deadline. */
#include "step_reread.h"
#include <inttypes.h>
#include "err.h"
#include "run_env.h"
#include "scrub_run.h"
#include "step.h"

/* Opens the step to read this node's share. ENOENT becomes EIO, because a training script takes
 * ENOENT to mean that the run has no steps. */
static int open_share(struct sheaf_run *run, int64_t step, struct shf_scrub *r,
                      struct sheaf_error *err)
{
	char name[SHF_STEP_NAME];
	int rc = shf_scrub_open(run, step, "", r, err);

	r->run = run->store.run;
	shf_name_of_step(&run->store, name, step);
	return rc != SHEAF_ENOENT ? rc
	       : shf_fail(err, SHEAF_EIO, "%.240s/%s: was deleted or moved while it was being read "
	                  "again", run->store.path, name);
}

/* Reads until the share is read, or a quarter of the deadline has passed. Returns whether more is
 * left to read. */
static bool read_on(const struct sheaf_run *run, struct shf_scrub *r)
{
	/* A quarter of the deadline, in nanoseconds. */
	int64_t until = shf_now(run) + (int64_t)run->opts.timeout_ms * 250000;
	bool more = true;

	while (more && shf_now(run) < until)
		more = shf_scrub_turn(r);
	return more;
}

/* Reads until all shares are read, or damage was found in one of them. r: NULL on ranks that read
 * no share. [collective] */
static int read_shares(struct sheaf_run *run, struct shf_scrub *r, struct sheaf_error *err)
{
	uint64_t x[2] = { 1, 0 };
	int rc = 0;

	while (rc == 0 && x[0] && !x[1]) {
		x[0] = r && read_on(run, r);
		x[1] = r && shf_is_of_step(r->rc);
		rc = shf_allreduce(&run->team, x, 2, SHEAF_MAX, err);
	}
	return rc;
}

/* Combines the results of all shares. Damage on one rank takes precedence over a failure to read on
 * another. [collective] */
static int verdict(struct sheaf_run *run, const struct shf_scrub *r, struct sheaf_error *err)
{
	uint64_t bad = r && shf_is_of_step(r->rc), cut = r && r->rc == 0 ? r->cut : 0;
	int own = r ? r->rc : 0, rc = shf_allreduce(&run->team, &bad, 1, SHEAF_MAX, err);

	if (rc == 0)
		rc = shf_allreduce(&run->team, &cut, 1, SHEAF_XOR, err);
	if (rc < 0)
		return rc;
	if (own < 0)
		*err = r->err;
	rc = shf_agree(&run->team, bad && !shf_is_of_step(own) ? 0 : own, err);
	if (rc == 0 && cut)
		rc = shf_fail(err, SHEAF_ECORRUPT, "a tensor that several nodes read together does "
		              "not have the digest that was stored");
	return rc;
}

/* Ranks that read no share take part in the agreements as well. [collective] */
int shf_step_reread(struct sheaf_run *run, int64_t step, struct sheaf_error *err)
{
	struct shf_scrub here = { .sys = run->sys, .dir = -1, .sums_fd = -1, .fd = -1,
	                           .direct = -1 };
	struct shf_scrub *r = run->place.node_first == run->team.rank ? &here : NULL;
	int rc = shf_agree(&run->team, r ? open_share(run, step, r, err) : 0, err);

	if (rc == 0)
		rc = read_shares(run, r, err);
	if (rc == 0)
		rc = verdict(run, r, err);
	if (r)
		shf_scrub_release(r);
	return rc;
}
