/* SPDX-License-Identifier: Apache-2.0 */
/* How a call begins: ranks that are in different calls get an error. And how a group ends: what the
 * error says of the operation that failed. */
#include "t.h"
#include "err.h"
#include "group.h"
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

static int no_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms)
{
	(void)arg, (void)mine, (void)all, (void)bytes, (void)timeout_ms;
	return -1;
}

static int no_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                        const size_t *in_bytes, int timeout_ms)
{
	(void)arg, (void)out, (void)out_bytes, (void)in, (void)in_bytes, (void)timeout_ms;
	return -1;
}

static int no_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms)
{
	(void)arg, (void)x, (void)n, (void)op, (void)timeout_ms;
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
		{ 0, "rank 1: allreduce failed after 0 ms, its callback returned -1: what carries "
		     "the group (MPI, or the program's own callbacks) knows why" },
		{ 500, "rank 1: allreduce failed after 500 ms, its callback returned -1" },
		{ 59990, "rank 1 waited: allreduce did not finish within 60000 ms" },
		{ 61000, "rank 1 waited: allreduce did not finish within 60000 ms: a rank died or "
		         "is late, and none of the others can tell which" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sheaf_group_ops ops = { .size = sizeof(ops), .rank = 1, .ranks = 2,
			.allgather = no_allgather, .alltoallv = no_alltoallv,
			.allreduce = no_allreduce };
		struct sheaf_group *g = NULL;
		struct sheaf_error err;
		struct shf_team t;

		CHECK_INT(sheaf_group_new(&g, &ops), 0);
		t = team(g);
		t.mono_ns = slow_ns;
		took_ms = cases[i].ms;
		CHECK_INT(shf_agree(&t, 0, &err), SHEAF_ELOST);
		CHECK(strncmp(err.msg, cases[i].says, strlen(cases[i].says)) == 0);
		CHECK_INT(shf_agree(&t, 0, &err), SHEAF_ELOST);
		CHECK(strstr(err.msg, "the group was lost in an earlier operation: allreduce "));
		CHECK(strstr(err.msg, i < 2 ? "knows why" : "can tell which") != NULL);
		sheaf_group_free(g);
	}
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
	met(&handles, SHEAF_EINVAL, "sheaf_step_load on different handles: rank 0 on what their "
	    "collective call 4 made, rank 2 on what 5 made");
	wrong.rc[1] = wrong.rc[2] = SHEAF_EIO;
	met(&wrong, SHEAF_EIO, "rank 1 is wrong");
	both.rc[0] = SHEAF_ENOMEM;
	met(&both, SHEAF_EINVAL, "ranks make different calls");
}
