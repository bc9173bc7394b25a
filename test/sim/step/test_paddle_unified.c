/* SPDX-License-Identifier: Apache-2.0 */
/* Unified checkpoints and those of sharding_io, of Paddle: loaded in any layout with their
 * families, from whole tensors and from what ranks wrote, and refused where their files do not
 * fit. */
#include "paddlefile.h"
#include <stdio.h>
#include <stdlib.h>
#include "foreign.h"
#include "read_slice.h"
#include "t.h"
#include "foreign_plays.h"

#define DIR_UC "uc"

/* A tensor of a safetensors file. Its values are those of the items of the tensor `of` from number
 * `from` on. */
struct st_part {
	const char *name, *of;
	int dtype, ndim;
	int64_t shape[2], from;
};

static void put_st(struct simdisk *disk, const char *name, const struct st_part *t, int n)
{
	char header[2000], path[100];
	struct torch_bytes b = { 0 };
	uint64_t off = 0;
	int len = 0;

	len += snprintf(header, sizeof(header), "{\"__metadata__\":{\"format\":\"np\"}");
	for (int i = 0; i < n; i++) {
		uint64_t bytes = (uint64_t)hand_bits(t[i].dtype) / 8;

		for (int d = 0; d < t[i].ndim; d++)
			bytes *= (uint64_t)t[i].shape[d];
		len += snprintf(header + len, sizeof(header) - (size_t)len, ",\"%s\":{\"dtype\":"
		                "\"%s\",\"shape\":[", t[i].name, t[i].dtype == SHEAF_BF16 ? "U16"
		                : sheaf_dtype_name(t[i].dtype));
		for (int d = 0; d < t[i].ndim; d++)
			len += snprintf(header + len, sizeof(header) - (size_t)len, "%s%lld",
			                d ? "," : "", (long long)t[i].shape[d]);
		len += snprintf(header + len, sizeof(header) - (size_t)len,
		                "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)off,
		                (unsigned long long)(off + bytes));
		off += bytes;
	}
	len += snprintf(header + len, sizeof(header) - (size_t)len, "}");
	for (int i = 0; i < 8; i++)
		torch_add(&b, &(uint8_t){ (uint8_t)((uint64_t)len >> 8 * i) }, 1);
	torch_add(&b, header, (size_t)len);
	for (int i = 0; i < n; i++) {
		int64_t items = 1;

		for (int d = 0; d < t[i].ndim; d++)
			items *= t[i].shape[d];
		for (int64_t k = 0; k < items; k++) {
			uint64_t v = hand_value("model", t[i].of, t[i].dtype, t[i].from + k);

			torch_add(&b, &v, (size_t)hand_bits(t[i].dtype) / 8);
		}
	}
	snprintf(path, sizeof(path), DIR_UC "/%s", name);
	CHECK_INT(simdisk_put(disk, path, b.p, b.n), 0);
	free(b.p);
}

static void put_text(struct simdisk *disk, const char *name, const char *text)
{
	char path[100];

	snprintf(path, sizeof(path), DIR_UC "/%s", name);
	CHECK_INT(simdisk_put(disk, path, text, strlen(text)), 0);
}

/* ---- merged ---- */

#define MODEL_INDEX "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a.w\":" \
	"\"model-00001-of-00002.safetensors\",\"b.w\":\"model-00002-of-00002.safetensors\"}}"
#define OPTIMIZER_INDEX "{\"weight_map\":{\"a.w/moment1_0\":" \
	"\"optimizer-00001-of-00001.safetensors\"},\"master_weights\":true}"

static const struct st_part a_w[] = { { "a.w", "a.w", SHEAF_BF16, 2, { 12, 10 }, 0 } };
static const struct st_part b_w[] = { { "b.w", "b.w", SHEAF_BF16, 2, { 6, 14 }, 0 } };
static const struct st_part moment[] = {
	{ "a.w/moment1_0", "a.w/moment1_0", SHEAF_F32, 2, { 12, 10 }, 0 } };
static const struct st_part master[] = { { "a.w", "m", SHEAF_F32, 2, { 12, 10 }, 0 } };

static struct simdisk *merged(void)
{
	struct simdisk *disk = disk_new();

	put_st(disk, "model-00001-of-00002.safetensors", a_w, 1);
	put_st(disk, "model-00002-of-00002.safetensors", b_w, 1);
	put_st(disk, "optimizer-00001-of-00001.safetensors", moment, 1);
	put_st(disk, "master_weights-00001-of-00001.safetensors", master, 1);
	put_text(disk, "model.safetensors.index.json", MODEL_INDEX);
	put_text(disk, "optimizer.safetensors.index.json", OPTIMIZER_INDEX);
	return disk;
}

static void held(struct hand *h)
{
	struct sheaf_slice *s = hand_add(h, "model", "a.w", SHEAF_BF16, 2, 12, 10);

	hand_cut(s, h->play->variant % 2, h->rank, h->ranks);
	hand_add(h, "model", "b.w", SHEAF_BF16, 2, 6, 14);
	s = hand_add(h, "master_weights", "a.w", SHEAF_F32, 2, 12, 10);
	hand_as(h, "model", "m");
	hand_cut(s, 0, h->rank, h->ranks);
	s = hand_add(h, "optimizer", "a.w/moment1_0", SHEAF_F32, 2, 12, 10);
	hand_as(h, "model", "a.w/moment1_0");
	s->flags = SHEAF_SLICE_FLAT;
	s->flat_start = 120 * h->rank / h->ranks;
	s->flat_count = 120 * (h->rank + 1) / h->ranks - s->flat_start;
}

TEST(all_families_of_a_merged_checkpoint_load_in_any_layout)
{
	foreign_loads(merged(), DIR_UC, 4, held, 0, 4);
	foreign_loads(merged(), DIR_UC, 4, held, 1, 4);
}

/* ---- families that Paddle does not have ---- */

static const struct st_part average[] = { { "a.w", "ema", SHEAF_F32, 2, { 12, 10 }, 0 } };

static struct simdisk *with_averages(const char *index)
{
	struct simdisk *disk = merged();

	put_st(disk, "ema-00001-of-00001.safetensors", average, 1);
	put_text(disk, "ema.safetensors.index.json", index);
	return disk;
}

static void held_averages(struct hand *h)
{
	held(h);
	hand_cut(hand_add(h, "ema", "a.w", SHEAF_F32, 2, 12, 10), 0, h->rank, h->ranks);
	hand_as(h, "model", "ema");
}

#define AVERAGES "{\"weight_map\":{\"a.w\":\"ema-00001-of-00001.safetensors\"}}"

TEST(another_family_with_an_index_is_read)
{
	foreign_loads(with_averages(AVERAGES), DIR_UC, 4, held_averages, 0, 5);
}

TEST(an_index_that_is_of_no_family_is_noted_or_ignored)
{
	static const struct { const char *name, *index; } others[] = {
		{ "ema", "{\"weight_map\":{\"a.w\":\"model-00001-of-00002.safetensors\"}}" },
		{ "ema", "{\"weight_map\":{}}" }, { "ema", "{}" }, { "ema", "{" },
		{ "ema", AVERAGES },    /* and its file is not here */
		{ "Ema", AVERAGES }, { "a.b", AVERAGES }, { "", AVERAGES }, { "_x", AVERAGES },
		{ "a_name_of_more_than_thirty_two_bytes", AVERAGES },
		{ "a_name_that_has_more_bytes_than_any_buffer_for_names_of_families_has_room_for",
		  AVERAGES },
	};

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		struct simdisk *disk = merged();
		struct sheaf_error err;
		char name[150], note[400];
		bool is_family = strcmp(others[i].name, "ema") == 0;

		snprintf(name, sizeof(name), "%s.safetensors.index.json", others[i].name);
		put_text(disk, name, others[i].index);
		CHECK_RC(foreign_opens(disk, DIR_UC, name, note, &err), 0, &err);
		CHECK_INT(strstr(note, "so sheaf does not read it") != NULL, is_family);
		simdisk_free(disk);
	}
	foreign_refused(with_averages("{\"weight_map\":{\"a.w\":"
	                              "\"ema-00001-of-00001.safetensors\",\"b.w\":"
	                              "\"ema-00002-of-00002.safetensors\"}}"), DIR_UC,
	                "names ema-00002-of-00002.safetensors, which is missing");
	foreign_refused(with_averages("{\"weight_map\":{\"b\":"
	                              "\"ema-00001-of-00001.safetensors\"}}"), DIR_UC,
	                "says that b is in ema-00001-of-00001.safetensors, but it is not");
}

TEST(the_family_of_the_model_comes_first)
{
	static const char *const names[] = { "model", "master_weights", "optimizer" };
	struct simdisk *disk = merged();
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err = { 0 };

	CHECK_RC(shf_step_open_path(&step, DIR_UC, NULL, NULL, simdisk_process(disk, 77, 0), &err),
	         0, &err);
	CHECK_INT(step->layout.families_n, 3);
	for (size_t i = 0; i < 3; i++)
		CHECK(strcmp(step->layout.families[i].name, names[i]) == 0);
	shf_step_put(step);
	simdisk_free(disk);
}

TEST(files_that_do_not_fit_the_index_are_refused)
{
	static const struct { const char *index, *why; } lies[] = {
		{ "{\"weight_map\":{\"c.w\":\"model-00001-of-00002.safetensors\"}}",
		  "the index says that c.w is in model-00001-of-00002.safetensors, but it is not" },
		{ "{\"weight_map\":{\"a.w\":\"model-00003-of-00003.safetensors\"}}",
		  "names model-00003-of-00003.safetensors, which is missing" },
		{ "{\"weight_map\":{\"a.w\":\"../model-00001-of-00002.safetensors\"}}",
		  "not a plain file name" },
		{ "{\"weight_map\":[]}", "uc/model.safetensors.index.json" },
		{ "[]", "is not a JSON object" },
	};

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct simdisk *disk = merged();

		put_text(disk, "model.safetensors.index.json", lies[i].index);
		foreign_refused(disk, DIR_UC, lies[i].why);
	}
	for (size_t n = 0; n < sizeof(MODEL_INDEX) - 1; n++) {
		struct simdisk *disk = merged();
		char text[sizeof(MODEL_INDEX)];

		snprintf(text, sizeof(text), "%.*s", (int)n, MODEL_INDEX);
		put_text(disk, "model.safetensors.index.json", text);
		foreign_refused(disk, DIR_UC, "uc/model.safetensors.index.json");
	}
}

TEST(a_file_that_is_cut_anywhere_is_refused)
{
	static const char name[] = DIR_UC "/optimizer-00001-of-00001.safetensors";
	struct simdisk *disk = merged();
	size_t n = 0;
	uint8_t *bytes = simdisk_get(disk, name, &n);

	CHECK(bytes != NULL);
	simdisk_free(disk);
	for (size_t cut = 0; cut < n; cut += cut < 200 ? 1 : 7) {
		disk = merged();
		CHECK_INT(simdisk_put(disk, name, bytes, cut), 0);
		foreign_refused(disk, DIR_UC, "optimizer-00001-of-00001.safetensors");
	}
	free(bytes);
}

TEST(what_is_left_out_is_noted)
{
	static const struct { const char *index, *key, *why; } said[] = {
		{ "{\"weight_map\":{\"a.w/moment1_0\":\"optimizer-00001-of-00001.safetensors\"},"
		  "\"master_weights\":true}", "master_weights", "remove_master_weight" },
		{ "{\"weight_map\":{\"a.w/moment1_0\":\"optimizer-00001-of-00001.safetensors\","
		  "\"a.w/moment2_0\":\"optimizer-00001-of-00001.safetensors\"},"
		  "\"ckpt_quant_stage\":\"O2\"}", "optimizer", "is quantised (O2)" },
		{ NULL, "optimizer", "has no index" },
	};

	for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
		struct simdisk *disk = disk_new();
		struct sheaf_error err;
		char note[400];

		put_st(disk, "model-00001-of-00001.safetensors", a_w, 1);
		put_st(disk, "optimizer-00001-of-00001.safetensors", moment, 1);
		if (said[i].index)
			put_text(disk, "optimizer.safetensors.index.json", said[i].index);
		CHECK_RC(foreign_opens(disk, DIR_UC, said[i].key, note, &err), 0, &err);
		if (!strstr(note, said[i].why))
			fail_msg("want '%s', got '%s'", said[i].why, note);
		simdisk_free(disk);
	}
}

TEST(the_state_of_the_trainer_is_noted_once)
{
	struct simdisk *disk = merged();
	struct sheaf_error err;
	char note[400];

	put_text(disk, "trainer_state.json", "{\"global_step\": 40}");
	put_text(disk, "trainer_state.bin", "\x80\x02}U\x0bglobal_stepK\x29s.");
	CHECK_RC(foreign_opens(disk, DIR_UC, "trainer_state.global_step", note, &err), 0, &err);
	CHECK_STR(note, "40");
	CHECK_INT(simdisk_remove(disk, DIR_UC "/trainer_state.json"), 0);
	CHECK_RC(foreign_opens(disk, DIR_UC, "trainer_state.global_step", note, &err), 0, &err);
	CHECK_STR(note, "41");
	simdisk_free(disk);
}

TEST(it_is_said_whether_the_save_has_finished)
{
	static const char two[] = "{\"world_size\":2,\"remove_master_weight\":true}";
	static const struct { const char *info; const char *done[5]; const char *why; } said[] = {
		{ NULL, { NULL }, "not said: there is neither" },
		{ NULL, { ".checkpoint_done" }, "yes: .checkpoint_done is there" },
		{ NULL, { "saved_signal_0", "saved_signal_1" }, "2 ranks say so" },
		{ NULL, { "saved_signal_0", "save_signal_TMP_1" }, "no: 1 ranks have not" },
		{ "{\"world_size\":", { NULL }, "of unknown structure" },
		{ "{\"world_size\":0}", { NULL }, "of unknown structure" },
		{ two, { ".model_weight.done.0", ".optimizer_weight.done.0",
		         ".optimizer_weight.done.1" },
		  "no: .model_weight.done.<rank> is there for 1 of 2" },
		{ two, { ".model_weight.done.0", ".model_weight.done.1",
		         ".optimizer_weight.done.0", ".optimizer_weight.done.1" },
		  "yes: all 2 ranks say so" },
	};

	for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
		struct simdisk *disk = merged();
		struct sheaf_error err;
		char note[400];

		if (said[i].info)
			put_text(disk, "async_save_info.json", said[i].info);
		for (int k = 0; k < 5 && said[i].done[k]; k++)
			put_text(disk, said[i].done[k], "1");
		CHECK_RC(foreign_opens(disk, DIR_UC, "complete", note, &err), 0, &err);
		if (!strstr(note, said[i].why))
			fail_msg("want '%s', got '%s'", said[i].why, note);
		simdisk_free(disk);
	}
}

/* ---- what ranks wrote ---- */

#define M "a.w/moment1_0"

/* Three ranks have flat slices of a moment, the last one with padding, and of a master weight that
 * only one of them has. */
static struct simdisk *of_ranks(int64_t last, int ranks)
{
	const struct st_part slices[3][2] = {
		{ { M, M, SHEAF_F32, 1, { 31 }, 0 }, { "a.w/beta1_pow_acc_0", "b", SHEAF_F32, 1,
		                                      { 1 }, 0 } },
		{ { M, M, SHEAF_F32, 1, { 62 }, 31 }, { "a.w/beta1_pow_acc_0", "b", SHEAF_F32, 1,
		                                       { 1 }, 0 } },
		{ { M, M, SHEAF_F32, 1, { last }, 93 }, { "a.w/beta1_pow_acc_0", "b", SHEAF_F32, 1,
		                                         { 1 }, 0 } },
	};
	const struct st_part whole[] = { { "a.w", "m", SHEAF_F32, 1, { 128 }, 0 } };
	struct simdisk *disk = disk_new();

	put_st(disk, "model-00001-of-00002.safetensors", a_w, 1);
	put_st(disk, "model-00002-of-00002.safetensors", b_w, 1);
	put_text(disk, "model.safetensors.index.json", MODEL_INDEX);
	put_text(disk, "optimizer.safetensors.index.json", "{\"quant_ckpt_resume_times\": 0}");
	for (int i = 0; i < ranks; i++) {
		char name[60];

		snprintf(name, sizeof(name), "optimizer.pp00_shard%02d.safetensors", i);
		put_st(disk, name, slices[i], 2);
	}
	put_st(disk, "master_weights.pp00_shard01.safetensors_shard_0001", whole, 1);
	return disk;
}

static void held_of_ranks(struct hand *h)
{
	held(h);
	hand_add(h, "optimizer", "a.w/beta1_pow_acc_0", SHEAF_F32, 1, 1);
	hand_as(h, "model", "b");
}

TEST(flat_slices_of_ranks_are_one_tensor)
{
	foreign_loads(of_ranks(29, 3), DIR_UC, 3, held_of_ranks, 0, 5);
}

TEST(slices_that_do_not_make_the_parameter_are_refused)
{
	struct simdisk *disk = of_ranks(100, 3);

	foreign_refused(of_ranks(26, 3), DIR_UC, "its slices have fewer items than the parameter");
	foreign_refused(of_ranks(29, 2), DIR_UC, "the file of a rank may be missing");
	/* The padding of the last slice is as long as what is missing. */
	CHECK_INT(simdisk_remove(disk, DIR_UC "/optimizer.pp00_shard01.safetensors"), 0);
	foreign_refused(disk, DIR_UC, "its slices are not of ranks that follow one another");
}

/* Parts of tensor-parallel ranks: along the dimension that differs from that of the weight. Of a
 * weight of gate and up each part has two halves. */
TEST(parts_of_tensor_parallel_ranks_are_one_tensor)
{
	static const char fused[] = "l.gate_up_fused_proj.weight";
	struct st_part gate[] = { { fused, "g", SHEAF_F32, 2, { 2, 8 }, 0 } };
	struct st_part part[] = { { "l.gate_up_fused_proj.weight/moment1_0", "p", SHEAF_F32, 2,
	                            { 2, 4 }, 0 } };
	struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2,
		.family = "optimizer", .name = part[0].name, .shape = { 2, 8 }, .count = { 2, 8 } };
	struct sheaf_checkpoint *step = NULL;
	struct simdisk *disk = disk_new();
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct sheaf_error err = { 0 };
	uint32_t got[16];

	put_st(disk, "model-00001-of-00001.safetensors", gate, 1);
	put_st(disk, "optimizer.tp00.safetensors", part, 1);
	part[0].from = 100;
	put_st(disk, "optimizer.tp01.safetensors", part, 1);
	s.data = got;
	CHECK_RC(shf_step_open_path(&step, DIR_UC, NULL, NULL, sys, &err), 0, &err);
	CHECK_RC(shf_step_read(step, &s, &err), 0, &err);
	for (int row = 0; row < 2; row++)
		for (int c = 0; c < 8; c++) {
			int rank = c % 4 / 2, at = row * 4 + c / 4 * 2 + c % 2;

			CHECK(got[row * 8 + c] == (uint32_t)hand_value("model", "p", SHEAF_F32,
			                                              100 * rank + at));
		}
	shf_step_put(step);
	simdisk_free(disk);
}

/* Where nothing says how they were cut, they are listed as each rank wrote them. */
TEST(parts_that_cannot_be_joined_are_listed)
{
	struct st_part part[] = { { "x/moment1_0", "p", SHEAF_F32, 1, { 8 }, 0 } };
	struct simdisk *disk = disk_new();
	struct sheaf_error err;
	struct shf_foreign *f = NULL;
	const struct shf_foreign_tensor *t;
	char note[400];
	size_t n;

	put_st(disk, "optimizer.tp00_shard00.safetensors", part, 1);
	put_st(disk, "optimizer.tp01_shard00.safetensors", part, 1);
	CHECK_RC(foreign_opens(disk, DIR_UC, "parts", note, &err), 0, &err);
	CHECK(strstr(note, "2 parts of tensors are listed as each rank wrote them") != NULL);
	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), DIR_UC, &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	CHECK_INT(n, 2);
	CHECK(strcmp(t[0].name, "x/moment1_0@tp00_shard00") == 0);
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* ---- sharding_io ---- */

#define META "{\"sharding_metas\":{\"tp00_pp00\":{\"structure_name_mapping\":{\"a.w\":" \
	"\"linear_0.w_0\",\"tied\":\"linear_0.w_0\"},\"param_meta\":{\"a.w\":[[12,10],2,false]," \
	"\"tied\":[[12,10],2,false]},\"sharding_strategy\":\"ShardingV2\"}}}"

static const struct torch_tensor m = { .name = M, .dtype = SHEAF_F32, .ndim = 2,
	.shape = { 12, 10 } };

/* Puts optimizer<rank>.pdopt with this pickle, and frees the pickle. */
static void put_optimizer(struct simdisk *disk, const char *rank, struct torch_bytes *pickle)
{
	char path[60];

	snprintf(path, sizeof(path), DIR_UC "/optimizer%s.pdopt", rank);
	CHECK_INT(simdisk_put(disk, path, pickle->p, pickle->n), 0);
	free(pickle->p);
}

static struct simdisk *sharded(const char *meta)
{
	struct simdisk *disk = disk_new();

	put_text(disk, "model_meta.json", meta);
	for (int rank = 0; rank < 2; rank++) {
		struct torch_bytes b = { 0 };

		torch_add(&b, "\x80\4}(", 4);
		torch_text(&b, "linear_0.w_0_fp32_master_0_moment1_0");
		paddle_array(&b, "model", &m, rank ? 50 : 0, rank ? 120 : 50, PADDLE_SOUND);
		torch_text(&b, "LR_Scheduler");
		torch_add(&b, "}", 1);
		torch_text(&b, "master_weights");
		torch_add(&b, "}", 1);
		torch_text(&b, "linear_0.w_0");
		paddle_array(&b, "model", &m, rank ? 50 : 0, rank ? 120 : 50, PADDLE_SOUND);
		torch_add(&b, "su.", 3);
		put_optimizer(disk, rank ? ".shard01" : ".shard00", &b);
	}
	return disk;
}

/* variant 1: master weights alone. */
static void held_of_sharding(struct hand *h)
{
	static const char *const names[][2] = { { "optimizer", M },
		{ "optimizer", "tied/moment1_0" },
		{ "master_weights", "a.w" }, { "master_weights", "tied" } };

	for (size_t i = h->play->variant ? 2 : 0; i < 4; i++) {
		struct sheaf_slice *s = hand_add(h, names[i][0], names[i][1], SHEAF_F32, 2, 12, 10);

		hand_as(h, "model", M);
		hand_cut(s, (int)i % 2, h->rank, h->ranks);
	}
}

TEST(states_get_the_names_of_their_parameters)
{
	foreign_loads(sharded(META), DIR_UC, 3, held_of_sharding, 0, 4);
}

/* Ranks of experts know different parameters under the same name. What they all have is taken once.
 */
TEST(experts_of_all_ranks_are_listed)
{
	static const char meta[] = "{\"sharding_metas\":{\"tp00_pp00_ep00\":{"
		"\"structure_name_mapping\":{\"e.0\":\"x\",\"d\":\"y\"},\"param_meta\":{\"e.0\":"
		"[[12,10],2,false,true],\"d\":[[12,10],2,false,false]}},\"tp00_pp00_ep01\":{"
		"\"structure_name_mapping\":{\"e.1\":\"x\",\"d\":\"y\"},\"param_meta\":{\"e.1\":"
		"[[12,10],2,false,true],\"d\":[[12,10],2,false,false]}}}}";
	static const char *const names[] = { "d", "e.0", "e.1" };
	const struct shf_foreign_tensor *t;
	struct shf_foreign *f = NULL;
	struct simdisk *disk = disk_new();
	struct sheaf_error err = { 0 };
	size_t n;

	put_text(disk, "model_meta.json", meta);
	for (int rank = 0; rank < 2; rank++) {
		struct torch_bytes b = { 0 };

		torch_add(&b, "\x80\4}", 3);
		torch_text(&b, "master_weights");
		torch_add(&b, "}(", 2);
		for (int i = 0; i < 2; i++) {
			torch_text(&b, i ? "y" : "x");
			paddle_array(&b, "model", &m, 0, 120, PADDLE_SOUND);
		}
		torch_add(&b, "us.", 3);
		put_optimizer(disk, rank ? ".shard00_moe01" : ".shard00_moe00", &b);
	}
	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 77, 0), DIR_UC, &err), 0, &err);
	t = shf_foreign_tensors(f, &n);
	CHECK_INT(n, 3);
	for (size_t i = 0; i < n; i++) {
		bool found = false;

		for (size_t k = 0; k < 3; k++)
			found |= strcmp(t[i].name, names[k]) == 0;
		CHECK(found && strcmp(t[i].family, "master_weights") == 0);
	}
	shf_foreign_free(f);
	simdisk_free(disk);
}

/* Many keys may have one array, and many parameters one name at run time. */
TEST(a_file_of_too_many_states_is_refused)
{
	for (int n = 16; n <= 17; n++) {
		struct simdisk *disk = disk_new();
		struct torch_bytes b = { 0 };
		struct sheaf_error err;
		char note[400];

		put_text(disk, "model_meta.json", META);
		torch_add(&b, "\x80\4}(", 4);
		for (int i = 0; i < n; i++) {
			char key[60];

			snprintf(key, sizeof(key), "linear_0.w_0_state%02d", i);
			torch_text(&b, key);
			paddle_array(&b, "model", &m, 0, 120, PADDLE_SOUND);
		}
		torch_add(&b, "u.", 2);
		put_optimizer(disk, "", &b);
		if (n > 16) {
			foreign_refused(disk, DIR_UC, "optimizer.pdopt: has more than 16 arrays "
			                "for each parameter");
			continue;
		}
		CHECK_RC(foreign_opens(disk, DIR_UC, "", note, &err), 0, &err);
		simdisk_free(disk);
	}
}

/* Of a key that a dictionary has twice Python takes the last value. */
TEST(the_last_dictionary_of_master_weights_is_read)
{
	struct simdisk *disk = disk_new();
	struct torch_bytes b = { 0 };

	put_text(disk, "model_meta.json", META);
	torch_add(&b, "\x80\4}(", 4);
	for (int i = 0; i < 2; i++) {
		torch_text(&b, "master_weights");
		torch_add(&b, "}", 1);
		torch_text(&b, "linear_0.w_0");
		paddle_array(&b, i ? "model" : "other", &m, 0, 120, PADDLE_SOUND);
		torch_add(&b, "s", 1);
	}
	torch_add(&b, "u.", 2);
	put_optimizer(disk, "", &b);
	foreign_loads(disk, DIR_UC, 1, held_of_sharding, true, 2);
}

TEST(a_description_that_is_cut_or_lies_is_refused)
{
	static const struct { const char *meta, *why; } lies[] = {
		{ "{\"sharding_metas\":{\"tp00_pp00\":{\"structure_name_mapping\":{\"a.w\":"
		  "\"linear_0.w_0\"},\"param_meta\":{\"a.w\":[[12,11],2,false]}}}}",
		  "its slices have fewer items than the parameter" },
		{ "{\"sharding_metas\":{\"tp00_pp00\":{\"param_meta\":{\"a.w\":[[12,-1],2,"
		  "false]}}}}", "is not the description of a sharded model" },
		{ "{\"sharding_metas\":{\"tp00_pp00\":{\"param_meta\":{\"a.w\":[12,2,"
		  "false]}}}}", "is not the description of a sharded model" },
		{ "{\"sharding_metas\":{\"x\":{}}}", "is not the description of a sharded model" },
	};

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++)
		foreign_refused(sharded(lies[i].meta), DIR_UC, lies[i].why);
	for (size_t n = 20; n < sizeof(META) - 1; n++) {
		char text[sizeof(META)];

		snprintf(text, sizeof(text), "%.*s", (int)n, META);
		foreign_refused(sharded(text), DIR_UC, "is not the description of a sharded model");
	}
}
