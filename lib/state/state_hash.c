/* SPDX-License-Identifier: Apache-2.0 */
/* A hash of all that a state describes, except where its memory is.
 *
 * Numbers have eight bytes each and strings end with a NUL, and every slice has the same numbers in
 * the same order, so two different states never give the same bytes (NULL and "" are the same). The
 * slices are hashed as they are kept, in units: two ways to write the same slice give the same
 * hash. */
#include "state_hash.h"
#include <string.h>
#include "averages.h"
#include "crc64.h"

/* Bytes that are hashed at once: all numbers of a slice. */
struct numbers {
	uint8_t bytes[8 * (11 + 4 * SHEAF_DIMS_MAX)];   /* as many as hash_slice puts */
	size_t n;
};

static void put_number(struct numbers *to, uint64_t x)
{
	shf_put64(to->bytes + to->n, x);
	to->n += 8;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
	return shf_crc64_more(hash, text ? text : "", text ? strlen(text) + 1 : 1);
}

static uint64_t hash_slice(uint64_t hash, const struct shf_slice *s)
{
	struct numbers x = { .n = 0 };

	put_number(&x, (uint64_t)s->dtype);
	put_number(&x, (uint64_t)s->data_dtype);
	put_number(&x, s->flags);
	put_number(&x, s->owned);
	put_number(&x, (uint64_t)s->mem.origin);
	put_number(&x, (uint64_t)s->mem.lo);
	put_number(&x, (uint64_t)s->mem.hi);
	put_number(&x, (uint64_t)s->stream.rank);
	put_number(&x, (uint64_t)s->stream.ranks);
	put_number(&x, (uint64_t)s->items.ndim);
	for (int d = 0; d < s->items.ndim; d++)
		put_number(&x, (uint64_t)s->items.dim[d]);
	put_number(&x, (uint64_t)s->mem.box.ndim);
	for (int d = 0; d < s->mem.box.ndim; d++) {
		put_number(&x, (uint64_t)s->mem.box.start[d]);
		put_number(&x, (uint64_t)s->mem.box.count[d]);
		put_number(&x, (uint64_t)s->mem.stride[d]);
	}
	hash = shf_crc64_more(hash, x.bytes, x.n);
	hash = hash_text(hash, s->family);
	hash = hash_text(hash, s->name);
	hash = hash_text(hash, s->stored);
	hash = hash_text(hash, s->stream.stream);
	return hash_text(hash, s->stream.rule);
}

/* 0 means that the state is NULL or has failed, so no other state gets it. */
uint64_t shf_state_hash(const struct sheaf_state *state)
{
	struct numbers x = { .n = 0 };
	uint64_t hash = 0;

	if (!state || state->rc < 0)
		return 0;
	for (size_t i = 0; i < state->n; i++)
		hash = hash_slice(hash, &state->slices[i]);
	put_number(&x, state->n);
	put_number(&x, state->emas_n);
	put_number(&x, shf_emas_hash(state));
	hash = shf_crc64_more(hash, x.bytes, x.n);
	for (size_t k = 0; k < state->emas_n; k++)
		hash = hash_text(hash, state->emas[k].of);
	return hash ? hash : 1;
}
