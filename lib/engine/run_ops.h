/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on a whole run. [collective]
 *
 * The room lib/engine combines the other rooms: it opens and closes runs, resumes training, and
 * writes steps from agents' memory to disk. Only lib/api may include it. */
#ifndef SHF_RUN_OPS_H
#define SHF_RUN_OPS_H
#include "run.h"
#include "sys.h"

/* Deletes old steps by the retention rules of the run. dry: only reports which steps would be
 * deleted. Calls item (may be NULL) for each step with the reason. Returns how many steps are
 * deleted, or with dry would be, or a negative code. [collective] */
int shf_run_prune(struct sheaf_run *run, bool dry,
                  void (*item)(void *arg, int64_t step, int32_t action, const char *why), void *arg,
                  struct sheaf_error *err);
/* Sets aside all steps newer than `step`. The next save follows `step`. [collective] */
int shf_run_rewind(struct sheaf_run *run, int64_t step, struct sheaf_error *err);
/* Does the same as shf_run_rewind. loaded: the step was just loaded from memory, so its copy in
 * memory is kept, because the copy on disk has not been read. [collective] */
int shf_run_rewind_loaded(struct sheaf_run *run, int64_t step, bool loaded,
                          struct sheaf_error *err);
/* Marks a step: keep, no prune deletes it; bad, a search for the latest step skips it; none
 * removes the mark. [collective] */
int shf_run_mark(struct sheaf_run *run, int64_t step, int32_t mark, struct sheaf_error *err);
/* Ends background work, discards saves that were not committed, and closes the run. NULL is
 * allowed. [collective], but it does not wait longer than the deadline for other ranks */
void shf_run_close(struct sheaf_run *run);
#endif
