/* SPDX-License-Identifier: Apache-2.0 */
/* Finding one tensor in a table of sums of many pages (lib/step/step_lookup.c), of which only a few
 * are read, and headers that contradict the table: what is found is right, or nothing is. */
#include <errno.h>
#include <stdlib.h>
#include "catalog.h"
#include "crc64.h"
#include "hands.h"
#include "manifest.h"
#include "sheaf-inspect.h"
#include "step_lookup.h"
#include "save.h"
#include "starve.h"
#include "step_open.h"
#include "sums.h"
#include "t.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "step_blocks.h"
#include "deal_home.h"

#define STEP "run/checkpoint-7/"
#define SUMS STEP "sheaf.sums"

/* ---- many tensors ---- */

enum { MANY = 2600, BYTES = 4 };

static void name_of(char name[16], int i)
{
	snprintf(name, 16, "t%04d", i);
}

static int add_many(struct sheaf_state *state, uint8_t *data, int n)
{
	int rc = 0;

	for (int i = 0; i < n && rc >= 0; i++) {
		char name[16];
		struct sheaf_slice s = { .size = sizeof(s), .family = "model", .name = name,
			.dtype = SHEAF_U8, .ndim = 1, .shape = { BYTES }, .count = { BYTES },
			.data = data + i * BYTES };

		name_of(name, i);
		for (int k = 0; k < BYTES; k++)
			data[i * BYTES + k] = (uint8_t)(i * 31 + k);
		rc = shf_state_add(state, &s, NULL);
	}
	return rc < 0 ? rc : 0;
}

static int save_many(struct hand *h)
{
	static uint8_t data[MANY * BYTES];
	struct sheaf_save_opts opts = { .size = sizeof(opts) };
	struct sheaf_save *save = NULL;
	int rc = add_many(h->state, data, h->play->variant);

	if (rc == 0)
		rc = shf_save_begin(&save, h->run, 7, h->state, &opts, &h->err);
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static struct simdisk *many(int n, uint64_t file_bytes)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, NULL);

	p.variant = n;
	p.opts.file_bytes_max = file_bytes;
	CHECK_RC(hands_run(&p, save_many, false), 0, &p.err);
	return disk;
}

/* How many are found without waking the step, from the last one on; what is found is right. */
static struct {
	int found;
	uint64_t digest[MANY];          /* of each; 0: not known so far */
} peeked;

static int peek_all(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, STEP, h->group, &h->play->opts, h->sys, &h->err);

	peeked.found = 0;
	for (int i = h->play->variant - 1; rc == 0 && step->asleep && i >= 0; i--) {
		struct shf_lt_tensor t;
		char name[16];

		name_of(name, i);
		if (!shf_step_lookup(step, "model", name, &t))
			continue;
		peeked.found++;
		if (peeked.digest[i] == 0)
			peeked.digest[i] = t.digest;
		if (strcmp(t.name, name) || t.bytes != BYTES || t.digest != peeked.digest[i])
			rc = SHEAF_EBUG;
	}
	if (rc == 0 && shf_step_lookup(step, "model", "nobody", &(struct shf_lt_tensor){ 0 }))
		rc = SHEAF_EBUG;
	shf_step_put(step);
	return rc;
}

static int peek(struct simdisk *disk, int n, int *found)
{
	struct play p = hands_play(disk, 1, NULL);

	p.path = STEP;
	p.variant = n;
	p.opts.flags = SHEAF_RUN_READONLY;
	(void)hands_run(&p, peek_all, false);
	*found = peeked.found;
	return p.rc;
}

TEST(a_bad_page_of_the_table_hides_tensors_and_shows_none_wrong)
{
	struct simdisk *disk = many(MANY, 0);
	int found, hidden = 0;
	size_t n;

	free(simdisk_get(disk, SUMS, &n));
	CHECK(n > 2 * SHF_SUMS_PAGE);
	memset(&peeked, 0, sizeof(peeked));
	CHECK_INT(peek(disk, MANY, &found), 0);
	CHECK_INT(found, MANY);
	for (size_t at = SHF_SUMS_HEADER + 70; at < n; at += SHF_SUMS_PAGE) {
		CHECK_INT(simdisk_flip(disk, SUMS, 8 * at), 0);
		CHECK_INT(peek(disk, MANY, &found), 0);
		CHECK(found < MANY);
		hidden += found > 0;
		CHECK_INT(simdisk_flip(disk, SUMS, 8 * at), 0);
	}
	CHECK(hidden > 0);
	simdisk_free(disk);
}

/* The records of 2,600 files fill more than a page: of the last ones the first is not read. */
TEST(a_bad_page_before_the_one_that_is_wanted_hides_nothing)
{
	struct simdisk *disk = many(MANY, BYTES);
	int found;

	memset(&peeked, 0, sizeof(peeked));
	CHECK_INT(simdisk_flip(disk, SUMS, 8 * (SHF_SUMS_HEADER + 70)), 0);
	CHECK_INT(peek(disk, MANY, &found), 0);
	CHECK(found > 60);
	simdisk_free(disk);
}

TEST(who_wants_tensors_of_many_files_one_by_one_gets_them_all_at_once)
{
	struct simdisk *disk = many(300, 12);
	int found;

	memset(&peeked, 0, sizeof(peeked));
	CHECK_INT(peek(disk, 300, &found), 0);
	CHECK(found > 60 && found < 300);
	simdisk_free(disk);
}

/* ---- what the table says of a name ---- */

/* In the manifest: a table of so many bytes with that sum. */
static void put_sums(struct simdisk *disk, uint64_t bytes, uint64_t crc)
{
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct shf_buf text = SHF_BUF_INIT;
	struct sheaf_error err;
	size_t old_n;
	void *old = simdisk_get(disk, STEP "sheaf.json", &old_n);

	CHECK_RC(shf_manifest_decode(&m, &arena, old, old_n, "", &err), 0, &err);
	m.sums.bytes = bytes;
	m.sums.crc = crc;
	CHECK_RC(shf_manifest_encode(&text, &m, &err), 0, &err);
	CHECK_INT(simdisk_put(disk, STEP "sheaf.json", text.data, text.len), 0);
	shf_buf_release(&text);
	shf_arena_release(&arena);
	free(old);
}

struct table {
	uint8_t *bytes;                 /* owned */
	size_t n;
	struct shf_sums_head head;
};

static struct table table_of(struct simdisk *disk)
{
	struct table t = { .bytes = NULL };
	struct sheaf_error err;

	t.bytes = simdisk_get(disk, SUMS, &t.n);
	CHECK(t.bytes != NULL);
	CHECK_RC(shf_sums_get_head(&t.head, t.bytes, t.n, "", &err), 0, &err);
	return t;
}

/* Proved again by itself and by the manifest: only what it says is wrong. */
static void put_table(struct simdisk *disk, struct table *t)
{
	uint64_t pages = t->head.pages_off;

	for (uint64_t at = 0, p = pages; at < pages; at += SHF_SUMS_PAGE, p += 8)
		shf_put64(t->bytes + p, shf_crc64(t->bytes + at, pages - at < SHF_SUMS_PAGE
		                                  ? pages - at : SHF_SUMS_PAGE));
	CHECK_INT(simdisk_put(disk, SUMS, t->bytes, t->n), 0);
	put_sums(disk, t->n, shf_crc64_more(shf_crc64(t->bytes, SHF_SUMS_HEADER),
	                                    t->bytes + pages, t->n - pages));
	free(t->bytes);
}

static uint8_t *record_at(struct table *t, uint64_t i)
{
	return t->bytes + t->head.tensors_off + i * SHF_SUMS_TENSOR;
}

/* "family\0name" of the i-th by key. */
static char *text_by_key(struct table *t, uint64_t i)
{
	uint8_t *r = record_at(t, shf_get32(record_at(t, i) + 52));

	return (char *)t->bytes + t->head.names_off + shf_get64(r + 24);
}

/* Two names have one key; what is under it is not what is asked for. */
TEST(a_name_that_has_the_key_of_another_is_not_taken_for_it)
{
	struct simdisk *disk = many(20, 0);
	struct table t = table_of(disk);
	int found;

	memset(&peeked, 0, sizeof(peeked));
	text_by_key(&t, 7)[10] = 'x';
	put_table(disk, &t);
	CHECK_INT(peek(disk, 20, &found), 0);
	CHECK_INT(found, 19);
	simdisk_free(disk);
}

/* And where the next one is, the table does not say. */
TEST(a_place_beyond_the_table_is_not_looked_at)
{
	struct simdisk *disk = many(3, 0);
	struct table t = table_of(disk);
	int found;

	memset(&peeked, 0, sizeof(peeked));
	text_by_key(&t, 1)[10] = 'x';
	shf_put32(record_at(&t, 2) + 52, 99);
	put_table(disk, &t);
	CHECK_INT(peek(disk, 3, &found), 0);
	CHECK_INT(found, 1);
	simdisk_free(disk);
}

static int look_for_modem(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	struct shf_lt_tensor t;
	int rc = shf_step_open_path(&step, STEP, h->group, &h->play->opts, h->sys, &h->err);

	if (rc == 0 && (!step->asleep || shf_step_lookup(step, "modem", "t0000", &t)))
		rc = SHEAF_EBUG;
	if (rc == 0)
		rc = shf_step_wake(step, &h->err);
	if (rc == 0)
		rc = step->cat_rc;
	h->err = rc < 0 ? step->cat_err : h->err;
	shf_step_put(step);
	return rc;
}

TEST(a_tensor_that_the_table_has_in_another_family_is_refused)
{
	struct simdisk *disk = many(1, 0);
	struct play p = hands_play(disk, 1, NULL);
	struct table t = table_of(disk);

	text_by_key(&t, 0)[4] = 'm';
	shf_put64(record_at(&t, 0) + 32, shf_sums_key("modem", "t0000"));
	put_table(disk, &t);
	p.path = STEP;
	p.opts.flags = SHEAF_RUN_READONLY;
	CHECK_INT(hands_run(&p, look_for_modem, false), SHEAF_ECORRUPT);
	CHECK(strstr(p.err.msg, "t0000") != NULL);
	simdisk_free(disk);
}

TEST(a_table_that_is_shorter_than_its_head_is_damage)
{
	struct simdisk *disk = many(1, 0);
	struct play p = hands_play(disk, 1, NULL);

	put_sums(disk, 100, 1);
	CHECK_INT(simdisk_put(disk, SUMS, "short", 5), 0);
	p.path = STEP;
	CHECK_INT(hands_load(&p), SHEAF_ECORRUPT);
	CHECK(strstr(p.err.msg, "sheaf.sums") != NULL);
	simdisk_free(disk);
}

/* ---- headers that nobody proves ---- */

/* Of files of 512 bytes the first has a and b, the second c and d. */
static void four(struct hand *h)
{
	struct sheaf_slice *s;

	hand_add(h, "model", "a", SHEAF_F32, 2, 8, 8);
	hand_add(h, "model", "b", SHEAF_F32, 2, 8, 8);
	hand_add(h, "model", "c", SHEAF_F32, 2, 8, 8);
	hand_add(h, "model", "d", SHEAF_F32, 1, 0);
	s = hand_add(h, "model", "e", SHEAF_F32, 2, 8, 8);
	s->tied_to = "c";
	hand_as(h, "model", "c");
}

#define ONE STEP "model-00001-of-00002.safetensors"
#define TWO STEP "model-00002-of-00002.safetensors"

static struct simdisk *four_saved(void)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, four);

	p.opts.file_bytes_max = 512;
	SAVED(p);
	return disk;
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[8,8],\"data_offsets\":[0,256]}"
#define B "\"b\":{\"dtype\":\"F32\",\"shape\":[8,8],\"data_offsets\":[256,512]}"
#define C "\"c\":{\"dtype\":\"F32\",\"shape\":[8,8],\"data_offsets\":[0,256]}"
#define D "\"d\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[256,256]}"
#define U8_AT(name, shape, from, to)                                                     \
	"\"" name "\":{\"dtype\":\"U8\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]}"
#define F32_AT(name, shape, from, to)                                                    \
	"\"" name "\":{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]}"
enum { HEADER = 4088 };

static const struct story {
	const char *what, *one, *two;   /* NULL: as it is */
	int shorter;                    /* the first header, so that its data begins earlier */
	int rc;
	const char *says;
} stories[] = {
	{ "as it was", A "," B, C "," D, 0, 0, "" },
	{ "another type", "\"a\":{\"dtype\":\"I32\",\"shape\":[8,8],\"data_offsets\":[0,256]}," B,
	  NULL, 0, SHEAF_ECORRUPT, "tensor a is not as" },
	{ "fewer dimensions", F32_AT("a", "64", "0", "256") "," B, NULL, 0, SHEAF_ECORRUPT,
	  "tensor a is not as" },
	{ "too many dimensions", F32_AT("a", "8,8,1,1,1,1,1,1,1,1", "0", "256") "," B, NULL, 0,
	  SHEAF_ECORRUPT, "tensor a is not as" },
	{ "another name", F32_AT("aa", "8,8", "0", "256") "," B, NULL, 0, SHEAF_ECORRUPT,
	  "tensor aa is not as" },
	{ "each other's names", F32_AT("b", "8,8", "0", "256") "," F32_AT("a", "8,8", "256", "512"),
	  NULL, 0, SHEAF_ECORRUPT, "tensor b is not as" },
	{ "another size", F32_AT("a", "7,8", "0", "224") "," F32_AT("b", "9,8", "224", "512"), NULL,
	  0, SHEAF_ECORRUPT, "tensor a is not as" },
	{ "another place", A "," F32_AT("b", "16,8", "256", "768"), NULL, 256, SHEAF_ECORRUPT,
	  "tensor a is not as" },
	{ "another file", A "," B "," F32_AT("bb", "0", "512", "512"), C, 0, SHEAF_ECORRUPT,
	  "tensor bb is not as" },
	{ "a name twice", NULL, F32_AT("a", "8,8", "0", "256") "," D, 0, SHEAF_ECORRUPT,
	  "tensor a is in model-00001-of-00002.safetensors and in model-00002" },
	{ "one more", NULL, C "," D "," F32_AT("f", "0", "256", "256"), 0, SHEAF_ECORRUPT,
	  "files have 5 tensors" },
	{ "no aligned place", U8_AT("a", "1", "0", "1") "," F32_AT("b", "8,8", "1", "257") ","
	  U8_AT("z", "255", "257", "512"), NULL, 0, SHEAF_ECORRUPT, "not aligned to its items" },
	{ "the name of the tie, too", A "," F32_AT("e", "8,8", "256", "512"), NULL, 0,
	  SHEAF_ECORRUPT, "is stored, but the manifest says that it is tied" },
};
#define STORIES (sizeof(stories) / sizeof(stories[0]))

static void tell(struct simdisk *disk, const char *path, const char *tensors, int shorter)
{
	size_t n, len = HEADER - (size_t)shorter;
	uint8_t *bytes = simdisk_get(disk, path, &n);
	int put;

	if (!tensors) {
		free(bytes);
		return;
	}
	CHECK(bytes != NULL && shf_get64(bytes) == HEADER);
	memset(bytes + 8, ' ', len);
	shf_put64(bytes, len);
	put = snprintf((char *)bytes + 8, len, "{\"__metadata__\":{\"format\":\"pt\"},%s}",
	               tensors);
	CHECK(put > 0 && (size_t)put < len);
	bytes[8 + put] = ' ';
	CHECK_INT(simdisk_put(disk, path, bytes, n), 0);
	free(bytes);
}

/* What is found of a, b, c and d without waking the step is what the table says. */
static int peek_four(struct hand *h)
{
	static const uint64_t off[] = { 4096, 4352, 4096, 4352 }, bytes[] = { 256, 256, 256, 0 };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, STEP, h->group, &h->play->opts, h->sys, &h->err);

	if (rc == 0 && !step->asleep)
		rc = SHEAF_EBUG;
	for (int i = 0; rc == 0 && i < 4; i++) {
		struct shf_lt_tensor t;
		char name[2] = { (char)('a' + i), 0 };

		if (shf_step_lookup(step, "model", name, &t) &&
		    (t.off != off[i] || t.bytes != bytes[i] || t.dtype != SHEAF_F32 ||
		     t.items.ndim != (i < 3 ? 2 : 1)))
			rc = SHEAF_EBUG;
	}
	if (rc == 0 && shf_step_lookup(step, "model", "e", &(struct shf_lt_tensor){ 0 }))
		rc = SHEAF_EBUG;        /* a tie is followed by who has all names */
	shf_step_put(step);
	return rc;
}

TEST(a_header_that_tells_another_story_is_refused_where_nobody_proves_it)
{
	for (size_t i = 0; i < STORIES; i++) {
		const struct story *s = &stories[i];
		struct simdisk *disk = four_saved();
		struct play p = hands_play(disk, 1, four);

		tell(disk, ONE, s->one, s->shorter);
		tell(disk, TWO, s->two, 0);
		p.opts.flags = SHEAF_RUN_READONLY | SHEAF_RUN_UNVERIFIED;
		p.path = STEP;
		if (hands_load(&p) != s->rc || !strstr(p.err.msg, s->says))
			print_error("%s: %d %s\n", s->what, p.rc, p.err.msg);
		CHECK_INT(p.rc, s->rc);
		CHECK(strstr(p.err.msg, s->says) != NULL);
		CHECK_INT(p.wrong, 0);
		CHECK_RC(hands_run(&p, peek_four, false), 0, &p.err);
		simdisk_free(disk);
	}
}

/* ---- somebody else's directory, with an index ---- */

static struct simdisk *foreign(const char *weight_map)
{
	static const struct hand_tensor one[] = { { "x", SHEAF_F32, 1, { 5 } } },
		two[] = { { "y", SHEAF_F32, 1, { 6 } } };
	struct simdisk *disk = disk_new();
	char text[300];

	hands_file(disk, "hf/model-00001-of-00002.safetensors", one, 1, 0);
	hands_file(disk, "hf/model-00002-of-00002.safetensors", two, 1, 0);
	snprintf(text, sizeof(text), "{\"weight_map\":{%s}}\n", weight_map);
	CHECK_INT(simdisk_put(disk, "hf/model.safetensors.index.json", text, strlen(text)), 0);
	return disk;
}

static void x_and_y(struct hand *h)
{
	hand_add(h, "model", "x", SHEAF_F32, 1, 5);
	hand_add(h, "model", "y", SHEAF_F32, 1, 6);
}

static struct play of_hf(struct simdisk *disk)
{
	struct play p = hands_play(disk, 1, x_and_y);

	p.path = "hf";
	p.opts.flags = SHEAF_RUN_READONLY;
	return p;
}

TEST(an_index_of_nothing_hides_no_tensor)
{
	struct simdisk *disk = foreign("");
	struct play p = of_hf(disk);

	LOADED(p);
	CHECK_INT(p.report.loaded, 2);
	simdisk_free(disk);
}

static long hungry;

static int open_hungry(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc;

	starve_left = hungry;
	rc = shf_step_open_path(&step, h->play->path, h->group, &h->play->opts, h->sys, &h->err);
	if (rc == 0)
		rc = shf_step_wake(step, &h->err);
	starve_left = 0;
	if (rc == 0)
		rc = step->layout.tensors_n == 2 ? 0 : SHEAF_EBUG;
	shf_step_put(step);
	return rc;
}

TEST(a_directory_with_an_index_is_opened_or_there_is_no_memory)
{
	struct simdisk *disk = foreign("\"x\":\"model-00001-of-00002.safetensors\","
	                               "\"y\":\"model-00002-of-00002.safetensors\"");
	struct play p = of_hf(disk);
	int failed = 0;

	LOADED(p);
	starved = true;
	for (hungry = 1; starved; hungry++) {
		starved = false;
		(void)hands_run(&p, open_hungry, false);
		if (p.rc != (starved ? SHEAF_ENOMEM : 0))
			print_error("allocation %ld: %d %s\n", hungry, p.rc, p.err.msg);
		CHECK(p.rc == (starved ? SHEAF_ENOMEM : 0));
		failed += p.rc != 0;
	}
	CHECK(failed > 20);
	simdisk_free(disk);
}

/* ---- a table that changes in memory ---- */

static int change_blocks(struct hand *h)
{
	static uint8_t block[100];
	struct sheaf_checkpoint *step = NULL;
	uint8_t *first;
	int64_t bad = -1;
	int rc = shf_step_open_path(&step, STEP, h->group, &h->play->opts, h->sys, &h->err);

	if (rc == 0)
		rc = shf_step_wake(step, &h->err);
	if (rc == 0) {
		first = step->sums_bytes + step->sums.head.files_off + 8;
		for (int i = 0; i < 2 && rc == 0; i++) {
			shf_put64(first, i ? step->sums.head.blocks_n - 1 : UINT64_MAX);
			rc = shf_blocks_check(step, 0, SHF_BLOCK, block, sizeof(block), &bad,
			                      &h->err);
			rc = rc == SHEAF_ECORRUPT && bad == 1 ? 0 : SHEAF_EBUG;
		}
	}
	shf_step_put(step);
	return rc;
}

TEST(a_block_that_has_no_sum_in_the_table_is_never_right)
{
	struct simdisk *disk = four_saved();
	struct play p = hands_play(disk, 1, four);

	p.path = STEP;
	p.opts.flags = SHEAF_RUN_READONLY;
	CHECK_RC(hands_run(&p, change_blocks, false), 0, &p.err);
	simdisk_free(disk);
}

/* ---- what a verify makes of it ---- */

struct found {
	int n;
	char what[32], file[100];
};

static void find(void *arg, const struct sheaf_finding *f)
{
	struct found *found = arg;

	found->n++;
	snprintf(found->what, sizeof(found->what), "%s",
	         sheaf_finding_kind_name(f->kind));
	snprintf(found->file, sizeof(found->file), "%s", f->file);
}

static struct found found;

static int verify_act(struct hand *h)
{
	struct sheaf_report report = { .size = sizeof(report), .finding = find, .arg = &found };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open_path(&step, h->play->path, h->group, &h->play->opts, h->sys,
	                            &h->err);

	found = (struct found){ 0 };
	if (h->play->variant)
		report.finding = NULL;
	if (rc == 0)
		rc = shf_step_verify(step, &report, &h->err);
	shf_step_put(step);
	return rc;
}

static int verified(struct simdisk *disk, const char *path, struct sheaf_error *err)
{
	struct play p = hands_play(disk, 1, NULL);

	p.path = path;
	p.opts.flags = SHEAF_RUN_READONLY;
	(void)hands_run(&p, verify_act, false);
	*err = p.err;
	return p.rc;
}

TEST(a_table_that_has_another_type_or_number_of_dimensions_is_found)
{
	for (int i = 0; i < 2; i++) {
		struct simdisk *disk = four_saved();
		struct table t = table_of(disk);
		struct sheaf_error err;

		if (i)
			record_at(&t, 1)[50] = 1;
		else
			shf_put16(record_at(&t, 1) + 48, SHEAF_I32);
		put_table(disk, &t);
		CHECK_RC(verified(disk, STEP, &err), SHEAF_ECORRUPT, &err);
		CHECK_INT(found.n, 1);
		CHECK_STR(found.what, "header");
		CHECK_STR(found.file, "model-00001-of-00002.safetensors");
		simdisk_free(disk);
	}
}

static void put_bytes_of_family(struct simdisk *disk)
{
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct shf_buf text = SHF_BUF_INIT;
	struct sheaf_error err;
	size_t n;
	void *old = simdisk_get(disk, STEP "sheaf.json", &n);

	CHECK_RC(shf_manifest_decode(&m, &arena, old, n, "", &err), 0, &err);
	m.families[0].bytes++;
	CHECK_RC(shf_manifest_encode(&text, &m, &err), 0, &err);
	CHECK_INT(simdisk_put(disk, STEP "sheaf.json", text.data, text.len), 0);
	shf_buf_release(&text);
	shf_arena_release(&arena);
	free(old);
}

TEST(a_family_that_has_other_bytes_than_the_manifest_says_is_found)
{
	struct simdisk *disk = four_saved();
	struct sheaf_error err;

	put_bytes_of_family(disk);
	CHECK_RC(verified(disk, STEP, &err), SHEAF_ECORRUPT, &err);
	CHECK_INT(found.n, 1);
	CHECK_STR(found.what, "manifest");
	simdisk_free(disk);
}

/* Offsets that are no whole numbers say nothing of where the file should end. */
TEST(offsets_that_are_no_numbers_of_bytes_are_a_bad_header)
{
	static const char header[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],"
	                             "\"data_offsets\":[0,4.5]}}";
	struct simdisk *disk = disk_new();
	struct sheaf_error err;
	uint8_t file[200] = { 0 };

	shf_put64(file, sizeof(header) - 1);
	memcpy(file + 8, header, sizeof(header) - 1);
	CHECK_INT(simdisk_put(disk, "hf/model.safetensors", file, 8 + sizeof(header) + 3), 0);
	CHECK(verified(disk, "hf", &err) < 0);
	CHECK_INT(found.n, 1);
	CHECK_STR(found.what, "header");
	simdisk_free(disk);
}

TEST(who_wants_a_report_without_findings_of_a_foreign_directory_gets_it)
{
	struct simdisk *disk = foreign("\"x\":\"model-00001-of-00002.safetensors\","
	                               "\"y\":\"model-00002-of-00002.safetensors\"");
	struct play p = of_hf(disk);

	for (p.variant = 0; p.variant < 2; p.variant++) {
		CHECK_RC(hands_run(&p, verify_act, false), SHEAF_EFORMAT, &p.err);
		CHECK(strstr(p.err.msg, "cannot be checked") != NULL);
		CHECK_INT(found.n, p.variant == 0);
	}
	simdisk_free(disk);
}

/* A read fails, and is not even taken when it is tried once more. */
TEST(a_read_that_cannot_be_tried_again_has_failed)
{
	struct sheaf_error err;
	int failed = 0;

	for (int nth = 1; nth <= 6; nth++) {
		struct simdisk *disk = four_saved();
		int rc;

		simdisk_fault(disk, &(struct simdisk_fault){ .nth = 2, .error = EIO,
			.kind = SIMDISK_PREAD, .name = "model-00001" });
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EAGAIN,
			.kind = SIMDISK_SUBMIT });
		rc = verified(disk, STEP, &err);
		CHECK(rc == 0 || rc == SHEAF_EIO);
		CHECK_INT(found.n, 0);
		failed += rc < 0;
		simdisk_free(disk);
	}
	CHECK(failed > 1);
}

static void attach_long(struct hand *h, struct sheaf_save *save)
{
	(void)h;
	(void)shf_save_attach(save, "what-somebody-wrote-down-about-it.json", "{}", 2, NULL);
}

TEST(a_file_with_a_long_name_is_no_index)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 1, four);
	struct sheaf_error err;

	p.during = attach_long;
	SAVED(p);
	CHECK_RC(verified(disk, STEP, &err), 0, &err);
	CHECK_INT(found.n, 0);
	CHECK_INT(simdisk_put(disk, STEP "what-somebody-wrote-down-about-it.json", "[]", 2), 0);
	CHECK_RC(verified(disk, STEP, &err), SHEAF_ECORRUPT, &err);
	CHECK_STR(found.what, "checksum");
	simdisk_free(disk);
}
