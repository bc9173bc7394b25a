/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that there is enough memory for what the ranks of a node are about to allocate at the same
 * time. Each rank reads how much memory the machine and its control group have left, and the ranks
 * exchange these numbers in an allgather that the caller makes anyway. If their allocations
 * together do not fit, every rank returns ENOMEM. Otherwise the kernel might have to kill a
 * process. */
#ifndef SHF_MEMORY_GROWTH_H
#define SHF_MEMORY_GROWTH_H
#include <stddef.h>
#include "sheaf.h"
#include "sys.h"

/* Returns `bytes` rounded up to whole pages, as it will be allocated: pages of 4 KiB, or large
 * pages of 2 MiB if it is more than 512 KiB. */
static inline uint64_t shf_growth_bytes(uint64_t bytes)
{
	uint64_t huge = UINT64_C(2) << 20, unit = bytes > huge / 4 ? huge : 4096;

	return bytes > UINT64_MAX - unit ? bytes : (bytes + unit - 1) / unit * unit;
}

struct sheaf_run;
struct shf_growth {             /* what a rank sends to the others */
	int32_t node, rooms_n;
	uint64_t bytes, freed;          /* the rank will allocate `bytes` bytes, after freeing
	                                 * `freed` bytes */
	struct shf_memory_limit rooms[SHF_MEMORY_LIMITS]; /* memory limits that apply to the rank,
	                                                   * rooms_n of them; rooms_n is 0 if bytes
	                                                   * is 0 */
};
/* Fills *mine with what this rank sends to the others. [local] */
void shf_growth_look(const struct sheaf_run *run, uint64_t bytes, uint64_t freed,
                     struct shf_growth *mine);
/* all: an array by rank of structs of `stride` bytes that begin with a struct shf_growth. ENOMEM if
 * the ranks of `node` together allocate more than is left under one of their limits. The result is
 * the same on all ranks of a node. [local] */
int  shf_growth_check(const void *all, size_t stride, int ranks, int node,
                      struct sheaf_error *err);
#endif
