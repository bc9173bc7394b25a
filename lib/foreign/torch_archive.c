/* SPDX-License-Identifier: Apache-2.0 */
/* Adds the tensors of an archive of torch.save to a checkpoint. */
#include "err.h"
#include "torch_walk.h"
#include "torch_zip.h"

struct torch_archive { struct shf_torch_zip zip; uint32_t file; };

static int place_in_zip(void *arg, struct shf_foreign *f, const struct shf_torch_tensor *t,
                        const char *name, struct shf_foreign_piece *piece,
                        struct sheaf_error *err)
{
	const struct torch_archive *a = arg;
	int64_t *stride = shf_foreign_numbers(f, (size_t)t->ndim + 1);

	piece->stride = stride;
	piece->file = a->file;
	return stride ? shf_torch_zip_place(&a->zip, t, name, &piece->at, stride, err)
	              : shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
				 f->path);
}

int shf_torch_save_add(struct shf_foreign *f, uint32_t file, const struct shf_torch_show *show,
                       struct sheaf_error *err)
{
	struct torch_archive a = { .file = file };
	struct shf_region r;
	int rc = shf_foreign_region(f, file, &r, err);

	if (rc < 0)
		return rc;
	rc = shf_torch_zip_open(&a.zip, &r, err);
	if (rc == 0)
		rc = shf_torch_walk(f, &a.zip.pickle, r.where, place_in_zip, &a, show, err);
	shf_torch_zip_release(&a.zip);
	shf_foreign_region_end(f, file);
	return rc;
}
