/* SPDX-License-Identifier: Apache-2.0 */
/* The group of libsheaf: its operations call those of the ranks of the trainer. */
#include "bindstore.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns the ranks, with the deadline of this operation. */
static struct tr_ranks within(const void *arg, int timeout_ms)
{
	const struct tr_store *s = arg;
	struct tr_ranks g = *s->ranks;

	g.timeout_ms = timeout_ms;
	return g;
}

/* Returns whether a rank was lost. Operations of the group would then wait for that rank until
 * their deadline, so they fail at once. */
static int is_lost(const void *arg)
{
	return ((const struct tr_store *)arg)->lost;
}

/* Passes an error of the ranks on to libsheaf. Returns its code. */
static int pass_on(struct sheaf_error *err, const struct tr_error *e, int code)
{
	if (code < 0) {
		snprintf(err->msg, sizeof(err->msg), "%s", e->msg);
		err->rank = e->rank;
	}
	return code;
}

static int group_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			   struct sheaf_error *err)
{
	struct tr_ranks g = within(arg, timeout_ms);
	struct tr_error e = { .rank = -1 };

	if (is_lost(arg))
		return SHEAF_ELOST;
	return pass_on(err, &e, tr_allgather(&g, mine, all, bytes, &e));
}

static int group_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
			   const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct tr_ranks g = within(arg, timeout_ms);
	struct tr_error e = { .rank = -1 };
	size_t sent = 0, received = 0;
	struct tr_piece *p;
	int rc;

	if (is_lost(arg))
		return SHEAF_ELOST;
	p = calloc((size_t)g.n * 2, sizeof(*p));
	if (!p) {
		tr_fail(&e, TR_ENOMEM, "no memory for the pieces of %d ranks", g.n);
		return pass_on(err, &e, tr_ranks_abandon(&g, &e));
	}
	for (int r = 0; r < g.n; r++) {
		p[r] = (struct tr_piece){ (char *)(uintptr_t)out + sent, out_bytes[r] };
		p[g.n + r] = (struct tr_piece){ (char *)in + received, in_bytes[r] };
		sent += out_bytes[r];
		received += in_bytes[r];
	}
	rc = pass_on(err, &e, tr_exchange(&g, p, p + g.n, &e));
	free(p);
	return rc;
}

static int group_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			   struct sheaf_error *err)
{
	struct tr_ranks g = within(arg, timeout_ms);
	struct tr_error e = { .rank = -1 };

	if (is_lost(arg))
		return SHEAF_ELOST;
	return pass_on(err, &e, tr_allreduce(&g, x, n, op == SHEAF_SUM ? TR_SUM :
					     op == SHEAF_MAX ? TR_MAX : TR_XOR, &e));
}

int tr_store_group(struct tr_store *s, struct sheaf_error *err)
{
	struct sheaf_group_ops ops = { .size = sizeof(ops), .rank = s->ranks->rank,
		.ranks = s->ranks->n, .allgather = group_allgather,
		.alltoallv = group_alltoallv, .allreduce = group_allreduce, .arg = s };

	return sheaf_group_new(&s->group, &ops, err);
}
