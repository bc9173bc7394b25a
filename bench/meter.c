/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what a round uses: processor time, disk bytes, resident memory. Reads the line that
 * starts a round. */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static uint64_t ns_of(struct timeval tv)
{
	return (uint64_t)tv.tv_sec * 1000000000 + (uint64_t)tv.tv_usec * 1000;
}

/* Returns the number after `key` in a small file of /proc, or 0. */
static uint64_t proc_number(const char *path, const char *key)
{
	char text[8192];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	const char *at;

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	at = strstr(text, key);
	return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/* Resets the peak, so that it is the round's. If the kernel refuses, it is the process's. */
static void forget_peak(void)
{
	int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	if (write(fd, "5", 1) != 1)
		errno = 0;
	close(fd);
}

void bench_meter_start(struct bench_meter *m)
{
	struct rusage u = { 0 };

	forget_peak();
	*m = (struct bench_meter){ 0 };
	m->rss = proc_number("/proc/self/status", "VmRSS:") * 1024;
	m->read_bytes = proc_number("/proc/self/io", "\nread_bytes:");
	m->write_bytes = proc_number("/proc/self/io", "\nwrite_bytes:");
	getrusage(RUSAGE_SELF, &u);
	m->user_ns = ns_of(u.ru_utime);
	m->sys_ns = ns_of(u.ru_stime);
	m->faults = (uint64_t)u.ru_minflt;
}

void bench_meter_stop(struct bench_meter *m)
{
	struct rusage u = { 0 };

	getrusage(RUSAGE_SELF, &u);
	m->user_ns = ns_of(u.ru_utime) - m->user_ns;
	m->sys_ns = ns_of(u.ru_stime) - m->sys_ns;
	m->faults = (uint64_t)u.ru_minflt - m->faults;
	m->read_bytes = proc_number("/proc/self/io", "\nread_bytes:") - m->read_bytes;
	m->write_bytes = proc_number("/proc/self/io", "\nwrite_bytes:") - m->write_bytes;
	m->peak = proc_number("/proc/self/status", "VmHWM:") * 1024;
	m->grown = m->peak > m->rss ? m->peak - m->rss : 0;
}

int bench_meter_share(const struct bench_comm *c, struct bench_meter *m, struct sheaf_error *err)
{
	uint64_t sum[5] = { m->user_ns, m->sys_ns, m->faults, m->read_bytes, m->write_bytes };
	uint64_t most[3] = { m->rss, m->peak, m->grown };
	int rc = bench_reduce(c, sum, 5, MPI_SUM, err);

	if (rc == 0)
		rc = bench_reduce(c, most, 3, MPI_MAX, err);
	if (rc < 0)
		return rc;
	*m = (struct bench_meter){ .user_ns = sum[0], .sys_ns = sum[1], .faults = sum[2],
				   .read_bytes = sum[3], .write_bytes = sum[4], .rss = most[0],
				   .peak = most[1], .grown = most[2] };
	return 0;
}

json_t *bench_meter_json(const struct bench_meter *m, int64_t round)
{
	return json_pack("{s:I,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:I,s:I}", "round", (json_int_t)round,
			 "cpu_s", (double)(m->user_ns + m->sys_ns) * 1e-9, "user_s",
			 (double)m->user_ns * 1e-9, "sys_s", (double)m->sys_ns * 1e-9, "faults",
			 (json_int_t)m->faults, "io_read_bytes", (json_int_t)m->read_bytes,
			 "io_write_bytes", (json_int_t)m->write_bytes, "rss_bytes",
			 (json_int_t)m->rss, "peak_bytes", (json_int_t)m->peak, "grown_bytes",
			 (json_int_t)m->grown);
}

/* --- the line --------------------------------------------------------------------------------- */

/* Reads a line of standard input, and keeps its beginning. Returns false at the end. */
static bool read_line(char line[BENCH_LINE])
{
	size_t at = 0;
	char c;
	ssize_t n;

	for (;;) {
		n = read(STDIN_FILENO, &c, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n != 1)
			return false;
		if (c == '\n')
			return true;
		if (at + 1 < BENCH_LINE)
			line[at++] = c;
	}
}

int bench_on_line(const struct bench *b, char line[BENCH_LINE], struct sheaf_error *err)
{
	/* Others may be measuring now: a rank that waits for rank 0 polls only ten times a second,
	 * without a deadline. */
	struct timespec pause = { .tv_nsec = 100000000 };
	struct { uint64_t go; char line[BENCH_LINE]; } told;
	MPI_Request req;
	int done = 0, bad;

	memset(&told, 0, sizeof(told));
	memset(line, 0, BENCH_LINE);
	if (!b->o->on_line)
		return 1;
	if (b->comm.rank == 0) {
		bench_event(&b->events, json_pack("{s:s}", "event", "ready"));
		told.go = read_line(told.line);
	}
	bad = MPI_Ibcast(&told, (int)sizeof(told), MPI_BYTE, 0, b->comm.comm, &req);
	while (bad == MPI_SUCCESS && !done) {
		bad = MPI_Test(&req, &done, MPI_STATUS_IGNORE);
		if (bad == MPI_SUCCESS && !done)
			nanosleep(&pause, NULL);
	}
	if (bad != MPI_SUCCESS)
		return wl_fail(err, SHEAF_ELOST, "MPI lost a rank");
	memcpy(line, told.line, BENCH_LINE);
	return (int)told.go;
}
