/* SPDX-License-Identifier: Apache-2.0 */
/* A cell is a pair of items of bf16. VDPBF16PS multiplies two cells item by item and adds the two
 * products to a sum. It rounds to nearest after each, and takes subnormal numbers for zero. */
#include <immintrin.h>

#define TILE tr_tile_avx512_bf16
#define MADD(s, a, b) (vec)_mm512_dpbf16_ps((__m512)(s), (__m512bh)(a), (__m512bh)(b))
#include "gemm_wide_body.h"
