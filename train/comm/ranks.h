/* SPDX-License-Identifier: Apache-2.0 */
/* A group of ranks, and what they do together. A back end has one operation, an exchange, and a
 * deadline for it. The others are made of exchanges here, so they are equal over MPI and threads.
 * All calls are [collective]. After a failure the group is not used any more. */
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
	int timeout_ms;
	/* Sends out[r] to rank r and receives in[r] from it. Both sides know the sizes; none of
	 * the pieces of `in` overlaps another or one of `out`. ELOST: a rank has failed, or did not
	 * take part within the time; err->rank is that rank, if it is known. */
	int (*exchange)(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			int timeout_ms, struct tr_error *err);
	void (*free)(void *arg);
	void *arg;
};
/* A group of this process alone. */
void tr_ranks_alone(struct tr_ranks *g);
void tr_ranks_free(struct tr_ranks *g);

int tr_exchange(const struct tr_ranks *g, const struct tr_piece *out, const struct tr_piece *in,
		struct tr_error *err);
/* Collects `bytes` bytes of each rank in `all`, in order of ranks. */
int tr_allgather(const struct tr_ranks *g, const void *mine, void *all, size_t bytes,
		 struct tr_error *err);
enum tr_op { TR_SUM, TR_MAX, TR_XOR };
/* Reduces n numbers over all ranks, in place. Sums are modulo 2^64. */
int tr_allreduce(const struct tr_ranks *g, uint64_t *x, size_t n, enum tr_op op,
		 struct tr_error *err);
/* Agrees on an error: if code is not 0 on some ranks, all of them return the code of the lowest of
 * these, with its message. */
int tr_agree(const struct tr_ranks *g, int code, struct tr_error *err);
#endif
