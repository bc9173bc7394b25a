/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_walk.h"
#include <string.h>
#include "err.h"
#include "torch_place.h"

struct torch_places {
	shf_torch_place_fn *place;
	void *arg;
	const struct shf_torch_show *show;
};

static enum shf_tensor_kind look_for_torch(const struct shf_pk *v, const char **why)
{
	struct shf_torch_tensor t;

	return shf_torch_tensor_of(&t, v, why);
}

static enum shf_tensor_kind look_for_local(const struct shf_pk *v, const char **why)
{
	return look_for_torch(shf_torch_local_of(v), why);
}

static int add_of_torch(void *arg, struct shf_foreign *f, const struct shf_pk *v, const char *name,
                        size_t n, struct sheaf_error *err)
{
	const struct torch_places *places = arg;
	int64_t dims[SHF_FOREIGN_DIMS_MAX];
	struct shf_foreign_piece piece = { 0 };
	struct shf_buf shown = SHF_BUF_INIT;
	struct shf_foreign_tensor x;
	struct shf_torch_tensor t;
	const char *why;
	int rc;

	if (places->show && places->show->local)
		v = shf_torch_local_of(v);
	if (!always(shf_torch_tensor_of(&t, v, &why) == SHF_TENSOR_READ))
		return shf_fail(err, SHEAF_EBUG, "%s: a tensor is none any more", f->path);
	x = shf_torch_shown(&t, dims);
	x.n = 1;
	rc = places->place(places->arg, f, &t, name, &piece, err);
	if (rc < 0)
		return rc;
	shf_buf_add(&f->pieces, &piece, sizeof(piece));
	if (places->show)
		places->show->show(places->show->arg, name, n, &x.family, &shown);
	if (shown.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", f->path);
	else if (places->show)
		rc = shf_foreign_add_tensor(f, &x, shown.len ? (const char *)shown.data : "",
		                            shown.len, err);
	else
		rc = shf_foreign_add_tensor(f, &x, name, n, err);
	shf_buf_release(&shown);
	return rc;
}

int shf_torch_walk(struct shf_foreign *f, const struct shf_pickle *pickle, const char *where,
                   shf_torch_place_fn *place, void *arg, const struct shf_torch_show *show,
                   struct sheaf_error *err)
{
	struct torch_places places = { place, arg, show };
	const struct shf_walk_kind by = { show && show->local ? look_for_local : look_for_torch,
		add_of_torch, shf_torch_size, &places, show ? show->prefix : NULL };
	int rc = show && show->begin ? show->begin(show->arg, pickle->root, where, err) : 0;

	return rc < 0 ? rc : shf_walk(f, pickle, pickle->root, &by, err);
}

static enum shf_tensor_kind look_beside(const struct shf_pk *v, const char **why)
{
	struct shf_torch_tensor t;
	enum shf_tensor_kind kind = shf_torch_tensor_of(&t, v, why);

	if (kind == SHF_TENSOR_READ)
		*why = "a tensor that is not a weight, which is not listed; open the file itself";
	return kind == SHF_TENSOR_NONE ? kind : SHF_TENSOR_UNREAD;
}

int shf_torch_walk_notes(struct shf_foreign *f, const struct shf_pickle *pickle,
                         const struct shf_pk *dict, const char *prefix, struct sheaf_error *err)
{
	const struct shf_walk_kind by = { .look = look_beside, .prefix = prefix };

	return shf_walk(f, pickle, dict, &by, err);
}

bool shf_torch_state_name(char ours[SHF_TORCH_STATE_MAX], const char *theirs, size_t n)
{
	static const struct { const char *theirs, *ours; } names[] = {
		{ "exp_avg", "moment1_0" }, { "exp_avg_sq", "moment2_0" },
		{ "max_exp_avg_sq", "moment2_max_0" } };

	if (n == 0 || n >= SHF_TORCH_STATE_MAX)
		return false;
	memcpy(ours, theirs, n);
	ours[n] = '\0';
	if (strspn(ours, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") != n)
		return false;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(ours, names[i].theirs) == 0) {
			memcpy(ours, names[i].ours, strlen(names[i].ours) + 1);
			break;
		}
	return true;
}
