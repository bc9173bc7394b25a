/* SPDX-License-Identifier: Apache-2.0 */
/* A tile of 12 x 32 of gemm.h, over vectors of 16: 24 vectors of sums, 2 of B and a broadcast of A,
 * which are 27 of the 32 registers of AVX-512. A file that includes this one defines
 *
 * TILE           the name of the function
 * MADD(s, a, b)  s + a b in each of the 16 lanes, whose cells are what the packing of the kernel
 *                puts there
 *
 * Nothing else here depends on the CPU, so a test compiles this file with a MADD in plain C. */
#include "gemm.h"
#include "lanes.h"

#define TWELVE(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11)
#define ZERO(i) vec s##i = all(0.0f), t##i = s##i;
#define STEP(i)                                                               \
	v = all(a[i]);                                                        \
	s##i = MADD(s##i, v, b0);                                             \
	t##i = MADD(t##i, v, b1);
#define ADD(i)                                                                \
	s##i = load(c + i * c_row) + s##i;                                    \
	t##i = load(c + i * c_row + 16) + t##i;
#define STORE(i)                                                              \
	store(c + i * c_row, s##i);                                           \
	store(c + i * c_row + 16, t##i);

void TILE(int64_t cells, const float *a, const float *b, float *c, int64_t c_row, int add)
{
	vec b0, b1, v;
	TWELVE(ZERO)

	for (; cells > 0; cells--, a += 12, b += 32) {
		b0 = load(b);
		b1 = load(b + 16);
		TWELVE(STEP)
	}
	if (add) {
		TWELVE(ADD)
	}
	TWELVE(STORE)
}
#undef TWELVE
#undef ZERO
#undef STEP
#undef ADD
#undef STORE
#undef TILE
#undef MADD
