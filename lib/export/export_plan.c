/* SPDX-License-Identifier: Apache-2.0 */
#include "export_plan.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "natural.h"
#include "valid.h"

struct chosen {                 /* a tensor that is written */
	const char *name;               /* borrowed from the step */
	uint32_t from;
};

static int chosen_order(const void *a, const void *b)
{
	return shf_natural(((const struct chosen *)a)->name, ((const struct chosen *)b)->name);
}

/* Adds the tied names of family f that begin with the prefix, if no name of their tensor is listed
 * yet. listed: by tensor of the family. */
static void choose_tied(struct chosen *list, size_t *n, const struct shf_layout *l, uint32_t f,
                        const char *prefix, bool *listed)
{
	size_t skip = strlen(prefix);

	for (size_t i = 0; i < l->tied_n; i++) {
		const struct shf_lt_tied *t = &l->tied[i];
		int64_t of = -1;

		if (t->family == f && strncmp(t->name, prefix, skip) == 0)
			of = shf_layout_find(l, l->families[f].name, t->to);
		if (of < 0 || listed[(size_t)of - l->families[f].first_tensor])
			continue;
		listed[(size_t)of - l->families[f].first_tensor] = true;
		list[(*n)++] = (struct chosen){ t->name + skip, (uint32_t)of };
	}
}

/* Lists the tensors of the family whose names begin with the prefix, in natural order of the names
 * without it. A tensor is listed once: by its own name, or else by a tied name. */
static int choose(struct chosen **list, size_t *n, const struct sheaf_checkpoint *step,
                  const struct shf_export_opts *opts, struct sheaf_error *err)
{
	const struct shf_layout *l = &step->layout;
	int64_t f = shf_layout_family(l, opts->family);
	size_t skip = strlen(opts->prefix), first, count;
	bool *listed;

	if (f < 0)
		return shf_fail(err, SHEAF_ELAYOUT, "%s: has no family %.60s", step->path,
		                opts->family);
	first = l->families[f].first_tensor;
	count = l->families[f].tensors_n;
	*list = shf_alloc(count + 1, sizeof(**list));
	listed = shf_zalloc(count + 1, sizeof(*listed));
	if (!*list || !listed) {
		shf_free(listed);
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to list %zu tensors", step->path,
		                count);
	}
	for (size_t i = first; i < first + count; i++)
		if (strncmp(l->tensors[i].name, opts->prefix, skip) == 0) {
			(*list)[(*n)++] = (struct chosen){ l->tensors[i].name + skip, (uint32_t)i };
			listed[i - first] = true;
		}
	choose_tied(*list, n, l, (uint32_t)f, opts->prefix, listed);
	shf_free(listed);
	if (*n == 0)
		return shf_fail(err, SHEAF_ELAYOUT, "%s: family %.60s has no tensor whose name "
		                "begins with '%.200s'", step->path, opts->family, opts->prefix);
	qsort(*list, *n, sizeof(**list), chosen_order);
	return 0;
}

/* Fills in tensor i of the output, which is tensor t of the step. */
static int plan_tensor(struct shf_export_plan *plan, size_t i, const char *name,
                       const struct shf_lt_tensor *t, int32_t dtype, struct sheaf_error *err)
{
	struct shf_lt_tensor *x = &plan->out.tensors[i];
	const struct shf_dtype *was = shf_dtype(t->dtype);

	if (t->wide)
		return shf_fail(err, SHEAF_EINVAL, "tensor %.*s: has %d dimensions, at most %d can "
		                "be written", shf_name_show(t->name), t->name, t->wide,
		                SHEAF_DIMS_MAX);
	if (!shf_name_is_valid(name, strlen(name)))
		return shf_fail(err, SHEAF_EINVAL, "tensor %.*s: its name cannot be written; it "
		                "must have from 1 to %d bytes and no control characters",
		                shf_name_show(t->name), t->name, SHF_NAME_MAX);
	*x = (struct shf_lt_tensor){ .name = name, .dtype = t->dtype, .bytes = t->bytes,
		.items = t->items, .shape = t->shape, .unit = t->unit };
	if (dtype && was->kind == 'f' && shf_can_convert(dtype, t->dtype)) {
		x->dtype = dtype;
		x->bytes = t->bytes / (was->bits / 8) * (shf_dtype(dtype)->bits / 8);
	}
	return 0;
}

/* Names the files, and makes their headers. A single file gets the name that Hugging Face gives to
 * it. */
static int plan_files(struct shf_export_plan *plan, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	int rc = 0;

	plan->files = shf_zalloc(l->files_n, sizeof(*plan->files));
	if (!plan->files)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu files", l->files_n);
	for (uint32_t f = 0; f < l->files_n && rc == 0; f++) {
		plan->files[f].name = l->files_n == 1 ? "model.safetensors" : l->files[f].name;
		plan->files[f].bytes = l->files[f].bytes;
		plan->bytes += l->files[f].bytes;
		rc = shf_layout_header(l, f, &plan->files[f].header, err);
	}
	return rc;
}

int shf_export_plan_make(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                         const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	struct chosen *list = NULL;
	size_t n = 0;
	int rc;

	*plan = (struct shf_export_plan){ 0 };
	rc = choose(&list, &n, step, opts, err);
	if (rc == 0) {
		l->families = shf_arena_alloc(&l->arena, 1, sizeof(*l->families));
		l->tensors = shf_arena_alloc(&l->arena, n, sizeof(*l->tensors));
		plan->from = shf_alloc(n, sizeof(*plan->from));
		if (!l->families || !l->tensors || !plan->from)
			rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory to list %zu tensors",
			              step->path, n);
	}
	for (size_t i = 0; i < n && rc == 0; i++) {
		plan->from[i] = list[i].from;
		rc = plan_tensor(plan, i, list[i].name, &step->layout.tensors[list[i].from],
		                 opts->dtype, err);
	}
	shf_free(list);
	if (rc < 0)
		return rc;
	l->families[0] = (struct shf_lt_family){ .name = "model", .dir = "." };
	l->families_n = 1;
	l->tensors_n = n;
	rc = shf_layout_place(l, opts->file_bytes_max, err);
	return rc == 0 ? plan_files(plan, err) : rc;
}

void shf_export_plan_release(struct shf_export_plan *plan)
{
	for (size_t f = 0; plan->files && f < plan->out.files_n; f++)
		shf_buf_release(&plan->files[f].header);
	shf_free(plan->files);
	shf_free(plan->from);
	shf_layout_release(&plan->out);
	*plan = (struct shf_export_plan){ 0 };
}
