/* SPDX-License-Identifier: Apache-2.0 */
/* Direct I/O by io_uring. One thread submits entries, sleeps in the kernel until something
 * completes, and handles the completions. No other thread touches the ring, so completions
 * interrupt no thread of the caller's and the ring needs no lock. Invariants:
 * - A busy slot has at most one entry in the kernel.
 * - While the thread sleeps, a poll of the eventfd `wake` is armed.
 * - While `asleep` is set, the thread notices new parts only after a completion or a write to
 *   `wake`. */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "mem.h"
#include "ring.h"
#include "thread.h"

#define EAGAIN_MAX 8                    /* how often the result for one piece may be EAGAIN */
#define FORBIDDEN_MAX 2000              /* refused attempts to enter the ring, 1 ms apart */
#define PIN_BYTES ((size_t)1 << 30)     /* the kernel takes no larger entry */
#define PIN_MAX 64                      /* entries of the kernel's table for one range of memory */

/* A piece that the ring carries. Partial results are continued in the same slot. */
struct slot {
	struct shf_piece piece;
	size_t done;                    /* bytes of the piece that are moved */
	int again;                      /* how often the result was EAGAIN */
	unsigned nth;                   /* the number of its entry; the kernel takes entries in
	                                 * order */
	struct slot *next;              /* in the list free or anew */
};

/* A range of memory. */
struct stretch {
	uint8_t *base;
	size_t bytes;
};
struct pin {                    /* pinned memory range i, which has PIN_MAX entries of the kernel's
                                 * table, from i * PIN_MAX on */
	struct stretch want, have;      /* what the caller asked for; what the kernel's table has */
	bool failed;                    /* the kernel refused `want` */
	bool moving;                    /* `have` is being changed, without the lock */
};

struct shf_ring {
	struct shf_queue_shared *works; /* borrowed; its lock guards the members down to the blank
	                                 * line */
	struct shf_parts todo;
	pthread_cond_t pinned;          /* `have` of a pin has changed, or the ring was abandoned */
	struct pin pins[SHF_PINS];
	bool pin_never;                 /* the kernel cannot change its table while requests are
	                                 * under way */
	bool up, refused, asleep, stop; /* the thread was started; no more parts are taken; the
	                                 * thread sleeps in the kernel; the thread is to end */

	struct io_uring uring;          /* from here on used only by the thread, but for `wake` and
	                                 * `thread` */
	pthread_t thread;
	int wake;                       /* an eventfd; wake_up writes to it */
	bool made, wake_armed, entered; /* uring exists; an entry that polls `wake` is armed; uring
	                                 * was entered with success */
	bool table;                     /* a table for pinned memory is registered in the kernel */
	unsigned depth, busy_n, entry_n; /* slots; those in use; entries ever made */
	int forbidden;                  /* failures to enter the ring in a row */
	struct slot *slots, *free, *anew; /* slots: owned; free, anew: lists of free slots, and of
	                                   * slots to be submitted again */
};

/* Sets up the ring with the flags that make it cheapest: only one thread submits, and the kernel
 * runs completions only when that thread enters it. Older kernels refuse the flags, then it is set
 * up without them. The ring's memory is not inherited by forked children. */
static int uring_new(struct io_uring *uring, unsigned depth)
{
	struct io_uring_params p = { .flags = IORING_SETUP_SINGLE_ISSUER |
	                                      IORING_SETUP_DEFER_TASKRUN };
	int rc = io_uring_queue_init_params(depth, uring, &p);

	if (rc == -EINVAL) { /* an older kernel */
		memset(&p, 0, sizeof(p));
		rc = io_uring_queue_init_params(depth, uring, &p);
	}
	if (rc)
		return rc;
	/* The kernel has reads and writes without a vector since it has this feature (5.6). */
	rc = p.features & IORING_FEAT_RW_CUR_POS ? io_uring_ring_dontfork(uring) : -ENOSYS;
	if (rc)
		io_uring_queue_exit(uring);
	return rc;
}

/* Finds the bytes in the kernel's table of registered memory. Returns the index of the entry, or -1
 * if they are not all in one entry. */
static int pinned_entry(const struct shf_ring *r, const uint8_t *buf, size_t n)
{
	for (int i = 0; i < SHF_PINS; i++) {
		const struct stretch *have = &r->pins[i].have;
		size_t in = (size_t)((uintptr_t)buf - (uintptr_t)have->base);

		if (have->bytes > in && have->bytes - in >= n &&
		    in / PIN_BYTES == (in + n - 1) / PIN_BYTES)
			return i * PIN_MAX + (int)(in / PIN_BYTES);
	}
	return -1;
}

/* Returns a free entry of the ring, and counts it, so that kernel_has can tell later which ones the
 * kernel has taken. There is always a free entry: the ring has one more than there are slots, for
 * the eventfd. */
static struct io_uring_sqe *entry(struct shf_ring *r)
{
	r->entry_n++;
	return io_uring_get_sqe(&r->uring);
}

/* Prepares an entry for what is left of the slot's piece. If the memory is registered, the entry
 * names it by its index, so that the kernel need not pin the pages for each request. */
static void slot_submit(struct shf_ring *r, struct slot *s)
{
	struct io_uring_sqe *sqe = entry(r);
	const struct shf_piece *p = &s->piece;
	const struct shf_io *io = p->part->io;
	uint8_t *buf = p->buf + s->done;
	unsigned n = (unsigned)(p->len - s->done);
	int pinned = pinned_entry(r, buf, n);
	bool fixed = pinned >= 0;

	s->nth = r->entry_n;
	if (io->op == SHF_IO_READ && fixed)
		io_uring_prep_read_fixed(sqe, io->direct, buf, n, p->at + s->done, pinned);
	else if (io->op == SHF_IO_READ)
		io_uring_prep_read(sqe, io->direct, buf, n, p->at + s->done);
	else if (fixed)
		io_uring_prep_write_fixed(sqe, io->direct, buf, n, p->at + s->done, pinned);
	else
		io_uring_prep_write(sqe, io->direct, buf, n, p->at + s->done);
	io_uring_sqe_set_data(sqe, s);
}

/* Puts the slot in the list of free ones. */
static void slot_free(struct shf_ring *r, struct slot *s)
{
	s->piece.part = NULL;
	s->next = r->free;
	r->free = s;
	r->busy_n--;
}

/* Prepares entries: first for pieces that are to be continued, then for new ones, and one poll of
 * the eventfd by which wake_up interrupts the wait. The lock is held. */
static void ring_fill(struct shf_ring *r)
{
	struct slot *s;

	while ((s = r->anew)) {
		r->anew = s->next;
		slot_submit(r, s);
	}
	while ((s = r->free) && r->todo.head) {
		shf_parts_cut(&r->todo, r->todo.head, r->works->piece_bytes, &s->piece);
		r->free = s->next;
		r->busy_n++;
		s->done = 0;
		s->again = 0;
		slot_submit(r, s);
	}
	if (!r->wake_armed) {
		struct io_uring_sqe *sqe = entry(r);

		io_uring_prep_poll_add(sqe, r->wake, POLLIN);
		io_uring_sqe_set_data(sqe, NULL);
		r->wake_armed = true;
	}
}

/* Handles a completion. Interrupted and partial transfers are submitted again. EAGAIN is retried a
 * few times only, because some file systems answer it for ever; then the queue uses the page cache.
 * A result of an odd length is handed back as it is: direct I/O cannot continue at an unaligned
 * offset. The lock is held. */
static void slot_back(struct shf_ring *r, struct slot *s, int res)
{
	struct shf_piece p = s->piece;
	int64_t result = res;

	if (res > 0) {
		s->done += (size_t)res;
		result = (int64_t)s->done;
	} else if (!res) {
		result = (int64_t)s->done;
	}
	if (res == -EINTR || (res == -EAGAIN && ++s->again < EAGAIN_MAX) ||
	    (res > 0 && s->done < p.len && s->done % SHF_ALIGN == 0)) {
		s->next = r->anew;
		r->anew = s;
		return;
	}
	slot_free(r, s);
	r->works->back(r->works, &p, result);
}

/* Handles all completions that have arrived. The lock is held. */
static void empty(struct shf_ring *r)
{
	struct io_uring_cqe *cqe;
	unsigned head, n = 0;
	uint64_t count;

	io_uring_for_each_cqe(&r->uring, head, cqe) {
		struct slot *s = io_uring_cqe_get_data(cqe);

		if (s) {
			slot_back(r, s, cqe->res);
		} else {
			r->wake_armed = false;
			(void)!read(r->wake, &count, sizeof(count));
		}
		n++;
	}
	io_uring_cq_advance(&r->uring, n);
}

/* Registers an empty table in the kernel once. Later its entries are changed one by one, which,
 * unlike registering anew, need not wait until no request is under way. */
static int ring_table_new(struct shf_ring *r)
{
	int rc = r->table ? 0
	                  : io_uring_register_buffers_sparse(&r->uring, SHF_PINS * PIN_MAX);

	r->table = r->table || rc == 0;
	return rc;
}

/* Writes the entries of range i. A range of more than 1 GiB takes several entries, because the
 * kernel accepts no larger one. */
static int table_set(struct shf_ring *r, int i, const struct stretch *of)
{
	struct iovec v[PIN_MAX];
	__u64 tags[PIN_MAX];
	int rc;

	memset(v, 0, sizeof(v));
	memset(tags, 0, sizeof(tags));
	for (size_t at = 0, n = 0; at < of->bytes && n < PIN_MAX; at += PIN_BYTES, n++) {
		v[n].iov_base = of->base + at;
		v[n].iov_len = of->bytes - at < PIN_BYTES ? of->bytes - at : PIN_BYTES;
	}
	rc = io_uring_register_buffers_update_tag(&r->uring, (unsigned)(i * PIN_MAX), v, tags,
	                                          PIN_MAX);
	return rc == PIN_MAX ? 0 : -EINVAL;
}

/* Returns whether the kernel's table must change for this range. A range that the kernel refused is
 * not tried again until the caller changes it. But the range that was there before is removed in
 * any case. */
static bool pin_is_due(const struct pin *p)
{
	if (p->want.base == p->have.base && p->want.bytes == p->have.bytes)
		return false;
	return p->have.bytes || !p->failed;
}

/* Returns the first range for which the table must change, or NULL if there is no such range. */
static struct pin *pin_due(struct shf_ring *r)
{
	for (int i = 0; i < SHF_PINS; i++)
		if (pin_is_due(&r->pins[i]))
			return &r->pins[i];
	return NULL;
}

/* Lets the kernel look up the pages of one range. That may take long, so the lock is dropped and
 * the queue goes on accepting requests. No request uses this memory now (shf_queue_ops). If the
 * kernel refuses part of the range, all of it is removed again. */
static void ring_pin(struct shf_ring *r, struct pin *p)
{
	static const struct stretch none;
	struct stretch want = p->want;
	int i = (int)(p - r->pins), rc;

	p->moving = true;
	pthread_mutex_unlock(&r->works->lock);
	rc = ring_table_new(r);
	if (!rc)
		rc = table_set(r, i, &want);
	if (rc && r->table) /* refused half way */
		(void)table_set(r, i, &none);
	pthread_mutex_lock(&r->works->lock);
	p->moving = false;
	p->have = rc ? none : want;
	p->failed = rc && want.base == p->want.base && want.bytes == p->want.bytes;
	pthread_cond_broadcast(&r->pinned);
}

/* Returns whether the kernel has taken this slot's entry. The entries that it has not taken are the
 * last ones made. So it has taken this one if at least as many were made afterwards as still wait
 * to be submitted. */
static bool kernel_has(const struct shf_ring *r, const struct slot *s)
{
	return s->piece.part && r->made && r->entry_n - s->nth >= io_uring_sq_ready(&r->uring);
}

/* Returns whether the kernel has the entry of any slot, and so may still move bytes of a
 * request. */
static bool kernel_has_any(const struct shf_ring *r)
{
	for (unsigned i = 0; i < r->depth; i++)
		if (kernel_has(r, &r->slots[i]))
			return true;
	return false;
}

/* Gives the ring up, because there is no io_uring here or entering it is forbidden. Pieces that the
 * kernel never got go to the threads (-EOPNOTSUPP makes the queue repeat them). The outcome of
 * pieces that it got will never be known, so they fail with EIO: repeating a write while the kernel
 * may still perform the old one would be unsafe. The lock is held. */
static void ring_give_up(struct shf_ring *r)
{
	struct shf_part *part;

	r->refused = true;
	for (unsigned i = 0; i < r->depth; i++) {
		struct slot *s = &r->slots[i];
		struct shf_piece p = s->piece;
		int result = kernel_has(r, s) ? -EIO : -EOPNOTSUPP;

		if (!p.part)
			continue;
		s->piece.part = NULL;
		r->works->back(r->works, &p, result);
	}
	r->busy_n = 0;
	while ((part = shf_parts_pop(&r->todo)))
		r->works->pass_on(r->works, part);
	for (int i = 0; i < SHF_PINS; i++)
		r->pins[i].failed = true;
	pthread_cond_broadcast(&r->pinned);
}

/* Submits the prepared entries and sleeps until something completes. The lock is held, and dropped
 * meanwhile. Returns false if the ring is unusable. */
static bool ring_enter(struct shf_ring *r)
{
	static const struct timespec moment = { .tv_nsec = 1000000 };
	int rc;

	r->asleep = true;
	pthread_mutex_unlock(&r->works->lock);
	rc = io_uring_submit_and_wait(&r->uring, 1);
	if (rc < 0 && rc != -EINTR)
		nanosleep(&moment, NULL);       /* a lack of memory, perhaps: do not spin */
	pthread_mutex_lock(&r->works->lock);
	r->asleep = false;
	if (rc >= 0) {
		r->entered = true;
		r->forbidden = 0;
		return true;
	}
	/* EBUSY and ENOMEM pass if the ring has worked before. If it never has, it is abandoned. */
	if (rc == -EINTR || rc == -EAGAIN || (r->entered && (rc == -EBUSY || rc == -ENOMEM)))
		return true;
	/* A filter of system calls (seccomp) may forbid what worked before. The kernel still moves
	 * the bytes of the entries that it has, into or out of the caller's memory. So the ring
	 * goes on trying for about two seconds before the requests fail and the caller gets that
	 * memory back. */
	return kernel_has_any(r) && ++r->forbidden < FORBIDDEN_MAX;
}

/* The thread of the ring. It ends when the ring is stopped and idle, or unusable. Ranges are pinned
 * before new pieces are cut, so that the pieces can use them. */
static void *drive(void *arg)
{
	struct shf_ring *r = arg;
	struct pin *due;
	bool good;

	r->made = !uring_new(&r->uring, r->depth + 1);
	pthread_mutex_lock(&r->works->lock);
	good = r->made;
	/* Kernels without tags change the table only while the whole ring is idle, which it may
	 * never be. */
	if (good && !(r->uring.features & IORING_FEAT_RSRC_TAGS)) {
		r->pin_never = true;
		memset(r->pins, 0, sizeof(r->pins));
	}
	while (good && !(r->stop && !r->busy_n && !r->todo.head)) {
		due = pin_due(r);
		if (due) {
			ring_pin(r, due);
			continue;
		}
		ring_fill(r);
		good = ring_enter(r);
		if (good)
			empty(r);
	}
	if (!good)
		ring_give_up(r);
	pthread_mutex_unlock(&r->works->lock);
	return NULL;
}

/* Makes the eventfd and starts the thread. Returns 0 or a negative errno. */
static int ring_start(struct shf_ring *r)
{
	int rc;

	r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->wake < 0)
		return -errno;
	rc = shf_thread_start(&r->thread, drive, r);
	if (rc)
		close(r->wake);
	else
		r->up = true;
	return -rc;
}

/* Interrupts the wait of the ring's thread. Writes only once for each sleep, because the thread
 * looks at everything when it wakes. The lock is held. */
static void wake_up(struct shf_ring *r)
{
	uint64_t one = 1;

	if (!r->asleep)
		return;
	r->asleep = false;
	(void)!write(r->wake, &one, sizeof(one));
}

/* The first call starts the thread. If it cannot be started, this call and all later ones fail. */
int shf_ring_push(struct shf_ring *r, struct shf_part *part)
{
	if (!r->up && !r->refused)
		r->refused = ring_start(r) != 0;
	if (r->refused)
		return -ENOSYS;
	shf_parts_push(&r->todo, part);
	wake_up(r);
	return 0;
}

void shf_ring_drop(struct shf_ring *r, struct shf_part *part)
{
	(void)shf_parts_remove(&r->todo, part);
}

bool shf_ring_is_up(const struct shf_ring *r)
{
	return r->up && !r->refused;
}

/* Waits for the thread only if the range is unpinned. A new range may enter the kernel's table
 * later, since requests work without it. But after an unpinning the caller may unmap the memory,
 * and other memory that is then mapped at the same address must not be taken for it. */
void shf_ring_pin(struct shf_ring *r, int i, void *base, size_t bytes)
{
	struct pin *p = &r->pins[i];

	if (r->pin_never)
		return;
	/* Memory beyond this limit is not pinned; requests for it work all the same. */
	if (bytes > PIN_MAX * PIN_BYTES)
		bytes = PIN_MAX * PIN_BYTES;
	p->want = (struct stretch){ bytes ? base : NULL, bytes };
	p->failed = false;
	if (!shf_ring_is_up(r))
		return;
	wake_up(r);
	while (!bytes && !r->refused && (p->moving || pin_is_due(p)))
		pthread_cond_wait(&r->pinned, &r->works->lock);
}

/* Allocates all slots now, because carrying allocates no memory (Q3). */
struct shf_ring *shf_ring_new(struct shf_queue_shared *works, int depth)
{
	struct shf_ring *r = shf_zalloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->slots = shf_zalloc((size_t)depth, sizeof(*r->slots));
	if (!r->slots || pthread_cond_init(&r->pinned, NULL)) {
		shf_free(r->slots);
		shf_free(r);
		return NULL;
	}
	r->works = works;
	r->depth = (unsigned)depth;
	for (int i = depth; i-- > 0;) {
		r->slots[i].next = r->free;
		r->free = &r->slots[i];
	}
	return r;
}

/* A forked child has no thread of the ring, and its copy of the ring's memory is not mapped
 * (uring_new), so it only frees its own memory. */
void shf_ring_free(struct shf_ring *r, bool ours)
{
	if (!r)
		return;
	if (ours && r->up) {
		pthread_mutex_lock(&r->works->lock);
		r->stop = true;
		wake_up(r);
		pthread_mutex_unlock(&r->works->lock);
		pthread_join(r->thread, NULL);
		if (r->made)
			io_uring_queue_exit(&r->uring);
		close(r->wake);
	}
	if (ours)
		pthread_cond_destroy(&r->pinned);
	shf_free(r->slots);
	shf_free(r);
}
