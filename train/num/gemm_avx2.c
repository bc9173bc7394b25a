/* SPDX-License-Identifier: Apache-2.0 */
/* A tile of 6 x 16: 12 vectors of sums, 2 of B and a broadcast of A use 15 of the 16 registers. */
#include <immintrin.h>

#include "gemm.h"

#define SIX(x) x(0) x(1) x(2) x(3) x(4) x(5)
#define ZERO(i) __m256 s##i = _mm256_setzero_ps(), t##i = s##i;
#define FMA(i)                                                                \
	v = _mm256_broadcast_ss(a + i);                                       \
	s##i = _mm256_fmadd_ps(v, b0, s##i);                                  \
	t##i = _mm256_fmadd_ps(v, b1, t##i);
#define STORE(i)                                                              \
	_mm256_storeu_ps(c + i * c_row, s##i);                                \
	_mm256_storeu_ps(c + i * c_row + 8, t##i);
#define ADD(i)                                                                \
	s##i = _mm256_add_ps(_mm256_loadu_ps(c + i * c_row), s##i);           \
	t##i = _mm256_add_ps(_mm256_loadu_ps(c + i * c_row + 8), t##i);

void tr_tile_avx2(int64_t k, const float *a, const float *b, float *c, int64_t c_row, int add)
{
	__m256 b0, b1, v;
	SIX(ZERO)

	for (; k > 0; k--, a += 6, b += 16) {
		b0 = _mm256_loadu_ps(b);
		b1 = _mm256_loadu_ps(b + 8);
		SIX(FMA)
	}
	if (add) {
		SIX(ADD)
	}
	SIX(STORE)
}
