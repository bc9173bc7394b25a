/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of Hugging Face's Trainer and accelerate: weights in either kind of file, and the state
 * of the optimizer under the names of parameters where they can be known. */
#include "foreign.h"
#include "t.h"
#include "foreign_plays.h"
#include "step_open.h"

#define W(n, a, b) { .name = (n), .dtype = SHEAF_F32, .ndim = 2, .shape = { (a), (b) } }

static const struct torch_tensor model[] = { W("a.w", 5, 7), W("b.w", 7, 5), W("c.w", 3, 4) };
static const struct torch_tensor states[] = { W("state.0.exp_avg", 7, 5),
	W("state.0.exp_avg_sq", 7, 5), W("state.1.exp_avg", 5, 7),
	{ .name = "state.1.step", .dtype = SHEAF_F32, .ndim = 1, .shape = { 1 } } };
static const struct torch_tensor same[] = { W("state.0.exp_avg", 7, 5),
	W("state.1.exp_avg", 7, 5) };
static const struct torch_tensor unknown[] = { W("state.0.exp_avg", 9, 9) };
/* States of Adafactor, which have one value for each row or column. The first has the shape of
 * another weight, by which it must not be named. */
static const struct torch_tensor rows[] = { W("state.0.exp_avg_sq_row", 7, 5),
	W("state.0.exp_avg_sq_col", 1, 9) };
static const struct torch_tensor twins[] = { W("a.w", 5, 7), W("b.w", 7, 5), W("d.w", 7, 5) };
static const struct torch_tensor said[] = { W("state.net.a.w.exp_avg", 5, 7),
	W("state.net.b.w.momentum_buffer", 5, 7) };

static void put_archive(struct simdisk *disk, const char *path, const struct torch_tensor *t, int n)
{
	struct torch_bytes b = torch_archive(t, n, TORCH_SOUND);

	CHECK_INT(simdisk_put(disk, path, b.p, b.n), 0);
	free(b.p);
}

static struct simdisk *folder(const struct torch_tensor *weights, const char *file,
                              const struct torch_tensor *of, int n)
{
	struct simdisk *disk = disk_new();

	put_archive(disk, "t/pytorch_model.bin", weights, 3);
	put_archive(disk, file, of, n);
	CHECK_INT(simdisk_put(disk, "t/trainer_state.json", "{\"global_step\": 12}", 19), 0);
	return disk;
}

/* All names of the family "optimizer", with a blank behind each. */
static void optimizer_is(struct simdisk *disk, const char *want, const char *note)
{
	const struct shf_foreign_tensor *t;
	const struct shf_foreign_note *notes;
	char got[500] = "", found[200] = "";
	struct sheaf_error err;
	struct shf_foreign *f;
	size_t n;

	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 82, 0), "t", &err), 0, &err);
	CHECK_STR(f->format->name, "hf.trainer");
	t = shf_foreign_tensors(f, &n);
	for (size_t i = 0; i < n; i++)
		if (t[i].family)
			snprintf(got + strlen(got), 80, "%s ", t[i].name);
	notes = (const void *)f->notes.data;
	for (size_t i = 0; i < f->notes.len / sizeof(*notes); i++)
		if (strcmp(notes[i].key, "optimizer.names") == 0)
			snprintf(found, sizeof(found), "%s", notes[i].text);
	CHECK_STR(got, want);
	CHECK(note ? strstr(found, note) != NULL : !found[0]);
	shf_foreign_free(f);
	simdisk_free(disk);
}

TEST(state_gets_names_that_shapes_prove_or_that_are_said)
{
	optimizer_is(folder(model, "t/optimizer.pt", states, 4),
	             "b.w/moment1_0 b.w/moment2_0 a.w/moment1_0 a.w/step ", NULL);
	optimizer_is(folder(model, "t/optimizer.bin", states, 3),
	             "b.w/moment1_0 b.w/moment2_0 a.w/moment1_0 ", NULL);
	optimizer_is(folder(model, "t/optimizer.pt", same, 2), "0/moment1_0 1/moment1_0 ",
	             "the numbers that its parameters have");
	optimizer_is(folder(model, "t/optimizer.pt", unknown, 1), "0/moment1_0 ", "the numbers");
	optimizer_is(folder(model, "t/optimizer.pt", rows, 2),
	             "0/exp_avg_sq_row 0/exp_avg_sq_col ", "nor do their shapes");
	optimizer_is(folder(twins, "t/optimizer.pt", states, 4),
	             "0/moment1_0 0/moment2_0 1/moment1_0 1/step ", "the numbers");
	optimizer_is(folder(model, "t/optimizer.pt", said, 2),
	             "net.a.w/moment1_0 net.b.w/momentum_buffer ", NULL);
}

static void held(struct hand *h)
{
	hand_cut(hand_add(h, "model", "a.w", SHEAF_F32, 2, 5, 7), 0, h->rank, h->ranks);
	hand_add(h, "model", "b.w", SHEAF_F32, 2, 7, 5);
	hand_add(h, "model", "c.w", SHEAF_F32, 2, 3, 4);
}

TEST(weights_load_from_files_of_either_kind)
{
	static const struct hand_tensor weights[] = { { "a.w", SHEAF_F32, 2, { 5, 7 } },
		{ "b.w", SHEAF_F32, 2, { 7, 5 } }, { "c.w", SHEAF_F32, 2, { 3, 4 } } };
	struct simdisk *disk = folder(model, "t/optimizer.pt", states, 4);
	struct sheaf_error err;
	char note[400];

	CHECK_RC(foreign_opens(disk, "t", "trainer_state.global_step", note, &err), 0, &err);
	CHECK_STR(note, "12");
	foreign_loads(disk, "t", 3, held, 0, 3);
	disk = disk_new();
	hands_file(disk, "t/model.safetensors", weights, 3, 5);
	put_archive(disk, "t/optimizer.pt", states, 4);
	foreign_loads(disk, "t", 3, held, 0, 3);
}

TEST(a_second_optimizer_keeps_its_number)
{
	struct simdisk *disk = folder(model, "t/optimizer.bin", states, 3);

	put_archive(disk, "t/optimizer_1.bin", same, 2);
	optimizer_is(disk, "b.w/moment1_0 b.w/moment2_0 a.w/moment1_0 1.0/moment1_0 "
	             "1.1/moment1_0 ", NULL);
}

/* Two models and their optimizers: the second ones are told by their number. */
static struct simdisk *pair(const struct torch_tensor *first, const struct torch_tensor *second,
                            int n)
{
	static const struct torch_tensor other[] = { W("a.w", 5, 7), W("b.w", 9, 2),
		W("c.w", 4, 4) };
	struct simdisk *disk = folder(model, "t/optimizer.bin", first, n);

	put_archive(disk, "t/pytorch_model_1.bin", other, 3);
	if (second)
		put_archive(disk, "t/optimizer_1.bin", second, 1);
	return disk;
}

TEST(each_of_several_models_has_the_state_of_its_optimizer)
{
	static const struct torch_tensor ninth[] = { W("state.0.exp_avg", 9, 2) };
	static const struct hand_tensor weights[] = { { "d.w", SHEAF_F32, 1, { 3 } } };
	struct simdisk *disk = pair(states, ninth, 3);
	struct sheaf_error err;
	char note[400];

	optimizer_is(disk, "b.w/moment1_0 b.w/moment2_0 a.w/moment1_0 model_1.b.w/moment1_0 ",
	             NULL);
	/* With one optimizer for two models, both may have the weight. */
	optimizer_is(pair(states + 2, NULL, 1), "1/moment1_0 ", "the numbers");
	optimizer_is(pair(states, NULL, 1), "b.w/moment1_0 ", NULL);
	/* A third model, of the other kind of file, is that of the third optimizer. */
	disk = pair(states, ninth, 3);
	hands_file(disk, "t/model_2.safetensors", weights, 1, 5);
	put_archive(disk, "t/scheduler.bin", ninth, 1);
	put_archive(disk, "t/scheduler_1.bin", ninth, 1);
	CHECK_RC(foreign_opens(disk, "t", "scheduler_1.state.0.exp_avg", note, &err), 0, &err);
	CHECK(strstr(note, "which is not listed") != NULL);
	simdisk_free(disk);
	disk = pair(states, ninth, 3);
	hands_file(disk, "t/model_3.safetensors", weights, 1, 5);
	foreign_refused(disk, "t", "t: has model_3.safetensors, but model_2.safetensors is mis"
	                "sing");
}

TEST(a_missing_optimizer_before_another_one_is_noticed)
{
	struct simdisk *disk = folder(model, "t/optimizer.bin", states, 3);

	put_archive(disk, "t/optimizer_2.bin", same, 2);
	foreign_refused(disk, "t", "t: has optimizer_2.bin, but optimizer_1.bin is missing");
}

TEST(an_optimizer_that_is_cut_anywhere_is_refused)
{
	struct torch_bytes b = torch_archive(states, 4, TORCH_SOUND);

	for (size_t n = 8; n < b.n; n += 1 + b.n / 61) {
		struct simdisk *disk = folder(model, "t/optimizer.pt", states, 4);

		CHECK_INT(simdisk_put(disk, "t/optimizer.pt", b.p, n), 0);
		foreign_refused(disk, "t", "t/optimizer.pt");
	}
	free(b.p);
}

TEST(a_scheduler_that_is_no_file_of_torch_is_noted)
{
	struct simdisk *disk = folder(model, "t/optimizer.pt", states, 4);
	struct sheaf_error err;
	char note[400];

	CHECK_INT(simdisk_put(disk, "t/scheduler.pt", "x", 1), 0);
	CHECK_RC(foreign_opens(disk, "t", "scheduler", note, &err), 0, &err);
	CHECK(strstr(note, "t/scheduler.pt") != NULL);
	simdisk_free(disk);
}
