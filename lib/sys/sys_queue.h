/* SPDX-License-Identifier: Apache-2.0 */
/* File I/O that is submitted and completed later. A request and its buffer belong to the queue
 * from submit until complete returns the request. The table goes with that of files: whoever has
 * descriptors of their own also needs a queue that knows them. */
#ifndef SHF_SYS_QUEUE_H
#define SHF_SYS_QUEUE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHF_ALIGN 4096                  /* of offsets, lengths and memory of direct requests */
#define SHF_PINS 9                      /* memory ranges that a queue can keep pinned at once */
enum {
	SHF_IO_READ = 1, SHF_IO_WRITE,
	SHF_IO_FSYNC,                   /* of these two the result is 0, and off is yours */
	SHF_IO_RESIZE,                  /* to len bytes; concurrent writes are kept */
};
static inline bool shf_io_moves(int op)
{
	return op == SHF_IO_READ || op == SHF_IO_WRITE;
}
struct shf_part {                       /* the queue's own: one contiguous part of a request */
	struct shf_part *next;
	struct shf_io *io;
	uint64_t at, end;               /* range of the file that is not yet started */
	uint64_t redo_at, redo_end;     /* range to repeat through the page cache; or empty */
	uint32_t out;                   /* pieces that are started and not finished */
	bool direct;
};
struct shf_io {
	int op, fd;
	int direct;                     /* the same file, opened with SHF_O_DIRECT, or 0. The
	                                 * aligned part of the request uses it; the rest, and all
	                                 * if the kernel refuses, uses fd */
	void *buf;
	size_t len;
	uint64_t off;
	int64_t result;                 /* set on completion: bytes (reads may be short at the end
	                                 * of the file only), or a negative errno */
	int64_t done_ns;                /* set on completion: its time, by mono_ns */
	void *user;                     /* yours */
	struct shf_io *next;            /* this and the rest belong to the queue meanwhile */
	struct shf_part part[3];
	uint64_t reached;
	uint32_t left;
	int error;
};
/* What a queue has moved so far, and how. */
struct shf_queue_stat {
	bool ring;                      /* direct requests use io_uring */
	uint64_t direct_bytes, buffered_bytes;
	uint32_t refused;               /* requests whose direct part the kernel refused */
};
struct shf_queue;                       /* opaque; one per open run or step */

struct shf_queue_ops {
	int (*queue_new)(void *arg, struct shf_queue **queue, int threads);
	void (*queue_free)(void *arg, struct shf_queue *queue);  /* waits for submitted requests */
	int (*submit)(void *arg, struct shf_queue *queue, struct shf_io *io);
	/* The next finished request: 1 and *io; 0 if nothing is under way; -EAGAIN if nothing
	 * finished within timeout_ms (< 0: no limit). */
	int (*complete)(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms);
	/* Hint: requests will use this memory many times, so the kernel need not look up its pages
	 * each time. Range i replaces the former range i; base NULL ends it. The memory must stay
	 * mapped until then, and no request may use it during either call. */
	void (*queue_pin)(void *arg, struct shf_queue *queue, int i, void *base, size_t bytes);
	void (*queue_stat)(void *arg, struct shf_queue *queue, struct shf_queue_stat *stat);
};
#endif
