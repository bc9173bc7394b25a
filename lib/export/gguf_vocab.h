/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer of a GGUF file, from tokenizer.model of SentencePiece, or else from
 * tokenizer.json, and from the files beside it. */
#ifndef SHF_GGUF_VOCAB_H
#define SHF_GGUF_VOCAB_H
#include "gguf_write.h"
#include "json_walk.h"
#include "sheaf.h"

enum { SHF_GGUF_NORMAL = 1, SHF_GGUF_UNKNOWN, SHF_GGUF_CONTROL, SHF_GGUF_USER_DEFINED,
	SHF_GGUF_UNUSED, SHF_GGUF_BYTE };       /* types of tokens */
struct shf_gguf_token {
	const char *text;               /* NULL: there is no token of this number */
	size_t n;
	float score;
	int32_t type;
};
struct shf_gguf_vocab {
	struct shf_arena arena;
	struct shf_gguf_token *tokens;  /* owned */
	size_t rows;                    /* how many: one for each row of the embedding */
	bool is_spm;                    /* of SentencePiece: tokens have scores, and no merges */
	const char *pre;                /* name that llama.cpp has for the pre-tokenizer */
	struct shf_buf merges;          /* texts, as GGUF has them */
	uint64_t merges_n;
	size_t merge_at;                /* where the last of them begins */
	int merge_half;                 /* of an array of two texts: which one was read last, 1 or
	                                 * 2; 0: none */
	struct shf_buf added;           /* struct added of gguf_vocab.c */
	struct shf_json_facts json;     /* tokenizer.json, without tokens and merges */
	struct shf_json_facts config;   /* tokenizer_config.json */
	struct shf_buf chat;            /* chat template, with a NUL; empty: there is none */
};
/* Reads the tokenizer of the step. EINVAL: there is none, it is of an unknown kind, or it has
 * tokens beyond the rows. The caller releases *v after a failure, too. */
int shf_gguf_vocab_read(struct shf_gguf_vocab *v, struct sheaf_checkpoint *step, size_t rows,
                        struct sheaf_error *err);
/* Puts the metadata. model: config.json, which may have the numbers of special tokens. */
void shf_gguf_vocab_put(struct shf_gguf_out *o, const struct shf_gguf_vocab *v,
                        const struct shf_json_facts *model);
void shf_gguf_vocab_release(struct shf_gguf_vocab *v);
/* Take a value of tokenizer.json, of tokenizer_config.json, and of added_tokens.json. arg: the
 * vocabulary. */
int shf_gguf_tokenizer_leaf(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err);
int shf_gguf_config_leaf(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err);
int shf_gguf_added_leaf(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err);
/* Checks that tokenizer.json is of a kind that llama.cpp computes, and finds v->pre. */
int shf_gguf_vocab_check(struct shf_gguf_vocab *v, struct sheaf_error *err);
/* Sets the added tokens, when all files were read. */
int shf_gguf_vocab_end(struct shf_gguf_vocab *v, struct sheaf_error *err);
/* Sets token number id. text: copied. EINVAL: it is beyond the rows. */
int shf_gguf_vocab_set(struct shf_gguf_vocab *v, uint64_t id, struct shf_gguf_token token,
                       struct sheaf_error *err);
/* Reads the bytes of a file tokenizer.model. EFORMAT. */
int shf_gguf_spm_read(struct shf_gguf_vocab *v, const void *bytes, size_t n,
                      struct sheaf_error *err);
#endif
