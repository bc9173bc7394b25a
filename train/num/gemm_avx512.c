/* SPDX-License-Identifier: Apache-2.0 */
/* A tile of 12 x 32: 24 vectors of sums, 2 of B and a broadcast of A use 27 of the 32 registers. */
#include <immintrin.h>

#include "gemm.h"

#define TWELVE(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11)
#define ZERO(i) __m512 s##i = _mm512_setzero_ps(), t##i = s##i;
#define FMA(i)                                                                \
	v = _mm512_set1_ps(a[i]);                                             \
	s##i = _mm512_fmadd_ps(v, b0, s##i);                                  \
	t##i = _mm512_fmadd_ps(v, b1, t##i);
#define STORE(i)                                                              \
	_mm512_storeu_ps(c + i * c_row, s##i);                                \
	_mm512_storeu_ps(c + i * c_row + 16, t##i);
#define ADD(i)                                                                \
	s##i = _mm512_add_ps(_mm512_loadu_ps(c + i * c_row), s##i);           \
	t##i = _mm512_add_ps(_mm512_loadu_ps(c + i * c_row + 16), t##i);

void tr_tile_avx512(int64_t k, const float *a, const float *b, float *c, int64_t c_row, int add)
{
	__m512 b0, b1, v;
	TWELVE(ZERO)

	for (; k > 0; k--, a += 12, b += 32) {
		b0 = _mm512_loadu_ps(b);
		b1 = _mm512_loadu_ps(b + 16);
		TWELVE(FMA)
	}
	if (add) {
		TWELVE(ADD)
	}
	TWELVE(STORE)
}
