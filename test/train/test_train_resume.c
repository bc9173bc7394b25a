/* SPDX-License-Identifier: Apache-2.0 */
/* What a training begins with: the newest checkpoint, an older one where that is damaged, a named
 * one, a directory, or a model of other software; what checkpoints have besides tensors, and which
 * of them are kept. */
#include "t.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bind.h"
#include "itemhash.h"
#include "rmtree.h"
#include "sheaf-admin.h"
#include "sheaf-inspect.h"
#include "sheaf-opts.h"
#include "trainloop.h"
#include "trainthreads.h"
#include "traintold.h"

static const char moments[] = "optimizer/optimizer-00001-of-00001.safetensors";

/* Copies the attached files and the tensors of a checkpoint, as a person would with cp. */
static void copy_checkpoint(const char *from, const char *to)
{
	char command[300];

	snprintf(command, sizeof(command), "cp -r %s %s", from, to);
	CHECK_INT(system(command), 0);
}

/* In turn the moments, the weights and the list of tensors of the newest checkpoint are damaged. */
TEST(where_the_newest_checkpoint_is_damaged_training_goes_on_from_the_one_before_and_says_so)
{
	static const char *const files[] = { moments, "model-00001-of-00001.safetensors",
					     "sheaf.json" };
	static const char *const flags[] = { "", "{mesh: {tp: 2}}", "zero: 1" };

	prepare();
	train_on(1, "whole/plain", "6", "");
	for (int i = 0; i < 3; i++) {
		struct rank rank[RANKS_MAX];

		train_on(3, "whole/run", "4", "{zero: 1, save-every: 1}");
		damage(4, files[i], i == 2 ? 40 : 20000);
		if (i == 1)
			damage(3, files[i], 20000);
		CHECK_RC(listen_to(2, "whole/run", "6", flags[i], rank), 0, &rank[0].err);
		CHECK_INT(first_step(), i == 1 ? 2 : 3);
		CHECK_INT(count("\"passed_over\":[\"checkpoint-4: "), 1);
		CHECK(count("it is kept in .sheaf/aside") == (i == 1 ? 2 : 1));
		same_tensors("whole/plain/checkpoint-6", "whole/run/checkpoint-6");
		rmtree("whole/run");
	}
	rmtree("whole");
}

/* A file beside the tensors is changed, or removed. Its training has a checkpoint before it, or is
 * asked for that one alone. */
TEST(options_of_a_checkpoint_that_are_damaged_are_not_left_out)
{
	static const char *const files[] = { "train.yaml", "config.json" };
	struct rank rank[RANKS_MAX];

	prepare();
	for (int i = 0; i < 4; i++) {
		char path[80];

		train_on(2, "whole/run", "3", "save-every: 1");
		snprintf(path, sizeof(path), "whole/run/checkpoint-3/%s", files[i / 2]);
		if (i % 2)
			CHECK_INT(unlink(path), 0);
		else
			damage(3, files[i / 2], 20);
		train_fails(2, "whole/other", "resume: whole/run@3", TR_ECORRUPT, files[i / 2]);
		if (i == 0)
			damage(2, files[0], 20);
		if (i == 2)
			damage(2, "sheaf.json", 40);
		CHECK_RC(listen_to(2, "whole/run", "3", "", rank), 0, &rank[0].err);
		CHECK_INT(count("\"passed_over\":[\"checkpoint-3: "), 1);
		CHECK_INT(count("\"event\":\"step\""), i % 2 ? 1 : 2);
		CHECK_INT(access("whole/run/checkpoint-3", F_OK), 0);
		rmtree("whole/run");
	}
	train_on(2, "whole/run", "1", "");
	damage(1, "train.yaml", 20);
	train_fails(2, "whole/run", "", TR_ECORRUPT, "train.yaml");
	rmtree("whole");
}

/* In turn the options and the weights of step 3 are damaged. */
TEST(training_does_not_go_back_to_a_checkpoint_that_is_marked_bad)
{
	static const char *const files[] = { "train.yaml", "model-00001-of-00001.safetensors" };
	struct rank rank[RANKS_MAX];

	prepare();
	for (int i = 0; i < 2; i++) {
		struct sheaf_run *run;
		struct sheaf_error err;

		train_on(2, "whole/run", "3", "save-every: 1");
		CHECK_RC(sheaf_run_open(&run, "whole/run", NULL, NULL, &err), 0, &err);
		CHECK_RC(sheaf_run_mark(run, 2, SHEAF_MARK_BAD, &err), 0, &err);
		sheaf_run_close(run);
		damage(3, files[i], i ? 20000 : 20);
		CHECK_RC(listen_to(2, "whole/run", "3", "", rank), 0, &rank[0].err);
		CHECK_INT(first_step(), 1);
		rmtree("whole/run");
	}
	rmtree("whole");
}

/* The options of the checkpoint that was loaded count, and not those of the damaged one. */
TEST(after_a_fallback_the_options_are_those_of_the_older_checkpoint)
{
	struct rank rank[RANKS_MAX];

	prepare();
	train_on(2, "whole/run", "2", "weight-decay: 0.25");
	train_on(2, "whole/run", "3", "weight-decay: 0.5");
	damage(3, moments, 20000);
	CHECK_RC(listen_to(2, "whole/run", "4", "", rank), 0, &rank[0].err);
	CHECK_INT(count("\"changed\":[\"steps\"]"), 1);
	{
		static char text[8192];
		size_t n = read_whole("whole/run/checkpoint-4/train.yaml", text, sizeof(text) - 1);

		text[n] = 0;
		CHECK(strstr(text, "weight-decay: 0.25") != NULL);
	}
	rmtree("whole");
}

/* Only the damaged one has the option virtual. */
TEST(after_a_fallback_options_that_only_the_damaged_checkpoint_has_do_not_count)
{
	struct rank rank[RANKS_MAX];

	prepare();
	without_virtual = 1;
	train_on(2, "whole/run", "2", "");
	without_virtual = 0;
	train_on(2, "whole/run", "3", "");
	damage(3, moments, 20000);
	without_virtual = 1;
	CHECK_RC(listen_to(2, "whole/run", "4", "", rank), 0, &rank[0].err);
	without_virtual = 0;
	CHECK_INT(count("\"passed_over\":[\"checkpoint-3: "), 1);
	CHECK_INT(count("\"virtual\":{\"dp\":2,\"tp\":1}"), 1);
	rmtree("whole");
}

TEST(before_a_rewind_to_a_damaged_checkpoint_nothing_is_set_aside)
{
	prepare();
	train_on(2, "whole/run", "3", "save-every: 1");
	damage(2, moments, 20000);
	train_fails(2, "whole/run", "{resume: whole/run@2, rewind: true}", TR_ECORRUPT,
		    "has checksum");
	CHECK_INT(access("whole/run/checkpoint-3", F_OK), 0);
	rmtree("whole");
}

/* The options of step 3 are damaged, and the moments of the steps before it. */
TEST(nothing_is_set_aside_for_a_checkpoint_before_it_that_is_damaged_too)
{
	prepare();
	train_on(2, "whole/run", "3", "save-every: 1");
	damage(3, "train.yaml", 20);
	damage(2, moments, 20000);
	damage(1, moments, 20000);
	train_fails(2, "whole/run", "", TR_ECORRUPT, "has checksum");
	CHECK_INT(access("whole/run/checkpoint-3", F_OK), 0);
	rmtree("whole");
}

/* Damages a checkpoint of whole/run: a byte of the moments (m) or of the options (o) is changed, or
 * the moments are cut (c) or the options removed (r), which the list of checkpoints shows. */
static void damage_as(int step, char how)
{
	const char *file = how == 'm' || how == 'c' ? moments : "train.yaml";
	char path[100];

	snprintf(path, sizeof(path), "whole/run/checkpoint-%d/%s", step, file);
	if (how == 'm' || how == 'o')
		damage(step, file, how == 'm' ? 20000 : 20);
	else
		CHECK_INT(how == 'c' ? truncate(path, 20000) : unlink(path), 0);
}

TEST(training_goes_back_past_several_checkpoints_that_are_damaged_and_names_all_of_them)
{
	/* What is done to the last checkpoints, the newest of which is that of step 4. */
	static const char *const how[] = { "mc", "mo", "ro", "omm", "rmo" };

	prepare();
	for (size_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
		struct rank rank[RANKS_MAX];
		int first = 4 - (int)strlen(how[i]);

		train_on(2, "whole/run", "4", "save-every: 1");
		for (int step = first + 1; step <= 4; step++)
			damage_as(step, how[i][step - first - 1]);
		CHECK_RC(listen_to(2, "whole/run", "4", "", rank), 0, &rank[0].err);
		CHECK_INT(first_step(), first);
		for (int step = first + 1; step <= 4; step++) {
			char text[100];

			snprintf(text, sizeof(text), "\"checkpoint-%d: whole/run/checkpoint-%d/",
				 step, step);
			CHECK_INT(count(text), 1);
			snprintf(text, sizeof(text), "checkpoint-%d: it is kept in", step);
			CHECK_INT(count(text), 1);
		}
		rmtree("whole/run");
	}
	rmtree("whole");
}

TEST(a_run_whose_checkpoints_are_all_damaged_is_not_begun_again)
{
	prepare();
	train_on(2, "whole/run", "2", "save-every: 1");
	damage(1, moments, 20000);
	damage(2, moments, 20000);
	train_fails(2, "whole/run", "", TR_ECORRUPT, "has checksum");
	CHECK_INT(access("whole/run/checkpoint-2", F_OK), 0);
	rmtree("whole");
}

/* The training does not go on from an older checkpoint, because this one is not damaged. */
TEST(a_checkpoint_of_a_newer_sheaf_is_named)
{
	static char text[65536];
	char *self;
	size_t n;

	prepare();
	train_on(2, "whole/run", "2", "save-every: 1");
	n = read_whole("whole/run/checkpoint-2/sheaf.json", text, sizeof(text) - 1);
	text[n] = 0;
	CHECK(memcmp(text, "{\"sheaf\": 1", 11) == 0);
	text[10] = '9';
	self = strstr(text, ",\n \"self\": ");
	CHECK(self != NULL);
	snprintf(self + 12, 17, "%016llx", (unsigned long long)tr_crc64_more(
			 0, text, (size_t)(self - text)));
	self[28] = '"';
	put_text("whole/run/checkpoint-2/sheaf.json", text);
	train_fails(2, "whole/run", "", TR_EFORMAT, "by a newer sheaf");
	CHECK_INT(access("whole/run/checkpoint-2", F_OK), 0);
	rmtree("whole");
}

TEST(the_directory_of_a_checkpoint_is_resumed_wherever_it_is)
{
	struct rank rank[RANKS_MAX];

	prepare();
	train_on(2, "whole/run", "4", "{zero: 1, save-every: 1}");
	copy_checkpoint("whole/run/checkpoint-2", "whole/copy");
	CHECK_RC(listen_to(3, "whole/other", "4", "resume: whole/copy", rank), 0, &rank[0].err);
	CHECK_INT(count("\"consumed_samples\":24,\"resumed_from\":\"whole/copy\","
			"\"moments\":true"), 1);
	same_tensors("whole/run/checkpoint-4", "whole/other/checkpoint-4");
	/* The name of a directory may look like RUN@STEP. */
	copy_checkpoint("whole/run/checkpoint-3", "whole/copy@4");
	CHECK_RC(listen_to(2, "whole/third", "4", "resume: whole/copy@4", rank), 0, &rank[0].err);
	CHECK_INT(first_step(), 3);
	/* A directory of the run itself is a step of it, to which it has to be rewound. */
	train_fails(2, "whole/run", "resume: whole/run/checkpoint-2", TR_EINVAL, "rewind");
	CHECK_RC(listen_to(2, "whole/run", "4", "{resume: whole//run/checkpoint-2/, rewind: true}",
			   rank), 0, &rank[0].err);
	CHECK_INT(count("\"resumed_from\":\"whole//run@2\""), 1);
	same_tensors("whole/other/checkpoint-4", "whole/run/checkpoint-4");
	/* Another directory in the run is not a step of it, whatever number is in its name. */
	copy_checkpoint("whole/run/checkpoint-2", "whole/run/export-4");
	train_fails(2, "whole/run", "{resume: whole/run/export-4, rewind: true}", TR_EINVAL,
		    "whole/run/export-4 is not in whole/run");
	train_fails(2, "whole/run", "{resume: whole/run, rewind: true}", TR_EINVAL,
		    "resume whole/run is the run itself; use RUN@STEP");
	train_fails(2, "whole/next", "resume: atuo", TR_ENOENT, "neither auto, none, RUN@STEP");
	train_fails(2, "whole/next", "{resume: whole/copy, rewind: true}", TR_EINVAL,
		    "is not in whole/next");
	rmtree("whole");
}

/* Whether its step is older, the same or newer than those of the run. */
TEST(a_checkpoint_of_another_run_is_not_resumed_in_a_run_that_has_its_own)
{
	static const int steps[] = { 2, 3, 4 };

	prepare();
	train_on(2, "whole/other", "4", "save-every: 1");
	train_on(2, "whole/run", "3", "seed: 7");
	for (int i = 0; i < 3; i++) {
		char flags[60];

		snprintf(flags, sizeof(flags), "resume: whole/other@%d", steps[i]);
		train_fails(2, "whole/run", flags, TR_EINVAL, "checkpoints of its own");
		snprintf(flags, sizeof(flags), "resume: whole/other/checkpoint-%d", steps[i]);
		train_fails(2, "whole/run", flags, TR_EINVAL, "checkpoints of its own");
	}
	rmtree("whole");
}

/* Writes the weights of a checkpoint as a Hugging Face model. */
static void export_weights(const char *from, const char *to)
{
	struct sheaf_export how = { .size = sizeof(how) };
	struct sheaf_checkpoint *c;
	struct sheaf_error err;

	CHECK_RC(sheaf_checkpoint_open_path(&c, from, NULL, NULL, &err), 0, &err);
	CHECK_RC(sheaf_checkpoint_export(c, to, &how, NULL, &err), 0, &err);
	sheaf_checkpoint_close(c);
}

TEST(a_model_without_moments_is_resumed_with_its_weights_and_that_is_said)
{
	struct rank rank[RANKS_MAX];

	prepare();
	for (int bf16 = 0; bf16 < 2; bf16++) {
		const char *type = bf16 ? "{dtype: bf16, zero: 1}" : "{zero: 1}";
		char flags[100];

		train_on(2, "whole/run", "2", type);
		export_weights("whole/run/checkpoint-2", "whole/hf");
		/* A training with init model must save the same tensors. */
		snprintf(flags, sizeof(flags), "{%s, init: model, model: whole/hf}",
			 bf16 ? "dtype: bf16" : "zero: 1");
		train_on(2, "whole/init", "2", flags);
		snprintf(flags, sizeof(flags), "{%s, resume: whole/hf}",
			 bf16 ? "dtype: bf16" : "zero: 1");
		CHECK_RC(listen_to(2, "whole/next", "2", flags, rank), 0, &rank[0].err);
		CHECK_INT(count("\"consumed_samples\":0,\"resumed_from\":\"whole/hf\","
				"\"moments\":false"), 1);
		same_tensors("whole/init/checkpoint-2", "whole/next/checkpoint-2");
		rmtree("whole/run");
		rmtree("whole/hf");
		rmtree("whole/init");
		rmtree("whole/next");
	}
	rmtree("whole");
}

TEST(samples_of_another_length_begin_with_the_first_one_in_another_run)
{
	struct rank rank[RANKS_MAX];

	prepare();
	train_on(2, "whole/run", "2", "");
	train_fails(2, "whole/run", "seq: 5", TR_EINVAL,
		    "seq 5: whole/run@2 was trained with seq 9");
	CHECK_RC(listen_to(2, "whole/other", "3", "{seq: 5, resume: whole/run@2}", rank), 0,
		 &rank[0].err);
	CHECK_INT(count("\"changed\":[\"seq\",\"steps\"]"), 1);
	CHECK_INT(count("\"consumed_samples\":12,"), 1);
	rmtree("whole");
}

/* ---- what checkpoints have, and which are kept ---- */

static int has_text(const char *path, const char *text)
{
	char got[200];
	size_t n = read_whole(path, got, sizeof(got));

	return n == strlen(text) && memcmp(got, text, n) == 0;
}

TEST(checkpoints_have_the_tokenizer_of_the_model_or_of_the_data)
{
	struct agent agent;

	prepare();
	put_text("whole/tokenizer.json", "{\"version\": \"1.0\"}");
	put_text("whole/merges.txt", "a b\n");
	train_on(4, "whole/run", "2", "mesh: {tp: 2, pp: 2}");
	CHECK(has_text("whole/run/checkpoint-2/tokenizer.json", "{\"version\": \"1.0\"}"));
	CHECK(has_text("whole/run/checkpoint-2/merges.txt", "a b\n"));
	CHECK_INT(mkdir("whole/hf", 0777), 0);
	put_text("whole/hf/config.json", MODEL);
	put_text("whole/hf/generation_config.json", "{}");
	start_agent(&agent, "whole/other");
	train_on(2, "whole/other", "3", "{model: whole/hf, save-memory-every: 1}");
	stop_agent(&agent);
	CHECK(has_text("whole/other/checkpoint-3/tokenizer.json", "{\"version\": \"1.0\"}"));
	CHECK(has_text("whole/other/checkpoint-3/generation_config.json", "{}"));
	CHECK_INT(access("whole/other/checkpoint-3/merges.txt", F_OK), -1);
	CHECK_INT(truncate("whole/tokenizer.json", ((off_t)64 << 20) + 1), 0);
	train_fails(2, "whole/next", "", TR_EINVAL, "whole/tokenizer.json: a file of a checkpoint");
	rmtree("whole");
}

/* Returns the step with the smallest loss of the evaluations that were told. */
static int best_step(void)
{
	double least = 1e9, loss;
	int best = 0, step;

	for (const char *at = told; (at = strstr(at, "\"event\":\"eval\"")) != NULL; at++) {
		CHECK_INT(sscanf(at, "\"event\":\"eval\",\"step\":%d,\"loss\":%lf", &step,
				 &loss), 2);
		best = loss <= least ? step : best;
		least = loss <= least ? loss : least;
	}
	return best;
}

/* The learning rate is so large that the loss rises again. A commit removes older checkpoints only
 * after the newest one was read back. sheaf_run_prune removes at once what is left. */
TEST(the_newest_checkpoints_the_best_and_every_third_are_kept)
{
	static const char flags[] = "{save-every: 1, eval-every: 1, eval-data: whole/eval, "
		"keep-last: 1, keep-every: 3, keep-best: 1, lr: 0.05, decay: constant}";
	/* Here all losses are of the same data, so those for persons can be compared, too. */
	struct sheaf_retention keep = { .size = sizeof(keep), .keep_last = 1, .keep_every = 3,
		.keep_best = 1, .best_note = "eval.loss" };
	struct sheaf_opts opts = { .size = sizeof(opts), .retention = &keep };
	struct rank rank[RANKS_MAX];
	struct sheaf_run *run;
	struct sheaf_error err;
	int best;

	prepare_with_eval();
	CHECK_RC(listen_to(2, "whole/run", "8", flags, rank), 0, &rank[0].err);
	best = best_step();
	CHECK(best > 0 && best < 8 && best % 3);
	CHECK_RC(sheaf_run_open(&run, "whole/run", NULL, &opts, &err), 0, &err);
	CHECK(sheaf_run_prune(run, 0, NULL, NULL, &err) >= 0);
	sheaf_run_close(run);
	for (int step = 1; step <= 8; step++) {
		char path[60];

		snprintf(path, sizeof(path), "whole/run/checkpoint-%d", step);
		CHECK((access(path, F_OK) == 0) == (step % 3 == 0 || step == 8 || step == best));
	}
	rmtree("whole");
}

/* The checkpoints have losses of other data, or of weights and not of their average. */
TEST(keep_best_is_refused_where_losses_cannot_be_compared)
{
	static const char keep[] = "eval-every: 1, save-every: 1, keep-last: 1, keep-best: 1";
	char flags[200];

	prepare_with_eval();
	prepare_tokens("whole/text", "whole/more");
	snprintf(flags, sizeof(flags), "{eval-data: whole/eval, %s}", keep);
	train_on(2, "whole/run", "3", flags);
	train_on(1, "whole/run", "4", flags);
	snprintf(flags, sizeof(flags), "{eval-data: whole/more, %s}", keep);
	train_fails(2, "whole/run", flags, TR_EINVAL, "keep-best: whole/run@4 was trained with");
	snprintf(flags, sizeof(flags), "{eval-data: whole/eval, eval-ema: true, %s}", keep);
	train_fails(2, "whole/run", flags, TR_EINVAL, "keep-best: whole/run@4 was trained with");
	train_on(2, "whole/run", "5", "{eval-data: whole/more}");
	rmtree("whole");
}

/* Returns how many entries a directory has; -1: there is none. */
static int entries(const char *dir)
{
	DIR *d = opendir(dir);
	int n = d ? 0 : -1;

	for (struct dirent *e; d && (e = readdir(d)) != NULL;)
		n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	if (d)
		closedir(d);
	return n;
}

TEST(checkpoints_that_are_not_kept_take_no_space)
{
	prepare();
	train_on(2, "whole/run", "6", "{save-every: 1, keep-last: 1}");
	CHECK(access("whole/run/checkpoint-1", F_OK) < 0);
	CHECK_INT(entries("whole/run/.sheaf/trash"), 0);
	rmtree("whole");
}

/* ---- notes ---- */

struct noter {                          /* a rank that saves with its own notes */
	pthread_t thread;
	struct tr_ranks g;
	struct tr_progress progress;
	struct tr_error err;
	int rc;
};

static int save_notes(struct noter *n, struct tr_trainer *t, struct tr_store **s)
{
	const struct tr_store_opts so = { .run = "whole/run", .agent = "none" };
	struct tr_model_config c;
	const struct tr_isa *isa;
	int64_t step;
	int rc = tr_model_config_read(&c, MODEL, strlen(MODEL), "model", &n->err);

	if (rc == 0)
		rc = tr_isa_find(&isa, "portable", &n->err);
	if (rc == 0)
		rc = tr_backend_cpu(&t->be, isa, &n->err);
	if (rc == 0)
		rc = tr_trainer_init(t, &c, 1, 4, &n->err);
	if (rc == 0)
		rc = tr_store_open(s, &so, &n->g, &n->err);
	if (rc == 0)
		rc = tr_store_describe(*s, t, &n->err);
	if (rc == 0)
		rc = tr_store_begin(*s, TR_TO_DISK, &n->progress, NULL, 0, &n->err);
	return rc == 0 ? tr_store_advance(*s, TR_TO_DISK, -1, &step, &n->err) : rc;
}

static void *note(void *arg)
{
	struct noter *n = arg;
	struct tr_mesh mesh;
	struct tr_trainer t = { .mesh = &mesh, .leaves = 2, .pieces = 1 };
	struct tr_store *s = NULL;

	n->rc = tr_mesh_make(&mesh, &n->g, 2, 1, 1, &n->err);
	if (n->rc == 0)
		n->rc = save_notes(n, &t, &s);
	tr_store_close(s, 0);
	tr_trainer_release(&t);
	tr_backend_free(t.be);
	tr_mesh_release(&mesh);
	return NULL;
}

TEST(ranks_that_have_different_places_in_the_data_do_not_save)
{
	static const struct tr_progress place = { .step = 1, .adam_step = 1, .consumed = 12,
						  .tokens = 99, .seed = 1, .virtual_dp = 6 };

	prepare();
	for (int odd = 0; odd <= 5; odd++) {
		struct tr_hub *hub = tr_hub_new(2);
		struct noter n[2];

		memset(n, 0, sizeof(n));
		for (int i = 0; i < 2; i++) {
			n[i].progress = place;
			tr_ranks_hub(&n[i].g, hub, i, 20000);
		}
		*(odd == 1 ? &n[1].progress.consumed : odd == 2 ? &n[1].progress.tokens :
		  odd == 3 ? &n[1].progress.adam_step : odd == 4 ? &n[1].progress.virtual_dp :
		  &n[1].progress.data_tokens) += odd > 0;
		for (int i = 0; i < 2; i++)
			CHECK_INT(pthread_create(&n[i].thread, NULL, note, &n[i]), 0);
		for (int i = 0; i < 2; i++)
			pthread_join(n[i].thread, NULL);
		tr_hub_free(hub);
		for (int i = 0; i < 2; i++)
			CHECK_RC(n[i].rc, odd ? TR_EFAILED : 0, &n[i].err);
		CHECK((access("whole/run/checkpoint-1", F_OK) == 0) == !odd);
		rmtree("whole/run");
	}
	rmtree("whole");
}
