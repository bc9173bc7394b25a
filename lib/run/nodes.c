/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out which ranks share memory. Host names do not show it: two containers on one host may
 * have different names and share memory, or the same name and not share memory. So the ranks try to
 * share memory. The lowest rank of a set of candidates, their leader, offers memory with a random
 * token in it; the others connect, map the memory and look for the token.
 *
 * Candidates are ranks with the same boot id and the same hint from the caller. A rank that does
 * not see the token of its leader becomes a candidate in the next round, in a set without that
 * leader. Each round places at least one rank, the leader, so the rounds end. */
#include "nodes.h"
#include <string.h>
#include "crc64.h"
#include "err.h"

struct hello {                  /* what each rank sends to all others */
	uint64_t machine;               /* hash of the boot id */
	int32_t hint, node;             /* hint: the caller's (ops.node of the group); node: the
	                                 * leader of the rank's node, -1: not placed yet */
};
/* One round, as this rank sees it. leader: the lowest rank of its set of candidates, -1 if this
 * rank is placed already. A leader offers the memory shm on the socket `offer`; the token names the
 * socket and lies in the memory. The other ranks of the set have a connection to it. */
struct round {
	struct shf_shm shm;
	uint8_t token[16];
	int offer, connection, leader;
};

void shf_nodes_release(struct shf_nodes *p)
{
	shf_free(p->nodes);
	*p = (struct shf_nodes){ 0 };
}

/* Returns whether two ranks are both not placed yet and may be on the same node. */
static bool are_candidates(const struct hello *a, const struct hello *b)
{
	return a->node < 0 && b->node < 0 && a->machine == b->machine && a->hint == b->hint;
}

/* Offers memory that holds this leader's token; a rank that reads the token there shares memory
 * with the leader. Returns 0 or a negative errno. */
static int offer_token(const struct shf_sys *sys, struct round *r)
{
	int rc = shf_sys_shm_new(sys, &r->shm, 4096, true);

	if (rc < 0)
		return rc;
	rc = shf_sys_shm_offer(sys, r->token, &r->offer);
	if (rc == 0)
		memcpy(r->shm.base, r->token, sizeof(r->token));
	return rc;
}

/* Maps the memory that the leader serves and returns whether the leader's token is in it. The token
 * may be missing, because any process of the machine can create a socket of that name and serve
 * other memory. */
static bool take_offer(const struct shf_sys *sys, struct round *r, const uint8_t token[16],
                       int timeout)
{
	struct shf_shm got = { .fd = -1 };
	bool same;

	if (shf_sys_shm_take(sys, r->connection, &got, timeout) < 0)
		return false;
	same = got.bytes >= 16 && memcmp(got.base, token, 16) == 0;
	shf_sys_shm_free(sys, &got);
	return same;
}

/* Makes one round: leaders offer memory, the others connect, the leaders serve the memory, and the
 * others map it. Sets *joined to whether this rank shares memory with its leader.
 *
 * All ranks agree after each of these, because serving and mapping wait for the other side. A
 * leader serves as many ranks as have announced a connection to it, and a rank maps only after
 * every leader has served. */
static int share_with_leaders(struct shf_team *team, const struct shf_sys *sys, struct round *r,
                              bool *joined, struct sheaf_error *err)
{
	uint8_t *tokens = shf_zalloc((size_t)team->ranks, 16);
	int32_t *reached = shf_zalloc((size_t)team->ranks, sizeof(*reached)), mine = -1;
	int rc = tokens && reached ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for nodes");
	int serve = 0;

	*joined = false;
	if (rc == 0 && r->leader == team->rank)
		(void)offer_token(sys, r); /* if that fails the leader gets a node of its own */
	rc = shf_agree(team, rc, err);
	if (rc == 0)
		rc = shf_allgather(team, r->token, tokens, 16, err);
	if (rc == 0 && r->leader >= 0 && r->leader != team->rank &&
	    shf_sys_shm_connect(sys, tokens + 16 * r->leader, &r->connection) == 0)
		mine = r->leader;
	if (rc == 0)
		rc = shf_allgather(team, &mine, reached, sizeof(mine), err);
	for (int k = 0; rc == 0 && k < team->ranks; k++)
		serve += reached[k] == team->rank;
	if (rc == 0 && serve > 0)
		(void)shf_sys_shm_serve(sys, r->offer, &r->shm, serve, team->timeout_ms);
	if (rc == 0)
		rc = shf_agree(team, 0, err); /* every leader has served: taking need not wait */
	if (rc == 0 && mine >= 0)
		*joined = take_offer(sys, r, tokens + 16 * mine, team->timeout_ms);
	shf_free(tokens);
	shf_free(reached);
	return rc;
}

/* Places the candidates of each set that share memory with their leader. Sets *more to whether some
 * rank is not placed yet. */
static int place_round(struct shf_team *team, const struct shf_sys *sys, struct hello *all,
                       int32_t *next, bool *more, struct sheaf_error *err)
{
	struct round r = { .shm = { .fd = -1 }, .offer = -1, .connection = -1, .leader = -1 };
	struct hello *me = &all[team->rank];
	int32_t mine;
	bool joined = false;
	int rc;

	for (int k = 0; k < team->ranks && r.leader < 0; k++)
		if (are_candidates(&all[k], me))
			r.leader = k;
	rc = share_with_leaders(team, sys, &r, &joined, err);
	/* A rank that is placed keeps its node; else its node is named by its leader's rank. */
	mine = me->node >= 0 ? me->node : r.leader == team->rank || joined ? r.leader : -1;
	shf_sys_shm_drop(sys, r.offer);
	shf_sys_shm_drop(sys, r.connection);
	if (r.shm.base)
		shf_sys_shm_free(sys, &r.shm);
	if (rc == 0)
		rc = shf_allgather(team, &mine, next, sizeof(mine), err);
	*more = false;
	for (int k = 0; k < team->ranks && rc == 0; k++) {
		all[k].node = next[k];
		*more |= next[k] < 0;
	}
	return rc;
}

/* Turns the leaders' ranks into numbers of nodes, counted from 0 in the order of their lowest
 * ranks, so that all ranks compute the same numbers. A leader is the lowest rank of its node, so it
 * is numbered before the other ranks look up its number. */
static void number_nodes(struct shf_team *team, const struct hello *all, struct shf_nodes *p)
{
	int32_t n = 0;

	for (int k = 0; k < team->ranks; k++)
		p->nodes[k] = all[k].node == k ? n++ : p->nodes[all[k].node];
	p->nodes_n = n;
	p->node = p->nodes[team->rank];
	p->node_ranks = 0;
	p->node_first = all[team->rank].node;
	for (int k = 0; k < team->ranks; k++)
		p->node_ranks += p->nodes[k] == p->node;
}

/* Makes rounds until every rank has a node. Memory is allocated, and agreed on, before the first
 * exchange. [collective] */
int shf_nodes_find(struct shf_team *team, const struct shf_sys *sys, struct shf_nodes *place,
                   struct sheaf_error *err)
{
	size_t ranks = (size_t)team->ranks;
	struct hello *all = shf_zalloc(ranks, sizeof(*all)), me = { .node = -1 };
	int32_t *next = shf_zalloc(ranks, sizeof(*next));
	struct shf_owner self;
	bool more = true;
	int rc = 0;

	place->nodes = shf_zalloc(ranks, sizeof(*place->nodes));
	if (!all || !next || !place->nodes)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for %zu ranks", ranks);
	else if (shf_sys_owner(sys, &self) < 0)
		rc = shf_fail(err, SHEAF_EIO, "this process cannot be identified: "
		              "/proc/sys/kernel/random/boot_id or its pid cannot be read; mount "
		              "/proc");
	rc = shf_agree(team, rc, err);
	if (rc == 0) {
		me.machine = shf_crc64(self.boot, strlen(self.boot));
		me.hint = team->group->ops.node;
		rc = shf_allgather(team, &me, all, sizeof(me), err);
	}
	while (rc == 0 && more)
		rc = place_round(team, sys, all, next, &more, err);
	if (rc == 0)
		number_nodes(team, all, place);
	else
		shf_nodes_release(place);
	shf_free(all);
	shf_free(next);
	return rc;
}
