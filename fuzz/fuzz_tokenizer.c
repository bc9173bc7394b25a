/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one of the files of a tokenizer from which the metadata of a GGUF file are made; the
 * first byte says which one. If it is accepted, the metadata are made, and must be as long as the
 * tokens and merges in them require. */
#include "fuzz.h"
#include "gguf_vocab.h"

enum { ROWS = 40 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct shf_gguf_vocab v = { .rows = ROWS, .pre = "default" };
	struct shf_json_facts model = { 0 };
	struct shf_gguf_out out = { .values = 0 };
	struct sheaf_error err = { .msg = "" };
	int rc, which = size ? *data % 4 : 0;
	const uint8_t *text = data + (size > 0);
	size_t n = size - (size > 0);

	v.tokens = calloc(ROWS, sizeof(*v.tokens));
	MUST(v.tokens != NULL);
	v.is_spm = which != 0;
	rc = which == 1 ? shf_gguf_spm_read(&v, text, n, &err)
	   : shf_json_walk(text, n, "input", which == 0 ? shf_gguf_tokenizer_leaf
	                   : which == 2 ? shf_gguf_config_leaf : shf_gguf_added_leaf, &v, &err);
	if (rc == 0 && which == 0)
		rc = shf_gguf_vocab_check(&v, &err);
	if (rc == 0)
		rc = shf_gguf_vocab_end(&v, &err);
	MUST(rc == 0 || ((rc == SHEAF_EFORMAT || rc == SHEAF_EINVAL) && err.msg[0]));
	if (rc == 0) {
		shf_gguf_vocab_put(&out, &v, &model);
		MUST(out.values >= 4 && out.bytes.len >= 12 * ROWS + v.merges.len);
	}
	shf_buf_release(&out.bytes);
	free(v.tokens);
	v.tokens = NULL;
	shf_gguf_vocab_release(&v);
	return 0;
}
