/* SPDX-License-Identifier: Apache-2.0 */
/* What is done to a run as a whole: pruning, rewinding, marking, closing. Rank 0 acts on the
 * directory, all ranks agree on the arguments before and on the outcome after. */
#include <inttypes.h>
#include <string.h>
#include "engine.h"
#include "err.h"
#include "save.h"

static int writable(const struct sheaf_run *run, const char *what, struct sheaf_error *err)
{
	if (run->closed || run->foreign || run->opts.flags & SHEAF_READONLY)
		return shf_fail(err, SHEAF_EINVAL, "%s: %s needs the run open for writing",
		                run->store.path ? run->store.path : "the run", what);
	return 0;
}

static int same_two(struct sheaf_run *run, const char *what, int64_t a, int64_t b,
                    struct sheaf_error *err)
{
	uint64_t x[2] = { (uint64_t)a, (uint64_t)b }, same, lo[2], hi[2];
	int rc = shf_same(&run->team, x, 2, &same, lo, hi, err);
	int i = same & 1 ? 1 : 0;

	if (rc < 0 || same == 3)
		return rc;
	return shf_fail(err, SHEAF_EINVAL, "%s: %s: ranks pass different arguments (%" PRId64
	                " and %" PRId64 ")", run->store.path, what, (int64_t)lo[i], (int64_t)hi[i]);
}

/* ---- pruning ---- */

struct pruning {
	struct sheaf_run *run;
	bool dry;
	void (*item)(void *arg, int64_t step, char what, const char *why);
	void *arg;
};

static void pruned(void *arg, int64_t step, char what, const char *why)
{
	const struct pruning *p = arg;

	if (what == 'r' && !p->dry)
		shf_log(p->run, 2, "%s: step %" PRId64 " pruned: %s", p->run->store.path, step,
		        why);
	if (p->item)
		p->item(p->arg, step, what, why);
}

/* The newest step that may dominate others, -1: none. [rank 0] */
static int newest_sound(struct sheaf_run *run, int64_t *newest, struct sheaf_error *err)
{
	struct shf_list list = { 0 };
	int rc = shf_store_list(&run->store, &list, err);

	*newest = -1;
	for (size_t i = 0; rc == 0 && i < list.n; i++) {
		const struct shf_entry *e = &list.entries[i];

		if (shf_entry_is_good(e) && e->step > *newest)
			*newest = e->step;
	}
	shf_list_release(&list);
	return rc;
}

static struct shf_prune rules(const struct sheaf_run *run, int64_t verified, bool dry)
{
	const struct sheaf_opts *o = &run->opts;

	return (struct shf_prune){ .keep_last = o->keep_last, .keep_every = o->keep_every,
		.verified = verified, .keep = run->loaded, .dry = dry,
		.grace_s = o->grace_s ? o->grace_s : -1 };      /* taken options: 0 is none */
}

/* Its every byte, read again (I9). [collective] */
static int verify_newest(struct sheaf_run *run, int64_t newest, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_step *step = NULL;
	int rc = shf_step_open(&step, run, newest, err);

	if (rc == 0)
		rc = shf_step_verify(step, &report, err);
	shf_step_put(step);
	if (rc == 0)
		run->verified = newest;
	return rc;
}

/* Rank 0's word on both: the step that dominates, and how many would go if it is sound. */
static int look(struct sheaf_run *run, int64_t *newest, uint64_t *would, struct sheaf_error *err)
{
	int64_t told[2] = { -1, 0 };
	int rc = 0;

	if (run->team.rank == 0) {
		rc = newest_sound(run, &told[0], err);
		if (rc == 0) {
			struct shf_prune p = rules(run, told[0], true);

			rc = shf_store_prune(&run->store, &p, NULL, NULL, err);
			told[1] = rc;
			rc = rc < 0 ? rc : 0;
		}
	}
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, told, sizeof(told), err);
	*newest = told[0];
	*would = (uint64_t)told[1];
	return rc;
}

int shf_run_prune(struct sheaf_run *run, bool dry,
                  void (*item)(void *arg, int64_t step, char what, const char *why), void *arg,
                  struct sheaf_error *err)
{
	struct pruning p = { run, dry, item, arg };
	struct sheaf_error own;
	uint64_t would = 0;
	int64_t newest = -1, gone = 0;
	int rc;

	err = err ? err : &own;
	rc = run->closed || run->foreign ? shf_fail(err, SHEAF_EINVAL, "the run is not open")
	   : dry ? 0 : writable(run, "pruning", err);
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = same_two(run, "prune", dry, (int64_t)run->opts.keep_last << 32 |
		              run->opts.keep_every, err);
	if (rc == 0)
		rc = look(run, &newest, &would, err);
	/* Reading all of a step is worth it only where some other one then goes. */
	if (rc == 0 && !dry && would && run->verified != newest)
		rc = verify_newest(run, newest, err);
	if (rc < 0)
		return rc;
	if (run->team.rank == 0) {
		struct shf_prune r = rules(run, dry || would ? newest : run->verified, dry);

		rc = shf_store_prune(&run->store, &r, pruned, &p, err);
		gone = rc;
		rc = rc < 0 ? rc : 0;
	}
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, &gone, sizeof(gone), err);
	return rc < 0 ? rc : (int)gone;
}

/* ---- going back ---- */

static int rewind_here(struct sheaf_run *run, int64_t step, char session[33],
                       struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	int rc = shf_store_manifest(&run->store, step, &m, &arena, err);

	if (rc == 0) {
		memcpy(session, m.session, sizeof(m.session));
		rc = shf_store_rewind(&run->store, step, err);
	}
	shf_arena_release(&arena);
	return rc;
}

int shf_run_rewind(struct sheaf_run *run, int64_t step, struct sheaf_error *err)
{
	struct sheaf_error own;
	char session[33] = "";
	int rc;

	err = err ? err : &own;
	rc = writable(run, "a rewind", err);
	if (rc == 0 && run->first)
		rc = shf_fail(err, SHEAF_EINVAL, "%s: step %" PRId64 " is being saved (commit it "
		              "or free it before a rewind)", run->store.path, run->first->step);
	if (rc == 0 && step < 0)
		rc = shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is negative", step);
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = same_two(run, "rewind", step, 0, err);
	if (rc < 0)
		return rc;
	rc = run->team.rank == 0 ? rewind_here(run, step, session, err) : 0;
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, session, sizeof(session), err);
	if (rc < 0)
		return rc;
	/* Saving goes on from here; what lay above is out of reach, and its numbers are free. */
	run->rewinds++;
	run->parent = step;
	run->doubtful = -1;
	memcpy(run->parent_session, session, sizeof(session));
	run->parent_run[0] = '\0';
	if (run->loaded > step)
		run->loaded = -1;
	if (run->verified > step)
		run->verified = -1;
	shf_log(run, 2, "%s: rewound to step %" PRId64 ", rank %d", run->store.path, step,
	        run->team.rank);
	return 0;
}

/* ---- marks ---- */

int shf_run_mark(struct sheaf_run *run, int64_t step, char mark, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = err ? err : &own;
	rc = writable(run, "a mark", err);
	if (rc == 0 && step < 0)
		rc = shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is negative", step);
	if (rc == 0 && mark != 'k' && mark != 'b' && mark != 0)
		rc = shf_fail(err, SHEAF_EINVAL, "mark %d is none: want 'k', 'b' or 0", mark);
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = same_two(run, "mark", step, mark, err);
	if (rc < 0)
		return rc;
	rc = run->team.rank == 0 ? shf_store_mark(&run->store, step, mark, err) : 0;
	return shf_agree(&run->team, rc, err);
}

/* ---- closing ---- */

void shf_run_close(struct sheaf_run *run)
{
	if (!run)
		return;
	/* A forked child has a copy of the memory and nothing else. */
	if (shf_run_is_ours(run) && !run->closed) {
		/* Nobody is still beginning a save when rank 0 throws the stages away. What the
		 * others say does not matter: this rank closes in any case. */
		(void)shf_agree(&run->team, 0, NULL);
		shf_save_abandon(run);
	}
	run->closed = true;
	shf_run_put(run);
}
