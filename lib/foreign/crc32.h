/* SPDX-License-Identifier: Apache-2.0 */
/* Two checksums that other software stores: CRC-32 and CRC-32C, both reflected, with init and
 * xorout all ones. They differ in the polynomial. */
#ifndef SHF_CRC32_H
#define SHF_CRC32_H
#include <stddef.h>
#include <stdint.h>

struct shf_crc32 {              /* what depends on the polynomial, made once for many sums */
	uint32_t table[8][256];
	uint64_t ahead[2][2];           /* factors that move a lane of 16 bytes ahead by 16
	                                 * bytes, and by 64 */
};
/* Prepares for CRC-32, the sum of zip archives: polynomial 0xEDB88320. */
void shf_crc32_init(struct shf_crc32 *c);
/* Prepares for CRC-32C, the sum of OCDBT and Zarr: polynomial 0x82F63B78.
 * shf_crc32_shift does not work on these sums. */
void shf_crc32c_init(struct shf_crc32 *c);
/* Continues a sum over n bytes. The sum of nothing is 0. */
uint32_t shf_crc32_more(const struct shf_crc32 *c, uint32_t sum, const void *bytes, size_t n);
/* Returns what a part with this sum adds (by XOR) to the sum of a message in which n bytes follow
 * the part. So the sum of a message is the XOR of those of its parts, in any order. Takes time
 * O(log n). */
uint32_t shf_crc32_shift(uint32_t sum, uint64_t n);
#endif
