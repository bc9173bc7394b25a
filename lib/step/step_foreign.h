/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a step that lib/foreign reads: shows it as a directory, compares it between ranks, and
 * fills in its layout and notes. */
#ifndef SHF_STEP_FOREIGN_H
#define SHF_STEP_FOREIGN_H
#include "foreign.h"
#include "step.h"
#include "step_find.h"

/* Replaces the system layer of the step's bare run by one that shows f as SHF_FOREIGN_DIR. Takes
 * over f, also on failure. [local] */
int shf_step_foreign_take(struct sheaf_checkpoint *step, struct shf_foreign *f,
                          struct sheaf_error *err);
/* Opens what lies at step->path, and replaces the system layer of the step's bare run by one that
 * shows it as SHF_FOREIGN_DIR. [local] */
int shf_step_foreign_show(struct sheaf_checkpoint *step, struct sheaf_error *err);
/* Compares what the ranks see. [collective] */
int shf_step_foreign_compare(const struct sheaf_checkpoint *step, struct sheaf_error *err);
/* Fills in families, files and notes. [local] */
int shf_step_foreign_files(struct sheaf_checkpoint *step, struct sheaf_error *err);
/* Returns the number of a step of a run, or what a checkpoint of another program says of its
 * number: the note "step", "global_step", "iteration" or "trainer_state.global_step". -1: there is
 * none. If the step is shown through maps, the number is that of the step behind them. */
int64_t shf_step_said_number(struct sheaf_checkpoint *step);
/* Reads the headers of all files, and compares the index with them. [collective] */
int shf_step_foreign_catalog(struct sheaf_checkpoint *step, const struct shf_step_found *found,
                             struct sheaf_error *err);
#endif
