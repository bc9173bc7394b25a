/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a step that a load found damaged a second time: from disk, not from the page cache, on all
 * nodes. */
#ifndef SHF_STEP_REREAD_H
#define SHF_STEP_REREAD_H
#include "run.h"

/* Reads all of a step on disk again, past the page cache. Returns 0 if it is whole; ECORRUPT if it
 * is damaged, with the place in err; EFORMAT if a newer version wrote it; any other code if it
 * could not be read. [collective] */
int shf_step_reread(struct sheaf_run *run, int64_t step, struct sheaf_error *err);
#endif
