/* SPDX-License-Identifier: Apache-2.0 */
#include "zip_verify.h"
#include <inttypes.h>
#include <string.h>
#include "crc32.h"
#include "err.h"
#include "valid.h"

#define VERIFY_CHUNK (UINT64_C(1) << 20)

/* Returns which byte of the file is at `off` of a region that begins at `at`. A decoded byte of a
 * compressed item has no place in the file, so for such a byte it is where the item begins. */
static uint64_t place_in_file(const struct shf_region *r, uint64_t at, uint64_t off)
{
	return r->unpacker ? at : at + off;
}

/* Sums the data of one record. */
static int sum_record(const struct shf_crc32 *crc, const struct shf_zip_record *record,
                      const struct shf_region *r, uint8_t *buf, uint64_t *data, uint32_t *sum,
                      struct sheaf_error *err)
{
	struct shf_packed packed = { 0 };
	struct shf_unpacker u;
	int rc = shf_zip_packed(record, r, &packed, err);

	*sum = 0;
	if (rc < 0)
		return rc;
	*data = packed.at;
	shf_unpacker_init(&u, &packed, VERIFY_CHUNK);
	for (uint64_t at = 0; at < record->bytes && rc == 0; at += VERIFY_CHUNK) {
		uint64_t n = record->bytes - at < VERIFY_CHUNK ? record->bytes - at : VERIFY_CHUNK;

		rc = shf_unpacker_read(&u, r, buf, n, at, err);
		if (rc == 0)
			*sum = shf_crc32_more(crc, *sum, buf, (size_t)n);
	}
	shf_unpacker_release(&u);
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
		uint64_t data = record->at, place;
		uint32_t sum = 0;

		rc = sum_record(crc, record, r, buf, &data, &sum, &e);
		place = place_in_file(r, at, data);
		if (rc == 0 && sum != record->crc) {
			shf_fail(&e, SHEAF_ECORRUPT, "%s: record %.*s at byte %" PRIu64 " has "
			         "CRC-32 %08x, want %08x", r->where, shf_name_show(record->name),
			         record->name, place, sum, record->crc);
			to->found(to->arg, true, file, (int64_t)place, &e);
		} else if (rc == SHEAF_EFORMAT) {
			place = place_in_file(r, at, record->at);
			to->found(to->arg, false, file, (int64_t)place, &e);
			rc = 0;
		} else if (rc < 0 && err) {
			*err = e;
		}
		to->bytes += record->packed;
	}
	shf_free(crc);
	shf_free(buf);
	return rc;
}

int shf_zip_verify_file(struct shf_foreign *f, uint32_t file,
                        struct shf_foreign_findings *to, struct sheaf_error *err)
{
	const struct shf_foreign_file *x = shf_foreign_file(f, file);
	struct shf_arena arena = { 0 };
	uint8_t head[4] = { 0 };
	struct shf_region r;
	struct shf_zip zip;
	int rc = shf_foreign_region(f, file, &r, err);

	if (rc < 0)
		return rc;
	rc = r.bytes < sizeof(head) ? 0 : shf_region_read(&r, head, sizeof(head), 0, err);
	if (rc == 0 && shf_get32(head) == SHF_ZIP_MAGIC) {
		rc = shf_zip_open(&zip, &r, &arena, err);
		if (rc == 0)
			rc = shf_zip_verify(&zip, &r, x->shown, 0, to, err);
	} else if (rc == 0) {
		size_t n = strlen(x->name);

		to->unproved |= n < 5 || strcmp(x->name + n - 5, ".json");
	}
	shf_foreign_region_end(f, file);
	shf_arena_release(&arena);
	return rc;
}

int shf_zip_verify_files(struct shf_foreign *f, struct shf_foreign_findings *to,
                         struct sheaf_error *err)
{
	bool unproved = false;
	int rc = 0;

	for (uint32_t i = 0; i < shf_foreign_files(f) && rc == 0; i++) {
		to->unproved = false;
		rc = shf_zip_verify_file(f, i, to, err);
		unproved |= to->unproved;
	}
	to->unproved = unproved;
	return rc;
}
