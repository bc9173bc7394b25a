/* SPDX-License-Identifier: Apache-2.0 */
#include "t.h"

#include "index.h"

static int parse(struct shf_index *ix, struct shf_arena *arena, const char *text,
		 struct sheaf_error *err)
{
	memset(arena, 0, sizeof(*arena));
	return shf_index_parse(ix, arena, (const uint8_t *)text, strlen(text), "ix", err);
}

TEST(the_index_of_two_tensors_is_these_bytes)
{
	static const struct shf_index_entry e[] = { { "a\"", "f1" }, { "b", "f2" } };
	struct shf_buf b = SHF_BUF_INIT;

	CHECK_INT(shf_index_write(&b, e, 2, 12), 0);
	shf_buf_u8(&b, 0);
	CHECK_STR((char *)b.data, "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n"
		  "  \"weight_map\": {\n    \"a\\\"\": \"f1\",\n    \"b\": \"f2\"\n  }\n}\n");
	shf_buf_reset(&b);
	CHECK_INT(shf_index_write(&b, NULL, 0, 0), 0);
	shf_buf_u8(&b, 0);
	CHECK_STR((char *)b.data, "{\n  \"metadata\": {\n    \"total_size\": 0\n  },\n"
		  "  \"weight_map\": {}\n}\n");
	shf_buf_release(&b);
}

TEST(reading_is_the_inverse_of_writing)
{
	static char names[300][24];
	static struct shf_index_entry e[300];

	for (size_t n = 0; n <= 300; n += 37) {
		struct shf_buf b = SHF_BUF_INIT;
		struct shf_arena arena = { 0 };
		struct shf_index ix;
		struct sheaf_error err;
		uint64_t total = n == 37 ? UINT64_MAX : n * 1000003;

		for (size_t i = 0; i < n; i++) {
			snprintf(names[i], sizeof(names[i]), "x.%zu\\/\xc3\xa9", i);
			e[i].name = names[i];
			e[i].file = i % 50 < 25 ? "one.safetensors" : "two.safetensors";
		}
		CHECK_INT(shf_index_write(&b, e, n, total), 0);
		CHECK_RC(shf_index_parse(&ix, &arena, b.data, b.len, "ix", &err), 0, &err);
		CHECK(ix.n == n && ix.total_size == total);
		for (size_t i = 0; i < n; i++) {
			CHECK_STR(ix.entries[i].name, e[i].name);
			CHECK_STR(ix.entries[i].file, e[i].file);
		}
		shf_arena_release(&arena);
		for (size_t k = 0; n && k + 1 < b.len; k++) {  /* the last byte is only LF */
			CHECK_INT(shf_index_parse(&ix, &arena, b.data, k, "ix", &err),
				  SHEAF_EFORMAT);
			shf_arena_release(&arena);
			if (n > 40)
				k += 97;
		}
		shf_buf_release(&b);
	}
}

TEST(others_indexes_are_read_leniently)
{
	static const char *const texts[] = {
		"{\"weight_map\":{\"a\":\"f\"}}",
		"{\"metadata\":{},\"weight_map\":{\"a\":\"f\"}}",
		"{\"metadata\":null,\"weight_map\":{\"a\":\"f\"}}",
		"{\"metadata\":{\"total_size\":1.5e9,\"x\":[{}]},\"weight_map\":{\"a\":\"f\"}}",
		("{\"metadata\":{\"total_size\":\"7\"},\"weight_map\":{\"a\":\"f\"},"
		 "\"master_weights\":true}"),
		" {\"q\":{\"weight_map\":{}},\"weight_map\" : {\"a\" : \"f\"}}\n\n",
	};
	struct shf_index ix;
	struct shf_arena arena;
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		CHECK_RC(parse(&ix, &arena, texts[i], &err), 0, &err);
		CHECK_INT(ix.n, 1);
		CHECK_STR(ix.entries[0].name, "a");
		CHECK_STR(ix.entries[0].file, "f");
		CHECK(ix.total_size == UINT64_MAX);
		shf_arena_release(&arena);
	}
	CHECK_RC(parse(&ix, &arena,
		       "{\"weight_map\":{},\"metadata\":{\"total_size\":18446744073709551614}}",
		       &err), 0, &err);
	CHECK(ix.n == 0 && ix.total_size == UINT64_MAX - 1);
	shf_arena_release(&arena);
}

TEST(hostile_indexes_are_refused_with_a_sentence)
{
	static const char *const cases[][2] = {
		{ "", "ix: unexpected end at byte 0" },
		{ "[]", "ix: the index is not an object at byte 0" },
		{ "{}", "ix: the index has no weight_map" },
		{ "{\"weight_map\":[]}", "ix: weight_map is not an object at byte 14" },
		{ "{\"weight_map\":{}}x", "ix: bytes after the end at byte 17" },
		{ "{\"weight_map\":{},\"weight_map\":{}}", "ix: weight_map twice at byte 17" },
		{ "{\"metadata\":{},\"metadata\":{},\"weight_map\":{}}",
		  "ix: metadata twice at byte 15" },
		{ "{\"weight_map\":{\"a\":1}}",
		  "ix: value in weight_map that is not a string at byte 19" },
		{ "{\"weight_map\":{\"a\":null}}",
		  "ix: value in weight_map that is not a string at byte 19" },
		{ "{\"weight_map\":{\"a\":\"f\",\"a\":\"f\"}}",
		  "ix: tensor \"a\" twice in weight_map" },
		{ "{\"weight_map\":{\"a\":\"f\",\"b\":\"f\",\"\\u0061\":\"g\"}}",
		  "ix: tensor \"a\" twice in weight_map" },
		{ "{\"weight_map\":{\"a\":\"../f\"}}",
		  "ix: file in weight_map that is not a plain file name at byte 19" },
		{ "{\"weight_map\":{\"a\":\"/etc/f\"}}",
		  "ix: file in weight_map that is not a plain file name at byte 19" },
		{ "{\"weight_map\":{\"a\":\"d/f\"}}",
		  "ix: file in weight_map that is not a plain file name at byte 19" },
		{ "{\"weight_map\":{\"a\":\".\"}}",
		  "ix: file in weight_map that is not a plain file name at byte 19" },
		{ "{\"weight_map\":{\"a\":\"..\"}}",
		  "ix: file in weight_map that is not a plain file name at byte 19" },
		{ "{\"weight_map\":{\"a\":\"\"}}",
		  "ix: file in weight_map that is not a plain file name at byte 19" },
		{ "{\"weight_map\":{\"a\":\"f\\u0000g\"}}",
		  "ix: file in weight_map that is not a plain file name at byte 19" },
		{ "{\"weight_map\":{\"a\":\"f\\n\"}}",
		  "ix: file in weight_map that is not a plain file name at byte 19" },
		{ "{\"weight_map\":{\"a\":\"f\"", "ix: unexpected end at byte 22" },
		{ "{\"metadata\":{\"a\":[},\"weight_map\":{}}",
		  "ix: unbalanced bracket at byte 18" },
	};
	struct shf_index ix;
	struct shf_arena arena;
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		CHECK_RC(parse(&ix, &arena, cases[i][0], &err), SHEAF_EFORMAT, &err);
		CHECK_STR(err.msg, cases[i][1]);
		shf_arena_release(&arena);
	}
}
