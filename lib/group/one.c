/* SPDX-License-Identifier: Apache-2.0 */
/* The group of one rank, which a NULL group in sheaf.h stands for. group.c never calls the
 * operations of a group with one rank, but the table is complete, so that other code may call
 * them. */
#include "group.h"

#include <string.h>

/* With one rank, an all-gather copies the rank's own bytes. `mine` and `all` may be the same
 * buffer, hence memmove(). */
static int one_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			 struct sheaf_error *err)
{
	(void)arg;
	(void)timeout_ms, (void)err;
	if (bytes > 0)
		memmove(all, mine, bytes);
	return 0;
}

/* The only rank sends to itself, so both sizes must be equal. */
static int one_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
			 const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	(void)arg;
	(void)timeout_ms, (void)err;
	if (out_bytes[0] != in_bytes[0])
		return -1;
	if (out_bytes[0] > 0)
		memmove(in, out, out_bytes[0]);
	return 0;
}

/* A reduction over one rank changes nothing; an unknown operation fails as on a larger group. */
static int one_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			 struct sheaf_error *err)
{
	(void)arg;
	(void)x;
	(void)n;
	(void)timeout_ms, (void)err;
	return op >= SHEAF_SUM && op <= SHEAF_XOR ? 0 : -1;
}

int shf_group_one(struct sheaf_group **group)
{
	const struct sheaf_group_ops ops = {
		.size = sizeof(ops),
		.ranks = 1,
		.allgather = one_allgather,
		.alltoallv = one_alltoallv,
		.allreduce = one_allreduce,
	};

	return shf_group_new(group, &ops, 0);
}
