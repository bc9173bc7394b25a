/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the I/O queue of lib/sys: one file is written or read completely through it, as the
 * files of a step are. Its result is compared with the best of other programs on the same disk. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "queue.h"
#include "sys.h"

static const char usage[] =
	"usage: diskqueue file=PATH size=BYTES [NAME=VALUE ...] [--json] write|read\n"
	"\n"
	"  kind=ring|pool|buffered    io_uring; threads; threads through the page cache\n"
	"  piece=BYTES depth=N threads=N   of the queue (8 MiB, 16, 4)\n"
	"  request=BYTES              each request (16 MiB)\n"
	"  pin=1                      tell the queue of the memory before the clock starts\n"
	"  warm=1                     read what the page cache has, too\n"
	"\n"
	"write makes the file anew, reserves its space and ends with an fsync; all of that is\n"
	"timed. read is of a file whose pages were dropped. Memory is touched before.\n";

struct opts {
	const char *file, *kind;
	uint64_t size, piece, depth, threads, request, pin, warm;
	bool json, write;
};

struct outcome {
	double s, cpu_s;
	struct shf_queue_stat stat;
};

static const struct shf_sys *real(void)
{
	return shf_sys_real();
}

static void die(const char *what, int64_t rc)
{
	fprintf(stderr, "diskqueue: %s: %s\n", what, strerror((int)-rc));
	exit(2);
}

static double cpu_s(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void collect(struct shf_queue *q, uint64_t want)
{
	struct shf_io *io;
	uint64_t got = 0;
	int rc;

	while ((rc = shf_sys_complete(real(), q, &io, -1)) == 1) {
		if (io->result < 0)
			die("a request", io->result);
		got += io->op == SHF_IO_FSYNC ? 0 : (uint64_t)io->result;
	}
	if (rc < 0)
		die("complete", rc);
	if (got != want)
		die("a short file", -EIO);
}

static void move(const struct opts *o, struct shf_queue *q, int fd, int direct, uint8_t *buf)
{
	size_t n = (size_t)((o->size + o->request - 1) / o->request);
	struct shf_io *ios = calloc(n + 1, sizeof(*ios));
	int rc = ios ? 0 : -ENOMEM;

	for (size_t i = 0; !rc && i < n; i++) {
		uint64_t off = i * o->request, left = o->size - off;

		ios[i] = (struct shf_io){ .op = o->write ? SHF_IO_WRITE : SHF_IO_READ, .fd = fd,
		                          .direct = direct, .buf = buf + off, .off = off,
		                          .len = left < o->request ? left : o->request };
		rc = shf_sys_submit(real(), q, &ios[i]);
	}
	if (rc)
		die("submit", rc);
	collect(q, o->size);
	ios[n] = (struct shf_io){ .op = SHF_IO_FSYNC, .fd = fd };
	if (o->write) {
		rc = shf_sys_submit(real(), q, &ios[n]);
		if (rc)
			die("submit", rc);
		collect(q, 0);
	}
	free(ios);
}

static int open_file(const struct opts *o, int more)
{
	int fd = shf_sys_open(real(), SHF_CWD, o->file, (o->write ? SHF_O_WRITE : 0) | more, 0666);

	if (fd < 0)
		die(o->file, fd);
	return fd;
}

static void go(const struct opts *o, struct outcome *out)
{
	struct shf_queue_how how = { .depth = (int)o->depth, .piece_bytes = o->piece };
	struct shf_shm mem;
	struct shf_queue *q;
	int fd, direct = 0, rc;
	int64_t t;

	how.carrier = !strcmp(o->kind, "ring")   ? SHF_CARRY_BEST
	              : !strcmp(o->kind, "pool") ? SHF_CARRY_POOL
	                                         : SHF_CARRY_BUFFERED;
	rc = shf_sys_shm_new(real(), &mem, o->size, true);
	if (rc)
		die("memory", rc);
	for (uint64_t i = 0; i < o->size; i += 8)
		memcpy((uint8_t *)mem.base + i, &i, o->size - i < 8 ? o->size - i : 8);
	rc = shf_real_queue_make(&q, (int)o->threads, &how);
	if (rc)
		die("queue", rc);
	if (o->pin)
		shf_sys_queue_pin(real(), q, 0, mem.base, mem.bytes);
	if (o->write)
		unlink(o->file);
	fd = open_file(o, o->write ? SHF_O_CREATE | SHF_O_EXCL : 0);
	if (!o->write && !o->warm)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	out->cpu_s = cpu_s();
	t = shf_sys_mono_ns(real());
	if (o->write) {
		rc = shf_sys_resize(real(), fd, o->size);
		if (rc)
			die("resize", rc);
	}
	if (how.carrier != SHF_CARRY_BUFFERED)
		direct = open_file(o, SHF_O_DIRECT);
	move(o, q, fd, direct, mem.base);
	out->s = (double)(shf_sys_mono_ns(real()) - t) * 1e-9;
	out->cpu_s = cpu_s() - out->cpu_s;
	shf_sys_queue_stat(real(), q, &out->stat);
	shf_sys_queue_pin(real(), q, 0, NULL, 0);
	shf_sys_queue_free(real(), q);
	if (direct)
		shf_sys_close(real(), direct);
	shf_sys_close(real(), fd);
	shf_sys_shm_free(real(), &mem);
}

static void show(const struct opts *o, const struct outcome *r)
{
	double gb = (double)o->size * 1e-9;
	const char *by = r->stat.ring ? "ring" : o->kind;

	if (o->json)
		printf("{\"op\": \"%s\", \"carrier\": \"%s\", \"bytes\": %llu, \"seconds\": %.6f, "
		       "\"gb_per_s\": %.4f, \"cpu_s_per_gb\": %.4f, \"direct_bytes\": %llu, "
		       "\"buffered_bytes\": %llu, \"refused\": %u}\n",
		       o->write ? "write" : "read", by, (unsigned long long)o->size, r->s,
		       gb / r->s, r->cpu_s / gb, (unsigned long long)r->stat.direct_bytes,
		       (unsigned long long)r->stat.buffered_bytes, r->stat.refused);
	else
		printf("%s by %s: %.2f GB/s, %.3f CPU s/GB\n", o->write ? "write" : "read", by,
		       gb / r->s, r->cpu_s / gb);
}

static uint64_t number(const char *text)
{
	char *end;
	unsigned long long n = strtoull(text, &end, 10);

	if (end == text || *end || !n || n > INT64_MAX) {
		fprintf(stderr, "diskqueue: %s is no count\n", text);
		exit(2);
	}
	return n;
}

static bool set(struct opts *o, const char *arg)
{
	static const char *const names[] = { "size",    "piece", "depth", "threads",
		                             "request", "pin",   "warm" };
	uint64_t *const values[] = { &o->size,    &o->piece, &o->depth, &o->threads,
		                     &o->request, &o->pin,   &o->warm };
	const char *value = strchr(arg, '=');
	size_t n = value ? (size_t)(value - arg) : 0;

	if (!value++)
		return false;
	if (!strncmp(arg, "file=", 5))
		o->file = value;
	else if (!strncmp(arg, "kind=", 5))
		o->kind = value;
	else
		for (size_t i = 0;; i++) {
			if (i == sizeof(names) / sizeof(*names))
				return false;
			if (n == strlen(names[i]) && !strncmp(arg, names[i], n)) {
				*values[i] = number(value);
				break;
			}
		}
	return true;
}

static bool parse(int argc, char **argv, struct opts *o)
{
	if (argc < 2)
		return false;
	for (int i = 1; i < argc - 1; i++) {
		if (!strcmp(argv[i], "--json"))
			o->json = true;
		else if (!set(o, argv[i]))
			return false;
	}
	if (!o->file || !o->size || o->depth > INT32_MAX || o->threads > INT32_MAX)
		return false;
	if (strcmp(o->kind, "ring") != 0 && strcmp(o->kind, "pool") != 0 &&
	    strcmp(o->kind, "buffered") != 0)
		return false;
	o->write = !strcmp(argv[argc - 1], "write");
	return o->write || !strcmp(argv[argc - 1], "read");
}

int main(int argc, char **argv)
{
	struct opts o = { .kind = "ring", .threads = 4, .request = 16 << 20 };
	struct outcome r;

	if (!parse(argc, argv, &o)) {
		fputs(usage, stderr);
		return 2;
	}
	go(&o, &r);
	show(&o, &r);
	return 0;
}
