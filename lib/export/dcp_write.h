/* SPDX-License-Identifier: Apache-2.0 */
/* The files and the metadata of a directory of torch.distributed.checkpoint, for the formats that
 * are such directories. */
#ifndef SHF_DCP_WRITE_H
#define SHF_DCP_WRITE_H
#include "export_format.h"

/* Places the tensors, as the function place of struct shf_export_format does. folder: the folder of
 * the files in the directory, such as "a/", or "". */
int shf_dcp_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                  const struct shf_export_opts *opts, const char *folder, struct sheaf_error *err);
/* Makes the bytes of .metadata. nested: a tensor is called <family>.<name>, and its family is a
 * dictionary. */
int shf_dcp_metadata(const struct shf_export_plan *plan, bool nested, struct shf_buf *out,
                     struct sheaf_error *err);
#endif
