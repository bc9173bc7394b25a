/* SPDX-License-Identifier: Apache-2.0 */
/* How a collective call begins: ranks that are in different calls get an error. And how a group
 * ends: what the error says of the operation that failed. */
#include "sheaf-inspect.h"
#include "sheaf-load.h"
#include <errno.h>
#include "t.h"
#include "err.h"
#include "group.h"
#include "memfail.h"
#include "simgroup.h"

#define SEED UINT64_C(0x5eaf)
#define TIMEOUT_MS 60000

static int64_t sim_ns(void *group)
{
	return simgroup_now_ms(group) * 1000000;
}

static struct shf_team team(struct sheaf_group *group)
{
	return (struct shf_team){ group, group->ops.rank, group->ops.ranks, TIMEOUT_MS, sim_ns,
	                          group };
}

/* ---- an operation that fails ---- */

static int no_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			struct sheaf_error *err)
{
	(void)arg, (void)mine, (void)all, (void)bytes, (void)timeout_ms, (void)err;
	return -1;
}

static int no_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                        const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	(void)arg, (void)out, (void)out_bytes, (void)in, (void)in_bytes, (void)timeout_ms;
	(void)err;
	return -1;
}

static int no_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			struct sheaf_error *err)
{
	(void)arg, (void)x, (void)n, (void)op, (void)timeout_ms, (void)err;
	return -1;
}

/* A clock by which the operation took took_ms: every second look at it is that much later. */
static int64_t took_ms, looked;

static int64_t slow_ns(void *arg)
{
	(void)arg;
	return (looked++ % 2 ? took_ms : 0) * 1000000;
}

TEST(only_an_operation_whose_time_ran_out_is_said_to_be_late)
{
	static const struct {
		int64_t ms;
		const char *says;
	} cases[] = {
		{ 0, "rank 1: allreduce failed after 0 ms, its callback returned -1 without a "
		     "message; see the log of the program's group callbacks" },
		{ 500, "rank 1: allreduce failed after 500 ms, its callback returned -1" },
		{ 59399, "rank 1: allreduce failed after 59399 ms, its callback returned -1" },
		{ 59400, "rank 1 waited: allreduce did not finish within 60000 ms" },
		{ 59990, "rank 1 waited: allreduce did not finish within 60000 ms" },
		{ 61000, "rank 1 waited: allreduce did not finish within 60000 ms: a rank died or "
		         "is late, and the others cannot tell which; see the scheduler's log, or "
		         "raise opts.timeout_ms" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sheaf_group_ops ops = { .size = sizeof(ops), .rank = 1, .ranks = 2,
			.allgather = no_allgather, .alltoallv = no_alltoallv,
			.allreduce = no_allreduce };
		struct sheaf_group *g = NULL;
		struct sheaf_error err;
		struct shf_team t;

		CHECK_INT(sheaf_group_new(&g, &ops, NULL), 0);
		t = team(g);
		t.mono_ns = slow_ns;
		took_ms = cases[i].ms;
		CHECK_INT(shf_agree(&t, 0, &err), SHEAF_ELOST);
		CHECK(strncmp(err.msg, cases[i].says, strlen(cases[i].says)) == 0);
		CHECK_INT(shf_agree(&t, 0, &err), SHEAF_ELOST);
		CHECK(strstr(err.msg, "the group is unusable since an earlier failure: "
		             "allreduce "));
		CHECK(strstr(err.msg, i < 3 ? "callbacks" : "cannot tell which") != NULL);
		sheaf_group_free(g);
	}
}

/* What the callbacks below write when they fail. */
static struct sheaf_error reason;

static int sorry_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
                           struct sheaf_error *err)
{
	(void)arg, (void)x, (void)n, (void)op, (void)timeout_ms;
	CHECK(err->code == 0 && err->sys == 0 && err->rank == -1 && err->msg[0] == '\0');
	*err = reason;
	return -7;
}

static int sorry_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
                           struct sheaf_error *err)
{
	(void)mine, (void)all;
	return sorry_allreduce(arg, NULL, bytes, 0, timeout_ms, err);
}

static int sorry_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                           const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	(void)out, (void)out_bytes, (void)in, (void)in_bytes;
	return sorry_allreduce(arg, NULL, 0, 0, timeout_ms, err);
}

/* Fails operation 0, 1 or 2 of a new group after took_ms; the error is left in *err, and that of a
 * later operation in *later. */
static void fail_with_reason(int kind, struct sheaf_error *err, struct sheaf_error *later)
{
	struct sheaf_group_ops ops = { .size = sizeof(ops), .rank = 1, .ranks = 2,
		.allgather = sorry_allgather, .alltoallv = sorry_alltoallv,
		.allreduce = sorry_allreduce };
	struct sheaf_group *g = NULL;
	uint64_t x[2] = { 0 };
	size_t n[2] = { 8, 0 };
	struct shf_team t;

	CHECK_INT(sheaf_group_new(&g, &ops, NULL), 0);
	t = team(g);
	t.mono_ns = slow_ns;
	looked = 0;
	CHECK_INT(kind == 0 ? shf_allreduce(&t, x, 2, SHEAF_MAX, err)
	          : kind == 1 ? shf_allgather(&t, x, x, 8, err)
	          : shf_alltoallv(&t, x, n, x, n, err), SHEAF_ELOST);
	CHECK_INT(shf_agree(&t, 0, later), SHEAF_ELOST);
	sheaf_group_free(g);
}

TEST(the_reason_that_a_callback_writes_is_in_the_message)
{
	static const char *const names[] = { "allreduce", "allgather", "alltoallv" };
	struct sheaf_error err, later;
	char want[600];

	for (int kind = 0; kind < 3; kind++) {
		/* Of a text in several lines the first is shown, whatever the time. */
		took_ms = kind < 2 ? 40 : 61000;
		reason = (struct sheaf_error){ .code = 5, .sys = ECONNRESET, .rank = 0,
			.msg = "gloo: the peer closed the connection\nTraceback: none of it" };
		fail_with_reason(kind, &err, &later);
		snprintf(want, sizeof(want), "rank 1: %s failed after %d ms: gloo: the peer closed "
		         "the connection", names[kind], (int)took_ms);
		CHECK_STR(err.msg, want);
		CHECK(err.code == SHEAF_ELOST && err.sys == ECONNRESET && err.rank == 0);
		CHECK(strstr(later.msg, "gloo: the peer closed the connection"));
		CHECK_INT(later.rank, 0);
	}
	/* An errno alone has its text; a rank that the group has not is none. */
	for (int rank = 1; rank <= 2; rank++) {
		reason = (struct sheaf_error){ .sys = ECONNRESET, .rank = rank };
		fail_with_reason(0, &err, &later);
		CHECK(strstr(err.msg, "its callback returned -7: Connection reset by peer"));
		CHECK(err.sys == ECONNRESET && err.rank == (rank < 2 ? rank : -1));
		CHECK_INT(later.rank, err.rank);
	}
	/* A text without an end, as long as there is room. */
	memset(reason.msg, 'a', sizeof(reason.msg));
	fail_with_reason(0, &err, &later);
	CHECK(strstr(err.msg, "allreduce failed after 61000 ms: aaaaaaaa"));
	CHECK(strlen(err.msg) < sizeof(err.msg) && strstr(later.msg, "aaaaaaaa"));
	/* No text at all: the time decides what is said. */
	reason = (struct sheaf_error){ .rank = -1 };
	fail_with_reason(0, &err, &later);
	CHECK(strstr(err.msg, "did not finish within 60000 ms"));
}

/* ---- ranks that are in different calls ---- */

struct calls {
	enum shf_call_kind kind[3];     /* by rank */
	uint64_t handle[3];
	int rc[3];                      /* what is wrong there before */
	struct sheaf_error err[3];
	uint64_t number[3];
};

static int run_calls(void *arg, int rank, struct sheaf_group *group)
{
	struct calls *c = arg;
	struct shf_call call = { .kind = c->kind[rank], .handle = c->handle[rank],
		.x = { 7, (uint64_t)rank, UINT64_MAX } };
	struct shf_call again = { .kind = SHF_CALL_COMMIT };
	struct shf_team t = team(group);
	int rc;

	if (c->rc[rank])
		shf_fail(&c->err[rank], c->rc[rank], "rank %d is wrong", rank);
	rc = shf_call_enter(&t, &call, c->rc[rank], &c->err[rank]);
	c->number[rank] = call.number;
	if (rc == 0 && (call.same != (UINT64_MAX >> (64 - SHF_CALL_ARGS) & ~UINT64_C(2)) ||
	                call.lo[0] != 7 || call.lo[1] != 0 || call.hi[1] != 2))
		return __LINE__;
	/* Whatever it was, the ranks are together again. */
	return shf_call_enter(&t, &again, 0, NULL) ? __LINE__ : rc;
}

static void met(struct calls *c, int rc, const char *says)
{
	struct simgroup_opts o = { .seed = SEED, .ranks = 3 };
	int results[3];

	CHECK_INT(simgroup_run(&o, run_calls, c, results), 0);
	for (int r = 0; r < 3; r++) {
		CHECK_RC(results[r], rc, &c->err[r]);
		CHECK_INT(c->number[r], rc == 0);
		if (rc && !strstr(c->err[r].msg, says))
			fail_msg("want '%s' in: %s", says, c->err[r].msg);
	}
}

TEST(ranks_in_different_calls_learn_it_in_the_first_operation)
{
	struct calls same = { .kind = { SHF_CALL_BEGIN, SHF_CALL_BEGIN, SHF_CALL_BEGIN } };
	struct calls apart = { .kind = { SHF_CALL_COMMIT, SHF_CALL_BEGIN, SHF_CALL_COMMIT } };
	struct calls handles = { .kind = { SHF_CALL_LOAD, SHF_CALL_LOAD, SHF_CALL_LOAD },
		.handle = { 4, 4, 5 } };
	struct calls wrong = same, both = apart;

	met(&same, 0, NULL);
	met(&apart, SHEAF_EINVAL, "rank 1 sheaf_save_begin, rank 2 sheaf_save_commit");
	met(&handles, SHEAF_EINVAL,
	    "sheaf_checkpoint_load on different handles: rank 0 on the one that collective call 4 "
	    "made, rank 2 on the one that call 5 made; all ranks must pass the same one");
	wrong.rc[1] = wrong.rc[2] = SHEAF_EIO;
	met(&wrong, SHEAF_EIO, "rank 1 is wrong");
	both.rc[0] = SHEAF_ENOMEM;
	met(&both, SHEAF_EINVAL, "ranks make different calls");
}

/* ---- a group of two whose other rank says what a test wants ---- */

struct other {                  /* what the callbacks of rank 1 find of rank 0 */
	uint64_t words[80];     /* of it, in the allreduce that is number `at` */
	size_t words_n;         /* 0: it has what rank 1 has */
	int at, calls;          /* of allreduce, so far */
	uint64_t len;           /* in an allgather, if not 0, the number that it has */
	int code;               /* what all callbacks return */
};

static int other_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			   struct sheaf_error *err)
{
	struct other *o = arg;

	(void)op, (void)timeout_ms, (void)err;
	if (++o->calls == o->at && o->words_n)
		memcpy(x, o->words, (n < o->words_n ? n : o->words_n) * sizeof(*x));
	return o->code;
}

static int other_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			   struct sheaf_error *err)
{
	struct other *o = arg;

	(void)timeout_ms, (void)err;
	memcpy(all, mine, bytes);
	memcpy((char *)all + bytes, mine, bytes);
	if (o->len)
		memcpy(all, &o->len, sizeof(o->len));
	return o->code;
}

static int other_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                           const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct other *o = arg;

	(void)out, (void)out_bytes, (void)timeout_ms, (void)err;
	memset(in, 0, in_bytes[0] + in_bytes[1]);
	if (o->len)
		memcpy(in, &o->len, sizeof(o->len));
	return o->code;
}

/* The clock stands, so that nothing is late. */
static int64_t no_ns(void *arg)
{
	(void)arg;
	return 0;
}

static struct shf_team with_other(struct sheaf_group **g, struct other *o)
{
	struct sheaf_group_ops ops = { .size = sizeof(ops), .rank = 1, .ranks = 2, .arg = o,
		.allgather = other_allgather, .alltoallv = other_alltoallv,
		.allreduce = other_allreduce };

	CHECK_INT(sheaf_group_new(g, &ops, NULL), 0);
	return (struct shf_team){ *g, 1, 2, TIMEOUT_MS, no_ns, NULL };
}

/* What travels is the code, the number of the system, the rank and the sentence, and nothing that
 * stood in err before is left. */
TEST(what_a_failing_rank_tells_is_taken_whole_or_is_no_code)
{
	static const struct {
		uint64_t code, sys, rank;
		int rc;
	} told[] = {
		{ 1, 0, 0, -1 }, { 5, 28, 1, -5 }, { 1000, UINT32_MAX, 1, -1000 },
		{ 0, 28, 0, SHEAF_EBUG }, { 1001, 28, 0, SHEAF_EBUG }, { 5, 28, 2, SHEAF_EBUG },
		{ UINT64_MAX, 28, 0, SHEAF_EBUG }, { 5, 28, UINT64_MAX, SHEAF_EBUG },
	};

	for (size_t i = 0; i < sizeof(told) / sizeof(*told); i++) {
		struct other o = { .at = 2, .words_n = 66, .words = { told[i].code, told[i].sys,
			told[i].rank } };
		struct sheaf_error err;
		struct sheaf_group *g = NULL;
		struct shf_team t = with_other(&g, &o);

		memset(&o.words[3], 'm', 40);
		memset(&err, 'x', sizeof(err));
		CHECK_RC(shf_agree(&t, SHEAF_EIO, &err), told[i].rc, &err);
		CHECK_INT(o.calls, 2);
		CHECK_INT(err.code, told[i].rc);
		if (told[i].rc == SHEAF_EBUG) {
			CHECK_STR(err.msg, "rank 1: a failing rank sent no error code");
		} else {
			CHECK_INT(err.sys, (int)(uint32_t)told[i].sys);
			CHECK_INT(err.rank, told[i].rank);
			CHECK_STR(err.msg, "mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm");
			for (size_t k = 40; k < sizeof(err.msg); k++)
				CHECK_INT(err.msg[k], 0);
		}
		o.calls = 0;
		CHECK_INT(shf_agree(&t, SHEAF_EIO, NULL), told[i].rc);
		sheaf_group_free(g);
	}
}

/* The sentence is that of the error, if it is about the code, and the rank the one it names. */
TEST(who_fails_names_the_rank_that_failed_first)
{
	static const struct {
		int code, rank, named;
		const char *says;
	} fails[] = {
		{ SHEAF_EIO, -1, 1, "the sentence" }, { SHEAF_EIO, 0, 0, "the sentence" },
		{ SHEAF_EIO, 1, 1, "the sentence" }, { SHEAF_EIO, 2, 1, "the sentence" },
		{ SHEAF_EINVAL, 0, 1, "rank 1: failed with code %d, without a message" },
	};

	for (size_t i = 0; i < sizeof(fails) / sizeof(*fails); i++) {
		struct other o = { .at = 0 };
		struct sheaf_error err = { .code = fails[i].code, .sys = 28,
			.rank = fails[i].rank, .msg = "the sentence" };
		struct sheaf_group *g = NULL;
		struct shf_team t = with_other(&g, &o);
		char says[80];
		bool is = fails[i].code == SHEAF_EIO;

		CHECK_INT(shf_agree(&t, SHEAF_EIO, &err), SHEAF_EIO);
		snprintf(says, sizeof(says), fails[i].says, SHEAF_EIO);
		CHECK_STR(err.msg, says);
		CHECK_INT(err.code, SHEAF_EIO);
		CHECK_INT(err.rank, fails[i].named);
		CHECK_INT(err.sys, is ? 28 : 0);
		CHECK_INT(shf_agree(&t, 3, &err), SHEAF_EBUG);
		CHECK_STR(err.msg, "agreement on 3, which is not an error code");
		sheaf_group_free(g);
	}
}

/* Calls the function of that number, of those that are collective. */
static int call_one(struct shf_team *t, size_t i, struct sheaf_error *err)
{
	struct shf_buf a = SHF_BUF_INIT, b[2] = { SHF_BUF_INIT, SHF_BUF_INIT };
	struct shf_call call = { .kind = SHF_CALL_BEGIN };
	uint64_t x[2] = { 1, 2 };
	size_t n[2] = { 8, 8 }, got[2];
	char all[16];
	int rc = i == 0 ? shf_allgather(t, x, all, 8, err)
	       : i == 1 ? shf_allreduce(t, x, 1, SHEAF_SUM, err)
	       : i == 2 ? shf_alltoallv(t, x, n, all, n, err)
	       : i == 3 ? shf_agree(t, 0, err)
	       : i == 4 ? shf_call_enter(t, &call, 0, err)
	       : i == 5 ? shf_bcast(t, 0, x, 8, err)
	       : i == 6 ? shf_bcast_buf(t, 0, &a, err)
	       : i == 7 ? shf_exchange(t, 0, b, &a, got, err)
	       : i == 8 ? shf_exchange_packed(t, 0, x, n, &a, got, err)
	       : i == 9 ? shf_allgatherv(t, 0, &b[0], &a, NULL, err)
	       : i == 10 ? shf_same(t, 0, x, 2, NULL, NULL, NULL, err)
	       : shf_call_refuse(t, SHF_CALL_LOAD, 1, SHEAF_EINVAL, err);

	shf_buf_release(&a);
	return rc;
}

#define WHY " failed after 0 ms, its callback returned 7 without a message; see the log of the " \
	"program's group callbacks"

TEST(each_operation_that_fails_is_named_and_named_again_by_each_call_after_it)
{
	static const char *const calls[] = { "allgather", "allreduce", "alltoallv", "agreement",
		"the beginning of a call", "broadcast", "broadcast", "exchange", "exchange",
		"allgather", "comparison", "the beginning of a call" };

	for (size_t first = 0; first < 3; first++) {
		struct other o = { .code = 7 };
		struct sheaf_error err;
		struct sheaf_group *g = NULL;
		struct shf_team t = with_other(&g, &o);
		char says[400];

		CHECK_INT(call_one(&t, first, &err), SHEAF_ELOST);
		snprintf(says, sizeof(says), "rank 1: %s" WHY, calls[first]);
		CHECK_STR(err.msg, says);
		CHECK_INT(err.rank, -1);
		o.code = 0;
		for (size_t i = 0; i < 12; i++) {
			o.calls = 0;
			CHECK_INT(call_one(&t, i, &err), SHEAF_ELOST);
			snprintf(says, sizeof(says), "rank 1: %s: the group is unusable since an "
			         "earlier failure: %s" WHY, calls[i], calls[first]);
			CHECK_STR(err.msg, says);
			CHECK_INT(call_one(&t, i, NULL), SHEAF_ELOST);
			CHECK_INT(o.calls, 0);
		}
		sheaf_group_free(g);
	}
}

TEST(more_than_memory_has_is_enomem_and_the_group_lives)
{
	struct other o = { .len = UINT64_MAX - 3 };
	struct shf_buf mine = SHF_BUF_INIT, all = SHF_BUF_INIT;
	struct sheaf_error err;
	struct sheaf_group *g = NULL;
	struct shf_team t = with_other(&g, &o);
	size_t n[2] = { 8, 8 }, got[2];

	shf_buf_adds(&mine, "four");
	CHECK_INT(shf_allgatherv(&t, 0, &mine, &all, NULL, &err), SHEAF_ENOMEM);
	CHECK_STR(err.msg, "rank 1: allgather: more bytes than fit in memory");
	o.len = UINT64_MAX - 7;
	CHECK_INT(shf_allgatherv(&t, 0, &mine, &all, NULL, &err), SHEAF_ENOMEM);
	CHECK_STR(err.msg, "no memory for the allgather of 18446744073709551612 bytes");
	o.len = UINT64_MAX - 1;
	CHECK_INT(shf_exchange_packed(&t, 0, "0123456789abcdef", n, &all, got, &err), SHEAF_ENOMEM);
	CHECK_STR(err.msg, "no memory for the exchange of 18446744073709551614 bytes");
	o.len = 4;
	CHECK_INT(shf_allgatherv(&t, 0, &mine, &all, NULL, &err), 0);
	shf_buf_release(&mine);
	shf_buf_release(&all);
	sheaf_group_free(g);
}

/* Calls a function that needs memory, of those whose sentences are below. */
static int call_needy(struct shf_team *t, size_t i, struct sheaf_error *err)
{
	struct shf_buf mine = SHF_BUF_INIT, all = SHF_BUF_INIT;
	struct shf_buf out[2] = { SHF_BUF_INIT, SHF_BUF_INIT };
	static char many[5000];
	size_t n[2] = { 8, 8 }, got[2];
	int rc = i == 0 ? shf_bcast(t, 0, many, sizeof(many), err)
	       : i == 1 ? shf_bcast_buf(t, 0, &mine, err)
	       : i == 2 ? shf_exchange_packed(t, 0, "0123456789abcdef", n, &all, got, err)
	       : i == 3 ? shf_exchange(t, 0, out, &all, got, err)
	       : i == 4 ? shf_allgatherv(t, 0, &mine, &all, got, err)
	       : shf_gatherv(t, 0, &mine, &all, err);

	shf_buf_release(&mine);
	shf_buf_release(&all);
	return rc;
}

TEST(each_allocation_that_fails_is_told_by_what_it_was_for)
{
	static const char packed[] = "rank 1: no memory for an exchange of 0 bytes";
	static const char in[] = "no memory for the exchange of 0 bytes";
	static const char *const said[][9] = {
		{ "no memory for a broadcast of 5000 bytes" },
		{ "no memory for the broadcast of 0 bytes" }, { in }, { packed, packed, in },
		{ "no memory for the allgather of 0 bytes" },
		{ "rank 1: no memory for the bytes for rank 0", in },
	};

	for (size_t i = 0; i < sizeof(said) / sizeof(*said); i++)
		for (int nth = 1; nth <= 9; nth++) {
			struct other o = { .at = 0 };
			struct sheaf_group *g = NULL;
			struct shf_team t = with_other(&g, &o);
			struct sheaf_error err = { 0 };
			const char *want = said[i][nth - 1];
			bool failed;
			int rc;

			memfail_at(nth);
			rc = call_needy(&t, i, &err);
			failed = memfail_end();
			sheaf_group_free(g);
			CHECK_RC(rc, failed ? SHEAF_ENOMEM : 0, &err);
			CHECK_INT(failed, want != NULL);
			if (!failed)
				break;
			CHECK_STR(err.msg, want);
			CHECK_INT(err.rank, 1);
		}
}

/* ---- a rank that has failed before it sends ---- */
enum { KNOWN_RANKS = 3 };

/* Rank r tells each rank as many bytes as r + 1, each of them r. */
static int run_known(void *arg, int rank, struct sheaf_group *group)
{
	const int *more = arg;  /* what rank 1 expects besides; INT32_MAX: more than memory has */
	struct shf_team t = team(group);
	struct shf_buf in = SHF_BUF_INIT;
	struct sheaf_error err;
	uint8_t out[KNOWN_RANKS * KNOWN_RANKS];
	size_t bytes[KNOWN_RANKS], got[KNOWN_RANKS], at = 0;
	uint64_t expect = KNOWN_RANKS * (KNOWN_RANKS + 1) / 2;
	int rc;

	if (rank == 1)
		expect = *more == INT32_MAX ? UINT64_MAX : expect + (uint64_t)(int64_t)*more;
	memset(out, rank, sizeof(out));
	for (int r = 0; r < KNOWN_RANKS; r++)
		bytes[r] = (size_t)rank + 1;
	rc = shf_exchange_known(&t, 0, out, bytes, expect, &in, got, &err);
	for (int r = 0; r < KNOWN_RANKS && rc == 0; r++) {
		rc = got[r] == (size_t)r + 1 ? 0 : __LINE__;
		for (size_t i = 0; i < got[r] && rc == 0; i++)
			rc = in.data[at++] == r ? 0 : __LINE__;
	}
	if (rc == 0 && at != in.len)
		rc = __LINE__;
	shf_buf_release(&in);
	if (rc == SHEAF_EBUG && shf_agree(&t, 0, &err) != SHEAF_ELOST)
		rc = __LINE__;
	if (rc == SHEAF_EBUG)
		simgroup_pause(group, 2 * t.timeout_ms);        /* the others' deadline passes */
	return rc;
}

/* Memory for what comes is taken before: a rank without it says so with the lengths. */
TEST(what_is_known_to_come_takes_two_operations_and_more_than_that_loses_the_group)
{
	struct simgroup_stat stat = { 0 };
	struct simgroup_opts o = { .ranks = KNOWN_RANKS, .stat = &stat };
	int results[KNOWN_RANKS];

	for (int more = 0; more <= 100; more += 100) {
		CHECK_INT(simgroup_run(&o, run_known, &more, results), 0);
		for (int r = 0; r < KNOWN_RANKS; r++)
			CHECK_INT(results[r], 0);
		CHECK_INT(stat.ops, 2);
	}
	CHECK_INT(simgroup_run(&o, run_known, &(int){ INT32_MAX }, results), 0);
	for (int r = 0; r < KNOWN_RANKS; r++)
		CHECK_INT(results[r], SHEAF_ENOMEM);
	CHECK_INT(simgroup_run(&o, run_known, &(int){ -1 }, results), 0);
	for (int r = 0; r < KNOWN_RANKS; r++)
		CHECK_INT(results[r], r == 1 ? SHEAF_EBUG : SHEAF_ELOST);
}

enum { VERDICT_RANKS = 4 };
struct verdicts {
	int bad, too;                   /* ranks that have failed; too: -1: none */
	struct sheaf_error err[VERDICT_RANKS];
};

/* Calls the function of that number with the verdict of this rank. */
static int call_with(struct shf_team *t, int i, int rc, struct sheaf_error *err)
{
	struct shf_buf out[VERDICT_RANKS] = { SHF_BUF_INIT };
	struct shf_buf mine = SHF_BUF_INIT, in = SHF_BUF_INIT;
	size_t bytes[VERDICT_RANKS] = { 0 };
	static char many[5000];
	uint64_t x[2] = { (uint64_t)t->rank, 7 }, same;
	int got = i == 0 ? shf_agree(t, rc, err)
	        : i == 1 ? shf_agree_max(t, rc, x, 2, err)
	        : i == 2 ? shf_bcast(t, rc, x, sizeof(x), err)
	        : i == 3 ? shf_bcast(t, rc, many, sizeof(many), err)
	        : i == 4 ? shf_bcast_buf(t, rc, &mine, err)
	        : i == 5 ? shf_exchange(t, rc, rc ? NULL : out, &in, bytes, err)
	        : i == 6 ? shf_exchange_packed(t, rc, rc ? NULL : many, rc ? NULL : bytes, &in,
	                                       NULL, err)
	        : i == 7 ? shf_gatherv(t, rc, rc ? NULL : &mine, &in, err)
	        : i == 8 ? shf_allgatherv(t, rc, rc ? NULL : &mine, &in, NULL, err)
	        : i == 9 ? shf_exchange_max(t, rc, rc ? NULL : out, &in, bytes, x, 2, err)
	        : i == 10 ? shf_exchange_known(t, rc, rc ? NULL : many, rc ? NULL : bytes, 0, &in,
	                                       NULL, err)
	        : shf_same(t, rc, x, 2, &same, NULL, NULL, err);

	if ((i == 1 || i == 9) && x[0] != (uint64_t)(got == 0 ? t->ranks - 1 : t->rank))
		got = __LINE__;
	if (i == 2 && x[0] != (uint64_t)(got == 0 ? 0 : t->rank))
		got = __LINE__;
	shf_buf_release(&mine);
	shf_buf_release(&in);
	return got;
}

static int run_verdicts(void *arg, int rank, struct sheaf_group *group)
{
	struct verdicts *v = arg;
	struct shf_team t = team(group);
	struct sheaf_error *err = &v->err[rank];
	bool bad = rank == v->bad || rank == v->too;

	for (int i = 0; i < 12; i++) {
		char says[40];
		int first = v->too >= 0 && v->too < v->bad ? v->too : v->bad, rc;

		snprintf(says, sizeof(says), "what rank %d was at", first);
		if (bad)
			shf_fail(err, SHEAF_EIO, "what rank %d was at", rank);
		rc = call_with(&t, i, bad ? SHEAF_EIO : 0, err);
		if (rc != SHEAF_EIO || err->rank != first || strcmp(err->msg, says))
			return 1000 * i + __LINE__;
		rc = call_with(&t, i, 0, err); /* and the group goes on */
		if (rc != 0)
			return 1000 * i + __LINE__;
	}
	return 0;
}

TEST(a_verdict_travels_with_what_is_sent)
{
	for (int ranks = 1; ranks <= 4; ranks++)
		for (int bad = 0; bad < ranks; bad++)
			for (int too = -1; too < ranks; too++) {
				struct verdicts v = { bad, too, { { 0 } } };
				struct simgroup_opts o = { .seed = SEED, .ranks = ranks };
				int results[VERDICT_RANKS];

				CHECK_INT(simgroup_run(&o, run_verdicts, &v, results), 0);
				for (int r = 0; r < ranks; r++)
					CHECK_RC(results[r], 0, &v.err[r]);
			}
}

/* ---- which call it is ---- */

TEST(ranks_in_different_calls_hear_the_names_of_both)
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
		[SHF_CALL_LOAD_BEGIN] = "sheaf_load_begin", [SHF_CALL_LOAD_END] = "sheaf_load_end",
		[SHF_CALL_LOAD_END + 1] = "a call that this version of sheaf does not know",
	};

	for (unsigned i = 0; i <= SHF_CALL_LOAD_END + 1; i++) {
		/* Rank 1's key is the larger one, and rank 0 is in the call of kind i. */
		uint64_t mine = (uint64_t)(SHF_CALL_LOAD_END + 2) << 56 | UINT64_C(9) << 24 | 1;
		uint64_t key = (uint64_t)i << 56 | UINT64_C(8) << 24;
		struct other o = { .at = 1, .words_n = 3, .words = { 0, mine, ~key } };
		struct shf_call call = { .kind = (enum shf_call_kind)(SHF_CALL_LOAD_END + 2),
			.handle = 9 };
		struct sheaf_error err;
		struct sheaf_group *g = NULL;
		struct shf_team t = with_other(&g, &o);
		char says[400];

		CHECK_INT(shf_call_enter(&t, &call, 0, &err), SHEAF_EINVAL);
		snprintf(says, sizeof(says), "ranks make different calls: rank 0 %s, rank 1 a call "
		         "that this version of sheaf does not know (all ranks must make the same "
		         "collective calls in the same order)",
		         names[i]);
		CHECK_STR(err.msg, says);
		CHECK_INT(call.number, 0);
		sheaf_group_free(g);
	}
}

TEST(a_call_compares_all_its_arguments_and_counts_itself)
{
	struct other o = { .at = 0 };
	struct shf_call call = { .kind = SHF_CALL_LOAD, .handle = UINT32_MAX };
	struct sheaf_error err = { 0 };
	struct sheaf_group *g = NULL;
	struct shf_team t = with_other(&g, &o);

	for (uint64_t i = 0; i < SHF_CALL_ARGS; i++)
		call.x[i] = i * UINT64_C(0x1111111111111111);
	for (uint64_t n = 1; n <= 2; n++) {
		CHECK_RC(shf_call_enter(&t, &call, 0, &err), 0, &err);
		CHECK_INT(call.number, n);
		CHECK_INT(call.same, (1 << SHF_CALL_ARGS) - 1);
		CHECK(memcmp(call.lo, call.x, sizeof(call.x)) == 0);
		CHECK(memcmp(call.hi, call.x, sizeof(call.x)) == 0);
	}
	/* A call that failed is not counted. */
	CHECK_INT(shf_call_refuse(&t, SHF_CALL_LOAD, 1, SHEAF_EINVAL, &err), SHEAF_EINVAL);
	CHECK_STR(err.msg, "rank 1: failed with code -1, without a message");
	CHECK_RC(shf_call_enter(&t, &call, 0, &err), 0, &err);
	CHECK_INT(call.number, 3);
	CHECK_INT(o.calls, 5);
	sheaf_group_free(g);
}

TEST(a_comparison_tells_each_of_64_members_apart)
{
	struct other o = { .at = 0 };
	uint64_t x[65], lo[65], hi[65], same = 0;
	struct sheaf_error err;
	struct sheaf_group *g = NULL;
	struct shf_team t = with_other(&g, &o);

	for (size_t n = 0; n <= 64; n += n == 1 ? 62 : 1) {
		for (size_t i = 0; i < 65; i++)
			x[i] = i * 7, lo[i] = hi[i] = 99;
		CHECK_RC(shf_same(&t, 0, x, n, &same, lo, hi, &err), 0, &err);
		CHECK(same == (n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1));
		CHECK(memcmp(lo, x, n * sizeof(*x)) == 0 && memcmp(hi, x, n * sizeof(*x)) == 0);
		CHECK(lo[n] == 99 && hi[n] == 99);
		CHECK_RC(shf_same(&t, 0, x, n, NULL, NULL, NULL, &err), 0, &err);
	}
	/* Rank 0 has 5 where this one has 9. */
	o = (struct other){ .at = 1, .words_n = 5,
		.words = { 0, 3, ~UINT64_C(3), 9, ~UINT64_C(5) } };
	CHECK_RC(shf_same(&t, 0, (uint64_t[2]){ 3, 9 }, 2, &same, lo, hi, &err), 0, &err);
	CHECK_INT(same, 1);
	CHECK(lo[0] == 3 && hi[0] == 3 && lo[1] == 5 && hi[1] == 9);
	sheaf_group_free(g);
}

/* ---- the group of one ---- */

TEST(the_table_of_the_group_of_one_is_whole)
{
	struct sheaf_group *g = NULL;
	char in[4] = "...", one[4] = "...";
	size_t n = 3, none = 0, more = 4;
	uint64_t x = 5;

	CHECK_INT(shf_group_one(&g), 0);
	CHECK_INT(g->ops.size, sizeof(g->ops));
	CHECK_INT(g->ops.ranks, 1);
	CHECK_INT(g->ops.rank, 0);
	CHECK_INT(g->refs, 1);
	for (int op = SHEAF_SUM - 1; op <= SHEAF_XOR + 1; op++)
		CHECK_INT(g->ops.allreduce(g->ops.arg, &x, 1, op, 0, NULL),
		          op < SHEAF_SUM || op > SHEAF_XOR ? -1 : 0);
	CHECK_INT(x, 5);
	CHECK_INT(g->ops.allgather(g->ops.arg, "abc", one, 2, 0, NULL), 0);
	CHECK_STR(one, "ab.");
	CHECK_INT(g->ops.alltoallv(g->ops.arg, "abc", &n, in, &more, 0, NULL), -1);
	CHECK_INT(g->ops.alltoallv(g->ops.arg, "abc", &none, in, &none, 0, NULL), 0);
	CHECK_STR(in, "...");
	CHECK_INT(g->ops.alltoallv(g->ops.arg, "abc", &n, in, &n, 0, NULL), 0);
	CHECK_STR(in, "abc");
	shf_group_put(g);
}

TEST(what_one_rank_sends_to_itself_comes_whole)
{
	struct shf_buf mine = SHF_BUF_INIT, all = SHF_BUF_INIT;
	struct sheaf_error err;
	struct sheaf_group *g = NULL;
	struct shf_team t;
	size_t n[1] = { 5 }, got[1] = { 0 };
	char x[4] = "abc";

	CHECK_INT(shf_group_one(&g), 0);
	t = (struct shf_team){ g, 0, 1, TIMEOUT_MS, NULL, NULL };
	shf_buf_adds(&mine, "mine");
	CHECK_RC(shf_gatherv(&t, 0, &mine, &all, &err), 0, &err);
	CHECK(all.len == 4 && memcmp(all.data, "mine", 4) == 0);
	CHECK(mine.len == 4 && memcmp(mine.data, "mine", 4) == 0);
	CHECK_RC(shf_exchange_packed(&t, 0, "other", n, &all, got, &err), 0, &err);
	CHECK(all.len == 5 && memcmp(all.data, "other", 5) == 0 && got[0] == 5);
	CHECK_RC(shf_exchange(&t, 0, &mine, &all, got, &err), 0, &err);
	CHECK(all.len == 4 && memcmp(all.data, "mine", 4) == 0 && got[0] == 4);
	got[0] = 0;
	CHECK_RC(shf_allgatherv(&t, 0, &mine, &all, got, &err), 0, &err);
	CHECK(all.len == 4 && memcmp(all.data, "mine", 4) == 0 && got[0] == 4);
	CHECK_RC(shf_bcast(&t, 0, x, 3, &err), 0, &err);
	CHECK_STR(x, "abc");
	CHECK_RC(shf_bcast_buf(&t, 0, &mine, &err), 0, &err);
	CHECK(mine.len == 4 && memcmp(mine.data, "mine", 4) == 0);
	mine.oom = true;
	CHECK_RC(shf_bcast_buf(&t, 0, &mine, &err), SHEAF_ENOMEM, &err);
	CHECK_STR(err.msg, "rank 0: no memory for the bytes to broadcast");
	CHECK_INT(err.rank, 0);
	CHECK_INT(shf_bcast_buf(&t, 0, &mine, NULL), SHEAF_ENOMEM);
	CHECK_RC(shf_allgatherv(&t, 0, &mine, &all, NULL, &err), SHEAF_ENOMEM, &err);
	CHECK_STR(err.msg, "rank 0: no memory for the bytes to gather");
	CHECK_RC(shf_exchange(&t, 0, &mine, &all, got, &err), SHEAF_ENOMEM, &err);
	CHECK_STR(err.msg, "rank 0: no memory for the bytes for rank 0");
	shf_buf_release(&mine);
	shf_buf_release(&all);
	shf_group_put(g);
}
