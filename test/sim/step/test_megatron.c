/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of Megatron-Core: boxes and flat ranges of boxes, loaded in any layout under the
 * names that Sheaf gives them, and refused with a sentence where files do not fit. */
#include "foreign.h"
#include "t.h"
#include "foreign_plays.h"
#include "megatronfile.h"
#include "step_open.h"

/* All layers are one tensor, cut at each layer and among ranks. */
static const struct megatron_tensor all[] = {
	{ "decoder.w", "model", "decoder.w", SHEAF_BF16, { 3, 22, 14 }, { 3, 2, 1 }, false },
	{ "optimizer.state.fp32_param.decoder.w", "master_weights", "decoder.w", SHEAF_F32,
	  { 3, 22, 14 }, { 3, 2, 1 }, true },
	{ "optimizer.state.exp_avg.decoder.w", "optimizer", "decoder.w/moment1_0", SHEAF_F32,
	  { 3, 22, 14 }, { 3, 1, 2 }, true },
	{ "chained_1.optimizer.state.exp_avg_sq.decoder.w", "optimizer", "decoder.w/moment2_0",
	  SHEAF_F32, { 3, 22, 14 }, { 1, 2, 2 }, true },
	{ "optimizer.distributed.b.exp_avg", "optimizer", "optimizer.distributed.b.exp_avg",
	  SHEAF_F32, { 2, 3, 5 }, { 2, 1, 1 }, false },
};
#define ALL ((int)(sizeof(all) / sizeof(all[0])))

static void held(struct hand *h)
{
	for (int i = 0; i < ALL; i++) {
		struct sheaf_slice *s = hand_add(h, all[i].family, all[i].name, all[i].dtype, 3,
		                                 (int)all[i].shape[0], (int)all[i].shape[1],
		                                 (int)all[i].shape[2]);

		if (i != 2) {
			hand_cut(s, i == 1 ? 2 : 1, h->rank, h->ranks);
			continue;
		}
		s->flags = SHEAF_SLICE_FLAT;
		s->flat_start = 924 * h->rank / h->ranks;
		s->flat_count = 924 * (h->rank + 1) / h->ranks - s->flat_start;
	}
}

static struct simdisk *dist(enum megatron_flaw flaw)
{
	struct simdisk *disk = disk_new();

	megatron_dist(disk, "m", all, ALL, flaw);
	return disk;
}

TEST(boxes_and_flat_ranges_load_in_any_layout)
{
	foreign_loads(dist(MEGATRON_SOUND), "m", 4, held, 0, ALL);
}

static void put(struct simdisk *disk, const char *path, const char *text)
{
	CHECK_INT(simdisk_put(disk, path, text, strlen(text)), 0);
}

TEST(the_newest_iteration_is_followed)
{
	static const char *const names[][2] = { { "7", "iter_0000007" }, { "12345678\n",
		"iter_12345678" }, { "release", "release" } };

	for (int i = 0; i < 3; i++) {
		struct simdisk *disk = disk_new();
		struct sheaf_error err;
		char path[40], note[400];

		snprintf(path, sizeof(path), "m/%s", names[i][1]);
		megatron_dist(disk, path, all, ALL, MEGATRON_SOUND);
		megatron_dist(disk, "m/iter_0000001", all, 1, MEGATRON_SOUND);
		put(disk, "m/latest_checkpointed_iteration.txt", names[i][0]);
		CHECK_RC(foreign_opens(disk, "m", "iteration", note, &err), 0, &err);
		CHECK_STR(note, "7");
		foreign_loads(disk, "m", 2, held, 0, ALL);
	}
}

TEST(what_is_in_common_pt_is_noted)
{
	struct simdisk *disk = dist(MEGATRON_SOUND);
	struct sheaf_error err;
	char note[400];

	CHECK_RC(foreign_opens(disk, "m", "args.num_layers", note, &err), 0, &err);
	CHECK_STR(note, "3");
	simdisk_free(disk);
}

/* Of the first flaw that is found when a tensor is read. */
static void reading_is_refused(enum megatron_flaw flaw, const char *why)
{
	struct simdisk *disk = dist(flaw);
	struct play p = foreign_play(disk, "m", 1, held);

	CHECK_RC(hands_load(&p), SHEAF_EFORMAT, &p.err);
	if (!strstr(p.err.msg, why))
		fail_msg("%s", p.err.msg);
	simdisk_free(disk);
}

TEST(flat_ranges_that_do_not_make_the_tensor_are_refused)
{
	foreign_refused(dist(MEGATRON_GAP), "m", "is in no chunk");
	foreign_refused(dist(MEGATRON_OVERLAP), "m", "is in several chunks");
	foreign_refused(dist(MEGATRON_OTHER_SHAPE), "m", "is stored flat, in a shape that its true "
	                "shape in mcore_data does not fit");
	foreign_refused(dist(MEGATRON_TWO_BOXES), "m", "a chunk of a flat tensor is more than one "
	                "box");
	reading_is_refused(MEGATRON_SHORT_ITEM, "is not the chunk of tensor decoder.w");
	reading_is_refused(MEGATRON_STRIDE, "a flat range of tensor decoder.w, has a stride");
}

static void refused_without(const char *file, const char *why)
{
	struct simdisk *disk = dist(MEGATRON_SOUND);
	char path[100];

	snprintf(path, sizeof(path), "m/%s", file);
	CHECK_INT(simdisk_remove(disk, path), 0);
	foreign_refused(disk, "m", why);
}

static void refused_with(const char *file, const char *text, const char *why)
{
	struct simdisk *disk = dist(MEGATRON_SOUND);
	char path[100];

	snprintf(path, sizeof(path), "m/%s", file);
	put(disk, path, text);
	foreign_refused(disk, "m", why);
}

TEST(a_save_that_is_not_whole_is_refused)
{
	refused_without("metadata.json", "writes last, so its save has not finished");
	refused_without(".metadata", ".metadata is missing");
	refused_without("common.pt", "common.pt is missing");
	refused_without("__0_0.distcp", "__0_0.distcp: missing");
	refused_with("metadata.json", "{\"sharded_backend\": \"zarr\", "
	             "\"sharded_backend_version\": 1}", "is in the format zarr, version 1, of");
	refused_with("metadata.json", "{\"sharded_backend\": \"torch_dist\", "
	             "\"sharded_backend_version\": 2}", "is in the format torch_dist, version 2,");
	refused_with("metadata.json", "{\"sharded_backend\": 3}", "does not say which");
	refused_with("metadata.json", "{\"sharded_backend\"", "does not say which");
	refused_with("common.pt", "x", "common.pt: ");
}

TEST(a_folder_that_is_not_there_is_said)
{
	struct simdisk *disk = disk_new();

	megatron_dist(disk, "m/iter_0000001", all, 1, MEGATRON_SOUND);
	put(disk, "m/latest_checkpointed_iteration.txt", "2");
	foreign_refused(disk, "m", "names the folder iter_0000002, which is not there or has no");
}

TEST(other_files_of_that_name_are_not_of_megatron)
{
	struct simdisk *disk = disk_new();
	struct sheaf_error err;

	put(disk, "m/latest_checkpointed_iteration.txt", "2");
	put(disk, "m/global_step_2/x", "");
	CHECK_INT(shf_foreign_is_here(simdisk_process(disk, 80, 0), "m", &err), 0);
	simdisk_free(disk);
}

/* ---- a folder for each rank ---- */

static const struct torch_tensor part[] = {
	{ .name = "model.w", .dtype = SHEAF_F32, .ndim = 2, .shape = { 5, 7 } },
	{ .name = "model1.w", .dtype = SHEAF_BF16, .ndim = 1, .shape = { 9 } },
	{ .name = "optimizer.state.0.exp_avg", .dtype = SHEAF_F32, .ndim = 1, .shape = { 35 } },
	{ .name = "rng_state.0.torch_rng_state", .dtype = SHEAF_U8, .ndim = 1, .shape = { 16 } },
};

static void put_rank(struct simdisk *disk, const char *folder)
{
	struct torch_bytes b = torch_archive(part, 4, TORCH_SOUND);

	megatron_put(disk, folder, "model_optim_rng.pt", &b);
	free(b.p);
}

/* Whether it lists such a tensor. */
static bool lists(struct simdisk *disk, const char *path, const char *family, const char *name)
{
	const struct shf_foreign_tensor *t;
	struct sheaf_error err;
	struct shf_foreign *f;
	bool found = false;
	size_t n;

	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 81, 0), path, &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	for (size_t i = 0; i < n; i++)
		found |= strcmp(t[i].name, name) == 0 &&
		         strcmp(t[i].family ? t[i].family : "model", family) == 0;
	shf_foreign_free(f);
	return found;
}

TEST(ranks_are_listed_by_their_names)
{
	struct simdisk *disk = disk_new();

	put_rank(disk, "m/iter_0000007/mp_rank_00_000");
	put_rank(disk, "m/iter_0000007/mp_rank_00_001");
	put(disk, "m/latest_checkpointed_iteration.txt", "7");
	CHECK(lists(disk, "m", "model", "w@mp00_000"));
	CHECK(lists(disk, "m", "model", "w@mp00_001"));
	CHECK(lists(disk, "m", "model", "model1.w@mp00_001"));
	CHECK(lists(disk, "m", "optimizer", "state.0.exp_avg@mp00_000"));
	CHECK(lists(disk, "m", "rng", "0.torch_rng_state@mp00_001"));
	simdisk_free(disk);
	disk = disk_new();
	put_rank(disk, "m/mp_rank_00"); /* one rank alone needs no number */
	CHECK(lists(disk, "m", "model", "w"));
	simdisk_free(disk);
}

/* A file of a rank that says its iteration, and how many ranks there are. */
static void put_saying(struct simdisk *disk, const char *folder, int64_t iteration, int64_t ranks)
{
	static const char names[] = "cargparse\nNamespace\n)\x81}(";
	struct torch_bytes pickle = { 0 }, b;

	torch_add(&pickle, "\x80\x02}(", 4);
	torch_text(&pickle, "iteration");
	torch_int(&pickle, iteration);
	torch_text(&pickle, "args");
	torch_add(&pickle, names, strlen(names));
	torch_text(&pickle, "tensor_model_parallel_size");
	torch_int(&pickle, ranks);
	torch_add(&pickle, "ubu.", 4);
	b = torch_archive_of(pickle.p, pickle.n);
	megatron_put(disk, folder, "model_optim_rng.pt", &b);
	free(pickle.p);
	free(b.p);
}

TEST(ranks_of_several_saves_are_refused)
{
	struct simdisk *disk = disk_new();

	put_saying(disk, "m/mp_rank_00", 7, 2);
	put_saying(disk, "m/mp_rank_01", 8, 2);
	foreign_refused(disk, "m", "m/mp_rank_01/model_optim_rng.pt: is of another save than the "
	                "files before it: its iteration is 8, not 7");
	disk = disk_new();
	put_saying(disk, "m/mp_rank_00", 7, 4);
	put_saying(disk, "m/mp_rank_01", 7, 4);
	foreign_refused(disk, "m", "says that tensor_model_parallel_size is 4, but there are the "
	                "folders of 2");
	disk = disk_new();
	put_rank(disk, "m/mp_rank_00_000");
	put_rank(disk, "m/mp_rank_01_001");
	foreign_refused(disk, "m", "the folder mp_rank_00_001 of a rank is missing");
	disk = disk_new();
	put_rank(disk, "m/mp_rank_00");
	put_rank(disk, "m/mp_rank_01_000");
	foreign_refused(disk, "m", "has the folders of two saves");
	disk = disk_new();
	put_rank(disk, "m/mp_rank_01");
	CHECK_INT(simdisk_put(disk, "m/mp_rank_00/x", "", 0), 0);
	foreign_refused(disk, "m", "m/mp_rank_00: has no model_optim_rng.pt");
}
