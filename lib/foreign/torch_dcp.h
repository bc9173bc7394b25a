/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of torch.distributed.checkpoint, for the formats of other software that writes
 * some. */
#ifndef SHF_TORCH_DCP_H
#define SHF_TORCH_DCP_H
#include "torch_walk.h"

/* Returns whether a directory has a .metadata of torch.distributed.checkpoint. */
bool shf_dcp_has_metadata(const struct shf_sys *sys, int dir);
/* Adds its tensors and notes. show: NULL: tensors have their own names, and are of the family
 * "model". flat: some may be stored as ranges of flat tensors (torch_dcp_flat.h). */
int shf_dcp_open(struct shf_foreign *f, const struct shf_torch_show *show, bool flat,
                 struct sheaf_error *err);
#endif
