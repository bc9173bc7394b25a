/* SPDX-License-Identifier: Apache-2.0 */
/* What an export asks of a format: which bytes its files have beside those of the tensors, and
 * where the tensors lie. All formats are written by the same passes (export_pass.c). */
#ifndef SHF_EXPORT_FORMAT_H
#define SHF_EXPORT_FORMAT_H
#include "export_plan.h"

struct shf_export_format {
	const char *name;               /* as --format has it */
	bool is_file;                   /* it makes one file, and no directory; there is no largest
	                                 * size of a file then */
	bool is_divided;                /* it makes a file for each tensor, and there is no largest
	                                 * size of a file either */
	bool copies_files;              /* files that belong to a model, such as config.json, are
	                                 * copied into its directory */
	bool families;                  /* several families can be written at once */
	bool copies_tied;               /* a weight that has tied names is written under each of
	                                 * its names, because readers of the format look for each.
	                                 * If this is false, the weight is written once. Tensors of
	                                 * other families are written under each name in any case:
	                                 * no reader ties them */
	bool ties_states;               /* readers look for one state of the optimizer, one master
	                                 * and one average of tied weights: those of the name that
	                                 * the others are tied to. What the other names have is left
	                                 * out if it is the same */
	/* Returns whether the format has this type. NULL: it has all of them. */
	bool (*has_type)(int32_t dtype);
	/* Gives each tensor a file and an offset, which is a multiple of the size of its items, or
	 * of 8 if they are larger, and makes the files. The tensors of plan->out are filled in
	 * except for file and offset, and its families have names. A format may also leave tensors
	 * out, write moments in another type, and add families that have no tensors. */
	int (*place)(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
	             const struct shf_export_opts *opts, struct sheaf_error *err);
	/* Makes index i, counted from 0: a small file that is written after those of
	 * shf_export_small_add. Unlike them, an index is made when it is written. Returns its
	 * name, which may begin with folders that files of the plan are in, or NULL if there are no
	 * more. Sets *rc after a failure. The function may be NULL. */
	const char *(*index)(struct shf_export_plan *plan, const struct shf_export_opts *opts,
	                     size_t i, struct shf_buf *out, int *rc, struct sheaf_error *err);
};
extern const struct shf_export_format shf_export_safetensors, shf_export_torch, shf_export_dcp,
	shf_export_npz, shf_export_paddle_save, shf_export_paddle_unified, shf_export_paddle_flex,
	shf_export_paddle_sharding, shf_export_universal, shf_export_gguf, shf_export_megatron;
/* Returns the format of that name, or NULL. */
const struct shf_export_format *shf_export_format(const char *name);
/* Appends the names of all formats to *out, with commas. */
void shf_export_formats_list(struct shf_buf *out);
#endif
