/* SPDX-License-Identifier: Apache-2.0 */
/* File I/O that is submitted and completed later. A request and its buffer belong to the queue from
 * submit until complete returns the request. A replacement of the table of files that has
 * descriptors of its own must replace this table, too, because requests name those descriptors. */
#ifndef SHF_SYS_QUEUE_H
#define SHF_SYS_QUEUE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHF_ALIGN 4096                  /* of offsets, lengths and memory of direct requests */
#define SHF_PINS 9                      /* memory ranges that a queue can keep pinned at once */
enum {
	SHF_IO_READ = 1, SHF_IO_WRITE,
	SHF_IO_FSYNC,                   /* FSYNC and RESIZE: the result is 0 or a negative errno;
	                                 * off is not used */
	SHF_IO_RESIZE,                  /* to len bytes; concurrent writes are kept */
};
/* Returns whether the operation transfers bytes between memory and the file. */
static inline bool shf_io_moves(int op)
{
	return op == SHF_IO_READ || op == SHF_IO_WRITE;
}
struct shf_part {                       /* internal: one contiguous part of a request */
	struct shf_part *next;          /* in the list of its carrier */
	struct shf_io *io;
	uint64_t at, end;               /* range of the file that is not yet started */
	uint64_t redo_at, redo_end;     /* range to repeat through the page cache, or an empty
	                                 * range */
	uint32_t out;                   /* pieces that are started and not finished */
	bool direct;                    /* uses the descriptor io->direct */
};
struct shf_io {
	int op, fd;
	int direct;                     /* descriptor of the same file, opened with SHF_O_DIRECT; 0:
	                                 * no such descriptor. The aligned part of the request uses
	                                 * it; the rest, and all if the kernel refuses, uses fd */
	void *buf;
	size_t len;
	uint64_t off;
	int64_t result;                 /* set on completion: bytes (reads may be short at the end
	                                 * of the file only), or a negative errno */
	int64_t done_ns;                /* set on completion: its time, by mono_ns */
	void *user;                     /* for the submitter; the queue does not use it */
	struct shf_io *next;            /* from here on internal to the queue until the request is
	                                 * completed */
	struct shf_part part[3];        /* aligned middle and two edges (queue.c) */
	uint64_t reached;               /* offset in the file at which the moved bytes end */
	uint32_t left;                  /* parts that have not come back */
	int error;                      /* negative errno of a piece that failed; 0: no piece has
	                                 * failed */
};
/* What a queue has moved so far, and how. */
struct shf_queue_stat {
	bool ring;                      /* direct requests use io_uring */
	uint64_t direct_bytes, buffered_bytes;
	uint32_t refused;               /* requests whose direct part the kernel refused */
};
struct shf_queue;                       /* opaque; one per open run or step */

struct shf_queue_ops {
	/* threads: the most that it may start for what io_uring does not carry. */
	int (*queue_new)(void *arg, struct shf_queue **queue, int threads);
	void (*queue_free)(void *arg, struct shf_queue *queue);  /* waits for submitted requests */
	/* 0: the request belongs to the queue now. A negative errno: it stays with the caller. */
	int (*submit)(void *arg, struct shf_queue *queue, struct shf_io *io);
	/* Returns 1 and the next finished request in *io; 0 if no request is under way; -EAGAIN if
	 * none finished within timeout_ms (< 0: no limit). */
	int (*complete)(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms);
	/* Hint: requests will use this memory many times, so the kernel should pin its pages once
	 * instead of for each request. Range i replaces the former range i; base NULL unpins range
	 * i. The memory must stay mapped until it is unpinned, and no request may use it during the
	 * call that pins or unpins it. */
	void (*queue_pin)(void *arg, struct shf_queue *queue, int i, void *base, size_t bytes);
	void (*queue_stat)(void *arg, struct shf_queue *queue, struct shf_queue_stat *stat);
};
#endif
