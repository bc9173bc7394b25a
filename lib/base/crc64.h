/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-64/NVME and its algebra. This one polynomial serves all checksums and digests.
 *
 * Reflected polynomial 0x9A6C9329AC4BC9B5. Two forms:
 *   standard  init and xorout all ones: blocks, files, attachments, manifest, sums.
 *             crc("123456789") == 0xae8b14860a799888
 *   raw       init and xorout 0: tensor digests, and every partial sum.
 *             crc("123456789") == 0x7800c064d4a83784
 * raw is linear over GF(2): for a message cut into runs, the raw CRC of the whole is the XOR of
 * each run's raw CRC shifted by the number of bytes that follow the run. So ranks sum their own
 * parts of a tensor, and the parts are XORed. standard(m) = raw(m) ^ shf_crc64_ones(len(m)). */
#ifndef SHF_CRC64_H
#define SHF_CRC64_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t shf_crc64_raw(uint64_t crc, const void *bytes, size_t n);      /* continues a raw CRC */
/* Continues a raw CRC and copies the bytes, with one read of memory. The buffers must not overlap.
 * past_cache: uses non-temporal stores, which do not fill the caches; long copies then read each
 * byte twice, the second time from the cache, within 16 KiB. That is twice as fast on some machines
 * and slower on others; sheaf-bench-kernel measures it. A save tries both ways and keeps the faster
 * one (run/streaming_stores.h). */
uint64_t shf_crc64_copy(uint64_t crc, void *restrict to, const void *restrict from, size_t n,
                        bool past_cache);
/* Copies like memcpy, with non-temporal stores if the implementation for this machine has them. It
 * then sums the bytes too and ignores the sum, which costs nothing where summing is faster than
 * memory. */
void shf_memcpy_nt(void *restrict to, const void *restrict from, size_t n);
uint64_t shf_crc64(const void *bytes, size_t n);                        /* standard CRC of n
                                                                         * bytes */
uint64_t shf_crc64_more(uint64_t crc, const void *bytes, size_t n);     /* continues a standard
                                                                         * CRC */
/* Returns crc * x^(8n): if crc is the raw CRC of a run, this is the raw CRC of the run followed by
 * n zero bytes. Takes time O(log n). */
uint64_t shf_crc64_shift(uint64_t crc, uint64_t n);
/* Returns what init and xorout add (by XOR) to the raw CRC of a message of n bytes. */
uint64_t shf_crc64_ones(uint64_t n);
/* Returns the standard CRC of A followed by B: a is that of A, b that of B, b_bytes the length of
 * B. */
uint64_t shf_crc64_join(uint64_t a, uint64_t b, uint64_t b_bytes);

/* A shift by one distance n, prepared to be applied many times, as between the rows of a matrix. A
 * shift is one product where the machine has carry-less multiplication, else 8 table look-ups. */
struct shf_crc64_by {
	uint64_t over_x;        /* the factor x^(8n - 1) */
	uint64_t t[8][256];     /* look-up tables; not filled where the machine has the product */
};
void shf_crc64_by_init(struct shf_crc64_by *by, uint64_t n);
uint64_t shf_crc64_by(const struct shf_crc64_by *by, uint64_t crc);

/* Some columns of a matrix, to be summed and copied. The raw CRC continues through row, gap, row,
 * ..., row, where each gap counts as zero bytes, as many as `gap` was prepared for. Rows have n
 * bytes and lie to_step and from_step bytes apart; if `to` is NULL they are only summed. Source and
 * destination must not overlap. Rows are prefetched before they are summed, beyond the last one
 * too, which touches no memory. */
struct shf_crc64_rows {
	uint8_t *to;
	const uint8_t *from;
	ptrdiff_t to_step, from_step;
	size_t n, rows;
	const struct shf_crc64_by *gap;
	bool past_cache;
};
uint64_t shf_crc64_rows(uint64_t crc, const struct shf_crc64_rows *r);

/* The implementations in this build, for tests and measurements. The functions above use, at each
 * call, the last one that this machine can run. All give the same results. */
struct shf_crc64_path {
	uint64_t (*raw)(uint64_t crc, const void *bytes, size_t n);
	uint64_t (*copy)(uint64_t crc, void *restrict to, const void *restrict from, size_t n,
	                 bool past_cache);      /* without the fence that shf_crc64_copy adds after
	                                         * non-temporal stores */
	uint64_t (*times)(uint64_t a, uint64_t over_x); /* returns a * x * over_x modulo P */
};
/* Returns the i-th implementation, the portable one first; NULL after the last. *here: whether this
 * machine can run it; otherwise its functions must not be called. */
const struct shf_crc64_path *shf_crc64_path(int i, const char **name, bool *here);
#if defined(__x86_64__)
extern const struct shf_crc64_path shf_crc64_x16, shf_crc64_x16v, shf_crc64_x32,
	shf_crc64_x64;
#endif
#endif
