/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of sixteen items at once, with AVX-512 (convert_pass.c). */
#if defined(__x86_64__)
#define ON __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define LANES 16
#define CONVERT shf_convert_x16
#include "convert_wide.h"
#include "convert_pass.c"
#else
typedef int not_on_this_machine; /* ISO C forbids an empty file. */
#endif
