/* SPDX-License-Identifier: Apache-2.0 */
/* The hash of a model: a sum over all items, so ranks may add what they have in any order. */
#ifndef ITEMHASH_H
#define ITEMHASH_H
#include <stddef.h>
#include <stdint.h>

/* Continues a CRC-64/NVME over n more bytes. crc is 0 for the first bytes. */
uint64_t tr_crc64_more(uint64_t crc, const void *bytes, size_t n);
/* CRC-64/NVME of a string. */
uint64_t tr_crc64(const char *text);
/* The finaliser of splitmix64. */
uint64_t tr_splitmix(uint64_t x);
/* Sum of (u | 1) * b modulo 2^64 over items [first, first + n) of the tensor whose name has this
 * CRC: b are the bits of x[i], u is tr_splitmix(name_crc + (index + 1) * 0x9E3779B97F4A7C15). */
uint64_t tr_item_hash(uint64_t name_crc, const float *x, int64_t first, int64_t n);
#endif
