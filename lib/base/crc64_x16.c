/* SPDX-License-Identifier: Apache-2.0 */
/* The pass with PCLMULQDQ on SSE registers: one lane of 16 bytes at a time. */
#if defined(__x86_64__)
#include <immintrin.h>

/* crc64_x16_avx512.c gives its own. */
#ifndef ON
#define ON __attribute__((target("sse4.1,pclmul")))
#define PATH shf_crc64_x16
#define SUM(a, b, c) _mm_xor_si128(_mm_xor_si128(a, b), c)
#define STREAM(to, from, i) \
	_mm_stream_si128((__m128i *)(void *)(to) + (i), LOAD((from) + 16 * (i)))
#define STREAM_LINE(to, from) \
	(STREAM(to, from, 0), STREAM(to, from, 1), STREAM(to, from, 2), STREAM(to, from, 3))
#endif
#define V __m128i
#define LANES 1
#define ACC 8
#define LOAD(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define STORE(p, v) _mm_storeu_si128((__m128i *)(void *)(p), v)
#define STREAM_ONE(p, v) _mm_stream_si128((__m128i *)(void *)(p), v)
#define MUL(a, b, i) _mm_clmulepi64_si128(a, b, i)
#define SPREAD(p) LOAD(p)
#define ZERO _mm_setzero_si128()
#define FIRST(w) _mm_set_epi64x(0, (long long)(w))
#define LAST(v) (v)
#include "crc64_pass.c"
#else
typedef int not_on_this_machine; /* ISO C forbids an empty file. */
#endif
