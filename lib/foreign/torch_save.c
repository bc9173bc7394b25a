/* SPDX-License-Identifier: Apache-2.0 */
/* Files that torch.save wrote since torch 1.6: zip archives. */
#include "torch_save.h"
#include <inttypes.h>
#include <string.h>
#include "crc32.h"
#include "err.h"
#include "torch_walk.h"
#include "torch_zip.h"
#include "valid.h"

#define VERIFY_CHUNK (UINT64_C(1) << 20)

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
	if (rc < 0 || shf_get32(head) != 0x04034b50 || !shf_get32(head + 4))
		return rc;
	rc = shf_zip_open(&zip, r, &arena, err);
	if (rc == 0 && shf_torch_zip_pickle(&zip))
		rc = 1;
	*why = "a zip archive with a record data.pkl";
	shf_arena_release(&arena);
	return rc;
}

static int place_in_zip(void *arg, struct shf_foreign *f, const struct shf_torch_tensor *t,
                        const char *name, struct shf_foreign_piece *piece,
                        struct sheaf_error *err)
{
	int64_t *stride = shf_foreign_numbers(f, (size_t)t->ndim + 1);

	piece->stride = stride;
	return stride ? shf_torch_zip_place(arg, t, name, &piece->at, stride, err)
	              : shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
				 f->path);
}

static int open_torch_save(struct shf_foreign *f, struct sheaf_error *err)
{
	struct shf_torch_zip zip = { 0 };
	struct shf_region r;
	int rc = shf_foreign_add_self(f, err);

	if (rc == 0)
		rc = shf_foreign_region(f, 0, &r, err);
	if (rc == 0)
		rc = shf_torch_zip_open(&zip, &r, err);
	if (rc == 0)
		rc = shf_torch_walk(f, &zip.pickle, place_in_zip, &zip, err);
	shf_torch_zip_release(&zip);
	return rc;
}

/* Sums the data of one record. */
static int sum_record(const struct shf_crc32 *crc, const struct shf_zip_record *record,
                      const struct shf_region *r, uint8_t *buf, uint64_t *data, uint32_t *sum,
                      struct sheaf_error *err)
{
	int rc = shf_zip_data(record, r, data, err);

	*sum = 0;
	for (uint64_t at = 0; at < record->bytes && rc == 0; at += VERIFY_CHUNK) {
		uint64_t n = record->bytes - at < VERIFY_CHUNK ? record->bytes - at : VERIFY_CHUNK;

		rc = shf_region_read(r, buf, n, *data + at, err);
		if (rc == 0)
			*sum = shf_crc32_more(crc, *sum, buf, (size_t)n);
	}
	return rc;
}

/* Returns whether the archive was written without sums (torch.serialization.set_crc32_options). All
 * of them are 0 then, also those of records that have bytes. */
static bool has_no_sums(const struct shf_zip *zip)
{
	for (size_t i = 0; i < zip->n; i++)
		if (zip->records[i].crc)
			return false;
	return zip->n > 0;
}

int shf_zip_verify(const struct shf_zip *zip, const struct shf_region *r, const char *file,
                   uint64_t at, struct shf_foreign_findings *to, struct sheaf_error *err)
{
	struct shf_crc32 *crc = shf_alloc(1, sizeof(*crc));
	uint8_t *buf = shf_alloc(VERIFY_CHUNK, 1);
	int rc = crc && buf ? 0 : shf_fail(err, SHEAF_ENOMEM, "%s: no memory to verify it",
					   r->where);

	if (rc == 0)
		shf_crc32_init(crc);
	to->unproved |= has_no_sums(zip);
	for (size_t i = 0; i < zip->n && rc == 0 && !to->unproved; i++) {
		const struct shf_zip_record *record = &zip->records[i];
		struct sheaf_error e = { 0 };
		uint64_t data = record->at;
		uint32_t sum = 0;

		rc = sum_record(crc, record, r, buf, &data, &sum, &e);
		if (rc == 0 && sum != record->crc) {
			shf_fail(&e, SHEAF_ECORRUPT, "%s: record %.*s at byte %" PRIu64 " has "
				 "CRC-32 "
			         "%08x, want %08x", r->where, shf_name_show(record->name),
			         record->name, at + data, sum, record->crc);
			to->found(to->arg, true, file, (int64_t)(at + data), &e);
		} else if (rc == SHEAF_EFORMAT) {
			to->found(to->arg, false, file, (int64_t)(at + record->at), &e);
			rc = 0;
		} else if (rc < 0 && err) {
			*err = e;
		}
		to->bytes += record->bytes;
	}
	shf_free(crc);
	shf_free(buf);
	return rc;
}

static int verify_torch_save(struct shf_foreign *f, struct shf_foreign_findings *to,
                             struct sheaf_error *err)
{
	const struct shf_foreign_file *file = (const void *)f->files.data;
	struct shf_arena arena = { 0 };
	struct shf_region r;
	struct shf_zip zip;
	int rc = shf_foreign_region(f, 0, &r, err);

	if (rc == 0)
		rc = shf_zip_open(&zip, &r, &arena, err);

	if (rc == 0)
		rc = shf_zip_verify(&zip, &r, file[0].name, 0, to, err);
	shf_arena_release(&arena);
	return rc;
}

const struct shf_foreign_format shf_torch_save = {
	.name = "torch.save",
	.is_file = is_torch_save,
	.open = open_torch_save,
	.verify = verify_torch_save,
};
