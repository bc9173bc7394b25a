/* SPDX-License-Identifier: Apache-2.0 */
/* Records of 17 bytes, u8 kind, u64 key, u64 bytes, meet at a home by key and are counted there. */
#include "tally.h"
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "sums.h"

#define RECORD 17

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

static int order(const void *a, const void *b)
{
	return memcmp(a, b, RECORD);
}

int shf_tally_count(struct shf_tally *t, struct shf_team *team, uint64_t *counts, uint64_t *bytes,
                    struct sheaf_error *err)
{
	size_t *in_bytes = shf_zalloc((size_t)team->ranks, sizeof(*in_bytes));
	struct shf_buf in = SHF_BUF_INIT;
	uint64_t sums[2 * SHF_T_KINDS] = { 0 };
	int rc = in_bytes ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory to count");

	rc = shf_exchange(team, rc, t->out, &in, in_bytes, err);
	if (rc == 0 && in.len) {
		qsort(in.data, in.len / RECORD, RECORD, order);
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
	if (rc == 0)
		rc = shf_allreduce(team, sums, 2 * SHF_T_KINDS, SHEAF_SUM, err);
	if (rc == 0) {
		memcpy(counts, sums, sizeof(uint64_t) * SHF_T_KINDS);
		memcpy(bytes, sums + SHF_T_KINDS, sizeof(uint64_t) * SHF_T_KINDS);
	}
	shf_buf_release(&in);
	shf_free(in_bytes);
	return rc;
}

/* Dissemination: in round k to the rank 2^k further on. OR does not mind hearing twice. */
static int or_round(struct shf_team *team, uint64_t *x, uint64_t *heard, size_t n, int far,
                    size_t *bytes, struct sheaf_error *err)
{
	size_t *out = bytes, *in = bytes + team->ranks;

	memset(bytes, 0, 2 * sizeof(*bytes) * (size_t)team->ranks);
	out[(team->rank + far) % team->ranks] = n * sizeof(*x);
	in[(team->rank + team->ranks - far % team->ranks) % team->ranks] = n * sizeof(*x);
	int rc = shf_alltoallv(team, x, out, heard, in, err);
	for (size_t i = 0; i < n && rc == 0; i++)
		x[i] |= heard[i];
	return rc;
}

int shf_or(struct shf_team *team, uint64_t *x, size_t n, struct sheaf_error *err)
{
	uint64_t *heard = shf_alloc(n, sizeof(*heard));
	size_t *bytes = shf_alloc(2 * (size_t)team->ranks, sizeof(*bytes));
	int rc = shf_agree(team, heard && bytes ? 0
	                   : shf_fail(err, SHEAF_ENOMEM, "no memory for %zu words", n), err);

	for (int far = 1; far < team->ranks && rc == 0; far *= 2)
		rc = or_round(team, x, heard, n, far, bytes, err);
	shf_free(heard);
	shf_free(bytes);
	return rc;
}
