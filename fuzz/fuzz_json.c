/* SPDX-License-Identifier: Apache-2.0 */
/* The pull reader: it ends, it agrees with skip, and what it says is text is UTF-8 that the
 * emitter and the reader carry round. */
#include "fuzz.h"
#include "json.h"
#include "valid.h"

static void check_text(const struct shf_json *j)
{
	struct shf_buf b = SHF_BUF_INIT;
	struct shf_json back;
	size_t n, back_n;
	const char *text = shf_json_text(j, &n), *again;

	MUST(shf_utf8_is_valid(text, n));
	shf_json_put(&b, text, n);
	MUST(!b.oom);
	shf_json_init(&back, b.data, b.len);
	MUST(shf_json_next(&back) == SHF_JSON_STRING);
	again = shf_json_text(&back, &back_n);
	MUST(back_n == n && !memcmp(again, text, n));
	MUST(shf_json_next(&back) == SHF_JSON_END);
	shf_json_release(&back);
	shf_buf_release(&b);
}

static void check_number(const struct shf_json *j)
{
	uint64_t u;
	int64_t i;
	char text[24];

	if (!shf_json_u64(j, &u))
		return;
	snprintf(text, sizeof(text), "%llu", (unsigned long long)u);
	MUST(!strcmp(text, shf_json_text(j, NULL)));
	MUST(shf_json_i64(j, &i) == (u <= INT64_MAX));
}

/* Whether the document is whole, one token at a time. */
static bool walk(const uint8_t *data, size_t size)
{
	struct shf_json j;
	enum shf_json_kind kind;
	size_t tokens = 0, last = 0;

	shf_json_init(&j, data, size);
	while ((kind = shf_json_next(&j)) > SHF_JSON_END) {
		MUST(++tokens <= size);
		MUST(j.at < size && (tokens == 1 || j.at > last));
		MUST(j.depth >= 0 && j.depth <= SHF_JSON_DEPTH_MAX);
		last = j.at;
		if (kind == SHF_JSON_KEY || kind == SHF_JSON_STRING)
			check_text(&j);
		if (kind == SHF_JSON_NUMBER)
			check_number(&j);
	}
	MUST(kind == SHF_JSON_END || strstr(j.why, "at byte "));
	MUST(shf_json_next(&j) == kind);
	shf_json_release(&j);
	return kind == SHF_JSON_END;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	bool whole = walk(data, size), skipped;
	struct shf_json j;

	shf_json_init(&j, data, size);
	skipped = shf_json_skip(&j, shf_json_next(&j)) && shf_json_next(&j) == SHF_JSON_END;
	MUST(skipped == whole);
	shf_json_release(&j);
	return 0;
}
