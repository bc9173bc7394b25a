/* SPDX-License-Identifier: Apache-2.0 */
/* The room group over simulated ranks, and the simulated ranks themselves.
 * Linked with --wrap of the allocations that group.c makes, so that the n-th fails on one rank. */
#include "rng.h"
#include "t.h"

#include <pthread.h>
#include <stdlib.h>
#include "err.h"
#include "group.h"
#include "simgroup.h"

#define SEED UINT64_C(0x5eaf)
#define RANKS_MAX 8
#define TIMEOUT_MS 60000

/* ---- the n-th allocation of one rank ---- */

static _Thread_local int fail_at;       /* 1: the next one; 0: none */
static _Thread_local bool fail_fired;

void *__real_shf_alloc(size_t n, size_t size);
void *__real_shf_zalloc(size_t n, size_t size);
int __real_shf_buf_reserve(struct shf_buf *b, size_t more);
void *__wrap_shf_alloc(size_t n, size_t size);
void *__wrap_shf_zalloc(size_t n, size_t size);
int __wrap_shf_buf_reserve(struct shf_buf *b, size_t more);

static bool fails_now(void)
{
	if (fail_at == 0 || --fail_at > 0)
		return false;
	fail_fired = true;
	return true;
}

void *__wrap_shf_alloc(size_t n, size_t size)
{
	return fails_now() ? NULL : __real_shf_alloc(n, size);
}

void *__wrap_shf_zalloc(size_t n, size_t size)
{
	return fails_now() ? NULL : __real_shf_zalloc(n, size);
}

int __wrap_shf_buf_reserve(struct shf_buf *b, size_t more)
{
	return fails_now() ? SHEAF_ENOMEM : __real_shf_buf_reserve(b, more);
}

/* ---- values that every rank can compute ---- */

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
	return rng_mix(a * UINT64_C(0x9E3779B97F4A7C15) + b * UINT64_C(0xD1B54A32D192ED03) + c);
}

static void fill(void *bytes, size_t n, uint64_t key)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)bytes)[i] = (uint8_t)mix(key, i, 1);
}

static bool is_filled(const void *bytes, size_t n, uint64_t key)
{
	for (size_t i = 0; i < n; i++)
		if (((const uint8_t *)bytes)[i] != (uint8_t)mix(key, i, 1))
			return false;
	return true;
}

static int buf_fill(struct shf_buf *b, size_t n, uint64_t key)
{
	uint8_t *p;

	shf_buf_reset(b);
	p = shf_buf_extend(b, n);
	if (n > 0 && !p)
		return -1;
	if (n > 0)
		fill(p, n, key);
	return 0;
}

/* Sizes that matter: nothing, less than a word, both sides of a broadcast without memory. */
static size_t size_of(uint64_t key)
{
	static const size_t sizes[] = { 0, 0, 1, 7, 8, 9, 100, 4095, 4096, 4097, 30011 };

	return sizes[mix(key, 7, 7) % (sizeof(sizes) / sizeof(sizes[0]))];
}

static int64_t sim_ns(void *group)
{
	int64_t ms = simgroup_now_ms(group); /* far away, where the run has failed */

	return ms > INT64_MAX / 1000000 ? INT64_MAX : ms * 1000000;
}

static struct shf_team team(struct sheaf_group *group)
{
	return (struct shf_team){ group, group->ops.rank, group->ops.ranks, TIMEOUT_MS, sim_ns,
	                          group };
}

#define WANT(x)                                                               \
	do {                                                                  \
		if (!(x)) {                                                   \
			print_error("%s:%d: rank %d: %s\n", __FILE__, __LINE__, t->rank, #x); \
			return __LINE__;                                      \
		}                                                             \
	} while (0)

/* ---- one exercise per function: 0, a sheaf code, or the line of a wrong value ---- */

static int try_allgather(struct shf_team *t, uint64_t key, struct sheaf_error *err)
{
	size_t n = size_of(key);
	uint8_t mine[30011], *all = malloc(n * RANKS_MAX + 1);
	int rc;

	fill(mine, n, mix(key, (uint64_t)t->rank, 0));
	rc = shf_allgather(t, mine, all, n, err);
	for (int r = 0; r < t->ranks && rc == 0; r++)
		if (!is_filled(all + (size_t)r * n, n, mix(key, (uint64_t)r, 0)))
			rc = __LINE__;
	free(all);
	return rc;
}

static int try_allreduce(struct shf_team *t, uint64_t key, struct sheaf_error *err)
{
	for (int op = SHEAF_SUM; op <= SHEAF_XOR; op++) {
		size_t n = (size_t)(mix(key, 2, (uint64_t)op) % 40);
		uint64_t x[40];
		int rc;

		for (size_t i = 0; i < n; i++)
			x[i] = mix(key, i, (uint64_t)t->rank);
		rc = shf_allreduce(t, x, n, op, err);
		if (rc != 0)
			return rc;
		for (size_t i = 0; i < n; i++) {
			uint64_t want = 0;

			for (int r = 0; r < t->ranks; r++) {
				uint64_t v = mix(key, i, (uint64_t)r);

				want = op == SHEAF_SUM ? want + v : op == SHEAF_XOR ? want ^ v :
				       v > want ? v : want;
			}
			WANT(x[i] == want);
		}
	}
	return 0;
}

static int try_bcast(struct shf_team *t, uint64_t key, struct sheaf_error *err)
{
	size_t n = size_of(key);
	uint8_t bytes[30012];
	int rc;

	fill(bytes, n + 1, mix(key, (uint64_t)t->rank, 3));
	rc = shf_bcast(t, 0, bytes + 1, n, err); /* at an odd address */
	if (rc != 0)
		return rc;
	if (t->rank == 0)
		WANT(is_filled(bytes, n + 1, mix(key, 0, 3)));
	for (size_t i = 0; i < n; i++)
		WANT(bytes[i + 1] == (uint8_t)mix(mix(key, 0, 3), i + 1, 1));
	return 0;
}

static int try_bcast_buf(struct shf_team *t, uint64_t key, struct sheaf_error *err)
{
	size_t n = size_of(key);
	struct shf_buf b = SHF_BUF_INIT;
	int rc = buf_fill(&b, t->rank == 0 ? n : 13, mix(key, (uint64_t)t->rank, 4));

	if (rc == 0)
		rc = shf_bcast_buf(t, 0, &b, err);
	if (rc == 0 && (b.len != n || !is_filled(b.data, n, mix(key, 0, 4))))
		rc = __LINE__;
	if (rc < 0 && rc != SHEAF_ELOST && b.len != (t->rank == 0 ? n : 13))
		rc = __LINE__;
	shf_buf_release(&b);
	return rc;
}

static uint64_t pair_key(uint64_t key, int from, int to)
{
	return mix(key, (uint64_t)from, (uint64_t)to);
}

/* The same bytes by either call. */
static int exchange(struct shf_team *t, const struct shf_buf *out, bool packed,
		    struct shf_buf *in, size_t *in_bytes, struct sheaf_error *err)
{
	struct shf_buf all = SHF_BUF_INIT;
	size_t bytes[RANKS_MAX];
	int rc = 0;

	if (!packed)
		return shf_exchange(t, 0, out, in, in_bytes, err);
	for (int r = 0; r < t->ranks; r++) {
		bytes[r] = out[r].len;
		shf_buf_add(&all, out[r].data, out[r].len);
	}
	if (all.oom)
		rc = __LINE__;
	if (rc == 0)
		rc = shf_exchange_packed(t, 0, all.data, bytes, in, in_bytes, err);
	shf_buf_release(&all);
	return rc;
}

static int exchange_by(struct shf_team *t, uint64_t key, bool packed, struct sheaf_error *err)
{
	struct shf_buf out[RANKS_MAX] = { SHF_BUF_INIT }, in = SHF_BUF_INIT;
	size_t in_bytes[RANKS_MAX], off = 0;
	int rc = buf_fill(&in, 5, 0);

	for (int r = 0; r < t->ranks; r++)
		rc |= buf_fill(&out[r], size_of(pair_key(key, t->rank, r)),
			       pair_key(key, t->rank, r));
	if (rc == 0)
		rc = exchange(t, out, packed, &in, in_bytes, err);
	for (int r = 0; r < t->ranks && rc == 0; r++) {
		uint64_t k = pair_key(key, r, t->rank);

		if (in_bytes[r] != size_of(k) || !is_filled(in.data + off, in_bytes[r], k))
			rc = __LINE__;
		off += in_bytes[r];
	}
	if (rc == 0 && in.len != off)
		rc = __LINE__;
	for (int r = 0; r < t->ranks; r++)
		shf_buf_release(&out[r]);
	shf_buf_release(&in);
	return rc;
}

static int try_exchange(struct shf_team *t, uint64_t key, struct sheaf_error *err)
{
	return exchange_by(t, key, false, err);
}

static int try_exchange_packed(struct shf_team *t, uint64_t key, struct sheaf_error *err)
{
	return exchange_by(t, key, true, err);
}

static int try_allgatherv(struct shf_team *t, uint64_t key, struct sheaf_error *err)
{
	struct shf_buf mine = SHF_BUF_INIT, all = SHF_BUF_INIT;
	bool equal = mix(key, 5, 5) % 2;
	size_t all_bytes[RANKS_MAX], off = 0;
	int rc = buf_fill(&mine, size_of(equal ? key : pair_key(key, t->rank, 0)),
			  pair_key(key, t->rank, 9));

	if (rc == 0)
		rc = shf_allgatherv(t, 0, &mine, &all, all_bytes, err);
	for (int r = 0; r < t->ranks && rc == 0; r++) {
		if (all_bytes[r] != size_of(equal ? key : pair_key(key, r, 0)) ||
		    !is_filled(all.data + off, all_bytes[r], pair_key(key, r, 9)))
			rc = __LINE__;
		off += all_bytes[r];
	}
	if (rc == 0 && all.len != off)
		rc = __LINE__;
	shf_buf_release(&mine);
	shf_buf_release(&all);
	return rc;
}

static int try_same(struct shf_team *t, uint64_t key, struct sheaf_error *err)
{
	uint64_t x[4] = { key, (uint64_t)t->rank, UINT64_MAX, mix(key, 1, 1) };
	uint64_t same = 0, lo[4], hi[4];
	int rc = shf_same(t, 0, x, 4, &same, lo, hi, err);

	if (rc != 0)
		return rc;
	WANT(same == (t->ranks == 1 ? 15u : 13u));
	WANT(lo[1] == 0 && hi[1] == (uint64_t)t->ranks - 1);
	WANT(lo[0] == key && hi[0] == key && lo[2] == UINT64_MAX);
	return 0;
}

static int (*const tries[])(struct shf_team *t, uint64_t key, struct sheaf_error *err) = {
	try_allgather, try_allreduce, try_bcast, try_bcast_buf, try_exchange, try_exchange_packed,
	try_allgatherv, try_same,
};
#define TRY_N (sizeof(tries) / sizeof(tries[0]))

struct script {
	uint64_t key;
	int rounds;
	struct sheaf_error err[RANKS_MAX];
	int fail_rank, fail_at;         /* allocations; fail_at 0: none */
	bool fail_fired;
	int bad_rank;                   /* agreement; -1: nobody */
	int bad_rank_too;
	bool mute;                      /* the failing rank passes no sentence */
};

static int run_script(void *arg, int rank, struct sheaf_group *group)
{
	struct script *s = arg;
	struct shf_team t = team(group);
	int rc = 0;

	fail_fired = false;
	fail_at = rank == s->fail_rank ? s->fail_at : 0;
	for (int i = 0; i < s->rounds && rc == 0; i++)
		rc = tries[(size_t)i % TRY_N](&t, mix(s->key, (uint64_t)i, 0), &s->err[rank]);
	fail_at = 0;
	if (fail_fired)
		s->fail_fired = true;
	if (rc == SHEAF_ENOMEM && shf_agree(&t, 0, &s->err[rank]) != 0)
		return __LINE__;        /* an error is no end of the group */
	if (rc == SHEAF_ELOST) {
		struct sheaf_error err;

		for (size_t i = 0; i < TRY_N; i++)
			if (t.ranks > 1 && tries[i](&t, s->key + i, &err) != SHEAF_ELOST)
				return __LINE__;
	}
	return rc;
}

TEST(every_function_does_what_it_says_on_1_to_8_ranks)
{
	for (int ranks = 1; ranks <= RANKS_MAX; ranks++)
		for (uint64_t seed = 0; seed < 12; seed++) {
			struct script s = { .key = SEED + seed, .rounds = 3 * (int)TRY_N };
			struct simgroup_opts o = { .seed = SEED + seed, .ranks = ranks };
			int results[RANKS_MAX];

			CHECK_INT(simgroup_run(&o, run_script, &s, results), 0);
			for (int r = 0; r < ranks; r++)
				CHECK_RC(results[r], 0, &s.err[r]);
		}
}

/* ---- agreement ---- */

static int run_agree(void *arg, int rank, struct sheaf_group *group)
{
	struct script *s = arg;
	struct shf_team t = team(group);
	struct sheaf_error *err = &s->err[rank];
	bool bad = rank == s->bad_rank || rank == s->bad_rank_too;
	int rc = 0;

	if (bad)
		rc = shf_fail_sys(err, 28, "rank %d: file %d", rank, rank);
	rc = shf_agree(&t, rc, bad && s->mute ? NULL : err);
	/* Heard of, and told on: who failed first is still named. */
	if (rc != 0 && !s->mute && shf_agree(&t, rc, err) != rc)
		return __LINE__;
	return shf_agree(&t, 0, NULL) != 0 ? __LINE__ : rc;
}

TEST(agreement_gives_all_the_code_the_sentence_and_the_rank_of_the_lowest_that_failed)
{
	for (int ranks = 1; ranks <= RANKS_MAX; ranks++)
		for (int bad = 0; bad < ranks; bad++)
			for (int too = bad; too < ranks; too++) {
				struct script s = { .bad_rank = bad, .bad_rank_too = too };
				struct simgroup_opts o = { .seed = SEED, .ranks = ranks };
				char want[80];
				int results[RANKS_MAX];

				snprintf(want, sizeof(want), "rank %d: file %d: ", bad, bad);
				CHECK_INT(simgroup_run(&o, run_agree, &s, results), 0);
				for (int r = 0; r < ranks; r++) {
					CHECK_RC(results[r], SHEAF_EIO, &s.err[r]);
					CHECK_INT(s.err[r].code, SHEAF_EIO);
					CHECK_INT(s.err[r].sys, 28);
					CHECK_INT(s.err[r].rank, bad);
					CHECK(strncmp(s.err[r].msg, want, strlen(want)) == 0);
					CHECK_STR(s.err[r].msg, s.err[0].msg);
				}
			}
}

TEST(a_rank_that_failed_without_a_sentence_is_named_with_its_code)
{
	for (int bad = 0; bad < 3; bad++) {
		struct script s = { .bad_rank = bad, .bad_rank_too = -1, .mute = true };
		struct simgroup_opts o = { .seed = SEED, .ranks = 3 };
		int results[RANKS_MAX];

		CHECK_INT(simgroup_run(&o, run_agree, &s, results), 0);
		for (int r = 0; r < 3; r++) {
			CHECK_INT(results[r], SHEAF_EIO);
			if (r != bad) {
				CHECK_INT(s.err[r].rank, bad);
				CHECK(strstr(s.err[r].msg, "-3") != NULL);
			}
		}
	}
}

TEST(agreement_costs_eight_bytes_when_all_is_well)
{
	struct script s = { .bad_rank = -1, .bad_rank_too = -1 };
	struct simgroup_stat stat;
	struct simgroup_opts o = { .seed = SEED, .ranks = 5, .stat = &stat };
	int results[RANKS_MAX];

	CHECK_INT(simgroup_run(&o, run_agree, &s, results), 0);
	CHECK_INT(stat.ops, 2);         /* run_agree agrees twice */
	CHECK_INT(stat.reduced_bytes, 2 * 8);
}

/* ---- memory ---- */

TEST(an_allocation_that_fails_on_one_rank_is_enomem_on_all_and_the_group_lives)
{
	for (int rank = 0; rank < 3; rank++)
		for (int nth = 1;; nth++) {
			struct script s = {
				.key = SEED, .rounds = 3 * (int)TRY_N, .fail_rank = rank,
				.fail_at = nth
			};
			struct simgroup_opts o = { .seed = SEED + (uint64_t)nth, .ranks = 3 };
			int results[RANKS_MAX];

			CHECK_INT(simgroup_run(&o, run_script, &s, results), 0);
			for (int r = 0; r < 3; r++) {
				CHECK_RC(results[r], s.fail_fired ? SHEAF_ENOMEM : 0, &s.err[r]);
				if (s.fail_fired) {
					CHECK_INT(s.err[r].rank, rank);
					CHECK_STR(s.err[r].msg, s.err[0].msg);
				}
			}
			if (!s.fail_fired) {
				CHECK(nth > 10); /* there was something to fail */
				break;
			}
		}
}

static int run_oom(void *arg, int rank, struct sheaf_group *group)
{
	struct script *s = arg;
	struct shf_team t = team(group);
	struct shf_buf out[RANKS_MAX] = { SHF_BUF_INIT }, in = SHF_BUF_INIT;
	struct shf_buf sick = SHF_BUF_INIT;
	struct sheaf_error *err = &s->err[rank];
	size_t bytes[RANKS_MAX];
	int want = s->bad_rank == 0 ? SHEAF_ENOMEM : 0, rc;

	out[1].oom = sick.oom = rank == s->bad_rank;
	rc = shf_exchange(&t, 0, out, &in, bytes, err);
	if (rc != SHEAF_ENOMEM || err->rank != s->bad_rank)
		return __LINE__;
	rc = shf_allgatherv(&t, 0, &sick, &in, bytes, err);
	if (rc != SHEAF_ENOMEM || err->rank != s->bad_rank)
		return __LINE__;
	rc = shf_bcast_buf(&t, 0, &sick, err);     /* only rank 0's matters */
	shf_buf_release(&in);
	shf_buf_release(&sick);
	return rc == want ? 0 : __LINE__;
}

TEST(a_buffer_out_of_memory_on_any_rank_is_enomem_on_all)
{
	for (int bad = 0; bad < 4; bad++) {
		struct script s = { .bad_rank = bad };
		struct simgroup_opts o = { .seed = SEED, .ranks = 4 };
		int results[RANKS_MAX];

		CHECK_INT(simgroup_run(&o, run_oom, &s, results), 0);
		for (int r = 0; r < 4; r++)
			CHECK_RC(results[r], 0, &s.err[r]);
	}
}

/* ---- ranks that die or are late ---- */

/* Results when `rank` died at `at`. Without its last words nobody gets past that operation. */
static void check_death(const struct simgroup_opts *o, struct script *s, const int *results)
{
	for (int r = 0; r < o->ranks; r++) {
		if (results[r] == 0 && o->die_sent && r != o->die_rank)
			continue; /* that operation was the last there is */
		CHECK_RC(results[r], SHEAF_ELOST, &s->err[r]);
		if (r != o->die_rank)
			CHECK(strstr(s->err[r].msg, "did not finish within 60000 ms") &&
			      s->err[r].rank == -1);
		else
			CHECK(strstr(s->err[r].msg, "failed after 0 ms: the simulation has "
			             "killed"));
	}
}

TEST(a_death_at_any_operation_is_elost_on_all_survivors_and_hangs_nobody)
{
	for (int ranks = 2; ranks <= RANKS_MAX; ranks += 3)
		for (int rank = 0; rank < ranks; rank++)
			for (int at = 1;; at++) {
				struct simgroup_stat stat;
				struct script s = { .key = SEED, .rounds = (int)TRY_N };
				struct simgroup_opts o = {
					.seed = SEED + (uint64_t)at, .ranks = ranks,
					.die_rank = rank, .die_at = at, .die_sent = at % 2,
					.stat = &stat
				};
				int results[RANKS_MAX];

				CHECK_INT(simgroup_run(&o, run_script, &s, results), 0);
				if (!stat.fired) {
					CHECK(at > (int)TRY_N);
					break;
				}
				check_death(&o, &s, results);
				o.die_sent = !o.die_sent;
				CHECK_INT(simgroup_run(&o, run_script, &s, results), 0);
				check_death(&o, &s, results);
			}
}

TEST(a_rank_later_than_the_deadline_loses_the_group_for_those_that_waited)
{
	for (int rank = 0; rank < 4; rank++)
		for (int at = 1;; at++) {
			struct simgroup_stat stat;
			struct script s = { .key = SEED, .rounds = (int)TRY_N };
			struct simgroup_opts o = {
				.seed = SEED + (uint64_t)at, .ranks = 4, .late_rank = rank,
				.late_at = at, .late_ms = TIMEOUT_MS + 1, .stat = &stat
			};
			int results[RANKS_MAX];

			CHECK_INT(simgroup_run(&o, run_script, &s, results), 0);
			if (!stat.fired)
				break;
			for (int r = 0; r < 4; r++)
				if (r != rank || results[r] != 0)
					CHECK_RC(results[r], SHEAF_ELOST, &s.err[r]);
			CHECK(stat.clock_ms >= TIMEOUT_MS);
		}
}

static int run_one_agreement(void *arg, int rank, struct sheaf_group *group)
{
	struct shf_team t = team(group);

	(void)arg;
	(void)rank;
	return shf_agree(&t, 0, NULL);
}

TEST(a_late_rank_may_finish_alone_what_failed_on_all_others)
{
	int alone = 0, failed = 0;

	for (uint64_t seed = 0; seed < 32; seed++) {
		struct simgroup_opts o = {
			.seed = seed, .ranks = 3, .late_rank = 1, .late_at = 1, .late_ms = INT64_MAX
		};
		int results[3];

		CHECK_INT(simgroup_run(&o, run_one_agreement, NULL, results), 0);
		CHECK_INT(results[0], SHEAF_ELOST);
		CHECK_INT(results[2], SHEAF_ELOST);
		alone += results[1] == 0;
		failed += results[1] == SHEAF_ELOST;
	}
	CHECK(alone > 0 && failed > 0 && alone + failed == 32);
}

TEST(a_rank_late_by_less_than_the_deadline_changes_nothing)
{
	for (int at = 1; at < 30; at++) {
		struct simgroup_stat stat;
		struct script s = { .key = SEED, .rounds = 2 * (int)TRY_N };
		struct simgroup_opts o = {
			.seed = SEED + (uint64_t)at, .ranks = 4, .late_rank = at % 4, .late_at = at,
			.late_ms = TIMEOUT_MS - 1, .stat = &stat
		};
		int results[RANKS_MAX];

		CHECK_INT(simgroup_run(&o, run_script, &s, results), 0);
		CHECK(stat.fired);
		for (int r = 0; r < 4; r++)
			CHECK_RC(results[r], 0, &s.err[r]);
	}
}

/* ---- what travels ---- */

static int run_exchange(void *arg, int rank, struct sheaf_group *group)
{
	struct script *s = arg;
	struct shf_team t = team(group);

	return try_exchange(&t, s->key, &s->err[rank]);
}

TEST(an_exchange_sends_each_byte_once_and_to_its_rank_alone)
{
	struct script s = { .key = SEED };
	uint64_t pairs[16] = { 0 };
	struct simgroup_opts o = { .seed = SEED, .ranks = 4, .pair_bytes = pairs };
	int results[RANKS_MAX];

	CHECK_INT(simgroup_run(&o, run_exchange, &s, results), 0);
	for (int i = 0; i < 16; i++)
		CHECK_INT(pairs[i], 8 + size_of(pair_key(SEED, i / 4, i % 4)));
}

/* ---- lifecycle ---- */

static int stub_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			  struct sheaf_error *err)
{
	(void)arg, (void)mine, (void)all, (void)bytes, (void)timeout_ms, (void)err;
	return -1;
}

static int stub_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
			  const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	(void)arg, (void)out, (void)out_bytes, (void)in, (void)in_bytes, (void)timeout_ms;
	(void)err;
	return -1;
}

static int stub_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			  struct sheaf_error *err)
{
	(void)arg, (void)x, (void)n, (void)op, (void)timeout_ms, (void)err;
	return -1;
}

static void stub_free(void *arg)
{
	++*(int *)arg;
}

static struct sheaf_group_ops stub_ops(int *freed)
{
	return (struct sheaf_group_ops){
		.size = sizeof(struct sheaf_group_ops), .ranks = 2, .allgather = stub_allgather,
		.alltoallv = stub_alltoallv, .allreduce = stub_allreduce, .free = stub_free,
		.arg = freed,
	};
}

#define REFUSED(change)                                                       \
	do {                                                                  \
		struct sheaf_group_ops ops = stub_ops(&freed);                \
		change;                                                       \
		CHECK_INT(sheaf_group_new(&g, &ops, NULL), SHEAF_EINVAL);           \
	} while (0)

TEST(a_table_that_is_not_sound_is_refused)
{
	struct sheaf_group *g = NULL;
	int freed = 0;
	struct {
		struct sheaf_group_ops ops;
		uint64_t more;
	} longer = { stub_ops(&freed), 0 };

	CHECK_INT(sheaf_group_new(&g, NULL, NULL), SHEAF_EINVAL);
	REFUSED(ops.size = 0);
	REFUSED(ops.size -= 1);
	REFUSED(ops.size = UINT32_MAX);
	REFUSED(ops.node = -1);
	REFUSED(ops.ranks = 0);
	REFUSED(ops.rank = -1);
	REFUSED(ops.rank = ops.ranks);
	REFUSED(ops.allgather = NULL);
	REFUSED(ops.alltoallv = NULL);
	REFUSED(ops.allreduce = NULL);
	longer.ops.size = sizeof(longer);
	longer.more = 1;
	CHECK_INT(sheaf_group_new(&g, &longer.ops, NULL), SHEAF_EINVAL);
	CHECK_INT(sheaf_group_new(NULL, &longer.ops, NULL), SHEAF_EINVAL);
	CHECK(g == NULL);
	CHECK_INT(freed, 0);            /* what was refused is still the caller's */
	longer.more = 0;
	CHECK_INT(sheaf_group_new(&g, &longer.ops, NULL), 0);
	sheaf_group_free(g);
	CHECK_INT(freed, 1);
	sheaf_group_free(NULL);
}

TEST(a_group_in_use_outlives_its_free)
{
	int freed = 0;
	struct sheaf_group_ops ops = stub_ops(&freed);
	struct sheaf_group *g = NULL;

	CHECK_INT(sheaf_group_new(&g, &ops, NULL), 0);
	shf_group_get(g);
	sheaf_group_free(g);
	CHECK(g->dropped);
	CHECK_INT(freed, 0);
	shf_group_put(g);
	CHECK_INT(freed, 1);
}

TEST(one_failed_operation_ends_the_group)
{
	int freed = 0;
	struct sheaf_group_ops ops = stub_ops(&freed);
	struct sheaf_group *g = NULL;
	struct sheaf_error err;
	struct shf_team t;

	ops.rank = 1;
	CHECK_INT(sheaf_group_new(&g, &ops, NULL), 0);
	t = team(g);
	CHECK_INT(shf_agree(&t, 0, &err), SHEAF_ELOST);
	CHECK_INT(err.rank, -1);
	CHECK(g->lost);
	CHECK_INT(shf_agree(&t, SHEAF_EIO, &err), SHEAF_ELOST);
	CHECK_STR(err.msg, "rank 1: agreement: the group is unusable since an earlier failure: "
	          "allreduce failed after 0 ms, its callback returned -1 without a message; "
	          "see the log of the program's group callbacks");
	sheaf_group_free(g);
}

TEST(the_group_of_one_needs_nobody)
{
	struct script s = { .key = SEED, .rounds = 4 * (int)TRY_N };
	struct sheaf_group *g = NULL;
	size_t n = 3, m = 4;

	CHECK_INT(shf_group_one(&g), 0);
	CHECK_RC(run_script(&s, 0, g), 0, &s.err[0]);
	s.bad_rank_too = -1;
	CHECK_INT(run_agree(&s, 0, g), SHEAF_EIO);
	CHECK_INT(s.err[0].rank, 0);
	CHECK_INT(g->ops.alltoallv(g->ops.arg, "abc", &n, s.err[0].msg, &n, 0, NULL), 0);
	CHECK(g->ops.alltoallv(g->ops.arg, "abc", &n, s.err[0].msg, &m, 0, NULL) != 0);
	CHECK(memcmp(s.err[0].msg, "abc", 3) == 0);
	shf_group_put(g);
}

/* ---- the simulated ranks ---- */

static int run_differ(void *arg, int rank, struct sheaf_group *group)
{
	struct shf_team t = team(group);
	uint64_t x[4] = { 0 };
	size_t bytes[2] = { 0, 0 };
	int how = *(int *)arg, rc;

	rc = shf_agree(&t, 0, NULL);
	if (rc != 0)
		return rc;
	if (how == 0 && rank == 1)
		return shf_allgather(&t, x, (uint64_t[8]){ 0 }, 8, NULL);
	if (how == 1 && rank == 1)
		return shf_allreduce(&t, x, 3, SHEAF_XOR, NULL);
	if (how == 2 && rank == 1)
		return 0;
	if (how == 3) {
		bytes[1] = rank == 0 ? 8 : 0;
		return shf_alltoallv(&t, x, bytes, (uint64_t[4]){ 0 }, (size_t[2]){ 0, 0 }, NULL);
	}
	return shf_allreduce(&t, x, 2, SHEAF_XOR, NULL);
}

TEST(ranks_that_call_different_things_fail_the_run_with_both_names)
{
	static const char *const words[][2] = {
		{ "allgather of 8 bytes", "allreduce of 2 words by XOR" },
		{ "allreduce of 3 words by XOR", "allreduce of 2 words by XOR" },
		{ "allreduce of 2 words by XOR", "rank 1 has returned" },
		{ "8 bytes for rank 1", "0 bytes from it" },
	};

	for (int how = 0; how < 4; how++)
		for (uint64_t seed = 0; seed < 8; seed++) {
			struct simgroup_stat stat;
			struct simgroup_opts o = {
				.seed = seed, .ranks = 2, .quiet = true, .stat = &stat
			};
			int results[2];

			CHECK_INT(simgroup_run(&o, run_differ, &how, results), -1);
			CHECK(strstr(stat.why, "operation 2") != NULL);
			CHECK(strstr(stat.why, words[how][0]) != NULL);
			CHECK(strstr(stat.why, words[how][1]) != NULL);
			CHECK_INT(results[0], SHEAF_ELOST);
		}
}

static void *call_from_aside(void *arg)
{
	struct shf_team t = team(arg);

	return shf_agree(&t, 0, NULL) == 0 ? NULL : arg;
}

static int run_aside(void *arg, int rank, struct sheaf_group *group)
{
	pthread_t thread;
	void *result = NULL;

	(void)arg;
	(void)rank;
	if (pthread_create(&thread, NULL, call_from_aside, group) != 0)
		return 0;
	pthread_join(thread, &result);
	return result ? SHEAF_ELOST : 0;
}

TEST(an_operation_from_another_thread_fails_the_run)
{
	struct simgroup_stat stat;
	struct simgroup_opts o = { .seed = SEED, .ranks = 2, .quiet = true, .stat = &stat };
	int results[2];

	CHECK_INT(simgroup_run(&o, run_aside, NULL, results), -1);
	CHECK(strstr(stat.why, "another thread") != NULL);
}

struct trace {
	int n, rank[400];
	int64_t ms[400];
};

static int run_trace(void *arg, int rank, struct sheaf_group *group)
{
	struct trace *trace = arg;
	struct shf_team t = team(group);

	for (int i = 0; i < 20; i++) {
		trace->ms[trace->n] = simgroup_now_ms(group);
		trace->rank[trace->n++] = rank;
		simgroup_pause(group, (rank + i) % 3);
		if (i % 5 == 4 && shf_agree(&t, 0, NULL) != 0)
			return SHEAF_ELOST;
	}
	return 0;
}

TEST(the_schedule_is_a_function_of_the_seed)
{
	struct trace first = { 0 }, again = { 0 }, other = { 0 };
	struct simgroup_opts o = { .seed = SEED, .ranks = 8 };
	int results[RANKS_MAX];

	CHECK_INT(simgroup_run(&o, run_trace, &first, results), 0);
	CHECK_INT(simgroup_run(&o, run_trace, &again, results), 0);
	o.seed++;
	CHECK_INT(simgroup_run(&o, run_trace, &other, results), 0);
	CHECK_INT(first.n, 160);
	CHECK(memcmp(&first, &again, sizeof(first)) == 0);
	CHECK(memcmp(&first, &other, sizeof(first)) != 0);
}

struct death {
	int heard, after;
};

static void hear_death(void *arg, int rank)
{
	struct death *d = arg;

	d->heard = rank + 1;
}

static int run_death(void *arg, int rank, struct sheaf_group *group)
{
	struct death *d = arg;
	struct shf_team t = team(group);
	int rc = shf_agree(&t, 0, NULL);

	if (rc == 0)
		rc = shf_agree(&t, 0, NULL);
	if (simgroup_is_dead(group))
		d->after = d->heard == rank + 1;
	return rc;
}

TEST(a_death_is_told_before_the_rank_goes_on)
{
	struct death d = { 0 };
	struct simgroup_opts o = {
		.seed = SEED, .ranks = 3, .die_rank = 1, .die_at = 2, .died = hear_death
	};
	int results[3];

	CHECK_INT(simgroup_run(&o, run_death, &d, results), 0);
	CHECK_INT(d.heard, 2);
	CHECK_INT(d.after, 1);
}
