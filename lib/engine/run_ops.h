/* SPDX-License-Identifier: Apache-2.0 */
/* What is done to a whole run. [collective], but salvage is [local].
 *
 * The room lib/engine puts the others together: it opens and closes runs, resumes training, and
 * writes what agents keep to disk. Nothing but lib/api sees it. */
#ifndef SHF_RUN_OPS_H
#define SHF_RUN_OPS_H
#include "run.h"
#include "sys.h"

/* Deletes old steps by the rules of the run. dry: only says which. Returns how many, or a code.
 * [collective] */
int shf_run_prune(struct sheaf_run *run, bool dry,
                  void (*item)(void *arg, int64_t step, char what, const char *why), void *arg,
                  struct sheaf_error *err);
/* Sets aside all steps newer than `step`, which the next save follows. [collective] */
int shf_run_rewind(struct sheaf_run *run, int64_t step, struct sheaf_error *err);
/* The same. loaded: the step was read from memory, and its copy there stays, because nobody has
 * read the one on disk. */
int shf_run_go_back(struct sheaf_run *run, int64_t step, bool loaded, struct sheaf_error *err);
/* Marks a step: 'k' keep, 'b' bad, 0 neither. [collective] */
int shf_run_mark(struct sheaf_run *run, int64_t step, char mark, struct sheaf_error *err);
/* Publishes a step that a dead job left complete in the stage, after verifying all of it. [local]
 */
int shf_run_salvage(const char *dir, int64_t step, const struct sheaf_opts *opts,
                    const struct shf_sys *sys, struct sheaf_report *report,
                    struct sheaf_error *err);
/* Ends background work, abandons saves, and closes the run. NULL is fine. [collective], but never
 * waits for ever */
void shf_run_close(struct sheaf_run *run);
#endif
