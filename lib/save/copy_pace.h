/* SPDX-License-Identifier: Apache-2.0 */
/* Decides how many threads copy the next lazy save, from how far ahead of the callers at gates the
 * copy of the last one was. Pure. Each rank decides for itself: nothing that ranks do together
 * depends on it. */
#ifndef SHF_COPY_PACE_H
#define SHF_COPY_PACE_H
#include <stdint.h>

#define SHF_COPY_THREADS 4              /* most copy threads, unless opts.staging.copy_threads says
	                                 * otherwise */

struct shf_copy_pace {          /* how the last complete copy in a learned order went; zeroed: there
	                         * was none yet */
	int threads;                    /* copy threads, without callers at gates */
	int64_t copy_ns;                /* how long the copy took */
	int64_t lead_ns;                /* from its start until a caller first asked at a gate */
	int64_t waited_ns;              /* how long callers waited, at all gates together */
};
/* Returns the largest number of copy threads that a save may have, at least 1. limit:
 * opts.staging.copy_threads; 0: SHF_COPY_THREADS, if `spare` allows as many. cpus: processors that
 * the threads may run on; spare: how many of these the caller's own threads seem to leave. */
int shf_copy_pace_threads_most(int limit, int cpus, int spare);
/* Returns how many threads copy the next save, 1 to `most`: one more than the last save had if
 * callers had to wait for the copy; one less if that many would have copied everything in three
 * quarters of the time before a caller first asked; else as many as the last save had. */
int shf_copy_pace_threads(const struct shf_copy_pace *last, int most);
#endif
