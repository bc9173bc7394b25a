/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls on a save between begin and commit, except those that give it attached files and
 * notes (save_attach.c). */
#include "save_calls.h"
#include <inttypes.h>
#include "err.h"
#include "run_env.h"
#include "save.h"
#include "save_blocked.h"
#include "save_commit.h"
#include "save_gates.h"
#include "save_status.h"
#include "save_net.h"
#include "save_stage.h"
#include "state.h"

/* Returns 0 if the state has a slice of this number, or EINVAL. */
static int check_slice(const struct sheaf_save *save, int slice, struct sheaf_error *err)
{
	if (slice >= 0 && (size_t)slice < save->state->n)
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": slice %d: the state has slices 0 to %"
	                PRId64, save->id.step, slice, (int64_t)save->state->n - 1);
}

/* Returns 0 if the state has all slices of the list (NULL: it is all of them), or EINVAL. */
static int check_slices(const struct sheaf_save *save, const int *slices, size_t n,
                        struct sheaf_error *err)
{
	int rc = 0;

	for (size_t i = 0; slices && i < n && rc == 0; i++)
		rc = check_slice(save, slices[i], err);
	return rc;
}

/* Writes the message of a gate that did not open, unless rc has one already. */
static int say_gate(struct sheaf_save *save, const int *slices, size_t n, int rc,
                    struct sheaf_error *err)
{
	int64_t unput = rc == SHEAF_EINVAL && slices
	                ? shf_save_gates_first_unput(save, slices, n) : -1;
	const struct shf_slice *s = unput >= 0 ? &save->state->slices[unput]
	                            : slices && n == 1 ? &save->state->slices[slices[0]] : NULL;
	const char *many = slices ? "some slices" : "all slices";

	if (rc == 0 || err->code == rc)
		return rc;
	if (rc != SHEAF_EAGAIN && rc != SHEAF_EINVAL)
		return shf_save_failure(save, err) == rc ? rc
		     : shf_fail(err, rc, "step %" PRId64 ": %s", save->id.step, shf_strerror(rc));
	if (rc == SHEAF_EINVAL)
		return shf_fail(err, rc, "step %" PRId64 ": %s%s%s: call sheaf_save_slice_ready "
		                "first, because the save was begun with SHEAF_SAVE_LATER",
		                save->id.step, s ? s->family : many, s ? "/" : "",
		                s ? s->name : "");
	return shf_fail(err, rc, "step %" PRId64 ": %s%s%s: not copied yet; call again",
	                save->id.step,
	                s ? s->family : many, s ? "/" : "", s ? s->name : "");
}

static bool reads_any(struct sheaf_save *save, const int *slices, size_t n)
{
	bool reads = false;

	if (!slices)
		return shf_save_gates_reads_some(save);
	for (size_t i = 0; i < n && !reads; i++)
		reads = shf_save_gates_reads(save, (size_t)slices[i]);
	return reads;
}

int shf_save_list_copied(struct sheaf_save *save, const int *slices, size_t n, int timeout_ms,
                         struct sheaf_error *err)
{
	struct sheaf_error own;
	int64_t from = shf_now(save->run);
	bool waited;
	int rc;

	err = shf_err_or(err, &own);
	rc = check_slices(save, slices, n, err);
	if (rc < 0 || !save->copy.lazy)
		return rc;
	waited = timeout_ms != 0 && reads_any(save, slices, n);
	rc = shf_save_gates_list_copied(save, slices, slices ? n : save->state->n, timeout_ms,
	                                err);
	shf_save_blocked_gate(save, from, waited);
	return say_gate(save, slices, n, rc, err);
}

int shf_save_copied(struct sheaf_save *save, int slice, int timeout_ms, struct sheaf_error *err)
{
	return shf_save_list_copied(save, slice == SHEAF_ALL_SLICES ? NULL : &slice, 1, timeout_ms,
	                            err);
}

/* Checks that a slice may be put now. */
static int check_put(const struct sheaf_save *save, int slice, const void *data,
                     struct sheaf_error *err)
{
	const struct shf_slice *s = &save->state->slices[slice];

	if (!(save->id.flags & SHEAF_SAVE_LATER))
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": the save was begun without "
		                "SHEAF_SAVE_LATER; its slices are all ready", save->id.step);
	if (s->empty)
		return 0;
	if (!save->copy.lazy || save->at.end == SHF_OVER)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": the save has ended; free it",
		                save->id.step);
	if (!data && !s->mem.base)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 ": %s/%s: neither this call nor "
		                "the state gives its memory; pass it here", save->id.step,
		                s->family, s->name);
	return 0;
}

int shf_save_list_put(struct sheaf_save *save, const int *slices, size_t n, const void *data,
                      struct sheaf_error *err)
{
	int rc = check_slices(save, slices, n, err);
	size_t filled = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		rc = check_put(save, slices[i], data, err);
		filled += rc == 0 && !save->state->slices[slices[i]].empty;
	}
	/* data is not const in struct shf_slice, but only read */
	return rc == 0 && filled ? shf_save_gates_put(save, slices, n, (void *)(uintptr_t)data, err)
	                         : rc;
}

int shf_save_put(struct sheaf_save *save, int slice, const void *data, struct sheaf_error *err)
{
	return shf_save_list_put(save, &slice, 1, data, err);
}

/* Waits until the save is written on this rank, as far as no other node is needed. A lazy save is
 * copied to its end first. Segments to which other ranks of the node must still copy are not waited
 * for; if there are any, the result is EAGAIN. */
static int wait_written(struct sheaf_save *save, int timeout_ms)
{
	int64_t until = shf_now(save->run) + shf_ms_ns(timeout_ms), left;
	int rc = shf_save_is_async(save) ? shf_save_gates_finish(save, timeout_ms) : 0;
	bool partial = rc == 0 && shf_save_is_async(save) && !save->plan->most &&
	               shf_save_gates_is_partial(save);

	if (rc < 0)
		return rc;
	left = (until - shf_now(save->run)) / 1000000;
	rc = shf_save_drain(save, timeout_ms < 0 ? -1 : left > 0 ? (int)left : 0);
	return rc == 0 && partial ? SHEAF_EAGAIN : rc;
}

int shf_save_wait(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err)
{
	int64_t from = shf_now(save->run);
	int rc = save->at.end == SHF_OVER ? shf_save_rc(save, err)
	       : wait_written(save, timeout_ms);

	shf_save_blocked_add(save->run, save, SHF_IN_WAIT, from);
	if (rc == SHEAF_EAGAIN)
		return shf_fail(err, rc, "step %" PRId64 ": this rank has not copied and written "
		                "all of it yet; call again", save->id.step);
	return rc < 0 && save->at.end != SHF_OVER && shf_save_failure(save, err) == 0
	       ? shf_fail(err, rc, "step %" PRId64 ": %s", save->id.step, shf_strerror(rc)) : rc;
}

int shf_save_exchange(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err)
{
	int64_t from = shf_now(save->run);
	struct shf_call m = { .kind = SHF_CALL_EXCHANGE, .handle = save->id.made,
		.x = { bytes_max } };
	bool over = save->at.end == SHF_OVER;
	int rc = over ? shf_fail(err, SHEAF_EINVAL, "the save has ended; free it")
	              : shf_save_failure(save, err);

	rc = shf_call_enter(&save->run->team, &m, rc, err);
	if (rc == 0 && shf_call_differs(&m, 0))
		rc = shf_fail(err, SHEAF_EINVAL,
			      "ranks pass different bytes_max to sheaf_save_advance: %" PRIu64 " "
			      "and %" PRIu64,
		              m.lo[0], m.hi[0]);
	if (rc == 0)
		rc = shf_save_stage(save, err);
	if (rc == 0)
		rc = shf_save_gates_poll_all(save, err);
	if (rc == 0)
		rc = shf_save_net_finish(save, bytes_max, err);
	if (rc == 0)
		rc = shf_agree(&save->run->team, shf_save_rc(save, err), err);
	shf_save_blocked_add(save->run, save, SHF_IN_EXCHANGE, from);
	return rc;
}

/* The save that must be committed before this one; NULL: it is this one's turn. Equal on all
 * ranks. */
static const struct sheaf_save *before(const struct sheaf_save *save)
{
	const struct sheaf_save *first = save->run->saves.first;

	while (first && (first->id.flags ^ save->id.flags) & SHEAF_SAVE_NO_DISK)
		first = first->next;
	return first == save ? NULL : first;
}

int shf_save_advance(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err)
{
	const struct sheaf_save *first = save->at.end == SHF_OVER ? NULL : before(save);
	int rc = 0;

	if (!save->copy.exchanged && save->at.end != SHF_OVER)
		rc = shf_save_exchange(save, bytes_max, err);
	if (rc == 0 && first)
		return shf_fail(err, SHEAF_EAGAIN, "step %" PRId64 ": step %" PRId64 " was begun "
		                "before it and is not committed; %s", save->id.step,
		                first->id.step, first->behind.submitted
		                ? "wait for that one with sheaf_save_result"
		                : "advance or commit that one first");
	return rc == 0 ? shf_save_commit(save, 0, err) : rc;
}
