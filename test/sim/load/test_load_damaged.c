/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged directories: every rank gets the same code and sentence, and damage that is found before
 * tensors are read leaves the memory untouched. */
#include "catalog.h"
#include "hands.h"
#include "mem.h"
#include "step_lookup.h"
#include <stdlib.h>
#include "step_open.h"
#include "t.h"
#include "step_blocks.h"
#include "deal_home.h"

#define STEP "run/checkpoint-7/"
#define MODEL STEP "model-00001-of-00001.safetensors"
#define OPT STEP "optimizer/optimizer-00001-of-00001.safetensors"
#define SUMS STEP "sheaf.sums"
#define MANIFEST STEP "sheaf.json"

static void held(struct hand *h)
{
	static const char *const names[] = { "a", "b" };

	for (int k = 0; k < 2; k++) {
		hand_cut(hand_add(h, "model", names[k], SHEAF_BF16, 2, 61, 53), k, h->rank,
			 h->ranks);
		hand_cut(hand_add(h, "optimizer", hand_text(h, names[k], "/moment1_0"), SHEAF_F32,
				  2, 61, 53),
			 0, h->rank, h->ranks);
	}
}

static struct simdisk *saved(void)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, held);

	SAVED(p);
	return disk;
}

/* The file with its size changed, or its bytes from another file. */
static void resize(struct simdisk *disk, const char *path, long by)
{
	size_t n;
	uint8_t *bytes = simdisk_get(disk, path, &n), *more;

	CHECK(bytes != NULL);
	more = calloc(1, n + 8192);
	CHECK(more != NULL);
	memcpy(more, bytes, n);
	CHECK_INT(simdisk_put(disk, path, more, (size_t)((long)n + by)), 0);
	free(bytes);
	free(more);
}

static void copy(struct simdisk *disk, const char *from, const char *to)
{
	size_t n;
	void *bytes = simdisk_get(disk, from, &n);

	CHECK(bytes != NULL);
	CHECK_INT(simdisk_put(disk, to, bytes, n), 0);
	free(bytes);
}

enum what { REMOVE, FLIP, RESIZE, EMPTY, COPY, LINK, FOLDER };
static const struct {
	const char *name, *path;
	enum what what;
	long arg;
	const char *from;
	int rc;
	const char *sentence;
	bool early;                     /* found before a byte of the caller is touched */
} damages[] = {
	{ "a tensor file is gone", MODEL, REMOVE, 0, NULL, SHEAF_ECORRUPT, "model-00001", true },
	{ "a family's folder is gone", STEP "optimizer", REMOVE, 0, NULL, SHEAF_ECORRUPT,
	  "optimizer", true },
	{ "the sums are gone", SUMS, REMOVE, 0, NULL, SHEAF_ECORRUPT, "sheaf.sums: missing", true },
	{ "the manifest is gone", MANIFEST, REMOVE, 0, NULL, SHEAF_ECORRUPT,
	  "sheaf.json is missing",
	  true },
	{ "a tensor file is short", MODEL, RESIZE, -5, NULL, SHEAF_ECORRUPT, "the manifest says",
	  true },
	{ "a tensor file is long", OPT, RESIZE, 4096, NULL, SHEAF_ECORRUPT, "the manifest says",
	  true },
	{ "the sums are short", SUMS, RESIZE, -8, NULL, SHEAF_ECORRUPT, "sheaf.sums", true },
	{ "the manifest is short", MANIFEST, RESIZE, -1, NULL, SHEAF_ECORRUPT, "sheaf.json", true },
	{ "the manifest is empty", MANIFEST, EMPTY, 0, NULL, SHEAF_ECORRUPT, "sheaf.json", true },
	{ "a bit of the manifest", MANIFEST, FLIP, 300, NULL, SHEAF_ECORRUPT, "sheaf.json", true },
	{ "a bit of the sums", SUMS, FLIP, 8 * 140, NULL, SHEAF_ECORRUPT, "sheaf.sums", true },
	{ "a bit of a header", MODEL, FLIP, 8 * 40, NULL, SHEAF_ECORRUPT, "model-00001", true },
	{ "a bit of a tensor", OPT, FLIP, 8 * 9000, NULL, SHEAF_ECORRUPT, "optimizer-00001",
	  false },
	{ "the other family's file", MODEL, COPY, 0, OPT, SHEAF_ECORRUPT, "model-00001", true },
	{ "the sums of another step", SUMS, COPY, 0, "run/checkpoint-8/sheaf.sums", SHEAF_ECORRUPT,
	  "sheaf.sums", true },
	{ "the same file of another step", OPT, COPY, 0,
	  "run/checkpoint-8/optimizer/optimizer-00001-of-00001.safetensors", SHEAF_ECORRUPT,
	  "optimizer-00001", false },
	{ "the manifest of another step", MANIFEST, COPY, 0, "run/checkpoint-8/sheaf.json",
	  SHEAF_ECORRUPT, "step 8", true },
	{ "a link in place of a file", MODEL, LINK, 0, "../other", SHEAF_ECORRUPT, "model-00001",
	  true },
	{ "a folder in place of the sums", SUMS, FOLDER, 0, NULL, SHEAF_ECORRUPT, "sheaf.sums",
	  true },
};

static void other(struct hand *h)
{
	held(h);
	for (int k = 0; k < h->n; k++)
		h->name[k] = "another";
}

static void damage(struct simdisk *disk, size_t k)
{
	const char *path = damages[k].path;
	char inside[200];

	switch (damages[k].what) {
	case REMOVE:
		CHECK_INT(simdisk_remove(disk, path), 0);
		break;
	case FLIP:
		CHECK_INT(simdisk_flip(disk, path, (uint64_t)damages[k].arg), 0);
		break;
	case RESIZE:
		resize(disk, path, damages[k].arg);
		break;
	case EMPTY:
		CHECK_INT(simdisk_put(disk, path, "", 0), 0);
		break;
	case COPY:
		copy(disk, damages[k].from, path);
		break;
	case LINK:
		copy(disk, path, "run/other");
		CHECK_INT(simdisk_remove(disk, path), 0);
		CHECK_INT(simdisk_symlink(disk, damages[k].from, path), 0);
		break;
	case FOLDER:
		CHECK_INT(simdisk_remove(disk, path), 0);
		snprintf(inside, sizeof(inside), "%s/x", path);
		CHECK_INT(simdisk_put(disk, inside, "x", 1), 0);
		break;
	}
}

TEST(each_damage_has_its_outcome_and_its_sentence)
{
	for (size_t k = 0; k < sizeof(damages) / sizeof(damages[0]); k++) {
		struct simdisk *disk = saved();
		struct play p = hands_play(disk, 2, other);
		int rc;

		p.step = 8;
		SAVED(p);
		damage(disk, k);
		for (int ranks = 1; ranks <= 3; ranks++) {
			p = hands_play(disk, ranks, held);
			p.opts.flags = SHEAF_RUN_READONLY;
			rc = hands_load(&p);
			if (rc != damages[k].rc || !strstr(p.err.msg, damages[k].sentence))
				print_error("%s: %d %s\n", damages[k].name, rc, p.err.msg);
			CHECK_INT(rc, damages[k].rc);
			CHECK(strstr(p.err.msg, damages[k].sentence) != NULL);
			CHECK(!damages[k].early || p.wrong == 0);
		}
		p = hands_play(disk, 2, other); /* the other step is as it was */
		p.step = 8;
		LOADED(p);
		p.step = 9; /* and the run goes on */
		SAVED(p);
		simdisk_free(disk);
	}
}

static int rewind_to_6(struct hand *h)
{
	return shf_run_rewind(h->run, 6, &h->err);
}

/* One rule, whatever was damaged. What has no manifest is no checkpoint, and said to be none. */
TEST(a_damaged_latest_is_refused_however_often_and_the_command_that_helps_is_named)
{
	for (size_t k = 0; k < sizeof(damages) / sizeof(damages[0]); k++) {
		bool none = strcmp(damages[k].name, "the manifest is gone") == 0;
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 2, held);

		p.step = 6;
		SAVED(p);
		p.step = 7;
		SAVED(p);
		if (damages[k].from && strstr(damages[k].from, "checkpoint-8")) {
			p = hands_play(disk, 2, other); /* which nobody sees */
			p.step = 8;
			SAVED(p);
			damage(disk, k);
			CHECK_INT(simdisk_remove(disk, "run/checkpoint-8"), 0);
		} else {
			damage(disk, k);
		}
		for (int i = 0; i < 4 && !none; i++) {
			p = hands_play(disk, 1 + i % 2, held);
			p.step = SHEAF_LATEST;
			CHECK_RC(hands_load(&p), damages[k].rc, &p.err);
			if (!strstr(p.err.msg, "sheaf rewind run@6") ||
			    !strstr(p.err.msg, "run/checkpoint-7"))
				print_error("%s: %s\n", damages[k].name, p.err.msg);
			CHECK(strstr(p.err.msg, "sheaf rewind run@6") != NULL);
			CHECK(strstr(p.err.msg, "run/checkpoint-7") != NULL);
		}
		p = hands_play(disk, 2, held);
		if (!none)
			CHECK_RC(hands_run(&p, rewind_to_6, false), 0, &p.err);
		p.step = SHEAF_LATEST;
		LOADED(p);
		CHECK_INT(p.report.step, 6);
		CHECK_INT(hands_told(&p, 'P'), none);
		CHECK(!none || strstr(p.told, "checkpoint-7: has no manifest"));
		simdisk_free(disk);
	}
}

TEST(where_the_only_manifests_are_gone_no_load_says_start_afresh)
{
	struct simdisk *disk = saved();
	struct play p = hands_play(disk, 2, held);

	CHECK_INT(simdisk_remove(disk, MANIFEST), 0);
	for (int i = 0; i < 2; i++) {
		p = hands_play(disk, 1 + i, held);
		p.step = SHEAF_LATEST;
		CHECK_RC(hands_load(&p), SHEAF_ECORRUPT, &p.err);
		CHECK(strstr(p.err.msg, "the newest is checkpoint-7 (sheaf recover run") != NULL);
	}
	simdisk_free(disk);
}

TEST(where_no_older_step_is_left_the_error_says_so)
{
	struct simdisk *disk = saved();
	struct play p = hands_play(disk, 2, held);

	damage(disk, 0);
	p.step = SHEAF_LATEST;
	CHECK_RC(hands_load(&p), SHEAF_ECORRUPT, &p.err);
	CHECK(strstr(p.err.msg, "no older step is left") != NULL);
	simdisk_free(disk);
}

static void large(struct hand *h)
{
	held(h);
	hand_cut(hand_add(h, "optimizer", "big/moment1_0", SHEAF_F32, 2, 700, 701), 0, h->rank,
	         h->ranks);
	if (h->play->opts.ignore)
		for (int k = 0; k < h->n; k++)
			if (strcmp(h->s[k].family, "optimizer") == 0)
				h->want[k] = HAND_KEPT;
}

TEST(a_load_of_one_family_does_not_mind_damage_to_the_data_of_another)
{
	static const char *const moments[] = { "optimizer/*", NULL };
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, large);

	SAVED(p);
	CHECK_INT(simdisk_flip(disk, OPT, 8 * 1500000), 0); /* block 1: the header is in block 0 */
	p.opts.ignore = moments;
	LOADED(p);
	CHECK_INT(p.report.ignored, 3);
	p.opts.ignore = NULL;
	CHECK_RC(hands_load(&p), SHEAF_ECORRUPT, &p.err);
	CHECK(strstr(p.err.msg, "block 1 at byte 1048576") != NULL);
	CHECK(strstr(p.err.msg, "optimizer/big/moment1_0") != NULL);
	simdisk_free(disk);
}

/* ---- a table that changes in memory after it was proved ---- */

enum { OF_FILE, OF_TENSOR, OF_NAMES };
static const struct {
	int record;
	uint64_t at;
	unsigned bytes;
	uint64_t value;
} changes[] = {
	{ OF_FILE, 16, 8, UINT64_C(1) << 40 }, { OF_FILE, 16, 8, UINT64_MAX },
	{ OF_FILE, 16, 8, 2 }, { OF_FILE, 16, 8, 4 }, { OF_FILE, 24, 4, UINT32_MAX },
	{ OF_FILE, 28, 4, 0 }, { OF_FILE, 28, 4, 7 }, { OF_FILE, 28, 4, 60 << 10 },
	{ OF_FILE, 28, 4, 100 << 20 }, { OF_FILE, 28, 4, UINT32_MAX },
	{ OF_TENSOR, 0, 8, UINT64_MAX }, { OF_TENSOR, 8, 8, UINT64_MAX },
	{ OF_TENSOR, 20, 4, 0 }, { OF_TENSOR, 20, 4, UINT32_MAX },
	{ OF_TENSOR, 24, 8, 40 }, { OF_TENSOR, 24, 8, UINT64_C(1) << 50 },
	{ OF_TENSOR, 24, 8, UINT64_MAX }, { OF_NAMES, 0, 0, 0 },
};

static void change(struct sheaf_checkpoint *step, size_t k)
{
	const struct shf_sums_head *h = &step->sums.head;
	uint64_t off = changes[k].record == OF_FILE ? h->files_off : h->tensors_off;
	uint8_t *to = step->sums_bytes + off + changes[k].at;

	if (changes[k].record == OF_NAMES)
		memset(step->sums_bytes + h->names_off, 'x', h->names_bytes);
	else if (changes[k].bytes == 4)
		shf_put32(to, (uint32_t)changes[k].value);
	else
		shf_put64(to, changes[k].value);
}

/* One change: a block that is not what it was is said to be damaged, a header is right or refused,
 * and nothing is read past an end. */
static int look_again(struct hand *h)
{
	size_t k = (size_t)h->play->variant, n;
	uint8_t *bytes = simdisk_get(h->play->disk, MODEL, &n);
	struct shf_buf header = SHF_BUF_INIT;
	struct sheaf_checkpoint *step = NULL;
	uint64_t whole = 0, tensor = 0;
	int64_t bad;
	int rc = shf_step_open(&step, h->run, 7, &h->err);

	if (rc == 0)
		rc = shf_step_wake(step, &h->err);
	if (rc == 0) {
		tensor = step->layout.files[0].header_bytes;
		change(step, k);
		bytes[tensor] ^= 1;
		rc = shf_blocks_check(step, 0, 0, bytes, n, &bad, &h->err);
		rc = rc == SHEAF_ECORRUPT && bad == 0 ? 0 : SHEAF_EBUG;
	}
	if (rc == 0) {
		rc = shf_header_read(step, 0, &whole, &header, &h->err);
		if (rc == 0 && header.len > n)
			rc = SHEAF_EBUG;
		rc = rc == SHEAF_ECORRUPT ? 0 : rc;
	}
	shf_step_put(step);
	shf_buf_release(&header);
	free(bytes);
	return rc;
}

TEST(a_table_that_changed_in_memory_leads_nobody_out_of_it)
{
	struct simdisk *disk = saved();

	for (size_t k = 0; k < sizeof(changes) / sizeof(*changes); k++) {
		struct play p = hands_play(disk, 1, held);

		p.variant = (int)k;
		p.opts.flags = SHEAF_RUN_READONLY;
		if (hands_run(&p, look_again, false) != 0)
			print_error("change %zu: %d %s\n", k, p.rc, p.err.msg);
		CHECK_INT(p.rc, 0);
	}
	simdisk_free(disk);
}
