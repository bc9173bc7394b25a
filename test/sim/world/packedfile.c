/* SPDX-License-Identifier: Apache-2.0 */
#include "packedfile.h"
#include <stdlib.h>

void packed_number(struct torch_bytes *b, uint64_t v, int bytes)
{
	uint8_t out[8];

	for (int i = 0; i < bytes; i++)
		out[i] = (uint8_t)(v >> 8 * i);
	torch_add(b, out, (size_t)bytes);
}

static uint32_t crc_of_bits(const uint8_t *p, size_t n, uint32_t polynomial)
{
	uint32_t sum = UINT32_MAX;

	for (size_t i = 0; i < n; i++) {
		sum ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			sum = sum >> 1 ^ (sum & 1 ? polynomial : 0);
	}
	return ~sum;
}

uint32_t packed_crc32c(const uint8_t *p, size_t n)
{
	return crc_of_bits(p, n, 0x82f63b78);
}

/* Writes blocks of type 0: a flag for the last one, its length, and the complement of the
 * length. */
struct torch_bytes packed_deflate(struct torch_bytes b)
{
	struct torch_bytes out = { NULL, 0, 0 };

	for (size_t at = 0; at == 0 || at < b.n; at += 40000) {
		size_t n = b.n - at < 40000 ? b.n - at : 40000;

		packed_number(&out, at + 40000 >= b.n, 1);
		packed_number(&out, n, 2);
		packed_number(&out, ~n, 2);
		torch_add(&out, b.p + at, n);
	}
	return out;
}

struct torch_bytes packed_gzip(struct torch_bytes b)
{
	struct torch_bytes out = { NULL, 0, 0 }, blocks = packed_deflate(b);

	torch_add(&out, "\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
	torch_add(&out, blocks.p, blocks.n);
	packed_number(&out, crc_of_bits(b.p, b.n, 0xedb88320), 4);
	packed_number(&out, b.n, 4);
	free(blocks.p);
	return out;
}

/* Writes a frame with a window of 1 MiB and without its size, as for a stream, and raw blocks of at
 * most 128 KiB. */
struct torch_bytes packed_zstd(struct torch_bytes b)
{
	struct torch_bytes out = { NULL, 0, 0 };
	const size_t most = 100000;

	packed_number(&out, 0xfd2fb528, 4);
	packed_number(&out, 0, 1);
	packed_number(&out, 10 << 3, 1);
	for (size_t at = 0; at == 0 || at < b.n; at += most) {
		size_t n = b.n - at < most ? b.n - at : most;

		packed_number(&out, n << 3 | (at + most >= b.n), 3);
		torch_add(&out, b.p + at, n);
	}
	return out;
}

/* Writes version 2 of the format with flag 2: the bytes are not compressed. */
struct torch_bytes packed_blosc(struct torch_bytes b)
{
	struct torch_bytes out = { NULL, 0, 0 };

	torch_add(&out, "\x02\x01\x02\x04", 4);
	packed_number(&out, b.n, 4);
	packed_number(&out, b.n ? b.n : 1, 4);
	packed_number(&out, b.n + 16, 4);
	torch_add(&out, b.p, b.n);
	return out;
}
