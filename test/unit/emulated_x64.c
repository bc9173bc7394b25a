/* SPDX-License-Identifier: Apache-2.0 */
/* lib/base/crc64_x64.c with the one instruction of it that few machines have made of another. */
#if defined(__x86_64__)
#include <immintrin.h>
#define ON __attribute__((target("avx512f,avx512vl,pclmul")))
#define PATH emulated_x64
#define LANE(a, b, j, i) \
	_mm_clmulepi64_si128(_mm512_extracti32x4_epi32(a, j), _mm512_extracti32x4_epi32(b, j), i)
#define PUT(v, lane, j) _mm512_inserti32x4(v, lane, j)
#define MUL(a, b, i) \
	PUT(PUT(PUT(PUT(a, LANE(a, b, 0, i), 0), LANE(a, b, 1, i), 1), LANE(a, b, 2, i), 2), \
	    LANE(a, b, 3, i), 3)
#endif
#include "crc64_x64.c"
