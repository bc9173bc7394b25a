/* SPDX-License-Identifier: Apache-2.0 */
/* Universal checkpoints: ds_to_universal writes a folder zero/<parameter> for each parameter, with
 * a file fp32.pt of its weights and one of each state of the optimizer. A file has a tensor, or a
 * dictionary with it; of ZeRO 3 the tensor is flat. The files of the model are those of the
 * save. */
#include <inttypes.h>
#include <string.h>
#include "err.h"
#include "dspd_save.h"
#include "valid.h"

/* Adds the tensor of a file. p NULL: with its own shape; else with that of the parameter, which it
 * has itself, or it is flat. */
static int add_from_file(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v,
                         const struct shf_dspd_param *p, const char *family, const char *name)
{
	struct shf_dspd_part part = { .items = 0 };
	struct shf_torch_tensor t;
	const char *why = NULL;
	int rc;

	if (shf_torch_tensor_of(&t, v, &why) != SHF_TENSOR_READ)
		return shf_dspd_bad(d, x->where, why ? why : "has neither a tensor nor a "
		                    "dictionary with one");
	if (!p || shf_dspd_has_shape(&t, p)) {
		rc = shf_dspd_add(d, x, v, family, name, strlen(name));
		return rc < 0 ? rc : 0;
	}
	rc = shf_dspd_flat(d, x, v, name, &part);
	if (rc < 0)
		return rc;
	if (rc == 0 || part.items != p->items)
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: its tensor has neither the shape that "
		                "the file of the model gives %.*s nor its %" PRIu64 " items; they "
		                "are of two saves", x->where, shf_name_show(p->name), p->name,
		                p->items);
	return shf_dspd_add_flat(d, &part, p, family, name);
}

/* What the folders of parameters have: names of files, in f's arena, and a number of updates. */
struct seen {
	const char *file[SHF_DSPD_KINDS_MAX];
	uint32_t n;
	int64_t step;                   /* -1: none was said yet */
	bool steps_differ;
};

/* Keeps a number of updates. */
static int see_step(struct shf_dspd *d, struct seen *seen, const struct shf_dspd_file *x,
                    const struct shf_pk *v)
{
	int64_t step;
	uint64_t at;
	int rc = shf_dspd_step(d, x, v, &step, &at);

	if (rc < 0 || step < 0)
		return rc;
	seen->steps_differ |= seen->step >= 0 && seen->step != step;
	seen->step = step;
	return 0;
}

/* Reads zero/<name>/<kind>.pt, and adds its tensor under `shown`. seen (may be NULL) gets the
 * number of updates, which is what the file has then. */
static int read_kind(struct shf_dspd *d, const char *name, const char *file, const char *family,
                     const char *shown, struct seen *seen)
{
	const struct shf_dspd_param *p = shf_dspd_param(d, name, strlen(name));
	struct shf_buf under = SHF_BUF_INIT;
	struct shf_dspd_file x = { .file = UINT32_MAX };
	const struct shf_pk *root = NULL, *v;
	int64_t number;
	int rc;

	shf_buf_addf(&under, "zero/%s", name);
	shf_buf_u8(&under, 0);
	rc = under.oom ? shf_dspd_no_memory(d)
	   : shf_dspd_open(d, (const char *)under.data, file, &x);
	if (rc == 0) {
		root = x.zip.pickle.root;
		v = root->kind == SHF_PK_DICT ? shf_pk_get(root, "param") : root;
		/* The file of the model has the shape of a part of it, or one with more rows. */
		if (strcmp(file, "step.pt") == 0 || (root->kind == SHF_PK_DICT &&
		    (d->mp_n > 1 || shf_pk_get(root, "vocab_tensor"))))
			p = NULL;
		rc = shf_pk_int(v, &number)
		   ? shf_foreign_note(d->f, d->err, shown, strlen(shown), "%" PRId64, number)
		   : add_from_file(d, &x, v, p, family, shown);
	}
	if (rc == 0 && seen)
		rc = see_step(d, seen, &x, v);
	shf_dspd_close(d, &x);
	shf_buf_release(&under);
	return rc;
}

/* Reads fp32.pt of a parameter. */
static int read_weights(struct shf_dspd *d, const char *name)
{
	struct shf_dspd_param *p = shf_dspd_param(d, name, strlen(name));
	const struct shf_dspd_weight *w = shf_dspd_weight(d, name);
	size_t had = d->f->tensors.len;
	int rc;

	/* Of what the optimizer does not have, these are copies of what the model has. */
	if (!p && ((d->module && d->stage < 3) || (w && w->f32)))
		return 0;
	if (!p)         /* of another stage of a pipeline */
		return read_kind(d, name, "fp32.pt", w || d->layers ? "master_weights" : NULL,
		                 name, NULL);
	p->found = true;
	p->tensor = SIZE_MAX;
	if (p->whole)
		return p->f32 ? 0 : read_kind(d, name, "fp32.pt", "master_weights", name,
		                                 NULL);
	rc = read_kind(d, name, "fp32.pt", NULL, name, NULL);
	if (d->f->tensors.len > had)
		p->tensor = had / sizeof(struct shf_foreign_tensor);
	return rc;
}

/* Says that a parameter has a kind of state. p NULL: it is not one of the file of the model. */
static int see_kind(struct shf_dspd *d, struct seen *seen, struct shf_dspd_param *p,
                    const char *file)
{
	uint32_t i = 0;

	while (i < seen->n && strcmp(seen->file[i], file))
		i++;
	if (!p || i == SHF_DSPD_KINDS_MAX)
		return 0;
	if (i == seen->n) {
		seen->file[i] = shf_dspd_keep(d, file, strlen(file));
		if (!seen->file[i])
			return d->err->code;
		seen->n++;
	}
	p->kinds |= UINT32_C(1) << i;
	return 0;
}

/* Reads the folder of a parameter. */
static int read_folder(struct shf_dspd *d, const char *name, struct seen *seen)
{
	struct shf_buf under = SHF_BUF_INIT;
	struct shf_arena arena = { 0 };
	struct shf_listing l = { .oom = false };
	int rc;

	shf_buf_addf(&under, "zero/%s", name);
	shf_buf_u8(&under, 0);
	rc = under.oom ? shf_dspd_no_memory(d)
	   : shf_dspd_list(d, (const char *)under.data, &arena, &l);
	for (size_t i = 0; rc == 0 && i < shf_listing_n(&l); i++) {
		const char *file = shf_listing_at(&l, i), *shown;
		char kind[SHF_TORCH_STATE_MAX];
		size_t n = strlen(file);

		if (n < 4 || strcmp(file + n - 3, ".pt"))
			continue;
		if (strcmp(file, "fp32.pt") == 0) {
			rc = read_weights(d, name);
			continue;
		}
		if (!shf_torch_state_name(kind, file, n - 3))
			continue;
		shown = shf_dspd_shown(d, name, strlen(name), kind);
		rc = shown ? read_kind(d, name, file, "optimizer", shown,
		                       strcmp(file, "step.pt") ? NULL : seen) : d->err->code;
		if (rc == 0)
			rc = see_kind(d, seen, shf_dspd_param(d, name, strlen(name)), file);
	}
	shf_buf_release(&l.a);
	shf_buf_release(&under);
	shf_arena_release(&arena);
	return rc == 1 ? 0 : rc;        /* a file in zero, such as optimizer_state.pt */
}

/* Checks that a parameter has all that ds_to_universal writes for it. */
static int check_complete(struct shf_dspd *d, const struct seen *seen,
                          const struct shf_dspd_param *p)
{
	const char *file = p->found ? NULL : "fp32.pt";

	for (uint32_t i = 0; i < seen->n && !file; i++)
		if (!(p->kinds >> i & 1))
			file = seen->file[i];
	return !file || p->frozen ? 0
	     : shf_fail(d->err, SHEAF_EFORMAT, "%s: has no zero/%.*s/%s; ds_to_universal has not "
	                "finished, or the file is missing", d->f->path, shf_name_show(p->name),
	                p->name, file);
}

/* Reads what is said of the optimizer as a whole: the settings of its groups of parameters, and for
 * ZeRO 3 how many updates it has made. An export of Sheaf has 1000 groups that have only the betas,
 * all the same; only the first of them is noted. Groups that DeepSpeed wrote have more settings,
 * and each of them is noted. */
static int read_settings(struct shf_dspd *d, struct seen *seen)
{
	struct shf_dspd_file x = { .file = UINT32_MAX };
	const struct shf_pk *root, *state, *groups;
	struct shf_pk few;
	uint32_t n = 1;
	int rc = shf_dspd_open(d, "zero", "optimizer_state.pt", &x);

	root = rc == 0 ? x.zip.pickle.root : NULL;
	state = shf_pk_get(shf_pk_get(root, "optimizer_state_dict"), "state");
	if (rc == 0 && seen->step < 0 && state && state->kind == SHF_PK_DICT && state->n)
		rc = see_step(d, seen, &x, shf_pk_get(state->u.a[1], "step"));
	groups = shf_pk_get(root, "param_groups");
	if (rc == 0 && groups && groups->kind == SHF_PK_LIST && groups->n) {
		while (n < groups->n && groups->u.a[n]->n > 2)
			n++;
		few = *groups;
		few.n = n;
		rc = shf_dspd_note_groups(d, &x, &few);
	}
	shf_dspd_close(d, &x);
	return rc;
}

int shf_dspd_universal(struct shf_dspd *d)
{
	struct shf_dspd_param *p = (struct shf_dspd_param *)(void *)d->params.data;
	struct seen seen = { .step = -1 };
	bool settings = false;
	int tp_n = d->tp_n, rc;
	struct shf_listing l;

	if (d->mp)
		return 0;
	d->tp_n = 1;    /* what is in these files is whole */
	rc = shf_dspd_list(d, "zero", &d->f->arena, &l);
	for (size_t i = 0; rc == 0 && i < shf_listing_n(&l); i++) {
		settings |= strcmp(shf_listing_at(&l, i), "optimizer_state.pt") == 0;
		rc = read_folder(d, shf_listing_at(&l, i), &seen);
	}
	shf_buf_release(&l.a);
	for (size_t i = 0; rc == 0 && i < d->params.len / sizeof(*p); i++) {
		rc = check_complete(d, &seen, &p[i]);
		p[i].whole |= p[i].found;
	}
	if (rc == 0 && settings)
		rc = read_settings(d, &seen);
	if (rc == 0 && seen.step >= 0 && !seen.steps_differ)
		rc = shf_foreign_note(d->f, d->err, "adam.step", 9, "%" PRId64, seen.step);
	d->tp_n = tp_n;
	return rc == 1 ? shf_dspd_bad(d, d->f->path, "zero is not a folder") : rc;
}
