/* SPDX-License-Identifier: Apache-2.0 */
/* Worker threads that copy and check the segments that are in memory already: in an agent, or in
 * the page cache. */
#ifndef SHF_LOAD_WORKERS_H
#define SHF_LOAD_WORKERS_H
#include "load.h"

/* Starts the threads. segs: the n segments that they are to take, as indices into load->work.segs;
 * borrowed. The caller's thread is worker 0. ENOMEM. *crew is set in any case, for
 * shf_load_workers_end. [local] */
struct shf_load_workers;
int shf_load_workers_new(struct shf_load_workers **crew, const struct shf_load *load,
                         const size_t *segs, size_t n, struct sheaf_error *err);
/* Takes one segment on this thread. Returns false if no segment is left or a worker has failed. */
bool shf_load_workers_take(struct shf_load_workers *crew);
uint64_t shf_load_workers_done(const struct shf_load_workers *crew); /* bytes of the segments that
                                                                      * were taken */
/* Returns 0, or the failure of the first segment that failed, after all threads have been stopped.
 * Does not wait if nothing has failed. */
int shf_load_workers_check(struct shf_load_workers *crew, struct sheaf_error *err);
/* Stops the threads, adds their counters to the load, and frees everything. Returns the failure of
 * the first segment that failed, or 0. */
int shf_load_workers_end(struct shf_load_workers *crew, struct shf_load *load,
                         struct sheaf_error *err);
#endif
