/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of eight items at once, with AVX2 (convert_pass.c). */
#if defined(__x86_64__)
#define ON __attribute__((target("avx2")))
#define LANES 8
#define CONVERT shf_convert_x8
#include "convert_wide.h"
#include "convert_pass.c"
#else
typedef int not_on_this_machine; /* ISO C forbids an empty file. */
#endif
