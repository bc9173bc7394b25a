/* SPDX-License-Identifier: Apache-2.0 */
#include "rng.h"
#include "t.h"

#include <stdlib.h>

#include "crc64.h"
#include "manifest.h"

static struct shf_mf_family families[] = {
	{ "model", ".", 2, 3, 1000 }, { "optimizer", "optimizer", 1, 6, 4000 }, { "ema", "ema",
										 0, 0, 0 },
};
static struct shf_mf_file files[] = {
	{ "model-00001-of-00002.safetensors", 5096, 0x0123456789abcdef },
	{ "model-00002-of-00002.safetensors", 5000, 0 },
	{ "optimizer/optimizer-00001-of-00001.safetensors", 8096, UINT64_MAX },
};
static struct shf_mf_file attached[] = {
	{ "config.json", 712, 1 }, { "ema/ema.safetensors.index.json", 60, 2 },
	{ "model.safetensors.index.json", 200, 3 },
	{ "optimizer/optimizer.safetensors.index.json", 300, 4 },
};
static struct shf_mf_tied tied[] = { { "model", "lm_head.weight", "model.embed_tokens.weight" } };
static struct shf_mf_note notes[] = {
	{ "adam.step", "1000" }, { "odd", "a\"b\\c\n\x1f\x7f\xc3\xa9" }, { "void", "" },
};

static struct shf_mf_ema emas[] = {
	{ "ema", "", "0x1.ffcb923a29c78p-1", 2, 500 }, { "slow", "model", "0x0p+0", 1, 0 },
};

static struct shf_manifest example(void)
{
	return (struct shf_manifest){
		.step = 1000, .session = "00112233445566778899aabbccddeeff",
		.run = "ffeeddccbbaa99887766554433221100", .has_parent = true, .parent_step = 900,
		.parent_session = "0123456789abcdef0123456789abcdef",
		.created = "2026-01-31T12:00:00Z", .version = "0.1.0", .commit = "abcdef",
		.compiler = "gcc 12", .config = "c0ffee", .file_bytes_max = 5000000000, .ranks = 64,
		.mesh = "pp=4,dp=2,tp=8", .plan = 0xfedcba9876543210,
		.families = families, .families_n = 3, .files = files, .files_n = 3,
		.attached = attached, .attached_n = 4, .tied = tied, .tied_n = 1,
		.notes = notes, .notes_n = 3, .emas = emas, .emas_n = 2,
		.sums = { "sheaf.sums", 12345, 5 },
	};
}

static void check_text(const char *got, const char *want)
{
	CHECK((got == NULL) == (want == NULL));
	if (want)
		CHECK_STR(got, want);
}

static void check_files_equal(const struct shf_mf_file *a, const struct shf_mf_file *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		CHECK_STR(a[i].name, b[i].name);
		CHECK(a[i].bytes == b[i].bytes && a[i].crc == b[i].crc);
	}
}

static void check_equal(const struct shf_manifest *a, const struct shf_manifest *b)
{
	CHECK(a->step == b->step && a->has_parent == b->has_parent && a->plan == b->plan &&
	      a->parent_step == b->parent_step && a->no_dir_fsync == b->no_dir_fsync &&
	      a->file_bytes_max == b->file_bytes_max && a->ranks == b->ranks);
	CHECK_STR(a->session, b->session);
	CHECK_STR(a->run, b->run);
	CHECK_STR(a->parent_session, b->parent_session);
	CHECK_STR(a->parent_run, b->parent_run);
	CHECK_STR(a->created, b->created);
	CHECK_STR(a->version, b->version);
	CHECK_STR(a->commit, b->commit);
	CHECK_STR(a->compiler, b->compiler);
	check_text(a->config, b->config);
	check_text(a->mesh, b->mesh);
	CHECK(a->families_n == b->families_n && a->files_n == b->files_n &&
	      a->attached_n == b->attached_n && a->tied_n == b->tied_n && a->notes_n == b->notes_n);
	for (size_t i = 0; i < a->families_n; i++) {
		CHECK_STR(a->families[i].name, b->families[i].name);
		CHECK_STR(a->families[i].dir, b->families[i].dir);
		CHECK(a->families[i].files == b->families[i].files &&
		      a->families[i].tensors == b->families[i].tensors &&
		      a->families[i].bytes == b->families[i].bytes);
	}
	check_files_equal(a->files, b->files, a->files_n);
	check_files_equal(a->attached, b->attached, a->attached_n);
	check_files_equal(&a->sums, &b->sums, 1);
	for (size_t i = 0; i < a->tied_n; i++) {
		CHECK_STR(a->tied[i].family, b->tied[i].family);
		CHECK_STR(a->tied[i].name, b->tied[i].name);
		CHECK_STR(a->tied[i].to, b->tied[i].to);
	}
	for (size_t i = 0; i < a->notes_n; i++) {
		CHECK_STR(a->notes[i].key, b->notes[i].key);
		CHECK_STR(a->notes[i].value, b->notes[i].value);
	}
	CHECK_INT(a->emas_n, b->emas_n);
	for (size_t i = 0; i < a->emas_n; i++) {
		CHECK_STR(a->emas[i].name, b->emas[i].name);
		CHECK_STR(a->emas[i].of, b->emas[i].of);
		CHECK_STR(a->emas[i].coef, b->emas[i].coef);
		CHECK(a->emas[i].interval == b->emas[i].interval &&
		      a->emas[i].updates == b->emas[i].updates);
	}
}

static int decode(const void *bytes, size_t n, struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	uint8_t *copy = malloc(n ? n : 1);
	int rc;

	memcpy(copy, bytes, n);
	rc = shf_manifest_decode(&m, &arena, copy, n, "sheaf.json", err);
	free(copy);
	shf_arena_release(&arena);
	return rc;
}

static void check_round(const struct shf_manifest *m)
{
	struct shf_buf b = SHF_BUF_INIT;
	struct shf_arena arena = { 0 };
	struct shf_manifest got;
	struct sheaf_error err;

	shf_buf_adds(&b, "xyz");
	CHECK_RC(shf_manifest_encode(&b, m, &err), 0, &err);
	CHECK_RC(shf_manifest_decode(&got, &arena, b.data + 3, b.len - 3, "m", &err), 0, &err);
	check_equal(&got, m);
	shf_arena_release(&arena);
	shf_buf_release(&b);
}

TEST(decoding_is_the_inverse_of_encoding)
{
	struct shf_manifest m = example();

	check_round(&m);
	memcpy(m.parent_run, m.run, 33);
	m.no_dir_fsync = true;
	check_round(&m);
	m.has_parent = false;
	m.parent_step = 0;
	m.parent_session[0] = m.parent_run[0] = 0;
	m.config = m.mesh = NULL;
	m.step = INT64_MAX;
	m.file_bytes_max = UINT64_MAX;
	check_round(&m);
	m.families_n = m.files_n = m.attached_n = m.tied_n = m.notes_n = 0;
	m.families = NULL;
	m.step = 0;
	check_round(&m);
}

TEST(random_manifests_come_back)
{
	static struct shf_mf_file rfiles[300], rattached[100];
	static struct shf_mf_note rnotes[100];
	static char names[500][64];
	uint64_t seed = 23;

	for (int round = 0; round < 300; round++) {
		struct shf_manifest m = example();
		struct shf_mf_family f[2] = { { "model", ".", 0, rng_next(&seed), rng_next(&seed) },
					      { "z9", "z9", 0, rng_next(&seed), rng_next(&seed) } };
		size_t used = 0;

		f[0].files = rng_next(&seed) % 150;
		f[1].files = rng_next(&seed) % 150;
		m.step = (int64_t)(rng_next(&seed) >> 1);
		m.plan = rng_next(&seed);
		m.families = f;
		m.families_n = 2;
		m.files = rfiles;
		m.files_n = f[0].files + f[1].files;
		for (size_t i = 0; i < m.files_n; i++, used++) {
			snprintf(names[used], 64, "%sq-%zu.safetensors",
				 i < f[0].files ? "" : "z9/", i);
			rfiles[i] = (struct shf_mf_file){ names[used], rng_next(&seed),
				rng_next(&seed) };
		}
		m.attached = rattached;
		m.attached_n = rng_next(&seed) % 100;
		for (size_t i = 0; i < m.attached_n; i++, used++) {
			snprintf(names[used], 64, "file_%zu", i);
			rattached[i] = (struct shf_mf_file){ names[used], rng_next(&seed),
				rng_next(&seed) };
		}
		m.notes = rnotes;
		m.notes_n = rng_next(&seed) % 100;
		for (size_t i = 0; i < m.notes_n; i++, used++) {
			snprintf(names[used], 64, "note.%zu", i);
			rnotes[i] = (struct shf_mf_note){ names[used],
							 names[rng_next(&seed) % (used + 1)] };
		}
		check_round(&m);
	}
}

TEST(the_smallest_manifest_is_these_bytes)
{
	static const char want[] =
		"{\"sheaf\": 1,\n \"needs\": [],\n \"step\": 7,\n"
		" \"session\": \"00112233445566778899aabbccddeeff\",\n"
		" \"run\": \"ffeeddccbbaa99887766554433221100\",\n \"parent\": null,\n"
		" \"created\": \"2026-01-31T12:00:00Z\",\n"
		" \"writer\": {\"version\": \"0.1.0\", \"commit\": \"\", \"compiler\": \"gcc "
			"12\"},\n"
		" \"config\": null,\n \"flags\": [],\n \"page\": 4096,\n \"block\": 1048576,\n"
		" \"sum\": \"crc64nvme\",\n \"file_bytes_max\": 5000000000,\n \"ranks\": 1,\n"
		" \"plan\": \"0000000000000000\",\n \"families\": [\n"
		"  {\"name\": \"model\", \"dir\": \".\", \"files\": 1, \"tensors\": 2, "
			"\"bytes\": 3}],\n"
		" \"files\": [\n"
		"  {\"name\": \"model-00001-of-00001.safetensors\", \"bytes\": 4099, \"crc\": "
		"\"00000000000000ab\"}],\n \"attached\": [],\n \"tied\": [\n  [\"model\", \"a\", "
			"\"b\"]],\n"
		" \"notes\": {\n  \"k\": \"v\"},\n"
		" \"sums\": {\"name\": \"sheaf.sums\", \"bytes\": 136, \"crc\": "
			"\"0000000000000001\"}";
	struct shf_mf_family f = { "model", ".", 1, 2, 3 };
	struct shf_mf_file file = { "model-00001-of-00001.safetensors", 4099, 0xab };
	struct shf_mf_tied t = { "model", "a", "b" };
	struct shf_mf_note note = { "k", "v" };
	struct shf_manifest m = example();
	struct shf_buf b = SHF_BUF_INIT;
	struct sheaf_error err;
	char tail[64];

	m.step = 7;
	m.has_parent = false;
	m.commit = "";
	m.config = m.mesh = NULL;
	m.ranks = 1;
	m.plan = 0;
	m.families = &f;
	m.files = &file;
	m.tied = &t;
	m.notes = &note;
	m.families_n = m.files_n = m.tied_n = m.notes_n = 1;
	m.attached_n = m.emas_n = 0;
	m.sums = (struct shf_mf_file){ "sheaf.sums", 136, 1 };
	CHECK_RC(shf_manifest_encode(&b, &m, &err), 0, &err);
	CHECK_INT(b.len, sizeof(want) - 1 + 31);
	CHECK(!memcmp(b.data, want, sizeof(want) - 1));
	snprintf(tail, sizeof(tail), ",\n \"self\": \"%016llx\"}\n",
		 (unsigned long long)shf_crc64(want, sizeof(want) - 1));
	CHECK(!memcmp(b.data + sizeof(want) - 1, tail, 31));
	shf_buf_release(&b);
}

TEST(every_flipped_bit_is_refused)
{
	struct shf_manifest m = example();
	struct shf_buf b = SHF_BUF_INIT;
	struct sheaf_error err;

	CHECK_RC(shf_manifest_encode(&b, &m, &err), 0, &err);
	for (size_t bit = 0; bit < b.len * 8; bit++) {
		b.data[bit / 8] ^= (uint8_t)(1U << bit % 8);
		CHECK_INT(decode(b.data, b.len, &err), SHEAF_ECORRUPT);
		b.data[bit / 8] ^= (uint8_t)(1U << bit % 8);
	}
	CHECK_INT(decode(b.data, b.len, &err), 0);
	shf_buf_release(&b);
}

TEST(every_truncation_and_trailing_byte_is_refused)
{
	struct shf_manifest m = example();
	struct shf_buf b = SHF_BUF_INIT;
	struct sheaf_error err;

	CHECK_RC(shf_manifest_encode(&b, &m, &err), 0, &err);
	for (size_t n = 0; n < b.len; n++)
		CHECK_INT(decode(b.data, n, &err), SHEAF_ECORRUPT);
	for (int c = 0; c < 256; c++) {
		shf_buf_u8(&b, (uint8_t)c);
		CHECK_INT(decode(b.data, b.len, &err), SHEAF_ECORRUPT);
		b.len--;
	}
	shf_buf_release(&b);
}

/* The example with one text replaced by another, sealed again. */
static int decode_changed(const char *from, const char *to, struct sheaf_error *err)
{
	struct shf_manifest m = example();
	struct shf_buf b = SHF_BUF_INIT, c = SHF_BUF_INIT;
	char *at;
	int rc;

	CHECK_RC(shf_manifest_encode(&b, &m, err), 0, err);
	b.len -= 31;
	b.data[b.len] = 0;
	at = strstr((char *)b.data, from);
	if (!at)
		print_error("not in the example: %s\n", from);
	CHECK(at != NULL);
	shf_buf_add(&c, b.data, (size_t)(at - (char *)b.data));
	shf_buf_adds(&c, to);
	shf_buf_adds(&c, at + strlen(from));
	shf_buf_addf(&c, ",\n \"self\": \"%016llx\"}\n",
		     (unsigned long long)shf_crc64(c.data, c.len));
	rc = decode(c.data, c.len, err);
	shf_buf_release(&b);
	shf_buf_release(&c);
	return rc;
}

TEST(unknown_members_are_ignored)
{
	static const char *const cases[][2] = {
		{ "\"step\": 1000", "\"x\": [{\"y\": 1.5e3}], \"x\": 2, \"step\": 1000" },
		{ "{\"step\": 900", "{\"x\": null, \"step\": 900" },
		{ "{\"name\": \"model\",", "{\"x\": {}, \"name\": \"model\"," },
		{ "\"crc\": \"0123456789abcdef\"",
		 "\"crc\": \"0123456789abcdef\", \"etag\": \"x\"" },
		{ "\"flags\": []", "\"flags\": [\"later\", \"no-dir-fsync\"]" },
		{ "\"sums\":", "\"tail\": [{\"name\": \"x\"}], \"sums\":" },
		{ "{\"sheaf\": 1,\n \"needs\": [],", "{\"needs\":[],\"sheaf\":1," },
		{ "2026-01-31T12:00:00Z", "2999-99-90T09:09:99Z" },     /* by its form alone */
		{ "model-00002-of-00002.safetensors", ".safetensors" },
	};
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		CHECK_RC(decode_changed(cases[i][0], cases[i][1], &err), 0, &err);
}

TEST(newer_formats_and_unknown_needs_are_refused)
{
	static const char *const cases[][3] = {
		{ "\"sheaf\": 1", "\"sheaf\": 2",
		  "format 2 was written by a newer sheaf; use that version" },
		{ "\"sheaf\": 1,\n \"needs\": [],", "\"sheaf\": 2,\n \"needs\": {},",
		  "format 2 was written by a newer sheaf; use that version" },
		{ "\"needs\": []", "\"needs\": [\"zstd\"]",
		  "needs \"zstd\", which this version of sheaf does not know; use a newer sheaf" },
		{ "\"needs\": []", "\"needs\": [\"a\", \"b\"], \"step\": {}",
		  "needs \"a\", which this version of sheaf does not know; use a newer sheaf" },
		{ "\"page\": 4096", "\"page\": 8192",
		  "page 8192, but this version of sheaf reads 4096; use a newer sheaf" },
		{ "\"block\": 1048576", "\"block\": 4096",
		  "block 4096, but this version of sheaf reads 1048576; use a newer sheaf" },
		{ "\"crc64nvme\"", "\"sha256\"",
		  "checksum \"sha256\", but this version of sheaf knows crc64nvme; use a newer "
		  "sheaf" },
	};
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		CHECK_RC(decode_changed(cases[i][0], cases[i][1], &err), SHEAF_EFORMAT, &err);
		CHECK(!strncmp(err.msg, "sheaf.json: ", 12));
		CHECK_STR(err.msg + 12, cases[i][2]);
	}
}

static const char *const lies[][3] = {          /* sealed, so that only the meaning is wrong */
	/* EFORMAT: see the test */
	{ "\"sheaf\": 1", "\"sheaf\": 0",
	  "sheaf 0, but this version of sheaf reads 1; use a newer sheaf" },
	{ "\"sheaf\": 1", "\"sheaf\": \"1\"", "member \"sheaf\" is not a whole number at byte 10" },
	{ "\"sheaf\": 1,", "",
	  "member \"sheaf\" is missing from the object that ends at byte 1837" },
	{ "\"sheaf\": 1", "\"sheaf\": 1, \"sheaf\": 1",
	  "member \"sheaf\" is there twice at byte 13" },
	{ "\"needs\": [],", "",
	  "member \"needs\" is missing from the object that ends at byte 1836" },
	{ "\"needs\": []", "\"needs\": {}", "member \"needs\" is not an array at byte 23" },
	{ "\"needs\": []", "\"needs\": [1]",
	  "member \"needs\" holds something that is not a string at byte 24" },
	{ "\"step\": 1000", "\"step\": -1",
	  "member \"step\" is not a whole number in range at byte 36" },
	{ "\"step\": 1000", "\"step\": 1e3",
	  "member \"step\" is not a whole number in range at byte 36" },
	{ "\"step\": 1000", "\"step\": 9223372036854775808",
	  "member \"step\" is not a whole number in range at byte 36" },
	{ "\"step\": 1000", "\"step\": 1000, \"step\": 1000",
	  "member \"step\" is there twice at byte 42" },
	{ "\"step\": 1000", "\"stepp\": 1000",
	  "member \"step\" is missing from the object that ends at byte 1849" },
	{ "\"00112233445566778899aabbccddeeff\"", "\"00112233445566778899aabbccddeef\"",
	  "session or run is not 32 hex digits \"\"" },
	{ "\"00112233445566778899aabbccddeeff\"", "\"00112233445566778899aabbccddeeff0\"",
	  "member \"session\" is too long at byte 54" },
	{ "\"00112233445566778899aabbccddeeff\"", "\"00112233445566778899AABBCCDDEEFF\"",
	  "session or run is not 32 hex digits \"\"" },
	{ "\"00112233445566778899aabbccddeeff\"", "\"0011223344556677\\u00009aabbccddeeff\"",
	  "member \"session\" is too long at byte 54" },
	{ "\"00112233445566778899aabbccddeeff\"", "\"../../../../../../../../../../etcx\"",
	  "member \"session\" is too long at byte 54" },
	{ "\"parent\": {", "\"parent\": 5, \"was\": {",
	  "member \"parent\" is not an object at byte 145" },
	{ "{\"step\": 900, ", "{",
	  "member \"step\" is missing from the object that ends at byte 191" },
	{ "{\"step\": 900, ", "{\"step\": -900, ",
	  "member \"step\" is not a whole number in range at byte 154" },
	{ "2026-01-31T12:00:00Z", "2026-01-31 12:00:00Z",
	  "created is not a time like \"2026-01-31T12:00:00Z\"" },
	{ "2026-01-31T12:00:00Z", "2026-01-31T12:00:00ZZ",
	  "created is not a time like \"2026-01-31T12:00:00Z\"" },
	{ "2026-01-31T12:00:00Z", "", "created is not a time like \"2026-01-31T12:00:00Z\"" },
	{ "\"version\": \"0.1.0\", ", "",
	  "member \"version\" is missing from the object that ends at byte 295" },
	{ "\"version\": \"0.1.0\"", "\"version\": \"\\u0000\"",
	  "member \"version\" holds a NUL at byte 266" },
	{ "\"writer\": {", "\"writer\": [], \"w\": {",
	  "member \"writer\" is not an object at byte 254" },
	{ "\"config\": \"c0ffee\"", "\"config\": 5", "member \"config\" is not a string at byte "
		"329" },
	{ "\"config\": \"c0ffee\",", "",
	  "member \"config\" is missing from the object that ends at byte 1829" },
	{ "\"flags\": []", "\"flags\": [1]",
	  "member \"flags\" holds something that is not a string at byte 350" },
	{ "\"flags\": []", "\"flags\": null", "member \"flags\" is not an array at byte 349" },
	{ "\"page\": 4096", "\"page\": \"4096\"",
	  "member \"page\" is not a whole number at byte 362" },
	{ "\"sum\": \"crc64nvme\"", "\"sum\": 1", "member \"sum\" is not a string at byte 395" },
	{ "\"file_bytes_max\": 5000000000", "\"file_bytes_max\": 0",
	  "file_bytes_max or ranks is 0 \"\"" },
	{ "\"ranks\": 64", "\"ranks\": 0", "file_bytes_max or ranks is 0 \"\"" },
	{ "\"mesh\": \"pp=4,dp=2,tp=8\"", "\"mesh\": [1]",
	  "member \"mesh\" is not a string at byte 462" },
	{ "\"fedcba9876543210\"", "\"FEDCBA9876543210\"",
	  "member \"plan\" is not 16 lower-case hex digits at byte 489" },
	{ "\"fedcba9876543210\"", "\"fedcba987654321\"",
	  "member \"plan\" is not 16 lower-case hex digits at byte 489" },
	{ "\"name\": \"model\", \"dir\": \".\"", "\"name\": \"Model\", \"dir\": \".\"",
	  "invalid family \"Model\"" },
	{ "\"name\": \"model\", \"dir\": \".\"", "\"name\": \"model\", \"dir\": \"..\"",
	  "family in a directory of another name: \"..\"" },
	{ "\"name\": \"model\", \"dir\": \".\"", "\"name\": \"model\", \"dir\": \"model\"",
	  "family in a directory of another name: \"model\"" },
	{ "\"dir\": \"optimizer\"", "\"dir\": \"../optimizer\"",
	  "family in a directory of another name: \"../optimizer\"" },
	{ "\"dir\": \"ema\"", "\"dir\": \".\"", "family in a directory of another name: \".\"" },
	{ "\"name\": \"ema\", \"dir\": \"ema\"", "\"name\": \"model\", \"dir\": \".\"",
	  "twice among the families: \"model\"" },
	{ "\"files\": 2,", "\"files\": 1,",
	  "invalid name of a tensor file \"model-00002-of-00002.safetensors\"" },
	{ "\"files\": 2,", "\"files\": 3,",
	  "invalid name of a tensor file \"optimizer/optimizer-00001-of-00001.safetensors\"" },
	{ "\"files\": 0,", "\"files\": 1,", "fewer files than it says in family \"ema\"" },
	{ "\"files\": 0,", "\"files\": 18446744073709551615,",
	  "fewer files than it says in family \"ema\"" },
	{ "\"families\": [", "\"families\": [1, ",
	  "member \"families\" holds something that is not an object at byte 523" },
	{ "\"families\": [", "\"families\": 1, \"f\": [",
	  "member \"families\" is not an array at byte 522" },
	{ "model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors",
	  "twice among the files: \"model-00001-of-00002.safetensors\"" },
	{ "model-00002-of-00002.safetensors", "../model-00002-of-00002.safetensors",
	  "invalid name of a tensor file \"../model-00002-of-00002.safetensors\"" },
	{ "model-00002-of-00002.safetensors", "/model.safetensors",
	  "invalid name of a tensor file \"/model.safetensors\"" },
	{ "model-00002-of-00002.safetensors", "config.json",
	  "invalid name of a tensor file \"config.json\"" },
	{ "optimizer/optimizer-00001", "ema/optimizer-00001",
	  "invalid name of a tensor file \"ema/optimizer-00001-of-00001.safetensors\"" },
	{ "optimizer/optimizer-00001", "optimizer/../optimizer-00001",
	  "invalid name of a tensor file \"optimizer/../optimizer-00001-of-00001.safetensors\"" },
	{ "optimizer/optimizer-00001", "optimizer-00001",
	  "invalid name of a tensor file \"optimizer-00001-of-00001.safetensors\"" },
	{ "\"0123456789abcdef\"}", "\"0123456789abcdeg\"}",
	  "member \"crc\" is not 16 lower-case hex digits at byte 837" },
	{ "\"0123456789abcdef\"}", "\"0123456789ABCDEF\"}",
	  "member \"crc\" is not 16 lower-case hex digits at byte 837" },
	{ "\"0123456789abcdef\"}", "81985529216486895}",
	  "member \"crc\" is not a string at byte 837" },
	{ "\"bytes\": 5096", "\"bytes\": -5096",
	  "member \"bytes\" is not a whole number in range at byte 824" },
	{ "\"bytes\": 5096", "\"bytes\": 5096, \"bytes\": 5096",
	  "member \"bytes\" is there twice at byte 830" },
	{ "\"bytes\": 5096, ", "",
	  "member \"bytes\" is missing from the object that ends at byte 840" },
	{ "config.json", "../config.json", "invalid name of an attached file \"../config.json\"" },
	{ "config.json", "sheaf.json", "invalid name of an attached file \"sheaf.json\"" },
	{ "config.json", "x/config.json", "invalid name of an attached file \"x/config.json\"" },
	{ "config.json", "", "invalid name of an attached file \"\"" },
	{ "config.json", "optimizer", "attached file named like the directory of family "
		"\"optimizer\"" },
	{ "config.json", "model.safetensors.index.json",
	  "twice among the attached files: \"model.safetensors.index.json\"" },
	{ "config.json", "x.safetensors.index.json",
	  "invalid name of an attached file \"x.safetensors.index.json\"" },
	{ "ema/ema.safetensors.index.json", "ema/model.safetensors.index.json",
	  "invalid name of an attached file \"ema/model.safetensors.index.json\"" },
	{ "ema/ema.safetensors.index.json", "ema.safetensors.index.json",
	  "invalid name of an attached file \"ema.safetensors.index.json\"" },
	{ "ema/ema.safetensors.index.json", "ema/ema/ema.safetensors.index.json",
	  "invalid name of an attached file \"ema/ema/ema.safetensors.index.json\"" },
	{ "\"tied\": [\n  [\"model\", ", "\"tied\": [\n  [",
	  "member \"tied\" holds something that is not three strings at byte 1466" },
	{ "\"tied\": [\n  [\"model\", ", "\"tied\": [\n  [\"model\", \"x\", ",
	  "member \"tied\" holds something that is not three strings at byte 1453" },
	{ "\"tied\": [\n  [\"model\", ", "\"tied\": [\n  [\"../x\", ",
	  "invalid family of a tied name: \"../x\"" },
	{ "\"tied\": [\n  [\"model\", ", "\"tied\": [\n  [5, ",
	  "member \"tied\" holds something that is not three strings at byte 1421" },
	{ "\"tied\": [\n  [\"model\", ", "\"tied\": [\n  5, [\"model\", ",
	  "member \"tied\" holds something that is not an array at byte 1420" },
	{ "\"tied\": [", "\"tied\": [[\"model\", \"lm_head.weight\", \"x\"],",
	  "tied twice: \"lm_head.weight\"" },
	{ "\"tied\": [", "\"tied\": [[\"model\", \"x\", \"lm_head.weight\"],",
	  "tied to a name that is tied itself: \"x\"" },
	{ "\"tied\": [", "\"tied\": [[\"model\", \"x\", \"x\"],",
	  "tied to a name that is tied itself: \"x\"" },
	{ "\"tied\": [", "\"tied\": [[\"model\", \"x\", \"\"],", "invalid tied name \"x\"" },
	{ "\"adam.step\": \"1000\"", "\"adam.step\": 1000",
	  "member \"notes\" holds something that is not a string at byte 1506" },
	{ "\"adam.step\": \"1000\"", "\"adam step\": \"1000\"", "invalid key of a note \"adam "
		"step\"" },
	{ "\"adam.step\": \"1000\"", "\"adam.step\": \"10\\u000000\"",
	  "member \"notes\" holds a NUL at byte 1506" },
	{ "\"adam.step\": \"1000\"", "\"odd\": \"1\"", "twice among the notes: \"odd\"" },
	{ "\"name\": \"sheaf.sums\"", "\"name\": \"../sums\"",
	  "the file of checksums is not named sheaf.sums but \"../sums\"" },
	{ "\"sums\": {", "\"sums\": [], \"s\": {",
	  "member \"sums\" is not an object at byte 1754" },
	{ "\"sums\": {", "\"self\": \"0\", \"sums\": {",
	  "member \"self\" is there twice at byte 1835" },
	{ "\"step\": 1000", "\"x\": \xff, \"step\": 1000", "not a JSON value at byte 33" },
	{ "\"step\": 1000", "\"x\": \"\xff\", \"step\": 1000", "bad UTF-8 at byte 34" },
	{ "{\"sheaf\": 1", "[{\"sheaf\": 1", "is not a JSON object" },
	{ "{\"sheaf\": 1", " 1 {\"sheaf\": 1", "is not a JSON object" },
};

TEST(sealed_lies_are_refused)
{
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		int rc = decode_changed(lies[i][0], lies[i][1], &err);

		if (rc != (i ? SHEAF_ECORRUPT : SHEAF_EFORMAT))
			print_error("%s -> %s: %d: %s\n", lies[i][0], lies[i][1], rc, err.msg);
		CHECK_INT(rc, i ? SHEAF_ECORRUPT : SHEAF_EFORMAT);
		CHECK(!strncmp(err.msg, "sheaf.json: ", 12));
		CHECK_STR(err.msg + 12, lies[i][2]);
	}
}

TEST(what_the_decoder_would_refuse_is_not_encoded)
{
	struct shf_manifest good = example(), m;
	struct shf_mf_ema ema[2];
	struct shf_buf b = SHF_BUF_INIT;
	struct sheaf_error err;
	struct shf_mf_note note = { "x", NULL }, twice[] = { { "a", "1" }, { "a", "2" } };
	char *big = calloc(1, (64 << 10) + 2);

#define REFUSED(change, says)                                                 \
	do {                                                                  \
		m = good;                                                     \
		memcpy(ema, emas, sizeof(ema));                               \
		change;                                                       \
		CHECK_INT(shf_manifest_encode(&b, &m, &err), SHEAF_EINVAL);   \
		CHECK_INT(b.len, 0);                                          \
		CHECK_STR(err.msg, "manifest: " says);                        \
	} while (0)
	REFUSED(m.step = -1, "step -1");
	REFUSED(m.session[0] = 'g', "session or run is not 32 hex digits \"\"");
	REFUSED(m.session[0] = 0, "session or run is not 32 hex digits \"\"");
	REFUSED(memset(m.run, 'a', 33), "session or run is not 32 hex digits \"\"");
	REFUSED(m.created[4] = 'x', "created is not a time like \"2026-01-31T12:00:00Z\"");
	REFUSED(m.commit = NULL, "writer is not valid UTF-8 \"\"");
	REFUSED(m.compiler = "\xff", "writer is not valid UTF-8 \"\"");
	REFUSED(m.mesh = "\xff", "config or mesh is not valid UTF-8 \"\"");
	REFUSED(m.ranks = 0, "file_bytes_max or ranks is 0 \"\"");
	REFUSED(m.files_n = 2, "fewer files than it says in family \"optimizer\"");
	REFUSED(m.families_n = 1,
	        "file that belongs to no family "
	        "\"optimizer/optimizer-00001-of-00001.safetensors\"");
	REFUSED(m.sums.name = "x", "the file of checksums is not named sheaf.sums but \"x\"");
	REFUSED((ema[0].name = "E", m.emas = ema), "averages with an invalid name \"E\"");
	REFUSED((ema[0].name = NULL, m.emas = ema), "averages with an invalid name \"\"");
	REFUSED((ema[0].of = "../x", m.emas = ema), "averages of no family: \"ema\"");
	REFUSED((ema[0].coef[2] = '3', m.emas = ema),
	        "averages without coefficient, interval or updates: \"ema\"");
	REFUSED((memcpy(ema[0].coef, "0x1p+0", 7), m.emas = ema),
	        "averages without coefficient, interval or updates: \"ema\"");
	REFUSED((memset(ema[0].coef, '0', 32), m.emas = ema),
	        "averages without coefficient, interval or updates: \"ema\"");
	REFUSED((ema[1].interval = 0, m.emas = ema),
	        "averages without coefficient, interval or updates: \"slow\"");
	REFUSED((ema[1].updates = -1, m.emas = ema),
	        "averages without coefficient, interval or updates: \"slow\"");
	REFUSED((ema[1].name = "ema", m.emas = ema), "averages twice: \"ema\"");
	REFUSED((m.notes = twice, m.notes_n = 2), "twice among the notes: \"a\"");
	memset(big, 'a', (64 << 10) + 1);
	REFUSED((note.value = big, m.notes = &note, m.notes_n = 1),
	        "more than 64 KiB in it or 512 KiB in all up to note \"x\"");
	big[64 << 10] = 0;
	m = good;
	m.notes = &note;
	m.notes_n = 1;
	CHECK_RC(shf_manifest_encode(&b, &m, &err), 0, &err);
	CHECK_INT(decode(b.data, b.len, &err), 0);
	free(big);
	shf_buf_release(&b);
}

TEST(a_manifest_of_a_mebibyte_is_refused)
{
	static struct shf_mf_file many[18000];
	static char names[18000][24];
	struct shf_manifest m = example();
	struct shf_buf b = SHF_BUF_INIT;
	struct sheaf_error err;

	for (size_t i = 0; i < 18000; i++) {
		snprintf(names[i], sizeof(names[i]), "f%zu", i);
		many[i] = (struct shf_mf_file){ names[i], i, i };
	}
	m.attached = many;
	m.attached_n = 18000;
	CHECK_INT(shf_manifest_encode(&b, &m, &err), SHEAF_EINVAL);
	CHECK(strstr(err.msg, "must be less than 1048576") != NULL);
	CHECK_INT(b.len, 0);
	m.attached_n = 14000;
	CHECK_RC(shf_manifest_encode(&b, &m, &err), 0, &err);
	CHECK_INT(decode(b.data, b.len, &err), 0);
	shf_buf_release(&b);
}

/* How the encoder and the decoder each meet the limit, by one byte more and one less. */
TEST(the_limit_of_a_manifest_is_a_mebibyte_to_the_byte)
{
	static char value[8][(64 << 10) + 1], keys[9][4];
	struct shf_mf_note many[9] = { { NULL, NULL } };
	static struct shf_mf_file files_of[10000];
	static char names[10000][24];
	struct shf_manifest m = example();
	struct sheaf_error err;

	for (size_t i = 0; i < 10000; i++) {
		snprintf(names[i], sizeof(names[i]), "f%zu", i);
		files_of[i] = (struct shf_mf_file){ names[i], i, i };
	}
	m.attached = files_of;
	m.attached_n = 10000;
	m.notes = many;
	m.notes_n = 8;
	for (int i = 0; i < 8; i++) {
		snprintf(keys[i], sizeof(keys[i]), "k%d", i);
		many[i] = (struct shf_mf_note){ keys[i], value[i] };
	}
	for (size_t size = SHF_MANIFEST_MAX - 1; size <= SHF_MANIFEST_MAX + 1; size++) {
		struct shf_buf b = SHF_BUF_INIT;
		char want[80];
		size_t left;

		memset(value, 0, sizeof(value));
		CHECK_RC(shf_manifest_encode(&b, &m, &err), 0, &err);
		left = size - b.len;
		CHECK(left < 8 * 65500);
		for (int i = 0; i < 8; i++)
			memset(value[i], 'v', left / 8 + (i == 0 ? left % 8 : 0));
		shf_buf_reset(&b);
		if (size < SHF_MANIFEST_MAX) {
			CHECK_RC(shf_manifest_encode(&b, &m, &err), 0, &err);
			CHECK_INT(b.len, size);
			CHECK_INT(decode(b.data, b.len, &err), 0);
		} else {
			snprintf(want, sizeof(want),
			         "manifest of %zu bytes, must be less than 1048576", size);
			CHECK_RC(shf_manifest_encode(&b, &m, &err), SHEAF_EINVAL, &err);
			CHECK_STR(err.msg, want);
			CHECK_INT(b.len, 0);
		}
		shf_buf_release(&b);
	}
}

TEST(the_notes_of_a_manifest_have_512_kib)
{
	static char value[8][64 << 10];
	static const char *const keys[] = { "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7" };
	struct shf_mf_note many[8];
	struct shf_manifest m = example();
	struct sheaf_error err;

	m.notes = many;
	m.notes_n = 8;
	for (int i = 0; i < 8; i++) {
		memset(value[i], 'v', (64 << 10) - 2);
		many[i] = (struct shf_mf_note){ keys[i], value[i] };
	}
	for (int more = 0; more < 2; more++) {
		struct shf_buf b = SHF_BUF_INIT;

		value[7][(64 << 10) - 2] = more ? 'v' : '\0';
		CHECK_RC(shf_manifest_encode(&b, &m, &err), more ? SHEAF_EINVAL : 0, &err);
		if (more)
			CHECK_STR(err.msg, "manifest: more than 64 KiB in it or 512 KiB in all up "
			          "to note \"k7\"");
		shf_buf_release(&b);
	}
}

TEST(what_does_not_end_as_a_manifest_is_told_from_what_has_changed)
{
	static uint8_t large[1 << 20];
	struct shf_manifest m = example();
	struct shf_buf b = SHF_BUF_INIT;
	struct sheaf_error err;
	char want[100], *digit;

	CHECK_INT(decode(large, SHF_MANIFEST_MAX, &err), SHEAF_ECORRUPT);
	CHECK_STR(err.msg, "sheaf.json: 1048576 bytes, must be less than 1048576");
	for (size_t n = SHF_MANIFEST_MAX - 1; n; n = n > 31 ? 31 : 0) {
		CHECK_INT(decode(large, n, &err), SHEAF_ECORRUPT);
		CHECK_STR(err.msg,
		          "sheaf.json: does not end in its own checksum, as every manifest does");
	}
	CHECK_INT(decode(large, 30, &err), SHEAF_ECORRUPT);
	CHECK_STR(err.msg, "sheaf.json: 30 bytes are too short for a manifest");
	CHECK_RC(shf_manifest_encode(&b, &m, &err), 0, &err);
	digit = (char *)b.data + b.len - 4;
	*digit = *digit == '0' ? '1' : '0';
	snprintf(want, sizeof(want), "sheaf.json: checksum %016llx, want %.16s",
	         (unsigned long long)shf_crc64(b.data, b.len - 31), digit - 15);
	CHECK_INT(decode(b.data, b.len, &err), SHEAF_ECORRUPT);
	CHECK_STR(err.msg, want);
	*digit = 'g';
	CHECK_INT(decode(b.data, b.len, &err), SHEAF_ECORRUPT);
	CHECK_STR(err.msg, "sheaf.json: does not end in its own checksum, as every manifest does");
	shf_buf_release(&b);
}
