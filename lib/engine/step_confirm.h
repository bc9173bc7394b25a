/* SPDX-License-Identifier: Apache-2.0 */
/* The second reading of a step that a load found damaged: past the page cache, on all nodes. */
#ifndef SHF_STEP_CONFIRM_H
#define SHF_STEP_CONFIRM_H
#include "run.h"

/* Reads all of a step on disk past the page cache. 0: it is whole; ECORRUPT: it is damaged, and err
 * names where; EFORMAT: a newer sheaf wrote it; any other code: it could not be read.
 * [collective] */
int shf_step_confirm(struct sheaf_run *run, int64_t step, struct sheaf_error *err);
#endif
