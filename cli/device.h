/* SPDX-License-Identifier: Apache-2.0 */
/* Measures a disk with plain I/O, and describes it, for `sheaf bench`. */
#ifndef DEVICE_H
#define DEVICE_H
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define DEVICE_THREADS_MAX 64
#define DEVICE_FILES_MAX 64

/* A directory and its file system */
struct device_place {
	const char *kind;               /* "ext4"; "" if the name is not known */
	uint64_t kind_number;           /* f_type of statfs(2) */
	uint64_t free_bytes, quota_bytes;       /* for this user; UINT64_MAX: no known quota */
	uint64_t memory_bytes;          /* available to programs */
	bool direct;                    /* O_DIRECT works; set by device_direct */
};
/* Returns 0 or -errno. Sets direct to false. */
int device_look(struct device_place *p, const char *dir);
/* Tries O_DIRECT on a temporary file in dir. Returns 0 or -errno. */
int device_direct(const char *dir, bool *direct);
/* Calls say with a message for each problem; own is an entry of dir to ignore. */
void device_warn(const struct device_place *p, const char *dir, const char *own,
                 void (*say)(void *arg, const char *text), void *arg);

/* Threads that write memory to new files, or read them back, in requests of 8 MiB */
struct device_job {
	char dir[PATH_MAX - 64];
	char *memory;                   /* borrowed, page-aligned, of size bytes */
	uint64_t bytes, file_bytes;     /* file_bytes: maximum size of a file */
	int threads;
};
struct device_time {
	double seconds, cpu_s;
};
/* Writes and fsyncs new files. They are preallocated before the clock starts. Returns 0 or
 * -errno. */
int device_write(const struct device_job *j, bool direct, struct device_time *t);
/* Reads the files of device_write. They are dropped from the page cache before the clock starts.
 * Returns 0 or -errno. */
int device_read(const struct device_job *j, bool direct, struct device_time *t);
void device_remove(const struct device_job *j);
/* Writes and fsyncs a new file of 4 KiB: nothing durable can take less time. Returns 0 or
 * -errno. */
int device_sync(const struct device_job *j, double *seconds);

double device_now(void);
double device_cpu(void);                /* of this process, user and system, in seconds */
/* Drops everything below dir from the page cache, as far as possible. Returns 0 or -errno. */
int device_forget(const char *dir);
/* Removes dir and its contents, as far as possible. Returns 0 or -errno. */
int device_clear(const char *dir);
#endif
