/* SPDX-License-Identifier: Apache-2.0 */
/* The table of item types. */
#include "dtype.h"

#include <string.h>
#include "mem.h"

/* The numbers of the types are those of the format (doc/format.md, section 2), so a row may be
 * added and none may change. */
static const struct shf_dtype types[] = {
	[SHEAF_BOOL]        = { "BOOL",         8, 1, 1, 'b' },
	[SHEAF_U8]          = { "U8",           8, 1, 1, 'u' },
	[SHEAF_I8]          = { "I8",           8, 1, 1, 'i' },
	[SHEAF_U16]         = { "U16",         16, 2, 1, 'u' },
	[SHEAF_I16]         = { "I16",         16, 2, 1, 'i' },
	[SHEAF_U32]         = { "U32",         32, 4, 1, 'u' },
	[SHEAF_I32]         = { "I32",         32, 4, 1, 'i' },
	[SHEAF_U64]         = { "U64",         64, 8, 1, 'u' },
	[SHEAF_I64]         = { "I64",         64, 8, 1, 'i' },
	[SHEAF_F16]         = { "F16",         16, 2, 1, 'f' },
	[SHEAF_BF16]        = { "BF16",        16, 2, 1, 'f' },
	[SHEAF_F32]         = { "F32",         32, 4, 1, 'f' },
	[SHEAF_F64]         = { "F64",         64, 8, 1, 'f' },
	[SHEAF_C64]         = { "C64",         64, 8, 1, 'c' },
	[SHEAF_F8_E4M3]     = { "F8_E4M3",      8, 1, 1, 'f' },
	[SHEAF_F8_E5M2]     = { "F8_E5M2",      8, 1, 1, 'f' },
	[SHEAF_F8_E8M0]     = { "F8_E8M0",      8, 1, 1, 'f' },
	[SHEAF_F8_E4M3FNUZ] = { "F8_E4M3FNUZ",  8, 1, 1, 'f' },
	[SHEAF_F8_E5M2FNUZ] = { "F8_E5M2FNUZ",  8, 1, 1, 'f' },
	[SHEAF_F4]          = { "F4",           4, 1, 2, 'f' },
	[SHEAF_F6_E2M3]     = { "F6_E2M3",      6, 1, 4, 'f' },
	[SHEAF_F6_E3M2]     = { "F6_E3M2",      6, 1, 4, 'f' },
};
#define TYPES_N ((int)(sizeof(types) / sizeof(types[0])))

/* Number 0 is no type: it means "not set" in the structs of callers. */
const struct shf_dtype *shf_dtype(int dtype)
{
	return dtype > 0 && dtype < TYPES_N ? &types[dtype] : NULL;
}

const struct shf_dtype *shf_dtype_of_slice(int dtype)
{
	static const struct shf_dtype c128 = { "C128", 128, 8, 1, 'c' };

	return dtype == SHEAF_C128 ? &c128 : shf_dtype(dtype);
}

int shf_dtype_from(const char *name, size_t n)
{
	for (int i = 1; i < TYPES_N; i++)
		if (strlen(types[i].name) == n && !memcmp(types[i].name, name, n))
			return i;
	return 0;
}

bool shf_dtype_bytes(uint64_t *bytes, int dtype, uint64_t items)
{
	const struct shf_dtype *d = shf_dtype(dtype);

	if (!d || items % d->group)
		return false;
	/* items is a multiple of the group, and a group is whole bytes: the product overflows only
	 * if the bytes do. */
	return shf_mul64(bytes, items / d->group, (uint64_t)d->bits * d->group / 8);
}
