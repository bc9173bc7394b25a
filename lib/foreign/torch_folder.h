/* SPDX-License-Identifier: Apache-2.0 */
/* torch.save files, or of safetensors, in a directory of Hugging Face. */
#ifndef SHF_TORCH_FOLDER_H
#define SHF_TORCH_FOLDER_H
#include "foreign_st.h"
#include "torch_walk.h"

/* Returns whether the directory has weights: one file, or shards. */
bool shf_torch_folder_has_weights(const struct shf_listing *l);
/* Adds them, and compares their index with them. l: the names in the directory. */
int shf_torch_folder_weights(struct shf_foreign *f, const struct shf_listing *l,
                             struct sheaf_error *err);
/* Adds the weights of model i > 0 of a directory in which accelerate saved several models. They are
 * in model_<i>.safetensors or pytorch_model_<i>.bin, and are listed as model_<i>.<name>. Returns 1,
 * 0 if there is no such file, or a negative code. */
int shf_torch_folder_more(struct shf_foreign *f, const struct shf_listing *l, int i,
                          struct sheaf_error *err);
/* Returns in which format torch.save wrote a file of a directory: 1 for a zip archive, 2 for the
 * legacy format, 0 if torch.save did not write it, or a negative code. */
int shf_torch_file_kind(const struct shf_sys *sys, int dir, const char *path, const char *name,
                        struct sheaf_error *err);
/* Adds all tensors and notes of a torch.save file, whichever it is. */
int shf_torch_file_add(struct shf_foreign *f, uint32_t file, const struct shf_torch_show *show,
                       struct sheaf_error *err);
#endif
