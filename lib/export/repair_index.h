/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the index of a directory anew, from the headers of its files. */
#ifndef SHF_REPAIR_INDEX_H
#define SHF_REPAIR_INDEX_H
#include "step.h"

/* Does what sheaf_checkpoint_repair_index says. [local] */
int shf_step_repair_index(struct sheaf_checkpoint *step, struct sheaf_error *err);
#endif
