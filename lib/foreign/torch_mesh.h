/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank has of a tensor of torch that is placed on a mesh of ranks (a DTensor): along each
 * dimension some runs of its indices, in the order in which the rank has them. */
#ifndef SHF_TORCH_MESH_H
#define SHF_TORCH_MESH_H
#include "mem.h"

struct shf_torch_run { int64_t start, count; };         /* count > 0 */
struct shf_torch_runs { struct shf_buf a; };            /* owned; of struct shf_torch_run */
/* Sets the runs of a dimension to all n indices. Returns false if there is no memory. */
bool shf_torch_runs_whole(struct shf_torch_runs *r, int64_t n);
/* Cuts what is in the runs into `parts` and keeps part i, as the placement Shard does: parts of
 * equal size, of which the last ones may be smaller or empty. Returns false if there is no
 * memory. */
bool shf_torch_runs_shard(struct shf_torch_runs *r, int64_t parts, int64_t i);
/* Cuts them into `factor` such parts, and keeps part i of each of these, as _StridedShard does.
 * Returns false if there is no memory, if the factor is above SHF_TORCH_RUNS_MAX, or if there would
 * be more runs. */
#define SHF_TORCH_RUNS_MAX 4096
bool shf_torch_runs_strided(struct shf_torch_runs *r, int64_t factor, int64_t parts, int64_t i);
int64_t shf_torch_runs_count(const struct shf_torch_runs *r);   /* indices in all runs */
size_t shf_torch_runs_n(const struct shf_torch_runs *r);
const struct shf_torch_run *shf_torch_runs_at(const struct shf_torch_runs *r, size_t i);
void shf_torch_runs_release(struct shf_torch_runs *r);
#endif
