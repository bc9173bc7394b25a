/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces ring.c if the library is built without liburing: shf_ring_new returns NULL, so threads
 * carry all requests. */
#include "ring.h"

struct shf_ring *shf_ring_new(struct shf_queue_shared *works, int depth)
{
	(void)works;
	(void)depth;
	return NULL;
}

void shf_ring_free(struct shf_ring *ring, bool ours)
{
	(void)ring;
	(void)ours;
}

int shf_ring_push(struct shf_ring *ring, struct shf_part *part)
{
	(void)ring;
	(void)part;
	return -1;
}

void shf_ring_drop(struct shf_ring *ring)
{
	(void)ring;
}

bool shf_ring_is_up(const struct shf_ring *ring)
{
	(void)ring;
	return false;
}

void shf_ring_pin(struct shf_ring *ring, int i, void *base, size_t bytes)
{
	(void)ring;
	(void)i;
	(void)base;
	(void)bytes;
}
