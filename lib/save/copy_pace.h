/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads copy the next lazy save, from how far ahead of the gates the last one was. Pure:
 * each rank decides for itself, and nothing that ranks do together follows from it. */
#ifndef SHF_COPY_PACE_H
#define SHF_COPY_PACE_H
#include <stdint.h>

#define SHF_COPY_THREADS 4              /* at most, unless the caller says otherwise */

struct shf_copy_seen {          /* of a save's copy, all of which was made; zeroed: none was */
	int threads;                    /* that copied it, besides who asked at gates */
	int64_t copy_ns;                /* it took so long */
	int64_t lead_ns;                /* it had begun so long before anybody asked at a gate */
	int64_t waited_ns;              /* who asked waited so long, at all gates together */
};
/* At most so many threads copy, at least 1. limit: opts.copy_threads; cpus: processors that they
 * may run on; spare: of these, what the caller's own threads seem to leave. */
int shf_copy_threads_most(int limit, int cpus, int spare);
/* One more than the last save had, if somebody waited for it; one less, if that many would have
 * been ready before anybody asked, with a quarter of the time to spare; 1 to most. */
int shf_copy_threads(const struct shf_copy_seen *last, int most);
#endif
