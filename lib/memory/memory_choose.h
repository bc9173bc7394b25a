/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether a step is loaded from memory, and opens it as a view (memory_dir.h). */
#ifndef SHF_MEMORY_CHOOSE_H
#define SHF_MEMORY_CHOOSE_H
#include "latest_search.h"
#include "memory_dir.h"
#include "run.h"

/* Gathers the cards of all agents on rank 0, in *all. The first rank of each node asks its agent
 * and keeps the answer in *mine. *asked: this rank has asked, and the agent has answered.
 * [collective] */
int shf_memory_choose_gather(struct sheaf_run *run, struct shf_buf *mine, bool *asked,
                             struct shf_buf *all, struct sheaf_error *err);
/* Searches for step n in memory, or with `sought` for the next candidate of a search for the latest
 * step. *view: the step in memory; NULL: the caller reads the disk. *base: the step on disk that
 * the step in memory follows. [collective] */
int shf_memory_choose(struct sheaf_run *run, int64_t n, struct shf_latest_search *sought,
                      struct shf_view **view, struct shf_base *base, struct sheaf_error *err);
#endif
