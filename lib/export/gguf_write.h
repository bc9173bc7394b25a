/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the metadata of a GGUF file: values with keys. */
#ifndef SHF_GGUF_WRITE_H
#define SHF_GGUF_WRITE_H
#include "mem.h"

enum shf_gguf_kind { SHF_GGUF_U32 = 4, SHF_GGUF_I32, SHF_GGUF_F32, SHF_GGUF_BOOL, SHF_GGUF_TEXT,
	SHF_GGUF_ARRAY };
struct shf_gguf_out {
	struct shf_buf bytes;           /* of all values; owned by the caller */
	uint64_t values;                /* how many there are */
};
/* Appends a text as GGUF has it: its length and its bytes. */
void shf_gguf_text(struct shf_buf *out, const char *text, size_t n);
void shf_gguf_f32(struct shf_buf *out, float v);
void shf_gguf_put_text(struct shf_gguf_out *o, const char *key, const char *text);
void shf_gguf_put_u32(struct shf_gguf_out *o, const char *key, uint32_t v);
void shf_gguf_put_f32(struct shf_gguf_out *o, const char *key, double v);
void shf_gguf_put_bool(struct shf_gguf_out *o, const char *key, bool v);
/* Begins an array of n items, which the caller appends to o->bytes. */
void shf_gguf_put_array(struct shf_gguf_out *o, const char *key, enum shf_gguf_kind kind,
                        uint64_t n);
#endif
