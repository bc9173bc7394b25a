/* SPDX-License-Identifier: Apache-2.0 */
/* Prints conversions for test/interop/check_dtypes.py. Sections follow one another: 24 bytes name
 * ("FROM>TO", NUL-filled), u64 item count, the items converted. "F32" are the patterns that the
 * sections "F32>..." convert; the codes of the sections "...>F32" are 0, 1, 2 .... */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "mem.h"
#include "sheaf.h"
#include "deal_home.h"

#define LOW_N 16u
#define PATTERNS_N (65536u * LOW_N)
static const int narrow[] = { SHEAF_F16, SHEAF_BF16, SHEAF_F8_E4M3, SHEAF_F8_E5M2, SHEAF_F8_E8M0,
	SHEAF_F8_E4M3FNUZ, SHEAF_F8_E5M2FNUZ };

static int section(const char *name, const void *items, uint64_t n, size_t item_bytes)
{
	char head[32] = { 0 };

	memcpy(head, name, strnlen(name, 23));
	shf_put64((uint8_t *)head + 24, n);
	return fwrite(head, 1, sizeof(head), stdout) != sizeof(head) ||
	       fwrite(items, item_bytes, (size_t)n, stdout) != n;
}

/* Every upper half, with lower halves that tie, nearly tie, or are far from it. */
static void patterns(uint32_t *p)
{
	static const uint32_t low[LOW_N] = { 0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2fff,
		0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xd000, 0xfffe, 0xffff };

	for (uint32_t i = 0; i < PATTERNS_N; i++)
		p[i] = i / LOW_N << 16 | low[i % LOW_N];
}

int main(void)
{
	uint32_t *f32 = malloc(4 * PATTERNS_N), *out = malloc(4 * PATTERNS_N);
	int rc = !f32 || !out;
	char name[32];

	if (!rc) {
		patterns(f32);
		rc = section("F32", f32, PATTERNS_N, 4);
	}
	for (size_t i = 0; !rc && i < sizeof(narrow) / sizeof(narrow[0]); i++) {
		size_t item_bytes = shf_dtype(narrow[i])->bits / 8u;

		rc = shf_convert(out, narrow[i], f32, SHEAF_F32, PATTERNS_N);
		snprintf(name, sizeof(name), "F32>%s", shf_dtype(narrow[i])->name);
		rc = rc ? rc : section(name, out, PATTERNS_N, item_bytes);
	}
	for (size_t i = 0; !rc && i < sizeof(narrow) / sizeof(narrow[0]); i++) {
		size_t item_bytes = shf_dtype(narrow[i])->bits / 8u;
		size_t codes_n = (size_t)1 << 8 * item_bytes;
		uint8_t *codes = (uint8_t *)f32;

		for (size_t k = 0; k < codes_n; k++)
			memcpy(codes + k * item_bytes, &k, item_bytes);
		rc = shf_convert(out, SHEAF_F32, codes, narrow[i], codes_n);
		snprintf(name, sizeof(name), "%s>F32", shf_dtype(narrow[i])->name);
		rc = rc ? rc : section(name, out, codes_n, 4);
	}
	free(f32);
	free(out);
	return rc || fflush(stdout) ? 1 : 0;
}
