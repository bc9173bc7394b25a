/* SPDX-License-Identifier: Apache-2.0 */
#include "export_plan.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "export_format.h"
#include "natural.h"
#include "valid.h"

struct chosen {                 /* a tensor that is written */
	const char *name;               /* borrowed from the step */
	uint32_t from;
	bool left;                      /* it is not written after all */
};
struct choice {                 /* what is written */
	struct chosen *list;            /* owned; family by family, each in natural order */
	size_t n;
	const char **names;             /* owned; by tensor of the step: the name under which it is
	                                 * written; NULL: it is not */
};

static int chosen_order(const void *a, const void *b)
{
	return shf_natural(((const struct chosen *)a)->name, ((const struct chosen *)b)->name);
}

static void choose(struct choice *c, const char *name, size_t from)
{
	c->names[from] = name;
	c->list[c->n++] = (struct chosen){ name, (uint32_t)from, false };
}

/* Chooses the tensors of family f whose names begin with the prefix, in natural order of the names
 * without it. A tensor is chosen once: by its own name, or else by a tied name. copies: it is
 * chosen by all of its names. Returns how many. */
static size_t choose_of_family(struct choice *c, const struct shf_layout *l, uint32_t f,
                               const char *prefix, bool copies)
{
	const struct shf_lt_family *fam = &l->families[f];
	size_t skip = strlen(prefix), before = c->n;

	for (size_t i = fam->first_tensor; i < fam->first_tensor + (size_t)fam->tensors_n; i++)
		if (strncmp(l->tensors[i].name, prefix, skip) == 0)
			choose(c, l->tensors[i].name + skip, i);
	for (size_t i = 0; i < l->tied_n; i++) {
		const struct shf_lt_tied *t = &l->tied[i];
		int64_t of = -1;

		if (t->family == f && strncmp(t->name, prefix, skip) == 0)
			of = shf_layout_find(l, fam->name, t->to);
		if (of >= 0 && (copies || !c->names[of]))
			choose(c, t->name + skip, (size_t)of);
	}
	if (c->n > before)
		qsort(c->list + before, c->n - before, sizeof(*c->list), chosen_order);
	return c->n - before;
}

/* Returns the chosen tensor <name><tail> of a family, or NULL. */
static struct chosen *chosen_find(const struct choice *c, const struct shf_lt_family *fam,
                                  const char *name, const char *tail)
{
	char whole[SHF_NAME_MAX + 20];
	struct chosen want = { .name = whole };

	snprintf(whole, sizeof(whole), "%s%s", name, tail);
	return bsearch(&want, c->list + fam->first_tensor, fam->tensors_n, sizeof(want),
	               chosen_order);
}

/* Leaves out what belongs to this second name of a weight in a family, if each of it is the same
 * tensor as what belongs to the name that it is tied to. Numbers of updates and powers of betas may
 * be arrays of their own: those of one parameter do for the weight. */
static void leave_of_tied(const struct choice *c, const struct shf_lt_family *fam,
                          const struct shf_lt_tied *tied)
{
	static const char *const tails[] = { "", "/moment1_0", "/moment2_0", "/moment2_max_0",
		"/step", "/beta1_pow_acc_0", "/beta2_pow_acc_0" };
	const size_t values = 4;        /* all behind them are such values */
	struct chosen *own[sizeof(tails) / sizeof(tails[0])];
	size_t n = 0;

	for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
		struct chosen *x = chosen_find(c, fam, tied->name, tails[i]);
		const struct chosen *to = chosen_find(c, fam, tied->to, tails[i]);

		if (x && (!to || (i < values && to->from != x->from)))
			return;
		if (x)
			own[n++] = x;
	}
	while (n > 0)
		own[--n]->left = true;
}

/* Leaves out the states, masters and averages that tied weights have in common, but for those of
 * one name. */
static void leave_ties(struct choice *c, struct shf_layout *out, const struct shf_layout *l)
{
	int64_t model = shf_layout_family(l, "model");
	size_t n = 0;

	for (size_t k = 0; k < l->tied_n; k++)
		for (size_t f = 0; l->tied[k].family == model && f < out->families_n; f++)
			if (strcmp(out->families[f].name, "model"))
				leave_of_tied(c, &out->families[f], &l->tied[k]);
	for (size_t f = 0; f < out->families_n; f++) {
		struct shf_lt_family *fam = &out->families[f];
		size_t i = fam->first_tensor, end = i + fam->tensors_n;

		fam->first_tensor = (uint32_t)n;
		for (; i < end; i++)
			if (!c->list[i].left)
				c->list[n++] = c->list[i];
		fam->tensors_n = (uint32_t)(n - fam->first_tensor);
	}
	c->n = n;
}

/* Chooses tensors of families [first, end), and lists the families that have some of them. */
static int choose_all(struct choice *c, struct shf_export_plan *plan,
                      const struct sheaf_checkpoint *step, const struct shf_export_opts *opts,
                      size_t first, size_t end, struct sheaf_error *err)
{
	struct shf_layout *out = &plan->out;
	const struct shf_layout *l = &step->layout;
	const char *as = opts->as;

	c->list = shf_alloc(l->tensors_n + l->tied_n + 1, sizeof(*c->list));
	c->names = shf_zalloc(l->tensors_n + 1, sizeof(*c->names));
	out->families = shf_arena_alloc(&out->arena, end - first, sizeof(*out->families));
	if (!c->list || !c->names || !out->families)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to list %zu tensors", step->path,
		                l->tensors_n);
	for (size_t f = first; f < end; f++) {
		struct shf_lt_family fam = { .name = as ? as : l->families[f].name,
			.first_tensor = (uint32_t)c->n };
		bool copies = plan->format->copies_tied ||
		              (strcmp(l->families[f].name, "model") && !opts->is_step);

		fam.dir = strcmp(fam.name, "model") == 0 ? "." : fam.name;
		fam.tensors_n = (uint32_t)choose_of_family(c, l, (uint32_t)f, opts->prefix,
		                                           copies);
		if (fam.tensors_n == 0 && l->families[f].tensors_n)
			return shf_fail(err, SHEAF_ELAYOUT, "%s: family %.60s has no tensor whose "
			                "name begins with '%.200s'", step->path,
			                l->families[f].name, opts->prefix);
		if (fam.tensors_n)
			out->families[out->families_n++] = fam;
	}
	if (plan->format->ties_states)
		leave_ties(c, out, l);
	return c->n ? 0 : shf_fail(err, SHEAF_ELAYOUT, "%s: has no tensor that can be read; use "
	                           "sheaf show to see what it has", step->path);
}

/* Sets *first and *end to the families of the step that are written: the one that was asked for, or
 * all of them. */
static int choose_families(size_t *first, size_t *end, const struct sheaf_checkpoint *step,
                           const struct shf_export_opts *opts, struct sheaf_error *err)
{
	const struct shf_layout *l = &step->layout;
	int64_t f = opts->family ? shf_layout_family(l, opts->family) : 0;

	*first = f < 0 ? 0 : (size_t)f;
	*end = opts->family ? *first + 1 : l->families_n;
	if (f < 0)
		return shf_fail(err, SHEAF_ELAYOUT, "%s: has no family %.60s", step->path,
		                opts->family);
	if (*end - *first > 1 && (opts->as || opts->dtype))
		return shf_fail(err, SHEAF_EINVAL, "%s: has %zu families, and a type or another "
		                "name of a family can be given for one; name that one",
		                step->path, *end - *first);
	return 0;
}

/* By family, then by natural order of the names. */
static int planned_tied_order(const void *a, const void *b)
{
	const struct shf_lt_tied *x = a, *y = b;

	if (x->family != y->family)
		return x->family < y->family ? -1 : 1;
	return shf_natural(x->name, y->name);
}

/* Lists the names that are second names of what is written. */
static int plan_tied(struct shf_layout *out, const struct choice *c, const struct shf_layout *l,
                     const struct shf_export_opts *opts, size_t first, size_t end)
{
	size_t skip = strlen(opts->prefix);

	out->tied = shf_arena_alloc(&out->arena, l->tied_n + 1, sizeof(*out->tied));
	for (size_t i = 0; out->tied && i < l->tied_n; i++) {
		const struct shf_lt_tied *t = &l->tied[i];
		const char *family = l->families[t->family].name;
		int64_t of = -1, to = shf_layout_family(out, opts->as ? opts->as : family);

		if (t->family >= first && t->family < end && to >= 0 &&
		    strncmp(t->name, opts->prefix, skip) == 0)
			of = shf_layout_find(l, family, t->to);
		if (of >= 0 && always(c->names[of]) && strcmp(c->names[of], t->name + skip))
			out->tied[out->tied_n++] = (struct shf_lt_tied){ (uint32_t)to,
				t->name + skip, c->names[of] };
	}
	if (out->tied_n)
		qsort(out->tied, out->tied_n, sizeof(*out->tied), planned_tied_order);
	return out->tied ? 0 : SHEAF_ENOMEM;
}

/* Fills in tensor i of the output, which is of that family, and is tensor t of the step. */
static int plan_tensor(struct shf_export_plan *plan, size_t i, uint32_t family, const char *name,
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
	*x = (struct shf_lt_tensor){ .name = name, .family = family, .dtype = t->dtype,
		.bytes = t->bytes, .items = t->items, .shape = t->shape, .unit = t->unit };
	if (dtype && was->kind == 'f' && shf_can_convert(dtype, t->dtype)) {
		x->dtype = dtype;
		x->bytes = t->bytes / (was->bits / 8) * (shf_dtype(dtype)->bits / 8);
	}
	return 0;
}

/* Fills in the tensors, in the order in which they were chosen. */
static int plan_tensors(struct shf_export_plan *plan, const struct choice *c,
                        const struct sheaf_checkpoint *step, int32_t dtype, struct sheaf_error *err)
{
	struct shf_layout *out = &plan->out;
	uint32_t family = 0;
	int rc = 0;

	out->tensors = shf_arena_alloc(&out->arena, c->n, sizeof(*out->tensors));
	plan->from = shf_alloc(c->n, sizeof(*plan->from));
	if (!out->tensors || !plan->from)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to list %zu tensors", step->path,
		                c->n);
	for (size_t i = 0; i < c->n && rc == 0; i++) {
		const struct chosen *x = &c->list[i];

		while (i >= out->families[family].first_tensor +
		            (size_t)out->families[family].tensors_n)
			family++;
		plan->from[i] = x->from;
		rc = plan_tensor(plan, i, family, x->name, &step->layout.tensors[x->from], dtype,
		                 err);
	}
	out->tensors_n = c->n;
	for (size_t f = 0; f < out->families_n; f++)
		out->families[f].tensors_n = 0; /* shf_layout_place counts them */
	return rc;
}

/* Checks that the format has the types of all tensors. Types can be converted, and "hf" written, if
 * one family is chosen. */
static int check_types(const struct shf_layout *l, const struct shf_export_format *format,
                       bool is_one, struct sheaf_error *err)
{
	for (size_t i = 0; i < l->tensors_n && format->has_type; i++) {
		const struct shf_lt_tensor *t = &l->tensors[i];
		const char *hint = "another format, such as hf";

		if (!is_one)
			hint = "another format, or write one family alone";
		else if (shf_can_convert(SHEAF_F32, t->dtype))
			hint = "another type, such as F32";
		if (!format->has_type(t->dtype))
			return shf_fail(err, SHEAF_EINVAL, "tensor %.*s: is of type %s, which "
			                "format %s does not have; use %s", shf_name_show(t->name),
			                t->name, shf_dtype(t->dtype)->name, format->name, hint);
	}
	return 0;
}

/* Sums up what the format has placed. */
static int plan_settle(struct shf_export_plan *plan, struct sheaf_error *err)
{
	const struct shf_layout *l = &plan->out;

	plan->before = shf_alloc(l->tensors_n, sizeof(*plan->before));
	if (!plan->before)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to place %zu tensors", l->tensors_n);
	for (size_t f = 0; f < l->files_n; f++) {
		const struct shf_lt_file *file = &l->files[f];
		uint64_t before = 0;

		plan->bytes += plan->files[f].bytes;
		for (size_t k = file->first_tensor;
		     k < file->first_tensor + (size_t)file->tensors_n; k++) {
			plan->before[k] = before;
			before += l->tensors[l->by_place[k]].bytes;
		}
		if (!always(before + plan->files[f].header.len == plan->files[f].bytes))
			return shf_fail(err, SHEAF_EBUG, "%s: has %" PRIu64 " bytes, and %" PRIu64
			                " were placed", plan->files[f].name, plan->files[f].bytes,
			                before + plan->files[f].header.len);
	}
	return 0;
}

int shf_export_small_add(struct shf_export_plan *plan, const char *name, struct shf_buf *bytes,
                         struct sheaf_error *err)
{
	struct shf_export_small small = { name, *bytes };
	bool oom = !name || bytes->oom;

	if (!oom)
		shf_buf_add(&plan->smalls, &small, sizeof(small));
	oom |= plan->smalls.oom;
	if (oom)
		shf_buf_release(bytes);
	return oom ? shf_fail(err, SHEAF_ENOMEM, "no memory for file %s", name ? name : "") : 0;
}

const struct shf_export_small *shf_export_small(const struct shf_export_plan *plan, size_t i)
{
	const struct shf_export_small *all = (const void *)plan->smalls.data;

	return i < plan->smalls.len / sizeof(*all) ? all + i : NULL;
}

int shf_export_plan_make(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                         const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct choice c = { 0 };
	size_t first, end;
	int rc;

	*plan = (struct shf_export_plan){
		.format = opts->format ? opts->format : &shf_export_safetensors };
	rc = choose_families(&first, &end, step, opts, err);
	if (rc == 0)
		rc = choose_all(&c, plan, step, opts, first, end, err);
	if (rc == 0)
		rc = plan_tensors(plan, &c, step, opts->dtype, err);
	if (rc == 0)
		rc = check_types(&plan->out, plan->format, opts->family != NULL, err);
	if (rc == 0 && opts->is_step &&
	    plan_tied(&plan->out, &c, &step->layout, opts, first, end) < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its tied names", step->path);
	shf_free(c.list);
	shf_free(c.names);
	if (rc == 0)
		rc = plan->format->place(plan, step, opts, err);
	return rc == 0 ? plan_settle(plan, err) : rc;
}

void shf_export_plan_release(struct shf_export_plan *plan)
{
	for (size_t f = 0; plan->files && f < plan->out.files_n; f++)
		shf_buf_release(&plan->files[f].header);
	for (size_t f = 0; plan->files && f < plan->out.files_n; f++)
		shf_buf_release(&plan->files[f].holes);
	for (size_t i = 0; i < plan->smalls.len / sizeof(struct shf_export_small); i++)
		shf_buf_release(&((struct shf_export_small *)(void *)plan->smalls.data)[i].bytes);
	shf_buf_release(&plan->smalls);
	shf_free(plan->before);
	shf_free(plan->crc);
	shf_free(plan->files);
	shf_free(plan->from);
	shf_layout_release(&plan->out);
	*plan = (struct shf_export_plan){ 0 };
}
