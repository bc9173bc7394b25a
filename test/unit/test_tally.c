/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks count together: a tensor once, however many of them have it, and a bit if any has it;
 * and what becomes of both where a rank dies on the way. */
#include "t.h"
#include "simgroup.h"
#include "count_tensors.h"

#define SEED UINT64_C(0x5eaf)
enum { RANKS = 9, WORDS = 3 };

static int64_t sim_ns(void *group)
{
	return simgroup_now_ms(group) * 1000000;
}

static struct shf_team team(struct sheaf_group *group)
{
	return (struct shf_team){ group, group->ops.rank, group->ops.ranks, 60000, sim_ns, group };
}

/* Takes the records along in an exchange in which rank r sends r bytes of its own to each rank but
 * the first. EBUG where they come otherwise. */
static int ride(struct shf_tensor_counts *tally, struct shf_team *t, struct sheaf_error *err)
{
	struct shf_buf out[RANKS] = { 0 }, in = SHF_BUF_INIT;
	size_t in_bytes[RANKS], at = 0;
	int rc;

	shf_tensor_counts_pack(tally, out);
	for (int r = 1; r < t->ranks; r++)
		for (int i = 0; i < t->rank; i++)
			shf_buf_u8(&out[r], (uint8_t)(16 * t->rank + i));
	rc = shf_exchange(t, 0, out, &in, in_bytes, err);
	if (rc == 0)
		rc = shf_tensor_counts_unpack(tally, &in, in_bytes);
	for (int r = 0; r < t->ranks && rc == 0; r++) {
		if (in_bytes[r] != (size_t)(t->rank > 0 ? r : 0))
			rc = SHEAF_EBUG;
		for (size_t i = 0; i < in_bytes[r] && rc == 0; i++)
			rc = in.data[at++] == 16 * (size_t)r + i ? 0 : SHEAF_EBUG;
	}
	if (rc == 0 && at != in.len)
		rc = SHEAF_EBUG;
	for (int r = 0; r < t->ranks; r++)
		shf_buf_release(&out[r]);
	shf_buf_release(&in);
	return rc;
}

/* arg: not NULL if the records ride in another's exchange. Tensors 0 to 2 * ranks - 1: tensor t
 * is loaded by ranks t / 2 and one after it; all miss one of the same name in another family,
 * and one rank ignores what others load. */
static int count(void *arg, int rank, struct sheaf_group *group)
{
	uint64_t sums[2 * SHF_COUNT_KINDS];
	const bool rides = arg != NULL;
	struct shf_team t = team(group);
	uint64_t n = (uint64_t)t.ranks;
	struct sheaf_error err;
	struct shf_tensor_counts tally = { 0 };
	char name[16];
	int rc;

	if (shf_tensor_counts_init(&tally, t.ranks) < 0)
		return __LINE__;
	for (int k = 0; k < 4; k++) {
		int i = (2 * rank + k) % (2 * t.ranks);

		snprintf(name, sizeof(name), "t%d", i);
		shf_tensor_counts_add(&tally, SHF_COUNT_LOADED, "model", name, 100 + (uint64_t)i);
	}
	shf_tensor_counts_add(&tally, SHF_COUNT_MISSING, "optimizer", "t0", 7);
	if (rank == t.ranks - 1)
		shf_tensor_counts_add(&tally, SHF_COUNT_UNVERIFIED, "model", "t0", 3);
	rc = rides ? ride(&tally, &t, &err) : shf_tensor_counts_exchange(&tally, &t, 0, &err);
	memcpy(sums, tally.counts, sizeof(tally.counts));
	memcpy(sums + SHF_COUNT_KINDS, tally.bytes, sizeof(tally.bytes));
	shf_tensor_counts_release(&tally);
	if (rc == 0)
		rc = shf_allreduce(&t, sums, 2 * SHF_COUNT_KINDS, SHEAF_SUM, &err);
	if (rc < 0)
		return rc;
	for (int k = 0; k < SHF_COUNT_KINDS; k++) {
		uint64_t want = k == SHF_COUNT_LOADED ? 2 * n : k == SHF_COUNT_MISSING ||
		                k == SHF_COUNT_UNVERIFIED;
		uint64_t sum = k == SHF_COUNT_LOADED ? 200 * n + n * (2 * n - 1)
		               : k == SHF_COUNT_MISSING ? 7 : k == SHF_COUNT_UNVERIFIED ? 3 : 0;

		if (sums[k] != want || sums[SHF_COUNT_KINDS + k] != sum)
			return __LINE__;
	}
	return tally.out ? __LINE__ : 0;
}

static int unite(void *arg, int rank, struct sheaf_group *group)
{
	struct shf_team t = team(group);
	uint64_t x[WORDS] = { UINT64_C(1) << rank, 0, rank == 0 ? UINT64_C(1) << 63 : 4 };
	struct sheaf_error err;
	uint64_t counts[64 * WORDS + 1];
	size_t words = shf_allreduce_or_words(&t, 64 * WORDS);
	int rc = words < sizeof(counts) / sizeof(*counts) ? 0 : SHEAF_EBUG;

	(void)arg;
	if (rc == 0) {
		counts[words] = (uint64_t)rank + 1;
		rc = shf_allreduce_or(&t, x, 64 * WORDS, counts, 1, &err);
	}
	if (rc < 0)
		return rc;
	if (counts[words] != (uint64_t)(t.ranks * (t.ranks + 1) / 2))
		return __LINE__;
	if (x[0] != (UINT64_C(1) << t.ranks) - 1 || x[1] != 0)
		return __LINE__;
	return x[2] == (UINT64_C(1) << 63 | (t.ranks > 1 ? 4 : 0)) ? 0 : __LINE__;
}

/* Runs `what` on 1 to RANKS ranks, and with each group operation of the last rank failing in turn.
 * ops_n[r]: operations with r ranks. */
static void together(int (*what)(void *arg, int rank, struct sheaf_group *group), void *arg,
                     uint64_t ops_n[RANKS + 1])
{
	for (int ranks = 1; ranks <= RANKS; ranks++) {
		struct simgroup_stat stat = { 0 };
		struct simgroup_opts o = { .seed = SEED, .ranks = ranks, .stat = &stat };
		int results[RANKS];

		CHECK_INT(simgroup_run(&o, what, arg, results), 0);
		for (int r = 0; r < ranks; r++)
			CHECK_INT(results[r], 0);
		ops_n[ranks] = stat.ops;
		for (int at = 1, ops = (int)stat.ops; ranks > 1 && at <= ops; at++) {
			o.die_rank = ranks - 1;
			o.die_at = at;
			CHECK_INT(simgroup_run(&o, what, arg, results), 0);
			CHECK_INT(results[ranks - 1], SHEAF_ELOST);
			for (int r = 0; r < ranks; r++)
				CHECK(results[r] == SHEAF_ELOST || results[r] == 0);
		}
	}
}

TEST(each_tensor_is_counted_once_or_nothing_is_counted)
{
	uint64_t ops[RANKS + 1];

	together(count, NULL, ops);
	CHECK_INT(ops[2], ops[RANKS]);
}

TEST(what_rides_in_an_exchange_of_others_is_counted_and_leaves_theirs_as_it_was)
{
	uint64_t ops[RANKS + 1];

	together(count, ops, ops);
	CHECK_INT(ops[2], ops[RANKS]);
	CHECK_INT(ops[RANKS], 4);
}

TEST(a_bit_that_any_rank_has_all_have_or_the_group_is_lost)
{
	uint64_t ops[RANKS + 1];

	together(unite, NULL, ops);
	CHECK_INT(ops[2], 1);
	CHECK_INT(ops[RANKS], 1);
}
