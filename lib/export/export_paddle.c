/* SPDX-License-Identifier: Apache-2.0 */
/* A unified checkpoint of PaddleNLP and PaddleFormers: for each family safetensors files and an
 * index. Paddle has no 16-bit integers without a sign, and its readers take tensors labelled U16
 * for bfloat16, so BF16 gets this label. Moments come with the powers of beta1 and beta2 that
 * Paddle's AdamW keeps for each parameter: after t updates, beta to the power of t + 1.
 *
 * Source: trainer/unified_checkpoint, utils/safetensors.py and transformers/model_utils.py of
 * PaddleFormers 1.2, and adamw_kernel.cc of Paddle 3.3. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "export_format.h"
#include "json.h"
#include "layout_record.h"
#include "safetensors.h"

#define MOMENT "/moment1_0"
static const char *const powers[] = { "/beta1_pow_acc_0", "/beta2_pow_acc_0" };

/* Returns the length of the name of the parameter whose first moment this is, or 0. */
static size_t moment_of(const struct shf_lt_tensor *t)
{
	size_t n = strlen(t->name), m = strlen(MOMENT);

	return n > m && strcmp(t->name + n - m, MOMENT) == 0 ? n - m : 0;
}

static bool is_optimizer(const struct shf_lt_family *fam)
{
	return strcmp(fam->name, "optimizer") == 0;
}

/* Whether the family has moments of Adam without the powers of its betas. */
static bool needs_powers(const struct shf_layout *l, const struct shf_lt_family *fam)
{
	bool moments = false, has = false;

	for (size_t i = fam->first_tensor; i < fam->first_tensor + (size_t)fam->tensors_n; i++) {
		moments |= moment_of(&l->tensors[i]) > 0;
		has |= strstr(l->tensors[i].name, powers[0]) != NULL;
	}
	return is_optimizer(fam) && moments && !has;
}

/* Returns beta to the power of n. */
static double power_of(double beta, uint64_t n)
{
	double x = 1;

	for (; n; n >>= 1, beta *= beta)
		x *= n & 1 ? beta : 1;
	return x;
}

/* ---- the powers of the betas ---- */

/* Reads the betas of all groups of parameters, as torch's optimizers have them: "[0.9, 0.999]".
 * Leaves 0 in beta if there are none, or if groups differ. */
static void betas_of_groups(double beta[2], const struct shf_manifest *m)
{
	bool differ = false;
	double first[2] = { 0 };

	for (size_t i = 0; i < m->notes_n; i++) {
		const char *key = m->notes[i].key, *value = m->notes[i].value;
		size_t n = strlen(key);
		double b[2];

		if (strncmp(key, "optimizer.param_groups.", 23) || strcmp(key + n - 6, ".betas"))
			continue;
		if (sscanf(value, "[%lf, %lf]", &b[0], &b[1]) != 2)
			b[0] = b[1] = 0;
		if (!first[0])
			memcpy(first, b, sizeof(first));
		differ |= b[0] != first[0] || b[1] != first[1];
	}
	if (!differ)
		memcpy(beta, first, sizeof(first));
}

/* Finds what the powers depend on: the number of updates, and the betas. */
static int powers_make(float pow[2], const struct sheaf_checkpoint *step,
                       const struct shf_export_opts *opts, struct sheaf_error *err)
{
	const struct shf_manifest *m = &step->manifest;
	double beta[2] = { opts->beta1, opts->beta2 };
	int64_t t = opts->adam_step;

	for (size_t i = 0; !t && i < m->notes_n; i++)
		if (strcmp(m->notes[i].key, "adam.step") == 0)
			t = strtoll(m->notes[i].value, NULL, 10);
	if (!beta[0] && !beta[1])
		betas_of_groups(beta, m);
	if (t <= 0)
		return shf_fail(err, SHEAF_EINVAL, "%s: its moments need the number of updates, "
		                "and it has no note adam.step; give it (how.adam_step, --step)",
		                step->path);
	if (!(beta[0] > 0 && beta[0] < 1 && beta[1] > 0 && beta[1] < 1))
		return shf_fail(err, SHEAF_EINVAL, "%s: its moments need the betas of AdamW, "
		                "because Paddle keeps their powers; give them (how.beta1 and "
		                "how.beta2, --betas)", step->path);
	for (int i = 0; i < 2; i++)
		pow[i] = (float)power_of(beta[i], (uint64_t)t + 1);
	return 0;
}

/* ---- files ---- */

static bool paddle_has_type(int32_t dtype)
{
	static const int32_t types[] = { SHEAF_F64, SHEAF_F32, SHEAF_F16, SHEAF_BF16, SHEAF_I64,
		SHEAF_I32, SHEAF_I16, SHEAF_I8, SHEAF_U8, SHEAF_BOOL };
	bool has = false;

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		has |= dtype == types[i];
	return has;
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
		size_t n = moment_of(t);

		for (int i = 0; n && i < 2; i++) {
			size_t m = strlen(powers[i]) + 1;
			char *name = shf_arena_alloc(&l->arena, n + m, 1);

			if (name) {
				memcpy(name, t->name, n);
				memcpy(name + n, powers[i], m);
			}
			c->bytes.oom |= !name;
			c->list[c->n++] = (struct shf_st_tensor){ .name = name, .ndim = 1,
				.dtype = SHEAF_F32, .shape = { 1 }, .off = c->bytes.len,
				.bytes = 4 };
			shf_buf_add(&c->bytes, &pow[i], 4);
		}
	}
}

/* Lists the tensors of the file, behind those that are listed. */
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

/* Writes the header of file f, whose tensors are placed as in a step, and moves them behind it. */
static int paddle_file(struct shf_export_plan *plan, uint32_t f, const float *pow,
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

static int paddle_place(struct shf_export_plan *plan, const struct sheaf_checkpoint *step,
                        const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	float pow[2];
	int rc;

	for (size_t i = 0; i < l->families_n; i++)
		l->families[i].dir = ".";       /* all files are in one directory */
	rc = shf_layout_place(l, opts->file_bytes_max, err);
	if (rc == 0)
		plan->files = shf_zalloc(l->files_n, sizeof(*plan->files));
	if (rc == 0 && !plan->files)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for %zu files", l->files_n);
	for (uint32_t f = 0; rc == 0 && f < l->files_n; f++) {
		bool with = needs_powers(l, &l->families[l->files[f].family]);

		if (with)
			rc = powers_make(pow, step, opts, err);
		if (rc == 0)
			rc = paddle_file(plan, f, with ? pow : NULL, err);
	}
	return rc == 0 ? shf_layout_number(l, err) : rc;
}

/* ---- indexes ---- */

static void put_weight(struct shf_buf *out, bool *first, const char *name, size_t n,
                      const char *tail, const char *file)
{
	struct shf_buf whole = SHF_BUF_INIT;

	shf_buf_add(&whole, name, n);
	shf_buf_adds(&whole, tail);
	shf_buf_adds(out, *first ? "\n        " : ",\n        ");
	shf_json_put(out, (const char *)whole.data, whole.len);
	shf_buf_adds(out, ": ");
	shf_json_put(out, file, strlen(file));
	out->oom |= whole.oom;
	shf_buf_release(&whole);
	*first = false;
}

/* Each family has an index. That of the optimizer also says whether there are master weights. */
static const char *paddle_index(struct shf_export_plan *plan, const struct shf_export_opts *opts,
                                size_t i, struct shf_buf *out, int *rc, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	const struct shf_lt_family *fam = &l->families[i];
	bool first = true, with;
	uint64_t bytes;
	char *name;

	(void)opts;
	if (i >= l->families_n)
		return NULL;
	with = needs_powers(l, fam);
	bytes = fam->bytes;
	for (size_t k = fam->first_tensor; k < fam->first_tensor + (size_t)fam->tensors_n; k++)
		bytes += with && moment_of(&l->tensors[k]) ? 8 : 0;
	shf_buf_addf(out, "{\n    \"metadata\": {\n        \"total_size\": %" PRIu64
	             "\n    },\n    \"weight_map\": {", bytes);
	for (size_t k = fam->first_tensor; k < fam->first_tensor + (size_t)fam->tensors_n; k++) {
		const struct shf_lt_tensor *t = &l->tensors[k];
		const char *file = l->files[t->file].name;
		size_t n = with ? moment_of(t) : 0;

		put_weight(out, &first, t->name, strlen(t->name), "", file);
		for (int p = 0; n && p < 2; p++)
			put_weight(out, &first, t->name, n, powers[p], file);
	}
	shf_buf_adds(out, "\n    }");
	if (is_optimizer(fam))
		shf_buf_addf(out, ",\n    \"master_weights\": %s,\n    "
		             "\"quant_ckpt_resume_times\": 0",
		             shf_layout_family(l, "master_weights") >= 0 ? "true" : "false");
	shf_buf_adds(out, "\n}\n");
	name = shf_layout_index_name(fam, &l->arena);
	if (out->oom || !name)
		*rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the index of %s", fam->name);
	return name ? name : "";
}

const struct shf_export_format shf_export_paddle = {
	.name = "paddle-uc",
	.is_model = true,
	.families = true,
	.has_type = paddle_has_type,
	.place = paddle_place,
	.index = paddle_index,
};
