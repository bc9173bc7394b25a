/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to convert many floats at once, for shf_convert, tests and measurements. Types are F32,
 * F16, BF16 and the F8 with a mantissa; others are not for these. The machine must have what the
 * one that is called is made of: AVX2; AVX-512 F, BW, DQ and VL. */
#ifndef SHF_CONVERT_WIDE_H
#define SHF_CONVERT_WIDE_H
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
void shf_convert_x8(uint8_t *dst, int dst_dtype, const uint8_t *src, int src_dtype, size_t n);
void shf_convert_x16(uint8_t *dst, int dst_dtype, const uint8_t *src, int src_dtype, size_t n);
#endif
/* Portable, any two float types of whole bytes, and the reference of the others. */
void shf_convert_each(uint8_t *dst, int dst_dtype, const uint8_t *src, int src_dtype, size_t n);
#endif
