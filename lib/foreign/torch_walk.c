/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_walk.h"
#include "err.h"
#include "torch_place.h"

struct torch_places { shf_torch_place_fn *place; void *arg; };

static enum shf_tensor_kind look_for_torch(const struct shf_pk *v, const char **why)
{
	struct shf_torch_tensor t;

	return shf_torch_tensor_of(&t, v, why);
}

static int add_of_torch(void *arg, struct shf_foreign *f, const struct shf_pk *v, const char *name,
                        size_t n, struct sheaf_error *err)
{
	const struct torch_places *places = arg;
	int64_t dims[SHF_FOREIGN_DIMS_MAX];
	struct shf_foreign_piece piece = { 0 };
	struct shf_foreign_tensor x;
	struct shf_torch_tensor t;
	const char *why;
	int rc;

	if (!always(shf_torch_tensor_of(&t, v, &why) == SHF_TENSOR_READ))
		return shf_fail(err, SHEAF_EBUG, "%s: a tensor is none any more", f->path);
	x = shf_torch_shown(&t, dims);
	x.n = 1;
	rc = places->place(places->arg, f, &t, name, &piece, err);
	if (rc == 0)
		shf_buf_add(&f->pieces, &piece, sizeof(piece));
	return rc < 0 ? rc : shf_foreign_add_tensor(f, &x, name, n, err);
}

int shf_torch_walk(struct shf_foreign *f, const struct shf_pickle *pickle,
                   shf_torch_place_fn *place, void *arg, struct sheaf_error *err)
{
	struct torch_places places = { place, arg };
	const struct shf_walk_kind by = { look_for_torch, add_of_torch, shf_torch_size, &places };

	return shf_walk(f, pickle, pickle->root, &by, err);
}
