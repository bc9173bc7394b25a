/* SPDX-License-Identifier: Apache-2.0 */
/* The table of sums, as it is and sealed again, so that the fuzzer comes past the checksums. In
 * what is taken every accessor is safe and every tensor is found. */
#include "crc64.h"
#include "dtype.h"
#include "fuzz.h"
#include "sums.h"

static void check(const struct shf_sums *s)
{
	uint64_t blocks = 0;

	for (uint64_t i = 0; i < s->head.files_n; i++) {
		struct shf_sums_file f = shf_sums_file(s, i);
		uint8_t bytes[SHF_SUMS_FILE];

		shf_sums_put_file(bytes, &f);
		MUST(!memcmp(bytes, s->bytes + s->head.files_off + i * SHF_SUMS_FILE,
			     sizeof(bytes)));
		blocks ^= shf_sums_block(s, 0);
	}
	for (uint64_t i = 0; i < s->head.blocks_n; i++)
		blocks ^= shf_sums_block(s, i);
	for (uint64_t i = 0; i < s->head.tensors_n; i++) {
		struct shf_sums_tensor t = shf_sums_tensor(s, i);
		uint8_t bytes[SHF_SUMS_TENSOR];

		shf_sums_put_tensor(bytes, &t);
		MUST(!memcmp(bytes, s->bytes + s->head.tensors_off + i * SHF_SUMS_TENSOR,
			     sizeof(bytes)));
		MUST(t.file < s->head.files_n && shf_dtype(t.dtype));
		MUST(shf_sums_find(s, shf_sums_family(s, &t), shf_sums_name(s, &t)) == (int64_t)i);
	}
	MUST(shf_sums_find(s, "no family", "no name") == -1);
	(void)blocks;
}

static void try(const uint8_t *data, size_t size, uint64_t crc)
{
	struct shf_sums s;
	struct sheaf_error err;
	int rc = shf_sums_open(&s, data, size, crc, "input", &err);

	MUST(rc == 0 || rc == SHEAF_ECORRUPT || rc == SHEAF_EFORMAT);
	MUST(rc == 0 || !strncmp(err.msg, "input: ", 7));
	if (rc == 0)
		check(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes = calloc(1, size ? size : 1);
	struct shf_sums_head h;
	struct sheaf_error err;
	uint64_t crc = 0;

	MUST(bytes);
	if (size)
		memcpy(bytes, data, size);
	try(bytes, size, crc);
	if (size >= SHF_SUMS_HEADER)
		shf_put64(bytes + 120, shf_crc64(bytes, 120));
	if (shf_sums_get_head(&h, bytes, size, "input", &err) == 0) {
		for (uint64_t at = 0; at < h.pages_off; at += SHF_SUMS_PAGE) {
			uint64_t n = h.pages_off - at;

			n = n < SHF_SUMS_PAGE ? n : SHF_SUMS_PAGE;
			shf_put64(bytes + h.pages_off + at / SHF_SUMS_PAGE * 8,
				  shf_crc64(bytes + at, (size_t)n));
		}
		crc = shf_crc64_more(shf_crc64(bytes, SHF_SUMS_HEADER), bytes + h.pages_off,
				     (size_t)(h.bytes - h.pages_off));
		try(bytes, size, crc);
	}
	free(bytes);
	return 0;
}
