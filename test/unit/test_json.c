/* SPDX-License-Identifier: Apache-2.0 */
#include "t.h"

#include <stdlib.h>

#include "json.h"

/* Walks a document; a token's letter each, as "{k1}" for {"a":1}; ends in . or !. */
static const char *walk(const void *bytes, size_t n, char *out, size_t out_n)
{
	static const char letters[] = ".{}[]ks1tfn";
	struct shf_json j;
	enum shf_json_kind kind;
	size_t at = 0;

	shf_json_init(&j, bytes, n);
	do {
		kind = shf_json_next(&j);
		if (at + 1 < out_n)
			out[at++] = kind == SHF_JSON_ERROR ? '!' : letters[kind];
	} while (kind > SHF_JSON_END);
	if (kind == SHF_JSON_ERROR) {
		CHECK(strstr(j.why, "at byte ") != NULL);
		CHECK_INT(shf_json_next(&j), SHF_JSON_ERROR);
	}
	out[at] = 0;
	shf_json_release(&j);
	return out;
}

static const char *walk_text(const char *s, char out[256])
{
	/* Exactly as long as the text, so that a read past it is seen by a sanitizer. */
	size_t n = strlen(s);
	char *copy = malloc(n ? n : 1);

	memcpy(copy, s, n);
	walk(copy, n, out, 256);
	free(copy);
	return out;
}

TEST(documents_are_read_token_by_token)
{
	static const char *const cases[][2] = {
		{ "{}", "{}." }, { "[]", "[]." }, { " 1 ", "1." }, { "\"x\"", "s." },
		{ "true", "t." }, { "false", "f." }, { "null\n", "n." },
		{ "{\"a\":1,\"b\":[true,null,{\"c\":\"d\"}]}", "{k1k[tn{ks}]}." },
		{ "[[],{},[[]]]", "[[]{}[[]]]." }, { "\t{ \"a\" : [ 1 , 2 ] }\r\n", "{k[11]}." },
		{ "-0", "1." }, { "-1.5e+10", "1." }, { "0.0E-0", "1." },
		{ "{\"a\":1,\"a\":2}", "{k1k1}." },     /* doubles are the caller's */
	};
	char out[256];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		CHECK_STR(walk_text(cases[i][0], out), cases[i][1]);
}

TEST(what_is_no_json_is_refused)
{
	static const char *const cases[] = {
		"", " ", "{", "[", "}", "]", "{]", "[}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}",
			"[1,]",
		"[,1]", "[1 2]", "{\"a\":1 \"b\":2}", "{a:1}", "{1:2}", "{null:1}", "{\"a\"=1}",
		"{\"a\"::1}", "{,}", "[1,,2]", "1 2", "{} {}", "{}x", "nul", "True", "nulls", "tru",
		"+1", "01", "-01", "1.", ".5", "1e", "1e+", "-", "0x10", "1_0", "NaN", "Infinity",
		"-Infinity", "'a'", "\"", "\"a", "\"\\\"", "\"\\x41\"", "\"\\u\"", "\"\\u12\"",
		"\"\\u12g4\"", "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"\\ud800x\"",
		"\"\\ud800\\ud800\"", "\"\x01\"", "\"\t\"", "\"\n\"", "\"\xff\"", "\"\xc0\x80\"",
		"\"\xc3\"", "\"\xe2\x82\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
		"\"\xf0\x8f\xbf\xbf\"", "\"\xe0\x9f\xbf\"", "\"\x80\"", "\xef\xbb\xbf{}", "{}\x01",
		"// x\n{}", "/**/{}", "[1]]", "{\"a\":1}}", "\f{}",
	};
	char out[256];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		walk_text(cases[i], out);
		if (out[strlen(out) - 1] != '!')
			print_error("taken: %s\n", cases[i]);
		CHECK_INT(out[strlen(out) - 1], '!');
	}
	CHECK_STR(walk("{}\0", 3, out, sizeof(out)), "{}!");
}

TEST(depth_64_is_read_and_65_refused)
{
	char text[2 * 65], out[256];

	memset(text, '[', 64);
	memset(text + 64, ']', 64);
	walk(text, 128, out, sizeof(out));
	CHECK_INT(out[128], '.');
	memset(text, '[', 65);
	memset(text + 65, ']', 65);
	walk(text, 130, out, sizeof(out));
	CHECK_INT(out[64], '!');
}

TEST(strings_come_decoded)
{
	static const char doc[] =
		"[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\",\"\\u0041\\u00e9\\u20AC\\ud83d\\uDE00\","
				  "\"a\\u0000b\",\"\xc3\xa9\xf0\x9f\x98\x80\",\"\"]";
	static const struct {
		const char *text;
		size_t n;
	} want[] = {
		{ "\"\\/\b\f\n\r\t", 8 }, { "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10 },
		{ "a\0b", 3 }, { "\xc3\xa9\xf0\x9f\x98\x80", 6 }, { "", 0 },
	};
	struct shf_json j;
	const char *text;
	size_t n;

	shf_json_init(&j, doc, sizeof(doc) - 1);
	CHECK_INT(shf_json_next(&j), SHF_JSON_ARRAY);
	for (size_t i = 0; i < 5; i++) {
		CHECK_INT(shf_json_next(&j), SHF_JSON_STRING);
		text = shf_json_text(&j, &n);
		CHECK_INT(n, want[i].n);
		CHECK(!memcmp(text, want[i].text, n + 1));
	}
	CHECK_INT(shf_json_next(&j), SHF_JSON_ARRAY_END);
	CHECK_INT(shf_json_next(&j), SHF_JSON_END);
	CHECK_INT(shf_json_next(&j), SHF_JSON_END);
	shf_json_release(&j);
}

static bool u64_of(const char *s, uint64_t *v)
{
	struct shf_json j;
	bool ok;

	shf_json_init(&j, s, strlen(s));
	shf_json_next(&j);
	ok = shf_json_u64(&j, v);
	shf_json_release(&j);
	return ok;
}

TEST(integers_are_exact_or_none)
{
	static const char *const none[] = { "18446744073709551616", "99999999999999999999", "-1",
					   "-0",
					    "1.0", "1e3", "\"1\"", "true", "01" };
	uint64_t v = 0;
	int64_t i = 0;
	struct shf_json j;

	CHECK(u64_of("0", &v) && v == 0);
	CHECK(u64_of("18446744073709551615", &v) && v == UINT64_MAX);
	for (size_t k = 0; k < sizeof(none) / sizeof(none[0]); k++)
		CHECK(!u64_of(none[k], &v));
	shf_json_init(&j, "[9223372036854775807,9223372036854775808]", 41);
	shf_json_next(&j);
	shf_json_next(&j);
	CHECK(shf_json_i64(&j, &i) && i == INT64_MAX);
	shf_json_next(&j);
	CHECK(!shf_json_i64(&j, &i));
	shf_json_release(&j);
}

TEST(skip_passes_a_whole_value)
{
	static const char doc[] = "{\"a\":{\"b\":[1,{\"c\":null}],\"d\":2},\"e\":3}";
	struct shf_json j;
	uint64_t v = 0;

	shf_json_init(&j, doc, sizeof(doc) - 1);
	shf_json_next(&j);
	shf_json_next(&j);
	CHECK(shf_json_skip(&j, shf_json_next(&j)));
	CHECK_INT(shf_json_next(&j), SHF_JSON_KEY);
	CHECK_STR(shf_json_text(&j, NULL), "e");
	CHECK(shf_json_skip(&j, shf_json_next(&j)));
	CHECK(shf_json_u64(&j, &v) && v == 3);
	CHECK_INT(shf_json_next(&j), SHF_JSON_OBJECT_END);
	CHECK(!shf_json_skip(&j, shf_json_next(&j)));
	shf_json_release(&j);
}

TEST(every_truncation_of_a_document_is_refused)
{
	static const char doc[] =
		"{\"a\":[1.5e3,\"x\\u00e9\\ud83d\\ude00\",true,null],\"b\":{\"c\":\"\xc3\xa9\"}}";
	char out[256];

	for (size_t n = 0; n + 1 < sizeof(doc); n++) {
		char *copy = malloc(n ? n : 1);

		memcpy(copy, doc, n);
		walk(copy, n, out, sizeof(out));
		CHECK_INT(out[strlen(out) - 1], '!');
		free(copy);
	}
}

TEST(what_is_put_comes_back)
{
	uint64_t seed = 7;

	for (int round = 0; round < 2000; round++) {
		struct shf_buf b = SHF_BUF_INIT;
		struct shf_json j;
		char s[40];
		const char *text;
		size_t n, len;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		len = (size_t)(seed >> 33) % sizeof(s);
		for (size_t i = 0; i < len; i++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			s[i] = (char)(seed >> 40 & 0x7f);
		}
		shf_json_put(&b, s, len);
		shf_json_init(&j, b.data, b.len);
		CHECK_INT(shf_json_next(&j), SHF_JSON_STRING);
		text = shf_json_text(&j, &n);
		CHECK(n == len && !memcmp(text, s, n));
		CHECK_INT(shf_json_next(&j), SHF_JSON_END);
		shf_json_release(&j);
		shf_buf_release(&b);
	}
}

TEST(escapes_are_minimal)
{
	struct shf_buf b = SHF_BUF_INIT;

	shf_json_put(&b, "a/\"\\\b\f\n\r\t\x0b\x1f\x7f\xc3\xa9", 14);
	shf_buf_u8(&b, 0);
	CHECK_STR((char *)b.data, "\"a/\\\"\\\\\\b\\f\\n\\r\\t\\u000b\\u001f\x7f\xc3\xa9\"");
	shf_buf_release(&b);
}
