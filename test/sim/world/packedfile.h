/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes bytes in formats of compression libraries, by hand: with the blocks that each format has
 * for incompressible data. Needs none of the libraries. */
#ifndef PACKEDFILE_H
#define PACKEDFILE_H
#include "torchfile.h"

/* Return `b` in that format. */
struct torch_bytes packed_deflate(struct torch_bytes b);
struct torch_bytes packed_gzip(struct torch_bytes b);
struct torch_bytes packed_zstd(struct torch_bytes b);
struct torch_bytes packed_blosc(struct torch_bytes b);
uint32_t packed_crc32c(const uint8_t *p, size_t n);
/* Appends a little-endian number of so many bytes. */
void packed_number(struct torch_bytes *b, uint64_t v, int bytes);
#endif
