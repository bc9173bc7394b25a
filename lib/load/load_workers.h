/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that copy and check what lies in memory already. */
#ifndef SHF_LOAD_WORKERS_H
#define SHF_LOAD_WORKERS_H
#include "load.h"

/* segs: numbers of segments of the plan; borrowed. [local] */
struct shf_crew;
int shf_crew_new(struct shf_crew **crew, const struct shf_load *load, const size_t *segs, size_t n,
                 struct sheaf_error *err); /* *crew: also when it fails */
/* One segment, on this thread; false: there is none, or one has failed. */
bool shf_crew_take(struct shf_crew *crew);
uint64_t shf_crew_done(const struct shf_crew *crew); /* bytes */
/* Of all threads the failure of the first segment; then none is at work any more. */
int shf_crew_check(struct shf_crew *crew, struct sheaf_error *err);
/* Stops the threads, adds their counters to the load, and frees everything. Returns the failure of
 * the first segment that failed, or 0. */
int shf_crew_end(struct shf_crew *crew, struct shf_load *load, struct sheaf_error *err);
#endif
