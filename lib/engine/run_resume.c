/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf_run_resume loads the latest step. With SHEAF_FALLBACK it loads the newest step that is
 * sound.
 *
 *   F1. The next candidate is tried only after ECORRUPT, and after a step on disk only if a second
 *       read, past the page cache, finds damage as well. It is never tried after EIO, ENOMEM or
 *       ELOST: what cannot be read now may be read tomorrow. Nor after EFORMAT: what a newer sheaf
 *       wrote is good, and whoever has that sheaf wants it.
 *   F2. Candidates come in the order of struct shf_candidate: both copies of a step, in memory and
 *       on disk, are tried before any older step.
 *   F3. Newer steps are set aside, as a rewind does it, only after the older one was loaded and all
 *       of it was proved. A reader sets nothing aside. A crash before that leaves the run as it
 *       was.
 *   F4. The report names each that was passed over or set aside, whether anybody logs or not. What
 *       it says of tensors is of the last candidate that was tried.
 *   F5. Nothing of a damaged step stays in the caller's memory: each slice that it has begun to
 *       fill is filled by the candidate that is loaded, or that is refused before a byte of it is
 *       read (filled_by).
 */
#include "run_resume.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "latest_search.h"
#include "load.h"
#include "load_base.h"
#include "memory_dir.h"
#include "memory_tier.h"
#include "run_env.h"
#include "run_ops.h"
#include "save.h"
#include "state.h"
#include "step.h"
#include "step_confirm.h"
#include "step_open.h"
#include "steps.h"
#include "verify_step.h"

#define DAMAGED_MAX SHF_PINS    /* memory has no more steps than that */

/* A resume under way. */
struct resume {
	struct sheaf_run *run;
	struct sheaf_state *state;
	uint32_t flags;                 /* of the load */
	struct sheaf_report *report;    /* the caller's */
	struct shf_sought sought;
	struct sheaf_step *step;        /* owned; the candidate that is being tried */
	struct sheaf_step *damaged[DAMAGED_MAX]; /* owned; damaged steps in memory, open until
	                                          * set_aside */
	size_t damaged_n;
	struct sheaf_error first;       /* what the latest was refused with */
	int64_t newest;                 /* the newest that was passed over */
	uint32_t passed;
	int64_t *filled_by;             /* owned; as in struct sheaf_step, for all candidates.
	                                 * NULL: there will be one only */
	struct shf_buf items;           /* owned; what the load of this candidate has reported:
	                                 * letters, each with three strings and their NULs */
};

/* Keeps an item until it is clear that the candidate is not passed over. An item for which there is
 * no memory is delivered at once. */
static void hold_item(void *arg, char what, const char *family, const char *name,
                      const char *msg)
{
	struct resume *r = arg;
	size_t family_n = strlen(family) + 1, name_n = strlen(name) + 1, msg_n = strlen(msg) + 1;

	if (shf_buf_reserve(&r->items, 1 + family_n + name_n + msg_n) < 0) {
		shf_report_item(r->report, what, family, name, msg);
		return;
	}
	shf_buf_u8(&r->items, (uint8_t)what);
	shf_buf_add(&r->items, family, family_n);
	shf_buf_add(&r->items, name, name_n);
	shf_buf_add(&r->items, msg, msg_n);
}

/* Delivers what the load of the last candidate reported, when it is clear that this one counts. */
static void deliver_items(const struct resume *r)
{
	for (size_t at = 0; at < r->items.len;) {
		const char *what = (const char *)r->items.data + at, *family = what + 1;
		const char *name = family + strlen(family) + 1, *msg = name + strlen(name) + 1;

		shf_report_item(r->report, *what, family, name, msg);
		at += (size_t)(msg + strlen(msg) + 1 - what);
	}
}

/* Loads the candidate that is open. Its items are held back, because a candidate that fails must
 * not leave its items in the caller's list. [collective] */
static int load_candidate(struct resume *r, struct sheaf_error *err)
{
	struct sheaf_report own = *r->report;
	int rc;

	own.item = r->report->item ? hold_item : NULL;
	own.arg = r;
	/* Findings of a candidate that may be passed over are nobody's business. */
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

/* Opens and loads the next candidate. Steps that the search passed over are reported first, so that
 * the report is in the order of the search. [collective] */
static int try_next(struct resume *r, struct sheaf_error *err)
{
	int rc = shf_step_open_latest(&r->step, r->run, &r->sought, err);
	struct shf_buf *passed = rc == 0 ? &r->step->passed : &r->sought.passed;

	shf_sought_tell(passed, r->report);
	shf_buf_reset(passed);
	return rc == 0 ? load_candidate(r, err) : rc;
}

/* Reads and checks all of the step that was loaded, also tensors that the state does not hold. Of a
 * step in the memory of several nodes only what was loaded is proved, by the load. [collective] */
static int prove_loaded(struct resume *r, struct sheaf_error *err)
{
	struct sheaf_report own = { .size = sizeof(own) };
	const struct shf_view *view = r->step->view;

	if (!view)
		return shf_step_confirm(r->run, r->step->number, err);
	return shf_view_hads(view) ? 0 : shf_step_verify(r->step, &own, err);
}

/* Tells all ranks in *at which candidate could not be loaded. [collective] */
static int agree_on_failed(struct resume *r, struct shf_candidate *at, struct sheaf_error *err)
{
	*at = r->sought.at;
	if (r->step) {
		bool memory = r->step->run->lineage.memory_of != NULL;

		*at = (struct shf_candidate){ r->step->number, memory };
		return 0;
	}
	return shf_bcast(&r->run->team, 0, at, sizeof(*at), err);
}

/* Reads the candidate a second time (F1): from disk past the page cache, from memory by a full
 * verification. A part on another node cannot be read a second time, so there the first answer
 * counts. Returns 0 if it is whole now. [collective] */
static int read_candidate_again(struct resume *r, const struct shf_candidate *at,
                                const struct sheaf_error *why, struct sheaf_error *err)
{
	if (!at->memory)
		return shf_step_confirm(r->run, at->step, err);
	if (r->step && !shf_view_hads(r->step->view))
		return prove_loaded(r, err);
	*err = *why;
	return why->code;
}

/* Reports a candidate to the caller and to the log. [rank 0] */
static void report_candidate(const struct resume *r, char what, const struct shf_candidate *at,
                             const char *why)
{
	char name[60];

	if (r->run->team.rank)
		return;
	snprintf(name, sizeof(name), "%scheckpoint-%" PRId64, at->memory ? "memory of " : "",
	         at->step);
	shf_report_item(r->report, what, "", name, why);
	shf_log(r->run, 1, "%s: %s is %s: %s", r->run->store.path, name,
	        what == 'A' ? "set aside" : "passed over", why);
}

/* Returns the error of the latest step: no candidate is left. */
static int exhausted(const struct resume *r, struct sheaf_error *err)
{
	*err = r->first;
	return shf_fail(err, r->first.code, "%.400s; nothing else could be loaded", r->first.msg);
}

/* Passes over the candidate that could not be loaded; err says why. Returns 0 if the next one may
 * be tried. A candidate that a second read finds whole is not passed over: memory, bus or network
 * failed, and an older step would hide that. [collective] */
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
		return shf_fail(err, rc, "%.400s; a second read found it whole: try again",
		                err->msg);
	if (found != SHEAF_ECORRUPT) {
		*err = again;
		return found;
	}
	if (r->passed++ == 0) {
		r->first = *err;
		r->newest = at.step;
	}
	report_candidate(r, 'P', &at, again.msg);
	/* Kept open: its memory is given up only when an older step was loaded (F3). */
	if (at.memory && r->step && r->damaged_n < DAMAGED_MAX)
		r->damaged[r->damaged_n++] = r->step;
	else
		shf_step_put(r->step);
	r->step = NULL;
	r->sought.after = at;
	shf_buf_reset(&r->items);
	return 0;
}

/* Loads the latest step, or with `falls` the newest one that can be loaded. A step that is fallen
 * back to must be whole in all its parts: newer steps are about to be set aside for it.
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

/* Reports each step newer than the one that was loaded that the rewind took away. [rank 0] */
static void tell_aside(const struct resume *r, const struct shf_steps *before)
{
	struct shf_store *s = &r->run->store;
	struct shf_stat st;
	char name[40];

	for (size_t i = 0; i < before->n && before->all[i] > r->step->number; i++) {
		shf_name_of_step(name, before->all[i]);
		if (shf_sys_stat(s->sys, s->dir, name, false, &st) == -ENOENT)
			report_candidate(r, 'A', &(struct shf_candidate){ before->all[i], false },
			                 "it is kept in .sheaf/aside");
	}
}

/* Sets aside the steps on disk that are newer than the one that was loaded, which is on disk or has
 * a copy there. [collective] */
static int rewind_to(struct resume *r, struct sheaf_error *err)
{
	struct shf_steps before = { NULL, 0 };
	int rc;

	if (r->newest == r->step->number)       /* only its copy in memory was passed over */
		return 0;
	if (r->run->team.rank == 0)
		(void)shf_steps_read(&r->run->store, &before);
	rc = shf_run_go_back(r->run, r->step->number, r->step->run->lineage.memory_of, err);
	if (rc == 0 && r->run->team.rank == 0)
		tell_aside(r, &before);
	shf_free(before.all);
	return rc;
}

/* Sets aside what was passed over, or gives up its memory (F3). [collective] */
static int set_aside(struct resume *r, struct sheaf_error *err)
{
	if (r->passed == 0 || r->run->opts.flags & SHEAF_READONLY)
		return 0;
	/* The step that was loaded is on disk: a rewind of the run sets the newer ones aside. */
	if (!r->step->run->lineage.memory_of || r->step->run->lineage.base.step == r->step->number)
		return rewind_to(r, err);
	for (size_t i = 0; i < r->damaged_n; i++) {
		report_candidate(r, 'A', &(struct shf_candidate){ r->damaged[i]->number, true },
		                 "its memory is given up");
		shf_view_condemn(r->damaged[i]->view);
	}
	shf_tier_fell_back(r->run, r->step->number);
	return 0;
}

/* What only a resume that may fall back minds and needs. [local] */
static int prepare_resume(struct resume *r, struct sheaf_error *err)
{
	const struct sheaf_run *run = r->run;
	size_t n = r->state ? r->state->n : 0;

	if (r->flags & SHEAF_DRY)
		return shf_fail(err, SHEAF_EINVAL, "SHEAF_FALLBACK and SHEAF_DRY exclude each "
		                "other: what is not read cannot be proved");
	if (run->saves.first)
		return shf_fail(err, SHEAF_EINVAL, "%s: step %" PRId64 " is being saved (commit it "
		                "or free it before a resume)", run->store.path,
		                run->saves.first->id.step);
	r->filled_by = shf_alloc(n, sizeof(*r->filled_by));
	if (!r->filled_by)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu slices", n);
	for (size_t i = 0; i < n; i++)
		r->filled_by[i] = -1;
	return 0;
}

/* What was set aside is done last, when the older step is in the caller's memory. [collective] */
int shf_run_resume(struct sheaf_run *run, struct sheaf_state *state, uint32_t flags,
                   struct sheaf_report *report, struct sheaf_error *err)
{
	struct sheaf_report none = { .size = sizeof(none) };
	struct resume r = { .run = run, .state = state, .flags = flags & ~SHEAF_FALLBACK,
		.report = report ? report : &none,
		.sought = { .after = SHF_FROM_THE_NEWEST, .passed = SHF_BUF_INIT } };
	struct shf_call m = { .kind = SHF_CALL_RESUME, .handle = run->life.made, .x = { flags } };
	struct sheaf_error own;
	int rc;

	err = err ? err : &own;
	rc = flags & SHEAF_FALLBACK ? prepare_resume(&r, err) : 0;
	rc = shf_call_enter(&run->team, &m, rc, err);
	if (rc == 0 && shf_call_differs(&m, 0))
		rc = shf_fail(err, SHEAF_EINVAL, "ranks resume with different flags");
	if (rc == 0)
		rc = load_one(&r, flags & SHEAF_FALLBACK, err);
	deliver_items(&r);
	if (rc == 0)
		rc = set_aside(&r, err);
	if (rc == 0)
		r.report->passed = r.passed;
	for (size_t i = 0; i < r.damaged_n; i++)
		shf_step_put(r.damaged[i]);
	shf_step_put(r.step);
	shf_buf_release(&r.sought.passed);
	shf_buf_release(&r.items);
	shf_free(r.filled_by);
	return rc;
}
