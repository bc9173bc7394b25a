/* SPDX-License-Identifier: Apache-2.0 */
/* Each allocation of each decoder and encoder of lib/format fails once: ENOMEM, nothing leaked,
 * nothing written. */
#include "t.h"
#include "deal_home.h"

#include <stdlib.h>

#include "crc64.h"
#include "index.h"
#include "json.h"
#include "manifest.h"
#include "memfail.h"
#include "safetensors.h"
#include "sums.h"

/* Runs what(arg) with its 1st, 2nd, 3rd ... allocation failing, until none is left to fail. */
static void starve(int (*what)(void *arg), void *arg)
{
	for (long nth = 1;; nth++) {
		bool fired;
		int rc;

		memfail_at(nth);
		rc = what(arg);
		fired = memfail_end();
		CHECK_INT(rc, fired ? SHEAF_ENOMEM : 0);
		CHECK(nth < 100000);
		if (!fired) {
			CHECK(nth > 1);
			return;
		}
	}
}

static struct shf_buf made;             /* what the decoder under test reads */

static int parse_header(void *arg)
{
	struct shf_arena arena = { 0 };
	struct sheaf_error err;
	struct shf_st st;
	int rc = shf_st_parse(&st, &arena, made.data, made.len, made.len + *(uint64_t *)arg, "f",
			      &err);

	CHECK(rc == 0 || strstr(err.msg, "memory"));
	shf_arena_release(&arena);
	return rc;
}

static int write_header(void *arg)
{
	static const struct shf_st_tensor t[] = {
		{ "a", SHEAF_F32, 2, { 2, 3 }, 0, 24, NULL },
		{ "b\"", SHEAF_U8, 0, { 0 }, 24, 1, NULL },
	};
	struct shf_buf b = SHF_BUF_INIT;
	struct sheaf_error err;
	int rc = shf_st_write(&b, t, 2, &err);

	(void)arg;
	shf_buf_release(&b);
	return rc;
}

TEST(headers_without_memory)
{
	uint64_t payload = 0;
	char name[32];

	starve(write_header, NULL);
	shf_buf_u64(&made, 0);
	shf_buf_adds(&made, "{\"__metadata__\":{\"format\":\"pt\",\"x\":\"y\"}");
	for (int i = 0; i < 40; i++, payload += 2) {
		snprintf(name, sizeof(name), "a long name \\u00e9 %d", i);
		shf_buf_addf(&made,
			     ",\"%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[%d,%d]}",
			     name, 2 * i, 2 * i + 2);
	}
	shf_buf_adds(&made, "}");
	shf_put64(made.data, made.len - 8);
	starve(parse_header, &payload);
	shf_buf_release(&made);
}

static int parse_index(void *arg)
{
	struct shf_arena arena = { 0 };
	struct sheaf_error err;
	struct shf_index ix;
	int rc = shf_index_parse(&ix, &arena, made.data, made.len, "f", &err);

	(void)arg;
	shf_arena_release(&arena);
	return rc;
}

static int write_index(void *arg)
{
	static const struct shf_index_entry e[] = { { "a", "f" }, { "b", "g" } };
	struct shf_buf b = SHF_BUF_INIT;
	int rc = shf_index_write(&b, e, 2, 12);

	(void)arg;
	shf_buf_release(&b);
	return rc;
}

TEST(indexes_without_memory)
{
	starve(write_index, NULL);
	shf_buf_adds(&made, "{\"metadata\":{\"x\":\"y\"},\"weight_map\":{\"a\":\"f\"");
	for (int i = 0; i < 40; i++)
		shf_buf_addf(&made, ",\"name %d\":\"file %d\"", i, i / 3);
	shf_buf_adds(&made, "}}");
	starve(parse_index, NULL);
	shf_buf_release(&made);
}

static int decode_manifest(void *arg)
{
	struct shf_arena arena = { 0 };
	struct sheaf_error err;
	struct shf_manifest m;
	int rc = shf_manifest_decode(&m, &arena, made.data, made.len, "f", &err);

	(void)arg;
	shf_arena_release(&arena);
	return rc;
}

static int encode_manifest(void *arg)
{
	struct shf_buf b = SHF_BUF_INIT;
	struct sheaf_error err;
	int rc = shf_manifest_encode(&b, arg, &err);

	shf_buf_release(&b);
	return rc;
}

TEST(manifests_without_memory)
{
	struct shf_mf_family family = { "model", ".", 1, 2, 3 };
	struct shf_mf_file file = { "model-1.safetensors", 5, 6 }, attached = { "a.json", 7, 8 };
	struct shf_mf_tied tied = { "model", "a", "b" };
	struct shf_mf_note note = { "k", "v" };
	struct shf_manifest m = {
		.session = "00112233445566778899aabbccddeeff",
		.run = "00112233445566778899aabbccddeeff", .created = "2026-01-31T12:00:00Z",
		.version = "v", .commit = "c", .compiler = "g", .config = "x", .mesh = "y",
		.file_bytes_max = 1, .ranks = 1, .families = &family, .families_n = 1,
		.files = &file, .files_n = 1, .attached = &attached, .attached_n = 1, .tied = &tied,
		.tied_n = 1, .notes = &note, .notes_n = 1, .sums = { "sheaf.sums", 9, 10 },
	};
	struct sheaf_error err;

	starve(encode_manifest, &m);
	CHECK_RC(shf_manifest_encode(&made, &m, &err), 0, &err);
	starve(decode_manifest, NULL);
	shf_buf_release(&made);
}

static int open_sums(void *arg)
{
	struct sheaf_error err;
	struct shf_sums s;

	return shf_sums_open(&s, made.data, made.len, *(uint64_t *)arg, "f", &err);
}

/* Equal keys alone take memory, and honest ones are never equal; so a table of none asks for
 * none, which is what a reader in trouble needs. */
TEST(a_table_of_sums_needs_no_memory)
{
	struct shf_sums_head h = { 0 };
	uint64_t crc;

	CHECK(shf_sums_layout(&h));
	CHECK(shf_buf_extend(&made, h.bytes) != NULL);
	shf_sums_put_head(made.data, &h);
	shf_put64(made.data + h.pages_off, shf_crc64(made.data, h.pages_off));
	crc = shf_crc64_more(shf_crc64(made.data, 128), made.data + 128, 8);
	memfail_at(1);
	CHECK_INT(open_sums(&crc), 0);
	CHECK(!memfail_end());
	shf_buf_release(&made);
}

static int read_text(void *arg)
{
	struct shf_json j;
	int rc;

	shf_json_init(&j, arg, strlen(arg));
	rc = shf_json_next(&j) == SHF_JSON_STRING ? 0 :
	     j.scratch.oom ? SHEAF_ENOMEM : SHEAF_EFORMAT;
	CHECK(rc == 0 || shf_json_next(&j) == SHF_JSON_ERROR);
	shf_json_release(&j);
	return rc;
}

TEST(text_without_memory)
{
	char text[600];

	memset(text, 'a', sizeof(text));
	text[0] = text[598] = '"';
	text[599] = 0;
	starve(read_text, text);
}
