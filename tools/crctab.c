/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the tables of lib/base/crc64.c, at build time and on the build machine.
 *
 * Polynomials over GF(2) are reflected words: bit 63 - i of a word is the coefficient of x^i. */
#include <stdint.h>
#include <stdio.h>

#define POLY UINT64_C(0x9a6c9329ac4bc9b5)
#define ONE (UINT64_C(1) << 63)

static uint64_t times_x(uint64_t v)
{
	return v >> 1 ^ (v & 1 ? POLY : 0);
}

static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product = 0;

	for (int i = 63; i >= 0; i--, b = times_x(b))
		if (a >> i & 1)
			product ^= b;
	return product;
}

static void print(const char *name, const uint64_t *words, int tables)
{
	printf("static const uint64_t %s[%d][256] = {\n", name, tables);
	for (int i = 0; i < tables * 256; i++) {
		if (i % 256 == 0)
			printf("\t{\n");
		printf("%s0x%016llx,%s", i % 4 ? " " : "\t\t", (unsigned long long)words[i],
		       i % 4 == 3 ? "\n" : "");
		if (i % 256 == 255)
			printf("\t},\n");
	}
	printf("};\n");
}

static uint64_t slice[16][256], zeros[8][256];

int main(void)
{
	/* x^(8 * 256^k), the step from one entry of zeros[k] to the next. */
	uint64_t step = ONE >> 8;

	for (unsigned b = 0; b < 256; b++) {
		uint64_t v = b;

		for (int i = 0; i < 16 * 8; i++) {
			v = times_x(v);
			if (i % 8 == 7)
				slice[i / 8][b] = v;
		}
	}
	for (int k = 0; k < 8; k++) {
		zeros[k][0] = ONE;
		for (int b = 1; b < 256; b++)
			zeros[k][b] = times(zeros[k][b - 1], step);
		step = times(zeros[k][255], step);
	}
	printf("/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by tools/crctab.c. */\n");
	printf("/* [k][b]: byte b, then k zero bytes. */\n");
	print("crc64_slice", slice[0], 16);
	printf("/* [k][b]: x^(8 * b * 256^k). */\n");
	print("crc64_zeros", zeros[0], 8);
	return fflush(stdout) || ferror(stdout);
}
