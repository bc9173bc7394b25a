/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a run's saves went, for who has little time. Of what nobody can see the end of the last
 * two count, and of these the slower. Written by the thread that commits, read by any. */
#ifndef SHF_SAVE_PACE_H
#define SHF_SAVE_PACE_H
#include <stdatomic.h>
#include <stdint.h>

struct shf_lasted {             /* zeroed: nothing is known */
	atomic_int_fast64_t last_ns, before_ns;
};
struct shf_rate {               /* zeroed: nothing is known */
	atomic_uint_fast64_t bytes, ns;
};
/* How fast the saves of this run went so far, part by part. The estimate of a save's end, and the
 * decision whether there is time to begin a part, go by it. */
struct shf_pace {
	struct shf_rate write, send;
	struct shf_lasted stage;        /* C0 */
	struct shf_lasted sync;         /* C3 */
	struct shf_lasted publish;      /* C4 to C10 */
};
static inline void shf_lasted_add(struct shf_lasted *l, int64_t ns)
{
	atomic_store(&l->before_ns, atomic_load(&l->last_ns));
	atomic_store(&l->last_ns, ns > 0 ? ns : 1);
}

/* 0: never seen. */
static inline int64_t shf_lasted_ns(const struct shf_lasted *l)
{
	int64_t last = atomic_load(&l->last_ns), before = atomic_load(&l->before_ns);

	return last > before ? last : before;
}
/* So many bytes took so long; what took no time says nothing. */
static inline void shf_rate_set(struct shf_rate *r, uint64_t bytes, int64_t ns)
{
	if (bytes == 0 || ns <= 0)
		return;
	atomic_store(&r->bytes, bytes);
	atomic_store(&r->ns, (uint64_t)ns);
}

/* How long more of them will take; -1: nobody knows. */
static inline double shf_rate_ns(const struct shf_rate *r, uint64_t bytes)
{
	uint64_t per = atomic_load(&r->bytes);

	return bytes == 0 ? 0 : per == 0 ? -1
	                      : (double)bytes / (double)per * (double)atomic_load(&r->ns);
}
#endif
