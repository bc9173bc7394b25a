/* SPDX-License-Identifier: Apache-2.0 */
#include "rng.h"
#include "t.h"
#include "deal_home.h"

#include <stdlib.h>

#include "dtype.h"
#include "safetensors.h"

struct parsed {
	struct shf_st st;
	struct shf_arena arena;
	struct sheaf_error err;
	int rc;
};

static void parse(struct parsed *p, const char *text, size_t n, uint64_t payload)
{
	uint8_t *bytes = malloc(8 + n); /* exactly, so that a sanitizer sees reads past the end */

	memset(p, 0, sizeof(*p));
	shf_put64(bytes, n);
	memcpy(bytes + 8, text, n);
	p->rc = shf_st_parse(&p->st, &p->arena, bytes, 8 + n, 8 + n + payload, "f", &p->err);
	free(bytes);
}

struct hostile {
	const char *text;
	size_t n;
	uint64_t payload;
	const char *says;       /* after the name of the file */
};
#define H(text, payload, says) { text, sizeof(text) - 1, payload, says }
#define E(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape \
	",\"data_offsets\":" offsets "}"
static const struct hostile hostiles[] = {
	/* The document */
	H("[]", 0, "header: is not a JSON object at byte 8"),
	H("\xef\xbb\xbf{}", 0, "header: not a JSON value at byte 8"),
	H("{}\0", 0, "header: bytes after the end at byte 10"),
	H("{}{}", 0, "header: bytes after the end at byte 10"),
	H("{}  x", 0, "header: bytes after the end at byte 12"),
	H("{\"a\"", 0, "header: unexpected end at byte 12"),
	H("{]", 0, "header: unbalanced bracket at byte 9"),
	H("{\"a\":1}", 0, "tensor \"a\": entry is not an object at byte 13"),
	H("{\"a\":null}", 0, "tensor \"a\": entry is not an object at byte 13"),
	H("{\"a\":[\"F32\",[2],[0,8]]}", 8, "tensor \"a\": entry is not an object at byte 13"),
	H("{\"a\":\"b\"}", 0, "tensor \"a\": entry is not an object at byte 13"),
	H("{\"\xff\":{}}", 0, "header: bad UTF-8 at byte 10"),
	H("{\"\\ud800\":{}}", 0, "header: lone surrogate at byte 10"),
	/* Names */
	H("{" E("a\\u0001", "U8", "[1]", "[0,1]") "," E("a\\\\u0001", "U8", "[1]", "[1,2]") "}", 2,
	  "tensor \"a\\u0001\" twice, at bytes 9 and 67"),
	/* Doubles */
	H("{" E("a", "U8", "[1]", "[0,1]") "," E("a", "U8", "[1]", "[1,2]") "}", 2,
	  "tensor \"a\" twice, at bytes 9 and 61"),
	H("{" E("a", "U8", "[1]", "[0,1]") "," E("\\u0061", "U8", "[1]", "[1,2]") "}", 2,
	  "tensor \"a\" twice, at bytes 9 and 61"),
	H("{" E("a", "U8", "[0]", "[0,0]") "," E("a", "U8", "[0]", "[0,0]") "}", 0,
	  "tensor \"a\" twice, at bytes 9 and 61"),
	H("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "header: __metadata__ twice at byte 27"),
	H("{\"__metadata__\":{},\"__metadat\\u0061__\":{}}", 0,
	  "header: __metadata__ twice at byte 27"),
	H("{\"__metadata__\":{\"a\":\"b\",\"c\":\"d\",\"a\":\"b\"}}", 0,
	  "header: key \"a\" twice in __metadata__ that ends at byte 48"),
	H("{\"__metadata__\":{\"a\":\"b\",\"\\u0061\":\"b\"}}", 0,
	  "header: key \"a\" twice in __metadata__ that ends at byte 45"),
	H("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	  "tensor \"a\": the same field twice at byte 27"),
	H("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	  "tensor \"a\": the same field twice at byte 39"),
	/* Metadata */
	H("{\"__metadata__\":[]}", 0, "header: __metadata__ is not an object at byte 24"),
	H("{\"__metadata__\":{\"a\":1}}", 0,
	  "header: value in __metadata__ that is not a string at byte 29"),
	H("{\"__metadata__\":{\"a\":null}}", 0,
	  "header: value in __metadata__ that is not a string at byte 29"),
	H("{\"__metadata__\":{\"a\":{}}}", 0,
	  "header: value in __metadata__ that is not a string at byte 29"),
	H("{\"__metadata__\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	  "header: value in __metadata__ that is not a string at byte 46"),
	/* Fields */
	H("{\"a\":{}}", 0, "tensor \"a\": no dtype before the end of the entry at byte 14"),
	H("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	  "tensor \"a\": no dtype before the end of the entry at byte 46"),
	H("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1,
	  "tensor \"a\": no shape before the end of the entry at byte 47"),
	H("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1,
	  "tensor \"a\": no data_offsets before the end of the entry at byte 38"),
	H("{\"a\":{\"Dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	  "tensor \"a\": no dtype before the end of the entry at byte 59"),
	/* dtype */
	H("{" E("a", "F128", "[1]", "[0,16]") "}", 16,
	  "tensor \"a\": unknown dtype \"F128\" at byte 22"),
	H("{" E("a", "f32", "[1]", "[0,4]") "}", 4,
	  "tensor \"a\": unknown dtype \"f32\" at byte 22"),
	H("{" E("a", "F32 ", "[1]", "[0,4]") "}", 4,
	  "tensor \"a\": unknown dtype \"F32 \" at byte 22"),
	H("{" E("a", "F32\\u0000", "[1]", "[0,4]") "}", 4,
	  "tensor \"a\": unknown dtype \"F32\" at byte 22"),
	H("{" E("a", "C128", "[1]", "[0,16]") "}", 16,
	  "tensor \"a\": unknown dtype \"C128\" at byte 22"),
	H("{" E("a", "", "[1]", "[0,1]") "}", 1, "tensor \"a\": unknown dtype \"\" at byte 22"),
	H("{\"a\":{\"dtype\":{\"F32\":null},\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
	  "tensor \"a\": dtype is not a string at byte 22"),
	H("{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	  "tensor \"a\": dtype is not a string at byte 22"),
	/* shape */
	H("{" E("a", "U8", "1", "[0,1]") "}", 1, "tensor \"a\": shape is not an array at byte 35"),
	H("{" E("a", "U8", "[-1]", "[0,1]") "}", 1,
	  "tensor \"a\": dimension that is not an integer of 63 bits at byte 36"),
	H("{" E("a", "U8", "[1.0]", "[0,1]") "}", 1,
	  "tensor \"a\": dimension that is not an integer of 63 bits at byte 36"),
	H("{" E("a", "U8", "[1e0]", "[0,1]") "}", 1,
	  "tensor \"a\": dimension that is not an integer of 63 bits at byte 36"),
	H("{" E("a", "U8", "[-0]", "[0,0]") "}", 0,
	  "tensor \"a\": dimension that is not an integer of 63 bits at byte 36"),
	H("{" E("a", "U8", "[01]", "[0,1]") "}", 1, "header: leading zero at byte 36"),
	H("{" E("a", "U8", "[\"1\"]", "[0,1]") "}", 1,
	  "tensor \"a\": dimension that is not an integer of 63 bits at byte 36"),
	H("{" E("a", "U8", "[[1]]", "[0,1]") "}", 1,
	  "tensor \"a\": dimension that is not an integer of 63 bits at byte 36"),
	H("{" E("a", "U8", "[null]", "[0,1]") "}", 1,
	  "tensor \"a\": dimension that is not an integer of 63 bits at byte 36"),
	H("{" E("a", "U8", "[9223372036854775808]", "[0,1]") "}", 1,
	  "tensor \"a\": dimension that is not an integer of 63 bits at byte 36"),
	H("{" E("a", "U8", "[0,18446744073709551616]", "[0,0]") "}", 0,
	  "tensor \"a\": dimension that is not an integer of 63 bits at byte 38"),
	H("{" E("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0,
	  "tensor \"a\": the product of the dimensions overflows at byte 47"),
	H("{" E("a", "U8", "[0,4611686018427387904,4611686018427387904]", "[0,0]") "}", 0,
	  "tensor \"a\": the product of the dimensions overflows at byte 58"),
	H("{" E("a", "U8", "[4611686018427387904,4611686018427387904,0]", "[0,0]") "}", 0,
	  "tensor \"a\": the product of the dimensions overflows at byte 56"),
	H("{" E("a", "F64", "[4611686018427387904]", "[0,0]") "}", 0,
	  "tensor \"a\": its size overflows at byte 78"),
	/* Sub-byte items */
	H("{" E("a", "F4", "[3]", "[0,2]") "}", 2,
	  "tensor \"a\": items that do not fill whole bytes at byte 59"),
	H("{" E("a", "F4", "[]", "[0,1]") "}", 1,
	  "tensor \"a\": items that do not fill whole bytes at byte 58"),
	H("{" E("a", "F4", "[3]", "[0,1]") "}", 1,
	  "tensor \"a\": items that do not fill whole bytes at byte 59"),
	H("{" E("a", "F6_E2M3", "[2]", "[0,2]") "}", 2,
	  "tensor \"a\": items that do not fill whole bytes at byte 64"),
	H("{" E("a", "F6_E3M2", "[5]", "[0,4]") "}", 4,
	  "tensor \"a\": items that do not fill whole bytes at byte 64"),
	/* data_offsets */
	H("{" E("a", "U8", "[1]", "[0]") "}", 1,
	  "tensor \"a\": data_offsets are not two integers of 64 bits at byte 56"),
	H("{" E("a", "U8", "[1]", "[]") "}", 1,
	  "tensor \"a\": data_offsets are not two integers of 64 bits at byte 55"),
	H("{" E("a", "U8", "[1]", "[0,1,2]") "}", 1,
	  "tensor \"a\": data_offsets are not two integers of 64 bits at byte 59"),
	H("{" E("a", "U8", "[1]", "{}") "}", 1,
	  "tensor \"a\": data_offsets are not two integers of 64 bits at byte 54"),
	H("{" E("a", "U8", "[1]", "[0,1.0]") "}", 1,
	  "tensor \"a\": data_offsets are not two integers of 64 bits at byte 57"),
	H("{" E("a", "U8", "[1]", "[-1,0]") "}", 1,
	  "tensor \"a\": data_offsets are not two integers of 64 bits at byte 55"),
	H("{" E("a", "U8", "[1]", "[0,18446744073709551616]") "}", 1,
	  "tensor \"a\": data_offsets are not two integers of 64 bits at byte 57"),
	H("{" E("a", "U8", "[1]", "[1,0]") "}", 1,
	  "tensor \"a\": data_offsets that run backwards at byte 58"),
	H("{" E("a", "U8", "[2]", "[0,2]") "}", 1,
	  "tensor \"a\": data_offsets beyond the end of the file at byte 58"),
	H("{" E("a", "U8", "[1]", "[18446744073709551614,18446744073709551615]") "}", 1,
	  "tensor \"a\": data_offsets beyond the end of the file at byte 96"),
	H("{" E("a", "U8", "[2]", "[0,1]") "}", 1,
	  "tensor \"a\": 1 bytes by data_offsets, 2 by dtype and shape, at byte 9"),
	H("{" E("a", "F32", "[1]", "[0,1]") "}", 1,
	  "tensor \"a\": 1 bytes by data_offsets, 4 by dtype and shape, at byte 9"),
	H("{" E("a", "F32", "[]", "[0,8]") "}", 8,
	  "tensor \"a\": 8 bytes by data_offsets, 4 by dtype and shape, at byte 9"),
	H("{" E("a", "U8", "[0]", "[0,1]") "}", 1,
	  "tensor \"a\": 1 bytes by data_offsets, 0 by dtype and shape, at byte 9"),
	/* The tiling */
	H("{}", 1, "1 bytes after the last tensor, from byte 0 of the data"),
	H("{" E("a", "U8", "[1]", "[0,1]") "}", 2,
	  "1 bytes after the last tensor, from byte 1 of the data"),
	H("{" E("a", "U8", "[1]", "[1,2]") "}", 2,
	  "hole at byte 0 of the data, before tensor \"a\" (named at byte 9)"),
	H("{" E("a", "U8", "[1]", "[0,1]") "," E("b", "U8", "[1]", "[2,3]") "}", 3,
	  "hole at byte 1 of the data, before tensor \"b\" (named at byte 61)"),
	H("{" E("a", "U8", "[2]", "[0,2]") "," E("b", "U8", "[2]", "[1,3]") "}", 3,
	  "tensor \"b\" (named at byte 61) overlaps \"a\" at byte 1 of the data"),
	H("{" E("a", "U8", "[2]", "[0,2]") "," E("b", "U8", "[2]", "[0,2]") "}", 2,
	  "tensor \"b\" (named at byte 61) overlaps \"a\" at byte 0 of the data"),
	H("{" E("a", "U8", "[4]", "[0,4]") "," E("b", "U8", "[1]", "[1,2]") "}", 4,
	  "tensor \"b\" (named at byte 61) overlaps \"a\" at byte 1 of the data"),
	H("{" E("a", "U8", "[4]", "[0,4]") "," E("b", "U8", "[0]", "[1,1]") "}", 4,
	  "tensor \"b\" (named at byte 61) overlaps \"a\" at byte 1 of the data"),
	H("{" E("a", "U8", "[1]", "[0,1]") "," E("b", "U8", "[0]", "[2,2]") "}", 2,
	  "hole at byte 1 of the data, before tensor \"b\" (named at byte 61)"),
	H("{" E("b", "U8", "[0]", "[1,1]") "}", 1,
	  "hole at byte 0 of the data, before tensor \"b\" (named at byte 9)"),
};

TEST(hostile_headers_are_refused_with_a_sentence)
{
	size_t n = sizeof(hostiles) / sizeof(hostiles[0]);

	CHECK(n >= 60);
	for (size_t i = 0; i < n; i++) {
		struct parsed p;

		parse(&p, hostiles[i].text, hostiles[i].n, hostiles[i].payload);
		if (p.rc != SHEAF_EFORMAT)
			print_error("%s\n  gives %d: %s\n", hostiles[i].text, p.rc, p.err.msg);
		CHECK_INT(p.rc, SHEAF_EFORMAT);
		CHECK(strncmp(p.err.msg, "f: ", 3) == 0);
		CHECK_STR(p.err.msg + 3, hostiles[i].says);
		CHECK(p.st.tensors == NULL);
		shf_arena_release(&p.arena);
	}
}

static const struct hostile sound[] = {         /* says: "name dtype ndim off bytes;" each */
	H("{}", 0, ""),
	H("{}     ", 0, ""),
	H("{ \n\t}", 0, ""),
	H("{\"__metadata__\":{}}", 0, ""),
	H("{\"__metadata__\":{\"format\":\"pt\",\"\":\"\",\"a\\u0000\":\"x\\u0000\"}}", 0, ""),
	H("{" E("a", "U8", "[]", "[0,1]") "}", 1, "a U8 0 0 1;"),
	H("{" E("a", "F64", "[1]", "[1,9]") "," E("b", "U8", "[1]", "[0,1]") "}", 9,
	  "b U8 1 0 1;a F64 1 1 8;"),
	H("{" E("a", "U8", "[0]", "[0,0]") "}", 0, "a U8 1 0 0;"),
	H("{" E("z", "U8", "[0]", "[0,0]") "," E("b", "U8", "[2]", "[0,2]") ","
	  E("y", "U8", "[0]", "[2,2]") "," E("c", "U8", "[0]", "[2,2]") "}", 2,
	  "b U8 1 0 2;z U8 1 0 0;c U8 1 2 0;y U8 1 2 0;"),
	H("{" E("a", "F4", "[2,3]", "[0,3]") "}", 3, "a F4 2 0 3;"),
	H("{" E("a", "F6_E2M3", "[4]", "[0,3]") "}", 3, "a F6_E2M3 1 0 3;"),
	H("{" E("a", "U8", "[0,9223372036854775807]", "[0,0]") "}", 0, "a U8 2 0 0;"),
	H("{" E("a", "U8", "[1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "a U8 8 0 1;"),
	H("{" E("a", "U8", "[1,1,1,1,1,1,1,1,3]", "[0,3]") "}", 3, "a U8 9 0 3;"),
	H("{\"a\":{\"data_offsets\":[0,1],\"shape\":[1],\"dtype\":\"U8\"},\"__metadata__\":{}}", 1,
	  "a U8 1 0 1;"),
	H("{" E("\\u00e9/ \\\"", "BOOL", "[1]", "[0,1]") "}", 1, "\xc3\xa9/ \" BOOL 1 0 1;"),
};

TEST(sound_headers_are_read)
{
	for (size_t i = 0; i < sizeof(sound) / sizeof(sound[0]); i++) {
		struct shf_buf got = SHF_BUF_INIT;
		struct parsed p;

		parse(&p, sound[i].text, sound[i].n, sound[i].payload);
		CHECK_RC(p.rc, 0, &p.err);
		for (size_t k = 0; k < p.st.n; k++)
			shf_buf_addf(&got, "%s %s %d %llu %llu;", p.st.tensors[k].name,
				     shf_dtype(p.st.tensors[k].dtype)->name, p.st.tensors[k].ndim,
				     (unsigned long long)p.st.tensors[k].off,
				     (unsigned long long)p.st.tensors[k].bytes);
		shf_buf_u8(&got, 0);
		CHECK_STR((char *)got.data, sound[i].says);
		CHECK_INT(p.st.payload_bytes, sound[i].payload);
		CHECK_INT(p.st.header_bytes, 8 + sound[i].n);
		CHECK((p.st.format != NULL) == (strstr(sound[i].text, "format") != NULL));
		shf_buf_release(&got);
		shf_arena_release(&p.arena);
	}
}

/* Other programs write any name; what is shown of it has no control characters. */
TEST(any_name_is_read_and_safe_to_show)
{
	static const struct { const char *in, *out; } names[] = {
		{ "", "" }, { "a\\u0000b", "a\\u0000b" }, { "\x7f", "\\u007f" },
		{ "a\\nb\\u001b[31m", "a\\u000ab\\u001b[31m" },
		{ "\xc2\x9b\xc2\xa0", "\\u009b\xc2\xa0" }, { "a\\\\b", "a\\b" },
	};
	char text[5400], name[5000];
	struct parsed p;

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		snprintf(text, sizeof(text), "{" E("%s", "U8", "[1]", "[0,1]") "}", names[i].in);
		parse(&p, text, strlen(text), 1);
		CHECK_RC(p.rc, 0, &p.err);
		CHECK_STR(p.st.tensors[0].name, names[i].out);
		shf_arena_release(&p.arena);
	}
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	snprintf(text, sizeof(text), "{" E("%s", "U8", "[1]", "[0,1]") "}", name);
	parse(&p, text, strlen(text), 1);
	CHECK_RC(p.rc, 0, &p.err);
	CHECK_STR(p.st.tensors[0].name, name);
	shf_arena_release(&p.arena);
}

/* As deep as the reference library reads: 125 brackets in a member of an entry. */
TEST(members_that_nobody_knows_are_skipped_however_deep_they_are)
{
	char text[400], deep[300];
	struct parsed p;

	for (int n = 0; n <= 126; n++) {
		memset(deep, '[', (size_t)n);
		memset(deep + n, ']', (size_t)n);
		snprintf(deep + 2 * n, 3, "%s", n ? "" : "1");
		snprintf(text, sizeof(text), " {\"a\":{\"x\":%s,\"dtype\":\"U8\",\"shape\":[1],"
		         "\"data_offsets\":[0,1]}}\r\n\t ", deep);
		parse(&p, text, strlen(text), 1);
		CHECK_RC(p.rc, n < 126 ? 0 : SHEAF_EFORMAT, &p.err);
		CHECK(p.rc == 0 || strstr(p.err.msg, "nested deeper than 127"));
		shf_arena_release(&p.arena);
	}
	parse(&p, "{\"__metadata__\":null}", 21, 0);
	CHECK_RC(p.rc, 0, &p.err);
	shf_arena_release(&p.arena);
}

TEST(more_dimensions_than_eight_are_listed_without_shape)
{
	struct parsed p;

	parse(&p, sound[13].text, sound[13].n, 3);
	CHECK_RC(p.rc, 0, &p.err);
	CHECK_INT(p.st.tensors[0].ndim, 9);
	for (int d = 0; d < SHEAF_DIMS_MAX; d++)
		CHECK_INT(p.st.tensors[0].shape[d], 0);
	shf_arena_release(&p.arena);
}

TEST(header_length_is_checked_first)
{
	struct sheaf_error err;
	uint8_t first[8];
	uint64_t got = 0;

	shf_put64(first, SHF_ST_HEADER_MAX);
	CHECK_INT(shf_st_header_bytes(&got, first, 8 + SHF_ST_HEADER_MAX, "f", &err), 0);
	CHECK_INT(got, 8 + SHF_ST_HEADER_MAX);
	CHECK_INT(shf_st_header_bytes(&got, first, 7 + SHF_ST_HEADER_MAX, "f", &err),
		  SHEAF_EFORMAT);
	shf_put64(first, SHF_ST_HEADER_MAX + 1);
	CHECK_INT(shf_st_header_bytes(&got, first, UINT64_MAX, "f", &err), SHEAF_EFORMAT);
	shf_put64(first, UINT64_MAX);
	CHECK_INT(shf_st_header_bytes(&got, first, UINT64_MAX, "f", &err), SHEAF_EFORMAT);
	CHECK_INT(shf_st_header_bytes(&got, first, 7, "f", &err), SHEAF_EFORMAT);
	for (uint64_t n = 0; n < 2; n++) {
		shf_put64(first, n);
		CHECK_INT(shf_st_header_bytes(&got, first, 100, "f", &err), SHEAF_EFORMAT);
	}
	CHECK_INT(shf_st_header_bytes(&got, first, 100, "f", NULL), SHEAF_EFORMAT);
}

/* Tensors that tile, in order, with names that need escapes. */
static size_t random_tensors(struct shf_st_tensor *t, size_t max, char (*names)[32], uint64_t *seed)
{
	static const char *const odd[] = { "", "\"", "\\", "\xc3\xa9", "/", ".", " " };
	size_t n = rng_next(seed) % (max + 1);
	uint64_t pos = 0;

	for (size_t i = 0; i < n; i++) {
		uint64_t items = 1;

		snprintf(names[i], sizeof(names[i]), "w%s%zu%s", odd[rng_next(seed) % 7], i,
			 odd[rng_next(seed) % 7]);
		memset(&t[i], 0, sizeof(t[i]));
		t[i].name = names[i];
		t[i].dtype = (int32_t)(1 + rng_next(seed) % 22);
		t[i].ndim = (int32_t)(rng_next(seed) % (SHEAF_DIMS_MAX + 1));
		for (int32_t d = 0; d < t[i].ndim; d++) {
			t[i].shape[d] = (int64_t)(rng_next(seed) % 4);
			items *= (uint64_t)t[i].shape[d];
		}
		if (!shf_dtype_bytes(&t[i].bytes, t[i].dtype, items)) {
			t[i].dtype = SHEAF_I16;
			shf_dtype_bytes(&t[i].bytes, t[i].dtype, items);
		}
		t[i].off = pos;
		pos += t[i].bytes;
	}
	return n;
}

TEST(reading_is_the_inverse_of_writing)
{
	static struct shf_st_tensor t[64];
	static char names[64][32];
	uint64_t seed = 11;

	for (int round = 0; round < 500; round++) {
		size_t n = random_tensors(t, 64, names, &seed);
		uint64_t payload = n ? t[n - 1].off + t[n - 1].bytes : 0, bound = 0;
		struct shf_arena arena = { 0 };
		struct shf_buf b = SHF_BUF_INIT;
		struct shf_st st;
		struct sheaf_error err;
		size_t found = 0;

		shf_buf_adds(&b, "before");
		CHECK_RC(shf_st_write(&b, t, n, &err), 0, &err);
		CHECK_INT((b.len - 6) % 4096, 0);
		CHECK_RC(shf_st_parse(&st, &arena, b.data + 6, b.len - 6, b.len - 6 + payload, "f",
				      &err), 0, &err);
		CHECK_INT(st.n, n);
		CHECK_STR(st.format, "pt");
		for (size_t i = 0; i < n; i++) {
			bound += shf_st_entry_bound(&t[i]);
			for (size_t k = 0; k < n; k++)
				found += !strcmp(st.tensors[k].name, t[i].name) &&
					 !memcmp(&st.tensors[k].dtype, &t[i].dtype,
						 sizeof(t[i]) - sizeof(t[i].name));
		}
		CHECK_INT(found, n);
		CHECK(b.len - 6 <= 8 + 32 + bound + 4095);
		shf_arena_release(&arena);
		shf_buf_release(&b);
	}
}

TEST(every_truncation_and_every_length_is_refused)
{
	static struct shf_st_tensor t[64];
	static char names[64][32];
	uint64_t seed = 5, payload;
	struct shf_arena arena = { 0 };
	struct shf_buf b = SHF_BUF_INIT;
	struct shf_st st;
	struct sheaf_error err;
	size_t n = 0;

	while (n < 4)
		n = random_tensors(t, 8, names, &seed);
	payload = t[n - 1].off + t[n - 1].bytes;
	CHECK_RC(shf_st_write(&b, t, n, &err), 0, &err);
	for (size_t k = 0; k < b.len; k++)
		CHECK_INT(shf_st_parse(&st, &arena, b.data, k, b.len + payload, "f", &err),
			  SHEAF_EFORMAT);
	CHECK_INT(shf_st_parse(&st, &arena, b.data, b.len, b.len + payload + 1, "f", &err),
		  SHEAF_EFORMAT);
	if (payload)
		CHECK_INT(shf_st_parse(&st, &arena, b.data, b.len, b.len + payload - 1, "f", &err),
			  SHEAF_EFORMAT);
	shf_arena_release(&arena);
	shf_buf_release(&b);
}

TEST(the_header_of_a_known_tensor_is_these_bytes)
{
	static const char want[] =
		"{\"__metadata__\":{\"format\":\"pt\"},\"a\\\"b\":{\"dtype\":\"F32\","
		"\"shape\":[2,3],\"data_offsets\":[0,24]},\"c\":{\"dtype\":\"U8\",\"shape\":[],"
		"\"data_offsets\":[24,25]}}";
	static const struct shf_st_tensor t[] = {
		{ "a\"b", SHEAF_F32, 2, { 2, 3 }, 0, 24, NULL },
		{ "c", SHEAF_U8, 0, { 0 }, 24, 1, NULL },
	};
	struct shf_buf b = SHF_BUF_INIT;
	struct sheaf_error err;

	CHECK_RC(shf_st_write(&b, t, 2, &err), 0, &err);
	CHECK_INT(b.len, 4096);
	CHECK_INT(shf_get64(b.data), 4088);
	CHECK(!memcmp(b.data + 8, want, sizeof(want) - 1));
	for (size_t i = 8 + sizeof(want) - 1; i < b.len; i++)
		CHECK_INT(b.data[i], ' ');
	/* 46 fixed, 40 of offsets, 4 of the name, 3 of the dtype, "2,3" */
	CHECK_INT(shf_st_entry_bound(&t[0]), 46 + 40 + 4 + 3 + 3);
	CHECK_INT(shf_st_entry_bound(&t[1]), 46 + 40 + 1 + 2 + 0);
	shf_buf_release(&b);
}

/* Where a file ends follows from these, so they are the same for ever. */
TEST(the_bound_of_an_entry_is_this_number)
{
	static const struct { struct shf_st_tensor t; uint64_t more; } all[] = {
		{ { .name = "", .dtype = SHEAF_U8 }, 2 },
		{ { .name = " \x1f\x7f", .dtype = SHEAF_U8 }, 1 + 6 + 1 + 2 },
		{ { .name = "\\\"", .dtype = SHEAF_F8_E4M3FNUZ }, 4 + 11 },
		{ { .name = "a", .dtype = 99 }, 1 },
		{ { .name = "a", .dtype = SHEAF_U8, .ndim = 3, .shape = { 0, 9, 10 } }, 3 + 4 + 2 },
		{ { .name = "a", .dtype = SHEAF_U8, .ndim = 2, .shape = { 99, 100 } }, 3 + 5 + 1 },
		{ { .name = "a", .dtype = SHEAF_U8, .ndim = 1, .shape = { INT64_MAX } }, 3 + 19 },
		{ { .name = "a", .dtype = SHEAF_U8, .ndim = 8 }, 3 + 8 + 7 },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		CHECK_INT(shf_st_entry_bound(&all[i].t), 46 + 40 + all[i].more);
}

/* Names of all lengths about that of a page: none of them leaves a whole page of spaces. */
TEST(a_header_is_padded_to_its_page_and_no_further)
{
	static char names[4][1025];
	struct shf_st_tensor t[4] = { { .name = NULL } };
	int exact = 0;

	for (int i = 0; i < 4; i++) {
		memset(names[i], 'a' + i, 1000);
		t[i] = (struct shf_st_tensor){ .name = names[i], .dtype = SHEAF_U8, .ndim = 1 };
	}
	for (size_t n = 750; n < 900; n++) {
		struct shf_buf b = SHF_BUF_INIT;
		struct sheaf_error err;
		size_t text;

		names[3][n] = '\0';
		CHECK_RC(shf_st_write(&b, t, 4, &err), 0, &err);
		for (text = b.len; b.data[text - 1] == ' '; text--)
			;
		CHECK_INT(b.len, (text + 4095) / 4096 * 4096);
		CHECK_INT(shf_get64(b.data), b.len - 8);
		exact += text == b.len;
		names[3][n] = 'd';
		shf_buf_release(&b);
	}
	CHECK_INT(exact, 1);
}

TEST(a_header_that_could_not_be_read_is_not_written)
{
	static const struct shf_st_tensor bad[][2] = {
		{ { "a", SHEAF_U8, 1, { 1 }, 0, 1, NULL },
		  { "a", SHEAF_U8, 1, { 1 }, 1, 1, NULL } },
		{ { "a", SHEAF_U8, 1, { 1 }, 0, 1, NULL },
		  { "b", SHEAF_U8, 1, { 1 }, 2, 1, NULL } },
		{ { "a", SHEAF_U8, 1, { 1 }, 0, 1, NULL },
		  { "b", SHEAF_U8, 1, { 1 }, 0, 1, NULL } },
		{ { "a", SHEAF_U8, 1, { 1 }, 1, 1, NULL },
		  { "b", SHEAF_U8, 1, { 1 }, 2, 1, NULL } },
		{ { "a", SHEAF_U8, 1, { 1 }, 0, 1, NULL }, { "", SHEAF_U8, 1, { 1 }, 1, 1, NULL } },
		{ { "a", SHEAF_U8, 1, { 1 }, 0, 1, NULL },
		  { "b\n", SHEAF_U8, 1, { 1 }, 1, 1, NULL } },
		{ { "a", SHEAF_U8, 1, { 1 }, 0, 1, NULL }, { "b", 99, 1, { 1 }, 1, 1, NULL } },
		{ { "a", SHEAF_U8, 1, { 1 }, 0, 1, NULL },
		  { "b", SHEAF_U8, 9, { 1 }, 1, 1, NULL } },
		{ { "a", SHEAF_U8, 1, { 1 }, 0, 1, NULL },
		  { "b", SHEAF_U8, 1, { -1 }, 1, 1, NULL } },
		{ { "a", SHEAF_U8, 1, { 1 }, 0, 1, NULL },
		  { "b", SHEAF_U8, 1, { 2 }, 1, 1, NULL } },
		{ { "a", SHEAF_U8, 1, { 1 }, 0, 1, NULL },
		  { "b", SHEAF_F4, 1, { 3 }, 1, 1, NULL } },
	};
	static const char *const says[] = { "tensor \"a\" twice in one file",
		"tensor \"b\": at byte 2 of the data, want 1",
		"tensor \"b\": at byte 0 of the data, want 1",
		"tensor \"a\": at byte 1 of the data, want 0", "tensor name \"\" is not valid",
		"tensor name \"b?\" is not valid",
		"tensor \"b\": 1 bytes do not fit its dtype and shape",
		"tensor \"b\": 1 bytes do not fit its dtype and shape",
		"tensor \"b\": 1 bytes do not fit its dtype and shape",
		"tensor \"b\": 1 bytes do not fit its dtype and shape",
		"tensor \"b\": 1 bytes do not fit its dtype and shape" };
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct shf_buf b = SHF_BUF_INIT;

		CHECK_INT(shf_st_write(&b, bad[i], 2, &err), SHEAF_EINVAL);
		CHECK_STR(err.msg, says[i]);
		CHECK_INT(b.len, 0);
		shf_buf_release(&b);
	}
}

/* 200,000 names, the last one the first again: seconds if it were quadratic. */
TEST(doubles_among_many_names_are_found_quickly)
{
	struct shf_buf b = SHF_BUF_INIT;
	struct parsed p;

	shf_buf_adds(&b, "{");
	for (int i = 0; i <= 200000; i++)
		shf_buf_addf(&b,
			     "%s\"tensor.%d\":{\"dtype\":\"U8\",\"shape\":[0],"
			     "\"data_offsets\":[0,0]}",
			     i ? "," : "", i % 200000);
	shf_buf_adds(&b, "}");
	parse(&p, (char *)b.data, b.len, 0);
	CHECK_INT(p.rc, SHEAF_EFORMAT);
	CHECK(strstr(p.err.msg, "\"tensor.0\" twice, at bytes 9 and") != NULL);
	shf_arena_release(&p.arena);
	shf_buf_release(&b);
}

/* Random bytes changed in a sound header: never a crash, and what is taken still tiles. */
TEST(mutated_headers_are_refused_or_still_tile)
{
	static struct shf_st_tensor t[64];
	static char names[64][32];
	uint64_t seed = 3;

	for (int round = 0; round < 3000; round++) {
		size_t n = random_tensors(t, 5, names, &seed);
		uint64_t payload = n ? t[n - 1].off + t[n - 1].bytes : 0, sum = 0;
		struct shf_arena arena = { 0 };
		struct shf_buf b = SHF_BUF_INIT;
		struct shf_st st;
		struct sheaf_error err;

		CHECK_RC(shf_st_write(&b, t, n, &err), 0, &err);
		for (int k = 0; k < 3; k++)
			b.data[8 + rng_next(&seed) % 300] = (uint8_t)rng_next(&seed);
		if (shf_st_parse(&st, &arena, b.data, b.len, b.len + payload, "f", &err) == 0) {
			for (size_t i = 0; i < st.n; i++)
				sum += st.tensors[i].bytes;
			CHECK_INT(sum, payload);
		}
		shf_arena_release(&arena);
		shf_buf_release(&b);
	}
}
