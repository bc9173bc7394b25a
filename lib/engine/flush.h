/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a step that lies in the memory of agents to disk. */
#ifndef SHF_FLUSH_H
#define SHF_FLUSH_H
#include "sheaf.h"
#include "sys.h"

/* Writes the newest complete step in memory that is not on disk to disk, and publishes it. due:
 * only steps that were to be written to disk count. If other nodes have parts of the step, their
 * agents must call this at the same time; wait_ms: how long to wait for them (flush_nodes.h).
 * *step: its number, -1: there is none. [local] */
int shf_flush_newest(const char *dir, const char *agent, bool due, int wait_ms,
                     const struct shf_sys *sys, int64_t *step, struct sheaf_report *report,
                     struct sheaf_error *err);
#endif
