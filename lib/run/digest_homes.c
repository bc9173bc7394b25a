/* SPDX-License-Identifier: Apache-2.0 */
/* Wire: u32 tensor | asked << 31, u64 digest, u64 bytes. Digests are added by XOR, so it does not
 * matter in which order the parts come. */
#include "digest_homes.h"
#include "err.h"

#define ASKED (UINT32_C(1) << 31)

int shf_digests_init(struct shf_digests *d, struct shf_team *team, uint64_t n,
                     struct sheaf_error *err)
{
	uint64_t ranks = (uint64_t)team->ranks, rank = (uint64_t)team->rank;

	*d = (struct shf_digests){ .team = team, .n = n, .first = (rank * n + ranks - 1) / ranks,
		.end = ((rank + 1) * n + ranks - 1) / ranks,
		.to = shf_zalloc((size_t)ranks, sizeof(*d->to)) };
	d->whole = shf_zalloc((size_t)(d->end - d->first), sizeof(*d->whole));
	return d->to && d->whole ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory to compare digests");
}

void shf_digests_add(struct shf_digests *d, uint32_t tensor, uint64_t digest, uint64_t bytes,
                     bool asked)
{
	struct shf_buf *b = &d->to[tensor * (uint64_t)d->team->ranks / d->n];

	shf_buf_u32(b, tensor | (asked ? ASKED : 0));
	shf_buf_u64(b, digest);
	shf_buf_u64(b, bytes);
}

static int add_up_digests(struct shf_digests *d, const struct shf_buf *in, struct sheaf_error *err)
{
	struct shf_cur c = { in->data, in->data + in->len, false };

	while (c.p < c.end) {
		uint32_t word = shf_cur_u32(&c), t = word & ~ASKED;
		uint64_t digest = shf_cur_u64(&c), bytes = shf_cur_u64(&c);

		if (!always(!c.bad && t >= d->first && t < d->end))
			return shf_fail(err, SHEAF_EBUG,
			                "digests of tensor %u came to the wrong rank", t);
		d->whole[t - d->first].digest ^= digest;
		d->whole[t - d->first].bytes += bytes;
		d->whole[t - d->first].asked |= word != t;
	}
	return 0;
}

int shf_digests_exchange(struct shf_digests *d, int rc, struct sheaf_error *err)
{
	struct shf_buf in = SHF_BUF_INIT;

	rc = shf_exchange(d->team, rc, d->to, &in, NULL, err);
	if (rc == 0)
		rc = shf_agree(d->team, add_up_digests(d, &in, err), err);
	shf_buf_release(&in);
	return rc;
}

void shf_digests_release(struct shf_digests *d)
{
	for (int r = 0; d->to && r < d->team->ranks; r++)
		shf_buf_release(&d->to[r]);
	shf_free(d->to);
	shf_free(d->whole);
}
