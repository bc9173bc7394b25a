/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of the real machine; io_parts.h says how it works. */
#ifndef SHF_QUEUE_H
#define SHF_QUEUE_H
#include "sys_queue.h"

extern const struct shf_queue_ops shf_real_queue;

/* How a queue carries requests. queue_new uses zeros, that is the defaults; tests and benchmarks
 * choose. */
enum { SHF_CARRY_BEST, SHF_CARRY_POOL, SHF_CARRY_BUFFERED };
struct shf_queue_how {
	int carrier;                    /* BEST: io_uring if available; POOL: threads only;
	                                 * BUFFERED: threads, and no direct I/O */
	int depth;                      /* most pieces in the ring at a time */
	size_t piece_bytes;             /* largest piece; a multiple of SHF_ALIGN */
};
/* Does what queue_new does, in the way that *how says. Returns 0 or a negative errno. */
int shf_real_queue_make(struct shf_queue **queue, int threads, const struct shf_queue_how *how);
/* Returns whether this result of a transfer means that the kernel refuses direct I/O for the file.
 * Any other error is one of the disk. */
bool shf_direct_is_refused(int64_t result);
#endif
