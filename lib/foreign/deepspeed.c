/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of DeepSpeed: ZeRO 1, 2 and 3, BF16_Optimizer, and universal ones.
 *
 * Source: runtime/engine.py, runtime/zero, runtime/bf16_optimizer.py, utils/zero_to_fp32.py and
 * checkpoint/ds_to_universal.py of DeepSpeed 0.19.8, and checkpoints that it wrote. */
#include <inttypes.h>
#include <string.h>
#include "dspd_save.h"
#include "err.h"
#include "sort.h"
#include "zip_verify.h"

static int is_deepspeed(const struct shf_sys *sys, int dir, const char *path, const char **why,
                        struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_dspd_dir d;
	int rc = shf_dspd_find(&d, &arena, sys, dir, path, err);

	*why = d.why;
	shf_arena_release(&arena);
	return rc;
}

/* ---- the files ---- */

static int files_order(const void *a, const void *b)
{
	const struct shf_dspd_name *x = &((const struct shf_dspd_entry *)a)->x;
	const struct shf_dspd_name *y = &((const struct shf_dspd_entry *)b)->x;
	int c = (x->mp > y->mp) - (x->mp < y->mp);

	c = c ? c : x->optimizer - y->optimizer;
	return c ? c : (x->dp > y->dp) - (x->dp < y->dp);
}

/* A universal checkpoint for all kinds of ZeRO has a file of the model as ZeRO 1 and 2 look for it,
 * and for ZeRO 3 one without weights. Passes over the latter. */
static void drop_empty_models(struct shf_dspd *d)
{
	struct shf_dspd_entry *of = (struct shf_dspd_entry *)(void *)d->entries.data;
	size_t n = d->entries.len / sizeof(*of), left = 0;

	for (size_t i = 0; i < n; i++)
		if (!left || of[left - 1].x.mp != of[i].x.mp || of[left - 1].x.dp >= 0 ||
		    of[left - 1].x.optimizer || of[i].x.optimizer || of[i].x.dp < 0)
			of[left++] = of[i];
	d->entries.len = left * sizeof(*of);
}

/* Lists the files of the model and of the optimizer, and finds out which ranks there are. */
static int find_files(struct shf_dspd *d, const struct shf_listing *l)
{
	struct shf_dspd_entry e, *of;
	size_t n;

	for (size_t i = 0; i < shf_listing_n(l); i++) {
		e.name = shf_listing_at(l, i);
		if (shf_dspd_name_of(&e.x, e.name))
			shf_buf_add(&d->entries, &e, sizeof(e));
	}
	if (d->entries.oom)
		return shf_dspd_no_memory(d);
	of = (struct shf_dspd_entry *)(void *)d->entries.data;
	n = d->entries.len / sizeof(*of);
	shf_records_sort(of, n, sizeof(*of), files_order);
	if (d->dir.universal)
		drop_empty_models(d);
	n = d->entries.len / sizeof(*of);
	for (size_t i = 1; i < n; i++)
		if (of[i].x.mp == of[i - 1].x.mp && of[i].x.optimizer == of[i - 1].x.optimizer &&
		    (of[i].x.dp == of[i - 1].x.dp || of[i - 1].x.dp < 0))
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: has the files of two saves: %s "
			                "and %s", d->f->path, of[i - 1].name, of[i].name);
	d->mp_n = d->tp_n = n ? of[n - 1].x.mp + 1 : 0;
	return 0;
}

/* Reads the files of one rank of model parallelism. */
static int open_rank(struct shf_dspd *d)
{
	int rc;

	shf_buf_reset(&d->params);
	shf_buf_reset(&d->ties);
	shf_buf_reset(&d->parts);
	shf_buf_reset(&d->groups);
	rc = shf_dspd_model(d);
	if (rc == 0)
		rc = d->dir.universal ? shf_dspd_universal(d) : shf_dspd_optimizer(d);
	return rc == 0 ? shf_dspd_join(d) : rc;
}

static int twins_order(const void *a, const void *b)
{
	const struct shf_foreign_tensor *x = *(struct shf_foreign_tensor *const *)a;
	const struct shf_foreign_tensor *y = *(struct shf_foreign_tensor *const *)b;
	int c = strcmp(x->family ? x->family : "", y->family ? y->family : "");

	c = c ? c : strcmp(x->name, y->name);
	return c ? c : (x > y) - (x < y);
}

/* Stages of a pipeline that have tied weights both have a copy. That of the first one is kept. */
static int drop_tied(struct shf_dspd *d)
{
	struct shf_foreign_tensor *t = (struct shf_foreign_tensor *)(void *)d->f->tensors.data;
	size_t n = d->f->tensors.len / sizeof(*t), left = 0;
	struct shf_foreign_tensor **of = shf_alloc(n + 1, sizeof(struct shf_foreign_tensor *));

	if (!of)
		return shf_dspd_no_memory(d);
	for (size_t i = 0; i < n; i++)
		of[i] = &t[i];
	shf_records_sort(of, n, sizeof(*of), twins_order);
	for (size_t i = n; i-- > 1;)
		if (strcmp(of[i]->name, of[i - 1]->name) == 0 &&
		    strcmp(of[i]->family ? of[i]->family : "",
		           of[i - 1]->family ? of[i - 1]->family : "") == 0)
			of[i]->name = NULL;
	for (size_t i = 0; i < n; i++)
		if (t[i].name)
			t[left++] = t[i];
	d->f->tensors.len = left * sizeof(*t);
	shf_free(of);
	return 0;
}

static int open_deepspeed(struct shf_foreign *f, struct sheaf_error *err)
{
	struct shf_dspd d = { .f = f, .err = err, .steps = -1, .names_left = UINT64_C(64) << 20 };
	struct shf_listing l = { .arena = NULL };
	int found = shf_dspd_find(&d.dir, &f->arena, f->in, f->dir, f->path, err);
	int rc = found > 0 ? shf_dspd_list(&d, NULL, &f->arena, &l) : found;

	if (found == 0 || rc == 1)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: has changed while it was being opened",
		              f->path);
	if (rc == 0)
		rc = find_files(&d, &l);
	if (rc == 0)
		rc = shf_dspd_layers(&d, &l);
	shf_buf_release(&l.a);
	for (; rc == 0 && d.mp < d.mp_n; d.mp++)
		rc = open_rank(&d);
	if (rc == 0 && d.boxed.len)
		rc = shf_dspd_join_boxes(&d);
	if (rc == 0 && d.layers && d.mp_n > 1)
		rc = drop_tied(&d);
	if (rc == 0)
		rc = shf_foreign_check_names(f, err);
	if (rc == 0 && d.steps >= 0)
		rc = shf_foreign_note(f, err, "global_step", 11, "%" PRId64, d.steps);
	shf_buf_release(&d.entries);
	shf_buf_release(&d.weights);
	shf_buf_release(&d.boxes);
	shf_buf_release(&d.boxed);
	shf_buf_release(&d.box_pieces);
	shf_buf_release(&d.params);
	shf_buf_release(&d.by_name);
	shf_buf_release(&d.ties);
	shf_buf_release(&d.parts);
	shf_buf_release(&d.groups);
	return rc;
}

const struct shf_foreign_format shf_deepspeed = {
	.name = "deepspeed",
	.is_dir = is_deepspeed,
	.open = open_deepspeed,
	.verify = shf_zip_verify_files,
};
