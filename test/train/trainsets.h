/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction sets of this machine, and numbers for their kernels. */
#ifndef TRAINSETS_H
#define TRAINSETS_H
#include "t.h"

#include "isa.h"
#include "philox.h"

/* Drawn from [-1, 1). */
static inline void draw(float *x, int64_t n, uint64_t of)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t r[4];

		tr_random(7, TR_RANDOM_INIT, of, (uint64_t)i, r);
		x[i] = (float)((double)(int32_t)r[0] * 0x1p-31);
	}
}

enum { SETS_MAX = 3 };

/* Fills in the array isa with the instruction sets of this machine whose kernels compute the same
 * bits, the portable one first. Returns how many they are. */
static inline int sets(const struct tr_isa **isa)
{
	struct tr_error err;
	int n = 0;

	CHECK_INT(tr_isa_find(&isa[n++], "portable", &err), 0);
	n += tr_isa_find(&isa[n], "avx2", &err) == 0;
	n += tr_isa_find(&isa[n], "avx512", &err) == 0;
	return n;
}
#endif
