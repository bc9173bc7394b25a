/* SPDX-License-Identifier: Apache-2.0 */
/* A file of tokens: safetensors with `tokens` (U16 or U32, [n]), `documents` (I64, [d + 1]: where
 * each begins, and n), and perhaps `mask` (U8, [n]; 1: the token counts as a target). */
#ifndef TOKENFILE_H
#define TOKENFILE_H
#include <stdint.h>

#include "tr_error.h"

struct tr_tokenfile {
	char *path;                     /* owned */
	int fd;
	int64_t n;                      /* tokens */
	int item_bytes;                 /* of a token: 2 or 4 */
	int64_t tokens_at, mask_at;     /* in the file; mask_at -1: there is none */
	int64_t bytes;                  /* of the file */
};
int tr_tokenfile_open(struct tr_tokenfile *f, const char *path, struct tr_error *err);
void tr_tokenfile_close(struct tr_tokenfile *f);
/* Reads tokens [first, first + n), and no other byte of the file. mask gets 1 where there is none.
 * EINVAL: a token is not below vocab. */
int tr_tokenfile_read(const struct tr_tokenfile *f, int64_t first, int64_t n, int64_t vocab,
		      int32_t *token, uint8_t *mask, struct tr_error *err);
/* A hash of the size of the file and of its first and last MiB: quick, and enough to notice that it
 * is another one. */
int tr_tokenfile_hash(const struct tr_tokenfile *f, uint64_t *hash, struct tr_error *err);

/* Samples of `seq` tokens: sample i has inputs tokens[i * seq ...] and targets one later; the last
 * one may be shorter. */
int64_t tr_tokenfile_samples(const struct tr_tokenfile *f, int64_t seq);
#endif
