/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_run_resume loads the latest step. With SHEAF_LOAD_FALLBACK it loads the newest step that is
 * not damaged.
 *
 *   F1. The next candidate is tried only after ECORRUPT, and after a step on disk only if a
 *       second read, past the page cache, finds damage as well. It is never tried after EIO,
 *       ENOMEM or ELOST, because a step that cannot be read now may be readable tomorrow. Nor
 *       after EFORMAT: a step that a newer version wrote is good, and a user who has that
 *       version wants it.
 *   F2. Candidates come in the order of struct shf_candidate: both copies of a step, in memory
 *       and on disk, are tried before any older step.
 *   F3. Newer steps are set aside, as by a rewind, only after the older one was loaded and all
 *       of it was verified. A run that is open read-only sets nothing aside. A crash before
 *       that leaves the run as it was.
 *   F4. The report names each step that was passed over or set aside, even if there is no log.
 *       Its items about tensors are those of the last candidate that was tried.
 *   F5. No bytes of a damaged step stay in the caller's memory: each slice that it has begun to
 *       fill is filled by the candidate that is loaded. A candidate that has no data for such a
 *       slice is refused before a byte of it is read (filled_by).
 */
#include "run_resume.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "latest_search.h"
#include "load.h"
#include "load_common.h"
#include "memory_dir.h"
#include "memory_tier.h"
#include "run_env.h"
#include "run_ops.h"
#include "save.h"
#include "state.h"
#include "step.h"
#include "step_reread.h"
#include "step_open.h"
#include "steps.h"
#include "verify_step.h"

#define DAMAGED_MAX SHF_PINS    /* agents keep no more steps of a job */

/* The state of a resume. */
struct resume {
	struct sheaf_run *run;
	struct sheaf_state *state;
	uint64_t flags;                 /* flags of the load, without SHEAF_LOAD_FALLBACK */
	struct sheaf_report *report;    /* the caller's report */
	struct shf_latest_search sought;       /* where the search for candidates is */
	struct sheaf_checkpoint *step;  /* owned; the candidate that is being tried */
	struct sheaf_checkpoint *damaged[DAMAGED_MAX]; /* owned; damaged steps in memory, kept open
	                                                * until set_aside */
	size_t damaged_n;
	struct sheaf_error first;       /* error of the first candidate that was passed over */
	int64_t newest;                 /* number of the first candidate that was passed over */
	uint32_t passed;                /* how many candidates were passed over */
	int64_t *filled_by;             /* owned; as in struct sheaf_checkpoint, shared by all
	                                 * candidates. NULL: without SHEAF_LOAD_FALLBACK there is
	                                 * only one candidate */
	struct shf_buf items;           /* owned; items that the load of this candidate has
	                                 * reported: for each a byte for the kind and three strings
	                                 * with their NULs */
};

/* The load's item callback: keeps an item until it is known whether the candidate is passed over.
 * If there is no memory for that, the item is delivered at once. */
static void hold_item(void *arg, int32_t kind, const char *family, const char *name,
                      const char *msg)
{
	struct resume *r = arg;
	size_t family_n = strlen(family) + 1, name_n = strlen(name) + 1, msg_n = strlen(msg) + 1;

	if (shf_buf_reserve(&r->items, 1 + family_n + name_n + msg_n) < 0) {
		shf_load_report_item(r->report, kind, family, name, msg);
		return;
	}
	shf_buf_u8(&r->items, (uint8_t)kind);
	shf_buf_add(&r->items, family, family_n);
	shf_buf_add(&r->items, name, name_n);
	shf_buf_add(&r->items, msg, msg_n);
}

/* Delivers the items of the last candidate to the caller. */
static void deliver_items(const struct resume *r)
{
	for (size_t at = 0; at < r->items.len;) {
		const char *kind = (const char *)r->items.data + at, *family = kind + 1;
		const char *name = family + strlen(family) + 1, *msg = name + strlen(name) + 1;

		shf_load_report_item(r->report, *kind, family, name, msg);
		at += (size_t)(msg + strlen(msg) + 1 - kind);
	}
}

/* Loads the open candidate. Its items are held back, because the items of a candidate that is
 * passed over must not reach the caller. [collective] */
static int load_candidate(struct resume *r, struct sheaf_error *err)
{
	struct sheaf_report own = *r->report;
	int rc;

	own.item = r->report->item ? hold_item : NULL;
	own.arg = r;
	/* Findings are not reported, because the candidate may be passed over. */
	own.finding = NULL;
	r->step->filled_by = r->filled_by;
	rc = shf_step_load(r->step, r->state, r->flags, &own, err);
	if (rc < 0)
		return rc;
	own.item = r->report->item;
	own.arg = r->report->arg;
	own.finding = r->report->finding;
	*r->report = own;
	return 0;
}

/* Opens and loads the next candidate. Steps that the search itself passed over are reported first,
 * so that the report has the order of the search. [collective] */
static int try_next(struct resume *r, struct sheaf_error *err)
{
	int rc = shf_step_open_latest(&r->step, r->run, &r->sought, err);
	struct shf_buf *passed = rc == 0 ? &r->step->passed : &r->sought.passed;

	shf_load_report_passed(passed, r->report);
	shf_buf_reset(passed);
	return rc == 0 ? load_candidate(r, err) : rc;
}

/* Verifies all of the step that was loaded, including tensors that the state does not hold. A step
 * in the memory of several nodes cannot be verified; of it only the loaded parts are proved, by the
 * load. [collective] */
static int prove_loaded(struct resume *r, struct sheaf_error *err)
{
	struct sheaf_report own = { .size = sizeof(own) };
	const struct shf_view *view = r->step->view;

	if (!view)
		return shf_step_reread(r->run, r->step->number, err);
	return shf_view_access(view) ? 0 : shf_step_verify(r->step, &own, err);
}

/* Sets *at on all ranks to the candidate that could not be loaded. [collective] */
static int agree_on_failed(struct resume *r, struct shf_candidate *at, struct sheaf_error *err)
{
	*at = r->sought.at;
	if (r->step) {
		bool memory = r->step->run->lineage.memory_of != NULL;

		*at = (struct shf_candidate){ r->step->number, memory };
		return 0;
	}
	/* The step could not even be opened, so only rank 0 knows its number. */
	return shf_bcast(&r->run->team, 0, at, sizeof(*at), err);
}

/* Reads the candidate a second time (F1): from disk past the page cache, from memory by a full
 * verification. Returns 0 if it is whole now. A step in the memory of several nodes cannot be
 * verified, so the error of the load stands. [collective] */
static int read_candidate_again(struct resume *r, const struct shf_candidate *at,
                                const struct sheaf_error *why, struct sheaf_error *err)
{
	if (!at->memory)
		return shf_step_reread(r->run, at->step, err);
	if (r->step && !shf_view_access(r->step->view))
		return prove_loaded(r, err);
	*err = *why;
	return why->code;
}

/* Reports a candidate to the caller and to the log. [rank 0] */
static void report_candidate(const struct resume *r, int32_t kind, const struct shf_candidate *at,
                             const char *why)
{
	char name[20 + SHF_STEP_NAME], t[SHF_STEP_NAME];

	if (r->run->team.rank)
		return;
	shf_name_of_step(&r->run->store, t, at->step);
	snprintf(name, sizeof(name), "%s%s", at->memory ? "memory of " : "", t);
	shf_load_report_item(r->report, kind, "", name, why);
	shf_log(r->run, 1, "%s: %s is %s: %s", r->run->store.path, name,
	        kind == SHEAF_REPORT_SET_ASIDE ? "set aside" : "passed over", why);
}

/* Returns the error of the first candidate, because no candidate is left. The advice to rewind to
 * the step before it (shf_store_remedy) is left out: that one could not be loaded either. */
static int exhausted(struct resume *r, struct sheaf_error *err)
{
	char *advice = strstr(r->first.msg, " (sheaf rewind ");

	if (advice)
		*advice = '\0';
	*err = r->first;
	return shf_fail(err, r->first.code, "%.400s; nothing else could be loaded", r->first.msg);
}

/* Passes over the candidate that could not be loaded; err says why. Returns 0 if the next one may
 * be tried. If a second read finds the candidate whole, it is not passed over: memory, bus or
 * network failed, and falling back to an older step would hide that. [collective] */
static int pass_over_candidate(struct resume *r, int rc, struct sheaf_error *err)
{
	struct sheaf_error own, again;
	struct shf_candidate at;
	int found = agree_on_failed(r, &at, &own);

	if (found < 0) {
		*err = own;
		return found;
	}
	if (at.step < 0)
		return r->passed ? exhausted(r, err) : rc;
	found = read_candidate_again(r, &at, err, &again);
	if (found == 0)
		return shf_fail(err, rc, "%.400s; read again, the checkpoint is whole: memory or "
		                "the network failed. Load again, and check this node",
		                err->msg);
	if (found != SHEAF_ECORRUPT) {
		*err = again;
		return found;
	}
	if (r->passed++ == 0) {
		r->first = *err;
		r->newest = at.step;
	}
	report_candidate(r, SHEAF_REPORT_PASSED_OVER, &at, again.msg);
	/* A damaged step in memory stays open, because its memory is released only after an older
	 * step was loaded (F3). */
	if (at.memory && r->step && r->damaged_n < DAMAGED_MAX)
		r->damaged[r->damaged_n++] = r->step;
	else
		shf_step_put(r->step);
	r->step = NULL;
	r->sought.after = at;
	shf_buf_reset(&r->items);
	return 0;
}

/* Loads the latest step, or with `falls` the newest one that can be loaded. After a fallback, all
 * of the loaded step must be verified, because newer steps are about to be set aside.
 * [collective] */
static int load_one(struct resume *r, bool falls, struct sheaf_error *err)
{
	int rc;

	do {
		rc = try_next(r, err);
		if (rc == 0 && r->passed)
			rc = prove_loaded(r, err);
		if (rc == SHEAF_ENOENT && r->passed)
			return exhausted(r, err);
		if (rc == 0 || !falls || rc != SHEAF_ECORRUPT)
			return rc;
		rc = pass_over_candidate(r, rc, err);
	} while (rc == 0);
	return rc;
}

/* Reports each step that the rewind has set aside: it was in `before` and no longer exists. [rank
 * 0] */
static void report_set_aside(const struct resume *r, const struct shf_steps *before)
{
	struct shf_store *s = &r->run->store;
	struct shf_stat st;
	char name[SHF_STEP_NAME];

	for (size_t i = 0; i < before->n && before->all[i] > r->step->number; i++) {
		shf_name_of_step(s, name, before->all[i]);
		if (shf_sys_stat(s->sys, s->dir, name, false, &st) == -ENOENT)
			report_candidate(r, SHEAF_REPORT_SET_ASIDE,
			                 &(struct shf_candidate){ before->all[i], false },
			                 "it is kept in .sheaf/aside");
	}
}

/* Sets aside the steps on disk that are newer than the loaded one. The loaded step is on disk, even
 * if it was read from its copy in memory. [collective] */
static int rewind_to(struct resume *r, struct sheaf_error *err)
{
	struct shf_steps before = { NULL, 0 };
	int rc;

	if (r->newest == r->step->number)       /* only the step's copy in memory was passed over */
		return 0;
	if (r->run->team.rank == 0)
		(void)shf_steps_read(&r->run->store, &before);
	rc = shf_run_rewind_loaded(r->run, r->step->number, r->step->run->lineage.memory_of, err);
	if (rc == 0 && r->run->team.rank == 0)
		report_set_aside(r, &before);
	shf_free(before.all);
	return rc;
}

/* Sets the newer steps on disk aside; or, if the loaded step is only in memory, releases the memory
 * of the damaged steps (F3). [collective] */
static int set_aside(struct resume *r, struct sheaf_error *err)
{
	if (r->passed == 0 || r->run->opts.flags & SHEAF_RUN_READONLY)
		return 0;
	/* The step that was loaded is on disk: a rewind of the run sets the newer ones aside. */
	if (!r->step->run->lineage.memory_of || r->step->run->lineage.base.step == r->step->number)
		return rewind_to(r, err);
	for (size_t i = 0; i < r->damaged_n; i++) {
		report_candidate(r, SHEAF_REPORT_SET_ASIDE,
		                 &(struct shf_candidate){ r->damaged[i]->number, true },
		                 "it is damaged and is removed from memory");
		shf_view_clear_cards(r->damaged[i]->view);
	}
	/* The loaded step is only in memory, so nothing on disk is set aside; later steps in memory
	 * are dropped. */
	shf_memory_tier_fallback(r->run, r->step->number);
	return 0;
}

/* Checks the arguments of a resume with SHEAF_LOAD_FALLBACK, and allocates filled_by. [local] */
static int prepare_resume(struct resume *r, struct sheaf_error *err)
{
	const struct sheaf_run *run = r->run;
	size_t n = r->state ? r->state->n : 0;

	if (r->flags & SHEAF_LOAD_DRY)
		return shf_fail(err, SHEAF_EINVAL,
		                "SHEAF_LOAD_FALLBACK and SHEAF_LOAD_DRY cannot be combined, "
		                "because a fallback must read what it chooses");
	if (run->saves.first)
		return shf_fail(err, SHEAF_EINVAL, "%s: step %" PRId64 " is being saved; commit or "
		                "free that save before a resume", run->store.path,
		                run->saves.first->id.step);
	r->filled_by = shf_alloc(n, sizeof(*r->filled_by));
	if (!r->filled_by)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu slices", n);
	for (size_t i = 0; i < n; i++)
		r->filled_by[i] = -1;
	return 0;
}

/* Newer steps are set aside last, when the older step is in the caller's memory. [collective] */
int shf_run_resume(struct sheaf_run *run, struct sheaf_state *state, uint64_t flags,
                   struct sheaf_report *report, struct sheaf_error *err)
{
	struct sheaf_report none = { .size = sizeof(none) };
	struct resume r = { .run = run, .state = state, .flags = flags & ~SHEAF_LOAD_FALLBACK,
		.report = report ? report : &none,
		.sought = { .after = SHF_FROM_THE_NEWEST, .passed = SHF_BUF_INIT } };
	struct shf_call m = { .kind = SHF_CALL_RESUME, .handle = run->life.made, .x = { flags } };
	struct sheaf_error own;
	int rc;

	err = err ? err : &own;
	/* Before any checkpoint is looked for: where there is none, ENOENT would make the caller
	 * begin with a state that has failed. */
	rc = shf_state_ready(state, false, err);
	if (rc == 0 && flags & SHEAF_LOAD_FALLBACK)
		rc = prepare_resume(&r, err);
	rc = shf_call_enter(&run->team, &m, rc, err);
	if (rc == 0 && shf_call_differs(&m, 0))
		rc = shf_fail(err, SHEAF_EINVAL, "ranks pass different flags to sheaf_run_resume");
	if (rc == 0)
		rc = load_one(&r, flags & SHEAF_LOAD_FALLBACK, err);
	/* Items are delivered after a failure, too: they say what the last candidate lacked. */
	deliver_items(&r);
	if (rc == 0)
		rc = set_aside(&r, err);
	r.report->passed = r.passed;
	if (rc < 0)
		r.report->step = r.step ? r.step->number : -1;
	for (size_t i = 0; i < r.damaged_n; i++)
		shf_step_put(r.damaged[i]);
	shf_step_put(r.step);
	shf_buf_release(&r.sought.passed);
	shf_buf_release(&r.items);
	shf_free(r.filled_by);
	return rc;
}
