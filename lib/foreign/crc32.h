/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32 as zip archives have it: reflected polynomial 0xEDB88320, init and xorout all ones. */
#ifndef SHF_CRC32_H
#define SHF_CRC32_H
#include <stddef.h>
#include <stdint.h>

struct shf_crc32 {              /* tables, made once for many sums */
	uint32_t table[8][256];
};
void shf_crc32_init(struct shf_crc32 *c);
/* Makes the tables of CRC-32C, as OCDBT and Zarr have it: reflected polynomial 0x82F63B78. Only
 * shf_crc32_more works with them. */
void shf_crc32c_init(struct shf_crc32 *c);
/* Continues a sum over n bytes. The sum of nothing is 0. */
uint32_t shf_crc32_more(const struct shf_crc32 *c, uint32_t sum, const void *bytes, size_t n);
/* Returns what a part with this sum adds (by XOR) to the sum of a message in which n bytes follow
 * the part. So the sum of a message is the XOR of those of its parts, in any order. Takes time
 * O(log n). */
uint32_t shf_crc32_shift(uint32_t sum, uint64_t n);
#endif
