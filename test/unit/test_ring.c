/* SPDX-License-Identifier: Apache-2.0 */
/* A ring that the kernel lets nobody enter any more, while it still has a request of it: what
 * becomes of that one, and of those that come later. And what becomes of one that fails. */
#define T_STDIN_CLOSED
#include "t.h"
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "queue.h"
#include "sys.h"

#define PAGE SHF_ALIGN
#define FILE_BYTES (16 * PAGE)

static struct {                 /* the ring's thread looks at them too */
	atomic_bool refuses;
	atomic_int refused, entered;
} kernel;

int __real_io_uring_submit_and_wait(struct io_uring *r, unsigned n);
int __wrap_io_uring_submit_and_wait(struct io_uring *r, unsigned n);
int __wrap_io_uring_submit_and_wait(struct io_uring *r, unsigned n)
{
	kernel.entered++;
	if (!kernel.refuses)
		return __real_io_uring_submit_and_wait(r, n);
	kernel.refused++;
	return -EPERM;
}

static const struct shf_sys *real(void)
{
	return shf_sys_real();
}

/* Two requests: one that only the kernel can end, for it reads what nobody writes yet, and one
 * that is woken for while the kernel refuses. */
struct stuck {
	struct shf_queue *q;
	struct shf_io read, other;
	int fd, direct, ends[2];
	uint8_t *mem;
};

static int64_t do_other(struct stuck *s)
{
	struct shf_io *done = NULL;

	CHECK_INT(shf_sys_submit(real(), s->q, &s->other), 0);
	CHECK_INT(shf_sys_complete(real(), s->q, &done, -1), 1);
	CHECK(done == &s->other);
	return done->result;
}

static void files_make(struct stuck *s)
{
	char path[] = "./sheaf-ring-XXXXXX";

	s->mem = mmap(NULL, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
	              0);
	CHECK(s->mem != MAP_FAILED);
	memset(s->mem, 0x5a, FILE_BYTES);
	s->fd = mkstemp(path);
	CHECK(s->fd >= 0);
	s->direct = shf_sys_open(real(), SHF_CWD, path, SHF_O_DIRECT, 0);
	unlink(path);
	CHECK_INT(shf_sys_pwrite(real(), s->fd, s->mem, FILE_BYTES, 0), FILE_BYTES);
	memset(s->mem, 0, FILE_BYTES);
	CHECK_INT(pipe(s->ends), 0);
}

static void stuck_end(struct stuck *s)
{
	kernel.refuses = false;
	shf_sys_queue_free(real(), s->q);
	close(s->ends[0]);
	close(s->ends[1]);
	close(s->fd);
	if (s->direct > 0)
		close(s->direct);
	munmap(s->mem, 20 * PAGE);
}

/* Skips the test where there is no ring. */
static void stuck_begin(struct stuck *s)
{
	struct shf_queue_how how = { .carrier = SHF_CARRY_BEST, .depth = 3,
		.piece_bytes = 2 * PAGE };
	struct shf_queue_stat st;

	*s = (struct stuck){ .q = NULL };
	files_make(s);
	CHECK_INT(shf_real_queue_make(&s->q, 2, &how), 0);
	s->other = (struct shf_io){ .op = SHF_IO_READ, .fd = s->fd,
		.direct = s->direct > 0 ? s->direct : 0, .buf = s->mem + 4 * PAGE,
		.len = FILE_BYTES };
	CHECK_INT(do_other(s), FILE_BYTES);
	shf_sys_queue_stat(real(), s->q, &st);
	if (!st.ring) {
		stuck_end(s);
		skip();
	}
	/* Through the page cache it would be there at once. */
	s->read = (struct shf_io){ .op = SHF_IO_READ, .fd = s->fd, .direct = s->ends[0],
		.buf = s->mem, .len = PAGE };
	CHECK_INT(shf_sys_submit(real(), s->q, &s->read), 0);
	CHECK_INT(do_other(s), FILE_BYTES);     /* so the kernel has that one */
	kernel.refused = 0;
	kernel.refuses = true;
	CHECK_INT(shf_sys_submit(real(), s->q, &s->other), 0);
}

/* Its bytes may still come, so they are brought by nobody else, and that request has failed. */
TEST(what_the_kernel_has_is_given_to_nobody_else_when_the_ring_ends)
{
	struct shf_io *done = NULL;
	struct shf_queue_stat st;
	struct stuck s;

	stuck_begin(&s);
	for (int n = 0; n < 2; n++)
		CHECK_INT(shf_sys_complete(real(), s.q, &done, 30000), 1);
	CHECK_INT(s.read.result, -EIO);
	CHECK_INT(s.other.result, FILE_BYTES);
	shf_sys_queue_stat(real(), s.q, &st);
	CHECK(!st.ring);
	stuck_end(&s);
}

TEST(a_ring_that_is_refused_for_a_while_loses_nothing_that_the_kernel_has)
{
	struct shf_queue_stat st = { .ring = true };
	struct shf_io *done = NULL;
	struct stuck s;

	stuck_begin(&s);
	for (; kernel.refused < 3 && st.ring; usleep(100))
		shf_sys_queue_stat(real(), s.q, &st);
	CHECK(st.ring);
	kernel.refuses = false;
	CHECK_INT(shf_sys_complete(real(), s.q, &done, 30000), 1);
	CHECK(done == &s.other);
	CHECK_INT(done->result, FILE_BYTES);
	CHECK_INT(write(s.ends[1], s.mem + 4 * PAGE, PAGE), PAGE);
	CHECK_INT(shf_sys_complete(real(), s.q, &done, 30000), 1);
	CHECK(done == &s.read);
	CHECK_INT(done->result, PAGE);
	CHECK(!memcmp(s.mem, s.mem + 4 * PAGE, PAGE));
	stuck_end(&s);
}

/* The ring's thread sleeps in the kernel: it is woken for a request, and by its end. */
TEST(a_ring_that_has_nothing_to_do_sleeps)
{
	enum { TIMES = 100 };
	struct stuck s = { .q = NULL };
	struct shf_queue_stat st;
	int before;

	files_make(&s);
	CHECK_INT(shf_sys_queue_new(real(), &s.q, 2), 0);
	s.other = (struct shf_io){ .op = SHF_IO_READ, .fd = s.fd,
		.direct = s.direct > 0 ? s.direct : 0, .buf = s.mem + 4 * PAGE, .len = FILE_BYTES };
	CHECK_INT(do_other(&s), FILE_BYTES);
	shf_sys_queue_stat(real(), s.q, &st);
	before = kernel.entered;
	for (int i = 0; i < TIMES; i++)
		CHECK_INT(do_other(&s), FILE_BYTES);
	CHECK(!st.ring || kernel.entered > before);
	CHECK(kernel.entered - before <= 4 * TIMES);
	stuck_end(&s);
}

/* A request fails when three of its eight pieces are under way. Then it is the caller's, who may do
 * with it what he likes, and the five others are no work any more. */
TEST(what_failed_before_all_of_it_was_begun_does_not_come_back)
{
	struct shf_queue_how how = { .carrier = SHF_CARRY_BEST, .depth = 3,
		.piece_bytes = 2 * PAGE };
	struct stuck s = { .q = NULL };
	struct shf_io *done;
	int unreadable;

	files_make(&s);
	unreadable = open("/dev/null", O_WRONLY | O_CLOEXEC); /* not 0, which would be none */
	CHECK(unreadable > 0);
	CHECK_INT(shf_real_queue_make(&s.q, 2, &how), 0);
	s.other = (struct shf_io){ .op = SHF_IO_READ, .fd = s.fd,
		.direct = s.direct > 0 ? s.direct : 0, .buf = s.mem, .len = FILE_BYTES };
	for (int i = 0; i < 100; i++) {
		s.read = (struct shf_io){ .op = SHF_IO_READ, .fd = s.fd, .direct = unreadable,
			.buf = s.mem, .len = FILE_BYTES };
		CHECK_INT(shf_sys_submit(real(), s.q, &s.read), 0);
		CHECK_INT(shf_sys_complete(real(), s.q, &done, -1), 1);
		CHECK(done == &s.read);
		CHECK_INT(done->result, -EBADF);
		memset(&s.read, 0xa5, sizeof(s.read));
		CHECK_INT(do_other(&s), FILE_BYTES);
	}
	CHECK_INT(shf_sys_complete(real(), s.q, &done, 0), 0);
	close(unreadable);
	stuck_end(&s);
}
