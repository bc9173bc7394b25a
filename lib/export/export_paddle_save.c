/* SPDX-License-Identifier: Apache-2.0 */
/* One file as paddle.save writes a dictionary from name to NumPy array, which paddle.load makes
 * tensors of. Several families are dictionaries in one from family to dictionary. */
#include <string.h>
#include "err.h"
#include "export_place.h"
#include "paddle_write.h"

/* Puts the tensors of a family as a dictionary. */
static void put_dict(struct shf_paddle_out *p, struct shf_layout *l, const uint32_t *order,
                     const struct shf_lt_family *fam)
{
	shf_pkw_op(&p->pickle, SHF_PKW_EMPTY_DICT);
	for (uint32_t i = 0; i < fam->tensors_n; i++) {
		struct shf_lt_tensor *t = &l->tensors[order[fam->first_tensor + i]];

		shf_pkw_next_item(&p->pickle, i);
		shf_pkw_text(&p->pickle, t->name, strlen(t->name));
		shf_paddle_put_tensor(p, t);
	}
	shf_pkw_op(&p->pickle, SHF_PKW_SETITEMS);
}

static int save_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                      const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	uint32_t *order = shf_export_by_source(plan, step, err);
	int rc = order ? shf_export_files_make(plan, 1, false, err) : SHEAF_ENOMEM;
	struct shf_paddle_out p;

	if (rc == 0)
		rc = shf_paddle_check_names(l, err);
	if (rc < 0)
		return rc;
	shf_paddle_begin(&p);
	if (!opts->family) {
		shf_pkw_op(&p.pickle, SHF_PKW_EMPTY_DICT);
		shf_pkw_op(&p.pickle, SHF_PKW_MARK);
	}
	for (size_t f = 0; f < l->families_n; f++) {
		const char *name = l->families[f].name;

		if (!opts->family)
			shf_pkw_text(&p.pickle, name, strlen(name));
		put_dict(&p, l, order, &l->families[f]);
	}
	if (!opts->family)
		shf_pkw_op(&p.pickle, SHF_PKW_SETITEMS);
	return shf_export_only_file_end(plan, shf_paddle_end(&p, &plan->files[0].header), err);
}

const struct shf_export_format shf_export_paddle_save = {
	.name = "paddle",
	.is_file = true,
	.families = true,
	.copies_tied = true,
	.has_type = shf_paddle_has_type,
	.place = save_place,
};
