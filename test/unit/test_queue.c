/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of the real machine, whoever carries the bytes, on the file system of the build and
 * on one in memory. The kernel's answers are spoiled on their way back (linker wraps). */
#include "t.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "mem.h"
#include "queue.h"
#include "sys.h"
#ifdef SHF_TEST_URING
#include <liburing.h>
#endif

#define PAGE SHF_ALIGN
#define FILE_BYTES (24 * PAGE + 1234)

/* What is spoiled. */
static struct {
	atomic_bool ring_refused, enter_refused; /* the ring's thread looks at them too */
	bool no_threads, old_kernel;
	bool odd;                       /* short counts, EINTR and EAGAIN for direct pieces */
	bool odd_plain;                 /* EINTR, and less is moved than asked, for the others */
	int error;                      /* for every direct piece */
	int alloc_nth;
	int gate;                       /* a descriptor that is only read when gate_open */
	bool gate_open;
} spoil;
static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_moved = PTHREAD_COND_INITIALIZER;
static unsigned turn;                   /* of spoiled counts; whoever carries is one thread */
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;

static int64_t spoiled(int64_t res)
{
	unsigned i;

	if (spoil.error)
		return -spoil.error;
	if (!spoil.odd)
		return res;
	pthread_mutex_lock(&turn_lock);
	i = turn++ % 7;
	pthread_mutex_unlock(&turn_lock);
	if (i == 1)
		return -EINTR;
	if (i == 2)
		return -EAGAIN;
	if (i == 4 && res > PAGE)
		return res / 2 / PAGE * PAGE;
	if (i == 6 && res > 0)
		return res - 1;
	return res;
}

/* How much of n the kernel moves through the page cache; 0: a signal came first. */
static size_t moved(size_t n)
{
	unsigned i;

	if (!spoil.odd_plain)
		return n;
	pthread_mutex_lock(&turn_lock);
	i = turn++ % 3;
	pthread_mutex_unlock(&turn_lock);
	return i == 0 ? 0 : i == 1 && n > 1 ? n / 2 : n;
}

ssize_t __real_pread64(int fd, void *buf, size_t n, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t n, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t n, off_t off)
{
	int64_t rc;

	if (fd == spoil.gate) {
		pthread_mutex_lock(&gate_lock);
		while (!spoil.gate_open)
			pthread_cond_wait(&gate_moved, &gate_lock);
		pthread_mutex_unlock(&gate_lock);
	}
	if (!(fcntl(fd, F_GETFL) & O_DIRECT)) {
		size_t some = moved(n);

		errno = EINTR;
		return n && !some ? -1 : __real_pread64(fd, buf, some, off);
	}
	rc = __real_pread64(fd, buf, n, off);
	if (rc < 0)
		return rc;
	rc = spoiled(rc);
	if (rc < 0)
		errno = (int)-rc;
	return rc < 0 ? -1 : rc;
}

ssize_t __real_pwrite64(int fd, const void *buf, size_t n, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t n, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t n, off_t off)
{
	int64_t rc;

	if (!(fcntl(fd, F_GETFL) & O_DIRECT)) {
		size_t some = moved(n);

		errno = EINTR;
		return n && !some ? -1 : __real_pwrite64(fd, buf, some, off);
	}
	rc = __real_pwrite64(fd, buf, n, off);
	if (rc < 0)
		return rc;
	rc = spoiled(rc);
	if (rc < 0)
		errno = (int)-rc;
	return rc < 0 ? -1 : rc;
}

int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg)
{
	return spoil.no_threads ? EAGAIN : __real_pthread_create(t, a, f, arg);
}

long __real_syscall(long nr, ...);
long __wrap_syscall(long nr, long a, long b, long c, long d);
long __wrap_syscall(long nr, long a, long b, long c, long d)
{
	if (!spoil.old_kernel)
		return __real_syscall(nr, a, b, c, d);
	errno = ENOSYS;
	return -1;
}

void *__real_shf_zalloc(size_t n, size_t size);
void *__wrap_shf_zalloc(size_t n, size_t size);
void *__wrap_shf_zalloc(size_t n, size_t size)
{
	return spoil.alloc_nth && !--spoil.alloc_nth ? NULL : __real_shf_zalloc(n, size);
}

#ifdef SHF_TEST_URING
int __real_io_uring_queue_init_params(unsigned n, struct io_uring *r, struct io_uring_params *p);
int __wrap_io_uring_queue_init_params(unsigned n, struct io_uring *r, struct io_uring_params *p);
int __wrap_io_uring_queue_init_params(unsigned n, struct io_uring *r, struct io_uring_params *p)
{
	return spoil.ring_refused ? -EPERM : __real_io_uring_queue_init_params(n, r, p);
}

int __real_io_uring_submit_and_wait(struct io_uring *r, unsigned n);
int __wrap_io_uring_submit_and_wait(struct io_uring *r, unsigned n);
int __wrap_io_uring_submit_and_wait(struct io_uring *r, unsigned n)
{
	int rc = spoil.enter_refused ? -EPERM : __real_io_uring_submit_and_wait(r, n);
	struct io_uring_cqe *cqe;
	unsigned head;

	if (rc >= 0)
		io_uring_for_each_cqe(r, head, cqe)
			if (cqe->user_data && cqe->res >= 0)
				cqe->res = (int)spoiled(cqe->res);
	return rc;
}

static atomic_int pins_looked_up;       /* and not told yet, while pin_slow */
static atomic_bool pin_slow;

int __real_io_uring_register_buffers_update_tag(struct io_uring *r, unsigned at,
                                                const struct iovec *v, const __u64 *tags,
                                                unsigned n);
int __wrap_io_uring_register_buffers_update_tag(struct io_uring *r, unsigned at,
                                                const struct iovec *v, const __u64 *tags,
                                                unsigned n);
int __wrap_io_uring_register_buffers_update_tag(struct io_uring *r, unsigned at,
                                                const struct iovec *v, const __u64 *tags,
                                                unsigned n)
{
	int rc = __real_io_uring_register_buffers_update_tag(r, at, v, tags, n);

	if (pin_slow) {
		pins_looked_up++;
		usleep(50000);
	}
	return rc;
}
#endif

static const struct shf_sys *real(void)
{
	return shf_sys_real();
}

/* A file of known bytes and what it should hold, opened both ways. */
struct file {
	int fd, direct;                 /* direct 0: this file system has none */
	uint8_t *model;
	size_t bytes;
};

static uint8_t byte_of(uint64_t i, unsigned salt)
{
	return (uint8_t)((i * 2654435761U >> 13) + i + salt);
}

static struct file file_new(const char *dir, size_t bytes)
{
	struct file f = { .bytes = bytes };
	char path[64];

	snprintf(path, sizeof(path), "%s/sheaf-queue-XXXXXX", dir);
	f.fd = mkstemp(path);
	CHECK(f.fd > 0);
	f.direct = shf_sys_open(real(), SHF_CWD, path, SHF_O_WRITE | SHF_O_DIRECT, 0);
	if (f.direct < 0) {
		CHECK_INT(f.direct, -EINVAL);
		f.direct = 0;
	}
	unlink(path);         /* nothing is left of it, whatever happens */
	f.model = malloc(bytes);
	CHECK(f.model);
	for (size_t i = 0; i < bytes; i++)
		f.model[i] = byte_of(i, 0);
	CHECK_INT(shf_sys_pwrite(real(), f.fd, f.model, bytes, 0), bytes);
	return f;
}

static void file_free(struct file *f)
{
	if (f->direct)
		close(f->direct);
	close(f->fd);
	free(f->model);
}

static bool file_is_as_it_should(const struct file *f)
{
	uint8_t *now = malloc(f->bytes + 1);
	bool same;

	CHECK(now);
	same = shf_sys_pread(real(), f->fd, now, f->bytes + 1, 0) == (int64_t)f->bytes &&
	       !memcmp(now, f->model, f->bytes);
	free(now);
	return same;
}

static const char *const dirs[] = { ".", "/dev/shm" };
#define DIR_N 2
#define CARRIER_N 3

/* Small pieces and few at a time, so that there are edges of everything. */
static struct shf_queue *queue_new(int carrier)
{
	struct shf_queue_how how = { .carrier = carrier, .depth = 3, .piece_bytes = 2 * PAGE };
	struct shf_queue *q = NULL;

	CHECK_INT(shf_real_queue_make(&q, 2, &how), 0);
	return q;
}

static void *pages_new(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static int64_t do_one(struct shf_queue *q, struct shf_io *io)
{
	struct shf_io *done = NULL;

	CHECK_INT(shf_sys_submit(real(), q, io), 0);
	CHECK_INT(shf_sys_complete(real(), q, &done, -1), 1);
	CHECK(done == io);
	return io->result;
}

static const size_t offs[] = { 0, 1, 511, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 5 * PAGE + 100 };
static const size_t lens[] = { 0, 1, 100, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE - 101,
	                       5 * PAGE, 7 * PAGE + 3, 16 * PAGE };
#define N(a) (sizeof(a) / sizeof((a)[0]))

static void write_one(struct shf_queue *q, struct file *f, struct shf_io *io, unsigned salt)
{
	io->op = SHF_IO_WRITE;
	for (size_t i = 0; i < io->len; i++)
		f->model[io->off + i] = ((uint8_t *)io->buf)[i] = byte_of(io->off + i, salt);
	CHECK_INT(do_one(q, io), io->len);
}

static void read_one(struct shf_queue *q, const struct file *f, struct shf_io *io)
{
	uint8_t *buf = io->buf;

	io->op = SHF_IO_READ;
	memset(buf, 0xa5, io->len + 1);
	CHECK_INT(do_one(q, io), io->len);
	CHECK(!memcmp(buf, f->model + io->off, io->len));
	CHECK_INT(buf[io->len], 0xa5);
}

static void every_alignment(struct shf_queue *q, struct file *f)
{
	uint8_t *mem = pages_new(20 * PAGE);
	unsigned salt = 0;

	for (size_t o = 0; o < N(offs); o++)
		for (size_t l = 0; l < N(lens); l++)
			for (int shift = 0; shift < 3; shift++) {
				size_t at = shift == 2 ? offs[o] % PAGE : (size_t)shift;
				struct shf_io io = { .fd = f->fd, .direct = f->direct,
					             .buf = mem + at, .len = lens[l],
					             .off = offs[o] };

				write_one(q, f, &io, ++salt);
				read_one(q, f, &io);
			}
	CHECK(file_is_as_it_should(f));
	munmap(mem, 20 * PAGE);
}

TEST(every_alignment_moves_its_bytes_whoever_carries_them)
{
	for (size_t d = 0; d < DIR_N; d++)
		for (int c = 0; c < CARRIER_N; c++) {
			struct file f = file_new(dirs[d], FILE_BYTES);
			struct shf_queue *q = queue_new(c);
			struct shf_queue_stat st;

			every_alignment(q, &f);
			shf_sys_queue_stat(real(), q, &st);
			CHECK_INT(st.direct_bytes > 0, f.direct && c != SHF_CARRY_BUFFERED);
			CHECK(st.buffered_bytes > 0);
			CHECK_INT(st.refused, 0);
			shf_sys_queue_free(real(), q);
			file_free(&f);
		}
}

TEST(short_counts_and_interruptions_lose_nothing)
{
	for (size_t d = 0; d < DIR_N; d++)
		for (int c = 0; c < CARRIER_N; c++) {
			struct file f = file_new(dirs[d], FILE_BYTES);
			struct shf_queue *q = queue_new(c);

			spoil.odd = true;
			every_alignment(q, &f);
			spoil.odd = false;
			shf_sys_queue_free(real(), q);
			file_free(&f);
		}
}

TEST(a_transfer_that_is_cut_or_stopped_short_goes_on)
{
	for (size_t d = 0; d < DIR_N; d++)
		for (int c = 0; c < CARRIER_N; c++) {
			struct file f = file_new(dirs[d], FILE_BYTES);
			struct shf_queue *q = queue_new(c);

			spoil.odd_plain = true;
			every_alignment(q, &f);
			spoil.odd_plain = false;
			shf_sys_queue_free(real(), q);
			file_free(&f);
		}
}

TEST(reads_end_where_the_file_does)
{
	uint8_t *mem = pages_new(40 * PAGE);

	for (size_t d = 0; d < DIR_N; d++)
		for (int c = 0; c < CARRIER_N; c++) {
			struct file f = file_new(dirs[d], FILE_BYTES);
			struct shf_queue *q = queue_new(c);

			for (size_t off = 0; off < 30 * PAGE; off += 1000) {
				struct shf_io io = { .op = SHF_IO_READ, .fd = f.fd,
					             .direct = f.direct, .len = 32 * PAGE,
					             .buf = mem + off % PAGE, .off = off };
				size_t want = off < f.bytes ? f.bytes - off : 0;

				memset(mem, 0xa5, 40 * PAGE);
				CHECK_INT(do_one(q, &io), want);
				CHECK(!want || !memcmp(io.buf, f.model + off, want));
			}
			shf_sys_queue_free(real(), q);
			file_free(&f);
		}
	munmap(mem, 40 * PAGE);
}

TEST(what_the_kernel_refuses_to_do_direct_is_done_through_the_page_cache)
{
	for (int c = 0; c < CARRIER_N; c++) {
		struct file f = file_new(".", FILE_BYTES), decoy = file_new(".", 64 * PAGE);
		struct shf_queue *q = queue_new(c);
		struct shf_queue_stat st;
		int direct = f.direct;

		f.direct = decoy.direct;
		spoil.error = EINVAL;
		every_alignment(q, &f);
		spoil.error = 0;
		shf_sys_queue_stat(real(), q, &st);
		CHECK_INT(st.direct_bytes, 0);
		CHECK_INT(st.refused > 0, c != SHF_CARRY_BUFFERED && direct);
		f.direct = direct;
		shf_sys_queue_free(real(), q);
		file_free(&decoy);
		file_free(&f);
	}
}

TEST(where_there_is_no_ring_threads_go_direct)
{
	for (int how = 0; how < 2; how++) {
		struct file f = file_new(".", FILE_BYTES);
		struct shf_queue *q = queue_new(SHF_CARRY_BEST);
		struct shf_queue_stat st;

		*(how ? &spoil.enter_refused : &spoil.ring_refused) = true;
		every_alignment(q, &f);
		spoil.enter_refused = spoil.ring_refused = false;
		shf_sys_queue_stat(real(), q, &st);
		CHECK(!st.ring);
		CHECK_INT(st.direct_bytes > 0, f.direct != 0);
		shf_sys_queue_free(real(), q);
		file_free(&f);
	}
}

TEST(a_ring_that_worked_and_is_forbidden_later_is_done_without)
{
	uint8_t *mem = pages_new(20 * PAGE);
	struct shf_queue *q = queue_new(SHF_CARRY_BEST), *later;
	struct file f = file_new(".", FILE_BYTES);
	struct shf_queue_stat st;

	every_alignment(q, &f);
	shf_sys_queue_stat(real(), q, &st);
	printf("# %s here\n", st.ring ? "a ring" : "no ring");
	spoil.enter_refused = spoil.ring_refused = true;
	/* It sleeps in the ring: what wakes it is the last that it is let do. */
	for (unsigned salt = 1; salt < 8; salt++) {
		struct shf_io io = { .fd = f.fd, .direct = f.direct, .buf = mem,
			             .len = 16 * PAGE, .off = 3 * PAGE };

		write_one(q, &f, &io, 100 + salt);
		read_one(q, &f, &io);
	}
	shf_sys_queue_stat(real(), q, &st);
	CHECK(!st.ring);
	later = queue_new(SHF_CARRY_BEST);
	every_alignment(later, &f);
	spoil.enter_refused = spoil.ring_refused = false;
	shf_sys_queue_stat(real(), later, &st);
	CHECK(!st.ring);
	shf_sys_queue_free(real(), later);
	shf_sys_queue_free(real(), q);
	file_free(&f);
	munmap(mem, 20 * PAGE);
}

TEST(an_error_of_the_disk_is_the_result_and_the_queue_goes_on)
{
	uint8_t *mem = pages_new(20 * PAGE);

	for (int c = 0; c < CARRIER_N; c++) {
		struct file f = file_new(".", FILE_BYTES);
		struct shf_queue *q = queue_new(c);
		struct shf_io io = { .op = SHF_IO_READ, .fd = f.fd, .direct = f.direct,
			             .buf = mem, .len = 16 * PAGE };
		bool direct = f.direct && c != SHF_CARRY_BUFFERED;

		spoil.error = EIO;
		CHECK_INT(do_one(q, &io), direct ? -EIO : 16 * PAGE);
		spoil.error = 0;
		CHECK_INT(do_one(q, &io), 16 * PAGE);
		io.fd = -1;
		io.off = 1;
		io.buf = mem + 1;
		CHECK_INT(do_one(q, &io), -EBADF);      /* an edge alone */
		io.off = (uint64_t)INT64_MAX - 5;
		CHECK_INT(do_one(q, &io), -EINVAL);
		io.op = SHF_IO_WRITE;
		CHECK_INT(do_one(q, &io), -EFBIG);
		io.direct = -1;
		CHECK_INT(shf_sys_submit(real(), q, &io), -EBADF);
		shf_sys_queue_free(real(), q);
		file_free(&f);
	}
	munmap(mem, 20 * PAGE);
}

#define MANY 200

struct flood {
	struct shf_queue *q;
	struct shf_io ios[MANY];
};

static void *submit_all(void *arg)
{
	struct flood *fl = arg;

	for (int i = 0; i < MANY; i++)
		if (shf_sys_submit(real(), fl->q, &fl->ios[i]))
			return fl;
	return NULL;
}

/* MANY requests of five pages and a bit from one thread, taken by another. */
static void flood(struct shf_queue *q, struct file *f, int op, uint8_t *mem)
{
	struct flood *fl = calloc(1, sizeof(*fl));
	struct shf_io *done;
	pthread_t t;
	void *bad;
	int n = 0, rc;

	CHECK(fl);
	fl->q = q;
	for (int i = 0; i < MANY; i++)
		fl->ios[i] = (struct shf_io){ .op = op, .fd = f->fd, .direct = f->direct,
			                      .buf = mem + i * 21000, .len = 21000,
			                      .off = (uint64_t)i * 21000, .user = fl };
	CHECK_INT(pthread_create(&t, NULL, submit_all, fl), 0);
	while (n < MANY) {
		rc = shf_sys_complete(real(), q, &done, n % 3 ? -1 : 1);
		CHECK(rc == 1 || rc == 0 || rc == -EAGAIN);
		if (rc != 1)
			continue;
		n++;
		CHECK_INT(done->result, 21000);
		CHECK(done->user == fl);
		done->user = NULL;
	}
	CHECK_INT(pthread_join(t, &bad), 0);
	CHECK(!bad);
	CHECK_INT(shf_sys_complete(real(), q, &done, -1), 0);
	free(fl);
}

TEST(one_thread_submits_while_another_waits)
{
	size_t bytes = (size_t)MANY * 21000;
	uint8_t *mem = pages_new(bytes);

	for (int c = 0; c < CARRIER_N; c++) {
		struct file f = file_new(".", bytes);
		struct shf_queue *q = queue_new(c);

		for (size_t i = 0; i < bytes; i++)
			f.model[i] = mem[i] = byte_of(i, 7);
		flood(q, &f, SHF_IO_WRITE, mem);
		CHECK(file_is_as_it_should(&f));
		memset(mem, 0, bytes);
		flood(q, &f, SHF_IO_READ, mem);
		CHECK(!memcmp(mem, f.model, bytes));
		shf_sys_queue_free(real(), q);
		file_free(&f);
	}
	munmap(mem, bytes);
}

TEST(freeing_waits_for_what_is_under_way)
{
	size_t bytes = 512 * PAGE;
	uint8_t *mem = pages_new(bytes);

	for (int c = 0; c < CARRIER_N; c++) {
		struct file f = file_new(".", bytes);
		struct shf_queue *q = queue_new(c);
		struct shf_io ios[8];

		for (size_t i = 0; i < bytes; i++)
			f.model[i] = mem[i] = byte_of(i, 9);
		for (size_t i = 0; i < 8; i++) {
			ios[i] = (struct shf_io){ .op = SHF_IO_WRITE, .fd = f.fd,
				                  .direct = f.direct, .len = 64 * PAGE,
				                  .buf = mem + i * 64 * PAGE,
				                  .off = i * 64 * PAGE };
			CHECK_INT(shf_sys_submit(real(), q, &ios[i]), 0);
		}
		shf_sys_queue_free(real(), q);
		for (int i = 0; i < 8; i++)
			CHECK_INT(ios[i].result, 64 * PAGE);
		CHECK(file_is_as_it_should(&f));
		file_free(&f);
	}
	munmap(mem, bytes);
}

TEST(a_forked_child_frees_memory_only)
{
	size_t bytes = 512 * PAGE;
	uint8_t *mem = pages_new(bytes);

	for (int c = 0; c < CARRIER_N; c++) {
		struct file f = file_new(".", bytes);
		struct shf_queue *q = queue_new(c);
		struct shf_io io = { .op = SHF_IO_WRITE, .fd = f.fd, .direct = f.direct,
			             .buf = mem, .len = bytes };
		struct shf_queue_stat st;
		struct shf_io *done;
		int status;
		pid_t pid;

		memcpy(mem, f.model, bytes);
		CHECK_INT(shf_sys_submit(real(), q, &io), 0);
		pid = fork();
		if (!pid) {
			int bad = shf_sys_submit(real(), q, &io) != -EINVAL;

			bad |= shf_sys_complete(real(), q, &done, -1) != -EINVAL;
			shf_sys_queue_pin(real(), q, 0, mem, bytes);
			shf_sys_queue_stat(real(), q, &st);
			shf_sys_queue_free(real(), q);
			_exit(bad);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK_INT(status, 0);
		CHECK_INT(shf_sys_complete(real(), q, &done, -1), 1);
		CHECK_INT(io.result, bytes);
		CHECK(file_is_as_it_should(&f));
		shf_sys_queue_free(real(), q);
		file_free(&f);
	}
	munmap(mem, bytes);
}

/* Writes and reads a request in the stretch, one across its end and one beside it. */
static void around(struct shf_queue *q, struct file *f, uint8_t *mem, unsigned salt)
{
	static const size_t ats[] = { 0, 6 * PAGE, 12 * PAGE };

	for (size_t i = 0; i < N(ats); i++) {
		struct shf_io io = { .fd = f->fd, .direct = f->direct, .buf = mem + ats[i],
			             .len = 4 * PAGE, .off = ats[i] };

		write_one(q, f, &io, salt);
		read_one(q, f, &io);
	}
	CHECK(file_is_as_it_should(f));
}

TEST(pinned_memory_is_used_and_let_go)
{
	for (int c = 0; c < CARRIER_N; c++) {
		struct file f = file_new(".", FILE_BYTES);
		struct shf_queue *q = queue_new(c);
		uint8_t *mem = pages_new(20 * PAGE), *other = pages_new(20 * PAGE);

		shf_sys_queue_pin(real(), q, SHF_PINS, mem, PAGE);    /* there is no such pin */
		shf_sys_queue_pin(real(), q, 0, mem, 8 * PAGE);       /* before anything moved */
		around(q, &f, mem, 1);
		shf_sys_queue_pin(real(), q, 0, other, 16 * PAGE);    /* another */
		around(q, &f, other, 2);
		around(q, &f, mem, 3);
		shf_sys_queue_pin(real(), q, 0, NULL, 0);
		/* The same address, other memory: what was pinned may not be written. */
		CHECK(mmap(other, 20 * PAGE, PROT_READ | PROT_WRITE,
		           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == other);
		around(q, &f, other, 4);
		shf_sys_queue_pin(real(), q, 0, (void *)(uintptr_t)PAGE, PAGE);       /* refused */
		around(q, &f, other, 5);
		shf_sys_queue_pin(real(), q, 0, other, 16 * PAGE);
		shf_sys_queue_free(real(), q);
		munmap(mem, 20 * PAGE);
		munmap(other, 20 * PAGE);
		file_free(&f);
	}
}

TEST(one_stretch_is_let_go_while_another_is_written)
{
	for (int c = 0; c < CARRIER_N; c++) {
		struct file f = file_new(".", 64 * PAGE), g = file_new(".", FILE_BYTES);
		struct shf_queue *q = queue_new(c);
		uint8_t *mem = pages_new(64 * PAGE), *other = pages_new(20 * PAGE);

		shf_sys_queue_pin(real(), q, 0, mem, 64 * PAGE);
		shf_sys_queue_pin(real(), q, SHF_PINS - 1, other, 20 * PAGE);
		for (int i = 0; i < 20; i++) {
			struct shf_io io = { .op = SHF_IO_WRITE, .fd = f.fd, .direct = f.direct,
				             .buf = mem, .len = 64 * PAGE };
			struct shf_io *done;

			for (size_t k = 0; k < 64 * PAGE; k++)
				f.model[k] = mem[k] = byte_of(k, (unsigned)i);
			CHECK_INT(shf_sys_submit(real(), q, &io), 0);
			shf_sys_queue_pin(real(), q, SHF_PINS - 1, NULL, 0);
			CHECK(mmap(other, 20 * PAGE, PROT_READ | PROT_WRITE,
			           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == other);
			shf_sys_queue_pin(real(), q, SHF_PINS - 1, other, 20 * PAGE);
			CHECK_INT(shf_sys_complete(real(), q, &done, -1), 1);
			CHECK(done == &io && io.result == 64 * PAGE);
			around(q, &g, other, (unsigned)i);
		}
		CHECK(file_is_as_it_should(&f));
		shf_sys_queue_free(real(), q);
		munmap(mem, 64 * PAGE);
		munmap(other, 20 * PAGE);
		file_free(&f);
		file_free(&g);
	}
}

#ifdef SHF_TEST_URING
TEST(memory_let_go_while_it_is_being_pinned_is_not_taken_for_what_comes_there)
{
	struct file f = file_new(".", FILE_BYTES);
	struct shf_queue *q = queue_new(SHF_CARRY_BEST);
	uint8_t *mem = pages_new(20 * PAGE), *other = pages_new(20 * PAGE);
	struct shf_queue_stat st;

	around(q, &f, other, 1);
	shf_sys_queue_stat(real(), q, &st);
	memset(mem, 0x55, 20 * PAGE);
	pin_slow = st.ring;
	shf_sys_queue_pin(real(), q, 0, mem, 16 * PAGE);
	while (pin_slow && !pins_looked_up)
		usleep(100);
	pin_slow = false;
	shf_sys_queue_pin(real(), q, 0, NULL, 0);
	CHECK(mmap(mem, 20 * PAGE, PROT_READ | PROT_WRITE,
	           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == mem);
	shf_sys_queue_pin(real(), q, 0, mem, 16 * PAGE);
	around(q, &f, mem, 2);
	shf_sys_queue_free(real(), q);
	munmap(mem, 20 * PAGE);
	munmap(other, 20 * PAGE);
	file_free(&f);
}
#endif

static int thread_count(void)
{
	DIR *d = opendir("/proc/self/task");
	int n = 0;

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

TEST(threads_start_when_there_is_something_to_do)
{
	struct file f = file_new(".", FILE_BYTES);
	uint8_t *mem = pages_new(4 * PAGE);
	struct shf_io io = { .op = SHF_IO_READ, .fd = f.fd, .buf = mem, .len = 4 * PAGE };
	struct shf_queue *q = NULL;
	int before = thread_count();

	CHECK_INT(shf_sys_queue_new(real(), &q, 100), 0);
	CHECK_INT(thread_count(), before);
	for (int i = 0; i < 5; i++)
		CHECK_INT(do_one(q, &io), 4 * PAGE);
	CHECK(thread_count() > before && thread_count() <= before + 5);
	shf_sys_queue_free(real(), q);
	munmap(mem, 4 * PAGE);
	file_free(&f);
}

TEST(without_threads_a_request_is_refused_or_done_by_the_caller)
{
	uint8_t *mem = pages_new(8 * PAGE);

	for (int c = 0; c < CARRIER_N; c++) {
		struct file f = file_new(".", FILE_BYTES);
		struct shf_queue *q = queue_new(c);
		struct shf_io io = { .op = SHF_IO_READ, .fd = f.fd, .buf = mem, .len = 8 * PAGE };
		struct shf_io *done;

		spoil.no_threads = true;
		CHECK_INT(shf_sys_submit(real(), q, &io), -EAGAIN);
		CHECK_INT(shf_sys_complete(real(), q, &done, -1), 0);
		io.direct = f.direct;
		if (shf_sys_submit(real(), q, &io) == 0) {
			CHECK_INT(shf_sys_complete(real(), q, &done, -1), 1);
			CHECK_INT(io.result, 8 * PAGE);
		}
		spoil.no_threads = false;
		io.direct = 0;
		CHECK_INT(do_one(q, &io), 8 * PAGE);
		shf_sys_queue_free(real(), q);
		file_free(&f);
	}
	munmap(mem, 8 * PAGE);
}

TEST(without_memory_there_is_no_queue_or_one_without_a_ring)
{
	struct file f = file_new(".", FILE_BYTES);
	uint8_t *mem = pages_new(8 * PAGE);

	for (int nth = 1; nth < 10; nth++) {
		struct shf_io io = { .op = SHF_IO_READ, .fd = f.fd, .direct = f.direct, .buf = mem,
			             .len = 8 * PAGE };
		struct shf_queue *q = NULL;
		int rc;

		spoil.alloc_nth = nth;
		rc = shf_sys_queue_new(real(), &q, 2);
		spoil.alloc_nth = 0;
		CHECK_INT(rc < 0, nth <= 2);
		CHECK(!rc || rc == -ENOMEM);
		if (!rc)
			CHECK_INT(do_one(q, &io), 8 * PAGE);
		shf_sys_queue_free(real(), q);
	}
	munmap(mem, 8 * PAGE);
	file_free(&f);
}

static void *open_gate(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&gate_lock);
	spoil.gate_open = true;
	pthread_cond_broadcast(&gate_moved);
	pthread_mutex_unlock(&gate_lock);
	return NULL;
}

TEST(waiting_ends_at_its_time_and_is_woken_by_either_carrier)
{
	struct file f = file_new(".", FILE_BYTES);
	uint8_t *mem = pages_new(16 * PAGE);
	struct shf_queue *q = queue_new(SHF_CARRY_BEST);
	struct shf_io slow = { .op = SHF_IO_READ, .fd = dup(f.fd), .buf = mem, .len = PAGE };
	struct shf_io fast = { .op = SHF_IO_READ, .fd = f.fd, .direct = f.direct,
		               .buf = mem + 8 * PAGE, .len = 8 * PAGE };
	struct shf_io *done = NULL;
	pthread_t t;

	spoil.gate = slow.fd;
	CHECK_INT(shf_sys_submit(real(), q, &slow), 0);
	CHECK_INT(shf_sys_complete(real(), q, &done, 0), -EAGAIN);
	CHECK_INT(shf_sys_complete(real(), q, &done, 5), -EAGAIN);
	CHECK_INT(shf_sys_submit(real(), q, &fast), 0);
	CHECK_INT(shf_sys_complete(real(), q, &done, -1), 1);
	CHECK(done == &fast);
	CHECK_INT(shf_sys_complete(real(), q, &done, 5), -EAGAIN);
	CHECK_INT(pthread_create(&t, NULL, open_gate, NULL), 0);
	CHECK_INT(shf_sys_complete(real(), q, &done, -1), 1);
	CHECK(done == &slow);
	CHECK_INT(pthread_join(t, NULL), 0);
	spoil.gate = 0;
	shf_sys_queue_free(real(), q);
	close(slow.fd);
	munmap(mem, 16 * PAGE);
	file_free(&f);
}

TEST(what_is_in_memory_is_counted_and_not_brought_there)
{
	size_t bytes = 5000 * PAGE + 100;
	struct file f = file_new(".", bytes);
	int fds[2];

	CHECK_INT(pipe(fds), 0);
	for (int old = 0; old < 2; old++) {
		spoil.old_kernel = old;
		/* As written: all of it. */
		CHECK_INT(shf_sys_pwrite(real(), f.fd, f.model, bytes, 0), bytes);
		CHECK_INT(shf_sys_resident(real(), f.fd, 0, bytes), bytes);
		CHECK_INT(shf_sys_resident(real(), f.fd, 10, UINT64_MAX), bytes - 10);
		CHECK_INT(shf_sys_resident(real(), f.fd, 3 * PAGE, 4 * PAGE), 4 * PAGE);
		CHECK_INT(shf_sys_resident(real(), f.fd, bytes, 1), 0);
		CHECK_INT(shf_sys_resident(real(), f.fd, 0, 0), 0);
		CHECK_INT(shf_sys_resident(real(), fds[0], 0, 1), -ENOTSUP);
		CHECK_INT(shf_sys_resident(real(), -1, 0, 1), -EBADF);
		CHECK_INT(fsync(f.fd), 0);
		CHECK_INT(posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
		/* A file system in memory keeps it; asking twice brings nothing in. */
		CHECK_INT(shf_sys_resident(real(), f.fd, 0, bytes),
		          shf_sys_resident(real(), f.fd, 0, bytes));
		CHECK(shf_sys_resident(real(), f.fd, 0, bytes) < (int64_t)bytes || !f.direct);
		CHECK_INT(shf_sys_pread(real(), f.fd, f.model, PAGE, 0), PAGE);
		CHECK(shf_sys_resident(real(), f.fd, 0, PAGE) == PAGE);
		shf_sys_forget(real(), f.fd, 0, bytes);
		CHECK(shf_sys_resident(real(), f.fd, 0, PAGE) == 0 || !f.direct);
	}
	spoil.old_kernel = false;
	close(fds[0]);
	close(fds[1]);
	file_free(&f);
}
