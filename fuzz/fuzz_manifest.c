/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest, as it is and with a tail that is made right, so that the fuzzer comes past the
 * checksum. What is taken can be encoded, and that decodes to the same bytes again. */
#include "crc64.h"
#include "fuzz.h"
#include "manifest.h"
#include "safetensors.h"
#include "valid.h"

static void check_again(const struct shf_manifest *m)
{
	struct shf_arena arena = { 0 };
	struct shf_buf one = SHF_BUF_INIT, two = SHF_BUF_INIT;
	struct shf_manifest back;
	struct sheaf_error err;
	int rc = shf_manifest_encode(&one, m, &err);

	/* A document close to the limit may grow beyond it: our text has more white space. */
	MUST(rc == 0 || (rc == SHEAF_EINVAL && strstr(err.msg, "must be less than")));
	if (rc == 0) {
		MUST(shf_manifest_decode(&back, &arena, one.data, one.len, "again", &err) == 0);
		MUST(shf_manifest_encode(&two, &back, &err) == 0);
		MUST(one.len == two.len && !memcmp(one.data, two.data, one.len));
	}
	shf_arena_release(&arena);
	shf_buf_release(&one);
	shf_buf_release(&two);
}

static void try(const uint8_t *data, size_t size)
{
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct sheaf_error err;
	int rc = shf_manifest_decode(&m, &arena, data, size, "input", &err);

	MUST(rc == 0 || rc == SHEAF_ECORRUPT || rc == SHEAF_EFORMAT);
	MUST(rc == 0 || !strncmp(err.msg, "input: ", 7));
	for (size_t i = 0; rc == 0 && i < m.files_n; i++)
		MUST(!strstr(m.files[i].name, "..") || shf_plain_is_valid(m.files[i].name) ||
		     !strstr(m.files[i].name, "../"));
	for (size_t i = 0; rc == 0 && i < m.attached_n; i++)
		MUST(m.attached[i].name[0] != '/' && !strstr(m.attached[i].name, "../"));
	if (rc == 0)
		check_again(&m);
	shf_arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct shf_buf b = SHF_BUF_INIT;
	size_t cut = size < 31 ? size : size - 31;

	try(data, size);
	shf_buf_add(&b, data, cut);
	shf_buf_addf(&b, ",\n \"self\": \"%016llx\"}\n",
		     (unsigned long long)shf_crc64(data, cut));
	MUST(!b.oom);
	try(b.data, b.len);
	shf_buf_release(&b);
	return 0;
}
