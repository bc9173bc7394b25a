/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of the Hugging Face hub. It has a directory for each repository, models--ORG--NAME,
 * with the files in blobs/, links to them in a folder of snapshots/ for each commit, and the commit
 * of each branch in refs/. */
#ifndef SHF_HUB_CACHE_H
#define SHF_HUB_CACHE_H
#include "step_find.h"

/* Finds out what is at a path, as shf_step_find_path does. The directory of a repository stands for
 * its snapshot of the branch main, or the only one. EFORMAT: it has no such snapshot; the message
 * lists those that it has. [rank 0] */
int shf_hub_cache_find(struct sheaf_run *run, const char *path, struct shf_buf *told,
                       struct sheaf_error *err);
#endif
