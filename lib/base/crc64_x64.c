/* SPDX-License-Identifier: Apache-2.0 */
/* The pass with VPCLMULQDQ on vectors of AVX-512: four lanes of 16 bytes at once. */
#if defined(__x86_64__)
#include <immintrin.h>

/* A test defines its own MUL, ON and PATH, to run this code on machines without the instruction. */
#ifndef MUL
#define MUL(a, b, i) _mm512_clmulepi64_epi128(a, b, i)
#define ON __attribute__((target("avx512f,avx512vl,pclmul,vpclmulqdq")))
#define PATH shf_crc64_x64
#endif
#define V __m512i
#define LANES 4
#define ACC 4
#define LOAD(p) _mm512_loadu_si512(p)
#define STORE(p, v) _mm512_storeu_si512(p, v)
#define STREAM_ONE(p, v) _mm512_stream_si512((__m512i *)(void *)(p), v)
#define STREAM_LINE(to, from) _mm512_stream_si512((__m512i *)(void *)(to), _mm512_loadu_si512(from))
#define SUM(a, b, c) _mm512_ternarylogic_epi64(a, b, c, 0x96)
#define SPREAD(p) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define ZERO _mm512_setzero_si512()
#define FIRST(w) _mm512_zextsi128_si512(_mm_set_epi64x(0, (long long)(w)))
#define HALVES(v) \
	_mm256_xor_si256(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1))
#define LAST(v) \
	_mm_xor_si128(_mm256_castsi256_si128(HALVES(v)), _mm256_extracti128_si256(HALVES(v), 1))
#include "crc64_pass.c"
#else
typedef int not_on_this_machine; /* ISO C forbids an empty file. */
#endif
