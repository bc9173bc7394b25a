/* SPDX-License-Identifier: Apache-2.0 */
/* Number, notes, manifest, index files and checksums of a step that is imported. */
#ifndef SHF_IMPORT_RECORD_H
#define SHF_IMPORT_RECORD_H
#include "import_step.h"

/* Sets *number to the number of the new step: the one that was asked for; else that of the source,
 * if the source is a step of Sheaf or has a note "step", "global_step", "iteration" or
 * "trainer_state.global_step"; else 0, if the source has tensors only. EINVAL: it has other values,
 * and none of them is a number. */
int shf_import_number(int64_t *number, struct sheaf_checkpoint *step, int64_t asked,
                      struct sheaf_error *err);
/* Compares the digests of the tensors with those that the source has, if it has any, and with the
 * sums of the blocks that were written. Then writes index files and checksums into the stage, and
 * fills in the manifest. */
int shf_import_record(struct shf_import *m, struct sheaf_error *err);
#endif
