/* SPDX-License-Identifier: Apache-2.0 */
/* Counts tensors over all ranks (count_tensors.h). Many ranks may hold pieces of a tensor, and each
 * adds a record: u8 kind, u64 key (a hash of the name), u64 bytes. Records are sent to a home rank
 * chosen by the key, so that one rank receives all records of a tensor and can count it once. */
#include "count_tensors.h"
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "sums.h"

#define RECORD 17       /* bytes */

int shf_tally_init(struct shf_tally *t, int ranks)
{
	t->ranks = ranks;
	t->out = shf_zalloc((size_t)ranks, sizeof(*t->out));
	return t->out ? 0 : SHEAF_ENOMEM;
}

void shf_tally_release(struct shf_tally *t)
{
	for (int r = 0; t->out && r < t->ranks; r++)
		shf_buf_release(&t->out[r]);
	shf_free(t->out);
	t->out = NULL;
}

void shf_tally_add(struct shf_tally *t, enum shf_tally_kind kind, const char *family,
                   const char *name, uint64_t bytes)
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

/* After the sort, records with the same first 9 bytes (kind and key) are of one tensor, and
 * only the first counts. The sums of all homes are then added, with the caller's own words in
 * the same operation, as every operation of the group costs a round trip. */
int shf_tally_count(struct shf_tally *t, struct shf_team *team, uint64_t *counts, uint64_t *bytes,
                    uint64_t *more, size_t more_n, struct sheaf_error *err)
{
	struct shf_buf in = SHF_BUF_INIT;
	uint64_t sums[2 * SHF_T_KINDS + SHF_TALLY_MORE] = { 0 };
	int rc = always(more_n <= SHF_TALLY_MORE) ? 0 : SHEAF_EBUG;

	rc = shf_exchange(team, rc, t->out, &in, NULL, err);
	if (rc == 0 && in.len) {
		qsort(in.data, in.len / RECORD, RECORD, record_order);
		for (size_t at = 0; at + RECORD <= in.len; at += RECORD) {
			const uint8_t *p = in.data + at;

			if (at && memcmp(p, p - RECORD, 9) == 0)
				continue;
			if (!always(p[0] < SHF_T_KINDS))
				continue;
			sums[p[0]]++;
			sums[SHF_T_KINDS + p[0]] += shf_get64(p + 9);
		}
	}
	if (rc == 0) {
		memcpy(sums + 2 * SHF_T_KINDS, more, more_n * sizeof(*more));
		rc = shf_allreduce(team, sums, 2 * SHF_T_KINDS + more_n, SHEAF_SUM, err);
	}
	if (rc == 0) {
		memcpy(more, sums + 2 * SHF_T_KINDS, more_n * sizeof(*more));
		memcpy(counts, sums, sizeof(uint64_t) * SHF_T_KINDS);
		memcpy(bytes, sums + SHF_T_KINDS, sizeof(uint64_t) * SHF_T_KINDS);
	}
	shf_buf_release(&in);
	return rc;
}

/* Returns how many bits hold a count from 0 to the number of ranks. */
static unsigned count_bits(const struct shf_team *team)
{
	unsigned bits = 1;

	while ((uint64_t)team->ranks >> bits)
		bits++;
	return bits;
}

size_t shf_or_words(const struct shf_team *team, size_t n)
{
	return n / (64 / count_bits(team)) + 1;
}

/* Each bit becomes a counter of count_bits() bits, which cannot overflow, so no carry reaches the
 * next counter. One sum over all words then counts every bit separately; a count that is not 0
 * means that some rank has the bit. */
int shf_or(struct shf_team *team, uint64_t *x, size_t n, uint64_t *counts, struct sheaf_error *err)
{
	unsigned bits = count_bits(team);
	size_t each = 64 / bits;
	int rc;

	memset(counts, 0, shf_or_words(team, n) * sizeof(*counts));
	for (size_t i = 0; i < n; i++)
		counts[i / each] |= (x[i / 64] >> (i % 64) & 1) << i % each * bits;
	rc = shf_allreduce(team, counts, shf_or_words(team, n), SHEAF_SUM, err);
	for (size_t i = 0; rc == 0 && i < n; i++)
		if (counts[i / each] >> i % each * bits & ((UINT64_C(1) << bits) - 1))
			x[i / 64] |= UINT64_C(1) << i % 64;
	return rc;
}
