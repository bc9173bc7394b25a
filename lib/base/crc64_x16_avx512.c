/* SPDX-License-Identifier: Apache-2.0 */
/* The pass with PCLMULQDQ on machines with AVX-512 but without VPCLMULQDQ. Lanes are still 16
 * bytes, but AVX-512 has an XOR of three operands, needs fewer register copies, and stores whole
 * cache lines. */
#if defined(__x86_64__)
#include <immintrin.h>
#define ON __attribute__((target("avx512f,avx512vl,pclmul")))
#define PATH shf_crc64_x16v
#define LINES
#define STREAM_LINE(to, from) _mm512_stream_si512((__m512i *)(void *)(to), _mm512_loadu_si512(from))
#define SUM(a, b, c) _mm_ternarylogic_epi64(a, b, c, 0x96)
#endif
#include "crc64_x16.c"
