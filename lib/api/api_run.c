/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: open, close, list, rewind, mark, prune, resume, salvage,
 * restore and discard what was set aside. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "entry.h"
#include "err.h"
#include "export.h"
#include "leftovers.h"
#include "list.h"
#include "run_open.h"
#include "run_ops.h"
#include "run_resume.h"
#include "run_aside.h"
#include "run_salvage.h"
#include "save_blocked.h"
#include "sheaf-admin.h"
#include "sheaf-stat.h"
#include "state.h"
#include "step_folder.h"
#include "struct_size.h"

#define RUN_STAT_MIN (offsetof(struct sheaf_run_stat, buffers_busy) + sizeof(uint32_t))

SHEAF_API int sheaf_run_open(struct sheaf_run **run, const char *dir, struct sheaf_group *group,
                             const struct sheaf_opts *opts, struct sheaf_error *err)
{
	struct sheaf_error own;
	struct shf_opts o;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_open_check(run, "run", &o, opts, group, SHF_CALL_RUN_OPEN, err);
	if (rc == 0)
		rc = shf_run_open(run, dir, group, &o, shf_sys_real(), err);
	return shf_ended(rc, err);
}

SHEAF_API void sheaf_run_close(struct sheaf_run *run)
{
	if (run)
		shf_run_close(run);
}

/* Lists what is in the run, while no other thread changes it. */
static int list_run(struct sheaf_run *run, struct shf_list *list, struct sheaf_error *err)
{
	int rc;

	shf_turns_hold(run);
	rc = shf_store_list(&run->store, list, err);
	shf_turns_give(run);
	return rc;
}

/* Counts all committed steps, and stores the first n of them, ascending. */
SHEAF_API int sheaf_run_steps(struct sheaf_run *run, int64_t *steps, size_t n,
                              struct sheaf_error *err)
{
	struct shf_list list = { 0 };
	struct sheaf_error own;
	size_t found = 0;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0 && !steps && n)
		rc = shf_fail(err, SHEAF_EINVAL, "argument 'steps' is NULL, but n is %zu", n);
	if (rc == 0)
		rc = list_run(run, &list, err);
	for (size_t i = 0; rc == 0 && i < list.n; i++) {
		if (list.entries[i].state != SHF_COMMITTED)
			continue;
		if (found < n)
			steps[found] = list.entries[i].step;
		found++;
	}
	shf_list_release(&list);
	if (rc == 0)
		/* The count is the return value, so it must fit an int. */
		rc = found > INT_MAX ? INT_MAX : (int)found;
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_run_path(struct sheaf_run *run, int64_t step, char *path, size_t bytes,
                             struct sheaf_error *err)
{
	char name[SHF_STEP_NAME];
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0 && (step < 0 || !path))
		rc = shf_fail(err, SHEAF_EINVAL, "argument 'path' is NULL, or step is negative; "
		              "pass memory, and the number of a step");
	if (rc < 0)
		return shf_ended(rc, err);
	shf_name_of_step(&run->store, name, step);
	if (strlen(run->store.path) + 1 + strlen(name) >= bytes)
		rc = shf_fail(err, SHEAF_EINVAL, "%s/%s: the path does not fit into %zu bytes; "
		              "pass more memory",
			      run->store.path, name, bytes);
	else
		snprintf(path, bytes, "%s/%s", run->store.path, name);
	return shf_ended(rc, err);
}

/* Returns the state of a directory for sheaf_item. */
static int32_t state_of(const struct shf_entry *e)
{
	switch (e->state) {
	case SHF_COMMITTED:
		return SHEAF_ITEM_COMMITTED;
	case SHF_DAMAGED:
		return e->unread ? SHEAF_ITEM_UNREAD : SHEAF_ITEM_DAMAGED;
	case SHF_FOREIGN:
		return SHEAF_ITEM_FOREIGN;
	case SHF_ASIDE:
		return SHEAF_ITEM_ASIDE;
	case SHF_STAGED:
		return SHEAF_ITEM_STAGED;
	}
	return SHEAF_ITEM_DAMAGED;
}

/* Returns the mark that the store has as a letter. */
static int32_t mark_of(char letter)
{
	return letter == 'k' ? SHEAF_MARK_KEEP : letter == 'b' ? SHEAF_MARK_BAD
	     : letter == '?' ? SHEAF_MARK_UNREAD : SHEAF_MARK_NONE;
}

SHEAF_API int sheaf_run_list(struct sheaf_run *run,
                             int (*item)(void *arg, const struct sheaf_item *), void *arg,
                             struct sheaf_error *err)
{
	struct shf_list list = { 0 };
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0 && !item)
		rc = shf_fail(err, SHEAF_EINVAL, "callback 'item' is NULL");
	if (rc == 0)
		rc = list_run(run, &list, err);
	for (size_t i = 0; rc == 0 && i < list.n; i++) {
		const struct shf_entry *e = &list.entries[i];
		struct sheaf_item it = { .size = sizeof(it), .mark = mark_of(e->mark),
			.step = e->step, .parent = e->parent, .state = state_of(e),
			.session = e->session, .created = e->created, .path = e->path,
			.bytes = e->bytes, .tries = e->tries };

		rc = item(arg, &it);
	}
	shf_list_release(&list);
	return shf_ended(rc, err);
}

/* The argument of left_out. */
struct telling {
	int (*item)(void *arg, const struct sheaf_leftover *left);
	void *arg;
};

/* Callback of shf_store_left: reports something that a dead writer left. */
static int left_out(void *arg, const struct shf_left *l)
{
	const struct telling *t = arg;
	struct sheaf_leftover out = { .size = sizeof(out), .lives = l->lives, .step = l->step,
		.bytes = l->bytes, .kind = l->kind, .action = l->action, .path = l->path,
		.session = l->session, .why = l->why, .whole = l->whole };

	return t->item(t->arg, &out);
}

SHEAF_API int sheaf_run_leftovers(struct sheaf_run *run,
                                  int (*item)(void *arg, const struct sheaf_leftover *), void *arg,
                                  struct sheaf_error *err)
{
	struct telling t = { item, arg };
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0 && !item)
		rc = shf_fail(err, SHEAF_EINVAL, "callback 'item' is NULL");
	if (rc == 0) {
		shf_turns_hold(run);
		rc = shf_store_left(&run->store, left_out, &t, err);
		shf_turns_give(run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_run_salvage(const char *dir, int64_t step, const struct sheaf_opts *opts,
                                struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_reporting heard;
	struct sheaf_error own;
	struct shf_opts o;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_opts_gather(&o, opts, err);
	if (rc == 0)
		rc = shf_report_begin(&heard, report, err);
	if (rc == 0) {
		rc = shf_run_salvage(dir, step, &o, shf_sys_real(), &heard.own, err);
		shf_report_end(&heard, report);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_run_restore(const char *dir, const char *aside, const struct sheaf_opts *opts,
                                struct sheaf_error *err)
{
	struct sheaf_error own;
	struct shf_opts o;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_opts_gather(&o, opts, err);
	if (rc == 0)
		rc = shf_run_restore(dir, aside, &o, shf_sys_real(), err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_run_discard(const char *dir, const char *aside, const struct sheaf_opts *opts,
                                struct sheaf_error *err)
{
	struct sheaf_error own;
	struct shf_opts o;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_opts_gather(&o, opts, err);
	if (rc == 0)
		rc = shf_run_discard(dir, aside, &o, shf_sys_real(), err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_run_get_stat(struct sheaf_run *run, struct sheaf_run_stat *stat,
                                 struct sheaf_error *err)
{
	struct sheaf_run_stat s;
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc < 0)
		return rc;
	shf_save_blocked_stat(run, &s);
	return shf_struct_out(stat, &s, sizeof(s), RUN_STAT_MIN, "run_stat", err);
}

SHEAF_API int sheaf_run_rewind(struct sheaf_run *run, int64_t step, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0)
		rc = shf_turns_take(run, SHF_CALL_REWIND, err);
	if (rc == 0) {
		rc = shf_run_rewind(run, step, err);
		shf_turns_give(run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_run_resume(struct sheaf_run *run, struct sheaf_state *state, uint64_t flags,
                               struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_reporting heard;
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0)
		rc = shf_turns_take(run, SHF_CALL_RESUME, err);
	if (rc < 0)
		return shf_ended(rc, err);
	rc = shf_report_begin(&heard, report, err);
	if (rc < 0) {
		/* The other ranks are in the call already: this rank takes part, so that all return
		 * an error. */
		rc = shf_call_refuse(&run->team, SHF_CALL_RESUME, run->life.made, rc, err);
	} else {
		rc = shf_run_resume(run, state, flags, &heard.own, err);
		shf_report_end(&heard, report);
	}
	shf_turns_give(run);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_run_mark(struct sheaf_run *run, int64_t step, int32_t mark,
                             struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0)
		rc = shf_turns_take(run, SHF_CALL_MARK, err);
	if (rc == 0) {
		rc = shf_run_mark(run, step, mark, err);
		shf_turns_give(run);
	}
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_run_prune(struct sheaf_run *run, int dry,
                              void (*item)(void *arg, int64_t step, int32_t action,
                                           const char *why),
                              void *arg, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_run_check(run, err);
	if (rc == 0)
		rc = shf_turns_take(run, SHF_CALL_PRUNE, err);
	if (rc == 0) {
		rc = shf_run_prune(run, dry != 0, item, arg, err);
		shf_turns_give(run);
	}
	return shf_ended(rc, err);
}
