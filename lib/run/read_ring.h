/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of files that are retried when the disk reports an error, and a ring of buffers that keeps
 * several reads in flight.
 *
 * Only EIO is retried, because a disk or a network file system may recover from it. A retry does
 * not help against any other error, or against a file that ends too early. */
#ifndef SHF_READ_RING_H
#define SHF_READ_RING_H
#include "direct_reads.h"
#include "run_io.h"

#define SHF_READ_TRIES 4        /* attempts of a read, the first one included */

/* Reads n bytes at `off` on this thread. Returns the number of bytes read, or a negative errno.
 * once: the page cache need not keep them. Adds the number of retries to *retries, which may be
 * NULL. [local] */
int64_t shf_read_now(const struct shf_sys *sys, int fd, void *to, uint64_t n, uint64_t off,
                     bool once, uint64_t *retries);

struct shf_read {               /* one read in the background */
	struct shf_io_owner io;
	struct shf_io req;
	int rc;                         /* negative errno if the last submission failed */
	/* The caller sets the members below. */
	uint8_t *buf;                   /* the buffer of this place in a ring */
	uint32_t file;                  /* number of the file in the step */
	const void *of;                 /* what the bytes belong to */
	bool timed;                     /* the read counts in the trial (direct_reads.h) */
};
/* Submits the read that `req` describes. Returns 0, or a negative errno, which shf_read_wait will
 * return too. [local] */
int shf_read_start(struct sheaf_run *run, struct shf_read *r);
/* Waits for the read, and retries it after EIO. Returns the number of bytes read, or a negative
 * errno. Adds the number of retries to *retries. [local] */
int64_t shf_read_wait(struct sheaf_run *run, struct shf_read *r, uint64_t *retries);
/* Waits until the read no longer uses its buffer, and ignores its result. [local] */
void shf_read_drop(struct sheaf_run *run, struct shf_read *r);

/* A ring of reads: reads [tail, head) are in flight, read i in reads[i % n]. Their results are
 * taken in the order in which they were started. */
struct shf_read_ring {
	struct sheaf_run *run;          /* borrowed */
	struct shf_read *reads;         /* borrowed; n of them */
	uint64_t n, head, tail;
	struct shf_read_trial trial;    /* `next` must call shf_read_trial_direct; the ring calls
	                                 * shf_read_trial_done */
	uint64_t retries;               /* number of retries of all reads */
	int64_t wait_ns;                /* time spent waiting for reads */
	/* Describes the next read in r->req. Returns 1, or 0 if nothing is left to read, or the
	 * code of an error. */
	int (*next)(void *arg, struct shf_read *r, struct sheaf_error *err);
	/* Receives a finished read; got: the number of bytes, or a negative errno. Returns 0 or the
	 * code of an error. */
	int (*took)(void *arg, struct shf_read *r, int64_t got, struct sheaf_error *err);
	void *arg;
};
/* Starts reads in all buffers that are free, then waits for the oldest one and hands it to `took`.
 * Returns 1 if there was such a read, 0 if nothing is left to be read, or the code of a callback.
 * [local] */
int shf_read_ring_turn(struct shf_read_ring *ring, struct sheaf_error *err);
/* Waits for the reads in flight, and ignores their results. [local] */
void shf_read_ring_drop(struct shf_read_ring *ring);
#endif
