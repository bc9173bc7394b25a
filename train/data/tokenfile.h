/* SPDX-License-Identifier: Apache-2.0 */
/* A token file is a safetensors file with `tokens` (U16 or U32, [n]), `documents` (I64, [d + 1]:
 * where each document begins, and n) and perhaps `mask` (U8, [n]; 1: the token counts as a
 * target; 0: it does not). */
#ifndef TOKENFILE_H
#define TOKENFILE_H
#include <stdint.h>

#include "tr_error.h"

struct tr_tokenfile {
	char *path;                     /* owned */
	int fd;
	int64_t n;                      /* tokens */
	int item_bytes;                 /* of a token: 2 or 4 */
	int64_t header;                 /* bytes before the tensors */
	int64_t tokens_at;              /* in the file, as the next two; -1: there is none */
	int64_t mask_at, documents_at;
	int64_t documents;              /* that begin in the file */
	int64_t bytes;                  /* of the file */
};
int tr_tokenfile_open(struct tr_tokenfile *f, const char *path, struct tr_error *err);
void tr_tokenfile_close(struct tr_tokenfile *f);
/* Reads tokens [first, first + n). EINVAL: one of them is not below vocab. */
int tr_tokenfile_read(const struct tr_tokenfile *f, int64_t first, int64_t n, int64_t vocab,
		      int32_t *token, struct tr_error *err);
/* Reads the mask of tokens [first, first + n). If the file has none, all of it is 1. EFORMAT: an
 * item is neither 0 nor 1. */
int tr_tokenfile_mask(const struct tr_tokenfile *f, int64_t first, int64_t n, uint8_t *mask,
		      struct tr_error *err);
/* Checks that the file has documents, and that all of them are in order. It reads 8 bytes for each
 * of them. EFORMAT: they are not; the message has the number of the first one that is not. */
int tr_tokenfile_check_documents(const struct tr_tokenfile *f, struct tr_error *err);
/* Finds the documents that begin after token `first` and before token first + n, or in between.
 * begin  receives the tokens with which they begin, in ascending order; it has room for n
 * Sets *found to their number. Documents without tokens are left out.
 * The file must have passed tr_tokenfile_check_documents. EFORMAT: it has changed since. */
int tr_tokenfile_documents(const struct tr_tokenfile *f, int64_t first, int64_t n, int64_t *begin,
			   int64_t *found, struct tr_error *err);
/* Sets *hash to a hash of the size of the file, its header, and the last MiB of its tokens, of
 * its mask and of its documents. That is quick, and tells most files apart. A change in the middle
 * of a large file is not noticed. */
int tr_tokenfile_hash(const struct tr_tokenfile *f, uint64_t *hash, struct tr_error *err);

/* Returns the number of samples of `seq` tokens. The inputs of sample i are tokens[i * seq ...],
 * and the target of each is the token after it. The last sample may be shorter. */
int64_t tr_tokenfile_samples(const struct tr_tokenfile *f, int64_t seq);
#endif
