/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the ranks of a node are about to allocate at the same moment. Each rank asks the
 * machine how much is left before any of them allocates, and the ranks exchange their answers in an
 * allgather that the caller makes anyway. If what all of them want does not fit together, every one
 * returns ENOMEM, and the kernel does not have to kill a process. */
#ifndef SHF_GROWTH_H
#define SHF_GROWTH_H
#include <stddef.h>
#include "sheaf.h"
#include "sys.h"

/* How much is allocated for so many bytes: whole pages, or whole large pages (2 MiB) from half a
 * megabyte on. */
static inline uint64_t shf_growth_bytes(uint64_t bytes)
{
	uint64_t huge = UINT64_C(2) << 20, unit = bytes > huge / 4 ? huge : 4096;

	return bytes > UINT64_MAX - unit ? bytes : (bytes + unit - 1) / unit * unit;
}

struct sheaf_run;
struct shf_growth {             /* what a rank tells the others */
	int32_t node, rooms_n;
	uint64_t bytes, freed;          /* that it will allocate, and that it frees before that */
	struct shf_room rooms[SHF_ROOMS];       /* the bounds it is under; none if bytes is 0 */
};
/* Fills in what this rank tells the others. [local] */
void shf_growth_look(const struct sheaf_run *run, uint64_t bytes, uint64_t freed,
                     struct shf_growth *mine);
/* all: an array by rank of structs of `stride` bytes that begin with a struct shf_growth. ENOMEM if
 * the ranks of the node together take more than is left under a bound. All ranks of a node get the
 * same answer. [local] */
int  shf_growth_check(const void *all, size_t stride, int ranks, int node,
                      struct sheaf_error *err);
#endif
