/* SPDX-License-Identifier: Apache-2.0 */
/* The carrier that is io_uring. A thread of its own makes all calls to the ring, so that
 * completions never interrupt the caller's threads, and parts that wait for room move on while
 * nobody calls. The ring is set up by the first push. It takes direct parts only. */
#ifndef SHF_RING_H
#define SHF_RING_H
#include "io_parts.h"

struct shf_ring;
struct shf_ring *shf_ring_new(struct shf_works *works, int depth); /* NULL: no io_uring here */
void shf_ring_free(struct shf_ring *ring, bool ours);
/* The following calls are made with the lock held. */
/* A negative errno: the ring takes neither this part nor any later one. */
int shf_ring_push(struct shf_ring *ring, struct shf_part *part);
/* Discards what is left of the head (Q1), after an error. */
void shf_ring_drop(struct shf_ring *ring);
bool shf_ring_is_up(const struct shf_ring *ring);
/* Drops the lock while an earlier range is unpinned. */
void shf_ring_pin(struct shf_ring *ring, int i, void *base, size_t bytes);
#endif
