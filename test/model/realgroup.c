/* SPDX-License-Identifier: Apache-2.0 */
#include "realgroup.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "call.h"

#define PART (UINT64_C(4) << 20) /* maximum number of bytes that a rank sends at once */

struct realgroup {
	int ranks;
	atomic_int broken;
	atomic_uint arrived; /* counts arrivals of all ranks: barrier n is complete at n * ranks */
	size_t out_bytes[RANKS_MAX][RANKS_MAX];
	unsigned char part[RANKS_MAX][PART];
};
struct member { /* of one process */
	struct realgroup *g;
	int rank;
	unsigned barriers;
};

struct realgroup *realgroup_new(int ranks)
{
	struct realgroup *g =
	    mmap(NULL, sizeof(*g), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (g == MAP_FAILED)
		abort();
	g->ranks = ranks;
	return g;
}

void realgroup_free(struct realgroup *g)
{
	munmap(g, sizeof(*g));
}

void realgroup_break(struct realgroup *g)
{
	atomic_store(&g->broken, 1);
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits until all ranks have arrived. */
static int barrier(struct member *m, int timeout_ms)
{
	unsigned want = ++m->barriers * (unsigned)m->g->ranks;
	int64_t until = now_ms() + timeout_ms;

	atomic_fetch_add(&m->g->arrived, 1);
	for (int i = 0; atomic_load(&m->g->arrived) < want; i++) {
		if (atomic_load(&m->g->broken) || (i % 64 == 63 && now_ms() > until))
			return -1;
		sched_yield();
	}
	return atomic_load(&m->g->broken) ? -1 : 0;
}

static int too_long(struct sheaf_error *err, size_t bytes)
{
	snprintf(err->msg, sizeof(err->msg), "%zu bytes of one rank, of %zu at most", bytes,
	         (size_t)PART);
	return -1;
}

static int allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
		     struct sheaf_error *err)
{
	struct member *m = arg;
	struct realgroup *g = m->g;

	if (bytes > PART)
		return too_long(err, bytes);
	memcpy(g->part[m->rank], mine, bytes);
	if (barrier(m, timeout_ms))
		return -1;
	for (int r = 0; r < g->ranks; r++)
		memcpy((unsigned char *)all + (size_t)r * bytes, g->part[r], bytes);
	return barrier(m, timeout_ms);
}

static int alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
		     const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct member *m = arg;
	struct realgroup *g = m->g;
	size_t all = 0, at = 0;

	for (int r = 0; r < g->ranks; r++) {
		g->out_bytes[m->rank][r] = out_bytes[r];
		all += out_bytes[r];
	}
	if (all > PART)
		return too_long(err, all);
	if (all)
		memcpy(g->part[m->rank], out, all);
	if (barrier(m, timeout_ms))
		return -1;
	for (int r = 0; r < g->ranks; r++) {
		size_t from = 0;

		for (int to = 0; to < m->rank; to++)
			from += g->out_bytes[r][to];
		if (g->out_bytes[r][m->rank] != in_bytes[r])
			return -1;
		if (in_bytes[r])
			memcpy((unsigned char *)in + at, g->part[r] + from, in_bytes[r]);
		at += in_bytes[r];
	}
	return barrier(m, timeout_ms);
}

static int allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
		     struct sheaf_error *err)
{
	struct member *m = arg;
	struct realgroup *g = m->g;

	if (n * sizeof(*x) > PART)
		return too_long(err, n * sizeof(*x));
	memcpy(g->part[m->rank], x, n * sizeof(*x));
	if (barrier(m, timeout_ms))
		return -1;
	for (size_t i = 0; i < n; i++) {
		uint64_t sum = 0, one;

		for (int r = 0; r < g->ranks; r++) {
			memcpy(&one, g->part[r] + i * sizeof(one), sizeof(one));
			sum = op == SHEAF_SUM   ? sum + one
			      : op == SHEAF_XOR ? sum ^ one
			      : one > sum       ? one
						: sum;
		}
		x[i] = sum;
	}
	return barrier(m, timeout_ms);
}

struct sheaf_group *realgroup_join(struct realgroup *g, int rank)
{
	struct member *m = g && g->ranks > 1 ? calloc(1, sizeof(*m)) : NULL;
	struct sheaf_group_ops ops = { .size = sizeof(ops),
				       .rank = rank,
				       .allgather = allgather,
				       .alltoallv = alltoallv,
				       .allreduce = allreduce,
				       .free = free,
				       .arg = m };
	struct sheaf_group *group = NULL;

	if (!m)
		return NULL;
	m->g = g;
	m->rank = rank;
	ops.ranks = g->ranks;
	if (sheaf_group_new(&group, &ops, NULL) < 0)
		abort();
	return group;
}
