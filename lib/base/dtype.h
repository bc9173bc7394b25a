/* SPDX-License-Identifier: Apache-2.0 */
/* One table of item types for all rooms: bits, spelling, alignment, kind. */
#ifndef SHF_DTYPE_H
#define SHF_DTYPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "sheaf.h"

struct shf_dtype {
	const char *name;       /* as safetensors spells it */
	uint8_t bits;           /* of one item */
	uint8_t align;          /* of its bytes in a file: 8, 4, 2, 1 */
	uint8_t group;          /* items that make whole bytes: F4 2, F6 4, others 1 */
	char kind;              /* 'b' bool, 'u' unsigned, 'i' signed, 'f' float, 'c' complex */
};
/* NULL for what is no enum sheaf_dtype. */
const struct shf_dtype *shf_dtype(int dtype);
int shf_dtype_from(const char *name, size_t n);         /* 0: none such; case matters */
/* Bytes of `items` items; false if that is no whole number or overflows. */
bool shf_dtype_bytes(uint64_t *bytes, int dtype, uint64_t items);

/* Scalars, round to nearest even, NaN stays NaN (quiet), overflow to infinity (or NaN where the
 * type has no infinity, as ml_dtypes does). */
float    shf_bf16_to_f32(uint16_t v);
uint16_t shf_f32_to_bf16(float v);
float    shf_f16_to_f32(uint16_t v);
uint16_t shf_f32_to_f16(float v);
float    shf_f8_to_f32(int dtype, uint8_t v);           /* the five F8 types */
uint8_t  shf_f32_to_f8(int dtype, float v);
/* Convert n items, dense; F64 <-> F32 <-> F16/BF16/F8, all float pairs and equal types. Every
 * pair rounds once (from F64 directly). Returns 0, or SHEAF_EINVAL where the pair is not offered
 * (integers, bools, complex, sub-byte). dst and src do not overlap; any alignment. */
int shf_convert(void *dst, int dst_dtype, const void *src, int src_dtype, size_t n);
bool shf_can_convert(int dst_dtype, int src_dtype);
/* Value of one item as fp64, for comparing; complex: the real part. false: sub-byte types. */
bool shf_value(double *out, int dtype, const void *item);
#endif
