/* SPDX-License-Identifier: Apache-2.0 */
/* Agreement, broadcast and exchange over the caller's three operations.
 *
 * Always true here:
 * G1  All ranks call an operation of the table, or no rank does: between two operations no rank
 *     takes a branch that depends on anything but agreed values. Memory is allocated before the
 *     agreement that precedes an operation, never between the two.
 * G2  After one failed operation no other is ever called: the group is lost on this rank, and the
 *     others find out by the deadline of their next operation.
 * G3  Data that all ranks must get is combined by XOR, or by MAX if it is short: each rank
 *     contributes its own bytes, and zeros where the bytes of others go. Pieces of equal length are
 *     gathered by an all-gather instead. Only shf_gatherv gathers bytes on one rank; it is for data
 *     that few ranks have, such as one rank of each node.
 * G4  A group of one rank calls no operation.
 * G5  Each [collective] call of sheaf.h begins with the same operation, that of shf_call_enter. So
 *     ranks that are in different calls find it out before they exchange anything else.
 *
 * A caller may pass err NULL. The sentence of the rank that failed must reach the others all the
 * same, so these functions write it to a struct of their own, `own`, if err is NULL. */
#include "group.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"

#define SAME_MAX 64             /* shf_same returns one bit for each value, in a uint64_t */
#define FAILED UINT64_MAX       /* sent in place of a length by a rank that has failed: no buffer is
                                 * that long */

int shf_group_new(struct sheaf_group **group, const struct sheaf_group_ops *ops, uint64_t pid)
{
	struct sheaf_group *g = shf_zalloc(1, sizeof(*g));
	size_t ranks = (size_t)ops->ranks;

	if (!g)
		return SHEAF_ENOMEM;
	g->ops = *ops;
	g->refs = 1;
	g->pid = pid;
	g->lens.out = shf_zalloc(ranks, sizeof(*g->lens.out));
	g->lens.in = shf_zalloc(ranks, sizeof(*g->lens.in));
	g->lens.sizes = shf_zalloc(ranks, sizeof(*g->lens.sizes));
	g->lens.eights = shf_zalloc(ranks, sizeof(*g->lens.eights));
	if (!g->lens.out || !g->lens.in || !g->lens.sizes || !g->lens.eights) {
		/* Only the caller may free its table after an error. */
		g->ops.free = NULL;
		shf_group_put(g);
		return SHEAF_ENOMEM;
	}
	for (size_t r = 0; r < ranks; r++)
		g->lens.eights[r] = sizeof(uint64_t);
	*group = g;
	return 0;
}

void shf_group_get(struct sheaf_group *group)
{
	group->refs++;
}

void shf_group_put(struct sheaf_group *group)
{
	if (!group || --group->refs > 0)
		return;
	if (group->ops.free)
		group->ops.free(group->ops.arg);
	shf_free(group->lens.out);
	shf_free(group->lens.in);
	shf_free(group->lens.sizes);
	shf_free(group->lens.eights);
	shf_free(group);
}

/* Reads the clock of the team, which a team of one rank need not have. */
static int64_t now_ns(const struct shf_team *t)
{
	return t->mono_ns(t->mono_arg);
}

/* Returns whether an operation that failed after `ms` ms without a reason had timed out. The
 * implementation of the group may measure time by a clock other than ours, so a failure in the last
 * hundredth of the deadline counts as a timeout too. */
static bool is_timeout(const struct shf_team *t, int64_t ms)
{
	return ms >= t->timeout_ms - t->timeout_ms / 100;
}

/* Marks the group as lost (G2), because operation `what`, begun at from_ns, returned `code` and
 * wrote *said. Returns SHEAF_ELOST. Only the callback knows why it failed: the first line that it
 * wrote, or the text of its errno, is the reason in the message. After a timeout no rank knows
 * which rank was missing: err->rank stays -1, and the rank in the sentence is that which waited. */
static int lose(struct shf_team *t, const char *what, int code, int64_t from_ns,
                struct sheaf_error *said, struct sheaf_error *err)
{
	char *why = t->group->why;
	size_t room = sizeof(t->group->why);
	int64_t ms = (now_ns(t) - from_ns) / 1000000;
	int rank = said->rank >= 0 && said->rank < t->ranks ? said->rank : -1;

	t->group->lost = true;
	t->group->lost_rank = -1;       /* after a timeout, whatever the callback wrote */
	said->msg[sizeof(said->msg) - 1] = '\0';
	said->msg[strcspn(said->msg, "\r\n")] = '\0';
	if (!said->msg[0] && said->sys > 0)
		shf_fail_sys(said, said->sys, "its callback returned %d", code);
	if (!said->msg[0] && is_timeout(t, ms)) {
		snprintf(why, room, "%s did not finish within %d ms: a rank died or is late, and "
		         "the others cannot tell which; see the scheduler's log, or raise "
		         "opts.timeout_ms", what, t->timeout_ms);
		return shf_fail(err, SHEAF_ELOST, "rank %d waited: %s", t->rank, why);
	}
	if (said->msg[0])
		snprintf(why, room, "%s failed after %" PRId64 " ms: %.300s", what, ms, said->msg);
	else
		snprintf(why, room, "%s failed after %" PRId64 " ms, its callback returned %d "
		         "without a message; see the log of the program's group callbacks", what,
		         ms, code);
	shf_fail(err, SHEAF_ELOST, "rank %d: %s", t->rank, why);
	if (err)
		err->sys = said->sys;
	t->group->lost_rank = rank;
	if (err && rank >= 0)
		err->rank = rank;
	return SHEAF_ELOST;
}

/* Fails operation `what`, because the group is lost. The message repeats the sentence of the
 * operation that failed first, and err->rank its rank, because callers often drop the error that
 * had them. */
static int group_refuse(struct shf_team *t, const char *what, struct sheaf_error *err)
{
	shf_fail(err, SHEAF_ELOST, "rank %d: %s: the group is unusable since an earlier failure: "
	         "%s", t->rank, what, t->group->why);
	if (err && t->group->lost_rank >= 0)
		err->rank = t->group->lost_rank;
	return SHEAF_ELOST;
}

int shf_allgather(struct shf_team *t, const void *mine, void *all, size_t bytes,
		  struct sheaf_error *err)
{
	const struct sheaf_group_ops *ops = &t->group->ops;
	struct sheaf_error said = { .rank = -1 };
	int64_t from;
	int code;

	if (t->group->lost)
		return group_refuse(t, "allgather", err);
	if (bytes == 0)
		return 0;
	if (t->ranks == 1) {
		memmove(all, mine, bytes);
		return 0;
	}
	from = now_ns(t);
	code = ops->allgather(ops->arg, mine, all, bytes, t->timeout_ms, &said);
	return code ? lose(t, "allgather", code, from, &said, err) : 0;
}

int shf_allreduce(struct shf_team *t, uint64_t *x, size_t n, int op, struct sheaf_error *err)
{
	const struct sheaf_group_ops *ops = &t->group->ops;
	struct sheaf_error said = { .rank = -1 };
	int64_t from;
	int code;

	if (t->group->lost)
		return group_refuse(t, "allreduce", err);
	if (n == 0 || t->ranks == 1)
		return 0;
	from = now_ns(t);
	code = ops->allreduce(ops->arg, x, n, op, t->timeout_ms, &said);
	return code ? lose(t, "allreduce", code, from, &said, err) : 0;
}

int shf_alltoallv(struct shf_team *t, const void *out, const size_t *out_bytes, void *in,
		  const size_t *in_bytes, struct sheaf_error *err)
{
	const struct sheaf_group_ops *ops = &t->group->ops;
	struct sheaf_error said = { .rank = -1 };
	int64_t from;
	int code;

	if (t->group->lost)
		return group_refuse(t, "alltoallv", err);
	if (t->ranks == 1) {
		if (!always(out_bytes[0] == in_bytes[0]))
			return shf_fail(err, SHEAF_EBUG, "alltoallv: %zu bytes out, %zu in",
					out_bytes[0], in_bytes[0]);
		if (out_bytes[0] > 0)
			memmove(in, out, out_bytes[0]);
		return 0;
	}
	from = now_ns(t);
	code = ops->alltoallv(ops->arg, out, out_bytes, in, in_bytes, t->timeout_ms, &said);
	return code ? lose(t, "alltoallv", code, from, &said, err) : 0;
}

/* The error of the rank that failed, as the others receive it: all ranks XOR these words, and all
 * but one contribute zeros. */
struct verdict {
	uint64_t code, sys, rank;
	char msg[504];
};
#define VERDICT_WORDS (sizeof(struct verdict) / sizeof(uint64_t))
_Static_assert(sizeof(struct verdict) % sizeof(uint64_t) == 0, "a verdict is whole words");
_Static_assert(sizeof(((struct sheaf_error *)0)->msg) <= sizeof(((struct verdict *)0)->msg),
	       "every sentence fits a verdict");

/* Fills *v from rc and err. If err is NULL, or its code is another than rc (the caller got rc from
 * a function that writes no sentence), the verdict gets a sentence that names the code. If err
 * already names a rank, that one failed first and is kept: this rank only passes its error on. */
static void verdict_fill(struct verdict *v, const struct shf_team *t, int rc,
			 const struct sheaf_error *err)
{
	struct sheaf_error own;

	if (!err || err->code != rc) {
		shf_fail(&own, rc, "rank %d: failed with code %d, without a message", t->rank, rc);
		err = &own;
	}
	memset(v, 0, sizeof(*v));
	v->code = (uint64_t)-(int64_t)rc;
	v->sys = (uint64_t)(uint32_t)err->sys;
	v->rank = (uint64_t)t->rank;
	if (err->rank >= 0 && err->rank < t->ranks)
		v->rank = (uint64_t)err->rank;
	memcpy(v->msg, err->msg, strnlen(err->msg, sizeof(err->msg) - 1));
}

/* Writes a received verdict to *err, which may be NULL, and returns its code. No sender writes a
 * verdict without a valid code and rank, so such a verdict is EBUG. */
static int verdict_read(const struct verdict *v, const struct shf_team *t, struct sheaf_error *err)
{
	if (v->code == 0 || v->code > 1000 || v->rank >= (uint64_t)t->ranks)
		return shf_fail(err, SHEAF_EBUG, "rank %d: a failing rank sent no error code",
				t->rank);
	if (err) {
		memset(err, 0, sizeof(*err));
		err->code = -(int)v->code;
		err->sys = (int)(uint32_t)v->sys;
		err->rank = (int)v->rank;
		memcpy(err->msg, v->msg, sizeof(err->msg) - 1);
	}
	return -(int)v->code;
}

/* Returns this rank's word in the MAX that finds the lowest rank that failed: the complement of its
 * number, or 0 if it has not failed. */
static uint64_t claim(const struct shf_team *t, int rc)
{
	return rc == 0 ? 0 : ~(uint64_t)t->rank;
}

/* Sends the error of the lowest rank that failed to all ranks, and returns its code on all. `first`
 * is the largest claim of all ranks (see claim). */
static int send_failure(struct shf_team *t, uint64_t first, int rc, struct sheaf_error *err)
{
	union {
		struct verdict v;
		uint64_t words[VERDICT_WORDS];
	} u;
	int lost;

	memset(&u, 0, sizeof(u));
	if (~first == (uint64_t)t->rank)
		verdict_fill(&u.v, t, rc, err);
	lost = shf_allreduce(t, u.words, VERDICT_WORDS, SHEAF_XOR, err);
	if (lost != 0)
		return lost;
	return verdict_read(&u.v, t, err);
}

/* Returns rc, or EBUG if it is positive: codes are 0 or negative, so a positive value is a bug of
 * the caller, which passed something that is no code. */
static int code_of(int rc, struct sheaf_error *err)
{
	return rc <= 0 ? rc : shf_fail(err, SHEAF_EBUG, "agreement on %d, which is not an error "
	                               "code", rc);
}

#define STACK_WORDS 512         /* operations of at most this many words use the stack, so there is
                                 * no allocation on whose success the ranks must agree */

int shf_agree_max(struct shf_team *t, int rc, uint64_t *x, size_t n, struct sheaf_error *err)
{
	uint64_t words[1 + STACK_WORDS];
	int lost;

	if (t->group->lost)
		return group_refuse(t, "agreement", err);
	if (!always(n <= STACK_WORDS))
		return shf_fail(err, SHEAF_EBUG, "agreement with %zu words", n);
	rc = code_of(rc, err);
	words[0] = claim(t, rc);
	if (n > 0)
		memcpy(words + 1, x, n * sizeof(*x));
	lost = shf_allreduce(t, words, 1 + n, SHEAF_MAX, err);
	if (lost != 0)
		return lost;
	if (words[0] != 0)
		return send_failure(t, words[0], rc, err);
	if (n > 0)
		memcpy(x, words + 1, n * sizeof(*x));
	return 0;
}

int shf_agree(struct shf_team *t, int rc, struct sheaf_error *err)
{
	return shf_agree_max(t, rc, NULL, 0, err);
}

/* ---- the first operation of a call ---- */

/* The first operation of a call is a MAX over CALL_WORDS words of each rank: its claim, the key of
 * its call, and the complement of the key; then each argument and its complement. The MAX of
 * complements gives the minimum. */
#define RANK_BITS 24
#define HANDLE_BITS 32
#define CALL_WORDS (1 + 2 * (1 + SHF_CALL_ARGS))

/* Returns the name of the call in a key. The key may come from a newer sheaf on another rank, and
 * be of a call that has no name here. */
static const char *call_name(uint64_t key)
{
	static const char *const names[] = {
		[SHF_CALL_NONE] = "the inside of another call",
		[SHF_CALL_RUN_OPEN] = "sheaf_run_open", [SHF_CALL_RUN_CLOSE] = "sheaf_run_close",
		[SHF_CALL_REWIND] = "sheaf_run_rewind", [SHF_CALL_MARK] = "sheaf_run_mark",
		[SHF_CALL_PRUNE] = "sheaf_run_prune", [SHF_CALL_BEGIN] = "sheaf_save_begin",
		[SHF_CALL_EXCHANGE] = "sheaf_save_advance",
		[SHF_CALL_COMMIT] = "sheaf_save_commit",
		[SHF_CALL_STEP_OPEN] = "sheaf_checkpoint_open",
		[SHF_CALL_STEP_OPEN_PATH] = "sheaf_checkpoint_open_path",
		[SHF_CALL_LOAD] = "sheaf_checkpoint_load",
		        [SHF_CALL_VERIFY] = "sheaf_checkpoint_verify",
		[SHF_CALL_RESUME] = "sheaf_run_resume",
		[SHF_CALL_AVERAGE] = "sheaf_state_average",
		[SHF_CALL_LOAD_BEGIN] = "sheaf_load_begin", [SHF_CALL_LOAD_END] = "sheaf_load_end"
	};
	uint64_t call = key >> (HANDLE_BITS + RANK_BITS);

	return call < sizeof(names) / sizeof(names[0]) ? names[call] : "a call that this version "
		"of sheaf does not know";
}

/* Returns call, handle and rank in one number, the call in its highest bits. So if ranks are in
 * different calls, the largest and the smallest key name two of these calls, and a rank in each. */
static uint64_t call_key(const struct shf_team *t, const struct shf_call *call)
{
	return (uint64_t)call->kind << (HANDLE_BITS + RANK_BITS) |
	       (call->handle & UINT32_MAX) << RANK_BITS |
	       ((uint64_t)t->rank & ((1u << RANK_BITS) - 1));
}

/* Fails because ranks are in different calls, or in one call on different handles. lo and hi are
 * the smallest and the largest key. */
static int calls_differ_fail(uint64_t lo, uint64_t hi, struct sheaf_error *err)
{
	unsigned a = (unsigned)(lo & ((1u << RANK_BITS) - 1));
	unsigned b = (unsigned)(hi & ((1u << RANK_BITS) - 1));

	if (lo >> (HANDLE_BITS + RANK_BITS) != hi >> (HANDLE_BITS + RANK_BITS))
		return shf_fail(err, SHEAF_EINVAL, "ranks make different calls: rank %u %s, rank "
		                "%u %s (all ranks must make the same collective calls in the same "
		                "order)", a, call_name(lo), b, call_name(hi));
	return shf_fail(err, SHEAF_EINVAL, "ranks call %s on different handles: rank %u on the one "
	                "that collective call %u made, rank %u on the one that call %u made; all "
	                "ranks must pass the same one", call_name(lo), a,
	                (unsigned)(lo >> RANK_BITS & UINT32_MAX), b,
	                (unsigned)(hi >> RANK_BITS & UINT32_MAX));
}

int shf_call_enter(struct shf_team *t, struct shf_call *call, int rc, struct sheaf_error *err)
{
	uint64_t w[CALL_WORDS] = { claim(t, rc), call_key(t, call), ~call_key(t, call) };
	int lost;

	if (t->group->lost)
		return group_refuse(t, "the beginning of a call", err);
	for (size_t i = 0; i < SHF_CALL_ARGS; i++) {
		/* Arguments that were refused are not sent: the call fails on all ranks then. */
		w[3 + 2 * i] = rc == 0 ? call->x[i] : 0;
		w[4 + 2 * i] = rc == 0 ? ~call->x[i] : 0;
	}
	lost = shf_allreduce(t, w, CALL_WORDS, SHEAF_MAX, err);
	if (lost != 0)
		return lost;
	if (w[1] >> RANK_BITS != ~w[2] >> RANK_BITS)
		return calls_differ_fail(~w[2], w[1], err);
	if (w[0] != 0)
		return send_failure(t, w[0], rc, err);
	call->same = 0;
	for (size_t i = 0; i < SHF_CALL_ARGS; i++) {
		call->hi[i] = w[3 + 2 * i];
		call->lo[i] = ~w[4 + 2 * i];
		call->same |= (uint64_t)(call->lo[i] == call->hi[i]) << i;
	}
	call->number = ++t->group->met;
	return 0;
}

int shf_call_refuse(struct shf_team *t, enum shf_call_kind kind, uint64_t handle, int rc,
                    struct sheaf_error *err)
{
	struct shf_call call = { .kind = kind, .handle = handle };

	return shf_call_enter(t, &call, rc, err);
}

/* Returns how many words hold n bytes. */
static size_t words_for(size_t n)
{
	return n / sizeof(uint64_t) + (n % sizeof(uint64_t) != 0);
}

/* Broadcasts n bytes, more than one operation can carry beside a verdict. All ranks first agree
 * that they have memory; then the words of rank 0 are XORed with zeros from all other ranks. */
static int bcast_long(struct shf_team *t, int rc, void *bytes, size_t n, struct sheaf_error *err)
{
	size_t words = words_for(n); /* the same on all ranks, as n is */
	uint64_t *x = shf_zalloc(words, sizeof(*x));

	if (rc == 0 && !x)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for a broadcast of %zu bytes", n);
	rc = shf_agree(t, rc, err);
	if (rc == 0) {
		if (t->rank == 0)
			memcpy(x, bytes, n);
		rc = shf_allreduce(t, x, words, SHEAF_XOR, err);
	}
	if (rc == 0 && t->rank != 0)
		memcpy(bytes, x, n);
	shf_free(x);
	return rc;
}

int shf_bcast(struct shf_team *t, int rc, void *bytes, size_t n, struct sheaf_error *err)
{
	uint64_t x[STACK_WORDS];
	struct sheaf_error own;
	size_t words = words_for(n);

	if (t->group->lost)
		return group_refuse(t, "broadcast", err);
	err = err ? err : &own;
	if (words > STACK_WORDS)
		return bcast_long(t, rc, bytes, n, err);
	memset(x, 0, words * sizeof(*x));
	if (t->rank == 0 && rc == 0 && n > 0)
		memcpy(x, bytes, n);
	rc = shf_agree_max(t, rc, x, words, err); /* the words of the other ranks are 0, so the
	                                           * maximum is what rank 0 sent */
	if (rc == 0 && t->rank != 0 && n > 0)
		memcpy(bytes, x, n);
	return rc;
}

/* Makes *b, which must be empty, n zero bytes, with room after them so that the last word is
 * whole. */
static int buf_zeroed(struct shf_buf *b, size_t n, const char *what, struct sheaf_error *err)
{
	size_t room;

	if (!shf_add(&room, n, sizeof(uint64_t)) || shf_buf_reserve(b, room) != 0)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the %s of %zu bytes", what, n);
	memset(b->data, 0, room);
	b->len = n;
	return 0;
}

/* Moves the bytes of fresh to b. fresh is empty afterwards. */
static void buf_replace(struct shf_buf *b, struct shf_buf *fresh)
{
	shf_buf_release(b);
	*b = *fresh;
	*fresh = (struct shf_buf)SHF_BUF_INIT;
}

/* XORs the words of b over all ranks. b came from buf_zeroed, so its memory is aligned and its last
 * word is whole. */
static int buf_xor(struct shf_team *t, struct shf_buf *b, struct sheaf_error *err)
{
	return shf_allreduce(t, (uint64_t *)(void *)b->data, words_for(b->len), SHEAF_XOR, err);
}

int shf_bcast_buf(struct shf_team *t, int rc, struct shf_buf *b, struct sheaf_error *err)
{
	struct shf_buf fresh = SHF_BUF_INIT;
	struct sheaf_error own;
	uint64_t n = t->rank == 0 ? b->len : 0;

	err = err ? err : &own;
	if (rc == 0 && t->rank == 0 && b->oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "rank 0: no memory for the bytes to broadcast");
	rc = shf_bcast(t, rc, &n, sizeof(n), err);
	if (rc != 0 || t->ranks == 1)
		return rc;
	/* Rank 0, too, works on a copy: a failed operation must not spoil the caller's bytes. */
	if (n > SIZE_MAX)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for a broadcast of %llu bytes",
		              (unsigned long long)n);
	else
		rc = buf_zeroed(&fresh, (size_t)n, "broadcast", err);
	rc = shf_agree(t, rc, err);
	if (rc != 0)
		goto out;
	if (t->rank == 0 && n > 0)
		memcpy(fresh.data, b->data, (size_t)n);
	rc = buf_xor(t, &fresh, err);
	if (rc == 0 && t->rank != 0)
		buf_replace(b, &fresh);
out:
	shf_buf_release(&fresh);
	return rc;
}

/* Returns the claim of the lowest rank that sent FAILED instead of a length, or 0 if no rank did.
 * rc: the result on this rank. */
static uint64_t lens_claim(const struct shf_team *t, int rc)
{
	for (int r = 0; r < t->ranks; r++)
		if (t->group->lens.in[r] == FAILED)
			return ~(uint64_t)r;
	return claim(t, rc);
}

/* The sum of all received lengths; UINT64_MAX if it overflows. */
static uint64_t lens_total(const struct shf_team *t)
{
	uint64_t total = 0;

	for (int r = 0; r < t->ranks; r++)
		if (!shf_add64(&total, total, t->group->lens.in[r]))
			return UINT64_MAX;
	return total;
}

/* Makes *fresh as long as all received lengths together. */
static int lens_reserve(const struct shf_team *t, struct shf_buf *fresh, const char *what,
                        struct sheaf_error *err)
{
	uint64_t total = lens_total(t);

	if (total >= SIZE_MAX)
		return shf_fail(err, SHEAF_ENOMEM, "rank %d: %s: more bytes than fit in memory",
		                t->rank,
		                what);
	return buf_zeroed(fresh, (size_t)total, what, err);
}

/* Copies the received lengths to bytes, which may be NULL. */
static void lens_copy(const struct shf_team *t, size_t *bytes)
{
	for (int r = 0; bytes && r < t->ranks; r++)
		bytes[r] = (size_t)t->group->lens.in[r];
}

/* Exchanges the lengths, and with them the verdict: a rank that has failed sends FAILED to all. */
static int exchange_lens(struct shf_team *t, int rc, const size_t *out_bytes,
                         struct sheaf_error *err)
{
	struct shf_lens *lens = &t->group->lens;
	uint64_t first;
	int lost;

	rc = code_of(rc, err);
	for (int r = 0; r < t->ranks; r++)
		lens->out[r] = rc == 0 ? out_bytes[r] : FAILED;
	lost = shf_alltoallv(t, lens->out, lens->eights, lens->in, lens->eights, err);
	if (lost != 0)
		return lost;
	first = lens_claim(t, rc);
	return first == 0 ? 0 : send_failure(t, first, rc, err);
}

/* Does what shf_exchange_packed does. The agreement that all ranks have memory also sets each of
 * the n words x to its maximum over all ranks. */
static int exchange_with(struct shf_team *t, int rc, const void *out, const size_t *out_bytes,
                         struct shf_buf *in, size_t *in_bytes, uint64_t *x, size_t n,
                         struct sheaf_error *err)
{
	struct shf_buf fresh = SHF_BUF_INIT;
	struct sheaf_error own;

	if (t->group->lost)
		return group_refuse(t, "exchange", err);
	err = err ? err : &own;
	rc = exchange_lens(t, rc, out_bytes, err);
	if (rc == 0)
		rc = shf_agree_max(t, lens_reserve(t, &fresh, "exchange", err), x, n, err);
	if (rc == 0) {
		lens_copy(t, t->group->lens.sizes);
		rc = shf_alltoallv(t, out, out_bytes, fresh.data, t->group->lens.sizes, err);
	}
	if (rc == 0) {
		lens_copy(t, in_bytes);
		buf_replace(in, &fresh);
	}
	shf_buf_release(&fresh);
	return rc;
}

int shf_exchange_packed(struct shf_team *t, int rc, const void *out, const size_t *out_bytes,
			struct shf_buf *in, size_t *in_bytes, struct sheaf_error *err)
{
	return exchange_with(t, rc, out, out_bytes, in, in_bytes, NULL, 0, err);
}

int shf_exchange_known(struct shf_team *t, int rc, const void *out, const size_t *out_bytes,
                       uint64_t expect, struct shf_buf *in, size_t *in_bytes,
                       struct sheaf_error *err)
{
	struct shf_buf fresh = SHF_BUF_INIT;
	struct sheaf_error own;
	uint64_t total = 0;

	if (t->group->lost)
		return group_refuse(t, "exchange", err);
	err = err ? err : &own;
	if (rc == 0 && expect >= SIZE_MAX)
		rc = shf_fail(err, SHEAF_ENOMEM, "rank %d: exchange: more bytes than fit in memory",
		              t->rank);
	if (rc == 0)
		rc = buf_zeroed(&fresh, (size_t)expect, "exchange", err);
	rc = exchange_lens(t, rc, out_bytes, err);
	if (rc == 0)
		total = lens_total(t);
	if (rc == 0 && total > expect) {
		t->group->lost = true;
		snprintf(t->group->why, sizeof(t->group->why), "%" PRIu64 " bytes were received, "
		         "%" PRIu64 " expected", total, expect);
		rc = shf_fail(err, SHEAF_EBUG, "rank %d: exchange: %s", t->rank, t->group->why);
	}
	if (rc == 0) {
		lens_copy(t, t->group->lens.sizes);
		rc = shf_alltoallv(t, out, out_bytes, fresh.data, t->group->lens.sizes, err);
	}
	if (rc == 0) {
		fresh.len = (size_t)total;
		lens_copy(t, in_bytes);
		buf_replace(in, &fresh);
	}
	shf_buf_release(&fresh);
	return rc;
}

/* Packs the buffers in rank order into *packed, and their lengths into *bytes. The caller frees
 * both, also after an error. */
static int pack(const struct shf_team *t, const struct shf_buf *out, uint8_t **packed,
		size_t **bytes, struct sheaf_error *err)
{
	size_t ranks = (size_t)t->ranks, total = 0;

	for (size_t r = 0; r < ranks; r++)
		if (out[r].oom || !shf_add(&total, total, out[r].len))
			return shf_fail(err, SHEAF_ENOMEM,
			                "rank %d: no memory for the bytes for rank %zu", t->rank,
			                r);
	*bytes = shf_alloc(ranks, sizeof(**bytes));
	*packed = shf_alloc(total, 1);
	if (!*bytes || !*packed)
		return shf_fail(err, SHEAF_ENOMEM,
		                "rank %d: no memory for an exchange of %zu bytes", t->rank, total);
	total = 0;
	for (size_t r = 0; r < ranks; r++) {
		(*bytes)[r] = out[r].len;
		if (out[r].len > 0)
			memcpy(*packed + total, out[r].data, out[r].len);
		total += out[r].len;
	}
	return 0;
}

int shf_exchange_max(struct shf_team *t, int rc, const struct shf_buf *out, struct shf_buf *in,
                     size_t *in_bytes, uint64_t *x, size_t n, struct sheaf_error *err)
{
	struct sheaf_error own;
	uint8_t *packed = NULL;
	size_t *bytes = NULL;

	err = err ? err : &own;
	if (rc == 0 && !t->group->lost)
		rc = pack(t, out, &packed, &bytes, err);
	rc = exchange_with(t, rc, packed, bytes, in, in_bytes, x, n, err);
	shf_free(packed);
	shf_free(bytes);
	return rc;
}

int shf_exchange(struct shf_team *t, int rc, const struct shf_buf *out, struct shf_buf *in,
		 size_t *in_bytes, struct sheaf_error *err)
{
	return shf_exchange_max(t, rc, out, in, in_bytes, NULL, 0, err);
}

/* Gathers the bytes of all ranks into fresh, whose length is their sum. Equal lengths take one
 * all-gather. Bytes of unequal lengths are combined by XOR with zeros from the other ranks: this
 * moves each byte twice, but neither pads all to the longest length nor sends each rank a copy. */
static int gather_bytes(struct shf_team *t, const struct shf_buf *mine, struct shf_buf *fresh,
                        struct sheaf_error *err)
{
	const uint64_t *lens = t->group->lens.in;
	bool equal = true;
	size_t off = 0;

	for (int r = 1; r < t->ranks; r++)
		equal = equal && lens[r] == lens[0];
	if (equal)
		return shf_allgather(t, mine->data, fresh->data, (size_t)lens[0], err);
	for (int r = 0; r < t->rank; r++)
		off += (size_t)lens[r];
	if (mine->len > 0)
		memcpy(fresh->data + off, mine->data, mine->len);
	return buf_xor(t, fresh, err);
}

int shf_allgatherv(struct shf_team *t, int rc, const struct shf_buf *mine, struct shf_buf *all,
		   size_t *all_bytes, struct sheaf_error *err)
{
	struct shf_buf fresh = SHF_BUF_INIT;
	struct sheaf_error own;
	uint64_t len, first;
	int lost;

	if (t->group->lost)
		return group_refuse(t, "allgather", err);
	err = err ? err : &own;
	rc = code_of(rc, err);
	if (rc == 0 && mine->oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "rank %d: no memory for the bytes to gather",
		              t->rank);
	len = rc == 0 ? mine->len : FAILED;
	lost = shf_allgather(t, &len, t->group->lens.in, sizeof(len), err);
	if (lost != 0)
		return lost;
	first = lens_claim(t, rc);
	if (first != 0)
		return send_failure(t, first, rc, err);
	rc = shf_agree(t, lens_reserve(t, &fresh, "allgather", err), err);
	if (rc == 0)
		rc = gather_bytes(t, mine, &fresh, err);
	if (rc == 0) {
		lens_copy(t, all_bytes);
		buf_replace(all, &fresh);
	}
	shf_buf_release(&fresh);
	return rc;
}

int shf_same(struct shf_team *t, int rc, const uint64_t *x, size_t n, uint64_t *same, uint64_t *lo,
	     uint64_t *hi, struct sheaf_error *err)
{
	uint64_t pairs[2 * SAME_MAX];
	uint64_t bits = 0;

	/* One MAX gives the minimum too: the minimum of x is the complement of the maximum of
	 * ~x. */
	if (!always(n <= SAME_MAX))
		return shf_fail(err, SHEAF_EBUG, "comparing %zu values, of %d at most", n,
				SAME_MAX);
	for (size_t i = 0; i < n; i++) {
		pairs[2 * i] = x[i];
		pairs[2 * i + 1] = ~x[i];
	}
	if (t->group->lost)
		return group_refuse(t, "comparison", err);
	rc = shf_agree_max(t, rc, pairs, 2 * n, err);
	if (rc != 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		bits |= (uint64_t)(pairs[2 * i] == ~pairs[2 * i + 1]) << i;
		if (hi)
			hi[i] = pairs[2 * i];
		if (lo)
			lo[i] = ~pairs[2 * i + 1];
	}
	if (same)
		*same = bits;
	return 0;
}

int shf_gatherv(struct shf_team *t, int rc, const struct shf_buf *mine, struct shf_buf *all,
                struct sheaf_error *err)
{
	size_t *bytes = shf_zalloc((size_t)t->ranks, sizeof(*bytes));
	struct sheaf_error own;

	err = err ? err : &own;
	if (rc == 0 && (!bytes || mine->oom))
		rc = shf_fail(err, SHEAF_ENOMEM, "rank %d: no memory for the bytes for rank 0",
		              t->rank);
	if (rc == 0)
		bytes[0] = mine->len;
	/* If the allocation failed, bytes is NULL and rc is not 0, so bytes is not read. */
	rc = shf_exchange_packed(t, rc, rc == 0 ? mine->data : NULL, bytes, all, NULL, err);
	shf_free(bytes);
	return rc;
}
