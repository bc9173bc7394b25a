/* SPDX-License-Identifier: Apache-2.0 */
/* The table of item types, for all rooms: bits, spelling, alignment, kind; and conversions between
 * the types. */
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
/* Returns the row of a type that files may have; NULL if dtype is not such an enum sheaf_dtype.
 * SHEAF_C128 is none: state.c turns its slices into slices of F64. */
const struct shf_dtype *shf_dtype(int dtype);
/* Returns the row of a type that slices may have: SHEAF_C128 too. */
const struct shf_dtype *shf_dtype_of_slice(int dtype);
int shf_dtype_from(const char *name, size_t n);         /* by its name; 0: unknown. Case matters */
/* Sets *bytes to the size of `items` items. Returns false if that is no whole number of bytes, or
 * overflows. */
bool shf_dtype_bytes(uint64_t *bytes, int dtype, uint64_t items);

/* Conversions of one item. They round to nearest even. NaN stays NaN (quiet). Overflow gives
 * infinity, or NaN where the type has no infinity, as in ml_dtypes. */
float    shf_bf16_to_f32(uint16_t v);
uint16_t shf_f32_to_bf16(float v);
float    shf_f16_to_f32(uint16_t v);
uint16_t shf_f32_to_f16(float v);
float    shf_f8_to_f32(int dtype, uint8_t v);           /* the five F8 types */
uint8_t  shf_f32_to_f8(int dtype, float v);
/* Converts n items without gaps: between any two of F64, F32, F16, BF16 and the F8 types, or
 * between equal types. Every pair is rounded once (from F64 too). Returns 0, or SHEAF_EINVAL if the
 * pair is not offered (integers, bools, complex, types below a byte). dst and src must not overlap;
 * they may have any alignment. */
int shf_convert(void *dst, int dst_dtype, const void *src, int src_dtype, size_t n);
bool shf_can_convert(int dst_dtype, int src_dtype);
/* Reads one item as fp64, for comparisons; of a complex one the real part. Returns false for types
 * below a byte. */
bool shf_value(double *out, int dtype, const void *item);
#endif
