/* SPDX-License-Identifier: Apache-2.0 */
/* model_meta.json of a checkpoint of sharding_io: which parameters the ranks of a job with Paddle
 * have, and under which names the optimizer knows them. */
#ifndef SHF_PADDLE_META_H
#define SHF_PADDLE_META_H
#include "paddle_parts.h"

/* The parameter that a rank knows as `run`: a name that depends on the layout of the job. */
struct shf_pd_name { int tp, pp, ep; const char *run, *name; };
struct shf_pd_meta {
	struct shf_buf names;           /* owned; of struct shf_pd_name, sorted */
	const char *strategy;           /* NULL: not said */
};
/* Reads the n bytes of it. Adds the shapes of parameters to `parts`. Texts are in the arena of
 * parts->f. */
int shf_pd_meta_read(struct shf_pd_meta *m, struct shf_pd_parts *parts, const uint8_t *bytes,
                     size_t n, const char *where, struct sheaf_error *err);
/* Returns the first parameter that the rank of a file knows as `run` (n bytes), or NULL. Those that
 * share a name follow it; *count: how many there are. */
const struct shf_pd_name *shf_pd_meta_find(const struct shf_pd_meta *m,
                                           const struct shf_pd_rank *rank, const char *run,
                                           size_t n, size_t *count);
void shf_pd_meta_release(struct shf_pd_meta *m);
#endif
