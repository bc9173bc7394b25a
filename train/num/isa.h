/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of one instruction set. All give the same bits, except those for pairs of bf16. */
#ifndef ISA_H
#define ISA_H
#include "gemm.h"
#include "rowops.h"
#include "tr_error.h"

struct tr_isa {
	const char *name;
	int64_t tile_rows, tile_columns;
	tr_tile_fn *tile;
	/* For products of two matrices of bf16, with cells that are pairs (gemm.h). It has bits of
	 * its own. NULL: these are widened for `tile`. */
	tr_tile_fn *tile_bf16;
	struct tr_rowops row;
	struct tr_itemops items[2];     /* by enum tr_type */
};
/* Sets *isa to the kernels of that name, or for "auto" to the fastest that the CPU has and whose
 * bits are those of all others. EINVAL if the CPU or the build lacks them. */
int tr_isa_find(const struct tr_isa **isa, const char *name, struct tr_error *err);
/* Compares the kernels with the portable ones on products and on rows. Products by tile_bf16 may be
 * as far from those of the portable kernel as rounding takes them, and must have the same bits
 * wherever a tile has their elements. Takes a few milliseconds.
 * work  TR_GEMM_WORK floats. EBUG: something differs. */
int tr_isa_check(const struct tr_isa *isa, float *work, struct tr_error *err);
#endif
