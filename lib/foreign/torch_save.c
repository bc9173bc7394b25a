/* SPDX-License-Identifier: Apache-2.0 */
/* torch.save files: zip archives, which it writes since torch 1.6, and legacy ones. */
#include "torch_zip.h"
#include "err.h"
#include "lightning.h"
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

const struct shf_foreign_format shf_torch_save = {
	.name = "torch.save",
	.is_file = is_torch_save,
	.open = shf_lightning_open,
	.verify = shf_zip_verify_files,
};

const struct shf_foreign_format shf_torch_legacy = {
	.name = "torch.save (legacy)",
	.is_file = shf_torch_is_legacy,
	.open = shf_lightning_open_legacy,
};
