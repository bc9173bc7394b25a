/* SPDX-License-Identifier: Apache-2.0 */
/* The three exchanges of matching (match.h). deal_home.c describes the messages of the first two.
 * On a load a message of the second may begin with records of tally.c; these begin with a mark that
 * is no number of a stripe.
 *
 * The third goes from the file side to the memory side, little-endian, one record for each move:
 * u32 tensor | witness << 31, u32 round, u64 image, u64 seg_lo, u64 ctl, box; the members of struct
 * shf_serve. */
#include "match.h"
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "deal_home.h"
#include "err.h"
#include "work.h"
#include "work_file_side.h"

#define SERVE_HEAD 32                   /* bytes of a record before its box */

/* Writes, for each memory-side rank, the places of its moves in this rank's image. A rank sends
 * itself no record of moves that it reads for itself, nor of moves that it writes without staging:
 * it has these moves already. */
static void pack_memory_side(const struct shf_match *m, uint32_t self, const struct shf_work *w,
                             struct shf_buf *out)
{
	for (size_t i = 0; i < w->segs_n; i++) {
		const struct shf_seg *g = &w->segs[i];

		for (uint32_t k = 0; k < g->moves_n; k++) {
			const struct shf_seg_move *v = &w->moves[g->first_move + k];
			uint8_t *p;

			if (v->rank == self && (m->way == SHF_LOAD || g->round == SHF_ROUND_OWN))
				continue;
			p = shf_buf_room(&out[v->rank], SERVE_HEAD + shf_wire_box_bytes(&v->box));
			if (!p) /* the buffer notes it; the exchange returns ENOMEM */
				continue;
			shf_put32(p, v->tensor | (v->witness ? SHF_WIRE_WITNESS : 0));
			shf_put32(p + 4, g->round);
			shf_put64(p + 8, g->image);
			shf_put64(p + 16, g->lo);
			shf_put64(p + 24, shf_work_ctl(w, i));
			shf_wire_box_put(p + SERVE_HEAD, &v->box);
		}
	}
}

/* A serve while the serves are being sorted. */
struct serve_key {
	struct shf_serve s;
	size_t at;                      /* its position in the order of arrival */
};

/* Orders by round, then by the rank of the file side, then as they arrived: qsort() is not
 * stable, and the file side's order must be kept inside a round. */
static int serve_order(const void *a, const void *b)
{
	const struct serve_key *x = a, *y = b;

	if (x->s.round != y->s.round)
		return x->s.round < y->s.round ? -1 : 1;
	if (x->s.rank != y->s.rank)
		return x->s.rank < y->s.rank ? -1 : 1;
	return x->at < y->at ? -1 : x->at > y->at;
}

/* Decodes the moves that this rank serves, from all file-side ranks, and sorts them by round. Their
 * number is unknown until then, so they are collected on the heap and copied to the arena. */
static int decode_serves(const struct shf_team *team, const struct shf_layout *l,
                         const struct shf_buf *in, const size_t *in_bytes, struct shf_work *w)
{
	struct shf_cur c = { in->data, in->data, false };
	struct shf_buf keys = SHF_BUF_INIT;
	struct serve_key *all;
	size_t n = 0;
	int rc = 0;

	for (int r = 0; r < team->ranks && rc == 0; r++) {
		c.end = c.p + in_bytes[r];
		for (; c.p < c.end && rc == 0; n++) {
			struct serve_key k = { .s.rank = (uint32_t)r, .at = n };

			k.s.tensor = shf_cur_u32(&c);
			k.s.witness = k.s.tensor & SHF_WIRE_WITNESS;
			k.s.tensor &= ~SHF_WIRE_WITNESS;
			k.s.round = shf_cur_u32(&c);
			k.s.image = shf_cur_u64(&c);
			k.s.seg_lo = shf_cur_u64(&c);
			k.s.ctl = shf_cur_u64(&c);
			shf_wire_box_get(&c, l, k.s.tensor, &k.s.box);
			shf_buf_add(&keys, &k, sizeof(k));
			rc = !always(!c.bad) ? SHEAF_EBUG : keys.oom ? SHEAF_ENOMEM : 0;
		}
	}
	w->serves = rc == 0 ? shf_arena_alloc(&w->arena, n + 1, sizeof(*w->serves)) : NULL;
	if (rc == 0 && !w->serves)
		rc = SHEAF_ENOMEM;
	if (rc == 0) {
		all = (struct serve_key *)(void *)keys.data;
		if (n)
			qsort(all, n, sizeof(*all), serve_order);
		for (size_t i = 0; i < n; i++)
			w->serves[i] = all[i].s;
		w->serves_n = n;
	}
	shf_buf_release(&keys);
	return rc;
}

/* Builds the segments of this rank, sends their moves to the memory side, and hashes the plan. The
 * hash covers the messages from the homes, which decide all of the plan but one thing: which
 * segments are written without staging. That depends on local flags, so the numbers of these
 * segments are hashed too. */
static int file_side(int self, const struct shf_match *m, const struct shf_buf *in,
                     struct shf_work *w, struct shf_buf *out)
{
	uint8_t rank[4];
	int rc = shf_work_decode(m, (uint32_t)self, in, w);

	if (rc < 0)
		return rc;
	pack_memory_side(m, (uint32_t)self, w, out);
	shf_put32(rank, (uint32_t)self);
	w->hash = shf_crc64_more(shf_crc64(rank, sizeof(rank)), in->data, in->len);
	for (size_t i = 0; m->way == SHF_SAVE && i < w->segs_n; i++)
		if (w->segs[i].round == SHF_ROUND_OWN) {
			uint8_t seg[4];

			shf_put32(seg, (uint32_t)i);
			w->hash = shf_crc64_more(w->hash, seg, sizeof(seg));
		}
	/* A CRC is linear, so contributions that are equal on two ranks would cancel when the
	 * hashes of all ranks are combined by XOR. The multiplication breaks the linearity. */
	w->hash = (w->hash ^ w->hash >> 32) * UINT64_C(0x9E3779B97F4A7C15);
	w->hash ^= w->hash >> 29;
	return 0;
}

/* If rc < 0, writes the message of the failure to *err, for failures of planning that have no
 * message yet. Returns rc. */
static int said(int rc, struct sheaf_error *err)
{
	return rc < 0 ? shf_fail(err, rc, "planning: %s", shf_strerror(rc)) : 0;
}

/* Makes the first exchange: sends this rank's boxes to the homes. The messages are sorted by
 * receiver already, so they are sent from one buffer, without a buffer for each rank. If the caller
 * has made the messages before (m->tells), it also knows the size of what will arrive (m->told),
 * and the exchange needs one operation less. */
static int trade_holds(struct shf_team *team, const struct shf_match *m, int rc,
                       struct shf_buf *in, size_t *in_bytes, struct sheaf_error *err)
{
	struct shf_home_messages tells = { .to = NULL };

	if (m->tells)
		return shf_exchange_known(team, rc, m->tells->bytes.data, m->tells->to, m->told, in,
		                          in_bytes, err);
	tells.to = shf_zalloc((size_t)team->ranks, sizeof(*tells.to));
	if (rc == 0)
		rc = said(tells.to ? shf_holds_pack(m, (uint32_t)team->ranks, &tells)
		                   : SHEAF_ENOMEM, err);
	rc = shf_exchange_packed(team, rc, tells.bytes.data, tells.to, in, in_bytes, err);
	shf_buf_release(&tells.bytes);
	shf_free(tells.to);
	return rc;
}

/* Empties the buffers that were sent in the last exchange, for the next one. */
static void empty_out(struct shf_matching *g)
{
	for (int r = 0; g->out && r < g->ranks; r++)
		shf_buf_release(&g->out[r]);
}

void shf_matching_release(struct shf_matching *g)
{
	shf_bufs_free(g->out, g->ranks);
	shf_free(g->in_bytes);
	shf_buf_release(&g->in);
	*g = (struct shf_matching){ 0 };
}

/* Each step runs only if all steps before it succeeded on every rank, which the exchange itself
 * agrees on. So all ranks make the same calls, and no rank waits for one that has given up. */
int shf_match_deal(struct shf_team *team, const struct shf_match *m, int rc,
                   struct shf_matching *g, struct shf_work *w, struct sheaf_error *err)
{
	*g = (struct shf_matching){ .ranks = team->ranks,
		.out = shf_zalloc((size_t)team->ranks, sizeof(*g->out)),
		.in_bytes = shf_zalloc((size_t)team->ranks, sizeof(*g->in_bytes)) };
	*w = (struct shf_work){ 0 };
	if (rc == 0)
		rc = said(g->out && g->in_bytes ? 0 : SHEAF_ENOMEM, err);
	rc = trade_holds(team, m, rc, &g->in, g->in_bytes, err);
	if (rc < 0)
		return rc;
	if (m->tally)
		shf_tensor_counts_pack(m->tally, g->out);
	rc = shf_home_deal_messages(team, m, &g->in, g->in_bytes, g->out, err);
	rc = shf_exchange(team, rc, g->out, &g->in, g->in_bytes, err);
	empty_out(g);
	if (rc == 0 && m->tally)
		rc = said(shf_tensor_counts_unpack(m->tally, &g->in, g->in_bytes), err);
	return rc == 0 ? said(file_side(team->rank, m, &g->in, w, g->out), err) : rc;
}

/* The numbers of rounds are set to the maximum over all ranks, because a round is collective: a
 * rank with fewer segments still takes part in the rounds of others. */
int shf_match_send(struct shf_team *team, int rc, struct shf_matching *g, struct shf_work *w,
                   uint64_t *x, size_t n, struct sheaf_error *err)
{
	uint64_t most[3 + SHF_MATCH_MORE] = { w->rounds, w->net_rounds, w->own_bytes };

	if (n > 0)
		memcpy(most + 3, x, n * sizeof(*x));
	rc = shf_exchange_max(team, rc, g->out, &g->in, g->in_bytes, most, 3 + n, err);
	empty_out(g);
	if (rc < 0)
		return rc;
	w->rounds = (uint32_t)most[0];
	w->net_rounds = (uint32_t)most[1];
	w->own_most = most[2];
	if (n > 0)
		memcpy(x, most + 3, n * sizeof(*x));
	return 0;
}

int shf_match_receive(const struct shf_team *team, const struct shf_match *m,
                      const struct shf_matching *g, struct shf_work *w, struct sheaf_error *err)
{
	return said(decode_serves(team, m->layout, &g->in, g->in_bytes, w), err);
}

/* On a save the hashes of all ranks are combined, so that a later save can compare one number
 * instead of planning again. */
int shf_match(struct shf_team *team, const struct shf_match *m, int rc, struct shf_work *w,
              struct sheaf_error *err)
{
	struct shf_matching g;
	uint64_t hash;

	rc = shf_match_deal(team, m, rc, &g, w, err);
	rc = shf_match_send(team, rc, &g, w, NULL, 0, err);
	if (rc == 0)
		rc = shf_agree(team, shf_match_receive(team, m, &g, w, err), err);
	if (rc == 0) {
		hash = w->hash; /* only saves compare plans, so a load needs no reduction */
		if (m->way == SHF_SAVE)
			rc = shf_allreduce(team, &hash, 1, SHEAF_XOR, err);
		w->hash = hash ^ shf_layout_hash(m->layout);
	}
	if (rc < 0)
		shf_work_release(w);
	shf_matching_release(&g);
	return rc;
}
