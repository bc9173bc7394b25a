/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of a token file as rows. */
#ifndef ROWREAD_H
#define ROWREAD_H
#include "rows.h"
#include "tokenfile.h"

/* The memory of some samples. The members are those of struct tr_rows. */
struct tr_batch {
	int64_t seqs_max, seq;          /* samples, and tokens of a sample */
	int documents;                  /* 1: parts are what the samples have of each document */
	int64_t seqs, n, parts;
	int64_t *begin, *sample, *part;
	int32_t *token, *target, *position;
	float *weight;
	/* One sample and the token after it, and the documents that begin there. */
	int64_t *document;
	int32_t *read;
	uint8_t *mask;
	int64_t bytes;                  /* of all arrays */
};
/* Returns the bytes of the arrays of a batch. */
int64_t tr_batch_bytes(int64_t seqs_max, int64_t seq);

int tr_batch_init(struct tr_batch *b, int64_t seqs_max, int64_t seq, int documents,
		  struct tr_error *err);
void tr_batch_release(struct tr_batch *b);
/* Removes all samples. */
void tr_batch_clear(struct tr_batch *b);
/* Appends a sample of the file, which is at that position of the run. The target of each token is
 * the one after it. With b->documents the last token of a document has none, and positions are
 * those in the part. EINVAL: a token is not below vocab. */
int tr_batch_add(struct tr_batch *b, const struct tr_tokenfile *f, int64_t sample,
		 int64_t position, int64_t vocab, struct tr_error *err);
/* Adds the number of targets of a sample to *count. Those that are masked do not count. */
int tr_batch_count(struct tr_batch *b, const struct tr_tokenfile *f, int64_t sample,
		   uint64_t *count, struct tr_error *err);
#endif
