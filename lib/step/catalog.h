/* SPDX-License-Identifier: Apache-2.0 */
/* From headers on disk to a layout. Each header is read, checked and parsed by one rank and told
 * to all. */
#ifndef SHF_CATALOG_H
#define SHF_CATALOG_H
#include "step.h"
#include "index.h"

/* Files of the step are in step->layout.files by name and family (families by name and dir);
 * fills tensors, sizes, offsets. index: of a foreign directory, or NULL. What is wrong with the
 * step itself goes to step->cat_rc; the return value is about the group. [collective] */
int shf_catalog_read(struct sheaf_step *step, const struct shf_index *index,
                     struct sheaf_error *err);
#endif
