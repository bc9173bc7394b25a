/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-64/NVME and its algebra: the one polynomial that proves everything.
 *
 * Reflected polynomial 0x9A6C9329AC4BC9B5. Two forms:
 *   standard  init and xorout all ones: blocks, files, attachments, manifest, sums.
 *             crc("123456789") == 0xae8b14860a799888
 *   raw       init and xorout 0: tensor digests, and every partial sum.
 *             crc("123456789") == 0x7800c064d4a83784
 * raw is linear over GF(2): for a message cut into runs, the raw CRC of the whole is the XOR of
 * each run's raw CRC shifted by the number of bytes that follow the run.
 * standard(m) = raw(m) ^ shf_crc64_ones(len(m)).
 */
#ifndef SHF_CRC64_H
#define SHF_CRC64_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t shf_crc64_raw(uint64_t crc, const void *bytes, size_t n);      /* continue a raw CRC */
/* The same, and copies the bytes on the way: one read of memory. No overlap. past_cache: with
 * stores that leave the caches alone; bytes are then read twice, once more from the cache, within
 * 16 KiB. Twice as fast on some machines, slower on others; sheaf-bench-kernel measures it. A save
 * tries both ways and keeps the faster one (run/store_way.h). */
uint64_t shf_crc64_copy(uint64_t crc, void *restrict to, const void *restrict from, size_t n,
                        bool past_cache);
/* A memcpy past the caches, where sums are faster than memory: theirs is thrown away. */
void shf_copy_past(void *restrict to, const void *restrict from, size_t n);
uint64_t shf_crc64(const void *bytes, size_t n);                        /* standard, whole */
uint64_t shf_crc64_more(uint64_t crc, const void *bytes, size_t n);     /* continue standard */
/* Raw CRC of the run followed by n zero bytes: crc * x^(8n). O(log n). */
uint64_t shf_crc64_shift(uint64_t crc, uint64_t n);
/* What init and xorout add for a message of n bytes. */
uint64_t shf_crc64_ones(uint64_t n);
/* Standard CRC of A followed by B, from standard(A), standard(B), len(B). */
uint64_t shf_crc64_join(uint64_t a, uint64_t b, uint64_t b_bytes);

/* Many shifts by one distance (equal strides, Horner-wise): a product each where the machine has
 * carry-less multiplication, else 8 look-ups. */
struct shf_crc64_by {
	uint64_t over_x;        /* the factor x^(8n - 1) */
	uint64_t t[8][256];     /* undefined where a product does it */
};
void shf_crc64_by_init(struct shf_crc64_by *by, uint64_t n);
uint64_t shf_crc64_by(const struct shf_crc64_by *by, uint64_t crc);

/* Rows of a matrix cut by columns. Between two rows lie zeros as far as the sum is concerned, gap
 * bytes of them: crc continues through row, gap, row, ..., row. Rows are n bytes, to_step and
 * from_step bytes apart; where `to` is NULL they are only summed. No overlap. Asks memory for rows
 * before their turn comes, beyond the last one too (that touches nothing). */
struct shf_crc64_rows {
	uint8_t *to;
	const uint8_t *from;
	ptrdiff_t to_step, from_step;
	size_t n, rows;
	const struct shf_crc64_by *gap;
	bool past_cache;
};
uint64_t shf_crc64_rows(uint64_t crc, const struct shf_crc64_rows *r);

/* The ways to sum there are in this build, for tests and measurements: what is above takes, at each
 * call, the last of them that this machine can run. All give the same results. */
struct shf_crc64_path {
	uint64_t (*raw)(uint64_t crc, const void *bytes, size_t n);
	uint64_t (*copy)(uint64_t crc, void *restrict to, const void *restrict from, size_t n,
	                 bool past_cache);      /* then no fence follows the stores */
	uint64_t (*times)(uint64_t a, uint64_t over_x); /* a * x * over_x modulo P */
};
/* The i-th, from the portable one on; NULL behind the last. here: whether this machine can run it;
 * the functions of one that it cannot run must not be called. */
const struct shf_crc64_path *shf_crc64_path(int i, const char **name, bool *here);
#if defined(__x86_64__)
extern const struct shf_crc64_path shf_crc64_x16, shf_crc64_x16v, shf_crc64_x32,
	shf_crc64_x64;
#endif
#endif
