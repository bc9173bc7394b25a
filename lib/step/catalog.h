/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the layout of a step from the headers on disk. Each header is read and checked by one
 * rank, which sends it to all ranks. */
#ifndef SHF_CATALOG_H
#define SHF_CATALOG_H
#include "step.h"
#include "index.h"

/* The caller has filled step->layout.files with name and family, and families with name and dir.
 * This function fills in tensors, sizes and offsets. index: the parsed index of a foreign
 * directory, or NULL. A fault of the step itself goes to step->cat_rc and cat_err; the return value
 * is a failure of the group or of memory. [collective] */
int shf_catalog_read(struct sheaf_checkpoint *step, const struct shf_index *index,
                     struct sheaf_error *err);
#endif
