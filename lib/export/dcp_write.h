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
/* Refuses two tensors of one name, because a reader would find only one of them. nested: as for
 * shf_dcp_metadata. EINVAL, ENOMEM. */
int shf_dcp_check_names(struct shf_layout *l, bool nested, struct sheaf_error *err);
/* Makes the bytes of .metadata. nested: each family is a dictionary, and its name the first key
 * that leads to a tensor. State of the optimizer is called optimizer.state.<parameter>.<key>, as
 * torch's get_state_dict calls it, and any other tensor <family>.<name>. */
int shf_dcp_metadata(const struct shf_export_plan *plan, bool nested, struct shf_buf *out,
                     struct sheaf_error *err);
#endif
