/* SPDX-License-Identifier: Apache-2.0 */
#include "rowread.h"

#include <inttypes.h>
#include <stdlib.h>

/* Allocates an array of zeros. */
static void *new_array(struct tr_batch *b, size_t n, size_t size)
{
	void *a = calloc(n, size);

	b->bytes += a ? (int64_t)(n * size) : 0;
	return a;
}

int64_t tr_batch_bytes(int64_t seqs_max, int64_t seq)
{
	int64_t n = seqs_max * seq, wide = sizeof(int64_t), narrow = sizeof(int32_t);

	return 2 * wide * (seqs_max + 1) - wide + n * (wide + 4 * narrow) + wide +
		(seq + 1) * (wide + narrow + 1);
}

int tr_batch_init(struct tr_batch *b, int64_t seqs_max, int64_t seq, int documents,
		  struct tr_error *err)
{
	size_t seqs = (size_t)seqs_max, n = seqs * (size_t)seq;

	*b = (struct tr_batch){ .seqs_max = seqs_max, .seq = seq, .documents = documents };
	b->begin = new_array(b, seqs + 1, sizeof(*b->begin));
	b->sample = new_array(b, seqs, sizeof(*b->sample));
	b->part = new_array(b, n + 1, sizeof(*b->part));
	b->document = new_array(b, (size_t)seq + 1, sizeof(*b->document));
	b->token = new_array(b, n, sizeof(*b->token));
	b->target = new_array(b, n, sizeof(*b->target));
	b->position = new_array(b, n, sizeof(*b->position));
	b->weight = new_array(b, n, sizeof(*b->weight));
	b->read = new_array(b, (size_t)seq + 1, sizeof(*b->read));
	b->mask = new_array(b, (size_t)seq + 1, 1);
	if (b->begin && b->sample && b->part && b->document && b->token && b->target &&
	    b->position && b->weight && b->read && b->mask)
		return 0;
	tr_batch_release(b);
	return tr_fail(err, TR_ENOMEM, "no memory for the rows of %" PRId64 " samples", seqs_max);
}

void tr_batch_release(struct tr_batch *b)
{
	free(b->begin);
	free(b->sample);
	free(b->part);
	free(b->document);
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
	b->seqs = b->n = b->parts = 0;
	b->begin[0] = b->part[0] = 0;
}

/* Returns how many tokens of a sample have a target: seq, or fewer at the end of the file. */
static int64_t length_of(const struct tr_batch *b, const struct tr_tokenfile *f, int64_t sample)
{
	int64_t left = f->n - 1 - sample * b->seq;

	return left < b->seq ? left : b->seq;
}

/* Sets b->mask[i] to whether token i of the sample counts as a target, and b->document to the
 * documents that begin after its first token. The first token of a document is not a target. */
static int read_mask(struct tr_batch *b, const struct tr_tokenfile *f, int64_t sample, int64_t n,
		     int64_t *documents, struct tr_error *err)
{
	int64_t first = sample * b->seq;
	int rc = tr_tokenfile_mask(f, first, n + 1, b->mask, err);

	*documents = 0;
	if (rc == 0 && b->documents)
		rc = tr_tokenfile_documents(f, first, n + 1, b->document, documents, err);
	for (int64_t i = 0; rc == 0 && i < *documents; i++) {
		b->document[i] -= first;
		b->mask[b->document[i]] = 0;
	}
	return rc;
}

/* Appends the parts of a sample, which begins with row `at` and has n tokens. */
static void add_parts(struct tr_batch *b, int64_t at, int64_t n, int64_t documents)
{
	int64_t begin = 0;

	for (int64_t i = 0; i <= documents && begin < n; i++) {
		int64_t end = i < documents && b->document[i] < n ? b->document[i] : n;

		for (int64_t j = begin; j < end; j++)
			b->position[at + j] = (int32_t)(j - begin);
		b->part[++b->parts] = at + end;
		begin = end;
	}
}

int tr_batch_add(struct tr_batch *b, const struct tr_tokenfile *f, int64_t sample,
		 int64_t position, int64_t vocab, struct tr_error *err)
{
	int64_t n = length_of(b, f, sample), at = b->n, documents;
	int rc = tr_tokenfile_read(f, sample * b->seq, n + 1, vocab, b->read, err);

	if (rc == 0)
		rc = read_mask(b, f, sample, n, &documents, err);
	if (rc < 0)
		return rc;
	for (int64_t i = 0; i < n; i++) {
		b->token[at + i] = b->read[i];
		b->target[at + i] = b->read[i + 1];
		b->weight[at + i] = b->mask[i + 1] == 1;
	}
	add_parts(b, at, n, documents);
	b->sample[b->seqs++] = position;
	b->n += n;
	b->begin[b->seqs] = b->n;
	return 0;
}

int tr_batch_count(struct tr_batch *b, const struct tr_tokenfile *f, int64_t sample,
		   uint64_t *count, struct tr_error *err)
{
	int64_t n = length_of(b, f, sample), documents;
	int rc = read_mask(b, f, sample, n, &documents, err);

	for (int64_t i = 1; rc == 0 && i <= n; i++)
		*count += b->mask[i] == 1;
	return rc;
}
