/* SPDX-License-Identifier: Apache-2.0 */
/* A step of a run is exported as a checkpoint of sharding_io. All families load from it in any
 * layout, states of the optimizer are found by the names that Paddle gives parameters, and what the
 * loader of PaddleNLP would not take is refused. In this and other formats the trainers of Paddle
 * find the number of the step and the learning rate. */
#include "export_format.h"
#include "hands.h"
#include "t.h"
#include "foreign_plays.h"
#include "save_attach.h"
#include "written.h"

#define FROM "run/checkpoint-40"
#define TO "out"

static struct shf_export_opts how;

static int export(struct sheaf_checkpoint *step, struct sheaf_report *report,
                  struct sheaf_error *err)
{
	return shf_step_export(step, TO, &how, report, err);
}

static void as(const char *format)
{
	how = (struct shf_export_opts){ .format = shf_export_format(format), .prefix = "",
		.file_bytes_max = UINT64_C(5000000000), .memory_bytes = 1, .adam_step = 3,
		.beta1 = 0.5, .beta2 = 0.75 };
}

/* ---- steps ---- */

static const struct odd {       /* one tensor more, and why it is refused; NULL: it is not */
	const char *family, *name, *says;
	int ndim;
} odds[] = {
	{ NULL, NULL, NULL, 0 },
	{ "teacher", "w", "family teacher: format sharding-io has no file for it", 1 },
	{ "optimizer", "v/velocity_0", "tensor v/velocity_0: is a state of the optimizer that the "
	  "loader of sharding_io does not know", 1 },
	{ "optimizer", "x/moment1_0", "tensor x/moment1_0: is a state of a parameter that has "
	  "neither weights nor master weights", 1 },
	{ "optimizer", "b/moment1_0", "tensor b/moment1_0: is of a weight that is tied to another "
	  "one", 2 },
	{ "model", "UnpackBigParamInfor@@", "paddle.load takes", 1 },
	{ "optimizer", "v/step", NULL, 0 },
	{ "ema", "other", NULL, 1 },
	{ "master_weights", "alone", NULL, 1 },
};
enum { ODDS = sizeof(odds) / sizeof(odds[0]), STEP = 6 };

/* Weights of 16 bits with a master and without, a frozen one, a tied one, averages. */
static void hold(struct hand *h)
{
	const struct odd *odd = &odds[h->play->variant];

	hand_add(h, "model", "w", SHEAF_BF16, 2, 5, 3);
	hand_add(h, "model", "v", SHEAF_F32, 1, 4);
	hand_add(h, "model", "frozen", SHEAF_F16, 0);
	hand_add(h, "model", "none", SHEAF_F32, 2, 0, 3);
	hand_add(h, "model", "a", SHEAF_F32, 2, 7, 2);
	if (h->play->path)
		hand_as(h, "model", "a");
	hand_add(h, "master_weights", "w", SHEAF_F32, 2, 5, 3);
	for (int k = 0; k < 6; k++) {
		static const char *const names[] = { "w/moment1_0", "w/moment2_0", "v/moment1_0",
			"v/moment2_0", "a/moment1_0", "a/moment2_0" };

		if (k < 2)
			hand_add(h, "optimizer", names[k], SHEAF_F32, 2, 5, 3);
		else if (k < 4)
			hand_add(h, "optimizer", names[k], SHEAF_F32, 1, 4);
		else
			hand_add(h, "optimizer", names[k], SHEAF_F32, 2, 7, 2);
	}
	hand_add(h, "ema", "w", SHEAF_F32, 2, 5, 3);
	hand_add(h, "ema", "v", SHEAF_F32, 1, 4);
	if (!h->play->path)
		hand_add(h, "model", "b", SHEAF_F32, 2, 7, 2)->tied_to = "a";
	if (odd->ndim == 2)
		hand_add(h, odd->family, odd->name, SHEAF_F32, 2, 7, 2);
	else if (odd->ndim == 1)
		hand_add(h, odd->family, odd->name, SHEAF_F32, 1, 4);
	else if (odd->name && !h->play->path)
		hand_add(h, odd->family, odd->name, SHEAF_F32, 0);
}

static const char *const notes[][2] = { { "trainer_state.consumed_samples", "96" },
	{ "trainer_state.epoch", "0.5" }, { "trainer_state.max_steps", "nan" },
	{ "loss", "1.25" } };
static const char groups[] = "{\"param_groups\": [{\"params\": [\"w\"], \"lr\": 0.125},"
	" {\"params\": [\"v\", \"a\"], \"lr\": 0.125}]}";
static const char differing[] = "{\"param_groups\": [{\"params\": [\"w\"], \"lr\": 0.125},"
	" {\"params\": [\"v\", \"a\"], \"lr\": 0.25}]}";
static const char *attached;    /* as param_groups.json */

static void attach(struct hand *h, struct sheaf_save *save)
{
	struct sheaf_error err;

	(void)h;
	for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++)
		CHECK_RC(shf_save_note(save, notes[i][0], notes[i][1], &err), 0, &err);
	CHECK_RC(shf_save_attach(save, "param_groups.json", attached, strlen(attached), &err), 0,
	         &err);
	CHECK_RC(shf_save_attach(save, "config.json", "{}", 2, &err), 0, &err);
	CHECK_RC(shf_save_attach(save, "trainer_state.json", "{\"logging_steps\": 500}", 22, &err),
	         0, &err);
}

static struct simdisk *saved(int variant, int ranks)
{
	struct play p = hands_play(simdisk_new(4, SIMDISK_EXT4), ranks, hold);

	attached = attached ? attached : groups;
	p.variant = variant;
	p.step = 40;
	p.during = attach;
	SAVED(p);
	return p.disk;
}

static struct simdisk *exported(int variant)
{
	struct simdisk *disk = saved(variant, 1);
	struct written e = write_by(disk, process(disk), FROM, export);

	CHECK_RC(e.rc, 0, &e.err);
	CHECK(!simdisk_exists(disk, TO ".partial"));
	return disk;
}

/* Returns whether a file of the export has this text, or these bytes. */
static bool has(struct simdisk *disk, const char *file, const void *what, size_t what_n)
{
	char path[100];
	size_t n;
	char *bytes;
	bool found;

	snprintf(path, sizeof(path), TO "/%s", file);
	bytes = simdisk_get(disk, path, &n);
	CHECK(bytes != NULL);
	found = memmem(bytes, n, what, what_n) != NULL;
	free(bytes);
	return found;
}

static bool has_text(struct simdisk *disk, const char *file, const char *text)
{
	return has(disk, file, text, strlen(text));
}

/* ---- what is written ---- */

TEST(all_families_load_in_any_layout_from_any_number_of_ranks)
{
	static const uint64_t most[] = { 1, 150, 300, UINT64_C(5000000000) };

	for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++)
		for (int variant = 0; variant < ODDS; variant++) {
			struct simdisk *disk;
			struct play p;

			if (odds[variant].says)
				continue;
			as("sharding-io");
			how.file_bytes_max = most[i];
			disk = exported(variant);
			CHECK(simdisk_exists(disk, TO "/optimizer.shard02.pdopt") == (i < 2));
			for (int ranks = 1; ranks <= 2; ranks++) {
				p = foreign_play(disk, TO, ranks, hold);
				p.variant = variant;
				p.flags = 0;    /* there are powers and names of tied weights */
				LOADED(p);
			}
			simdisk_free(disk);
		}
}

TEST(states_have_the_names_that_model_meta_says)
{
	static const float pow[] = { 0.5f * 0.5f * 0.5f * 0.5f, 0.75f * 0.75f * 0.75f * 0.75f };
	struct simdisk *disk;

	as("sharding-io");
	disk = exported(0);
	CHECK(has_text(disk, "model_meta.json", "\"sharding_degree\": 2"));
	CHECK(has_text(disk, "model_meta.json", "\"sharding_strategy\": \"ShardingV1\""));
	/* In natural order: a, b, frozen, none, v, w. The names of a tied weight share one. */
	CHECK(has_text(disk, "model_meta.json", "\"a\": \"sheaf_0.w_0\""));
	CHECK(has_text(disk, "model_meta.json", "\"b\": \"sheaf_0.w_0\""));
	CHECK(has_text(disk, "model_meta.json", "\"w\": \"sheaf_4.w_0\""));
	CHECK(has_text(disk, "model_meta.json", "\"w\": [[5, 3], 22, false, false]"));
	/* Frozen weights are no parameters of the optimizer. */
	CHECK(has_text(disk, "model_meta.json", "\"sheaf_0.w_0\": 0,"));
	CHECK(has_text(disk, "model_meta.json", "\"sheaf_4.w_0\": 1\n"));
	CHECK(!has_text(disk, "model_meta.json", "\"sheaf_1.w_0\": 0"));
	CHECK(has_text(disk, "optimizer.shard00.pdopt", "sheaf_0.w_0_moment2_0"));
	CHECK(has_text(disk, "optimizer.shard01.pdopt", "sheaf_4.w_0_fp32_master_0_moment1_0"));
	CHECK(has_text(disk, "optimizer.shard01.pdopt",
	               "sheaf_4.w_0_fp32_master_0_beta1_pow_acc_0"));
	for (int i = 0; i < 2; i++)
		CHECK(has(disk, "optimizer.shard01.pdopt", &pow[i], 4));
	CHECK(has_text(disk, "optimizer.shard00.pdopt", "master_weights"));
	CHECK(has_text(disk, "ema.shard01.pdopt", "sheaf_4.w_0_fp32_master_0"));
	CHECK(has_text(disk, "model_state.shard00.pdparams", "StructuredToParameterName@@"));
	CHECK(has_text(disk, "config.json", "{}"));
	simdisk_free(disk);
}

/* Paddle has the number of updates of all parameters in the powers of the betas. */
TEST(numbers_of_updates_of_single_parameters_are_left_out_and_counted)
{
	static const struct { const char *format, *index; } to[] = {
		{ "sharding-io", "optimizer.shard00.pdopt" },
		{ "paddle-uc", "optimizer.safetensors.index.json" },
		{ "paddle-fc", "optimizer_state/0.metadata" } };

	for (size_t i = 0; i < sizeof(to) / sizeof(to[0]); i++)
		for (int variant = 0; variant <= STEP; variant += STEP) {
			struct simdisk *disk = saved(variant, 1);
			struct written e;

			as(to[i].format);
			e = write_by(disk, process(disk), FROM, export);
			CHECK_RC(e.rc, 0, &e.err);
			CHECK_INT(e.report.ignored, variant == STEP);
			CHECK(has_text(disk, to[i].index, "moment1"));
			CHECK(!has_text(disk, to[i].index, "v/step"));
			CHECK(!has_text(disk, to[i].index, "v.step"));
			simdisk_free(disk);
		}
}

TEST(what_the_loader_does_not_take_is_refused)
{
	for (int variant = 0; variant < ODDS; variant++) {
		struct simdisk *disk;
		struct written e;

		if (!odds[variant].says && variant != STEP)
			continue;
		disk = saved(variant, 1);
		as("sharding-io");
		if (variant == STEP)    /* one number for all is not given */
			how.adam_step = 0;
		e = write_by(disk, process(disk), FROM, export);
		if (e.rc != SHEAF_EINVAL ||
		    !strstr(e.err.msg, variant == STEP ? "tensor v/step: is a state"
		                                       : odds[variant].says))
			fail_msg("variant %d, got %d: %s", variant, e.rc, e.err.msg);
		CHECK(!simdisk_exists(disk, TO ".partial"));
		if (variant == STEP) {
			as("sharding-io");
			how.family = how.as = "model";
			e = write_by(disk, process(disk), FROM, export);
			CHECK_RC(e.rc, SHEAF_EINVAL, &e.err);
			CHECK(strstr(e.err.msg, "write all families (how.all_families, --all)"));
		}
		simdisk_free(disk);
	}
}

/* ---- what trainers go on from ---- */

TEST(a_trainer_of_paddle_finds_its_number_and_its_rate)
{
	static const char *const formats[] = { "sharding-io", "paddle-uc" };
	static const char rate[] = "G\x3f\xc0\0\0\0\0\0\0";             /* 0.125 */

	for (int i = 0; i < 2; i++) {
		struct simdisk *disk;

		as(formats[i]);
		disk = exported(0);
		CHECK(has_text(disk, "trainer_state.json", "\"global_step\": 40,"));
		CHECK(has_text(disk, "trainer_state.json", "\"epoch\": 0.5,"));
		CHECK(has_text(disk, "trainer_state.json", "\"consumed_samples\": 96,"));
		CHECK(has_text(disk, "trainer_state.json", "\"max_steps\": 0,"));
		CHECK(!has_text(disk, "trainer_state.json", "logging_steps"));
		CHECK(has_text(disk, "trainer_state.bin",
		               "cpaddleformers.trainer.trainer_callback\nTrainerState\n"));
		CHECK(has(disk, "trainer_state.bin", "X\x0b\0\0\0global_stepq\x02K\x28", 20));
		CHECK(has(disk, "scheduler.pdparams", "X\x0a\0\0\0last_epochq\0K\x28", 19));
		CHECK(has(disk, "scheduler.pdparams", rate, sizeof(rate) - 1));
		simdisk_free(disk);
		attached = differing;
		disk = exported(0);
		CHECK(!simdisk_exists(disk, TO "/scheduler.pdparams"));
		CHECK(simdisk_exists(disk, TO "/trainer_state.json"));
		simdisk_free(disk);
		attached = groups;
	}
}

TEST(without_moments_there_is_no_trainer_to_go_on)
{
	struct simdisk *disk;

	as("paddle-uc");
	how.family = how.as = "model";
	disk = exported(0);
	CHECK(has_text(disk, "trainer_state.json", "logging_steps"));
	CHECK(!simdisk_exists(disk, TO "/trainer_state.bin"));
	simdisk_free(disk);
}

/* ---- states that are one array ---- */

static const char *const states[] = { "a/moment1_0", "a/moment2_0", "b/moment1_0", "b/moment2_0" };
enum { APART, TOGETHER, CROSSED, TIES_N };

/* Two weights whose moments are one array, such as zeros before the first update. The weights are
 * apart, or tied. CROSSED: they are tied, and their first moments differ. */
static void hold_one_array(struct hand *h)
{
	int ties = h->play->variant;

	hand_add(h, "model", "a", SHEAF_F32, 2, 7, 2);
	if (ties == APART)
		hand_add(h, "model", "b", SHEAF_F32, 2, 7, 2);
	else if (!h->play->path)
		hand_add(h, "model", "b", SHEAF_F32, 2, 7, 2)->tied_to = "a";
	for (int i = 0; i < (ties == APART || !h->play->path ? 4 : 2); i++) {
		struct sheaf_slice *s = hand_add(h, "optimizer", states[i], SHEAF_F32, 2, 7, 2);

		if (!h->play->path && i > 0 && !(ties == CROSSED && i == 2))
			s->tied_to = states[0];
		hand_as(h, "optimizer", states[0]);
	}
}

static struct simdisk *saved_one_array(int ties)
{
	struct play p = hands_play(simdisk_new(4, SIMDISK_EXT4), 1, hold_one_array);

	p.variant = ties;
	p.step = 40;
	SAVED(p);
	return p.disk;
}

static const char *const with_states[] = { "hf", "paddle-uc", "paddle-fc", "sharding-io",
	"deepspeed-universal", "megatron" };
enum { HF, UC, WITH_STATES = sizeof(with_states) / sizeof(with_states[0]) };

/* Only weights are tied by what reads a format, and with a weight what belongs to it. */
TEST(states_that_are_one_array_are_written_under_each_of_their_names)
{
	for (int i = 0; i < WITH_STATES; i++) {
		struct simdisk *disk = saved_one_array(APART);
		struct written e;

		as(with_states[i]);
		if (i == HF)
			how.family = how.as = "optimizer";
		e = write_by(disk, process(disk), FROM, export);
		CHECK_RC(e.rc, 0, &e.err);
		if (i == HF) {
			CHECK_INT(e.report.loaded, 4);
		} else {
			struct play p = foreign_play(disk, TO, 1, hold_one_array);

			p.flags = 0;    /* there are powers and numbers of updates */
			LOADED(p);
		}
		simdisk_free(disk);
	}
}

TEST(tied_weights_have_one_state)
{
	for (int i = UC; i < WITH_STATES - 1; i++) {
		struct simdisk *disk = saved_one_array(TOGETHER);
		struct written e;
		struct play p;

		as(with_states[i]);
		e = write_by(disk, process(disk), FROM, export);
		CHECK_RC(e.rc, 0, &e.err);
		if (i == UC)
			CHECK(!has_text(disk, "optimizer.safetensors.index.json", "\"b/moment"));
		p = foreign_play(disk, TO, 1, hold_one_array);
		p.variant = TOGETHER;
		p.flags = 0;
		LOADED(p);
		simdisk_free(disk);
	}
}

TEST(states_of_tied_weights_that_differ_are_not_left_out)
{
	struct simdisk *disk = saved_one_array(CROSSED);
	struct written e;

	as("sharding-io");
	e = write_by(disk, process(disk), FROM, export);
	CHECK_RC(e.rc, SHEAF_EINVAL, &e.err);
	CHECK(strstr(e.err.msg, "tensor b/moment1_0: is of a weight that is tied") != NULL);
	as("paddle-uc");
	e = write_by(disk, process(disk), FROM, export);
	CHECK_RC(e.rc, 0, &e.err);
	CHECK(has_text(disk, "optimizer.safetensors.index.json", "\"b/moment1_0\""));
	CHECK(has_text(disk, "optimizer.safetensors.index.json", "\"b/moment2_0\""));
	simdisk_free(disk);
}

/* ---- attached files ---- */

static const struct meeting {   /* an attached file, and a format that writes such a name */
	const char *name, *format;
} meetings[] = {
	{ ".metadata", "dcp" }, { "__0_0.distcp", "dcp" }, { "part-__0_0.distcp", "dcp" },
	{ "latest_checkpointed_iteration.txt", "megatron" }, { "iter_0000040", "megatron" },
	{ "model_state", "paddle-fc" }, { "0_0.distcp", "sharding-io" },
	{ "model_meta.json", "sharding-io" }, { "optimizer.shard01.pdopt", "sharding-io" },
	{ "part-optimizer.shard01.pdopt", "sharding-io" }, { ".sheaf-export", "sharding-io" },
	{ "latest_universal", "deepspeed-universal" },
	{ "global_step40_universal", "deepspeed-universal" },
};
static const struct meeting *met;

static void attach_met(struct hand *h, struct sheaf_save *save)
{
	struct sheaf_error err;

	(void)h;
	CHECK_RC(shf_save_attach(save, met->name, "attached", 8, &err), 0, &err);
	CHECK_RC(shf_save_attach(save, "kept.txt", "kept", 4, &err), 0, &err);
}

/* Returns whether the export has the bytes of the attached file. */
static bool has_attached(struct simdisk *disk)
{
	char path[100];
	size_t n = 0;
	char *bytes;
	bool is;

	snprintf(path, sizeof(path), TO "/%s", met->name);
	bytes = simdisk_get(disk, path, &n);
	is = bytes && n == 8 && memcmp(bytes, "attached", n) == 0;
	free(bytes);
	return is;
}

TEST(attached_files_that_meet_names_of_the_format_are_left_out)
{
	for (size_t i = 0; i < sizeof(meetings) / sizeof(meetings[0]); i++) {
		struct play p = hands_play(simdisk_new(4, SIMDISK_EXT4), 1, hold_one_array);
		struct simdisk *disk = p.disk;
		struct written e;

		met = &meetings[i];
		p.during = attach_met;
		p.step = 40;
		SAVED(p);
		as(met->format);
		e = write_by(disk, process(disk), FROM, export);
		CHECK_RC(e.rc, 0, &e.err);
		CHECK(!has_attached(disk));
		CHECK(has_text(disk, "kept.txt", "kept"));
		p = foreign_play(disk, TO, 1, hold_one_array);
		p.flags = 0;            /* there are powers and numbers of updates */
		p.variant = APART;
		if (strcmp(met->format, "dcp"))         /* which names families otherwise */
			LOADED(p);
		simdisk_free(disk);
	}
}

static const char *const of_training[] = { "trainer.json", "param_groups-12.json", "train.yaml" };
#define OF_TRAINING (sizeof(of_training) / sizeof(of_training[0]))

static void attach_training(struct hand *h, struct sheaf_save *save)
{
	/* As sheaf.Checkpointer writes trainer.json: without extra state of modules, and with. */
	static const char none[] = "{\"tree\":{\"dict\":{\"extra_state\":{\"dict\":{}},"
	                           "\"parts\":{\"dict\":{\"scheduler\":[1]}}}}}",
		some[] = "{\"tree\":{\"dict\":{\"extra_state\":{\"dict\":{\"scale\":5}}}}}";
	struct sheaf_error err;

	(void)h;
	for (size_t i = 0; i < OF_TRAINING; i++)
		CHECK_RC(shf_save_attach(save, of_training[i], none, strlen(none), &err), 0, &err);
	CHECK_RC(shf_save_attach(save, "trainer-1.json", some, strlen(some), &err), 0, &err);
	CHECK_RC(shf_save_attach(save, "trainer-notes.json", "kept", 4, &err), 0, &err);
}

/* Another training that begins with these weights would go on with the old schedule. */
TEST(options_of_the_training_are_not_copied_beside_weights_alone)
{
	struct play p = hands_play(simdisk_new(4, SIMDISK_EXT4), 1, hold_one_array);

	p.during = attach_training;
	p.step = 40;
	SAVED(p);
	for (int alone = 0; alone < 2; alone++) {
		struct simdisk *disk = simdisk_twin(p.disk);
		struct written e;

		as(alone ? "hf" : "dcp");
		how.family = how.as = alone ? "model" : NULL;
		e = write_by(disk, process(disk), FROM, export);
		CHECK_RC(e.rc, 0, &e.err);
		CHECK(has_text(disk, "trainer-1.json", "scale"));
		for (size_t i = 0; i < OF_TRAINING; i++) {
			char path[100];

			snprintf(path, sizeof(path), TO "/%s", of_training[i]);
			CHECK_INT(simdisk_exists(disk, path), !alone);
		}
		CHECK(has_text(disk, "trainer-notes.json", "kept"));
		simdisk_free(disk);
	}
	simdisk_free(p.disk);
}

/* ---- each allocation ---- */

TEST(each_allocation_may_fail)
{
	struct simdisk *base = saved(0, 1);
	int failed = 0;

	for (hungry = 1 + t_from(T_STRIDE);; hungry += T_STRIDE) {
		struct simdisk *disk = simdisk_twin(base);
		long was = hungry;
		struct written e;

		as("sharding-io");
		starved = false;
		e = write_by(disk, process(disk), FROM, export);
		hungry = 0;
		CHECK(e.rc == 0 || e.rc == SHEAF_ENOMEM);
		CHECK(e.rc == 0 || !simdisk_exists(disk, TO));
		failed += e.rc < 0;
		if (e.rc < 0)
			e = write_by(disk, process(disk), FROM, export);
		CHECK_RC(e.rc, 0, &e.err);
		simdisk_free(disk);
		hungry = was;
		if (!starved)
			break;
	}
	hungry = 0;
	CHECK(failed > 100 / T_STRIDE);
	simdisk_free(base);
}
