/* SPDX-License-Identifier: Apache-2.0 */
/* What an export writes: the tensors of one family under new names and in new types, or all
 * families as they are, and the file and offset of each tensor. The placement is that of saves
 * (layout.h), so the same tensors give the same files. */
#ifndef SHF_EXPORT_PLAN_H
#define SHF_EXPORT_PLAN_H
#include "export_hf.h"

struct shf_export_file {
	const char *name;               /* in the arena of the layout */
	struct shf_buf header;          /* owned */
	uint64_t bytes;                 /* with the header */
};
struct shf_export_plan {
	struct shf_layout out;
	uint32_t *from;                 /* owned; by tensor of `out`: the tensor of the step */
	struct shf_export_file *files;  /* owned; out.files_n of them */
	uint64_t bytes;                 /* of all files together */
};
/* Makes the plan. The step must be awake. ELAYOUT: the step has no such family, or no tensor in it
 * whose name begins with the prefix. EINVAL: a tensor has a name or a number of dimensions that
 * Sheaf does not write, or options for one family were given for several. The caller releases *plan
 * after a failure, too. */
int shf_export_plan_make(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                         const struct shf_export_opts *opts, struct sheaf_error *err);
void shf_export_plan_release(struct shf_export_plan *plan);
#endif
