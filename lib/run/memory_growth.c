/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that there is memory for what the ranks of a node allocate together (memory_growth.h). */
#include "memory_growth.h"
#include "err.h"
#include "run.h"

/* Reads the limits only if this rank allocates anything, as that costs system calls. */
void shf_growth_look(const struct sheaf_run *run, uint64_t bytes, uint64_t freed,
                     struct shf_growth *mine)
{
	const struct shf_sys *sys = run->sys;

	*mine = (struct shf_growth){ .node = run->place.node, .bytes = bytes, .freed = freed };
	if (bytes)
		mine->rooms_n = shf_sys_memory_limits(sys, mine->rooms);
}

/* The array that shf_growth_check() was given, and the node it checks. */
struct adding {
	const uint8_t *all;
	size_t stride;
	int ranks, node;
};

/* Returns the struct that a rank has sent. */
static const struct shf_growth *growth_of(const struct adding *a, int rank)
{
	const void *at = a->all + (size_t)rank * a->stride;

	return at;
}

/* Returns the sum of what the ranks of the node that are under the limit `of` will allocate, minus
 * what they free before that. *left is the least that any of them saw left under it. Ranks in
 * different containers are under different control groups, so a rank counts only under the limits
 * that it has sent. */
static uint64_t taken_of(const struct adding *a, uint64_t of, uint64_t *left)
{
	uint64_t taken = 0, freed = 0;

	for (int r = 0; r < a->ranks; r++) {
		const struct shf_growth *g = growth_of(a, r);

		if (g->node != a->node)
			continue;
		for (int i = 0; i < g->rooms_n && i < SHF_MEMORY_LIMITS; i++) {
			if (g->rooms[i].of != of)
				continue;
			taken = taken + g->bytes < taken ? UINT64_MAX : taken + g->bytes;
			freed += g->freed;
			*left = g->rooms[i].left < *left ? g->rooms[i].left : *left;
		}
	}
	return taken > freed ? taken - freed : 0;
}

/* Checks each limit separately. A limit is the machine's memory or that of a control group; ranks
 * under the same limit send the same number for it (shf_memory_limit.of). */
int shf_growth_check(const void *all, size_t stride, int ranks, int node,
                     struct sheaf_error *err)
{
	struct adding a = { all, stride, ranks, node };

	for (int r = 0; r < ranks; r++) {
		const struct shf_growth *g = growth_of(&a, r);

		for (int i = 0; g->node == node && i < g->rooms_n && i < SHF_MEMORY_LIMITS; i++) {
			uint64_t left = UINT64_MAX, taken = taken_of(&a, g->rooms[i].of, &left);

			if (taken > left)
				return shf_fail(err, SHEAF_ENOMEM, "the ranks of a node need %llu "
				                "MiB more memory for staging buffers, and the "
				                "machine or a control group has %llu MiB left: "
				                "lower opts.staging.bytes_max, or give the job "
				                "more memory",
				                (unsigned long long)(taken >> 20),
				                (unsigned long long)(left >> 20));
		}
	}
	return 0;
}
