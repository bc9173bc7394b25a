/* SPDX-License-Identifier: Apache-2.0 */
/* One file as torch.save writes it: a zip archive with the pickle of a dictionary from name to
 * tensor, and a record for the bytes of each tensor. Several families are dictionaries in one from
 * family to dictionary.
 *
 * Source: torch/serialization.py and caffe2/serialize/inline_container.cc of torch 2.13, and files
 * that torch 2.13 wrote. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "export_place.h"
#include "torch_write.h"

/* Puts the tensors of a family as a dictionary. Tensor i has the bytes of record data/i. */
static void put_family(struct shf_pkw *w, const struct shf_layout *l,
                       const struct shf_lt_family *fam)
{
	shf_pkw_op(w, SHF_PKW_EMPTY_DICT);
	for (uint32_t i = 0; i < fam->tensors_n; i++) {
		const struct shf_lt_tensor *t = &l->tensors[fam->first_tensor + i];

		shf_pkw_next_item(w, i);
		shf_pkw_text(w, t->name, strlen(t->name));
		shf_torch_put_tensor(w, t, fam->first_tensor + i);
	}
	shf_pkw_op(w, SHF_PKW_SETITEMS);
}

static void put_all(struct shf_pkw *w, const struct shf_layout *l, bool nested)
{
	shf_pkw_begin(w, 2);
	if (nested) {
		shf_pkw_op(w, SHF_PKW_EMPTY_DICT);
		shf_pkw_op(w, SHF_PKW_MARK);
	}
	for (size_t f = 0; f < l->families_n; f++) {
		if (nested)
			shf_pkw_text(w, l->families[f].name, strlen(l->families[f].name));
		put_family(w, l, &l->families[f]);
	}
	if (nested)
		shf_pkw_op(w, SHF_PKW_SETITEMS);
}

static int torch_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                       const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	uint32_t *order = shf_export_by_source(plan, step, err);
	struct shf_zip_out z;
	struct shf_pkw w;
	int rc = order ? shf_export_files_make(plan, 1, true, err) : SHEAF_ENOMEM;

	if (rc < 0)
		return rc;
	put_all(&w, l, !opts->family);
	shf_torch_begin(&z, plan, &plan->files[0], 0, &w);
	for (size_t i = 0; i < l->tensors_n; i++) {
		char name[40];

		snprintf(name, sizeof(name), SHF_TORCH_ARCHIVE "data/%" PRIu32, order[i]);
		shf_zip_add_tensor(&z, name, NULL, 0, order[i]);
	}
	return shf_export_only_file_end(plan, shf_zip_end(&z), err);
}

const struct shf_export_format shf_export_torch = {
	.name = "torch",
	.is_file = true,
	.families = true,
	.copies_tied = true,
	.has_type = shf_torch_has_type,
	.place = torch_place,
};
