/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a run's saves went, to estimate how long the next one will take. Writing and sending are
 * measured as rates. Parts whose progress cannot be seen, such as fsync, count with the longer of
 * their last two durations. Written by the thread that commits, read by any thread. */
#ifndef SHF_SAVE_PACE_H
#define SHF_SAVE_PACE_H
#include <stdatomic.h>
#include <stdint.h>

struct shf_durations {             /* last two durations of a part; zeroed: not known */
	atomic_int_fast64_t last_ns, before_ns;
};
struct shf_rate {               /* `bytes` took `ns`; zeroed: not known */
	atomic_uint_fast64_t bytes, ns;
};
/* The speed of each part of a save. Used to estimate when a save ends, and to decide whether there
 * is time to begin a part. */
struct shf_save_pace {
	struct shf_rate write, send;    /* write: to disk; send: to other nodes */
	struct shf_durations stage;        /* making the stage (C0) */
	struct shf_durations sync;         /* the fsyncs of the files (C3) */
	struct shf_durations publish;      /* publishing (C4 to C10) */
};
/* Adds a duration. It is stored as at least 1 ns, because 0 means not known. */
static inline void shf_durations_add(struct shf_durations *l, int64_t ns)
{
	atomic_store(&l->before_ns, atomic_load(&l->last_ns));
	atomic_store(&l->last_ns, ns > 0 ? ns : 1);
}

/* Returns the longer of the last two durations; 0: not known. */
static inline int64_t shf_durations_ns(const struct shf_durations *l)
{
	int64_t last = atomic_load(&l->last_ns), before = atomic_load(&l->before_ns);

	return last > before ? last : before;
}
/* Sets the rate. No bytes, or no time, are ignored: they give no rate. */
static inline void shf_rate_set(struct shf_rate *r, uint64_t bytes, int64_t ns)
{
	if (bytes == 0 || ns <= 0)
		return;
	atomic_store(&r->bytes, bytes);
	atomic_store(&r->ns, (uint64_t)ns);
}

/* Returns how many ns `bytes` bytes will take at this rate; -1: not known. */
static inline double shf_rate_ns(const struct shf_rate *r, uint64_t bytes)
{
	uint64_t per = atomic_load(&r->bytes);

	return bytes == 0 ? 0 : per == 0 ? -1
	                      : (double)bytes / (double)per * (double)atomic_load(&r->ns);
}
#endif
