/* SPDX-License-Identifier: Apache-2.0 */
/* lib/base/crc64_x32.c with the one instruction of it that few machines have made of another. */
#if defined(__x86_64__)
#include <immintrin.h>
#define ON __attribute__((target("avx2,pclmul")))
#define PATH emulated_x32
#define LANE(v, i) _mm256_extracti128_si256(v, i)
#define MUL(a, b, i) \
	_mm256_set_m128i(_mm_clmulepi64_si128(LANE(a, 1), LANE(b, 1), i), \
	                 _mm_clmulepi64_si128(LANE(a, 0), LANE(b, 0), i))
#endif
#include "crc64_x32.c"
