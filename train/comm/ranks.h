/* SPDX-License-Identifier: Apache-2.0 */
/* A group of ranks and its operations. A back end, which is MPI or the threads of one process, has
 * the exchange, in which all ranks take part, and messages from one rank to another. All other
 * operations are made of exchanges, so they do the same on every back end. They are [collective],
 * except for those of messages. After a failure the group must not be used any more, nor its
 * sub-groups, nor the group that it is part of. */
#ifndef RANKS_H
#define RANKS_H
#include <stddef.h>
#include <stdint.h>

#include "tr_error.h"

struct tr_piece {
	void *at;
	size_t bytes;
};
struct tr_ranks {
	int rank, n;
	int all_rank;                   /* of this rank in the group of all ranks */
	int timeout_ms;
	/* Sends out[r] to rank r and receives in[r] from it, for each r. Both ranks must give the
	 * same size. No piece of `in` may overlap another piece. ELOST: a rank has failed, or did
	 * not take part in time; err->rank is that rank, if it is known. */
	int (*exchange)(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			int timeout_ms, struct tr_error *err);
	/* These do what tr_exchange_begin, _poll and _end say. timeout_ms 0: progress only polls.
	 * It sets *done, and releases the flow then and after a failure. */
	int (*begin)(void *arg, const struct tr_piece *out, const struct tr_piece *in,
		     void **flow, struct tr_error *err);
	int (*progress)(void *arg, void *flow, int timeout_ms, int *done, struct tr_error *err);
	/* These do what tr_send, tr_receive and tr_sent say. */
	int (*send)(void *arg, int to, int channel, const void *at, size_t bytes,
		    struct tr_error *err);
	int (*receive)(void *arg, int from, int channel, const struct tr_piece *in, size_t *got,
		       int timeout_ms, struct tr_error *err);
	int (*sent)(void *arg, int most, int timeout_ms, struct tr_error *err);
	/* Makes `sub`, whose rank i is rank first + i * stride of this group. */
	int (*split)(void *arg, struct tr_ranks *sub, int first, int stride, int n,
		     struct tr_error *err);
	/* Ends the exchanges of all ranks, now and later; see tr_ranks_abandon. */
	void (*abandon)(void *arg, const struct tr_error *why);
	void (*free)(void *arg);
	void *arg;
};
/* A group of only this process. */
void tr_ranks_alone(struct tr_ranks *g);
void tr_ranks_free(struct tr_ranks *g);
/* Makes the sub-group of n ranks first, first + stride, ... of g. Each rank of g calls this for a
 * sub-group that it is in, all with the same n. Free sub-groups before g. */
int tr_ranks_split(const struct tr_ranks *g, struct tr_ranks *sub, int first, int stride, int n,
		   struct tr_error *err);

/* Ends the exchanges of all ranks, now and later, in all groups. They return ELOST, and name this
 * rank and the message of err. Call it when this rank cannot take part in an exchange in which the
 * others wait for it. Returns ELOST. [local] */
int tr_ranks_abandon(const struct tr_ranks *g, struct tr_error *err);

int tr_exchange(const struct tr_ranks *g, const struct tr_piece *out, const struct tr_piece *in,
		struct tr_error *err);
/* Begins an exchange that goes on in the background. Its pieces must not change, and the arrays of
 * pieces not either, until it is complete. All ranks of the group begin the same exchanges of this
 * kind in the same order, and no others while one of them is under way. They may be polled and
 * ended in any order. *flow stands for the exchange; NULL: it is complete. [local] */
int tr_exchange_begin(const struct tr_ranks *g, const struct tr_piece *out,
		      const struct tr_piece *in, void **flow, struct tr_error *err);
/* Continues the exchange without waiting. Sets *flow to NULL when it is complete, and after an
 * error. [local] */
int tr_exchange_poll(const struct tr_ranks *g, void **flow, struct tr_error *err);
/* Waits until the exchange is complete, and sets *flow to NULL. */
int tr_exchange_end(const struct tr_ranks *g, void **flow, struct tr_error *err);
/* Collects `bytes` bytes of each rank in `all`, in order of ranks. */
int tr_allgather(const struct tr_ranks *g, const void *mine, void *all, size_t bytes,
		 struct tr_error *err);

/* Messages go through channels: those of one channel from one rank to another are received in the
 * order in which they were sent. A program must not depend on how many messages can be under way.
 * Channels are numbered from 0. */
enum { TR_CHANNELS = 4096 };
/* Sends bytes to another rank. They are copied, so they may change after the call, which does not
 * wait for the receiver. There may be none. [local] */
int tr_send(const struct tr_ranks *g, int to, int channel, const void *at, size_t bytes,
	    struct tr_error *err);
/* Waits for the next message of a channel from another rank. It has at most `bytes` bytes; *got
 * receives how many. ELOST: as of an exchange. [local] */
int tr_receive(const struct tr_ranks *g, int from, int channel, void *at, size_t bytes,
	       size_t *got, struct tr_error *err);
/* Waits until at most `most` messages that this rank has sent in this group are still under way. A
 * back end may deliver a message before the receiver asks for it; then it is not under way any
 * more. [local] */
int tr_sent(const struct tr_ranks *g, int most, struct tr_error *err);

enum tr_op { TR_SUM, TR_MAX, TR_XOR };
/* Reduces n numbers over all ranks, in place. Sums are modulo 2^64. */
int tr_allreduce(const struct tr_ranks *g, uint64_t *x, size_t n, enum tr_op op,
		 struct tr_error *err);
/* Returns the same code on all ranks: 0 if `code` is 0 on each of them, otherwise the code and the
 * message of the lowest rank where it is not. err->rank is its number among all ranks, also if this
 * is a sub-group. */
int tr_agree(const struct tr_ranks *g, int code, struct tr_error *err);
/* Does what tr_agree does, and sets *bits to the bitwise or of the *bits of all ranks. */
int tr_agree_bits(const struct tr_ranks *g, int code, uint64_t *bits, struct tr_error *err);
#endif
