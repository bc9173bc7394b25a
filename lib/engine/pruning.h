/* SPDX-License-Identifier: Apache-2.0 */
/* Old steps go after a commit: at once, or behind a caller who just asks, by a thread of rank 0. It
 * meets no publish and no stage, for these never touch a step that may go; whatever else changes
 * the run directory waits for it. */
#ifndef SHF_PRUNING_H
#define SHF_PRUNING_H
#include "mem.h"
#include "store.h"

struct sheaf_run;
struct shf_pruning {
	struct shf_task *task;          /* owned; NULL: none */
	struct shf_prune rules;
	bool done;
	struct shf_buf told;            /* of the steps that went: number, reason, NUL */
	int rc;
	struct sheaf_error err;
};
/* By these rules. Nothing where the one before still deletes: the next one will do. The log hears
 * what went here, or at the next call of these. [rank 0] */
void shf_pruning_begin(struct sheaf_run *run, const struct shf_prune *rules, bool behind);
/* What was begun is over. [local] */
void shf_pruning_settle(struct sheaf_run *run);
#endif
