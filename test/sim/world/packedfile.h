/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes in the forms of compression libraries, made by hand: the blocks are those that each form
 * has for data that do not compress. Needs none of the libraries. */
#ifndef PACKEDFILE_H
#define PACKEDFILE_H
#include "torchfile.h"

/* Return `b` in that form. */
struct torch_bytes packed_deflate(struct torch_bytes b);
struct torch_bytes packed_gzip(struct torch_bytes b);
struct torch_bytes packed_zstd(struct torch_bytes b);
struct torch_bytes packed_blosc(struct torch_bytes b);
uint32_t packed_crc32c(const uint8_t *p, size_t n);
/* Appends a number, little-endian, of so many bytes. */
void packed_number(struct torch_bytes *b, uint64_t v, int bytes);
#endif
