/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates streams and computes where each of them lies. */
#include "streams.h"
#include "sheaf.h"

int shf_streams_init(struct shf_streams *s, int ranks)
{
	size_t n = (size_t)ranks, *a = shf_zalloc(4 * n, sizeof(*a));

	*s = (struct shf_streams){ 0 };
	if (!a)
		return SHEAF_ENOMEM;
	*s = (struct shf_streams){ .ranks = n, .out_bytes = a, .in_bytes = a + n,
		.out_at = a + 2 * n, .in_at = a + 3 * n };
	return 0;
}

/* Computes where each stream begins if they lie one after the other. *longest becomes the length of
 * the longest, if that is more. Returns the total length. */
static size_t starts_of(const size_t *bytes, size_t *at, size_t ranks, uint64_t *longest)
{
	size_t total = 0;

	for (size_t r = 0; r < ranks; r++) {
		at[r] = total;
		total += bytes[r];
		*longest = bytes[r] > *longest ? bytes[r] : *longest;
	}
	return total;
}

int shf_streams_reserve(struct shf_streams *s)
{
	s->out_total = starts_of(s->out_bytes, s->out_at, s->ranks, &s->longest);
	s->in_total = starts_of(s->in_bytes, s->in_at, s->ranks, &s->longest);
	s->out = shf_alloc(s->out_total, 1);
	s->in = shf_alloc(s->in_total, 1);
	return s->out && s->in ? 0 : SHEAF_ENOMEM;
}

void shf_streams_release(struct shf_streams *s)
{
	shf_free(s->out_bytes);
	shf_free(s->out);
	shf_free(s->in);
	*s = (struct shf_streams){ 0 };
}
