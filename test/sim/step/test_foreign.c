/* SPDX-License-Identifier: Apache-2.0 */
/* Other people's directories and files, by path: plain Hugging Face ones with and without an index,
 * shards, links, odd offsets; and what is refused with a sentence. */
#include "hands.h"
#include <stdlib.h>
#include "t.h"
#include "read_slice.h"

#define N1 "model-00001-of-00002.safetensors"
#define N2 "model-00002-of-00002.safetensors"
#define F1 "hf/" N1
#define F2 "hf/" N2
#define INDEX "hf/model.safetensors.index.json"

static const struct hand_tensor first[] = {
	{ "embed", SHEAF_BF16, 2, { 301, 37 } },
	{ "l.0.w", SHEAF_F32, 2, { 29, 13 } },
};
static const struct hand_tensor second[] = {
	{ "l.1.w", SHEAF_F32, 2, { 29, 13 } },
	{ "norm", SHEAF_F16, 1, { 37 } },
};

static void put(struct simdisk *disk, const char *path, const char *text)
{
	CHECK_INT(simdisk_put(disk, path, text, strlen(text)), 0);
}

static void put_index(struct simdisk *disk, const char *one, const char *two)
{
	char text[1000];

	snprintf(text, sizeof(text), "{\"metadata\":{\"total_size\":1},\"weight_map\":{"
	         "\"embed\":\"%s\",\"l.0.w\":\"%s\",\"l.1.w\":\"%s\",\"norm\":\"%s\"}}\n",
	         one, one, two, two);
	put(disk, INDEX, text);
}

static struct simdisk *hf(int pad)
{
	struct simdisk *disk = disk_new();

	hands_file(disk, F1, first, 2, pad);
	hands_file(disk, F2, second, 2, pad + 3);
	put(disk, "hf/config.json", "{}\n");
	put_index(disk, N1, N2);
	return disk;
}

/* All four tensors over the ranks: rows, columns, flat, whole. */
static void held(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "embed", SHEAF_BF16, 2, 301, 37);

	hand_cut(s, 0, h->rank, h->ranks);
	s = hand_add(h, "model", "l.0.w", SHEAF_F32, 2, 29, 13);
	hand_cut(s, 1, h->rank, h->ranks);
	s->stride[0] = 1;
	s->stride[1] = 31;
	s = hand_add(h, "model", "l.1.w", SHEAF_F32, 2, 29, 13);
	s->flags = SHEAF_SLICE_FLAT;
	s->flat_start = 377 * h->rank / h->ranks;
	s->flat_count = 377 * (h->rank + 1) / h->ranks - s->flat_start;
	hand_add(h, "model", "norm", SHEAF_F16, 1, 37);
}

static struct play by_path(struct simdisk *disk, const char *path, int ranks)
{
	struct play p = hands_play(disk, ranks, held);

	p.path = path;
	p.opts.flags = 0;
	return p;
}

static const int32_t apart[4] = { 1, 1, 2, 3 };

static void loads_everywhere(struct simdisk *disk, const char *path)
{
	static const int ranks[] = { 1, 3, 4 };

	for (int k = 0; k < 4; k++) {
		struct play p = by_path(disk, path, ranks[k % 3]);

		p.nodes = k == 3 || k == 2 ? apart : NULL;
		p.flags = SHEAF_LOAD_STRICT;
		LOADED(p);
		CHECK_INT(p.report.loaded, 4);
		CHECK_INT(p.report.unverified, 4);
		CHECK(strstr(p.told, "V model/embed: no manifest") != NULL);
	}
}

TEST(a_plain_directory_loads_in_any_layout_with_and_without_its_index)
{
	for (int pad = 0; pad < 8; pad++) { /* also where nothing is aligned to its item */
		struct simdisk *disk = hf(pad);

		loads_everywhere(disk, "hf");
		CHECK_INT(simdisk_remove(disk, INDEX), 0);
		loads_everywhere(disk, "hf");
		simdisk_free(disk);
	}
}

static void one_file(struct hand *h)
{
	struct sheaf_slice *s;

	hand_add(h, "model", "l.1.w", SHEAF_F32, 2, 29, 13);
	s = hand_add(h, "model", "norm", SHEAF_F16, 1, 37);
	hand_cut(s, 0, h->rank, h->ranks);
}

TEST(a_single_file_loads_by_its_path)
{
	struct simdisk *disk = hf(1);
	struct play p = by_path(disk, F2, 3);

	p.hold = one_file;
	p.flags = SHEAF_LOAD_STRICT;
	LOADED(p);
	CHECK_INT(p.report.unverified, 2);
	CHECK_INT(simdisk_remove(disk, F1), 0);
	LOADED(p);
	simdisk_free(disk);
}

TEST(a_missing_shard_is_told_by_index_and_by_name)
{
	struct simdisk *disk = hf(0);
	struct play p = by_path(disk, "hf", 2);

	CHECK_INT(simdisk_remove(disk, F2), 0);
	REFUSED(p, SHEAF_ECORRUPT, "the index names model-00002-of-00002.safetensors");
	CHECK_INT(simdisk_remove(disk, INDEX), 0);
	REFUSED(p, SHEAF_ECORRUPT, "model-00002-of-00002.safetensors is missing");
	simdisk_free(disk);
}

TEST(an_index_may_not_reach_out_of_its_directory)
{
	static const char *const evil[] = { "../out.safetensors", "/etc/x.safetensors", "..",
		"a/b.safetensors", "" };

	for (int k = 0; k < 5; k++) {
		struct simdisk *disk = hf(0);
		struct play p = by_path(disk, "hf", 2);

		hands_file(disk, "out.safetensors", second, 2, 0);
		put_index(disk, N1, evil[k]);
		CHECK_RC(hands_load(&p), SHEAF_EFORMAT, &p.err);
		CHECK_INT(p.wrong, 0);
		CHECK(strstr(p.err.msg, "index.json") != NULL);
		simdisk_free(disk);
	}
}

TEST(links_of_a_hub_cache_are_followed)
{
	struct simdisk *disk = disk_new();

	hands_file(disk, "blobs/aaaa", first, 2, 0);
	hands_file(disk, "blobs/bbbb", second, 2, 0);
	put(disk, "snapshots/x/config.json", "{}\n");
	CHECK_INT(simdisk_symlink(disk, "../../blobs/aaaa",
	                          "snapshots/x/model-00001-of-00002.safetensors"), 0);
	CHECK_INT(simdisk_symlink(disk, "../../blobs/bbbb",
	                          "snapshots/x/model-00002-of-00002.safetensors"), 0);
	loads_everywhere(disk, "snapshots/x");
	simdisk_free(disk);
}

TEST(a_tensor_in_two_shards_is_refused_unless_an_index_chooses)
{
	struct simdisk *disk = hf(0);
	struct play p = by_path(disk, "hf", 2);
	struct hand_tensor both[3] = { second[0], second[1], first[1] };

	hands_file(disk, F2, both, 3, 0);
	p.flags = SHEAF_LOAD_STRICT;
	LOADED(p);
	CHECK_INT(simdisk_remove(disk, INDEX), 0);
	REFUSED(p, SHEAF_EFORMAT, "tensor l.0.w is in model-00001-of-00002.safetensors and in");
	simdisk_free(disk);
}

static void odd(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "d", SHEAF_F64, 2, 31, 7);

	hand_cut(s, 1, h->rank, h->ranks);
	s = hand_add(h, "model", "c", SHEAF_F64, 1, 5);
	s->data_dtype = SHEAF_F32;
	hand_add(h, "model", "b", SHEAF_U8, 1, 3);
}

TEST(items_at_odd_offsets_load)
{
	static const struct hand_tensor t[] = { { "b", SHEAF_U8, 1, { 3 } },
		{ "d", SHEAF_F64, 2, { 31, 7 } }, { "c", SHEAF_F64, 1, { 5 } } };

	for (int pad = 0; pad < 8; pad++) {
		struct simdisk *disk = disk_new();
		struct play p = by_path(disk, "m.safetensors", 3);
		int told;

		hands_file(disk, "m.safetensors", t, 3, pad);
		p.hold = odd;
		p.flags = SHEAF_LOAD_STRICT;
		LOADED(p);
		CHECK_INT(p.report.unverified, 3);
		told = hands_told(&p, 'V');
		p.takes = 2;
		LOADED_AT_ONCE(p);
		CHECK_INT(p.report.unverified, 3);
		CHECK(told >= 3 && hands_told(&p, 'V') == told);
		p.nodes = apart;
		LOADED(p);
		simdisk_free(disk);
	}
}

static void wide(struct hand *h)
{
	hand_add(h, "model", h->play->variant ? "w9" : "b", SHEAF_U8, 1,
		 h->play->variant ? 512 : 3);
}

static int wide_act(struct hand *h)
{
	uint8_t got[100];
	struct sheaf_slice bytes = { .size = sizeof(bytes), .name = "w9", .dtype = SHEAF_U8,
		.ndim = 1, .shape = { 512 }, .start = { 200 }, .count = { 100 }, .data = got };
	struct sheaf_checkpoint *step = NULL;
	int rc =
	    shf_step_open_path(&step, "m.safetensors", h->group, &h->play->opts, h->sys, &h->err);

	if (rc == 0 && (step->layout.tensors_n != 2 || step->layout.tensors[1].wide != 9))
		rc = SHEAF_EBUG;
	for (int d = 0; rc == 0 && d < 9; d++)
		if (step->layout.tensors[1].dims[d] != 2)
			rc = SHEAF_EBUG;
	rc = rc ? rc : shf_step_read(step, &bytes, &h->err);
	for (int i = 0; rc == 0 && i < 100; i++)
		if (got[i] != hand_value("model", "w9", SHEAF_U8, 200 + i))
			rc = SHEAF_EBUG;
	bytes.shape[0] = 511;
	if (rc == 0 && shf_step_read(step, &bytes, &h->err) != SHEAF_EFORMAT)
		rc = SHEAF_EBUG;
	shf_step_put(step);
	return rc;
}

TEST(nine_dimensions_are_listed_and_read_as_bytes_and_not_loaded)
{
	static const struct hand_tensor t[] = { { "b", SHEAF_U8, 1, { 3 } },
		{ "w9", SHEAF_U8, 9, { 2, 2, 2, 2, 2, 2, 2, 2, 2 } } };
	struct simdisk *disk = disk_new();
	struct play p = by_path(disk, "m.safetensors", 2);

	hands_file(disk, "m.safetensors", t, 2, 0);
	p.hold = wide;
	LOADED(p);
	CHECK_RC(hands_run(&p, wide_act, false), 0, &p.err);
	p.variant = 1;
	REFUSED(p, SHEAF_EFORMAT, "9 dimensions, at most 8");
	simdisk_free(disk);
}

TEST(what_is_no_checkpoint_is_refused_with_a_sentence)
{
	struct simdisk *disk = disk_new();
	struct play p = by_path(disk, "nowhere", 2);

	REFUSED(p, SHEAF_ENOENT, "nowhere");
	put(disk, "dir/readme.txt", "x");
	p.path = "dir";
	REFUSED(p, SHEAF_EFORMAT, "no sheaf.json and no *.safetensors");
	p.path = "dir/readme.txt";
	REFUSED(p, SHEAF_EFORMAT, "safetensors");
	put(disk, "cut/model.safetensors", "\x10\0\0\0\0\0\0\0{");
	p.path = "cut";
	REFUSED(p, SHEAF_EFORMAT, "model.safetensors");
	put(disk, "dir/x.safetensors", "");
	p.path = "dir";
	REFUSED(p, SHEAF_EFORMAT, "x.safetensors");
	simdisk_free(disk);
}

/* ---- our own, by path ---- */

static struct simdisk *ours(void)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 2, held);

	SAVED(p);
	return disk;
}

static const char *const files[] = { "model-00001-of-00001.safetensors", "sheaf.json", "sheaf.sums",
	"model.safetensors.index.json" };

static void copy_step(struct simdisk *disk, const char *from, const char *to)
{
	for (int k = 0; k < 4; k++) {
		char a[200], b[200];
		size_t n;
		void *bytes;

		snprintf(a, sizeof(a), "%s/%s", from, files[k]);
		snprintf(b, sizeof(b), "%s/%s", to, files[k]);
		bytes = simdisk_get(disk, a, &n);
		CHECK(bytes != NULL);
		CHECK_INT(simdisk_put(disk, b, bytes, n), 0);
		free(bytes);
	}
}

TEST(a_copied_or_renamed_step_opens_by_path_and_is_verified)
{
	struct simdisk *disk = ours();
	struct play p = by_path(disk, "elsewhere/best", 3);

	copy_step(disk, "run/checkpoint-7", "elsewhere/best");
	CHECK_INT(simdisk_remove(disk, "run"), 0);
	simdisk_set_read_only(disk, true);
	p.flags = SHEAF_LOAD_STRICT;
	LOADED(p);
	CHECK_INT(p.report.unverified, 0);
	simdisk_set_read_only(disk, false);
	CHECK_INT(simdisk_flip(disk, "elsewhere/best/model-00001-of-00001.safetensors", 8 * 5000),
		  0);
	CHECK_RC(hands_load(&p), SHEAF_ECORRUPT, &p.err);
	p.opts.flags = SHEAF_RUN_UNVERIFIED;
	CHECK_RC(hands_load(&p), 0, &p.err);
	CHECK(p.report.unverified > 0);
	simdisk_free(disk);
}

TEST(a_step_under_the_number_of_another_is_corrupt)
{
	struct simdisk *disk = ours();
	struct play p = hands_play(disk, 2, held);

	copy_step(disk, "run/checkpoint-7", "run/checkpoint-9");
	p.step = 9;
	REFUSED(p, SHEAF_ECORRUPT, "its manifest is that of step 7");
	p.step = 7;
	LOADED(p);
	simdisk_free(disk);
}

TEST(a_step_of_another_run_is_corrupt_by_number_and_opens_by_path)
{
	struct simdisk *disk = ours(), *other = simdisk_new(77, SIMDISK_STRICT);
	struct play p = hands_play(other, 2, held);

	p.step = 9;
	SAVED(p);
	for (int k = 0; k < 4; k++) {
		char path[200];
		size_t n;
		void *bytes;

		snprintf(path, sizeof(path), "run/checkpoint-9/%s", files[k]);
		bytes = simdisk_get(other, path, &n);
		CHECK_INT(simdisk_put(disk, path, bytes, n), 0);
		free(bytes);
	}
	p.disk = disk;
	REFUSED(p, SHEAF_ECORRUPT, "its manifest is that of another run");
	p.path = "run/checkpoint-9";
	p.opts.flags = 0;
	LOADED(p);
	simdisk_free(disk);
	simdisk_free(other);
}

TEST(a_half_deleted_step_stops_nobody)
{
	for (int k = 0; k < 3; k++) { /* not the index: that one is rebuilt */
		struct simdisk *disk = ours();
		struct play p = hands_play(disk, 2, held);
		char path[200];

		p.step = 8;
		SAVED(p);
		snprintf(path, sizeof(path), "run/checkpoint-8/%s", files[k]);
		CHECK_INT(simdisk_remove(disk, path), 0);
		p.step = 7;
		LOADED(p);
		p.step = 8;
		CHECK_RC(hands_load(&p), SHEAF_ECORRUPT, &p.err);
		CHECK_INT(p.wrong, 0);
		CHECK(strstr(p.err.msg, "checkpoint-8") != NULL);
		p.step = 9;
		SAVED(p);
		LOADED(p);
		simdisk_free(disk);
	}
}

TEST(what_is_left_of_a_step_does_not_keep_its_number)
{
	struct simdisk *disk = ours();
	struct play p = hands_play(disk, 2, held);

	p.step = 8;
	SAVED(p);
	CHECK_INT(simdisk_remove(disk, "run/checkpoint-8/sheaf.json"), 0);
	SAVED(p); /* what was there is set aside, not deleted */
	LOADED(p);
	CHECK_INT(simdisk_remove(disk, "run/checkpoint-8"), 0);
	CHECK_INT(simdisk_put(disk, "run/checkpoint-8/notes.txt", "mine", 4), 0);
	CHECK_RC(hands_save(&p), SHEAF_EEXIST, &p.err); /* that is somebody else's */
	CHECK(simdisk_exists(disk, "run/checkpoint-8/notes.txt"));
	simdisk_free(disk);
}

TEST(a_lost_index_of_ours_is_rebuilt_in_memory)
{
	struct simdisk *disk = ours();
	struct play p = hands_play(disk, 2, held);

	CHECK_INT(simdisk_remove(disk, "run/checkpoint-7/model.safetensors.index.json"), 0);
	p.flags = SHEAF_LOAD_STRICT;
	LOADED(p);
	CHECK_INT(p.report.unverified, 0);
	simdisk_free(disk);
}
