/* SPDX-License-Identifier: Apache-2.0 */
/* Source: docs/gguf.md of ggml. */
#include "gguf_write.h"
#include <string.h>

void shf_gguf_text(struct shf_buf *out, const char *text, size_t n)
{
	shf_buf_u64(out, n);
	shf_buf_add(out, text, n);
}

void shf_gguf_f32(struct shf_buf *out, float v)
{
	uint32_t bits;

	memcpy(&bits, &v, 4);
	shf_buf_u32(out, bits);
}

static void put_gguf_key(struct shf_gguf_out *o, const char *key, enum shf_gguf_kind kind)
{
	shf_gguf_text(&o->bytes, key, strlen(key));
	shf_buf_u32(&o->bytes, kind);
	o->values++;
}

void shf_gguf_put_text(struct shf_gguf_out *o, const char *key, const char *text)
{
	put_gguf_key(o, key, SHF_GGUF_TEXT);
	shf_gguf_text(&o->bytes, text, strlen(text));
}

void shf_gguf_put_u32(struct shf_gguf_out *o, const char *key, uint32_t v)
{
	put_gguf_key(o, key, SHF_GGUF_U32);
	shf_buf_u32(&o->bytes, v);
}

void shf_gguf_put_f32(struct shf_gguf_out *o, const char *key, double v)
{
	put_gguf_key(o, key, SHF_GGUF_F32);
	shf_gguf_f32(&o->bytes, (float)v);
}

void shf_gguf_put_bool(struct shf_gguf_out *o, const char *key, bool v)
{
	put_gguf_key(o, key, SHF_GGUF_BOOL);
	shf_buf_u8(&o->bytes, v);
}

void shf_gguf_put_array(struct shf_gguf_out *o, const char *key, enum shf_gguf_kind kind,
                        uint64_t n)
{
	put_gguf_key(o, key, SHF_GGUF_ARRAY);
	shf_buf_u32(&o->bytes, kind);
	shf_buf_u64(&o->bytes, n);
}
