/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors files, as Hugging Face software and steps of Sheaf have them. Tensors are placed as
 * saves place them (layout.h), so the same tensors give the same files. */
#include "err.h"
#include "export_format.h"
#include "layout_record.h"

/* The single file of a Hugging Face directory gets the name that other software gives to it. */
static int safetensors_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                             const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	int rc = shf_layout_place(l, opts->file_bytes_max, err);
	bool single = l->files_n == 1 && !opts->is_step;

	(void)step;
	if (rc < 0)
		return rc;
	plan->files = shf_zalloc(l->files_n, sizeof(*plan->files));
	if (!plan->files)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu files", l->files_n);
	for (uint32_t f = 0; f < l->files_n && rc == 0; f++) {
		plan->files[f].name = single ? "model.safetensors" : l->files[f].name;
		plan->files[f].bytes = l->files[f].bytes;
		rc = shf_layout_header(l, f, &plan->files[f].header, err);
	}
	return rc;
}

static const char *safetensors_index(struct shf_export_plan *plan,
                                     const struct shf_export_opts *opts, size_t i,
                                     struct shf_buf *out, int *rc, struct sheaf_error *err)
{
	(void)opts;
	if (i > 0 || plan->out.files_n == 1)
		return NULL;
	*rc = shf_layout_index(&plan->out, &plan->out.families[0], out, err);
	return "model.safetensors.index.json";
}

const struct shf_export_format shf_export_safetensors = {
	.name = "hf",
	.copies_files = true,
	.place = safetensors_place,
	.index = safetensors_index,
};
