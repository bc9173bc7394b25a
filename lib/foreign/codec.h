/* SPDX-License-Identifier: Apache-2.0 */
/* What decodes a stream of compressed bytes: zlib, libzstd, libblosc, as far as the library was
 * built with them. */
#ifndef SHF_CODEC_H
#define SHF_CODEC_H
#include "unpack.h"

struct shf_codec_state;
struct shf_codec_step {
	const uint8_t *in;
	uint8_t *out;
	size_t in_n, out_n;             /* bytes that are left of `in`, and of the room in `out` */
	bool ended;                     /* set when the stream has ended */
	bool oom;                       /* set if there was no memory */
};
/* Begins a stream. NULL: out of memory. The library must be built with the codec. The codec must
 * not be blosc, which is decoded as a whole. */
struct shf_codec_state *shf_codec_begin(enum shf_codec codec);
void shf_codec_end(struct shf_codec_state *c);  /* NULL is fine */
/* Decodes some bytes, and moves `in` and `out` past them. Returns false if there is no memory, or
 * if they are damaged, and sets *why to what the codec says. */
bool shf_codec_more(struct shf_codec_state *c, struct shf_codec_step *s, const char **why);
/* Decodes n bytes of blosc to out_n bytes. Returns false if they are damaged. */
bool shf_codec_blosc(const uint8_t *in, size_t n, uint8_t *out, size_t out_n);
#endif
