/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluations: for any number of samples and in any layout the same loss, on its own and within a
 * training; of a checkpoint alone, which writes nothing; of the average of the weights. */
#include "t.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lm.h"
#include "ranks_threads.h"
#include "rmtree.h"
#include "trainthreads.h"
#include "traintold.h"

/* ---- with any number of samples, in any layout ---- */

struct evaluator {
	pthread_t thread;
	struct tr_ranks g;
	int dp, tp, pp;
	double dropout, loss;
	int64_t tokens;
	struct tr_error err;
	int rc;
};

static int evaluate_with(struct evaluator *e, struct tr_trainer *t, struct tr_lm **lm)
{
	const struct tr_lm_opts o = { .data = "whole/eval", .ranks = &t->mesh->line,
				      .micro_batch = 2, .rank_batch = 2, .seq = 9,
				      .vocab = 257, .dropout = e->dropout,
				      .attention_dropout = e->dropout };
	struct tr_model_config c;
	const struct tr_isa *isa;
	int rc = tr_model_config_read(&c, MODEL, strlen(MODEL), "model", &e->err);

	if (rc == 0)
		rc = tr_isa_find(&isa, "auto", &e->err);
	if (rc == 0)
		rc = tr_backend_cpu(&t->be, isa, &e->err);
	if (rc == 0)
		rc = tr_trainer_init(t, &c, 2, 9, &e->err);
	if (rc == 0)
		rc = tr_lm_new(lm, &o, &e->err);
	if (rc < 0)
		return rc;
	tr_registry_draw(tr_model_registry(t->model), tr_model_weights(t->model), 1, 0.3);
	return tr_lm_evaluate(*lm, t, NULL, &e->loss, &e->tokens, &e->err);
}

static void *evaluate(void *arg)
{
	struct evaluator *e = arg;
	struct tr_mesh mesh;
	struct tr_trainer t = { .mesh = &mesh, .leaves = e->dp, .pieces = 2, .sp = e->tp > 1,
				.pipe = { .order = TR_ORDER_INTERLEAVED, .chunks = e->pp } };
	struct tr_lm *lm = NULL;

	e->rc = tr_mesh_make(&mesh, &e->g, e->dp, e->tp, e->pp, &e->err);
	if (e->rc == 0)
		e->rc = evaluate_with(e, &t, &lm);
	tr_lm_free(lm);
	tr_trainer_release(&t);
	tr_backend_free(t.be);
	tr_mesh_release(&mesh);
	return NULL;
}

/* Evaluates on dp * tp * pp threads, which must agree. */
static struct evaluator evaluate_on_mesh(int dp, int tp, int pp)
{
	struct evaluator e[RANKS_MAX];
	struct tr_hub *hub = tr_hub_new(dp * tp * pp);

	memset(e, 0, sizeof(e));
	for (int i = 0; i < dp * tp * pp; i++) {
		tr_ranks_hub(&e[i].g, hub, i, 20000);
		e[i].dp = dp;
		e[i].tp = tp;
		e[i].pp = pp;
		e[i].dropout = dp == 2 ? 0.5 : 0;       /* in training only */
		CHECK_INT(pthread_create(&e[i].thread, NULL, evaluate, &e[i]), 0);
	}
	for (int i = 0; i < dp * tp * pp; i++) {
		pthread_join(e[i].thread, NULL);
		CHECK_RC(e[i].rc, 0, &e[i].err);
		CHECK(memcmp(&e[i].loss, &e[0].loss, sizeof(e->loss)) == 0);
		CHECK(e[i].tokens == e[0].tokens);
	}
	tr_hub_free(hub);
	return e[0];
}

/* Nothing is dropped in an evaluation. Of one sample, and of three, a rank of dp 4 has none. The
 * last of the three has one token, so with sp a rank of tp 2 has no row of it, and nothing to pass
 * to the next stage. */
TEST(evaluations_have_the_same_bits_in_all_layouts)
{
	static const int mesh[][3] = { { 2, 1, 1 }, { 3, 1, 1 }, { 4, 1, 1 }, { 1, 2, 1 },
				       { 2, 2, 1 }, { 1, 1, 2 }, { 4, 1, 2 }, { 1, 2, 2 } };
	static const int tokens[] = { 7, 20, 999 * 9 + 5 };
	static char text[10000];

	for (int k = 0; k < 3; k++) {
		struct evaluator one, e;

		prepare();
		memset(text, 0, sizeof(text));
		for (int i = 0; i < tokens[k] - 1; i++)
			text[i] = (char)('a' + i * i % 7 % 3);
		put_text("whole/short", text);
		CHECK(prepare_tokens("whole/short", "whole/eval") == tokens[k]);
		one = evaluate_on_mesh(1, 1, 1);
		CHECK(one.tokens == tokens[k] - 1 && one.loss > 1 && one.loss < 20);
		for (size_t i = 0; i < sizeof(mesh) / sizeof(mesh[0]); i++) {
			e = evaluate_on_mesh(mesh[i][0], mesh[i][1], mesh[i][2]);
			CHECK(e.tokens == one.tokens);
			CHECK(memcmp(&e.loss, &one.loss, sizeof(one.loss)) == 0);
		}
	}
	rmtree("whole");
}

/* Of two samples, a rank of dp 3 has none, but a share of the weights that the others wait for. */
TEST(a_rank_without_samples_of_an_evaluation_sends_its_weights_to_the_others)
{
	prepare();
	put_text("whole/short", "abcabcacbacb");
	prepare_tokens("whole/short", "whole/eval");
	train_on(1, "whole/one", "2", "");
	train_on(3, "whole/run", "2", "{mesh: {dp: 3}, zero: 1, overlap: true, eval-every: 1, "
		 "eval-data: whole/eval}");
	same_tensors("whole/one/checkpoint-2", "whole/run/checkpoint-2");
	rmtree("whole");
}

/* Overwrites the last token of the data of evaluations. */
static void put_last_token(int token)
{
	const unsigned char bytes_of[2] = { (unsigned char)token, (unsigned char)(token >> 8) };
	int fd = open("whole/eval", O_RDWR);
	char header[4096], *at;
	uint64_t bytes, from, to;

	CHECK(pread(fd, &bytes, 8, 0) == 8 && bytes < sizeof(header));
	CHECK_INT(pread(fd, header, bytes, 8), (ssize_t)bytes);
	header[bytes] = 0;
	at = strstr(header, "\"tokens\"");
	CHECK(at && (at = strstr(at, "\"data_offsets\"")) && (at = strchr(at, '[')));
	CHECK_INT(sscanf(at, "[%" SCNu64 ",%" SCNu64, &from, &to), 2);
	CHECK_INT(pwrite(fd, bytes_of, 2, (off_t)(8 + bytes + to - 2)), 2);
	close(fd);
}

/* When the training has checked the data of evaluations, they get a token that the model does not
 * have. */
static void damage_after_start(const char *line)
{
	if (strstr(line, "\"event\":\"start\""))
		put_last_token(0x7fff);
}

/* Returns whether a checkpoint has the note eval.loss. */
static int has_loss(const char *checkpoint)
{
	static char text[1 << 16];
	char path[80];
	size_t n;

	snprintf(path, sizeof(path), "%s/sheaf.json", checkpoint);
	n = read_whole(path, text, sizeof(text) - 1);
	CHECK(n > 0);
	text[n] = 0;
	return strstr(text, "\"eval.loss\"") != NULL;
}

/* The evaluation is one at the end, or after step 3 of 5 while step 2 is being saved. */
TEST(the_step_of_an_evaluation_that_fails_is_saved)
{
	static const struct {
		int ranks;
		const char *flags, *step;
	} some[] = { { 1, "ema: 0.75", "4" }, { 3, "zero: 1, overlap: true, eval-ema: true", "4" },
		     { 4, "mesh: {tp: 2, pp: 2}, eval-every: 3, save-every: 2", "3" },
		     { 2, "zero: 2, eval-ema: true, eval-every: 3, save-every: 2", "3" } };

	prepare_with_eval();
	train_on(1, "whole/plain", "3", "save-every: 3");
	train_on(1, "whole/plain", "4", "");
	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		char flags[200], plain[60], run[60];

		snprintf(flags, sizeof(flags), "{eval-data: whole/eval, %s}", some[i].flags);
		put_last_token(256);
		begin_to_listen(damage_after_start);
		train_fails(some[i].ranks, "whole/run", flags, TR_EINVAL, "whole/eval");
		rank_0_tells = 0;
		CHECK(count("\"event\":\"step\"") >= 3);
		snprintf(plain, sizeof(plain), "whole/plain/checkpoint-%s", some[i].step);
		snprintf(run, sizeof(run), "whole/run/checkpoint-%s", some[i].step);
		same_tensors(plain, run);
		CHECK(!has_loss(run));
		rmtree("whole/run");
	}
	rmtree("whole");
}

/* When the training has made two steps, its data are cut behind the header. */
static void cut_after_two_steps(const char *line)
{
	uint64_t bytes = 0;
	int fd;

	if (!strstr(line, "\"event\":\"step\",\"step\":2,"))
		return;
	fd = open("whole/data", O_RDWR);
	CHECK(fd >= 0 && pread(fd, &bytes, 8, 0) == 8);
	CHECK_INT(ftruncate(fd, (off_t)(8 + bytes)), 0);
	close(fd);
}

/* Step 2 may be saved when that happens. */
TEST(the_last_step_is_saved_where_the_data_of_the_next_one_cannot_be_read)
{
	static const struct {
		int ranks;
		const char *flags;
	} some[] = { { 1, "" }, { 3, "zero: 1\noverlap: true" }, { 4, "mesh: {tp: 2, pp: 2}" },
		     { 2, "zero: 2\nsave-every: 2" }, { 2, "mesh: {pp: 2}\nsave-every: 1" } };

	prepare();
	train_on(1, "whole/plain", "2", "");
	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		prepare_tokens("whole/text", "whole/data");
		begin_to_listen(cut_after_two_steps);
		train_fails(some[i].ranks, "whole/run", some[i].flags, TR_EFORMAT,
			    "whole/data: it ends at byte");
		rank_0_tells = 0;
		same_tensors("whole/plain/checkpoint-2", "whole/run/checkpoint-2");
		rmtree("whole/run");
	}
	rmtree("whole");
}

/* Also where another rank reads them than rank 0. */
TEST(data_of_evaluations_are_checked_before_the_first_step)
{
	static const char *const flags[] = { "eval-data: whole/eval",
		"{eval-data: whole/eval, mesh: {pp: 2}}" };
	struct rank rank[RANKS_MAX];

	prepare_with_eval();
	put_last_token(0x7fff);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(listen_to(2, "whole/run", "4", flags[i], rank), TR_EINVAL);
		CHECK(strstr(rank[0].err.msg, "whole/eval: token ") &&
		      strstr(rank[0].err.msg, " is 32767, and the model has a vocab_size of 257"));
		CHECK_INT(count("\"event\":\"step\""), 0);
		CHECK_INT(access("whole/run/checkpoint-4", F_OK), -1);
	}
	rmtree("whole");
}

/* The last one also if its step is one that save-every names. */
TEST(checkpoints_of_steps_that_were_evaluated_have_the_loss)
{
	prepare_with_eval();
	train_on(2, "whole/run", "5", "{save-every: 1, eval-every: 2, eval-data: whole/eval}");
	for (int step = 1; step <= 5; step++) {
		char path[60];

		snprintf(path, sizeof(path), "whole/run/checkpoint-%d", step);
		CHECK_INT(has_loss(path), step % 2 == 0 || step == 5);
	}
	rmtree("whole/run");
	train_on(2, "whole/run", "4", "{save-every: 2, eval-data: whole/eval}");
	CHECK(!has_loss("whole/run/checkpoint-2") && has_loss("whole/run/checkpoint-4"));
	rmtree("whole");
}

/* ---- of a checkpoint alone ---- */

static const char *const types[] = { "dtype: fp32", "dtype: bf16" };

/* Returns the first event of an evaluation. */
static const char *first_loss(void)
{
	const char *at = strstr(told, "\"event\":\"eval\"");

	return at ? at : "none";
}

/* Trains four steps on 3 ranks, with further options. Returns the first event of an evaluation,
 * which must be that of `step`. Valid until the next call. */
static const char *train_and_evaluate(const char *type, const char *more, const char *step)
{
	static char event[300], flags[150];
	struct rank rank[RANKS_MAX];

	snprintf(flags, sizeof(flags), "{%s, zero: 1, eval-data: whole/eval, %s}", type, more);
	CHECK_RC(listen_to(3, "whole/run", "4", flags, rank), 0, &rank[0].err);
	snprintf(event, sizeof(event), "%.*s", (int)strcspn(first_loss(), "\n"), first_loss());
	CHECK(strstr(event, step) != NULL);
	return event;
}

/* Evaluates a checkpoint of that run, with further options. Returns whether the event is that
 * one. */
static int has_event(int n, const char *type, const char *more, const char *event)
{
	struct rank rank[RANKS_MAX];
	char flags[150];

	snprintf(flags, sizeof(flags), "{%s, eval-data: whole/eval, %s}", type, more);
	CHECK_RC(evaluate_on(n, "whole/run", flags, rank), 0, &rank[0].err);
	return strncmp(first_loss(), event, strlen(event)) == 0;
}

/* The newest checkpoint is damaged: in moments, which an evaluation does not read, and in
 * weights. */
TEST(an_evaluation_has_the_loss_of_the_training_and_changes_nothing)
{
	static const char *const weights[] = {
		"model-00001-of-00001.safetensors",
		"master_weights/master_weights-00001-of-00001.safetensors" };
	struct rank rank[RANKS_MAX];

	prepare_with_eval();
	for (int i = 0; i < 2; i++) {
		const char *event = train_and_evaluate(types[i], "eval-every: 2, save-every: 2",
						       "\"step\":2");

		damage(4, "optimizer/optimizer-00001-of-00001.safetensors", 20000);
		damage(4, weights[i], 20000);
		CHECK(has_event(2, types[i], "mesh: {tp: 2}", event));
		CHECK_INT(count("\"passed_over\":[\"checkpoint-4: "), 1);
		CHECK_INT(count("\"event\":\"end\",\"reason\":\"data\",\"step\":2"), 1);
		CHECK_INT(access("whole/run/checkpoint-4", F_OK), 0);
		CHECK(has_event(1, types[i], "resume: whole/run@2", event));
		rmtree("whole/run");
	}
	CHECK_INT(mkdir("whole/run", 0777), 0);
	CHECK_RC(evaluate_on(2, "whole/run", "eval-data: whole/eval", rank), TR_ENOENT,
		 &rank[0].err);
	train_on(2, "whole/run", "1", "");
	CHECK_RC(evaluate_on(2, "whole/run", "", rank), TR_EINVAL, &rank[0].err);
	rmtree("whole");
}

TEST(an_evaluation_of_another_run_needs_no_run)
{
	struct rank rank[RANKS_MAX];

	prepare_with_eval();
	for (int i = 0; i < 2; i++) {
		static const char *const resume[] = { "whole/run@4", "whole/run/checkpoint-4" };
		const char *event = train_and_evaluate(types[0], "keep-last: 0", "\"step\":4");
		char flags[100];

		snprintf(flags, sizeof(flags), "{resume: %s, eval-data: whole/eval}", resume[i]);
		CHECK_RC(evaluate_on(2, "whole/none", flags, rank), 0, &rank[0].err);
		CHECK(strncmp(first_loss(), event, strlen(event)) == 0);
		rmtree("whole/run");
	}
	CHECK_RC(evaluate_on(2, "whole/none", "eval-data: whole/eval", rank), TR_ENOENT,
		 &rank[0].err);
	CHECK(strstr(rank[0].err.msg, "run whole/none has no checkpoint to evaluate") != NULL);
	CHECK(access("whole/none", F_OK) < 0);
	rmtree("whole");
}

TEST(the_average_of_a_checkpoint_is_evaluated_and_missed_if_there_is_none)
{
	struct rank rank[RANKS_MAX];

	prepare_with_eval();
	for (int i = 0; i < 2; i++) {
		const char *event = train_and_evaluate(types[i], "ema: 0.5, eval-ema: true",
						       "\"step\":4");

		CHECK(has_event(2, types[i], "mesh: {tp: 2}, eval-ema: true", event));
		CHECK(!has_event(1, types[i], "eval-ema: false", event));
		rmtree("whole/run");
	}
	train_on(2, "whole/run", "2", "ema: 0");
	CHECK_RC(evaluate_on(2, "whole/run", "{ema: 0.5, eval-ema: true, eval-data: whole/eval}",
			     rank), TR_ENOENT, &rank[0].err);
	CHECK(strstr(rank[0].err.msg, "whole/run@2 has no average of the weights") != NULL);
	rmtree("whole");
}
