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
	size_t in_n, out_n;             /* what there is and room; are lowered by what was used */
	bool ended;                     /* is set when the stream has ended */
	bool oom;                       /* is set if memory was out */
};
/* NULL: out of memory. The codec is built, and none that has to be decoded as a whole. */
struct shf_codec_state *shf_codec_begin(enum shf_codec codec);
void shf_codec_end(struct shf_codec_state *c);  /* NULL is fine */
/* Decodes some bytes. Returns false if they are damaged, and sets *why to what the codec says; or
 * if memory is out. */
bool shf_codec_more(struct shf_codec_state *c, struct shf_codec_step *s, const char **why);
/* Decodes n bytes of blosc to out_n bytes. Returns false if they are damaged. */
bool shf_codec_blosc(const uint8_t *in, size_t n, uint8_t *out, size_t out_n);
#endif
