/* SPDX-License-Identifier: Apache-2.0 */
/* The value of each item, and conversion of items to numbers
 *
 * Written from the published rule and not from the code in lib/, so that the same mistake is not in
 * both.
 */
#include "workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CRC_POLY UINT64_C(0x9A6C9329AC4BC9B5)

uint64_t wl_crc64(const void *bytes, size_t n)
{
	const unsigned char *p = bytes;
	uint64_t crc = ~UINT64_C(0);

	/* Goes bit by bit: it is used only for names. */
	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int k = 0; k < 8; k++)
			crc = (crc >> 1) ^ (CRC_POLY & (0 - (crc & 1)));
	}
	return ~crc;
}

static uint64_t crc_more(uint64_t crc, const char *s)
{
	for (; *s; s++) {
		crc ^= (unsigned char)*s;
		for (int k = 0; k < 8; k++)
			crc = (crc >> 1) ^ (CRC_POLY & (0 - (crc & 1)));
	}
	return crc;
}

uint64_t wl_hash(uint64_t seed, int64_t step, const char *family, const char *name)
{
	char head[64];
	uint64_t crc = ~UINT64_C(0);

	snprintf(head, sizeof(head), "%llu:%lld:", (unsigned long long)seed, (long long)step);
	crc = crc_more(crc, head);
	crc = crc_more(crc, family);
	crc = crc_more(crc, ":");
	return ~crc_more(crc, name);
}

uint64_t wl_hash_of(int dtype, uint64_t seed, int64_t step, const char *family, const char *name)
{
	bool half = dtype == SHEAF_BF16 || dtype == SHEAF_F16;

	return wl_hash(seed, step, half ? "master_weights" : family, name);
}

uint64_t wl_item(uint64_t h, uint64_t i)
{
	uint64_t z = h + (i + 1) * UINT64_C(0x9E3779B97F4A7C15);

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

static float item_f32(uint64_t u)
{
	return (float)((int64_t)(u >> 40) - (INT64_C(1) << 23)) * 0x1p-23f;
}

static double item_f64(uint64_t u)
{
	return (double)((int64_t)(u >> 11) - (INT64_C(1) << 52)) * 0x1p-52;
}

static uint16_t bf16_of(float v)
{
	uint32_t x;

	memcpy(&x, &v, 4);
	return (uint16_t)((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}

/* Rounds a finite v to nearest even, to a float with mbits of fraction. `over` is the result for a
 * magnitude above `top`, the largest code. */
static uint32_t small_of(double v, int mbits, int bias, uint32_t top, uint32_t over)
{
	double a = fabs(v), q;
	int e;
	uint32_t code;

	if (a == 0)
		return 0;
	frexp(a, &e);
	e--;
	if (e < 1 - bias)
		e = 1 - bias;
	q = nearbyint(ldexp(a, mbits - e));
	if (q >= ldexp(1, mbits + 1)) {
		e++;
		q /= 2;
	}
	if (e + bias > 4096)
		return over;
	code = (uint32_t)q;
	if (code >= UINT32_C(1) << mbits)
		code += (uint32_t)(e + bias - 1) << mbits;
	return code > top ? over : code;
}

static uint16_t f16_of(double v)
{
	uint32_t sign = signbit(v) ? 0x8000 : 0;

	if (isnan(v))
		return 0x7e00;
	if (isinf(v))
		return (uint16_t)(sign | 0x7c00);
	return (uint16_t)(sign | small_of(v, 10, 15, 0x7bff, 0x7c00));
}

static uint8_t f8_of(int dtype, double v)
{
	uint32_t sign = signbit(v) ? 0x80 : 0, code;

	switch (dtype) {
	case SHEAF_F8_E4M3:
		if (!isfinite(v))
			return (uint8_t)(sign | 0x7f);
		return (uint8_t)(sign | small_of(v, 3, 7, 0x7e, 0x7f));
	case SHEAF_F8_E5M2:
		if (isnan(v))
			return (uint8_t)(sign | 0x7e);
		if (isinf(v))
			return (uint8_t)(sign | 0x7c);
		return (uint8_t)(sign | small_of(v, 2, 15, 0x7b, 0x7c));
	default:
		/* The FNUZ types have one NaN, no infinity and no negative zero. */
		if (!isfinite(v))
			return 0x80;
		code = dtype == SHEAF_F8_E4M3FNUZ ? small_of(v, 3, 8, 0x7f, 0x80)
						  : small_of(v, 2, 16, 0x7f, 0x80);
		return (uint8_t)(code == 0 || code == 0x80 ? code : sign | code);
	}
}

static void put_le(unsigned char *p, uint64_t v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(v >> (8 * i));
}

static uint64_t get_le(const unsigned char *p, size_t n)
{
	uint64_t v = 0;

	for (size_t i = 0; i < n; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

size_t wl_unit_bytes(int dtype)
{
	int bits = sheaf_dtype_bits(dtype);

	return bits < 8 ? 1 : (size_t)bits / 8;
}

bool wl_is_float(int dtype)
{
	switch (dtype) {
	case SHEAF_F16:
	case SHEAF_BF16:
	case SHEAF_F32:
	case SHEAF_F64:
	case SHEAF_F8_E4M3:
	case SHEAF_F8_E5M2:
	case SHEAF_F8_E8M0:
	case SHEAF_F8_E4M3FNUZ:
	case SHEAF_F8_E5M2FNUZ:
		return true;
	default:
		return false;
	}
}

static void fill_bits(unsigned char *p, int dtype, uint64_t h, uint64_t from, size_t n)
{
	size_t unit = wl_unit_bytes(dtype);

	for (size_t k = 0; k < n; k++) {
		uint64_t u = wl_item(h, from + k);

		/* C64 has items of 8 bytes, all of which are u. */
		put_le(p + k * unit, dtype == SHEAF_BOOL ? u & 1 : u, unit);
	}
}

void wl_fill(void *dst, int dtype, uint64_t h, uint64_t from, size_t n)
{
	unsigned char *p = dst;

	switch (dtype) {
	case SHEAF_F32:
		for (size_t k = 0; k < n; k++) {
			float v = item_f32(wl_item(h, from + k));

			memcpy(p + 4 * k, &v, 4);
		}
		return;
	case SHEAF_F64:
		for (size_t k = 0; k < n; k++) {
			double v = item_f64(wl_item(h, from + k));

			memcpy(p + 8 * k, &v, 8);
		}
		return;
	case SHEAF_BF16:
		for (size_t k = 0; k < n; k++) {
			uint16_t v = bf16_of(item_f32(wl_item(h, from + k)));

			memcpy(p + 2 * k, &v, 2);
		}
		return;
	case SHEAF_F16:
		for (size_t k = 0; k < n; k++) {
			uint16_t v = f16_of((double)item_f32(wl_item(h, from + k)));

			memcpy(p + 2 * k, &v, 2);
		}
		return;
	default:
		fill_bits(p, dtype, h, from, n);
	}
}

/* Converts a small float (sign, ebits, mbits) to fp64. */
static double small_value(uint32_t x, int ebits, int mbits, int bias)
{
	uint32_t frac = x & ((UINT32_C(1) << mbits) - 1);
	uint32_t exp = (x >> mbits) & ((UINT32_C(1) << ebits) - 1);
	double v = exp ? ldexp((double)(frac | (UINT32_C(1) << mbits)), (int)exp - bias - mbits)
		       : ldexp((double)frac, 1 - bias - mbits);

	return (x >> (ebits + mbits)) & 1 ? -v : v;
}

static double f8_value(int dtype, uint8_t x)
{
	switch (dtype) {
	case SHEAF_F8_E4M3:
		return (x & 0x7f) == 0x7f ? (double)NAN : small_value(x, 4, 3, 7);
	case SHEAF_F8_E5M2:
		if ((x & 0x7f) == 0x7c)
			return x & 0x80 ? -(double)INFINITY : (double)INFINITY;
		return (x & 0x7f) > 0x7c ? (double)NAN : small_value(x, 5, 2, 15);
	case SHEAF_F8_E4M3FNUZ:
		return x == 0x80 ? (double)NAN : small_value(x, 4, 3, 8);
	case SHEAF_F8_E5M2FNUZ:
		return x == 0x80 ? (double)NAN : small_value(x, 5, 2, 16);
	default:
		return x == 0xff ? (double)NAN : ldexp(1, (int)x - 127);
	}
}

static double f16_value(uint16_t x)
{
	if ((x & 0x7c00) != 0x7c00)
		return small_value(x, 5, 10, 15);
	if (x & 0x3ff)
		return (double)NAN;
	return x & 0x8000 ? -(double)INFINITY : (double)INFINITY;
}

static double f32_value(uint32_t x)
{
	float v;

	memcpy(&v, &x, 4);
	return (double)v;
}

bool wl_value(double *out, int dtype, const void *item)
{
	const unsigned char *p = item;
	double v;

	switch (dtype) {
	case SHEAF_BOOL: *out = p[0] != 0; return true;
	case SHEAF_U8: *out = p[0]; return true;
	case SHEAF_I8: *out = (int8_t)p[0]; return true;
	case SHEAF_U16: *out = (double)get_le(p, 2); return true;
	case SHEAF_I16: *out = (int16_t)get_le(p, 2); return true;
	case SHEAF_U32: *out = (double)get_le(p, 4); return true;
	case SHEAF_I32: *out = (int32_t)get_le(p, 4); return true;
	case SHEAF_U64: *out = (double)get_le(p, 8); return true;
	case SHEAF_I64: *out = (double)(int64_t)get_le(p, 8); return true;
	case SHEAF_F16: *out = f16_value((uint16_t)get_le(p, 2)); return true;
	case SHEAF_BF16: *out = f32_value((uint32_t)get_le(p, 2) << 16); return true;
	case SHEAF_F32:
	case SHEAF_C64: *out = f32_value((uint32_t)get_le(p, 4)); return true;
	case SHEAF_F64:
		memcpy(&v, p, 8);
		*out = v;
		return true;
	case SHEAF_F8_E4M3:
	case SHEAF_F8_E5M2:
	case SHEAF_F8_E8M0:
	case SHEAF_F8_E4M3FNUZ:
	case SHEAF_F8_E5M2FNUZ: *out = f8_value(dtype, p[0]); return true;
	default: return false;
	}
}

bool wl_round(void *item, int dtype, double v)
{
	unsigned char *p = item;
	float f;

	switch (dtype) {
	case SHEAF_F64:
		memcpy(p, &v, 8);
		return true;
	case SHEAF_F32:
		f = (float)v;
		memcpy(p, &f, 4);
		return true;
	case SHEAF_BF16:
		if (isfinite(v))
			put_le(p, (signbit(v) ? 0x8000u : 0u) |
				  small_of(v, 7, 127, 0x7f7f, 0x7f80), 2);
		else
			put_le(p, isnan(v) ? 0x7fc0 : v < 0 ? 0xff80 : 0x7f80, 2);
		return true;
	case SHEAF_F16:
		put_le(p, f16_of(v), 2);
		return true;
	case SHEAF_F8_E4M3:
	case SHEAF_F8_E5M2:
	case SHEAF_F8_E4M3FNUZ:
	case SHEAF_F8_E5M2FNUZ:
		p[0] = f8_of(dtype, v);
		return true;
	default:
		return false;
	}
}
