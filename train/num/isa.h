/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of one instruction set. All give the same bits. */
#ifndef ISA_H
#define ISA_H
#include "gemm.h"
#include "rowops.h"
#include "tr_error.h"

struct tr_isa {
	const char *name;
	int64_t tile_rows, tile_columns;
	tr_tile_fn *tile;
	struct tr_rowops row;
	struct tr_itemops items[2];     /* by enum tr_type */
};
/* Sets *isa to the kernels of that name, or for "auto" to the fastest that the CPU has. EINVAL if
 * the CPU or the build lacks them. */
int tr_isa_find(const struct tr_isa **isa, const char *name, struct tr_error *err);
/* Compares the kernels with the portable ones on a product and on rows. Takes a few milliseconds.
 * work  TR_GEMM_WORK floats. EBUG: some bits differ. */
int tr_isa_check(const struct tr_isa *isa, float *work, struct tr_error *err);
#endif
