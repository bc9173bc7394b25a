/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles of tensors, as torch.save writes them. */
#ifndef SHF_TORCH_WRITE_H
#define SHF_TORCH_WRITE_H
#include "layout.h"
#include "pickle_write.h"
#include "zip_write.h"

#define SHF_TORCH_ARCHIVE "archive/"    /* the folder of all records of a file */
bool shf_torch_has_type(int32_t dtype);
const char *shf_torch_name(int32_t dtype);      /* in module torch; static */
/* Returns the name that torch has for a state of the optimizer, which Sheaf calls `kind`: exp_avg
 * for moment1_0. Returns `kind` itself where they have the same name. */
const char *shf_torch_state_key(const char *kind);
/* Puts the tensor, whose bytes are record data/<key> of the archive. */
void shf_torch_put_tensor(struct shf_pkw *w, const struct shf_lt_tensor *t, uint32_t key);
/* Puts a torch.Size. dims NULL: one of n zeros. */
void shf_torch_put_size(struct shf_pkw *w, const int64_t *dims, int n);
/* Begins an archive at byte `at` of the file: ends and releases the pickle, and adds the records
 * that all archives have. The bytes of tensors follow. */
void shf_torch_begin(struct shf_zip_out *z, struct shf_export_plan *plan,
                     struct shf_export_file *file, uint64_t at, struct shf_pkw *w);
#endif
