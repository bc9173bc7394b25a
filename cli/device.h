/* SPDX-License-Identifier: Apache-2.0 */
/* What a disk can do when asked plainly, and what it is: for `sheaf bench`. */
#ifndef DEVICE_H
#define DEVICE_H
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define DEVICE_THREADS_MAX 64
#define DEVICE_FILES_MAX 64

/* A directory as it is found. */
struct device_place {
	const char *kind;               /* "ext4"; "" where it has no name here */
	uint64_t kind_number;           /* of statfs(2) */
	uint64_t free_bytes, quota_bytes;       /* for this user; UINT64_MAX: no quota seen */
	uint64_t memory_bytes;          /* that programs may still take */
	bool direct;                    /* O_DIRECT is taken; see device_direct */
};
/* 0 or -errno; direct is left false. */
int device_look(struct device_place *p, const char *dir);
/* Tries it on a file of dir, which is made and removed. 0 or -errno. */
int device_direct(const char *dir, bool *direct);
/* Calls say with a sentence for each thing that will hurt; own is an entry of dir of no account. */
void device_warn(const struct device_place *p, const char *dir, const char *own,
                 void (*say)(void *arg, const char *text), void *arg);

/* Plain threads that move memory to and from new files by turns, 8 MiB a request. */
struct device_job {
	char dir[PATH_MAX - 64];
	char *memory;                   /* borrowed, page-aligned, bytes long */
	uint64_t bytes, file_bytes;     /* a file at most */
	int threads;
};
struct device_time {
	double seconds, cpu_s;
};
/* New files, preallocated before the clock starts; written and fsynced. 0 or -errno. */
int device_write(const struct device_job *j, bool direct, struct device_time *t);
/* The files of device_write, dropped from the page cache before the clock starts. 0 or -errno. */
int device_read(const struct device_job *j, bool direct, struct device_time *t);
void device_remove(const struct device_job *j);
/* A new file of 4 KiB, written and fsynced: the least that anything durable costs. 0 or -errno. */
int device_sync(const struct device_job *j, double *seconds);

double device_now(void);
double device_cpu(void);                /* of this process, user and system, seconds */
/* Everything below dir out of the page cache, as far as the kernel lets go. 0 or -errno. */
int device_forget(const char *dir);
/* dir and everything in it; what cannot be removed stays. 0 or -errno. */
int device_clear(const char *dir);
#endif
