/* SPDX-License-Identifier: Apache-2.0 */
/* io_uring as the carrier of direct parts (io_parts.h). A thread of its own makes all calls to the
 * ring. So completions never interrupt the caller's threads, and parts that wait for a free slot
 * proceed even while no function is called. The first push sets up the ring. */
#ifndef SHF_RING_H
#define SHF_RING_H
#include "io_parts.h"

struct shf_ring;
/* NULL: built without io_uring, or out of memory */
struct shf_ring *shf_ring_new(struct shf_queue_shared *works, int depth);
/* Ends the thread when all parts are carried. ours: false in a forked child, which has no such
 * thread. */
void shf_ring_free(struct shf_ring *ring, bool ours);

/* The functions below are called with the lock of the queue held. */

/* Gives a part to the ring. Returns 0, or a negative errno if the ring takes neither this part nor
 * any later one. */
int shf_ring_push(struct shf_ring *ring, struct shf_part *part);
/* Removes a part from the ring's list of parts, because one of its pieces has failed (Q1). */
void shf_ring_drop(struct shf_ring *ring, struct shf_part *part);
/* Returns whether the ring has a thread and was not abandoned. */
bool shf_ring_is_up(const struct shf_ring *ring);
/* Asks the ring's thread to pin memory range i (sys_queue.h), or to unpin it if base is NULL.
 * Unpinning waits until the kernel has released the memory, and drops the lock meanwhile. */
void shf_ring_pin(struct shf_ring *ring, int i, void *base, size_t bytes);
#endif
