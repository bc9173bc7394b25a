/* SPDX-License-Identifier: Apache-2.0 */
/* The implementations of shf_convert for many items at once; tests and measurements call them too.
 * x8 and x16 take F32, F16, BF16 and the F8 types with a mantissa. x8 needs a machine with AVX2,
 * x16 one with AVX-512 F, BW, DQ and VL. */
#ifndef SHF_CONVERT_WIDE_H
#define SHF_CONVERT_WIDE_H
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
void shf_convert_x8(uint8_t *dst, int dst_dtype, const uint8_t *src, int src_dtype, size_t n);
void shf_convert_x16(uint8_t *dst, int dst_dtype, const uint8_t *src, int src_dtype, size_t n);
#endif
/* The portable implementation, for any two float types of whole bytes. The vector implementations
 * must give the same bytes. */
void shf_convert_each(uint8_t *dst, int dst_dtype, const uint8_t *src, int src_dtype, size_t n);
#endif
