/* SPDX-License-Identifier: Apache-2.0 */
/* A unified checkpoint of PaddleNLP and PaddleFormers: for each family safetensors files and an
 * index. Paddle has no 16-bit integers without a sign, and its readers take tensors labelled U16
 * for bfloat16, so BF16 gets this label.
 *
 * Source: trainer/unified_checkpoint, utils/safetensors.py and transformers/model_utils.py of
 * PaddleFormers 1.2. */
#include <inttypes.h>
#include <string.h>
#include "err.h"
#include "export_adam.h"
#include "export_place.h"
#include "json.h"
#include "layout_record.h"
#include "paddle_powers.h"
#include "paddle_trainer.h"
#include "paddle_write.h"
#include "safetensors.h"

/* ---- files ---- */

/* Paddle's readers of safetensors files have no complex numbers. */
static bool unified_has_type(int32_t dtype)
{
	return dtype != SHEAF_C64 && shf_paddle_has_type(dtype);
}

struct content {                /* of a file */
	struct shf_st_tensor *list;     /* in order of place */
	size_t n;
	struct shf_buf bytes;           /* of the first ones, which are made here */
};

/* Lists the powers for the parameters whose moments are in the file. */
static void list_powers(struct content *c, struct shf_layout *l, const struct shf_lt_file *file,
                        const float pow[2])
{
	for (size_t k = 0; k < file->tensors_n; k++) {
		const struct shf_lt_tensor *t = &l->tensors[l->by_place[file->first_tensor + k]];

		for (int i = 0; i < 2 && shf_adam_is_moment(t); i++) {
			const char *name = shf_paddle_power_name(&l->arena, t, i);

			c->bytes.oom |= !name;
			c->list[c->n++] = (struct shf_st_tensor){ .name = name, .ndim = 1,
				.dtype = SHEAF_F32, .shape = { 1 }, .off = c->bytes.len,
				.bytes = 4 };
			shf_buf_add(&c->bytes, &pow[i], 4);
		}
	}
}

/* Lists the tensors of the file, after those that are listed. */
static void list_tensors(struct content *c, const struct shf_layout *l,
                         const struct shf_lt_file *file)
{
	for (size_t k = 0; k < file->tensors_n; k++) {
		const struct shf_lt_tensor *t = &l->tensors[l->by_place[file->first_tensor + k]];
		struct shf_st_tensor *x = &c->list[c->n++];

		*x = (struct shf_st_tensor){ .name = t->name, .ndim = t->items.ndim,
			.dtype = t->dtype == SHEAF_BF16 ? SHEAF_U16 : t->dtype,
			.off = c->bytes.len + t->off - file->header_bytes, .bytes = t->bytes };
		memcpy(x->shape, t->items.dim, sizeof(x->shape));
	}
}

/* Makes the header of file f, whose tensors are placed as in a step, and moves them after it. */
static int unified_header(struct shf_export_plan *plan, uint32_t f, const float *pow,
                          struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	struct shf_lt_file *file = &l->files[f];
	struct shf_buf *header = &plan->files[f].header;
	struct content c = { .list = shf_alloc(3 * (size_t)file->tensors_n, sizeof(*c.list)) };
	uint64_t was = file->header_bytes;
	int rc = 0;

	if (c.list && pow)
		list_powers(&c, l, file, pow);
	if (c.list)
		list_tensors(&c, l, file);
	if (!c.list || c.bytes.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for a header of %" PRIu32 " tensors",
		              file->tensors_n);
	if (rc == 0)
		rc = shf_st_write_as(header, c.list, c.n, "np", err);
	shf_buf_add(header, c.bytes.data, c.bytes.len);
	for (size_t k = 0; rc == 0 && k < file->tensors_n; k++)
		l->tensors[l->by_place[file->first_tensor + k]].off += header->len - was;
	file->header_bytes = header->len;
	file->bytes += header->len - was;
	plan->files[f].name = file->name;
	plan->files[f].bytes = file->bytes;
	if (rc == 0 && header->oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the header of %s", file->name);
	shf_buf_release(&c.bytes);
	shf_free(c.list);
	return rc;
}

static int unified_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                         const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	float pow[2];
	int rc = shf_paddle_leave_steps(plan, step, opts, err);

	for (size_t i = 0; i < l->families_n; i++)
		l->families[i].dir = ".";       /* all files are in one directory */
	if (rc == 0)
		rc = shf_layout_place(l, opts->file_bytes_max, err);
	if (rc == 0)
		plan->files = shf_zalloc(l->files_n, sizeof(*plan->files));
	if (rc == 0 && !plan->files)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for %zu files", l->files_n);
	for (uint32_t f = 0; rc == 0 && f < l->files_n; f++) {
		bool with = shf_paddle_needs_powers(l, &l->families[l->files[f].family]);

		if (with)
			rc = shf_paddle_powers(pow, step, opts, err);
		if (rc == 0)
			rc = unified_header(plan, f, with ? pow : NULL, err);
	}
	if (rc == 0)
		rc = shf_layout_number(l, err);
	return rc == 0 ? shf_paddle_trainer_add(plan, step, opts, err) : rc;
}

/* ---- indexes ---- */

/* name NULL: no memory. */
static void put_weight(struct shf_buf *out, bool *first, const char *name, const char *file)
{
	out->oom |= !name;
	shf_buf_adds(out, *first ? "\n        " : ",\n        ");
	shf_json_put(out, name ? name : "", name ? strlen(name) : 0);
	shf_buf_adds(out, ": ");
	shf_json_put(out, file, strlen(file));
	*first = false;
}

/* Each family has an index. That of the optimizer also says whether there are master weights. */
static const char *unified_index(struct shf_export_plan *plan, const struct shf_export_opts *opts,
                                 size_t i, struct shf_buf *out, int *rc, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	const struct shf_lt_family *fam = &l->families[i];
	bool first = true, with;
	uint64_t bytes;

	(void)opts;
	if (i >= l->families_n)
		return NULL;
	with = shf_paddle_needs_powers(l, fam);
	bytes = fam->bytes;
	for (size_t k = fam->first_tensor; k < fam->first_tensor + (size_t)fam->tensors_n; k++)
		bytes += with && shf_adam_is_moment(&l->tensors[k]) ? 8 : 0;
	shf_buf_addf(out, "{\n    \"metadata\": {\n        \"total_size\": %" PRIu64
	             "\n    },\n    \"weight_map\": {", bytes);
	for (size_t k = fam->first_tensor; k < fam->first_tensor + (size_t)fam->tensors_n; k++) {
		const struct shf_lt_tensor *t = &l->tensors[k];
		const char *file = l->files[t->file].name;

		put_weight(out, &first, t->name, file);
		for (int p = 0; p < 2 && with && shf_adam_is_moment(t); p++)
			put_weight(out, &first, shf_paddle_power_name(&l->arena, t, p), file);
	}
	shf_buf_adds(out, "\n    }");
	if (shf_paddle_is_optimizer(fam))
		shf_buf_addf(out, ",\n    \"master_weights\": %s,\n    "
		             "\"quant_ckpt_resume_times\": 0",
		             shf_layout_family(l, "master_weights") >= 0 ? "true" : "false");
	shf_buf_adds(out, "\n}\n");
	return shf_export_index_end(shf_layout_index_name(fam, &l->arena), out, rc, err);
}

const struct shf_export_format shf_export_paddle_unified = {
	.name = "paddle-uc",
	.copies_files = true,
	.families = true,
	.ties_states = true,
	.has_type = unified_has_type,
	.place = unified_place,
	.index = unified_index,
};
