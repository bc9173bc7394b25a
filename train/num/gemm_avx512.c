/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#define TILE tr_tile_avx512
#define MADD(s, a, b) (vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(s))
#include "gemm_wide_body.h"
