/* SPDX-License-Identifier: Apache-2.0 */
/* Makes views of a step that lies in the memory of several nodes: decides which node reads which
 * blocks, and sends the parts of a block that lies on several nodes to one of them. */
#ifndef SHF_MEMORY_MAP_H
#define SHF_MEMORY_MAP_H
#include "memory_dir.h"
#include "run.h"

/* Finishes the views of all ranks. view: the parts that this rank's node has, before
 * shf_view_finish. on_disk: name of the same step in the run's directory, from which bytes are read
 * that no node has; NULL: it is not on disk, and EFORMAT if bytes are missing. All ranks return the
 * same. [collective] */
int shf_memory_map_finish(struct sheaf_run *run, struct shf_view *view, const char *on_disk,
                          struct sheaf_error *err);
#endif
