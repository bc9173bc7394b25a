/* SPDX-License-Identifier: Apache-2.0 */
/* Cells: cut a box at every change of the set of boxes that cover it. Recursive sweep, one
 * dimension after the other, so ZeRO and FSDP ranges over thousands of ranks cost O(n log n),
 * not a grid. */
#ifndef SHF_COVER_CELLS_H
#define SHF_COVER_CELLS_H
#include "box.h"
#include "mem.h"

/* A box in which the set of covering boxes is constant. */
struct shf_cell {
	struct shf_box box;
	const uint32_t *set;            /* ascending indices of the boxes that cover it; in arena */
	uint32_t set_n;                 /* 0: a gap */
};
/* Cuts `inside` into disjoint cells, in the order of the sweep (dimension 0 outermost). Neighbours
 * along dimension 0 with equal sets are merged. boxes may reach beyond `inside`. *cells is in the
 * arena. Returns 0 or SHEAF_ENOMEM. */
int shf_cells(struct shf_arena *arena, const struct shf_box *inside, const struct shf_box *boxes,
              size_t n, struct shf_cell **cells, size_t *cells_n);
#endif
