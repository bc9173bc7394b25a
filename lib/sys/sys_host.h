/* SPDX-License-Identifier: Apache-2.0 */
/* Time, randomness, and the identity of this process. */
#ifndef SHF_SYS_HOST_H
#define SHF_SYS_HOST_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Describes a process in enough detail to find out later whether it still exists. */
struct shf_owner {
	char host[65], boot[37];        /* host name and boot id, text */
	uint64_t pid_ns, pid, start;    /* inode of the pid namespace, pid, start time in ticks */
	uint64_t time_ns;               /* inode of the time namespace whose clock start uses;
	                                 * 0: unknown, or the kernel has none */
	uint64_t dev;                   /* device of the file that records this; 0: not recorded */
};

/* Clocks count nanoseconds, and options and timeouts milliseconds. */
static inline int64_t shf_ms_ns(int64_t ms)
{
	return ms * 1000000;
}

struct shf_host_ops {
	/* Fills buf with n random bytes from the kernel. 0 or a negative errno. */
	int (*random)(void *arg, void *buf, size_t n);
	/* A clock that never goes back. Its zero is arbitrary, so only differences mean
	 * something. */
	int64_t (*mono_ns)(void *arg);
	int64_t (*wall_s)(void *arg);   /* seconds since 1970, UTC; may be set back */
	void (*sleep_ms)(void *arg, int ms);
	/* Describes this process. Fields that cannot be read stay empty or 0. */
	int (*owner)(void *arg, struct shf_owner *self);
	/* True only if it is proven that the process is gone. */
	bool (*owner_is_dead)(void *arg, const struct shf_owner *owner);
	uint64_t (*pid)(void *arg);     /* to recognise handles that a forked child inherited */
};
#endif
