/* SPDX-License-Identifier: Apache-2.0 */
/* The index: what is taken names plain files, and comes back when it is written anew. */
#include "fuzz.h"
#include "index.h"
#include "json.h"
#include "safetensors.h"
#include "valid.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct shf_arena arena = { 0 };
	struct shf_buf b = SHF_BUF_INIT;
	struct shf_index ix, back;
	struct sheaf_error err;
	int rc = shf_index_parse(&ix, &arena, data, size, "input", &err);

	MUST(rc == 0 || (rc == SHEAF_EFORMAT && !strncmp(err.msg, "input: ", 7)));
	if (rc == 0) {
		MUST(shf_index_write(&b, ix.entries, ix.n, ix.total_size) == 0);
		MUST(shf_index_parse(&back, &arena, b.data, b.len, "again", &err) == 0);
		MUST(back.n == ix.n && back.total_size == ix.total_size);
		for (size_t i = 0; i < ix.n; i++) {
			MUST(shf_plain_is_valid(ix.entries[i].file));
			MUST(shf_utf8_is_valid(ix.entries[i].name, strlen(ix.entries[i].name)));
			MUST(!strcmp(back.entries[i].name, ix.entries[i].name));
			MUST(!strcmp(back.entries[i].file, ix.entries[i].file));
		}
	}
	shf_buf_release(&b);
	shf_arena_release(&arena);
	return 0;
}
