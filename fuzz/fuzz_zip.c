/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of a zip archive. Of one that is accepted, all records can be found by their names,
 * lie within the file, and do not overlap. */
#include "memfile.h"
#include "zip.h"

static void check_record(const struct shf_zip *z, const struct shf_zip_record *x,
                         const struct shf_region *r)
{
	struct sheaf_error err = { .msg = "" };
	struct shf_packed packed;
	uint64_t data = 0;
	int rc;

	MUST(shf_zip_find(z, x->name, strlen(x->name)) == x);
	MUST(x->at < x->end && x->end <= r->bytes && x->packed <= x->end - x->at);
	MUST(x->deflated || x->packed == x->bytes);
	rc = shf_zip_data(x, r, &data, &err);
	MUST(rc == 0 || (rc == SHEAF_EFORMAT && err.msg[0]));
	MUST(rc < 0 || (data > x->at && data <= x->end && x->bytes <= x->end - data));
	rc = shf_zip_packed(x, r, &packed, &err);
	MUST(rc == 0 || (rc == SHEAF_EFORMAT && err.msg[0]));
	MUST(rc < 0 || (packed.at > x->at && packed.at <= x->end &&
	                packed.bytes <= x->end - packed.at));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sheaf_error err = { .msg = "" };
	struct shf_arena arena = { 0 };
	struct memfile file;
	struct shf_region r = memfile_region(&file, data, size);
	struct shf_zip z = { 0 };
	int rc = shf_zip_open(&z, &r, &arena, &err);

	MUST(rc == 0 || (rc == SHEAF_EFORMAT && err.msg[0]));
	for (size_t i = 0; rc == 0 && i < z.n; i++)
		check_record(&z, &z.records[i], &r);
	shf_arena_release(&arena);
	return 0;
}
