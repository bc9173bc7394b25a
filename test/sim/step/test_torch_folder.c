/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of Hugging Face with weights in torch.save files: loaded with and without their
 * index, and refused with a sentence where a file is missing. */
#include "foreign.h"
#include "t.h"
#include "foreign_plays.h"
#include "repair_index.h"
#include "step_open.h"

#define B1 "pytorch_model-00001-of-00002.bin"
#define B2 "pytorch_model-00002-of-00002.bin"
#define INDEX "pytorch_model.bin.index.json"

static const struct torch_tensor first[] = {
	{ .name = "a.w", .dtype = SHEAF_F32, .ndim = 2, .shape = { 37, 29 } },
	{ .name = "a.h", .dtype = SHEAF_BF16, .ndim = 2, .shape = { 31, 41 }, .stride = { 1, 31 } },
};
static const struct torch_tensor second[] = {
	{ .name = "b.w", .dtype = SHEAF_F32, .ndim = 2, .shape = { 37, 29 } },
};
static const char right[] = "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a.h\":\"" B1
	"\",\"a.w\":\"" B1 "\",\"b.w\":\"" B2 "\"}}";

static void held(struct hand *h)
{
	hand_cut(hand_add(h, "model", "a.w", SHEAF_F32, 2, 37, 29), 0, h->rank, h->ranks);
	hand_cut(hand_add(h, "model", "a.h", SHEAF_BF16, 2, 31, 41), 1, h->rank, h->ranks);
	hand_add(h, "model", "b.w", SHEAF_F32, 2, 37, 29);
}

static void put(struct simdisk *disk, const char *path, const char *text)
{
	CHECK_INT(simdisk_put(disk, path, text, strlen(text)), 0);
}

static void put_archive(struct simdisk *disk, const char *path, const struct torch_tensor *t, int n)
{
	struct torch_bytes b = torch_archive(t, n, TORCH_SOUND);

	CHECK_INT(simdisk_put(disk, path, b.p, b.n), 0);
	free(b.p);
}

/* index NULL: it has none. */
static struct simdisk *bins(const char *index)
{
	struct simdisk *disk = disk_new();

	put_archive(disk, "hf/" B1, first, 2);
	put_archive(disk, "hf/" B2, second, 1);
	put(disk, "hf/config.json", "{}");
	if (index)
		put(disk, "hf/" INDEX, index);
	return disk;
}

/* What is said of it, as evidence. */
static void evidence_is(struct simdisk *disk, const char *want)
{
	struct sheaf_error err;
	struct shf_foreign *f;

	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 78, 0), "hf", &err), 0, &err);
	if (!strstr(f->why, want))
		fail_msg("want '%s', got '%s'", want, f->why);
	shf_foreign_free(f);
}

TEST(a_whole_file_comes_before_an_index_of_shards)
{
	struct simdisk *disk = bins(right);
	struct sheaf_error err;
	struct shf_foreign *f;
	size_t n;

	put_archive(disk, "hf/pytorch_model.bin", second, 1);
	evidence_is(disk, INDEX ": names other files, and pytorch_model.bin is there, which "
	            "transformers reads instead; remove what is old; the files themselves");
	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 78, 0), "hf", &err), 0, &err);
	CHECK_STR(shf_foreign_tensors(f, &n)->name, "b.w");
	CHECK_INT(n, 1);
	shf_foreign_free(f);
	simdisk_free(disk);
}

static const struct { const char *index, *why; } indexes[] = {
	{ right, "torch.save files with the names of weights of Hugging Face" },
	{ NULL, INDEX ": missing; the files themselves were read instead" },
	{ "{\"weight_map\":{\"a.h\":", INDEX ": unexpected end at byte 21; the files" },
	{ "{\"weight_map\":{}}", INDEX ": it lists no tensor; the files" },
	{ "{\"weight_map\":{\"a.w\":\"" B1 "\"}}", INDEX ": 2 tensors, such as a.h, are not in it; "
	  "the files" },
	{ "{\"weight_map\":{\"a.w\":\"" B2 "\",\"b.w\":\"" B1 "\",\"a.h\":\"" B1 "\"}}",
	  INDEX ": 2 tensors, such as a.w, are in other files than it says; the files" },
	{ "{\"weight_map\":{\"a.w\":\"gone.bin\",\"b.w\":\"" B2 "\",\"a.h\":\"" B1 "\"}}",
	  INDEX ": tensor a.w is in another file than it says; the files" },
};

static int repair(struct simdisk *disk)
{
	struct sheaf_checkpoint *step = NULL;
	struct shf_opts o = { .flags = 0 };
	const struct shf_sys *sys = simdisk_process(disk, 79, 0);
	struct sheaf_error err = { 0 };
	int rc = shf_step_open_path(&step, "hf", NULL, &o, sys, &err);

	rc = rc == 0 ? shf_step_repair_index(step, &err) : rc;
	CHECK(rc >= 0);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	return rc;
}

TEST(weights_load_with_any_index_and_it_is_written_anew)
{
	for (size_t i = 0; i < sizeof(indexes) / sizeof(indexes[0]); i++) {
		struct simdisk *disk = bins(indexes[i].index);

		evidence_is(disk, indexes[i].why);
		CHECK_INT(repair(disk), i > 0);
		evidence_is(disk, indexes[0].why);
		CHECK_INT(repair(disk), 0);
		foreign_loads(disk, "hf", 3, held, 0, 3);
	}
}

/* A dictionary of one tensor that is not read. */
static const char sparse[] = "(dVb.s\nctorch._utils\n_rebuild_sparse_tensor\n(tRs.";

TEST(an_index_may_and_must_list_weights_that_are_not_read)
{
	const char *all = "{\"weight_map\":{\"a.h\":\"" B1 "\",\"a.w\":\"" B1 "\",\"b.s\":\"" B2
	                  "\"}}";
	struct torch_bytes b = torch_archive_of(sparse, strlen(sparse));
	struct simdisk *disk = bins(all);
	struct sheaf_error err;
	char *text, note[400];
	size_t n;

	CHECK_INT(simdisk_put(disk, "hf/" B2, b.p, b.n), 0);
	evidence_is(disk, indexes[0].why);
	CHECK_RC(foreign_opens(disk, "hf", "tensors_not_read", note, &err), 0, &err);
	CHECK_STR(note, "1");
	put(disk, "hf/" INDEX, "{\"weight_map\":{\"a.h\":\"" B1 "\",\"a.w\":\"" B1 "\"}}");
	evidence_is(disk, INDEX ": tensor b.s is not in it; the files");
	CHECK_INT(simdisk_remove(disk, "hf/" INDEX), 0);
	CHECK_INT(repair(disk), 1);
	evidence_is(disk, indexes[0].why);
	text = simdisk_get(disk, "hf/" INDEX, &n);
	CHECK(text && memmem(text, n, "\"b.s\": \"" B2, 8 + strlen(B2)) != NULL);
	free(text);
	free(b.p);
	simdisk_free(disk);
}

TEST(a_single_file_and_one_of_adapters_load)
{
	const struct torch_tensor all[] = { first[0], first[1], second[0] };
	struct simdisk *disk = disk_new();

	put_archive(disk, "hf/pytorch_model.bin", all, 3);
	put_archive(disk, "hf/" B1, first, 2);  /* left from before: that is whole by itself */
	CHECK_INT(repair(disk), 0);
	foreign_loads(disk, "hf", 2, held, 0, 3);
	disk = disk_new();
	put_archive(disk, "hf/adapter_model.bin", all, 3);
	put(disk, "hf/adapter_config.json", "{}");
	foreign_loads(disk, "hf", 2, held, 0, 3);
}

TEST(what_is_not_whole_is_refused)
{
	struct simdisk *disk = bins(right);

	CHECK_INT(simdisk_remove(disk, "hf/" B2), 0);
	foreign_refused(disk, "hf", "the index names " B2 ", which is missing");
	disk = bins(NULL);
	CHECK_INT(simdisk_remove(disk, "hf/" B1), 0);
	foreign_refused(disk, "hf", B1 " is missing");
	foreign_refused(bins("{\"weight_map\":{\"a.w\":\"" B1 "\",\"c.w\":\"" B2 "\"}}"), "hf",
	                "the index says that tensor c.w is in " B2 ", but neither that file nor");
	foreign_refused(bins("{\"weight_map\":{\"a.w\":\"../" B1 "\"}}"), "hf",
	                INDEX ": file in weight_map that is not a plain file name");
	disk = bins(right);
	put(disk, "hf/" B2, "no archive");
	foreign_refused(disk, "hf", B2 ": is not a torch.save file");
	disk = bins(right);
	put_archive(disk, "hf/" B2, first, 1);
	foreign_refused(disk, "hf", "two tensors have the name a.w");
}

TEST(a_directory_of_safetensors_files_is_read_by_these)
{
	const struct shf_sys *sys;
	struct simdisk *disk = bins(right);
	struct sheaf_error err;

	put(disk, "hf/model.safetensors", "");
	sys = simdisk_process(disk, 80, 0);
	CHECK_INT(shf_foreign_is_here(sys, "hf", &err), 0);
	simdisk_free(disk);
}

TEST(a_file_that_is_cut_anywhere_is_refused)
{
	struct torch_bytes b = torch_archive(second, 1, TORCH_SOUND);

	for (size_t n = 0; n < b.n; n += 1 + b.n / 97) {
		struct simdisk *disk = bins(right);

		CHECK_INT(simdisk_put(disk, "hf/" B2, b.p, n), 0);
		foreign_refused(disk, "hf", "hf/" B2);
	}
	free(b.p);
}
