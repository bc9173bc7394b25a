/* SPDX-License-Identifier: Apache-2.0 */
#include "repair_index.h"
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "export_pass.h"
#include "foreign.h"
#include "index.h"
#include "layout_record.h"
#include "natural.h"
#include "run_files.h"
#include "step_files.h"
#include "step_open.h"

struct repair {
	struct sheaf_checkpoint *step;
	struct shf_buf text;            /* owned; of the index */
	int written;                    /* indexes that were written */
	struct sheaf_error *err;
};

/* Writes the text under this name in a directory. The old file is replaced at once, and if it is a
 * symbolic link, as in the cache of the hub, what it points to stays as it was. */
static int put_index_at(struct repair *r, const struct shf_sys *sys, int dir, const char *base,
                        const char *name)
{
	int rc = shf_text_put(sys, dir, dir, base, r->text.data, r->text.len, false);

	if (rc >= 0)
		rc = shf_dir_fsync(sys, dir);
	if (rc < 0)
		return shf_fail_io(r->err, -rc, "%s/%s", r->step->path, name);
	r->written++;
	return 0;
}

/* Writes the text as an attached file of a step of Sheaf, unless it has it already. */
static int put_attached_index(struct repair *r, const struct shf_mf_file *m)
{
	const struct shf_sys *sys = r->step->run->sys;
	const char *slash = strrchr(m->name, '/'), *base = slash ? slash + 1 : m->name;
	struct shf_buf have = SHF_BUF_INIT;
	int dir = shf_export_folder_open(sys, r->step->dir, m->name), rc;

	if (dir < 0)
		return shf_fail_io(r->err, -dir, "%s/%s", r->step->path, m->name);
	rc = shf_text_read(sys, dir, base, &have, r->text.len);
	if (rc < 0 || have.len != r->text.len || memcmp(have.data, r->text.data, have.len))
		rc = put_index_at(r, sys, dir, base, m->name);
	else
		rc = 0;
	shf_buf_release(&have);
	if (dir != r->step->dir)
		shf_sys_close(sys, dir);
	return rc;
}

/* Repairs the index of a family of a step of Sheaf, whose manifest has the checksum that it must
 * have. */
static int repair_family(struct repair *r, const struct shf_lt_family *fam)
{
	const struct sheaf_checkpoint *step = r->step;
	char *name = shf_layout_index_name(fam, &r->step->arena);
	int rc = name ? shf_layout_index(&step->layout, fam, &r->text, r->err)
	              : shf_fail(r->err, SHEAF_ENOMEM, "no memory for the index");

	for (size_t i = 0; i < step->plain_n && rc == 0; i++) {
		const struct shf_mf_file *m = &step->plain[i];

		if (strcmp(m->name, name))
			continue;
		if (m->bytes != r->text.len || m->crc != shf_crc64(r->text.data, r->text.len))
			return shf_fail(r->err, SHEAF_ECORRUPT, "%s/%s: the index that the headers "
			                "give has another checksum than the manifest says",
			                step->path, name);
		return put_attached_index(r, m);
	}
	return rc;
}

static int index_entries_order(const void *a, const void *b)
{
	return shf_natural(((const struct shf_index_entry *)a)->name,
	                   ((const struct shf_index_entry *)b)->name);
}

/* Writes the index of a directory of torch.save files. Weights that are not read are listed,
 * too, but total_size does not count them, because their sizes are not known. */
static int repair_foreign(struct repair *r)
{
	const struct shf_foreign *f = r->step->foreign;
	const struct shf_foreign_piece *p = (const void *)f->pieces.data;
	size_t n, weights = f->unread.len / sizeof(struct shf_index_entry);
	const struct shf_foreign_tensor *t = shf_foreign_tensors(f, &n);
	struct shf_index_entry *e = shf_alloc(n + weights + 1, sizeof(*e));
	uint64_t total = 0;
	int rc = e ? 0 : SHEAF_ENOMEM;

	if (e && weights)
		memcpy(e, f->unread.data, f->unread.len);
	for (size_t i = 0; e && i < n; i++) {
		if (t[i].family)
			continue;       /* it is of the trainer */
		e[weights++] = (struct shf_index_entry){ t[i].name,
			shf_foreign_file(f, p[t[i].first].file)->name };
		total += t[i].bytes;
	}
	if (rc == 0 && weights)
		qsort(e, weights, sizeof(*e), index_entries_order);
	if (rc == 0)
		rc = shf_index_write(&r->text, e, weights, total);
	shf_free(e);
	if (rc < 0)
		return shf_fail(r->err, SHEAF_ENOMEM, "%s: no memory for its index", f->path);
	return put_index_at(r, f->in, f->dir, f->index, f->index);
}

static int repair_all(struct repair *r)
{
	struct sheaf_checkpoint *step = r->step;
	const struct shf_layout *l = &step->layout;
	int rc = 0;

	if (step->foreign && step->foreign->index)
		return repair_foreign(r);
	if (step->view || (step->foreign && !step->foreign->may_have_index))
		return shf_fail(r->err, SHEAF_EINVAL, "%s: is not a directory on disk whose files "
		                "have an index", step->path);
	for (size_t i = 0; step->sound && i < l->families_n && rc == 0; i++) {
		shf_buf_reset(&r->text);
		rc = repair_family(r, &l->families[i]);
	}
	if (step->sound || !step->index_evidence)
		return rc;              /* nothing is wrong with it */
	rc = shf_layout_index(l, &l->families[0], &r->text, r->err);
	return rc < 0 ? rc : put_index_at(r, step->run->sys, step->dir, step->index_name,
	                                     step->index_name);
}

int shf_step_repair_index(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	struct repair r = { .step = shf_step_behind_maps(step), .err = err };
	int rc = 0;

	if (step->run->team.ranks > 1)
		rc = shf_fail(err, SHEAF_EINVAL, "%s: was opened by several ranks together; open "
		              "it with the group NULL to repair its index", step->path);
	if (rc == 0)
		rc = shf_step_wake(r.step, err);
	if (rc == 0 && r.step->cat_rc < 0) {
		rc = r.step->cat_rc;
		*err = r.step->cat_err;
	}
	if (rc == 0)
		rc = repair_all(&r);
	shf_buf_release(&r.text);
	return rc < 0 ? rc : r.written;
}
