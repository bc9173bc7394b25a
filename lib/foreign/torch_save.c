/* SPDX-License-Identifier: Apache-2.0 */
/* Files that torch.save wrote since torch 1.6: zip archives. */
#include "torch_zip.h"
#include "err.h"
#include "torch_walk.h"
#include "valid.h"
#include "zip_verify.h"

/* Whether the file begins as a zip archive and has a record <prefix>/data.pkl. If it begins as one
 * but cannot be read, it counts as one, so that the message says what is wrong. */
static int is_torch_save(const struct shf_region *r, const char **why, struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_zip zip;
	uint8_t head[8];
	int rc;

	if (r->bytes < 8)
		return 0;
	rc = shf_region_read(r, head, 8, 0, err);
	/* A safetensors file with a header of 64 MiB may begin with the same four bytes, but four
	 * zeros follow there. */
	if (rc < 0 || shf_get32(head) != SHF_ZIP_MAGIC || !shf_get32(head + 4))
		return rc;
	rc = shf_zip_open(&zip, r, &arena, err);
	if (rc == 0 && shf_torch_zip_pickle(&zip))
		rc = 1;
	*why = "a zip archive with a record data.pkl";
	shf_arena_release(&arena);
	return rc;
}

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

static int open_torch_save(struct shf_foreign *f, struct sheaf_error *err)
{
	return shf_torch_save_add(f, 0, NULL, err);
}

static int verify_torch_save(struct shf_foreign *f, struct shf_foreign_findings *to,
                             struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_region r;
	struct shf_zip zip;
	int rc = shf_foreign_region(f, 0, &r, err);

	if (rc == 0)
		rc = shf_zip_open(&zip, &r, &arena, err);
	if (rc == 0)
		rc = shf_zip_verify(&zip, &r, shf_foreign_file(f, 0)->name, 0, to, err);
	shf_arena_release(&arena);
	return rc;
}

const struct shf_foreign_format shf_torch_save = {
	.name = "torch.save",
	.is_file = is_torch_save,
	.open = open_torch_save,
	.verify = verify_torch_save,
};
