/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how fast a program can read files into memory that it has touched: the baseline of a
 * warm load.
 *
 * usage: sheaf-bench-read pread|map THREADS FILE...
 *
 * A round waits for a line on standard input, reads all bytes of all files, and prints one JSON
 * object. The threads take the chunks in turn. `pread` reads into place; `map` maps the chunk with
 * its pages present and copies it. There is no checksum and no plan: no reader can do less.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHUNK ((uint64_t)8 << 20)
#define THREADS_MAX 256

struct file {
	const char *path;
	char *target;
	uint64_t bytes, chunks;
	int fd;
};
struct job {
	struct file *files;
	size_t n;
	uint64_t chunks;
	bool map;
	atomic_uint_fast64_t next;
	atomic_int failed;              /* an errno; any of the errors will do */
};

static int chunk_pread(const struct file *f, uint64_t off, uint64_t len)
{
	while (len) {
		ssize_t n = pread(f->fd, f->target + off, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? errno : EIO;
		off += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return 0;
}

static int chunk_map(const struct file *f, uint64_t off, uint64_t len)
{
	void *at = mmap(NULL, len, PROT_READ, MAP_SHARED | MAP_POPULATE, f->fd, (off_t)off);

	if (at == MAP_FAILED)
		return errno;
	memcpy(f->target + off, at, len);
	munmap(at, len);
	return 0;
}

static void *work(void *arg)
{
	struct job *j = arg;

	for (;;) {
		uint64_t i = atomic_fetch_add(&j->next, 1), off, len;
		struct file *f = j->files;
		int bad;

		if (i >= j->chunks || atomic_load(&j->failed))
			return NULL;
		for (; i >= f->chunks; f++)
			i -= f->chunks;
		off = i * CHUNK;
		len = f->bytes - off < CHUNK ? f->bytes - off : CHUNK;
		bad = j->map ? chunk_map(f, off, len) : chunk_pread(f, off, len);
		if (bad)
			atomic_store(&j->failed, bad);
	}
}

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static double cpu(void)
{
	struct rusage u = { 0 };

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static int run(struct job *j, int threads)
{
	pthread_t id[THREADS_MAX];
	int started = 0, bad = 0;

	atomic_store(&j->next, 0);
	for (; started < threads - 1 && !bad; started += !bad)
		bad = pthread_create(&id[started], NULL, work, j);
	work(j);
	while (started > 0)
		pthread_join(id[--started], NULL);
	return bad ? bad : atomic_load(&j->failed);
}

static int open_file(struct file *f, const char *path)
{
	struct stat st;

	f->path = path;
	f->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (f->fd < 0 || fstat(f->fd, &st) < 0)
		return errno;
	f->bytes = (uint64_t)st.st_size;
	f->chunks = (f->bytes + CHUNK - 1) / CHUNK;
	f->target = mmap(NULL, f->bytes ? f->bytes : 1, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (f->target == MAP_FAILED)
		return errno;
	memset(f->target, 0xa7, f->bytes);
	return 0;
}

static int rounds(struct job *j, int threads, uint64_t bytes)
{
	char line[256];

	while (fgets(line, sizeof(line), stdin)) {
		double start = seconds(), used = cpu();
		int bad = run(j, threads);

		start = seconds() - start;
		used = cpu() - used;
		if (bad) {
			fprintf(stderr, "sheaf-bench-read: %s\n", strerror(bad));
			return 2;
		}
		printf("{\"event\":\"read\",\"bytes\":%llu,\"seconds\":%.9f,\"cpu_s\":%.6f}\n",
		       (unsigned long long)bytes, start, used);
		fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct job j = { 0 };
	uint64_t bytes = 0;
	int threads = argc > 2 ? atoi(argv[2]) : 0;

	if (argc < 4 || threads < 1 || threads > THREADS_MAX ||
	    (strcmp(argv[1], "pread") != 0 && strcmp(argv[1], "map") != 0)) {
		fprintf(stderr, "usage: sheaf-bench-read pread|map THREADS FILE...\n");
		return 2;
	}
	j.map = argv[1][0] == 'm';
	j.n = (size_t)argc - 3;
	j.files = calloc(j.n, sizeof(*j.files));
	for (size_t i = 0; j.files && i < j.n; i++) {
		int bad = open_file(&j.files[i], argv[3 + i]);

		if (bad) {
			fprintf(stderr, "sheaf-bench-read: %s: %s\n", argv[3 + i], strerror(bad));
			return 2;
		}
		bytes += j.files[i].bytes;
		j.chunks += j.files[i].chunks;
	}
	return j.files ? rounds(&j, threads, bytes) : 2;
}
