/* SPDX-License-Identifier: Apache-2.0 */
/* The pass with VPCLMULQDQ on vectors of AVX2: two lanes of 16 bytes at once. */
#if defined(__x86_64__)
#include <immintrin.h>

/* A test defines its own MUL, ON and PATH, to run this code on machines without the instruction. */
#ifndef MUL
#define MUL(a, b, i) _mm256_clmulepi64_epi128(a, b, i)
#define ON __attribute__((target("avx2,pclmul,vpclmulqdq")))
#define PATH shf_crc64_x32
#endif
#define V __m256i
#define LANES 2
#define ACC 8
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define STORE(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), v)
#define STREAM_ONE(p, v) _mm256_stream_si256((__m256i *)(void *)(p), v)
#define STREAM(to, from, i) \
	_mm256_stream_si256((__m256i *)(void *)(to) + (i), LOAD((from) + 32 * (i)))
#define STREAM_LINE(to, from) (STREAM(to, from, 0), STREAM(to, from, 1))
#define SUM(a, b, c) _mm256_xor_si256(_mm256_xor_si256(a, b), c)
#define SPREAD(p) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define ZERO _mm256_setzero_si256()
#define FIRST(w) _mm256_set_epi64x(0, 0, 0, (long long)(w))
#define LAST(v) _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1))
#include "crc64_pass.c"
#else
typedef int not_on_this_machine; /* ISO C forbids an empty file. */
#endif
