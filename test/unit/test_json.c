/* SPDX-License-Identifier: Apache-2.0 */
#include "rng.h"
#include "t.h"

#include <stdlib.h>

#include "json.h"
#include "valid.h"

static char why[120];           /* the document that was walked last is none */

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
		snprintf(why, sizeof(why), "%s", j.why);
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

static const char *const refused[][2] = {
	{ "", "unexpected end at byte 0" },
	{ " ", "unexpected end at byte 1" },
	{ "{", "unexpected end at byte 1" },
	{ "[", "unexpected end at byte 1" },
	{ "}", "not a JSON value at byte 0" },
	{ "]", "not a JSON value at byte 0" },
	{ "{]", "unbalanced bracket at byte 1" },
	{ "[}", "unbalanced bracket at byte 1" },
	{ "{\"a\"}", "a colon is missing at byte 4" },
	{ "{\"a\":}", "not a JSON value at byte 5" },
	{ "{\"a\":1,}", "a key is missing at byte 7" },
	{ "[1,]", "not a JSON value at byte 3" },
	{ "[,1]", "not a JSON value at byte 1" },
	{ "[1 2]", "a comma is missing at byte 3" },
	{ "{\"a\":1 \"b\":2}", "a comma is missing at byte 7" },
	{ "{a:1}", "a key is missing at byte 1" },
	{ "{1:2}", "a key is missing at byte 1" },
	{ "{null:1}", "a key is missing at byte 1" },
	{ "{\"a\"=1}", "a colon is missing at byte 4" },
	{ "{\"a\"::1}", "not a JSON value at byte 5" },
	{ "{,}", "a key is missing at byte 1" },
	{ "[1,,2]", "not a JSON value at byte 3" },
	{ "1 2", "bytes after the end at byte 2" },
	{ "{} {}", "bytes after the end at byte 3" },
	{ "{}x", "bytes after the end at byte 2" },
	{ "nul", "not a JSON value at byte 0" },
	{ "True", "not a JSON value at byte 0" },
	{ "nulls", "bytes after the end at byte 4" },
	{ "tru", "not a JSON value at byte 0" },
	{ "+1", "not a JSON value at byte 0" },
	{ "01", "leading zero at byte 0" },
	{ "-01", "leading zero at byte 1" },
	{ "1.", "unexpected end at byte 2" },
	{ ".5", "not a JSON value at byte 0" },
	{ "1e", "unexpected end at byte 2" },
	{ "1e+", "unexpected end at byte 3" },
	{ "-", "unexpected end at byte 1" },
	{ "0x10", "bytes after the end at byte 1" },
	{ "1_0", "bytes after the end at byte 1" },
	{ "NaN", "not a JSON value at byte 0" },
	{ "Infinity", "not a JSON value at byte 0" },
	{ "-Infinity", "a digit is missing at byte 1" },
	{ "'a'", "not a JSON value at byte 0" },
	{ "\"", "unexpected end at byte 1" },
	{ "\"a", "unexpected end at byte 2" },
	{ "\"\\\"", "unexpected end at byte 3" },
	{ "\"\\x41\"", "bad escape at byte 1" },
	{ "\"\\u\"", "bad \\u escape at byte 1" },
	{ "\"\\u12\"", "bad \\u escape at byte 1" },
	{ "\"\\u12g4\"", "bad \\u escape at byte 1" },
	{ "\"\\ud800\"", "lone surrogate at byte 1" },
	{ "\"\\udc00\"", "lone surrogate at byte 1" },
	{ "\"\\ud800\\u0041\"", "lone surrogate at byte 1" },
	{ "\"\\ud800x\"", "lone surrogate at byte 1" },
	{ "\"\\ud800\\ud800\"", "lone surrogate at byte 1" },
	{ "\"\x01\"", "raw control byte in a string at byte 1" },
	{ "\"\t\"", "raw control byte in a string at byte 1" },
	{ "\"\n\"", "raw control byte in a string at byte 1" },
	{ "\"\xff\"", "bad UTF-8 at byte 1" },
	{ "\"\xc0\x80\"", "bad UTF-8 at byte 1" },
	{ "\"\xc3\"", "bad UTF-8 at byte 1" },
	{ "\"\xe2\x82\"", "bad UTF-8 at byte 1" },
	{ "\"\xed\xa0\x80\"", "bad UTF-8 at byte 1" },
	{ "\"\xf4\x90\x80\x80\"", "bad UTF-8 at byte 1" },
	{ "\"\xf0\x8f\xbf\xbf\"", "bad UTF-8 at byte 1" },
	{ "\"\xe0\x9f\xbf\"", "bad UTF-8 at byte 1" },
	{ "\"\x80\"", "bad UTF-8 at byte 1" },
	{ "\xef\xbb\xbf{}", "not a JSON value at byte 0" },
	{ "{}\x01", "bytes after the end at byte 2" },
	{ "// x\n{}", "not a JSON value at byte 0" },
	{ "/**/{}", "not a JSON value at byte 0" },
	{ "[1]]", "bytes after the end at byte 3" },
	{ "{\"a\":1}}", "bytes after the end at byte 7" },
	{ "\f{}", "not a JSON value at byte 0" },
	{ "\"\\", "unexpected end at byte 2" },
	{ "\"\\u004", "bad \\u escape at byte 1" },
	{ "\"\\u0041", "unexpected end at byte 7" },
	{ "\"\\ud83d\\ude0", "lone surrogate at byte 1" },
	{ "\"\\ud83d\\ude00", "unexpected end at byte 13" },
	{ "\"\\udbff\\udbff\"", "lone surrogate at byte 1" },
	{ "\"\\ud800\\ue000\"", "lone surrogate at byte 1" },
	{ "\"\\udfff\\udc00\"", "lone surrogate at byte 1" },
	{ "\"\\ud800/udc00\"", "lone surrogate at byte 1" },
	{ "\"\\ud800\\nddc00\"", "lone surrogate at byte 1" },
	{ "\"\\u/000\"", "bad \\u escape at byte 1" },
	{ "\"\\u:000\"", "bad \\u escape at byte 1" },
	{ "\"\\u@000\"", "bad \\u escape at byte 1" },
	{ "\"\\uG000\"", "bad \\u escape at byte 1" },
	{ "\"\\u`000\"", "bad \\u escape at byte 1" },
	{ "\"\\ug000\"", "bad \\u escape at byte 1" },
	{ "[1:2]", "a comma is missing at byte 2" },
	{ "[1/2]", "a comma is missing at byte 2" },
	{ "[1.:]", "a digit is missing at byte 3" },
	{ "[1e/]", "a digit is missing at byte 3" },
	{ "[1e-]", "a digit is missing at byte 4" },
	{ "{\"a\" : 1 , }", "a key is missing at byte 11" },
	{ "[ {} , ]", "not a JSON value at byte 7" },
	{ "[nul]", "not a JSON value at byte 1" },
	{ "[fals", "not a JSON value at byte 1" },
	{ "{\"a\": 1 ]", "unbalanced bracket at byte 8" },
	{ "{\"a\"", "unexpected end at byte 4" },
	{ "[1", "unexpected end at byte 2" },
	{ "[1,", "unexpected end at byte 3" },
};

TEST(what_is_no_json_is_refused_and_the_byte_is_named)
{
	char out[256];

	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		walk_text(refused[i][0], out);
		if (out[strlen(out) - 1] != '!')
			print_error("taken: %s\n", refused[i][0]);
		CHECK_INT(out[strlen(out) - 1], '!');
		CHECK_STR(why, refused[i][1]);
	}
	CHECK_STR(walk("{}\0", 3, out, sizeof(out)), "{}!");
}

/* Beside each limit of the encoding: what is in a string as it is, and is UTF-8 or is not. */
TEST(strings_hold_utf8_alone)
{
	static const struct { const char *text; int good; } cases[] = {
		{ " ", 1 }, { "\x1f", 0 },
		{ "\x7f", 1 }, { "\x80", 0 }, { "\xbf", 0 }, { "\xc0", 0 },
		{ "\xc1\xbf", 0 }, { "\xc2\x7f", 0 }, { "\xc2\x80", 1 }, { "\xc2\xc0", 0 },
		{ "\xdf\xbf", 1 }, { "\xdf", 0 }, { "\xe0\x9f\xbf", 0 }, { "\xe0\xa0\x80", 1 },
		{ "\xe1\x80\x7f", 0 }, { "\xe1\x80\x80", 1 }, { "\xe1\x80\xbf", 1 },
		{ "\xe1\x80\xc0", 0 }, { "\xe1\x80", 0 }, { "\xec\xbf\xbf", 1 },
		{ "\xed\x80\x80", 1 }, { "\xed\x9f\xbf", 1 }, { "\xed\xa0\x80", 0 },
		{ "\xee\xa0\x80", 1 }, { "\xef\xbf\xbf", 1 }, { "\xf0\x8f\xbf\xbf", 0 },
		{ "\xf0\x90\x80\x80", 1 }, { "\xf1\x80\x80\x80", 1 }, { "\xf1\x80\x80\x7f", 0 },
		{ "\xf1\x80\x7f\x80", 0 }, { "\xf1\x80\x80\xc0", 0 }, { "\xf1\x80\x80", 0 },
		{ "\xf3\xbf\xbf\xbf", 1 }, { "\xf4\x8f\xbf\xbf", 1 }, { "\xf4\x90\x80\x80", 0 },
		{ "\xf5\x80\x80\x80", 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool low = (uint8_t)cases[i].text[0] < 0x20;
		char text[16], out[256];

		CHECK_INT(shf_utf8_is_valid(cases[i].text, strlen(cases[i].text)),
		          cases[i].good || low);
		snprintf(text, sizeof(text), "\"%s\"", cases[i].text);
		CHECK_STR(walk_text(text, out), cases[i].good ? "s." : "!");
		snprintf(text, sizeof(text), "\"%s", cases[i].text);   /* ends with the sequence */
		CHECK_STR(walk_text(text, out), "!");
	}
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

TEST(escapes_become_the_characters_that_they_name)
{
	static const char *const cases[][2] = {
		{ "\\u0001", "\x01" }, { "\\u007f", "\x7f" }, { "\\u0080", "\xc2\x80" },
		{ "\\u07ff", "\xdf\xbf" }, { "\\u0800", "\xe0\xa0\x80" },
		{ "\\ud7ff", "\xed\x9f\xbf" }, { "\\ue000", "\xee\x80\x80" },
		{ "\\uffff", "\xef\xbf\xbf" }, { "\\ud800\\udc00", "\xf0\x90\x80\x80" },
		{ "\\udbff\\udfff", "\xf4\x8f\xbf\xbf" }, { "\\u09aF", "\xe0\xa6\xaf" },
		{ "\\u9AfA", "\xe9\xab\xba" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shf_json j;
		char text[32];
		size_t n;

		snprintf(text, sizeof(text), "\"%s\"", cases[i][0]);
		shf_json_init(&j, text, strlen(text));
		CHECK_STR(shf_json_text(&j, &n), "");   /* nothing was read yet */
		CHECK_INT(n, 0);
		CHECK_INT(shf_json_next(&j), SHF_JSON_STRING);
		CHECK_STR(shf_json_text(&j, &n), cases[i][1]);
		CHECK_INT(n, strlen(cases[i][1]));
		shf_json_release(&j);
	}
}

TEST(each_token_says_where_it_begins)
{
	static const char doc[] = " { \"a\" :\t[ 12 ,\n\"b\", -3 ] , \"c\":{}}  ";
	static const size_t at[] = { 1, 3, 9, 11, 16, 21, 24, 28, 32, 33, 34 };
	struct shf_json j;

	shf_json_init(&j, doc, sizeof(doc) - 1);
	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		CHECK(shf_json_next(&j) != SHF_JSON_ERROR);
		CHECK_INT(j.at, at[i]);
	}
	CHECK_INT(shf_json_next(&j), SHF_JSON_END);
	shf_json_release(&j);
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

		len = rng_next(&seed) % sizeof(s);
		for (size_t i = 0; i < len; i++)
			s[i] = (char)(rng_next(&seed) & 0x7f);
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

TEST(each_byte_is_put_in_its_one_way)
{
	for (int c = 0; c < 256; c++) {
		struct shf_buf b = SHF_BUF_INIT;
		char one = (char)c, want[16];

		snprintf(want, sizeof(want), "\"%c\"", c);
		if (c < 0x20)
			snprintf(want, sizeof(want), "\"\\u%04x\"", (unsigned)c);
		if (c == '"' || c == '\\')
			snprintf(want, sizeof(want), "\"\\%c\"", c);
		else if (c >= 8 && c <= 13 && c != 11)
			snprintf(want, sizeof(want), "\"\\%c\"", "btn?fr"[c - 8]);
		shf_json_put(&b, &one, 1);
		CHECK_INT(b.len, strlen(want));
		CHECK(memcmp(b.data, want, b.len) == 0);
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
