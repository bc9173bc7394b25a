/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the tables of lib/base/crc64.c, or with the word `fold` those of lib/base/crc64_pass.c, at
 * build time and on the build machine.
 *
 * Polynomials over GF(2) are reflected words: bit 63 - i of a word is the coefficient of x^i. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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

/* v / x modulo P: P itself has the coefficient of x^0 that v may lack to be divisible. */
static uint64_t over_x(uint64_t v)
{
	return v << 1 ^ (v >> 63 ? POLY << 1 | 1 : 0);
}

/* x^128 / P without its remainder and without the coefficient of x^0, over x: by long division,
 * where the leading x^64 of P and of the quotient are understood. */
static uint64_t quotient(void)
{
	uint64_t rest = POLY, q = 0;

	/* The coefficients of x^63 to x^1; that of x^64 comes last, as the word's bit 0. */
	for (int i = 63; i >= 1; i--) {
		if (rest & 1)
			q |= UINT64_C(1) << (64 - i);
		rest = times_x(rest);
	}
	return q | 1;
}

/* A carry-less multiplication of two words gives their product times x, as the reflected word of
 * 128 bits. So the factors here are one power of x less than what they multiply by. */
#define FOLDS 64

static void fold(void)
{
	uint64_t lo[FOLDS], hi[FOLDS];

	hi[0] = over_x(ONE);
	for (int d = 0; d < FOLDS; d++) {
		uint64_t v = hi[d];

		for (int i = 0; i < 64; i++)
			v = times_x(v);
		lo[d] = v;
		for (int i = 0; i < 64; i++)
			v = times_x(v);
		if (d + 1 < FOLDS)
			hi[d + 1] = v;
	}
	printf("#define CRC64_FOLDS %d\n", FOLDS);
	printf("/* [CRC64_FOLDS - 1 - d]: x^(128 d + 63), x^(128 d - 1). */\n");
	printf("static const _Alignas(64) uint64_t crc64_fold[CRC64_FOLDS][2] = {\n");
	for (int d = FOLDS - 1; d >= 0; d--)
		printf("\t{ 0x%016llx, 0x%016llx },\n", (unsigned long long)lo[d],
		       (unsigned long long)hi[d]);
	printf("};\n/* x^127. */\n#define CRC64_X127 UINT64_C(0x%016llx)\n",
	       (unsigned long long)hi[1]);
	printf("/* (x^128 / P - 1) / x, P's quotient without its remainder. */\n");
	printf("#define CRC64_QUOTIENT UINT64_C(0x%016llx)\n", (unsigned long long)quotient());
	printf("/* (P - 1) / x. */\n");
	printf("#define CRC64_P_OVER_X UINT64_C(0x%016llx)\n", (unsigned long long)(POLY << 1 | 1));
}

static void slices(void)
{
	static uint64_t slice[16][256], zeros[8][256];
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
	printf("/* [k][b]: byte b, then k zero bytes. */\n");
	print("crc64_slice", slice[0], 16);
	printf("/* [k][b]: x^(8 * b * 256^k). */\n");
	print("crc64_zeros", zeros[0], 8);
}

int main(int argc, char **argv)
{
	printf("/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by tools/crctab.c. */\n");
	if (argc > 1 && strcmp(argv[1], "fold") == 0)
		fold();
	else
		slices();
	return fflush(stdout) || ferror(stdout);
}
