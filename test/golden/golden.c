/* SPDX-License-Identifier: Apache-2.0 */
#include "golden.h"
#include "rng.h"

const int64_t golden_steps[2] = { 10, 20 };

#define T(f, n, d, how, nd, ...) { f, n, d, nd, { __VA_ARGS__ }, how }
const struct golden_tensor golden_tensors[] = {
	T("model", "embed.weight", SHEAF_BF16, GOLDEN_CUT, 2, 32, 64), /* a page */
	T("model", "layers.2.w", SHEAF_F32, GOLDEN_CUT, 2, 31, 33),
	T("model", "layers.2.bias", SHEAF_F16, GOLDEN_LAST, 1, 33),
	T("model", "layers.10.w", SHEAF_F32, GOLDEN_CUT, 2, 33, 31),
	T("model", "layers.010.w", SHEAF_I8, GOLDEN_WHOLE, 1, 3),
	T("model", "types.bool", SHEAF_BOOL, GOLDEN_CUT, 1, 9),
	T("model", "types.u8", SHEAF_U8, GOLDEN_CUT, 1, 7),
	T("model", "types.i8", SHEAF_I8, GOLDEN_WHOLE, 1, 5),
	T("model", "types.u16", SHEAF_U16, GOLDEN_CUT, 2, 3, 5),
	T("model", "types.i16", SHEAF_I16, GOLDEN_CUT, 1, 5),
	T("model", "types.u32", SHEAF_U32, GOLDEN_WHOLE, 1, 3),
	T("model", "types.i32", SHEAF_I32, GOLDEN_CUT, 1, 3),
	T("model", "types.u64", SHEAF_U64, GOLDEN_CUT, 1, 2),
	T("model", "types.i64", SHEAF_I64, GOLDEN_LAST, 1, 5),
	T("model", "types.f64", SHEAF_F64, GOLDEN_CUT, 2, 5, 2),
	T("model", "types.c64", SHEAF_C64, GOLDEN_CUT, 1, 3),
	T("model", "types.f8_e4m3", SHEAF_F8_E4M3, GOLDEN_CUT, 2, 5, 3),
	T("model", "types.f8_e5m2", SHEAF_F8_E5M2, GOLDEN_CUT, 1, 13),
	T("model", "types.f8_e8m0", SHEAF_F8_E8M0, GOLDEN_WHOLE, 1, 1),
	T("model", "types.f8_e4m3fnuz", SHEAF_F8_E4M3FNUZ, GOLDEN_CUT, 1, 4),
	T("model", "types.f8_e5m2fnuz", SHEAF_F8_E5M2FNUZ, GOLDEN_CUT, 1, 4),
	T("model", "types.f4", SHEAF_F4, GOLDEN_CUT, 2, 6, 4),
	T("model", "types.f6_e2m3", SHEAF_F6_E2M3, GOLDEN_WHOLE, 2, 3, 4),
	T("model", "types.f6_e3m2", SHEAF_F6_E3M2, GOLDEN_WHOLE, 1, 8),
	T("model", "scalar", SHEAF_F32, GOLDEN_WHOLE, 0, 0),
	T("model", "empty", SHEAF_F32, GOLDEN_WHOLE, 2, 0, 4),
	T("model", "eight.dims", SHEAF_U8, GOLDEN_WHOLE, 8, 1, 2, 1, 3, 1, 2, 1, 2),
	T("model", "na\xc3\xafve \"name\"\\/\xe2\x82\xac", SHEAF_U8, GOLDEN_WHOLE, 1, 11),
	T("master_weights", "embed.weight", SHEAF_F32, GOLDEN_RANGE, 2, 32, 64), /* two pages */
	T("master_weights", "layers.2.bias", SHEAF_F32, GOLDEN_RANGE, 1, 33),
	T("optimizer", "embed.weight/moment1_0", SHEAF_F32, GOLDEN_RANGE, 2, 32, 64),
	T("optimizer", "layers.2.bias/moment1_0", SHEAF_F32, GOLDEN_RANGE, 1, 33),
	T("optimizer", "layers.2.bias/moment2_0", SHEAF_F32, GOLDEN_RANGE, 1, 33),
	T("ema", "layers.2.w", SHEAF_F32, GOLDEN_CUT, 2, 31, 33),
};
const size_t golden_tensors_n = sizeof(golden_tensors) / sizeof(golden_tensors[0]);

const struct golden_text golden_notes[] = {
	{ "adam.step", "10" },
	{ "config.digest", "c0ffee" },
	{ "loss", "0x1.921fb54442d18p+1" },
	{ "mesh", "dp=3" },
	{ "words", "two lines\nand a \"quoted\" \xe2\x82\xac" },
};
const size_t golden_notes_n = sizeof(golden_notes) / sizeof(golden_notes[0]);

const struct golden_text golden_files[] = {
	{ "config.json", "{\"model_type\": \"golden\", \"vocab_size\": 32}\n" },
	{ "nothing.txt", "" },
};
const size_t golden_files_n = sizeof(golden_files) / sizeof(golden_files[0]);

int64_t golden_items(const struct golden_tensor *t)
{
	int64_t n = 1;

	for (int d = 0; d < t->ndim; d++)
		n *= t->shape[d];
	return n;
}

size_t golden_bytes(const struct golden_tensor *t)
{
	return (size_t)golden_items(t) * (size_t)sheaf_dtype_bits(t->dtype) / 8;
}

void golden_fill(uint8_t *bytes, size_t n, int64_t step, const char *family, const char *name,
                 int boolean)
{
	uint64_t seed = (uint64_t)step;

	for (const char *p = family; *p; p++)
		seed = (seed ^ (uint8_t)*p) * 0x100000001b3u;
	seed = (seed ^ '/') * 0x100000001b3u;
	for (const char *p = name; *p; p++)
		seed = (seed ^ (uint8_t)*p) * 0x100000001b3u;
	for (size_t i = 0; i < n; i++) {
		bytes[i] = (uint8_t)rng_next(&seed);
		if (boolean)
			bytes[i] &= 1;
	}
}
