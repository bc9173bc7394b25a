/* SPDX-License-Identifier: Apache-2.0 */
/* torch.save files, among them those that PyTorch Lightning wrote. */
#ifndef SHF_LIGHTNING_H
#define SHF_LIGHTNING_H
#include "foreign.h"

/* Adds all tensors and notes of f->path, a torch.save file. If Lightning wrote it, which its
 * pickle says, the format becomes shf_lightning. If it is a dictionary of a training, states of the
 * optimizer get the names of their weights (torch_training.h). */
int shf_lightning_open(struct shf_foreign *f, struct sheaf_error *err);
/* Does the same for a legacy file. */
int shf_lightning_open_legacy(struct shf_foreign *f, struct sheaf_error *err);
#endif
