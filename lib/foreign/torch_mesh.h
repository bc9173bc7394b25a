/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of a DTensor a rank has. A DTensor is a tensor of torch that is placed on a mesh of
 * ranks. Along each dimension of the tensor, a rank has some runs of indices, in this order in its
 * memory. */
#ifndef SHF_TORCH_MESH_H
#define SHF_TORCH_MESH_H
#include "mem.h"

struct shf_torch_run { int64_t start, count; };         /* count > 0 */
struct shf_torch_runs { struct shf_buf a; };            /* owned; of struct shf_torch_run */
/* Sets the runs of a dimension to all n indices. Returns false if there is no memory. */
bool shf_torch_runs_whole(struct shf_torch_runs *r, int64_t n);
/* Cuts the indices in the runs into `parts` parts of equal size, of which the last ones may be
 * smaller or empty, and keeps part i. This is what the placement Shard does. Returns false if there
 * is no memory. */
bool shf_torch_runs_shard(struct shf_torch_runs *r, int64_t parts, int64_t i);
/* Cuts the indices in the runs into `factor` such parts, cuts each of those into `parts`, and keeps
 * part i of each. This is what the placement _StridedShard does. Returns false if there is no
 * memory, or if the factor or the number of runs would exceed SHF_TORCH_RUNS_MAX. */
#define SHF_TORCH_RUNS_MAX 4096
bool shf_torch_runs_strided(struct shf_torch_runs *r, int64_t factor, int64_t parts, int64_t i);
int64_t shf_torch_runs_count(const struct shf_torch_runs *r);   /* indices in all runs */
size_t shf_torch_runs_n(const struct shf_torch_runs *r);
const struct shf_torch_run *shf_torch_runs_at(const struct shf_torch_runs *r, size_t i);
void shf_torch_runs_release(struct shf_torch_runs *r);
#endif
