/* SPDX-License-Identifier: Apache-2.0 */
/* Counts tensors over all ranks (count_tensors.h). Many ranks may hold pieces of a tensor, and each
 * adds a record: u8 kind, u64 key (a hash of the name), u64 bytes. Records are sent to a home rank
 * chosen by the key, so that one rank receives all records of a tensor and can count it once. */
#include "count_tensors.h"
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "sums.h"

#define RECORD 17               /* bytes */
#define MARK UINT64_MAX         /* other messages of match.c begin with the number of a stripe, and
                                 * no stripe has this one */
#define MARK_BYTES 16           /* bytes of MARK and length */

int shf_tensor_counts_init(struct shf_tensor_counts *t, int ranks)
{
	t->ranks = ranks;
	t->out = shf_zalloc((size_t)ranks, sizeof(*t->out));
	return t->out ? 0 : SHEAF_ENOMEM;
}

void shf_tensor_counts_release(struct shf_tensor_counts *t)
{
	shf_bufs_free(t->out, t->ranks);
	t->out = NULL;
}

void shf_tensor_counts_add(struct shf_tensor_counts *t, enum shf_tensor_count_kind kind,
                           const char *family, const char *name, uint64_t bytes)
{
	uint64_t key = shf_sums_key(family, name);
	struct shf_buf *b = &t->out[key % (uint64_t)t->ranks];

	shf_buf_u8(b, (uint8_t)kind);
	shf_buf_u64(b, key);
	shf_buf_u64(b, bytes);
}

/* Orders records by their bytes. Any order would do in which records with equal kind and key are
 * neighbours. */
static int record_order(const void *a, const void *b)
{
	return memcmp(a, b, RECORD);
}

/* Counts each tensor once. After the sort, records with the same first 9 bytes (kind and key) are
 * of one tensor, and only the first one counts. */
static void count_records(struct shf_tensor_counts *t, struct shf_buf *in)
{
	if (in->len)
		qsort(in->data, in->len / RECORD, RECORD, record_order);
	for (size_t at = 0; at + RECORD <= in->len; at += RECORD) {
		const uint8_t *p = in->data + at;

		if (at && memcmp(p, p - RECORD, 9) == 0)
			continue;
		if (!always(p[0] < SHF_COUNT_KINDS))
			continue;
		t->counts[p[0]]++;
		t->bytes[p[0]] += shf_get64(p + 9);
	}
}

int shf_tensor_counts_exchange(struct shf_tensor_counts *t, struct shf_team *team, int rc,
                               struct sheaf_error *err)
{
	struct shf_buf in = SHF_BUF_INIT;

	rc = shf_exchange(team, rc, t->out, &in, NULL, err);
	if (rc == 0)
		count_records(t, &in);
	shf_buf_release(&in);
	return rc;
}

void shf_tensor_counts_pack(const struct shf_tensor_counts *t, struct shf_buf *out)
{
	for (int r = 0; r < t->ranks; r++) {
		const struct shf_buf *b = &t->out[r];

		out[r].oom = out[r].oom || b->oom;
		if (b->len == 0)
			continue;
		shf_buf_u64(&out[r], MARK);
		shf_buf_u64(&out[r], b->len);
		shf_buf_add(&out[r], b->data, b->len);
	}
}

int shf_tensor_counts_unpack(struct shf_tensor_counts *t, struct shf_buf *in, size_t *in_bytes)
{
	struct shf_buf records = SHF_BUF_INIT;
	uint8_t *from = in->data, *to = in->data;
	bool oom;

	for (int r = 0; r < t->ranks && in->len > 0; r++) {
		size_t len = in_bytes[r], skip = 0;

		/* What follows the records is moved down, to the end of the messages kept so
		 * far. */
		if (len >= MARK_BYTES && shf_get64(from) == MARK) {
			uint64_t n = shf_get64(from + 8);

			if (!always(n <= len - MARK_BYTES && n % RECORD == 0)) {
				shf_buf_release(&records);
				return SHEAF_EBUG;
			}
			shf_buf_add(&records, from + MARK_BYTES, (size_t)n);
			skip = MARK_BYTES + (size_t)n;
		}
		in_bytes[r] = len - skip;
		if (in_bytes[r] > 0)
			memmove(to, from + skip, in_bytes[r]);
		to += in_bytes[r];
		from += len;
	}
	oom = records.oom;
	if (to)
		in->len = (size_t)(to - in->data);
	if (!oom)
		count_records(t, &records);
	shf_buf_release(&records);
	return oom ? SHEAF_ENOMEM : 0;
}

/* Returns how many bits hold a count from 0 to the number of ranks. */
static unsigned count_bits(const struct shf_team *team)
{
	unsigned bits = 1;

	while ((uint64_t)team->ranks >> bits)
		bits++;
	return bits;
}

size_t shf_allreduce_or_words(const struct shf_team *team, size_t n)
{
	return n / (64 / count_bits(team)) + 1;
}

/* Each bit becomes a counter of count_bits() bits, which cannot overflow, so no carry reaches the
 * next counter. One sum over all words then counts every bit separately; a count that is not 0
 * means that some rank has the bit. */
int shf_allreduce_or(struct shf_team *team, uint64_t *x, size_t n, uint64_t *counts, size_t more,
                     struct sheaf_error *err)
{
	unsigned bits = count_bits(team);
	size_t each = 64 / bits;
	int rc;

	memset(counts, 0, shf_allreduce_or_words(team, n) * sizeof(*counts));
	for (size_t i = 0; i < n; i++)
		counts[i / each] |= (x[i / 64] >> (i % 64) & 1) << i % each * bits;
	rc = shf_allreduce(team, counts, shf_allreduce_or_words(team, n) + more, SHEAF_SUM, err);
	for (size_t i = 0; rc == 0 && i < n; i++)
		if (counts[i / each] >> i % each * bits & ((UINT64_C(1) << bits) - 1))
			x[i / 64] |= UINT64_C(1) << i % 64;
	return rc;
}
