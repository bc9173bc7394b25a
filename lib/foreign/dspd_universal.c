/* SPDX-License-Identifier: Apache-2.0 */
/* Universal checkpoints: ds_to_universal writes a folder zero/<parameter> for each parameter, with
 * a file fp32.pt of its weights and one of each state of the optimizer. A file has a tensor, or a
 * dictionary with it; of ZeRO 3 the tensor is flat. The files of the model are those of the
 * save. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "dspd_save.h"
#include "torch_place.h"
#include "valid.h"

/* Lists a folder of the one that has the save. Returns 1 if it is no folder. */
static int list_under(struct shf_dspd *d, const char *under, struct shf_arena *arena,
                      struct shf_listing *l)
{
	struct shf_buf path = SHF_BUF_INIT;
	struct shf_stat st;
	int fd, rc;

	*l = (struct shf_listing){ .arena = arena };
	shf_buf_addf(&path, "%s%s%s", d->dir.folder ? d->dir.folder : "", d->dir.folder ? "/" : "",
	             under);
	shf_buf_u8(&path, 0);
	if (path.oom)
		return shf_dspd_no_memory(d);
	rc = shf_sys_stat(d->f->in, d->f->dir, (const char *)path.data, true, &st);
	fd = rc < 0 ? rc : st.type != SHF_T_DIR ? 0
	   : shf_sys_open(d->f->in, d->f->dir, (const char *)path.data, SHF_O_DIR, 0);
	if (fd < 0)
		rc = shf_fail_sys(d->err, -fd, "%s/%s", d->f->path, (const char *)path.data);
	else if (st.type == SHF_T_DIR)
		rc = shf_listing_read(l, arena, d->f->in, fd, d->f->path, d->err);
	else
		rc = 1;
	if (rc <= 0 && fd >= 0)
		shf_sys_close(d->f->in, fd);
	shf_buf_release(&path);
	return rc;
}

/* Adds the tensor of a file, with the shape of its parameter if it has no other. */
static int add_from_file(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v,
                     const struct shf_dspd_param *p, const char *family, const char *name)
{
	struct shf_dspd_part part;
	struct shf_torch_tensor t;
	const char *why = NULL;
	int rc = 0;

	if (shf_torch_tensor_of(&t, v, &why) == SHF_TENSOR_READ && t.ndim == 1 && p &&
	    p->ndim != 1)
		rc = shf_dspd_flat(d, x, v, name, &part);
	if (rc == 1 && part.items == p->items)
		return shf_dspd_add_flat(d, &part, p, family, name);
	if (rc == 0)
		rc = shf_dspd_add(d, x, v, family, name, strlen(name));
	else if (rc == 1)
		rc = shf_fail(d->err, SHEAF_EFORMAT, "%s: has %" PRIu64 " items, but the file of "
		              "the model says that %.*s has %" PRIu64 "; they are of two saves",
		              x->where, part.items, shf_name_show(p->name), p->name, p->items);
	else
		return rc;
	return rc ? (rc < 0 ? rc : 0)
	          : shf_dspd_bad(d, x->where, why ? why : "has neither a tensor nor a dictionary "
	                                                  "with one");
}

/* Reads zero/<name>/<kind>.pt, and adds its tensor under `shown`. */
static int read_kind(struct shf_dspd *d, const char *name, const char *file, const char *family,
                     const char *shown)
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
		if (strcmp(file, "step.pt") == 0)
			p = NULL;
		rc = shf_pk_int(v, &number)
		   ? shf_foreign_note(d->f, d->err, shown, strlen(shown), "%" PRId64, number)
		   : add_from_file(d, &x, v, p, family, shown);
	}
	shf_dspd_close(d, &x);
	shf_buf_release(&under);
	return rc;
}

/* Reads fp32.pt of a parameter. */
static int read_weights(struct shf_dspd *d, const char *name)
{
	struct shf_dspd_param *p = shf_dspd_param(d, name, strlen(name));

	/* Of what the optimizer does not have, these are copies of what the model has. */
	if (!p && d->module && d->stage < 3)
		return 0;
	if (p)
		p->found = true;
	if (p && p->whole && p->f32)
		return 0;
	return read_kind(d, name, "fp32.pt", p && p->whole ? "master_weights" : NULL, name);
}

/* Reads the folder of a parameter. */
static int read_folder(struct shf_dspd *d, const char *name)
{
	struct shf_buf under = SHF_BUF_INIT;
	struct shf_arena arena = { 0 };
	struct shf_listing l;
	int rc;

	shf_buf_addf(&under, "zero/%s", name);
	shf_buf_u8(&under, 0);
	rc = under.oom ? shf_dspd_no_memory(d)
	   : list_under(d, (const char *)under.data, &arena, &l);
	for (size_t i = 0; rc == 0 && i < shf_listing_n(&l); i++) {
		const char *file = shf_listing_at(&l, i), *shown;
		char kind[SHF_DSPD_KIND_MAX];
		size_t n = strlen(file);

		if (n < 4 || strcmp(file + n - 3, ".pt"))
			continue;
		if (strcmp(file, "fp32.pt") == 0) {
			rc = read_weights(d, name);
			continue;
		}
		if (!shf_dspd_kind(kind, file, n - 3))
			continue;
		shown = shf_dspd_shown(d, name, strlen(name), kind);
		rc = shown ? read_kind(d, name, file, "optimizer", shown) : d->err->code;
	}
	if (!under.oom)
		shf_buf_release(&l.a);
	shf_buf_release(&under);
	shf_arena_release(&arena);
	return rc == 1 ? 0 : rc;        /* a file in zero, such as optimizer_state.pt */
}

/* Adds the other names of weights that are in the files of the folder only. */
static int read_ties(struct shf_dspd *d)
{
	const struct shf_dspd_tie *t = (const void *)d->ties.data;
	int rc = 0;

	for (size_t i = 0; i < d->ties.len / sizeof(*t) && rc == 0; i++) {
		const struct shf_dspd_param *p = shf_dspd_param(d, t[i].of, strlen(t[i].of));

		if (p && p->found && !p->whole)
			rc = read_kind(d, p->name, "fp32.pt", NULL, t[i].name);
	}
	return rc;
}

int shf_dspd_universal(struct shf_dspd *d)
{
	struct shf_dspd_param *p = (struct shf_dspd_param *)(void *)d->params.data;
	int mp_n = d->mp_n, rc;
	struct shf_listing l;

	if (d->mp)
		return 0;
	d->mp_n = 1;    /* what is in these files is whole */
	rc = list_under(d, "zero", &d->f->arena, &l);
	for (size_t i = 0; rc == 0 && i < shf_listing_n(&l); i++)
		rc = read_folder(d, shf_listing_at(&l, i));
	shf_buf_release(&l.a);
	if (rc == 0)
		rc = read_ties(d);
	for (size_t i = 0; rc == 0 && i < d->params.len / sizeof(*p); i++) {
		if (!p[i].found && !p[i].frozen)
			rc = shf_fail(d->err, SHEAF_EFORMAT, "%s: has no zero/%.*s/fp32.pt; "
			              "ds_to_universal has not finished, or the file is missing",
			              d->f->path, shf_name_show(p[i].name), p[i].name);
		p[i].whole |= p[i].found;
	}
	d->mp_n = mp_n;
	return rc == 1 ? shf_dspd_bad(d, d->f->path, "zero is not a folder") : rc;
}
