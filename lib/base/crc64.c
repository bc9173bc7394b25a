/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-64/NVME: the portable implementation, sixteen bytes at a time by table, and the choice of a
 * faster one.
 *
 * A word is a polynomial over GF(2), reflected: bit 63 - i is the coefficient of x^i. The raw CRC
 * of a message is the message times x^64 modulo P. So a run that is followed by n bytes contributes
 * its own raw CRC times x^(8n) to that of the whole, and contributions add by XOR. */
#include "crc64.h"

#include <string.h>
#include "crc64_tab.h"  /* made by tools/crctab.c */

#define POLY UINT64_C(0x9a6c9329ac4bc9b5)
#define ONE (UINT64_C(1) << 63)
#define ALL UINT64_MAX

/* Returns v * x modulo P. Words are reflected, so multiplying by x shifts to the right. The bit
 * that is shifted out stands for x^64, which is congruent to POLY, P without its highest power. */
static uint64_t times_x(uint64_t v)
{
	return v >> 1 ^ (POLY & (0 - (v & 1)));
}

/* Returns v / x modulo P. If v has the term x^0, P, which has that term too, is added first, so
 * that the sum is divisible by x. */
static uint64_t over_x(uint64_t v)
{
	return v << 1 ^ ((POLY << 1 | 1) & (0 - (v >> 63)));
}

/* The implementations, from the slowest to the fastest. The choice is made at each call: it reads a
 * word that the C runtime filled in at start, which says what the processor has and which registers
 * the system saves. */
enum path { BY_TABLE, X16, X16V, X32, X64 };

/* Returns whether this machine can run an implementation. */
static inline bool runs_here(enum path p)
{
#if defined(__x86_64__)
	bool narrow = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
	bool wide = narrow && __builtin_cpu_supports("vpclmulqdq");
	bool v512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");

	switch (p) {
	case X64:
		return wide && v512;
	case X32:
		return wide && __builtin_cpu_supports("avx2");
	case X16V:
		return narrow && v512;
	case X16:
		return narrow;
	case BY_TABLE:
		break;
	}
#endif
	return p == BY_TABLE;
}

static inline enum path crc64_best_path(void)
{
	if (runs_here(X64))
		return X64;
	if (runs_here(X32))
		return X32;
	if (runs_here(X16V))
		return X16V;
	return runs_here(X16) ? X16 : BY_TABLE;
}

/* Returns whether the machine has no carry-less multiplication. */
static inline bool by_table_only(void)
{
	return !runs_here(X16);
}

/* Returns a * b modulo P, eight coefficients of a at a time, the highest powers of x first, as in
 * Horner's rule: the product so far is multiplied by x^8, by the table of the CRC itself, and the
 * multiple of b for the next eight is added. by[0] has the multiples of b by the four higher
 * powers, by[1] by the four lower.
 *
 * The multiples of b by a single power are computed first, at indices that are powers of two. Any
 * other multiple is the sum of two earlier ones: that at the lowest bit of its index and that at
 * the other bits. */
static uint64_t times_by_table(uint64_t a, uint64_t b)
{
	uint64_t by[2][16] = { { 0 }, { 0 } }, product = 0;

	for (int k = 1; k >= 0; k--)
		for (unsigned bit = 8; bit; bit >>= 1, b = times_x(b))
			by[k][bit] = b;
	for (int k = 0; k < 2; k++)
		for (unsigned i = 3; i < 16; i++)
			by[k][i] = by[k][i & (i - 1)] ^ by[k][i & (0 - i)];
	for (int i = 0; i < 64; i += 8)
		product = product >> 8 ^ crc64_slice[0][product & 255] ^ by[0][a >> i & 15] ^
			  by[1][a >> i >> 4 & 15];
	return product;
}

/* Returns a * b modulo P. */
static uint64_t times(uint64_t a, uint64_t b)
{
#if defined(__x86_64__)
	if (!by_table_only())
		return shf_crc64_x16.times(a, over_x(b));
#endif
	return times_by_table(a, b);
}

/* Returns x^(8n), the factor by which n zero bytes multiply a raw CRC. crc64_zeros[k][b] is the
 * factor for b * 256^k bytes, so there is one product for each byte of n that is not 0. The first
 * would be a product by one and is left out. */
static uint64_t zeros(uint64_t n)
{
	uint64_t product = ONE;

	for (int k = 0; n; k++, n >>= 8)
		if (n & 255)
			product = product == ONE ? crc64_zeros[k][n & 255] :
				  times(product, crc64_zeros[k][n & 255]);
	return product;
}

/* Reads a little-endian word. It is inlined for the speed of the loop below. */
static inline uint64_t load64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	v = __builtin_bswap64(v);
#endif
	return v;
}

/* Sums sixteen bytes at a time, each looked up in the table for its distance to the end of the
 * sixteen. The look-ups do not wait for each other; only the XOR with `crc` joins one turn of the
 * loop to the one before it. The rest goes byte by byte. */
static uint64_t raw_by_table(uint64_t crc, const void *bytes, size_t n)
{
	const uint64_t (*t)[256] = crc64_slice;
	const uint8_t *p = bytes;

	for (; n >= 16; n -= 16, p += 16) {
		uint64_t a = load64(p) ^ crc, b = load64(p + 8);

		crc = t[15][a & 255] ^ t[14][a >> 8 & 255] ^ t[13][a >> 16 & 255] ^
		      t[12][a >> 24 & 255] ^ t[11][a >> 32 & 255] ^ t[10][a >> 40 & 255] ^
		      t[9][a >> 48 & 255] ^ t[8][a >> 56] ^
		      t[7][b & 255] ^ t[6][b >> 8 & 255] ^ t[5][b >> 16 & 255] ^
		      t[4][b >> 24 & 255] ^ t[3][b >> 32 & 255] ^ t[2][b >> 40 & 255] ^
		      t[1][b >> 48 & 255] ^ t[0][b >> 56];
	}
	for (; n; n--, p++)
		crc = crc >> 8 ^ t[0][(crc ^ *p) & 255];
	return crc;
}

/* Bytes that are copied and then summed at a time: they are still in the first cache. */
#define NEAR ((size_t)8 << 10)

/* Copies and sums without vectors. There are no stores past the caches here, so past_cache is
 * ignored. */
static uint64_t copy_by_table(uint64_t crc, void *restrict to, const void *restrict from, size_t n,
                              bool past_cache)
{
	const uint8_t *src = from;
	uint8_t *dst = to;

	(void)past_cache;
	for (size_t k; n > 0; n -= k, src += k, dst += k) {
		k = n < NEAR ? n : NEAR;
		memcpy(dst, src, k);
		crc = raw_by_table(crc, dst, k);
	}
	return crc;
}

/* A path's `times` takes b divided by x, because the instruction PCLMULQDQ gives a product of
 * reflected words times x. Multiplication by table does not, so the factor is put back here. */
static uint64_t over_x_times_by_table(uint64_t a, uint64_t b)
{
	return times_by_table(a, times_x(b));
}

static const struct shf_crc64_path by_table = { .raw = raw_by_table,
	                                        .copy = copy_by_table,
	                                        .times = over_x_times_by_table };

static inline const struct shf_crc64_path *path(enum path which)
{
#if defined(__x86_64__)
	switch (which) {
	case X64:
		return &shf_crc64_x64;
	case X32:
		return &shf_crc64_x32;
	case X16V:
		return &shf_crc64_x16v;
	case X16:
		return &shf_crc64_x16;
	case BY_TABLE:
		break;
	}
#endif
	(void)which;
	return &by_table;
}

uint64_t shf_crc64_raw(uint64_t crc, const void *bytes, size_t n)
{
	return path(crc64_best_path())->raw(crc, bytes, n);
}

/* Orders non-temporal stores before all later ones: the caller may report the copy as done to
 * another thread or to a device. */
static inline void fence(bool past_cache)
{
#if defined(__x86_64__)
	if (past_cache)
		__builtin_ia32_sfence();
#else
	(void)past_cache;
#endif
}

uint64_t shf_crc64_copy(uint64_t crc, void *restrict to, const void *restrict from, size_t n,
                        bool past_cache)
{
	crc = path(crc64_best_path())->copy(crc, to, from, n, past_cache);
	fence(past_cache);
	return crc;
}

/* Only the vector paths have non-temporal stores. They also sum the bytes; the sum is ignored, and
 * costs nothing where memory is slower than summing. */
void shf_memcpy_nt(void *restrict to, const void *restrict from, size_t n)
{
	if (crc64_best_path() == BY_TABLE)
		memcpy(to, from, n);
	else
		(void)shf_crc64_copy(0, to, from, n, true);
}

const struct shf_crc64_path *shf_crc64_path(int i, const char **name, bool *here)
{
	static const char *const names[] = { "portable", "pclmul", "avx512-pclmul",
		                             "avx2-vpclmul", "avx512-vpclmul" };
	enum path last = BY_TABLE;

#if defined(__x86_64__)
	last = X64;
#endif
	if (i < BY_TABLE || i > (int)last)
		return NULL;
	*name = names[i];
	*here = runs_here((enum path)i);
	return path((enum path)i);
}

uint64_t shf_crc64_more(uint64_t crc, const void *bytes, size_t n)
{
	return shf_crc64_raw(crc ^ ALL, bytes, n) ^ ALL;
}

uint64_t shf_crc64(const void *bytes, size_t n)
{
	return shf_crc64_more(0, bytes, n);
}

uint64_t shf_crc64_shift(uint64_t crc, uint64_t n)
{
	/* Most sums of a plan are 0, and most shifts are by 0 bytes. */
	return crc && n ? times(crc, zeros(n)) : crc;
}

/* Computes the standard CRC of n zero bytes: the start value shifted by n bytes, inverted at the
 * end. CRCs are linear, so this is what the start value and the inversion add to any message of n
 * bytes. */
uint64_t shf_crc64_ones(uint64_t n)
{
	return shf_crc64_shift(ALL, n) ^ ALL;
}

uint64_t shf_crc64_join(uint64_t a, uint64_t b, uint64_t b_bytes)
{
	/* The xorout of a, shifted along with it, is cancelled by the init of b, so neither needs a
	 * correction. */
	return shf_crc64_shift(a, b_bytes) ^ b;
}

/* With carry-less multiplication the factor is all that is needed. Otherwise one table for each
 * byte of the word is filled: entries with one bit by repeated times_x(), from the highest
 * coefficient down, and all others as sums of two earlier ones. */
void shf_crc64_by_init(struct shf_crc64_by *by, uint64_t n)
{
	uint64_t factor = zeros(n);

	by->over_x = over_x(factor);
	if (!by_table_only())
		return;
	for (int k = 7; k >= 0; k--) {
		uint64_t *t = by->t[k];

		t[0] = 0;
		for (unsigned bit = 128; bit; bit >>= 1, factor = times_x(factor))
			t[bit] = factor;
		for (unsigned b = 1; b < 256; b++)
			t[b] = t[b & (b - 1)] ^ t[b & (0 - b)];
	}
}

uint64_t shf_crc64_by(const struct shf_crc64_by *by, uint64_t crc)
{
	uint64_t product = 0;

#if defined(__x86_64__)
	if (!by_table_only())
		return shf_crc64_x16.times(crc, by->over_x);
#endif
	for (int k = 0; k < 8; k++)
		product ^= by->t[k][crc >> 8 * k & 255];
	return product;
}

/* How many rows ahead are prefetched, and how many bytes of each. The hardware's prefetcher does
 * not recognize short rows in time, and summing, unlike copying, leaves a core little room to run
 * ahead into the next row by itself. */
#define ROWS_AHEAD 4
#define BYTES_AHEAD 512
#define LINE 64

/* A prefetch of an address without memory has no effect, so prefetching may go beyond the last row.
 * One fence at the end is enough for the stores of all rows. */
uint64_t shf_crc64_rows(uint64_t crc, const struct shf_crc64_rows *r)
{
	const struct shf_crc64_path *p = path(crc64_best_path());
	const size_t near = r->n < BYTES_AHEAD ? r->n : BYTES_AHEAD;

	for (size_t i = 0; i < r->rows; i++) {
		const uint8_t *from = r->from + (ptrdiff_t)i * r->from_step;
		/* An integer, because C does not allow a pointer beyond the last row. */
		uintptr_t soon = (uintptr_t)from + (uintptr_t)(ROWS_AHEAD * r->from_step);

		for (size_t k = 0; k < near; k += LINE)
			__builtin_prefetch((const void *)(soon + k));
		if (i > 0)
			crc = shf_crc64_by(r->gap, crc);
		crc = r->to ? p->copy(crc, r->to + (ptrdiff_t)i * r->to_step, from, r->n,
		                      r->past_cache) :
			      p->raw(crc, from, r->n);
	}
	fence(r->past_cache);
	return crc;
}
