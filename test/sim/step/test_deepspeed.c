/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of DeepSpeed: parts of ranks make whole tensors, which load in any layout; parts that
 * do not fit one another are refused. */
#include "dspdfile.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "foreign.h"
#include "foreign_dir.h"
#include "t.h"
#include "foreign_plays.h"
#include "foreign_starved.h"

#define DIR_DS "ds"
#define SAVE DIR_DS "/global_step9"

/* Sizes at which parts begin and end inside rows. The last group is smaller than the ranks. */
static const struct dspd_param params[] = {
	{ "w", 0, 2, { 11, 7 } }, { "deep", 0, 3, { 3, 5, 4 } }, { "v", 0, 1, { 13 } },
	{ "one", 1, 1, { 1 } }, { "frozen", -1, 2, { 5, 3 } },
};
enum { N = sizeof(params) / sizeof(params[0]) };

static struct simdisk *saved(int stage, int ranks, enum dspd_flaw flaw)
{
	const struct dspd_plan p = { stage, ranks, params, N, flaw, 0, 0, 0, 0 };
	struct simdisk *disk = disk_new();

	dspd_save(disk, SAVE, &p);
	CHECK_INT(simdisk_put(disk, DIR_DS "/latest", "global_step9", 12), 0);
	return disk;
}

/* ---- loading ---- */

static void hold_fp32(struct hand *h, const char *family, const char *name)
{
	struct sheaf_slice *s;

	for (int i = 0; i < N; i++) {
		const struct dspd_param *p = &params[i];

		if (p->group < 0 || (name && strcmp(name, p->name)))
			continue;
		s = hand_add(h, family, p->name, SHEAF_F32, p->ndim, (int)p->shape[0],
		             (int)p->shape[1], (int)p->shape[2]);
		hand_as(h, "master_weights", p->name);
		hand_cut(s, h->play->variant % p->ndim, h->rank, h->ranks);
	}
}

static void hold_moments(struct hand *h)
{
	for (int i = 0; i < N; i++)
		for (int kind = 1; kind < 3; kind++) {
			const struct dspd_param *p = &params[i];
			char tail[20];
			const char *name;
			struct sheaf_slice *s;

			snprintf(tail, sizeof(tail), "/moment%d_0", kind);
			name = hand_text(h, p->name, tail);
			if (p->group < 0)
				continue;
			s = hand_add(h, "optimizer", name, SHEAF_F32, p->ndim, (int)p->shape[0],
			             (int)p->shape[1], (int)p->shape[2]);
			hand_cut(s, 0, h->rank, h->ranks);
		}
}

static void held_1(struct hand *h)
{
	for (int i = 0; i < N; i++)
		hand_add(h, "model", params[i].name, SHEAF_BF16, params[i].ndim,
		         (int)params[i].shape[0], (int)params[i].shape[1],
		         (int)params[i].shape[2]);
	hand_add(h, "model", "seen", SHEAF_F32, 1, 3);
	hold_fp32(h, "master_weights", NULL);
	hold_moments(h);
}

static void held_3(struct hand *h)
{
	hold_fp32(h, "model", NULL);
	hand_add(h, "model", "tied", SHEAF_F32, 2, 11, 7);
	hand_as(h, "master_weights", "w");
	hand_add(h, "model", "frozen", SHEAF_BF16, 2, 5, 3);
	hand_add(h, "model", "seen", SHEAF_F32, 1, 3);
	hold_moments(h);
}

TEST(zero_1_loads_in_any_layout)
{
	for (int ranks = 1; ranks <= 5; ranks++)
		foreign_loads(saved(1, ranks, DSPD_SOUND), DIR_DS, 2, held_1, ranks, 18);
	foreign_loads(saved(1, 3, DSPD_ALIGNED), SAVE, 3, held_1, 1, 18);
	foreign_loads(saved(1, 3, DSPD_OLD), DIR_DS, 2, held_1, 0, 18);
	foreign_loads(saved(1, 3, DSPD_ROUND_ROBIN), DIR_DS, 2, held_1, 1, 18);
}

TEST(zero_3_loads_in_any_layout)
{
	for (int ranks = 1; ranks <= 5; ranks++)
		foreign_loads(saved(3, ranks, DSPD_SOUND), DIR_DS, 2, held_3, ranks, 15);
	foreign_loads(saved(3, 4, DSPD_OLD), SAVE, 3, held_3, 1, 15);
}

TEST(a_universal_checkpoint_loads_in_any_layout)
{
	for (int flat = 0; flat < 2; flat++)
		for (int stage = 1; stage <= 3; stage += 2) {
			const struct dspd_plan p = { stage, 3, params, N, DSPD_SOUND, 0, 0, 0, 0 };
			struct simdisk *disk = disk_new();

			dspd_universal(disk, SAVE, &p, flat, NULL);
			CHECK_INT(simdisk_put(disk, DIR_DS "/latest_universal", "global_step9\n",
			                      13), 0);
			foreign_loads(disk, DIR_DS, 3, stage == 3 ? held_3 : held_1, 0,
			              stage == 3 ? 15 : 18);
		}
}

/* ---- what it says ---- */

static void says(struct simdisk *disk, const char *key, const char *want)
{
	struct sheaf_error err;
	char note[400];

	CHECK_RC(foreign_opens(disk, DIR_DS, key, note, &err), 0, &err);
	if (strcmp(note, want))
		fail_msg("want '%s', got '%s'", want, note);
	simdisk_free(disk);
}

TEST(steps_are_notes_or_tensors)
{
	static const char name[] = "one/step";
	struct simdisk *disk = saved(1, 2, DSPD_STEPS_DIFFER);
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	const struct shf_foreign_tensor *t;
	struct shf_foreign *f = NULL;
	struct sheaf_error err;
	size_t n, found = 0;

	says(saved(1, 2, DSPD_SOUND), "global_step", "9");
	says(saved(1, 2, DSPD_SOUND), "adam.step", "7");
	says(saved(3, 3, DSPD_SOUND), "adam.step", "7");
	says(saved(1, 2, DSPD_EXPERTS), "experts", "the masters and states of 1 group of "
	     "parameters of experts are not read, because nothing says which rank has which "
	     "experts");
	says(saved(1, 2, DSPD_NO_OPTIMIZER), "optimizer", "has no files of its own: the save was "
	     "made without ZeRO, or they are missing");
	CHECK_RC(shf_foreign_open(&f, sys, DIR_DS, &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	for (size_t i = 0; i < n; i++)
		found += strcmp(t[i].name, name) == 0 && t[i].ndim == 0;
	CHECK_INT(found, 1);
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* Returns how many tensors have this end of their names. */
static int names_ending(const struct shf_foreign *f, const char *end)
{
	size_t n, k = strlen(end);
	const struct shf_foreign_tensor *t = shf_foreign_tensors(f, &n);
	int found = 0;

	for (size_t i = 0; i < n; i++)
		found += strlen(t[i].name) > k &&
		         strcmp(t[i].name + strlen(t[i].name) - k, end) == 0;
	return found;
}

/* ZeRO 3 leaves empty tensors of one dimension where parameters were. */
TEST(an_empty_buffer_of_zero_3_is_a_tensor)
{
	struct simdisk *disk = saved(3, 2, DSPD_EMPTY);
	const struct shf_foreign_tensor *t;
	struct shf_foreign *f = NULL;
	struct sheaf_error err;
	size_t n, empty = 0, tied = 0;

	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), DIR_DS, &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	for (size_t i = 0; i < n; i++) {
		empty += strcmp(t[i].name, "empty") == 0 && t[i].ndim == 2 && t[i].dims[0] == 0;
		tied += strcmp(t[i].name, "tied") == 0 && t[i].ndim == 2 && t[i].dims[0] == 11;
	}
	CHECK_INT(empty, 1);
	CHECK_INT(tied, 1);
	CHECK_INT(n, 16);       /* one more than of held_3 */
	shf_foreign_free(f);
	simdisk_free(disk);
}

TEST(what_ranks_of_model_parallelism_have_is_listed_for_each)
{
	struct simdisk *disk = disk_new();
	struct shf_foreign *f = NULL;
	struct sheaf_error err;

	for (int mp = 0; mp < 2; mp++) {
		const struct dspd_plan p = { 1, 2, params, N, DSPD_SOUND, mp, 0, 0, 0 };

		dspd_save(disk, DIR_DS, &p);
	}
	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), DIR_DS, &err), 0, &err);
	CHECK_INT(names_ending(f, "@mp00"), N + 1 + N - 1);     /* of the model, masters */
	CHECK_INT(names_ending(f, "@mp01"), N + 1 + N - 1);
	CHECK_INT(names_ending(f, "@mp01/moment2_0"), N - 1);
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* Two ranks of tensor parallelism, which have rows of "w" as a map says. */
static struct simdisk *cut(int64_t rows, int64_t mp_rows, int64_t whole)
{
	struct simdisk *disk = disk_new();

	for (int mp = 0; mp < 2; mp++) {
		const struct dspd_plan p = { 1, 2, params, N, DSPD_SOUND, mp, rows, mp_rows,
			whole };

		dspd_save(disk, DIR_DS, &p);
	}
	return disk;
}

TEST(boxes_of_tensor_parallel_ranks_are_one_tensor)
{
	struct simdisk *disk = cut(11, 11, 22);
	const struct shf_foreign_tensor *t;
	struct shf_foreign *f = NULL;
	struct sheaf_error err;
	size_t n, whole = 0;

	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), DIR_DS, &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	for (size_t i = 0; i < n; i++)
		whole += (strcmp(t[i].name, "w") == 0 || strncmp(t[i].name, "w/", 2) == 0) &&
		         t[i].ndim == 2 && t[i].dims[0] == 22 && t[i].dims[1] == 7;
	CHECK_INT(whole, 4);    /* of the model, masters, moments */
	CHECK_INT(names_ending(f, "@mp01"), N - 1 + 1 + N - 2);
	shf_foreign_free(f);
	simdisk_free(disk);
}

TEST(boxes_that_do_not_make_the_parameter_are_refused)
{
	foreign_refused(cut(10, 10, 20), DIR_DS, "has not the shape that affine_map says");
	foreign_refused(cut(11, 11, 23), DIR_DS, "tensor w [22:23, 0:7] is in no chunk");
	foreign_refused(cut(11, 10, 21), DIR_DS, "so some item is in several chunks");
	/* A map of another form, here of boxes that leave the whole, is passed over. */
	says(cut(11, 12, 22), "global_step", "9");
}

/* The files of the model have the shapes of halves there. */
TEST(a_universal_checkpoint_of_tensor_parallel_ranks_has_whole_masters)
{
	static const struct dspd_param half[] = { { "w", 0, 2, { 6, 7 } } };
	const struct dspd_plan whole = { 1, 1, params, 1, DSPD_SOUND, 0, 0, 0, 0 };
	struct simdisk *disk = disk_new();
	const struct shf_foreign_tensor *t;
	struct shf_foreign *f = NULL;
	struct sheaf_error err;
	size_t n, found = 0;

	dspd_universal(disk, DIR_DS, &whole, false, NULL);
	for (int mp = 0; mp < 2; mp++) {
		const struct dspd_plan p = { 1, 1, half, 1, DSPD_NO_OPTIMIZER, mp, 0, 0, 0 };

		dspd_save(disk, DIR_DS, &p);
	}
	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), DIR_DS, &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	for (size_t i = 0; i < n; i++)
		found += strcmp(t[i].name, "w") == 0 && t[i].dims[0] == 11 &&
		         strcmp(t[i].family, "master_weights") == 0;
	CHECK_INT(found, 1);
	CHECK_INT(names_ending(f, "@mp01"), 2);
	CHECK_INT(names_ending(f, "@mp01/moment1_0"), 0);
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* ---- files that do not fit ---- */

TEST(files_of_several_saves_are_refused)
{
	static const struct { int stage; enum dspd_flaw flaw; const char *why; } flaws[] = {
		{ 1, DSPD_SWAPPED, "which rank 0 cannot have" },
		{ 1, DSPD_RENAMED, "was saved as zero_pp_rank_1_mp_rank_00_optim_states.pt" },
		{ 3, DSPD_RENAMED, "was saved as zero_pp_rank_1_mp_rank_00_optim_states.pt" },
		{ 1, DSPD_NO_FIRST, "the file of the optimizer of rank 0 is missing" },
		{ 1, DSPD_NO_SECOND, "the file of the optimizer of rank 1 is missing" },
		{ 1, DSPD_NO_LAST, "says that 3 ranks have saved, but there are files of 2" },
		{ 3, DSPD_NO_LAST, "model of 3 ranks, but of the optimizer of 2" },
		{ 3, DSPD_NO_OPTIMIZER, "model of 3 ranks, but of the optimizer of 0" },
		{ 1, DSPD_NO_MODEL, "has no file of the model of rank 0" },
		{ 3, DSPD_NO_MODEL, "the file of the model of rank 0 is missing" },
		{ 1, DSPD_TWO_SAVES, "has the files of two saves" },
		{ 1, DSPD_OTHER_STEP, "its optimizer has made 8 steps, not 7" },
		{ 3, DSPD_OTHER_STEP, "global_steps is 10, not 9" },
		{ 1, DSPD_OTHER_VERSION, "DeepSpeed 0.1.2 wrote it, not 0.19.8" },
		{ 3, DSPD_OTHER_VERSION, "DeepSpeed 0.1.2 wrote it, not 0.19.8" },
		{ 1, DSPD_OTHER_COUNT, "says that 4 ranks have saved, but there are files of 3" },
		{ 3, DSPD_OTHER_COUNT, "says that 4 ranks have saved, but there are files of 3" },
		{ 1, DSPD_OTHER_SHAPE, "which rank" },
		{ 1, DSPD_LIED_SHAPE, "tensor w has another shape than param_shapes says" },
		{ 3, DSPD_OTHER_SHAPE, "items of weights, but each rank has" },
		{ 1, DSPD_SHORT, "has a part whose length differs from that of rank 0" },
		{ 3, DSPD_SHORT, "items of weights, but each rank has" },
		{ 1, DSPD_LONG, "has a part whose length differs from that of rank 0" },
		{ 3, DSPD_LONG, "items of weights, but each rank has" },
		{ 1, DSPD_SHORT_STATE, "has fewer items of a state of the optimizer" },
		{ 3, DSPD_SHORT_STATE, "has fewer items of a state of the optimizer" },
		{ 1, DSPD_LONG_STATE, "has more items of a state of the optimizer" },
		{ 3, DSPD_LONG_STATE, "has more items of a state of the optimizer" },
		{ 1, DSPD_NO_STATE, "/moment2_0: its parts have" },
		{ 3, DSPD_NO_STATE, "/moment2_0: its parts have" },
		{ 1, DSPD_SQUARE, "has weights that are not a flat tensor" },
		{ 1, DSPD_OTHER_TYPE, "has weights whose type differs from those of rank 0" },
		{ 3, DSPD_OTHER_TYPE, "has a different type from the parts before it" },
		{ 1, DSPD_NAME_TWICE, "two parameters have the name w" },
		{ 1, DSPD_NEGATIVE, "is not one of less than 2^59 items" },
		{ 1, DSPD_HUGE, "is not one of less than 2^59 items" },
		{ 1, DSPD_FEW_GROUPS, "has fewer groups of parameters" },
		{ 3, DSPD_FEW_GROUPS, "items of weights, but each rank has" },
		{ 1, DSPD_BAD_PADDING, "is not a list of numbers of items" },
		{ 1, DSPD_NO_DICT, "has no optimizer_state_dict" },
		{ 1, DSPD_NO_LIST, "has no list single_partition_of_fp32_groups" },
		{ 3, DSPD_AUTOEP, "has experts that ZeRO 3 has cut" },
		{ 3, DSPD_FROZEN_WHOLE, "has a part of 15 items of the frozen parameter frozen, "
		  "but each of 3 ranks has 5" },
		{ 3, DSPD_FROZEN_SHORT, "has a part of 4 items of the frozen parameter frozen" },
		{ 3, DSPD_NO_FROZEN, "frozen: the file of the model of rank 1 has no part of it" },
		{ 3, DSPD_NO_LIST, "has no list fp32_flat_groups" },
	};

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++)
		foreign_refused(saved(flaws[i].stage, 3, flaws[i].flaw), DIR_DS, flaws[i].why);
}

/* Puts a file of one weight, which torch.save called `saved_as`. */
static void put_layer(struct simdisk *disk, const char *name, const char *saved_as)
{
	const struct torch_tensor t = { .name = "t", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 } };
	struct torch_bytes b = { 0 }, data = { calloc(16, 1), 16, 16 }, file;

	torch_add(&b, "\x80\x02}(", 4);
	torch_text(&b, "weight");
	torch_put(&b, &t, 1, 0);
	torch_add(&b, "u.", 2);
	file = torch_archive_with(saved_as, &b, &data, 1);
	CHECK_INT(simdisk_put(disk, name, file.p, file.n), 0);
	free(file.p);
	free(data.p);
	free(b.p);
}

TEST(files_of_layers_and_experts_that_were_renamed_are_refused)
{
	static const struct { const char *name, *was; } files[] = {
		{ "layer_01-model_states", "layer_02-model_states" },
		{ "layer_01-model_00-model_states", "layer_01-model_01-model_states" },
		{ "layer_0_expert_1_mp_rank_00_model_states",
		  "layer_0_expert_0_mp_rank_00_model_states" },
		{ "layer_01-model_states", "mp_rank_00_model_states" },
	};

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		struct simdisk *disk = saved(1, 2, DSPD_SOUND);
		char path[200], why[200];

		snprintf(path, sizeof(path), SAVE "/%s.pt", files[i].name);
		snprintf(why, sizeof(why), "was saved as %s.pt, and has been renamed",
		         files[i].was);
		put_layer(disk, path, files[i].was);
		foreign_refused(disk, DIR_DS, why);
	}
}

TEST(an_expert_under_its_own_name_is_read)
{
	static const char file[] = "layer_0_expert_1_mp_rank_00_model_states";
	struct simdisk *disk = saved(1, 2, DSPD_SOUND);
	char path[200];

	snprintf(path, sizeof(path), SAVE "/%s.pt", file);
	put_layer(disk, path, file);
	says(disk, "global_step", "9");
}

TEST(ranks_of_zero_3_that_say_other_parameters_are_refused)
{
	for (enum dspd_flaw flaw = DSPD_RANK_ORDER; flaw <= DSPD_RANK_FEWER; flaw++)
		foreign_refused(saved(3, 3, flaw), DIR_DS, "zero_pp_rank_1_mp_rank_00_model_states."
		                "pt: has other parameters than zero_pp_rank_0_mp_rank_00_model_"
		                "states.pt");
}

TEST(a_universal_checkpoint_without_a_file_of_a_parameter_is_refused)
{
	static const char *const files[] = { "v/fp32", "v/exp_avg_sq", "w/exp_avg", "one/exp_avg",
		"deep/exp_avg_sq" };

	for (size_t i = 0; i < 2 * sizeof(files) / sizeof(files[0]); i++) {
		const struct dspd_plan p = { i % 2 ? 3 : 1, 2, params, N, DSPD_SOUND, 0, 0, 0, 0 };
		struct simdisk *disk = disk_new();
		char why[100];

		dspd_universal(disk, DIR_DS, &p, i % 2, files[i / 2]);
		snprintf(why, sizeof(why), "has no zero/%s.pt", files[i / 2]);
		foreign_refused(disk, DIR_DS, why);
	}
}

TEST(a_universal_checkpoint_of_another_model_is_refused)
{
	static const struct dspd_param other[] = { { "w", 0, 2, { 11, 8 } } };
	const struct dspd_plan p = { 3, 1, params, N, DSPD_SOUND, 0, 0, 0, 0 };
	const struct dspd_plan q = { 3, 1, other, 1, DSPD_SOUND, 0, 0, 0, 0 };
	struct simdisk *disk = disk_new();
	size_t n;
	uint8_t *bytes;

	dspd_universal(disk, DIR_DS, &p, true, NULL);
	dspd_universal(disk, "other", &q, true, NULL);
	bytes = simdisk_get(disk, "other/zero/w/exp_avg.pt", &n);
	CHECK(bytes != NULL);
	CHECK_INT(simdisk_put(disk, DIR_DS "/zero/w/exp_avg.pt", bytes, n), 0);
	free(bytes);
	foreign_refused(disk, DIR_DS, "neither the shape that the file of the model gives w nor "
	                "its 77 items");
}

/* ---- which folder is meant ---- */

TEST(a_wrong_latest_is_told_with_the_folders_that_are_there)
{
	static const struct { const char *latest, *why; } lies[] = {
		{ NULL, "has no file latest, which would name a folder; open the folder of one "
		  "save: global_step9" },
		{ "global_step12", "latest names the folder global_step12, which is not there" },
		{ "../ds/global_step9", "latest is not the name of a folder" },
		{ "", "latest is not the name of a folder" },
		{ "..", "latest is not the name of a folder" },
		{ "global_step9\nx", "latest is not the name of a folder" },
	};

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		const struct dspd_plan p = { 1, 2, params, N, DSPD_SOUND, 0, 0, 0, 0 };
		struct simdisk *disk = disk_new();

		dspd_save(disk, SAVE, &p);
		if (lies[i].latest)
			CHECK_INT(simdisk_put(disk, DIR_DS "/latest", lies[i].latest,
			                      strlen(lies[i].latest)), 0);
		foreign_refused(disk, DIR_DS, lies[i].why);
	}
}

TEST(other_directories_with_such_names_are_not_taken)
{
	static const char *const files[] = { "latest", "global_step1/x",
		"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt" };
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		struct simdisk *disk = disk_new();
		char path[100];

		snprintf(path, sizeof(path), DIR_DS "/%s", files[i]);
		CHECK_INT(simdisk_put(disk, path, "global_step1", 12), 0);
		CHECK_INT(shf_foreign_is_here(simdisk_process(disk, 77, 0), DIR_DS, &err), 0);
		simdisk_free(disk);
	}
}

TEST(a_file_that_is_cut_anywhere_is_refused)
{
	static const char *const names[] = { SAVE "/mp_rank_00_model_states.pt",
		SAVE "/zero_pp_rank_1_mp_rank_00_optim_states.pt" };

	for (int k = 0; k < 2; k++) {
		struct simdisk *disk = saved(1, 2, DSPD_SOUND);
		size_t n = 0;
		uint8_t *bytes = simdisk_get(disk, names[k], &n);

		CHECK(bytes != NULL);
		for (size_t cut = 0; cut < n; cut += 61) {
			struct simdisk *twin = simdisk_twin(disk);

			CHECK_INT(simdisk_put(twin, names[k], bytes, cut), 0);
			foreign_refused(twin, DIR_DS, names[k]);
		}
		free(bytes);
		simdisk_free(disk);
	}
}

/* ---- pickles that stand for much more than they have bytes ---- */

static void put(struct torch_bytes *b, const char *s)
{
	torch_add(b, s, strlen(s));
}

/* Puts a pickle as the file of the model, beside sound files of the optimizer. */
static struct simdisk *with_model(struct torch_bytes *pickle)
{
	struct simdisk *disk = saved(1, 2, DSPD_SOUND);
	struct torch_bytes data = { calloc(16, 1), 16, 16 };
	struct torch_bytes file = torch_archive_with("archive", pickle, &data, 1);

	CHECK_INT(simdisk_put(disk, SAVE "/mp_rank_00_model_states.pt", file.p, file.n), 0);
	free(file.p);
	free(data.p);
	free(pickle->p);
	return disk;
}

TEST(one_long_name_of_many_weights_is_not_copied_for_each)
{
	static char name[70000];
	const struct torch_tensor t = { .name = "t", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 } };
	struct torch_bytes b = { 0 };

	memset(name, 'n', sizeof(name) - 1);
	torch_add(&b, "\x80\x02}", 3);
	torch_text(&b, "module");
	put(&b, "}");
	torch_text(&b, name);
	put(&b, "q\1");
	torch_put(&b, &t, 1, 0);
	put(&b, "q\2s");
	for (int i = 0; i < 3000; i++)
		put(&b, "h\1h\2s");
	put(&b, "s.");
	foreign_refused(with_model(&b), DIR_DS, "has more tensors, or longer names, than can be "
	                "listed");
}

/* Each has twelve states, which are one empty tensor in the file. */
TEST(many_empty_parameters_with_many_states_are_refused)
{
	const struct torch_tensor t = { .name = "t", .dtype = SHEAF_F32, .ndim = 1 };
	struct torch_bytes b = { 0 }, shapes = { 0 }, data = { calloc(16, 1), 0, 16 }, file;
	struct simdisk *disk;
	char name[20];

	torch_add(&shapes, "\x80\x02}", 3);
	torch_text(&shapes, "param_shapes");
	put(&shapes, "]}(");
	for (int i = 0; i < 25000; i++) {
		snprintf(name, sizeof(name), "%d", i);
		torch_text(&shapes, name);
		put(&shapes, i ? "h\1" : "ctorch\nSize\n(K");
		if (i == 0)
			torch_add(&shapes, "\0t\x85Rq\1", 6);
	}
	put(&shapes, "uas.");
	disk = with_model(&shapes);
	torch_add(&b, "\x80\x02}", 3);
	torch_text(&b, "optimizer_state_dict");
	put(&b, "}(");
	torch_text(&b, "single_partition_of_fp32_groups");
	put(&b, "](");
	torch_put(&b, &t, 1, 0);
	put(&b, "q\1e");
	torch_text(&b, "base_optimizer_state");
	put(&b, "](}(");
	for (int i = 0; i < 12; i++) {
		snprintf(name, sizeof(name), "state%d", i);
		torch_text(&b, name);
		put(&b, "h\1");
	}
	put(&b, "ueus.");
	file = torch_archive_with("archive", &b, &data, 1);
	for (int r = 0; r < 2; r++)
		CHECK_INT(simdisk_put(disk, r ? SAVE "/zero_pp_rank_1_mp_rank_00_optim_states.pt"
		                      : SAVE "/zero_pp_rank_0_mp_rank_00_optim_states.pt", file.p,
		                      file.n), 0);
	free(file.p);
	free(data.p);
	free(b.p);
	foreign_refused(disk, DIR_DS, "has more tensors, or longer names, than can be listed");
}

TEST(many_groups_of_one_tensor_are_refused)
{
	const struct torch_tensor t = { .name = "t", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { 4 } };
	struct torch_bytes b = { 0 }, data = { calloc(16, 1), 16, 16 }, file;
	struct simdisk *disk = saved(1, 2, DSPD_SOUND);

	torch_add(&b, "\x80\x02}", 3);
	torch_text(&b, "optimizer_state_dict");
	put(&b, "}");
	torch_text(&b, "single_partition_of_fp32_groups");
	put(&b, "](");
	torch_put(&b, &t, 1, 0);
	put(&b, "q\1");
	for (int i = 0; i < 70000; i++)
		put(&b, "h\1");
	put(&b, "ess.");
	file = torch_archive_with("archive", &b, &data, 1);
	CHECK_INT(simdisk_put(disk, SAVE "/zero_pp_rank_0_mp_rank_00_optim_states.pt", file.p,
	                      file.n), 0);
	free(file.p);
	free(data.p);
	free(b.p);
	foreign_refused(disk, DIR_DS, "has more than 65536 groups of parameters");
}

/* ---- a machine that fails ---- */

/* Returns a disk with one of four saves: of ZeRO 1 and 3, and universal ones of both. */
static struct simdisk *save_number(int i)
{
	const struct dspd_plan p = { i % 2 ? 3 : 1, 2, params, N, DSPD_SOUND, 0, 0, 0, 0 };
	struct simdisk *disk = disk_new();

	if (i < 2)
		dspd_save(disk, DIR_DS, &p);
	else
		dspd_universal(disk, DIR_DS, &p, false, NULL);
	return disk;
}

/* A few places can do without the memory. */
TEST(each_allocation_may_fail)
{
	for (int i = 0; i < 4; i++) {
		struct simdisk *disk = save_number(i);

		foreign_survives(disk, DIR_DS, 1, 8);
		simdisk_free(disk);
	}
}

/* Without a universal checkpoint of ZeRO 1: its one file by which it is recognised is taken for
 * another one if it cannot be read. */
TEST(each_call_may_fail)
{
	static const int saves[] = { 0, 1, 3 };

	for (int i = 0; i < 3; i++) {
		bool fired = true;
		int nth = 1, failed = 0;

		for (; fired; nth++) {
			struct simdisk *disk = save_number(saves[i]);
			struct sheaf_error err;
			char note[400];
			int rc;

			simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EACCES });
			rc = foreign_opens(disk, DIR_DS, "", note, &err);
			fired = simdisk_fired(disk) > 0;
			if (rc != 0 && (rc != SHEAF_EIO || strlen(err.msg) < 8))
				fail_msg("call %d: %d %s", nth, rc, err.msg);
			failed += rc < 0;
			simdisk_free(disk);
		}
		CHECK(failed > 20);
	}
}
