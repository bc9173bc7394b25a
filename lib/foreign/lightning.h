/* SPDX-License-Identifier: Apache-2.0 */
/* Files of torch.save that PyTorch Lightning wrote. */
#ifndef SHF_LIGHTNING_H
#define SHF_LIGHTNING_H
#include "foreign.h"

/* Adds all tensors and notes of f->path, a file of torch.save. If Lightning wrote it, which its
 * pickle says, the format becomes shf_lightning. */
int shf_lightning_open(struct shf_foreign *f, struct sheaf_error *err);
#endif
