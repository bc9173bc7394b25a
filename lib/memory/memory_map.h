/* SPDX-License-Identifier: Apache-2.0 */
/* A step in the memory of several nodes: every rank knows which node has what, and what a block
 * lacks that lies on two of them is brought to where the rest of it is. */
#ifndef SHF_MEMORY_MAP_H
#define SHF_MEMORY_MAP_H
#include "memory_dir.h"
#include "run.h"

/* Each rank brings the view of what its node has, not finished yet. on_disk: the name of the same
 * step in the run's directory, where what no node has is read; NULL: it is not there, and EFORMAT
 * if something is missing. The same result on all ranks. [collective] */
int shf_spread(struct sheaf_run *run, struct shf_view *view, const char *on_disk,
               struct sheaf_error *err);
#endif
