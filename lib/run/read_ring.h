/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of files: one that is tried again when the disk reports an error, and a ring of buffers
 * that keeps several reads under way.
 *
 * Only EIO is tried again, because a disk or a network file system may recover from it. Any other
 * error will not go away by asking once more, and a file that ends too early will not grow. */
#ifndef SHF_READ_RING_H
#define SHF_READ_RING_H
#include "read_way.h"
#include "run_io.h"

#define SHF_READ_TRIES 4        /* in all, the first one included */

/* Reads n bytes at `off` on this thread. Returns the number of bytes, or a negative errno. retries:
 * counts the tries after the first one; may be NULL. [local] */
int64_t shf_read_now(const struct shf_sys *sys, int fd, void *to, uint64_t n, uint64_t off,
                     uint64_t *retries);

struct shf_read {
	struct shf_io_owner io;
	struct shf_io req;
	int rc;                         /* negative errno if the last submission failed */
	/* The caller's. */
	uint8_t *buf;                   /* where a ring reads to; kept from read to read */
	uint32_t file;                  /* number of the file in the step */
	const void *of;                 /* what the bytes belong to */
	bool timed;                     /* counts in the trial of the ring */
};
/* Submits the read that `req` describes. A failure is returned, and again by the wait. [local] */
int shf_read_start(struct sheaf_run *run, struct shf_read *r);
/* Waits for the read, and tries it again as long as that may help. Returns the number of bytes, or
 * a negative errno. [local] */
int64_t shf_read_wait(struct sheaf_run *run, struct shf_read *r, uint64_t *retries);
/* Waits until the read no longer uses its buffer, whatever came of it. [local] */
void shf_read_drop(struct sheaf_run *run, struct shf_read *r);

/* A ring: reads [tail, head) are under way, read i in reads[i % n]. They finish in the order in
 * which they were started. */
struct shf_read_ring {
	struct sheaf_run *run;          /* borrowed */
	struct shf_read *reads;         /* borrowed; n of them */
	uint64_t n, head, tail;
	struct shf_trial trial;         /* its user asks it, the ring tells it what has finished */
	uint64_t retries;
	int64_t wait_ns;                /* spent waiting for reads */
	/* Describes the next read in r->req. Returns 1, 0 if there is none, or a code. */
	int (*next)(void *arg, struct shf_read *r, struct sheaf_error *err);
	/* Takes what was read: the number of bytes, or a negative errno. Returns 0 or a code. */
	int (*took)(void *arg, struct shf_read *r, int64_t got, struct sheaf_error *err);
	void *arg;
};
/* Starts reads in all buffers that are free, then waits for the oldest one and hands it to `took`.
 * Returns 1, 0 if nothing is left to be read, or the code of a callback. [local] */
int shf_read_ring_turn(struct shf_read_ring *ring, struct sheaf_error *err);
/* Waits for what is under way and gives it up. [local] */
void shf_read_ring_drop(struct shf_read_ring *ring);
#endif
