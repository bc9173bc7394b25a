/* SPDX-License-Identifier: Apache-2.0 */
/* Flex checkpoints of paddle.distributed: loaded in any layout from boxes and from flat ranges of
 * boxes, and refused with a sentence where the metadata and the files do not fit: when they are
 * opened, or, if it is seen in a file of arrays alone, when that is read. */
#include "paddlefile.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "foreign.h"
#include "foreign_read.h"
#include "read_slice.h"
#include "t.h"
#include "foreign_plays.h"
#include "foreign_starved.h"

#define DIR_FC "fc"
#define MODULE "cpaddle.distributed.flex_checkpoint.dcp.metadata\n"
#define OLD_MODULE "cpaddle.distributed.checkpoint.metadata\n"

enum flex_flaw {
	/* Forms that are read: of an older version; with replicas, of which the first is in a file
	 * that does not have it; places from the last one on; each part twice; places before
	 * parts. */
	FLEX_SOUND, FLEX_OLD, FLEX_REPLICAS, FLEX_TURNED, FLEX_SAME, FLEX_FIRST,
	FLEX_GAP, FLEX_OVERLAP, FLEX_LEAVES, FLEX_NO_PLACE, FLEX_NO_FILE, FLEX_OUTSIDE,
	FLEX_OTHER_SHAPE, FLEX_LONG_RANGE, FLEX_TURNED_RANGE, FLEX_NO_KEY, FLEX_TWO_TYPES,
	FLEX_STRANGE, FLEX_CALL, FLEX_TWICE, FLEX_ONE_FILE, FLEX_OTHER_TYPE
};
/* A part of tensor "a.w" of 12 x 10 items, or of its moment. */
struct part { int64_t start[2], count[2], lo, hi; };    /* hi 0: the whole box */

static void put(struct torch_bytes *b, const char *s)
{
	torch_add(b, s, strlen(s));
}

static void put_pair(struct torch_bytes *b, const char *key, int64_t x, int64_t y)
{
	torch_text(b, key);
	torch_int(b, x);
	torch_int(b, y);
	put(b, "\x86");
}

/* Appends the members that an index and a part have in common. A number of NumPy is one of them. */
static void put_place(struct torch_bytes *b, const struct part *p, enum flex_flaw flaw)
{
	put_pair(b, "global_offset", p->start[0], p->start[1]);
	if (flaw == FLEX_OLD)
		return;
	torch_text(b, "is_flattened");
	put(b, p->hi ? "\x88" : "\x89");
	torch_text(b, "flattened_range");
	if (!p->hi) {
		put(b, "N");
		return;
	}
	put(b, "cnumpy._core.multiarray\nscalar\n(cnumpy\ndtype\n(");
	torch_text(b, "i8");
	put(b, "\x89\x88tRC\x08");
	for (int i = 0; i < 8; i++)
		torch_add(b, &(uint8_t){ (uint8_t)((uint64_t)p->lo >> 8 * i) }, 1);
	put(b, "tR");
	torch_int(b, flaw == FLEX_LONG_RANGE ? p->hi + 1000 : flaw == FLEX_TURNED_RANGE ? -1
	                                                                                 : p->hi);
	put(b, "\x86");
}

static void put_class(struct torch_bytes *b, const char *name, enum flex_flaw flaw)
{
	put(b, flaw == FLEX_OLD ? OLD_MODULE : MODULE);
	put(b, name);
	put(b, "\n)\x81}(");
}

static void put_parts(struct torch_bytes *b, const char *key, const char *dtype,
                      const struct part *p, int n, enum flex_flaw flaw)
{
	torch_text(b, "state_dict_metadata");
	put(b, "}");
	torch_text(b, key);
	put(b, "](");
	for (int k = 0; k < n * (flaw == FLEX_SAME ? 2 : 1); k++) {
		int i = k % n;

		if (flaw == FLEX_GAP && i == 1)
			continue;
		put_class(b, "LocalTensorMetadata", flaw);
		put_place(b, &p[i], flaw);
		put_pair(b, "local_shape", p[i].count[0], p[i].count[1] + (flaw == FLEX_LEAVES));
		if (flaw != FLEX_OLD)
			put_pair(b, "global_shape", 12, 10);
		torch_text(b, "dtype");
		torch_text(b, flaw == FLEX_TWO_TYPES && i ? "int32" : dtype);
		put(b, "ub");
	}
	put(b, "es");
}

static void put_places(struct torch_bytes *b, const char *key, const struct part *p, int n,
                       enum flex_flaw flaw)
{
	torch_text(b, "storage_metadata");
	put(b, "}(");
	for (int k = 0; k < n * (flaw == FLEX_REPLICAS ? 2 : 1); k++) {
		int i = flaw == FLEX_TURNED ? n - 1 - k : k;
		char file[40];

		put_class(b, "LocalTensorIndex", flaw);
		torch_text(b, "tensor_key");
		torch_text(b, flaw == FLEX_NO_PLACE ? "other" : key);
		put_place(b, &p[i % n], flaw);
		if (flaw != FLEX_OLD)
			put_pair(b, "local_shape", p[i % n].count[0],
			         p[i % n].count[1] + (flaw == FLEX_LEAVES));
		if (flaw == FLEX_REPLICAS) {
			torch_text(b, "replica_id");
			torch_int(b, 1 - i / n);
		}
		put(b, "ub");
		snprintf(file, sizeof(file), "%s%d_0.distcp", flaw == FLEX_OUTSIDE ? "../" : "",
		         flaw == FLEX_NO_FILE ? 77 : flaw == FLEX_ONE_FILE ? 0
		         : flaw == FLEX_REPLICAS && i < n ? (i + 1) % n
		                                                                   : i % n);
		torch_text(b, file);
	}
	put(b, "u");
}

/* Appends the metadata of tensor `key`, whose parts lie one in a file each. */
static void put_metadata(struct torch_bytes *b, const char *key, const char *dtype,
                         const struct part *p, int n, enum flex_flaw flaw)
{
	put(b, "\x80\4");
	put_class(b, flaw == FLEX_STRANGE ? "Meta" : "Metadata", flaw);
	if (flaw == FLEX_FIRST)
		put_places(b, key, p, n, flaw);
	put_parts(b, key, dtype, p, n, flaw);
	if (flaw != FLEX_FIRST)
		put_places(b, key, p, n, flaw);
	if (flaw == FLEX_CALL)
		put(b, "cos\nsystem\n(Vid\ntR0");
	put(b, "ub.");
}

/* Appends the key and the array of part i. values: the tensor of hands.h whose values it has. */
static void put_array(struct torch_bytes *b, int i, const char *key, const char *values,
                      const struct part *p, enum flex_flaw flaw)
{
	int64_t box = p->count[0] * p->count[1], lo = p->hi ? p->lo : 0, hi = p->hi ? p->hi : box;

	torch_text(b, flaw == FLEX_NO_KEY ? "other" : key);
	put(b, "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n");
	torch_add(b, "K\0\x85" "C\1btR(K\1(", 12);
	if (p->hi) {
		torch_int(b, hi - lo);
	} else {
		torch_int(b, flaw == FLEX_OTHER_SHAPE ? p->count[1] : p->count[0]);
		torch_int(b, flaw == FLEX_OTHER_SHAPE ? p->count[0] : p->count[1]);
	}
	put(b, "tcnumpy\ndtype\n(");
	torch_text(b, flaw == FLEX_OTHER_TYPE && i ? "i4" : "f4");
	put(b, "\x89\x88tR(K\3");
	torch_text(b, "<");
	put(b, "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff");
	torch_add(b, "K\0tb\x89\x8e", 6);
	for (int k = 0; k < 8; k++)
		torch_add(b, &(uint8_t){ (uint8_t)((uint64_t)(4 * (hi - lo)) >> 8 * k) }, 1);
	for (int64_t k = lo; k < hi; k++) {
		int64_t row = p->start[0] + k / p->count[1], column = p->start[1] + k % p->count[1];
		uint32_t v = (uint32_t)hand_value("model", values, SHEAF_F32, row * 10 + column);

		torch_add(b, &v, 4);
	}
	put(b, "tb");
}

/* Makes the file of a part. */
static void put_file(struct simdisk *disk, const char *folder, int i, const char *key,
                     const char *values, const struct part *p, enum flex_flaw flaw)
{
	struct torch_bytes b = { 0 };
	char path[60];

	put(&b, "\x80\4}(");
	for (int again = flaw == FLEX_TWICE; again >= 0; again--)
		put_array(&b, i, key, values, p, flaw);
	put(&b, "u.");
	snprintf(path, sizeof(path), "%s/%d_0.distcp", folder, i);
	CHECK_INT(simdisk_put(disk, path, b.p, b.n), 0);
	free(b.p);
}

static void put_folder(struct simdisk *disk, const char *folder, const char *key,
                       const char *values, const struct part *p, int n, enum flex_flaw flaw)
{
	struct torch_bytes b = { 0 };
	char path[60];

	put_metadata(&b, key, "float32", p, n, flaw);
	snprintf(path, sizeof(path), "%s/0.metadata", folder);
	CHECK_INT(simdisk_put(disk, path, b.p, b.n), 0);
	free(b.p);
	for (int i = 0; i < n; i++)
		put_file(disk, folder, i, key, values, &p[i], flaw);
}

static const struct part boxes[] = { { { 0, 0 }, { 7, 4 }, 0, 0 }, { { 0, 4 }, { 7, 6 }, 0, 0 },
	{ { 7, 0 }, { 5, 10 }, 0, 0 } };
static const struct part ranges[] = { { { 0, 0 }, { 12, 10 }, 0, 33 },
	{ { 0, 0 }, { 12, 10 }, 33, 34 }, { { 0, 0 }, { 12, 10 }, 34, 120 } };
/* Ranges of two boxes: what two tensor-parallel ranks have is cut over two shards each. */
static const struct part mixed[] = {
	{ { 0, 0 }, { 12, 3 }, 0, 17 }, { { 0, 0 }, { 12, 3 }, 17, 36 },
	{ { 0, 3 }, { 12, 7 }, 0, 50 }, { { 0, 3 }, { 12, 7 }, 50, 84 } };

static void held(struct hand *h)
{
	static const char *const names[][3] = { { "model", "a.w", "a.w" },
		{ "optimizer", "a.w/moment1_0", "m" }, { "master_weights", "a.w", "w" } };

	for (int i = 0; i < (h->play->variant ? 3 : 1); i++) {
		struct sheaf_slice *s = hand_add(h, names[i][0], names[i][1], SHEAF_F32, 2, 12, 10);

		hand_as(h, "model", names[i][2]);
		hand_cut(s, i % 2, h->rank, h->ranks);
	}
}

/* Loads "a.w", or all families, in any layout. */
static void loads(struct simdisk *disk, bool families)
{
	foreign_loads(disk, DIR_FC, 4, held, families, families ? 3 : 1);
}

TEST(boxes_load_in_any_layout)
{
	for (int flaw = FLEX_SOUND; flaw <= FLEX_FIRST; flaw++) {
		struct simdisk *disk = disk_new();

		put_folder(disk, DIR_FC, "a.w", "a.w", boxes, 3, (enum flex_flaw)flaw);
		loads(disk, false);
	}
}

/* Of so many parts the place of one is looked for among all places, and not only near the last
 * one. */
TEST(many_parts_are_found_in_any_order)
{
	struct part many[60];

	for (int i = 0; i < 60; i++)
		many[i] = (struct part){ { i / 5, 2 * (i % 5) }, { 1, 2 }, 0, 0 };
	for (int flaw = FLEX_SOUND; flaw <= FLEX_FIRST; flaw++) {
		struct simdisk *disk = disk_new();

		put_folder(disk, DIR_FC, "a.w", "a.w", many, 60, (enum flex_flaw)flaw);
		loads(disk, false);
	}
}

TEST(the_folders_of_a_trainer_are_families_with_the_names_of_sheaf)
{
	struct simdisk *disk = disk_new();

	put_folder(disk, DIR_FC "/model_state", "a.w", "a.w", boxes, 3, FLEX_SOUND);
	put_folder(disk, DIR_FC "/optimizer_state", "a.w.moment1_0", "m", ranges, 3, FLEX_SOUND);
	put_folder(disk, DIR_FC "/master_weight", "a.w.w_0", "w", mixed, 4, FLEX_SOUND);
	loads(disk, true);
}

TEST(metadata_that_do_not_fit_their_files_are_refused_by_what_is_wrong)
{
	static const struct { enum flex_flaw flaw; const char *why; } flaws[] = {
		{ FLEX_GAP, "tensor a.w: [0:7, 4:10] is in no chunk" },
		{ FLEX_LEAVES, "has a part that leaves it" },
		{ FLEX_NO_PLACE, "has a part that is in no file" },
		{ FLEX_NO_FILE, "fc/77_0.distcp: missing, but the metadata names it" },
		{ FLEX_OUTSIDE, "names the file ../0_0.distcp, which is not a file directly in "
		  "it" },
		{ FLEX_TWO_TYPES, "has parts of two types" },
		{ FLEX_STRANGE, "is not Metadata of paddle.distributed" },
		{ FLEX_CALL, "would call os.system; nothing of it was executed" },
	};
	static const struct { enum flex_flaw flaw; const char *why; } of_ranges[] = {
		{ FLEX_LONG_RANGE, "has a flat range that leaves its box" },
		{ FLEX_TURNED_RANGE, "is not Metadata of paddle.distributed" },
	};
	static const struct part twice[] = { { { 0, 0 }, { 12, 10 }, 0, 0 },
		{ { 3, 0 }, { 1, 10 }, 0, 0 } };
	struct simdisk *disk;

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++) {
		disk = disk_new();
		put_folder(disk, DIR_FC, "a.w", "a.w", boxes, 3, flaws[i].flaw);
		foreign_refused(disk, DIR_FC, flaws[i].why);
	}
	for (size_t i = 0; i < 2; i++) {
		disk = disk_new();
		put_folder(disk, DIR_FC, "a.w", "a.w", ranges, 3, of_ranges[i].flaw);
		foreign_refused(disk, DIR_FC, of_ranges[i].why);
	}
	disk = disk_new();
	put_folder(disk, DIR_FC, "a.w", "a.w", twice, 2, FLEX_SOUND);
	foreign_refused(disk, DIR_FC, "has 120 items, but its chunks have 130 together, so some "
	                "item is in several chunks");
}

static void count_finding(void *arg, bool is_sum, const char *file, int64_t offset,
                          const struct sheaf_error *e)
{
	CHECK(!is_sum && file && offset == -1 && e->msg[0]);
	++*(int *)arg;
}

/* Fails the test unless it can be opened, and reading its tensor is refused with this in the
 * sentence, and a verification finds at least one fault. Frees the disk. */
static void unreadable(struct simdisk *disk, const char *why)
{
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	int findings = 0;
	struct shf_foreign_findings to = { .found = count_finding, .arg = &findings };
	const struct shf_foreign_tensor *t;
	struct shf_foreign *f = NULL;
	struct sheaf_error err = { .msg = "" };
	uint8_t values[480];
	size_t n;

	CHECK_RC(shf_foreign_open(&f, sys, DIR_FC, &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	CHECK_INT(n, 1);
	CHECK_INT(t->bytes, sizeof(values));
	CHECK_RC(shf_foreign_gather(f, t, values, sizeof(values), 0, &err), SHEAF_EFORMAT, &err);
	if (!strstr(err.msg, why) || strncmp(err.msg, DIR_FC "/", strlen(DIR_FC "/")))
		fail_msg("want '%s', got: %s", why, err.msg);
	CHECK_RC(f->format->verify(f, &to, &err), 0, &err);
	CHECK(findings > 0 && to.unproved);
	shf_foreign_free(f);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
}

TEST(files_that_are_not_as_the_metadata_say_are_refused_when_they_are_read)
{
	static const struct { enum flex_flaw flaw; const char *why; } flaws[] = {
		{ FLEX_OTHER_SHAPE, "has another shape in its file than the metadata say" },
		{ FLEX_NO_KEY, "is not in this file, in which the metadata say it is" },
		{ FLEX_OTHER_TYPE, "1_0.distcp: tensor a.w: has another type in its file" },
		{ FLEX_TWICE, "has two arrays in this file" },
		{ FLEX_ONE_FILE, "has two parts in this file, and one array for both" },
	};

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++) {
		struct simdisk *disk = disk_new();

		put_folder(disk, DIR_FC, "a.w", "a.w", boxes, 3, flaws[i].flaw);
		unreadable(disk, flaws[i].why);
	}
}

/* Metadata that do not say a type that is known leave it to the arrays. */
TEST(a_type_that_the_metadata_do_not_say_is_that_of_the_arrays)
{
	for (int flaw = FLEX_SOUND; flaw <= FLEX_OTHER_TYPE; flaw += FLEX_OTHER_TYPE) {
		struct simdisk *disk = disk_new();
		struct torch_bytes b = { 0 };

		put_folder(disk, DIR_FC, "a.w", "a.w", boxes, 3, (enum flex_flaw)flaw);
		put_metadata(&b, "a.w", "VarType.FP32", boxes, 3, FLEX_SOUND);
		CHECK_INT(simdisk_put(disk, DIR_FC "/0.metadata", b.p, b.n), 0);
		free(b.p);
		if (flaw == FLEX_SOUND)
			loads(disk, false);
		else
			unreadable(disk, "1_0.distcp: tensor a.w: has another type in its file");
	}
}

TEST(a_file_or_metadata_that_are_cut_anywhere_are_refused)
{
	static const char *const names[] = { DIR_FC "/0.metadata", DIR_FC "/1_0.distcp" };

	for (int k = 0; k < 2; k++) {
		struct simdisk *disk = disk_new();
		uint8_t *bytes;
		size_t n = 0;

		put_folder(disk, DIR_FC, "a.w", "a.w", boxes, 3, FLEX_SOUND);
		bytes = simdisk_get(disk, names[k], &n);
		simdisk_free(disk);
		for (size_t cut = k ? 0 : 60; cut < n; cut++) {
			disk = disk_new();
			put_folder(disk, DIR_FC, "a.w", "a.w", boxes, 3, FLEX_SOUND);
			CHECK_INT(simdisk_put(disk, names[k], bytes, cut), 0);
			if (k)
				unreadable(disk, names[k]);
			else
				foreign_refused(disk, DIR_FC, names[k]);
		}
		free(bytes);
	}
}

TEST(a_folder_without_metadata_is_a_save_that_has_not_finished)
{
	struct simdisk *disk = disk_new();

	put_folder(disk, DIR_FC "/model_state", "a.w", "a.w", boxes, 3, FLEX_SOUND);
	put_file(disk, DIR_FC "/optimizer_state", 0, "a.w.moment1_0", "m", &boxes[0], FLEX_SOUND);
	foreign_refused(disk, DIR_FC, "fc/optimizer_state: has .distcp files, but no metadata");
}

TEST(a_folder_that_cannot_be_opened_is_not_passed_over)
{
	struct simdisk *disk = disk_new();
	struct sheaf_error err;
	char note[400];

	put_folder(disk, DIR_FC "/model_state", "a.w", "a.w", boxes, 3, FLEX_SOUND);
	put_folder(disk, DIR_FC "/optimizer_state", "a.w.moment1_0", "m", ranges, 3, FLEX_SOUND);
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .kind = SIMDISK_OPEN,
	                                             .error = EACCES, .name = "optimizer_state" });
	CHECK_RC(foreign_opens(disk, DIR_FC, "", note, &err), SHEAF_EIO, &err);
	CHECK_STR(err.msg, "fc/optimizer_state: Permission denied");
	simdisk_free(disk);
}

/* A save into the same directory takes the next number. */
TEST(the_newest_metadata_of_a_directory_is_read)
{
	struct simdisk *disk = disk_new();
	struct torch_bytes b = { 0 };

	put_folder(disk, DIR_FC, "a.w", "a.w", boxes, 3, FLEX_SOUND);
	put_metadata(&b, "a.w", "float32", boxes, 3, FLEX_SOUND);
	CHECK_INT(simdisk_put(disk, DIR_FC "/10.metadata", b.p, b.n), 0);
	CHECK_INT(simdisk_put(disk, DIR_FC "/9.metadata", "no pickle", 9), 0);
	free(b.p);
	loads(disk, false);
}

TEST(each_allocation_may_fail)
{
	struct simdisk *disk = disk_new();

	put_folder(disk, DIR_FC "/model_state", "a.w", "a.w", boxes, 3, FLEX_TURNED);
	put_folder(disk, DIR_FC "/master_weight", "a.w.w_0", "w", mixed, 4, FLEX_SAME);
	foreign_survives(disk, DIR_FC, 1, 9);   /* records are not used again; one a pickle */
	simdisk_free(disk);
}
