/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks do together, with ranks that are threads. */
#include "t.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "leafsum.h"
#include "delaylink.h"
#include "memfail.h"
#include "philox.h"
#include "rankmesh.h"
#include "ranks_threads.h"
#include "sumtree.h"

enum { ITEMS = 1003, LEAVES_MAX = 24 };

/* One rank of a test: its thread, what it is to do, and what came of it. */
struct worker {
	pthread_t thread;
	struct tr_ranks g;
	int fail_at;                    /* of its exchanges the one that fails; 0: none */
	int leaves;
	int64_t items;
	float *sum;
	struct tr_error err;
	int rc;
};

static void add(float *y, const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		y[i] += x[i];
}

static void draw_leaf(float *x, int leaf, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t r[4];

		tr_random(3, TR_RANDOM_INIT, (uint64_t)leaf, (uint64_t)i, r);
		x[i] = ldexpf((float)(int32_t)r[0], (int)(r[1] % 20) - 31);
	}
}

/* The sum of leaves [low, low + n) by the tree, computed plainly. */
static void sum_plainly(float *to, int low, int n, int64_t items)
{
	float *right;

	if (n == 1) {
		draw_leaf(to, low, items);
		return;
	}
	right = malloc((size_t)items * sizeof(*right));
	sum_plainly(to, low, tr_tree_left(n), items);
	sum_plainly(right, low + tr_tree_left(n), n - tr_tree_left(n), items);
	add(to, right, items);
	free(right);
}

/* Makes the memory that the rank of a round needs for shares of at most so many items. */
static float *make_room(const struct tr_round *round, int ranks, int64_t share_max)
{
	return malloc((size_t)tr_leafsum_room(round, ranks, share_max) * sizeof(float) + 1);
}

static void *sum_leaves(void *arg)
{
	struct worker *w = arg;
	const struct tr_round all = { w->leaves, 0, w->leaves / w->g.n };
	float *node[64], *received = make_room(&all, w->g.n, w->items / w->g.n + 1);
	int from, to, end[64], n;

	tr_leaves_of(&w->g, w->leaves, &from, &to);
	n = tr_tree_nodes(w->leaves, from, to, end);
	for (int i = 0; i < n; from = end[i++]) {
		node[i] = malloc((size_t)w->items * sizeof(float));
		sum_plainly(node[i], from, end[i] - from, w->items);
	}
	w->rc = tr_sum_leaves(&w->g, w->leaves, node, received, w->items, add, &w->err);
	w->sum = node[0];
	free(received);
	for (int i = 1; i < n; i++)
		free(node[i]);
	return NULL;
}

/* Runs `what` on a group of n threads. */
static void work_together(struct worker *w, int n, void *(*what)(void *))
{
	struct tr_hub *hub = tr_hub_new(n);

	for (int r = 0; r < n; r++)
		tr_hub_fail_at(hub, r, w[r].fail_at);
	for (int r = 0; r < n; r++) {
		tr_ranks_hub(&w[r].g, hub, r, 20000);
		CHECK_INT(pthread_create(&w[r].thread, NULL, what, &w[r]), 0);
	}
	for (int r = 0; r < n; r++)
		pthread_join(w[r].thread, NULL);
	tr_hub_free(hub);
}

static void check_sum(int ranks, int leaves, int64_t items)
{
	struct worker w[LEAVES_MAX] = { { .rc = 0 } };
	float *want = malloc((size_t)items * sizeof(*want));

	sum_plainly(want, 0, leaves, items);
	for (int r = 0; r < ranks; r++) {
		w[r].leaves = leaves;
		w[r].items = items;
	}
	work_together(w, ranks, sum_leaves);
	for (int r = 0; r < ranks; r++) {
		CHECK_RC(w[r].rc, 0, &w[r].err);
		CHECK(memcmp(w[r].sum, want, (size_t)items * sizeof(*want)) == 0);
		free(w[r].sum);
	}
	free(want);
}

TEST(the_sum_over_leaves_has_the_same_bits_on_any_number_of_ranks)
{
	static const int leaves[] = { 1, 2, 3, 6, 8, 12, 24 };

	for (size_t i = 0; i < sizeof(leaves) / sizeof(leaves[0]); i++)
		for (int ranks = 1; ranks <= leaves[i] && ranks <= 12; ranks++)
			if (leaves[i] % ranks == 0)
				check_sum(ranks, leaves[i], ITEMS);
}

TEST(sums_of_fewer_items_than_ranks_and_of_several_blocks_are_whole)
{
	check_sum(6, 6, 4);
	check_sum(3, 3, ((int64_t)1 << 20) + 5);
}

static void *reduce(void *arg)
{
	struct worker *w = arg;
	uint64_t x[2] = { (uint64_t)w->g.rank + 1, (uint64_t)1 << w->g.rank };
	struct tr_error own = { .code = 0 };

	w->rc = tr_allreduce(&w->g, x, 2, TR_SUM, &w->err);
	if (w->rc == 0 && (x[0] != 15 || x[1] != 31))
		w->rc = 1;
	if (w->rc == 0)
		w->rc = tr_allreduce(&w->g, x, 1, TR_MAX, &w->err);
	if (w->rc == 0)
		w->rc = tr_agree(&w->g, 0, &own);
	if (w->rc == 0 && w->g.rank >= 3)
		tr_fail(&own, TR_EIO, "the disk of rank %d", w->g.rank);
	if (w->rc == 0)
		w->rc = tr_agree(&w->g, own.code, &own);
	w->err = own;
	return NULL;
}

TEST(ranks_reduce_and_agree_on_the_error_of_one)
{
	struct worker w[5] = { { .rc = 0 } };

	work_together(w, 5, reduce);
	for (int r = 0; r < 5; r++) {
		CHECK_INT(w[r].rc, TR_EIO);
		CHECK_INT(w[r].err.rank, 3);
		CHECK_STR(w[r].err.msg, w[0].err.msg);
	}
}

/* Ranks of other groups may wait for this rank, and it could not reach them from this group. */
TEST(a_group_of_one_rank_needs_no_memory)
{
	struct tr_error err = { .code = 0 }, own = { .rank = -1 };
	uint64_t x = 7, y = 0;
	struct tr_ranks g;

	tr_ranks_alone(&g);
	g.all_rank = 5;
	memfail_at(1);
	CHECK_INT(tr_agree(&g, 0, &err), 0);
	CHECK_INT(tr_agree(&g, tr_fail(&own, TR_EIO, "no disk"), &own), TR_EIO);
	CHECK_INT(tr_allreduce(&g, &x, 1, TR_SUM, &err), 0);
	CHECK_INT(tr_allgather(&g, &x, &y, sizeof(x), &err), 0);
	CHECK(!memfail_end());
	CHECK(x == 7 && y == 7 && own.rank == 5);
	CHECK_STR(own.msg, "no disk");
}

TEST(the_failure_of_any_exchange_is_an_error_on_all_ranks)
{
	for (int nth = 1; nth <= 2; nth++) {
		struct worker w[3] = { { .rc = 0 } };

		for (int r = 0; r < 3; r++) {
			w[r].leaves = 6;
			w[r].items = 50;
		}
		w[1].fail_at = nth;
		work_together(w, 3, sum_leaves);
		for (int r = 0; r < 3; r++) {
			CHECK_INT(w[r].rc, TR_ELOST);
			CHECK_INT(w[r].err.rank, 1);
			free(w[r].sum);
		}
	}
}

/* ---- sub-groups ---- */

enum { DP = 2, TP = 3, PP = 2, ALL = DP * TP * PP };

/* Returns the set of ranks first, first + stride, ..., a bit each. */
static uint64_t set_of(int first, int stride, int n)
{
	uint64_t set = 0;

	for (int i = 0; i < n; i++)
		set |= (uint64_t)1 << (first + i * stride);
	return set;
}

/* Which ranks are in the groups of a mesh? The ranks add up a bit each. */
static void *reduce_in_groups(void *arg)
{
	struct worker *w = arg;
	int r = w->g.rank, tp = r % TP, line = r - r % (TP * PP);
	const uint64_t mine = (uint64_t)1 << r;
	uint64_t x[5] = { mine, mine, mine, mine, mine };
	struct tr_mesh m = { .all = NULL };

	w->rc = tr_mesh_make(&m, &w->g, DP, TP, PP, &w->err);
	if (w->rc == 0 && (m.tp.rank != tp || m.pp.rank != r / TP % PP ||
			   m.dp.rank != r / (TP * PP)))
		w->rc = 1;
	for (int turn = 0; w->rc == 0 && turn < 3; turn++) {
		w->rc = tr_allreduce(&m.tp, &x[0], 1, TR_SUM, &w->err);
		if (w->rc == 0)
			w->rc = tr_allreduce(&m.dp, &x[1], 1, TR_SUM, &w->err);
		if (w->rc == 0)
			w->rc = tr_allreduce(&m.pp, &x[2], 1, TR_SUM, &w->err);
		if (w->rc == 0)
			w->rc = tr_allreduce(&m.line, &x[3], 1, TR_SUM, &w->err);
		if (w->rc == 0)
			w->rc = tr_allreduce(&w->g, &x[4], 1, TR_SUM, &w->err);
		if (w->rc == 0 && turn == 0 && (x[0] != set_of(r - tp, 1, TP) ||
						x[1] != set_of(r - line, TP * PP, DP) ||
						x[2] != set_of(line + tp, TP, PP) ||
						x[3] != set_of(line, 1, TP * PP) ||
						x[4] != set_of(0, 1, ALL)))
			w->rc = 1;
	}
	tr_mesh_release(&m);
	return NULL;
}

TEST(a_mesh_has_a_group_for_each_axis)
{
	struct worker w[ALL] = { { .rc = 0 } };

	work_together(w, ALL, reduce_in_groups);
	for (int r = 0; r < ALL; r++)
		CHECK_RC(w[r].rc, 0, &w[r].err);
}

/* Rank 4 of all fails. It agrees with itself, and then with its group of tp, of which it is rank 1.
 * The group of the other ranks has no error before all of them agree. */
static void *agree_in_groups(void *arg)
{
	struct worker *w = arg;
	struct tr_error own = { .code = 0 }, alone = { .code = 0 };
	struct tr_mesh m = { .all = NULL };
	struct tr_ranks self;

	w->rc = tr_mesh_make(&m, &w->g, DP, TP, 1, &own);
	if (w->rc == 0)
		w->rc = tr_ranks_split(&w->g, &self, w->g.rank, 1, 1, &own);
	if (w->rc == 0 && w->g.rank == 4) {
		w->rc = tr_fail(&own, TR_EIO, "the disk of rank 4");
		alone = own;
		tr_agree(&self, w->rc, &alone);
	}
	w->rc = tr_agree(&m.tp, w->rc, &own);
	w->rc = tr_agree(&w->g, w->rc, &own);
	w->err = own;
	if (alone.code && alone.rank != 4)
		w->rc = 1;
	tr_mesh_release(&m);
	return NULL;
}

TEST(an_error_that_a_group_agrees_on_has_the_number_of_its_rank_among_all)
{
	struct worker w[DP * TP] = { { .rc = 0 } };

	work_together(w, DP * TP, agree_in_groups);
	for (int r = 0; r < DP * TP; r++) {
		CHECK_INT(w[r].rc, TR_EIO);
		CHECK_INT(w[r].err.rank, 4);
	}
}

TEST(a_failure_in_a_group_ends_the_ranks_of_all_groups)
{
	for (int nth = 1; nth <= 23; nth++) {
		struct worker w[ALL] = { { .rc = 0 } };

		w[4].fail_at = nth;
		work_together(w, ALL, reduce_in_groups);
		for (int r = 0; r < ALL; r++) {
			CHECK_INT(w[r].rc, TR_ELOST);
			CHECK_INT(w[r].err.rank, 4);
		}
	}
}

/* ---- messages ---- */

enum { CHANNELS = 2, MESSAGES = 20 };

/* Sends messages of each channel to the next rank, and receives those of the rank before: first all
 * of the last channel. Message i has i bytes. */
static void *pass_messages(void *arg)
{
	struct worker *w = arg;
	const struct tr_ranks *g = &w->g;
	int next = (g->rank + 1) % g->n, before = (g->rank + g->n - 1) % g->n;
	unsigned char bytes[MESSAGES];
	size_t got;

	for (int i = 0; w->rc == 0 && i < CHANNELS * MESSAGES; i++) {
		memset(bytes, g->rank * 50 + i, sizeof(bytes));
		w->rc = tr_send(g, next, i % CHANNELS, bytes, (size_t)(i / CHANNELS), &w->err);
	}
	for (int i = 0; w->rc == 0 && i < CHANNELS * MESSAGES; i++) {
		int channel = CHANNELS - 1 - i / MESSAGES, k = i % MESSAGES;

		w->rc = tr_receive(g, before, channel, bytes, sizeof(bytes), &got, &w->err);
		if (w->rc == 0 && got != (size_t)k)
			w->rc = 1;
		for (int j = 0; w->rc == 0 && j < k; j++)
			if (bytes[j] != (unsigned char)(before * 50 + k * CHANNELS + channel))
				w->rc = 2;
	}
	if (w->rc == 0)
		w->rc = tr_sent(g, 0, &w->err);
	return NULL;
}

TEST(messages_of_a_channel_arrive_in_order_and_those_of_others_do_not_matter)
{
	struct worker w[4] = { { .rc = 0 } };

	work_together(w, 4, pass_messages);
	for (int r = 0; r < 4; r++)
		CHECK_RC(w[r].rc, 0, &w[r].err);
}

TEST(the_failure_of_any_message_is_an_error_on_all_ranks_that_wait)
{
	for (int nth = 1; nth <= 2 * CHANNELS * MESSAGES; nth += 13) {
		struct worker w[3] = { { .rc = 0 } };

		w[1].fail_at = nth;
		work_together(w, 3, pass_messages);
		CHECK_INT(w[1].rc, TR_ELOST);
		for (int r = 0; r < 3; r++) {
			CHECK(w[r].rc == 0 || w[r].rc == TR_ELOST);
			CHECK(w[r].rc == 0 || w[r].err.rank == 1);
		}
	}
}

/* Rank 1 receives nothing. */
static void *wait_until_sent(void *arg)
{
	struct worker *w = arg;
	char byte = 1;

	w->g.timeout_ms = 50;
	for (int i = 0; w->g.rank == 0 && w->rc == 0 && i < 3; i++)
		w->rc = tr_send(&w->g, 1, 0, &byte, 1, &w->err);
	if (w->g.rank == 0 && w->rc == 0)
		w->rc = tr_sent(&w->g, 3, &w->err);
	if (w->g.rank == 0 && w->rc == 0)
		w->rc = tr_sent(&w->g, 2, &w->err);
	return NULL;
}

TEST(a_rank_waits_while_more_messages_are_under_way_than_it_wants)
{
	struct worker w[2] = { { .rc = 0 } };

	work_together(w, 2, wait_until_sent);
	CHECK_INT(w[0].rc, TR_ELOST);
}

/* Of three ranks, rank 1 has no share, and rank 2 has almost all. */
static void sum_shares(struct worker *w, int64_t items)
{
	const int64_t cut[] = { 0, 5, 5, items };
	const struct tr_round round = { 6, 0, 2 };
	float *node[2], *all = malloc((size_t)items * sizeof(float));
	float *received = make_room(&round, 3, items);

	for (int i = 0; i < 2; i++) {
		node[i] = malloc((size_t)items * sizeof(float));
		draw_leaf(node[i], w->g.rank * 2 + i, items);
	}
	/* The tree over 6 leaves has one node for each of the three ranks. */
	add(node[0], node[1], items);
	sum_plainly(all, 0, 6, items);
	w->rc = tr_sum_leaves_share(&w->g, 6, node, received, cut, add, &w->err);
	free(received);
	if (w->rc == 0 && memcmp(node[0] + cut[w->g.rank], all + cut[w->g.rank],
				 (size_t)(cut[w->g.rank + 1] - cut[w->g.rank]) * sizeof(float)))
		w->rc = 1;
	free(node[0]);
	free(node[1]);
	free(all);
}

/* The second time rank 2 gets its share in two blocks. */
static void *sum_a_share(void *arg)
{
	struct worker *w = arg;

	sum_shares(w, 12);
	if (w->rc == 0)
		sum_shares(w, 360000);
	return NULL;
}

TEST(a_rank_that_wants_a_share_of_a_sum_gets_the_bits_of_the_whole)
{
	struct worker w[3] = { { .rc = 0 } };

	work_together(w, 3, sum_a_share);
	for (int r = 0; r < 3; r++)
		CHECK_RC(w[r].rc, 0, &w[r].err);
}

/* ---- in the background ---- */

enum { SHARED = 1000 };

/* Returns round i if the leaves are dealt in rounds of `each` leaves of a rank. */
static struct tr_round round_at(const struct tr_ranks *g, int leaves, int each, int i)
{
	int left = leaves / g->n - i * each;

	return (struct tr_round){ leaves, i * each * g->n, left < each ? left : each };
}

/* Returns the memory that the largest of the rounds needs. */
static float *make_room_for_rounds(const struct tr_ranks *g, int leaves, int each, int64_t share)
{
	struct tr_round largest = round_at(g, leaves, each, 0);

	for (int i = 0; i * each < leaves / g->n; i++) {
		struct tr_round round = round_at(g, leaves, each, i);

		if (tr_leafsum_room(&round, g->n, share) >
		    tr_leafsum_room(&largest, g->n, share))
			largest = round;
	}
	return make_room(&largest, g->n, share);
}

/* Adds up leaves that are dealt in rounds of `each` leaves of a rank. Ranks poll differently often.
 * All sums go on in one queue, each of some of the items. */
static int sum_rounds(struct worker *w, const struct tr_ranks *g, int each)
{
	int count = w->leaves / g->n, me = g->rank;
	const int64_t cut[] = { 0, 7, SHARED / 2, SHARED, SHARED }, own = cut[me + 1] - cut[me];
	float *sum[TR_TREE_NODES_MAX], *node[LEAVES_MAX], *want = malloc(SHARED * sizeof(*want));
	float *received = make_room_for_rounds(g, w->leaves, each, SHARED - SHARED / 2);
	int blocks = 0, end[TR_TREE_NODES_MAX], rc = 0;
	struct tr_queue q;

	tr_queue_init(&q, g);
	for (int i = 0; i < TR_TREE_NODES_MAX; i++)
		sum[i] = malloc((size_t)own * sizeof(float) + 1);
	for (int at = 0; at < count; at += each) {
		const struct tr_round round = round_at(g, w->leaves, each, at / each);
		int from = round.first + me * round.each;
		int n = tr_tree_nodes(w->leaves, from, from + round.each, end);

		for (int i = 0; i < n; from = end[i++]) {
			node[blocks + i] = malloc(SHARED * sizeof(float));
			sum_plainly(node[blocks + i], from, end[i] - from, SHARED);
		}
		tr_queue_add(&q, tr_leafsum_series(g, &round, node + blocks, received, cut, sum,
						   add));
		blocks += n;
		for (int i = 0; i < me * 3; i++)
			tr_queue_poll(&q);
	}
	rc = tr_queue_wait(&q, q.added, &w->err);
	sum_plainly(want, 0, w->leaves, SHARED);
	if (rc == 0 && memcmp(sum[0], want + cut[me], (size_t)own * sizeof(float)) != 0)
		rc = 1;
	tr_queue_release(&q);
	free(received);
	for (int i = 0; i < TR_TREE_NODES_MAX; i++)
		free(sum[i]);
	for (int i = 0; i < blocks; i++)
		free(node[i]);
	free(want);
	return rc;
}

static void *sum_all_rounds(void *arg)
{
	struct worker *w = arg;

	for (int each = 1; w->rc == 0 && each <= w->leaves / w->g.n; each++)
		w->rc = sum_rounds(w, &w->g, each);
	return NULL;
}

TEST(a_sum_in_rounds_has_the_bits_of_the_tree_however_the_leaves_are_dealt)
{
	static const int ranks[] = { 2, 3, 4, 4 }, leaves[] = { 24, 24, 12, 4 };

	for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
		struct worker w[4] = { { .rc = 0 } };

		for (int r = 0; r < ranks[i]; r++)
			w[r].leaves = leaves[i];
		work_together(w, ranks[i], sum_all_rounds);
		for (int r = 0; r < ranks[i]; r++)
			CHECK_RC(w[r].rc, 0, &w[r].err);
	}
}

TEST(the_failure_of_any_exchange_in_the_background_is_an_error_on_all_ranks)
{
	for (int nth = 1; nth <= 8; nth++) {
		struct worker w[3] = { { .rc = 0 } };

		for (int r = 0; r < 3; r++)
			w[r].leaves = 12;
		w[1].fail_at = nth;
		work_together(w, 3, sum_all_rounds);
		for (int r = 0; r < 3; r++) {
			CHECK_INT(w[r].rc, TR_ELOST);
			CHECK_INT(w[r].err.rank, 1);
		}
	}
}

/* Each rank begins two exchanges with the other one, and ends the later one first. */
static void *end_the_later_first(void *arg)
{
	struct worker *w = arg;
	int other = 1 - w->g.rank;
	int64_t sends[3] = { 10 + w->g.rank, 20 + w->g.rank, 30 + w->g.rank }, gets[3] = { 0 };
	struct tr_piece out[2][2] = { { { NULL, 0 } } }, in[2][2] = { { { NULL, 0 } } };
	void *flow[2] = { NULL, NULL };

	out[0][other] = (struct tr_piece){ sends, sizeof(sends[0]) };
	in[0][other] = (struct tr_piece){ gets, sizeof(gets[0]) };
	out[1][other] = (struct tr_piece){ sends + 1, 2 * sizeof(sends[0]) };
	in[1][other] = (struct tr_piece){ gets + 1, 2 * sizeof(gets[0]) };
	for (int i = 0; w->rc == 0 && i < 2; i++)
		w->rc = tr_exchange_begin(&w->g, out[i], in[i], &flow[i], &w->err);
	for (int i = 1; w->rc == 0 && i >= 0; i--)
		w->rc = tr_exchange_end(&w->g, &flow[i], &w->err);
	for (int i = 0; w->rc == 0 && i < 3; i++)
		w->rc = gets[i] != 10 * (i + 1) + other;
	return NULL;
}

TEST(exchanges_in_the_background_may_be_ended_in_any_order)
{
	struct worker w[2] = { { .rc = 0 } };

	work_together(w, 2, end_the_later_first);
	CHECK_RC(w[0].rc, 0, &w[0].err);
	CHECK_RC(w[1].rc, 0, &w[1].err);
}

static atomic_int waits;

/* Rank 0 sends, and fails at once while rank 1 waits for what it has sent. */
static void *send_and_fail(void *arg)
{
	struct worker *w = arg;
	struct tr_piece out[2] = { { NULL, 0 } }, in[2] = { { NULL, 0 } };
	int64_t x = 0;
	void *flow = NULL;

	out[1] = (struct tr_piece){ &x, w->g.rank ? 0 : sizeof(x) };
	in[0] = (struct tr_piece){ &x, w->g.rank ? sizeof(x) : 0 };
	while (!w->g.rank && !waits)
		;
	w->rc = tr_exchange_begin(&w->g, out, in, &flow, &w->err);
	waits = w->g.rank;
	if (w->rc == 0)
		w->rc = tr_exchange_end(&w->g, &flow, &w->err);
	if (w->rc == 0 && !w->g.rank)
		w->rc = tr_exchange_begin(&w->g, out, in, &flow, &w->err);
	return NULL;
}

TEST(an_exchange_that_is_complete_does_not_fail_with_a_later_one)
{
	for (int i = 0; i < 300; i++) {
		struct worker w[2] = { { .fail_at = 2 } };

		waits = 0;
		work_together(w, 2, send_and_fail);
		CHECK_INT(w[0].rc, TR_ELOST);
		CHECK_RC(w[1].rc, 0, &w[1].err);
	}
}

static int64_t clock_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

enum { LINK_MS = 20 };

/* Makes an exchange, polled once. */
static int exchange_over_link(struct worker *w, const struct tr_ranks *g, const char *out, char *in,
			      size_t n)
{
	int other = 1 - g->rank, rc;
	struct tr_piece send[2] = { { NULL, 0 } }, receive[2] = { { NULL, 0 } };
	void *flow;

	send[other] = (struct tr_piece){ (void *)(uintptr_t)out, n };
	receive[other] = (struct tr_piece){ in, n };
	rc = tr_exchange_begin(g, send, receive, &flow, &w->err);
	if (rc == 0)
		rc = tr_exchange_poll(g, &flow, &w->err);
	return rc == 0 ? tr_exchange_end(g, &flow, &w->err) : rc;
}

/* Sends two messages, and receives two. */
static int messages_over_link(struct worker *w, const struct tr_ranks *g, const char *out, char *in,
			      size_t n)
{
	int other = 1 - g->rank, rc = 0;
	size_t got = 0;

	for (int i = 0; rc == 0 && i < 2; i++)
		rc = tr_send(g, other, i, out, n, &w->err);
	for (int i = 0; rc == 0 && i < 2; i++) {
		rc = tr_receive(g, other, i, in, n, &got, &w->err);
		rc |= got != n || in[n - 1] != out[n - 1];
	}
	return rc;
}

/* Over a link with a latency of LINK_MS, and 8 Mbit/s: a millisecond for each kilobyte. A rank
 * answers what it has received, so the time from the first message to the answer does not depend on
 * when the other rank has begun. */
static void *use_link(void *arg)
{
	struct worker *w = arg;
	char out[4000], in[sizeof(out)] = { 0 };
	struct tr_ranks g, sub;
	int64_t start;

	memset(out, 7, sizeof(out));
	w->rc = tr_ranks_link(&g, &w->g, 0.008, LINK_MS * 1000, &w->err);
	if (w->rc == 0)
		w->rc = tr_ranks_split(&g, &sub, 0, 1, 2, &w->err);
	start = clock_ms();
	for (int i = 0; w->rc == 0 && i < 2; i++)
		w->rc = exchange_over_link(w, &sub, out, in, sizeof(out));
	w->rc |= w->rc == 0 && clock_ms() - start < 2 * (LINK_MS + 4) - 1;
	w->rc |= memcmp(in, out, sizeof(out)) != 0;
	start = clock_ms();
	for (int i = 0; w->rc == 0 && i < 2; i++)
		w->rc = messages_over_link(w, &sub, out, in, sizeof(out));
	w->rc |= w->rc == 0 && clock_ms() - start < 2 * (LINK_MS + 8) - 1;
	if (w->rc == 0)
		w->rc = sum_rounds(w, &sub, 1);
	tr_ranks_free(&sub);
	tr_ranks_free(&g);
	return NULL;
}

TEST(messages_over_a_link_come_late_and_whole)
{
	struct worker w[2] = { { .leaves = 4 }, { .leaves = 4 } };

	work_together(w, 2, use_link);
	CHECK_RC(w[0].rc, 0, &w[0].err);
	CHECK_RC(w[1].rc, 0, &w[1].err);
}

enum { WAIT_MS = 50 };

/* Over a link that needs longer for a byte than any rank waits, or that delays each message for
 * longer. */
static void *use_slow_link(void *arg)
{
	struct worker *w = arg;
	char out[10] = { 1 }, in[sizeof(out)];
	struct tr_ranks g;

	w->g.timeout_ms = WAIT_MS;
	w->rc = tr_ranks_link(&g, &w->g, w->leaves % 2 ? 1e-300 : 0, w->leaves % 2 ? 0 : 1e300,
			      &w->err);
	if (w->rc == 0)
		w->rc = (w->leaves / 2 ? exchange_over_link : messages_over_link)(w, &g, out, in,
										  sizeof(out));
	tr_ranks_free(&g);
	return NULL;
}

TEST(a_link_that_is_too_slow_ends_the_ranks_at_the_deadline_and_says_so)
{
	for (int kind = 0; kind < 4; kind++) {
		struct worker w[2] = { { .leaves = kind }, { .leaves = kind } };

		work_together(w, 2, use_slow_link);
		CHECK_INT(w[0].rc, TR_ELOST);
		CHECK_INT(w[1].rc, TR_ELOST);
		CHECK(strstr(w[0].err.msg, "over the link of link-gbps and link-us") != NULL);
		CHECK(strstr(w[1].err.msg, "over the link of link-gbps and link-us") != NULL);
	}
}

static void *leave_or_wait(void *arg)
{
	struct worker *w = arg;
	uint64_t x = 1;

	w->g.timeout_ms = 50;
	if (w->g.rank)
		w->rc = tr_allreduce(&w->g, &x, 1, TR_SUM, &w->err);
	return NULL;
}

TEST(ranks_that_wait_for_one_that_does_not_come_end_at_the_deadline)
{
	struct worker w[3] = { { .rc = 0 } };

	work_together(w, 3, leave_or_wait);
	CHECK_INT(w[1].rc, TR_ELOST);
	CHECK_INT(w[2].rc, TR_ELOST);
}
