/* SPDX-License-Identifier: Apache-2.0 */
/* Options: from YAML, flags and checkpoints; what is refused; what reproduces a run. */
#include "t.h"

#include "bind.h"
#include "trainopts.h"

static int read_text(struct tr_opts *o, const char *text, enum tr_source source,
		     struct tr_error *err)
{
	return tr_opts_read_yaml(o, text, strlen(text), "a.yaml", source, err);
}

TEST(a_file_sets_options_and_those_that_it_leaves_out_have_their_defaults)
{
	struct tr_opts o;
	struct tr_error err;

	CHECK_RC(tr_opts_init(&o, &err), 0, &err);
	CHECK_RC(read_text(&o, "# a comment\nrun: 'r'\nlr: 1e-3\nbatch: 24\nshuffle: false\n"
			   "virtual: {dp: 12}\nmesh:\n  dp: 3\n  tp: 1\ndecay: linear\n",
			   TR_FROM_FILE, &err), 0, &err);
	CHECK_STR(o.run, "r");
	CHECK(o.lr == 1e-3 && o.batch == 24 && o.shuffle == 0 && o.virtual.dp == 12);
	CHECK(o.virtual.tp == 1 && o.mesh.dp == 3 && o.decay == 1 && o.beta1 == 0.9);
	CHECK(o.seed == 1 && o.init == TR_INIT_RANDOM && !o.steps);
	CHECK_STR(o.resume, "auto");
	tr_opts_release(&o);
	CHECK_RC(tr_opts_init(&o, &err), 0, &err);
	CHECK_RC(read_text(&o, "", TR_FROM_FILE, &err), 0, &err);
	tr_opts_release(&o);
}

TEST(a_flag_comes_before_the_file_and_the_file_before_the_checkpoint)
{
	static const char *const texts[] = { "lr: 0.5\nseed: 5\nbatch: 4\nmicro-batch: 2\n",
					     "lr: 0.25\nseed: 6\n" };
	struct tr_error err;

	/* In both orders in which they may be read. */
	for (int i = 0; i < 2; i++) {
		struct tr_opts o;

		CHECK_RC(tr_opts_init(&o, &err), 0, &err);
		if (i == 0)
			CHECK_RC(read_text(&o, texts[0], TR_FROM_CHECKPOINT, &err), 0, &err);
		CHECK_RC(tr_opts_set(&o, "lr", "0.125", TR_FROM_FLAG, "--", &err), 0, &err);
		CHECK_RC(read_text(&o, texts[1], TR_FROM_FILE, &err), 0, &err);
		if (i == 1)
			CHECK_RC(read_text(&o, texts[0], TR_FROM_CHECKPOINT, &err), 0, &err);
		CHECK(o.lr == 0.125 && o.seed == 6 && o.batch == 4);
		CHECK_INT(o.micro_batch, 0);    /* how to run is no property of a checkpoint */
		tr_opts_release(&o);
	}
}

/* Reads texts of options, each of which must be refused with a message that has certain words. */
static void refuse_all(const char *const (*bad)[2], size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct tr_error err = { .code = 0 };
		struct tr_opts o;

		CHECK_INT(tr_opts_init(&o, &err), 0);
		CHECK_INT(read_text(&o, bad[i][0], TR_FROM_FILE, &err), TR_EINVAL);
		if (!strstr(err.msg, bad[i][1]))
			print_error("%s: %s\n", bad[i][0], err.msg);
		CHECK(strstr(err.msg, bad[i][1]) != NULL);
		tr_opts_release(&o);
	}
}

/* A checkpoint has both; or one, and what was given is the other one. */
TEST(steps_or_epochs_that_are_given_replace_both_of_a_checkpoint)
{
	static const struct {
		const char *file, *flags, *checkpoint;
		int64_t steps, epochs;
	} ends[] = { { "lr: 1", "lr: 1", "steps: 8\nepochs: 2", 8, 2 },
		     { "steps: 9", "lr: 1", "steps: 8\nepochs: 2", 9, 0 },
		     { "lr: 1", "epochs: 3", "steps: 8\nepochs: 2", 0, 3 },
		     { "lr: 1", "steps: 9", "epochs: 2", 9, 0 },
		     { "epochs: 3", "lr: 1", "steps: 8", 0, 3 },
		     { "epochs: 3", "steps: 9", "steps: 8\nepochs: 2", 9, 3 } };

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		struct tr_error err;
		struct tr_opts o;

		CHECK_RC(tr_opts_init(&o, &err), 0, &err);
		CHECK_RC(read_text(&o, ends[i].flags, TR_FROM_FLAG, &err), 0, &err);
		CHECK_RC(read_text(&o, ends[i].file, TR_FROM_FILE, &err), 0, &err);
		CHECK_RC(tr_opts_read_yaml(&o, ends[i].checkpoint, strlen(ends[i].checkpoint),
					   "checkpoint", TR_FROM_CHECKPOINT, &err), 0, &err);
		CHECK_INT(o.steps, ends[i].steps);
		CHECK_INT(o.epochs, ends[i].epochs);
		tr_opts_release(&o);
	}
}

TEST(what_is_no_plain_mapping_of_options_is_refused_with_its_line)
{
	static const char *const bad[][2] = {
		{ "lr: &a 1", "line 1: an anchor" },
		{ "lr: 1\nmin-lr: *a", "line 2" },
		{ "lr: !!float 1", "line 1: a tag" },
		{ "lr: 1\nseed: 2\nlr: 1", "line 3: lr: an option that was set above" },
		{ "- lr", "must be a mapping" },
		{ "lr", "mapping" },
		{ "\nlr: [1]", "line 2: lr: a list; write one value" },
		{ "{lr: 1", "not YAML" },
		{ "lr: 1\n---\nlr: 2", "second document" },
		{ "mesh: {dp: {a: 1}}", "more than a value within a mapping" },
		{ "learning-rate: 1", "learning-rate: there is no such option" },
		{ "\nbatch: 0", "line 2: batch: it must be a whole number from 1" },
		{ "batch: 2.5", "batch: it must be a whole number" },
		{ "batch: ' 2'", "batch" },
		{ "batch: 99999999999999999999", "batch" },
		{ "lr: fast", "lr: it must be a number" },
		{ "lr: .inf", "lr" },
		{ "lr: -1", "lr" },
		{ "beta1: 1", "beta1" },
		{ "shuffle: yes", "shuffle: it must be true or false" },
		{ "decay: exponential", "one of constant|linear|cosine" },
		{ "dtype: fp64", "dtype: it must be one of fp32|bf16" },
		{ "mesh: 2", "mesh" },
		{ "mesh: {dp: 0}", "mesh" },
		{ "mesh: 'dp=1,'", "mesh" },
		{ "mesh: \"dp=\\t1\"", "mesh" },
		{ "mesh: dp=00000000000000000001x", "mesh" },
		{ "mesh: {dp: 000000000000000000000001x}", "mesh" },
		{ "mesh: {ep: 2}", "mesh" },
		{ "virtual: {dp: 2, dp: 2}", "virtual" },
		{ "stages: 3,,2", "stages: it must be such as 3,2,3, each from 1 to 65536" },
		{ "stages: ''", "stages" },
		{ "stages: 3,2,", "stages" },
		{ "stages: 3,0", "stages" },
		{ "stages: 3 2", "stages" },
		{ "schedule: gpipe", "one of 1f1b|afab|interleaved" },
		{ "chunks: 0", "chunks" },
		{ "zero: 3", "zero: it must be a whole number from 0 to 2" },
		{ "recompute: all", "recompute: it must be one of none|block" },
		{ "dropout: 1", "dropout: it must be a number from 0 to 0.99" },
		{ "attention-dropout: -0.1", "attention-dropout" },
		{ "zero-form: whole", "zero-form: it must be one of tensor|flat" },
		{ "run: ''", "run: it must be a text" },
		{ "run: \"a\\nb\"", "run: it must be a text" },
		{ "eps: 0", "eps: it must be a number from 1.2e-38" },
		{ "eps: 1e-38", "eps" },
		{ "link-gbps: 1e-300",
		  "link-gbps: it must be 0, or a number from 0.001 to 1000000" },
		{ "link-gbps: -0.001", "link-gbps" },
		{ "link-us: 1e300", "link-us: it must be a number from 0 to 1000000" },
		{ "timeout-ms: 0", "timeout-ms: it must be a whole number from 1" },
		{ "stop-seconds: 1e9", "stop-seconds: it must be a whole number from 1" },
		{ "lr: 1e300", "lr: it must be a number from 0 to 1000" },
	};

	refuse_all(bad, sizeof(bad) / sizeof(bad[0]));
}

TEST(a_list_is_the_same_as_its_numbers_with_commas)
{
	static const char *const bad[][2] = {
		{ "mesh: [1]", "mesh: a list; write one value" },
		{ "mesh: {dp: [1]}", "more than a value within a mapping" },
		{ "new: [1]", "new: there is no such option" },
		{ "stages: [[1], 2]", "line 1: stages: a list has single values only" },
		{ "stages: &a [1]", "an anchor or a tag" },
		{ "stages: [3, 0]", "stages: it must be such as 3,2,3" },
		{ "stages: []", "stages: it must be such as 3,2,3" },
	};
	struct tr_error err;
	struct tr_opts o;

	CHECK_INT(tr_opts_init(&o, &err), 0);
	CHECK_RC(read_text(&o, "stages: [3, 2]\nlr: 1", TR_FROM_FILE, &err), 0, &err);
	CHECK(o.stages.n == 2 && o.stages.count[0] == 3 && o.stages.count[1] == 2 && o.lr == 1);
	tr_opts_release(&o);
	refuse_all(bad, sizeof(bad) / sizeof(bad[0]));
}

TEST(an_option_that_only_a_newer_version_knows_says_so)
{
	static const char *const newer[] = { "flavor: 1", "flavor: [1]", "optimizer: lion" };
	struct tr_error err;
	struct tr_opts o;

	for (int i = 0; i < 3; i++) {
		CHECK_INT(tr_opts_init(&o, &err), 0);
		CHECK_INT(read_text(&o, newer[i], TR_FROM_CHECKPOINT, &err), TR_EFORMAT);
		CHECK(strstr(err.msg, "a newer one has saved the checkpoint") != NULL);
		/* How a newer version can run changes nothing. */
		CHECK_RC(read_text(&o, "schedule: zigzag", TR_FROM_CHECKPOINT, &err), 0, &err);
		tr_opts_release(&o);
	}
}

static const char good[] = "run: r\nmodel: m.json\ndata: d\nbatch: 24\nseq: 8\nsteps: 10\n";

TEST(a_text_is_utf8_without_control_characters)
{
	static const char *const bad[] = { "r\xff", "\xc3", "\xe2\x82", "\xc0\xaf", "\xed\xa0\x80",
		"\xf4\x90\x80\x80", "a\x1f", "\x7f", "\xc2\x85", "a \xe2\x80\xa8 b",
		"\xe2\x80\xa9", "\xef\xbf\xbe", "a\xef\xbf\xbf", "" };
	static const char *const good_ones[] = { "r", "r\xc3\xa9", "\xe2\x82\xac",
						 "\xf0\x9f\x98\x80", "a b\\",
						 "\xe2\x80\xa7", "\xef\xbf\xbd" };
	struct tr_error err;
	struct tr_opts o;

	CHECK_INT(tr_opts_init(&o, &err), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK_INT(tr_opts_set(&o, "run", bad[i], TR_FROM_FLAG, "--", &err), TR_EINVAL);
	for (size_t i = 0; i < sizeof(good_ones) / sizeof(good_ones[0]); i++)
		CHECK_RC(tr_opts_set(&o, "run", good_ones[i], TR_FROM_FLAG, "--", &err), 0, &err);
	tr_opts_release(&o);
}

TEST(options_that_do_not_fit_together_are_named)
{
	static const char *const bad[][3] = {
		{ "mesh: {dp: 3}", "mesh dp=3, tp=1, pp=1 needs 3 ranks", "the job has 2" },
		{ "mesh: {tp: 3}", "mesh dp=1, tp=3, pp=1 needs 3 ranks", "the job has 2" },
		{ "mesh: {tp: 2, pp: 2}", "mesh dp=1, tp=2, pp=2 needs 4 ranks", "the job has 2" },
		{ "virtual: {dp: 3}", "mesh dp=2", "virtual dp=3" },
		{ "virtual: {dp: 10}", "virtual dp=10", "batch 24" },
		{ "mesh: {dp: 2, tp: 2}", "mesh dp=2, tp=2, pp=1 needs 4 ranks", "the job has 2" },
		{ "{mesh: {tp: 2}, virtual: {dp: 2}}", "mesh tp=2", "virtual tp=1" },
		{ "{mesh: {tp: 2}, virtual: {tp: 3}}", "mesh tp=2", "virtual tp=3" },
		{ "sp: true", "sp", "mesh has tp=1" },
		{ "eval-every: 5", "eval-every 5", "eval-data" },
		{ "keep-best: 2\nkeep-last: 1", "keep-best 2", "eval-data" },
		{ "keep-every: 4", "keep-every 4", "keep-last is 0" },
		{ "save-memory-every: 2\nagent: none", "save-memory-every 2", "agent is none" },
		{ "save-memory-every: 2\noffload: d", "save-memory-every 2", "offload d" },
		{ "{mesh: {pp: 2}, virtual: {pp: 2}}", "virtual pp=2", "mesh pp=2" },
		{ "{mesh: {pp: 2}, chunks: 2}", "chunks 2", "schedule is 1f1b" },
		{ "{mesh: {pp: 2}, chunks: 3, schedule: afab}", "chunks 3", "schedule is afab" },
		{ "{mesh: {pp: 2}, schedule: interleaved}", "schedule interleaved", "chunks is 1" },
		{ "{schedule: interleaved, chunks: 2}", "schedule interleaved", "mesh has pp=1" },
		{ "{mesh: {pp: 2}, stages: '1,2,1'}", "stages has 3 numbers", "mesh pp=2" },
		{ "{mesh: {pp: 2}, schedule: interleaved, chunks: 2, stages: '3,2'}",
		  "stages has 2 numbers", "chunks 2" },
		{ "stages: 5,5", "stages has 2 numbers", "mesh pp=1" },
		{ "zero-form: flat", "zero-form flat", "zero is 0" },
		{ "{zero: 1, zero-form: flat, optimizer: muon}", "optimizer muon",
		  "zero-form flat" },
		{ "{eval-ema: true, eval-data: d}", "eval-ema", "ema is 0" },
		{ "{eval-ema: true, ema: 0.9}", "eval-ema", "eval-data" },
		{ "isa: avx512-bf16", "isa avx512-bf16", "dtype is fp32" },
		{ "min-lr: 1", "min-lr 1", "lr 0.0003" },
		{ "warmup: 11", "warmup 11", "steps 10" },
		{ "batch: 16777216\nseq: 1048576", "micro-batch 8388608", "seq 1048576" },
	};
	static const char *const needed[] = { "run", "model", "data", "batch", "seq", "steps" };
	struct tr_error err;
	struct tr_opts o;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		CHECK_INT(tr_opts_init(&o, &err), 0);
		CHECK_RC(read_text(&o, good, TR_FROM_FILE, &err), 0, &err);
		CHECK_RC(read_text(&o, bad[i][0], TR_FROM_FILE, &err), 0, &err);
		CHECK_INT(tr_opts_check(&o, 2, &err), TR_EINVAL);
		CHECK(strstr(err.msg, bad[i][1]) && strstr(err.msg, bad[i][2]));
		tr_opts_release(&o);
	}
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		char text[sizeof(good)];
		char *line;

		memcpy(text, good, sizeof(good));
		line = strstr(text, needed[i]);
		*line = '#';
		CHECK_INT(tr_opts_init(&o, &err), 0);
		CHECK_RC(read_text(&o, text, TR_FROM_FILE, &err), 0, &err);
		CHECK_INT(tr_opts_check(&o, 2, &err), TR_EINVAL);
		CHECK(strstr(err.msg, needed[i]) != NULL);
		tr_opts_release(&o);
	}
}

TEST(what_is_left_out_follows_from_the_ranks)
{
	struct tr_error err;
	struct tr_opts o;

	CHECK_INT(tr_opts_init(&o, &err), 0);
	CHECK_RC(read_text(&o, good, TR_FROM_FILE, &err), 0, &err);
	CHECK_RC(tr_opts_check(&o, 3, &err), 0, &err);
	CHECK(o.mesh.dp == 3 && o.micro_batch == 8 && !o.virtual.dp);
	tr_opts_release(&o);
	CHECK_INT(tr_opts_init(&o, &err), 0);
	CHECK_RC(read_text(&o, good, TR_FROM_FILE, &err), 0, &err);
	CHECK_RC(read_text(&o, "mesh: {pp: 2}", TR_FROM_FILE, &err), 0, &err);
	CHECK_RC(tr_opts_check(&o, 2, &err), 0, &err);
	CHECK(o.micro_batch == 3);      /* 24 samples are 8 micro-batches */
	tr_opts_release(&o);
	CHECK_INT(tr_opts_init(&o, &err), 0);
	CHECK_RC(read_text(&o, good, TR_FROM_FILE, &err), 0, &err);
	CHECK_INT(tr_opts_check(&o, 5, &err), TR_EINVAL);       /* 5 does not divide 24 */
	CHECK(strstr(err.msg, "mesh dp=5") && strstr(err.msg, "batch 24"));
	tr_opts_release(&o);
}

TEST(messages_of_the_library_have_the_words_of_the_trainer)
{
	static const char *const message[][2] = {
		{ "r: no run directory here (SHEAF_RUN_CREATE makes one): No such file",
		  "r: no run directory here: No such file" },
		{ "step 3: at least one rank is still writing; commit again",
		  "step 3: at least one rank is still writing" },
		{ "late; see the scheduler's log, or raise opts.timeout_ms",
		  "late; see the scheduler's log, or raise timeout-ms" },
		{ "nothing of the library", "nothing of the library" },
	};
	char text[200], small[60] = "r: opts.memory_tier.agent and more";

	for (size_t i = 0; i < sizeof(message) / sizeof(message[0]); i++) {
		snprintf(text, sizeof(text), "%s", message[i][0]);
		tr_store_words(text, sizeof(text));
		CHECK_STR(text, message[i][1]);
	}
	tr_store_words(small, sizeof(small));
	CHECK_STR(small, "r: agent and more");
	snprintf(small, sizeof(small), "12345678901234567890 (see opts.resume_attempts_max)");
	tr_store_words(small, sizeof(small));
	CHECK_STR(small, "12345678901234567890; if this goes on, resume from an earli");
}

TEST(the_printed_options_reproduce_the_run)
{
	struct tr_opts o, again;
	const char *keys[TR_OPTS_MAX + 1];
	struct tr_error err;
	char *text, *second;

	CHECK_INT(tr_opts_init(&o, &err), 0);
	CHECK_RC(read_text(&o, good, TR_FROM_FILE, &err), 0, &err);
	CHECK_RC(read_text(&o, "lr: 0.1\neps: 1e-12\nvirtual: {dp: 12}\nstages: 3,2\n"
			   "mesh: {pp: 2}", TR_FROM_FILE, &err), 0, &err);
	CHECK_RC(tr_opts_set(&o, "run", "it's: a #run", TR_FROM_FLAG, "--", &err), 0, &err);
	CHECK_RC(tr_opts_check(&o, 2, &err), 0, &err);
	CHECK_RC(tr_opts_set(&o, "ema", "0.30000000000000004", TR_FROM_FLAG, "--", &err), 0, &err);
	text = tr_opts_yaml(&o);
	/* Each number is as short as it can be. */
	CHECK(strstr(text, "\nlr: 0.1\n") && strstr(text, "\neps: 1e-12\n") &&
	      strstr(text, "\nema: 0.30000000000000004\n") && strstr(text, "\nbeta2: 0.95\n"));
	CHECK_INT(tr_opts_init(&again, &err), 0);
	CHECK_RC(read_text(&again, text, TR_FROM_FILE, &err), 0, &err);
	second = tr_opts_yaml(&again);
	CHECK_STR(text, second);
	CHECK_STR(again.run, "it's: a #run");
	tr_opts_differ(&o, &again, keys);
	CHECK(!keys[0]);
	CHECK_RC(tr_opts_set(&again, "lr", "0.2", TR_FROM_FLAG, "--", &err), 0, &err);
	CHECK_RC(tr_opts_set(&again, "isa", "portable", TR_FROM_FLAG, "--", &err), 0, &err);
	tr_opts_differ(&o, &again, keys);
	CHECK_STR(keys[0], "lr");
	CHECK(!keys[1]);
	free(text);
	free(second);
	tr_opts_release(&o);
	tr_opts_release(&again);
}
