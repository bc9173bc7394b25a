/* SPDX-License-Identifier: Apache-2.0 */
#include "rowread.h"

#include <inttypes.h>
#include <stdlib.h>

int tr_batch_init(struct tr_batch *b, int64_t seqs_max, int64_t seq, struct tr_error *err)
{
	size_t seqs = (size_t)seqs_max, n = seqs * (size_t)seq;

	*b = (struct tr_batch){ .seqs_max = seqs_max, .seq = seq };
	b->begin = calloc(seqs + 1, sizeof(*b->begin));
	b->sample = calloc(seqs, sizeof(*b->sample));
	b->token = calloc(n, sizeof(*b->token));
	b->target = calloc(n, sizeof(*b->target));
	b->position = calloc(n, sizeof(*b->position));
	b->weight = calloc(n, sizeof(*b->weight));
	b->read = calloc((size_t)seq + 1, sizeof(*b->read));
	b->mask = calloc((size_t)seq + 1, 1);
	if (b->begin && b->sample && b->token && b->target && b->position && b->weight && b->read &&
	    b->mask)
		return 0;
	tr_batch_release(b);
	return tr_fail(err, TR_ENOMEM, "no memory for a micro-batch of %" PRId64 " samples",
		       seqs_max);
}

void tr_batch_release(struct tr_batch *b)
{
	free(b->begin);
	free(b->sample);
	free(b->token);
	free(b->target);
	free(b->position);
	free(b->weight);
	free(b->read);
	free(b->mask);
	*b = (struct tr_batch){ .n = 0 };
}

void tr_batch_clear(struct tr_batch *b)
{
	b->seqs = b->n = 0;
	b->begin[0] = 0;
}

/* Returns how many tokens of a sample have a target: seq, or fewer at the end of the file. */
static int64_t length_of(const struct tr_batch *b, const struct tr_tokenfile *f, int64_t sample)
{
	int64_t left = f->n - 1 - sample * b->seq;

	return left < b->seq ? left : b->seq;
}

/* Sets b->mask[i] to whether token i of the sample counts as a target. */
static int read_mask(struct tr_batch *b, const struct tr_tokenfile *f, int64_t sample, int64_t n,
		     struct tr_error *err)
{
	return tr_tokenfile_mask(f, sample * b->seq, n + 1, b->mask, err);
}

int tr_batch_add(struct tr_batch *b, const struct tr_tokenfile *f, int64_t sample,
		 int64_t position, int64_t vocab, struct tr_error *err)
{
	int64_t n = length_of(b, f, sample), at = b->n;
	int rc = tr_tokenfile_read(f, sample * b->seq, n + 1, vocab, b->read, err);

	if (rc == 0)
		rc = read_mask(b, f, sample, n, err);
	if (rc < 0)
		return rc;
	for (int64_t i = 0; i < n; i++) {
		b->token[at + i] = b->read[i];
		b->target[at + i] = b->read[i + 1];
		b->weight[at + i] = b->mask[i + 1] == 1;
		b->position[at + i] = (int32_t)i;
	}
	b->sample[b->seqs++] = position;
	b->n += n;
	b->begin[b->seqs] = b->n;
	return 0;
}

int tr_batch_count(struct tr_batch *b, const struct tr_tokenfile *f, int64_t sample,
		   uint64_t *count, struct tr_error *err)
{
	int64_t n = length_of(b, f, sample);
	int rc = read_mask(b, f, sample, n, err);

	for (int64_t i = 1; rc == 0 && i <= n; i++)
		*count += b->mask[i] == 1;
	return rc;
}
