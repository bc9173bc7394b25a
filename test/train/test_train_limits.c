/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings with options at the ends of what the table of options allows, and with one target among
 * many tokens, on ranks that are threads. The sanitizers look for numbers that do not fit their
 * types. */
#include "t.h"

#include "rmtree.h"
#include "trainthreads.h"
#include "traintold.h"

/* What may come of it. */
enum { TRAINS, MAY_DIVERGE };

static const struct {
	const char *flags;
	int result;
} limits[] = {
	{ "lr: 1e-300", TRAINS },
	{ "{lr: 1000, min-lr: 1000, decay: linear}", MAY_DIVERGE },
	{ "{lr: 1000, weight-decay: 100}", MAY_DIVERGE },
	{ "clip: 1e-300", TRAINS },
	{ "clip: 1e30", TRAINS },
	{ "eps: 1.2e-38", TRAINS },
	{ "eps: 1", TRAINS },
	{ "{beta1: 0, beta2: 0}", TRAINS },
	{ "{beta1: 0.9999999, beta2: 0.9999999, ema: 0.9999999}", TRAINS },
	{ "{beta1: 1e-300, beta2: 1e-300, ema: 1e-300}", TRAINS },
	{ "{optimizer: muon, beta1: 0.9999999, weight-decay: 1e-300}", TRAINS },
	{ "{dropout: 1e-300, attention-dropout: 1e-300}", TRAINS },
	{ "{dropout: 0.99, attention-dropout: 0.99}", TRAINS },
	{ "{seed: 1000000000000000, epochs: 16777216}", TRAINS },
	{ "{seed: 0, save-every: 1000000000000000, keep-last: 1048576}", TRAINS },
	{ "{timeout-ms: 1073741824, stop-seconds: 16777216}", TRAINS },
	{ "{link-us: 1e-300, link-gbps: 1000000}", TRAINS },
	{ "{link-gbps: 0.001, overlap: true, zero: 1}", TRAINS },
	{ "{seq: 1, micro-batch: 1}", TRAINS },
};

TEST(options_at_their_limits_train_or_diverge_with_a_sentence)
{
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		struct rank rank[RANKS_MAX];
		int rc;

		prepare();
		rc = train_with(2, "whole/run", "3", limits[i].flags, limits[i].flags, 0, rank);
		if (rc != 0)
			print_message("%s: %s\n", limits[i].flags, rank[0].err.msg);
		CHECK(rc == 0 || (rc == TR_ENAN && limits[i].result == MAY_DIVERGE));
	}
	rmtree("whole");
}

enum { SEQ = 64, SAMPLES = 15625 / (T_SANITIZED ? 25 : 1) };

/* Makes a document of n samples, all of it a prompt, so that its end is the only target. Trains one
 * step on all of it. Returns what the event says of losses, gradient and weights. */
static void train_on_one_target(int samples, char event[300])
{
	char *text = malloc((size_t)(SEQ * samples) + 60), flags[200];
	struct rank rank[RANKS_MAX];
	const char *from, *to;
	int64_t tokens;
	int at;

	CHECK(text != NULL);
	at = sprintf(text, "{\"prompt\": \"");
	for (int i = 0; i < SEQ * samples; i++)
		text[at++] = (char)('a' + (SEQ * samples - i) * 7 % 26);
	sprintf(text + at, "\", \"response\": \"\"}\n");
	put_text("whole/text.jsonl", text);
	free(text);
	tokens = prepare_tokens("whole/text.jsonl", "whole/one-target");
	CHECK(tokens == SEQ * samples + 1);
	snprintf(flags, sizeof(flags), "{data: whole/one-target, seq: %d, batch: %d, "
		 "micro-batch: 125, virtual: {dp: 1}, mesh: {dp: 1}, dropout: 0, "
		 "attention-dropout: 0, shuffle: false, resume: none}", SEQ, samples);
	CHECK_RC(listen_to(1, "whole/run", "1", flags, rank), 0, &rank[0].err);
	CHECK_INT(count("\"tokens\":1,"), 1);
	from = strstr(told, "\"loss_hex\"");
	to = from ? strstr(from, "\"consumed_samples\"") : NULL;
	CHECK(to != NULL && to - from < 300);
	snprintf(event, 300, "%.*s", (int)(to - from), from);
	rmtree("whole/run");
}

/* The last sample has the target. The model is small, so that a million tokens take seconds. */
TEST(one_target_among_a_million_tokens_has_the_loss_and_the_gradient_that_it_has_alone)
{
	char alone[300], among[300];

	prepare();
	put_text("whole/model.json", "{\"model_type\": \"qwen2\", \"vocab_size\": 257, "
		 "\"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
		 "\"num_key_value_heads\": 1, \"intermediate_size\": 8}");
	train_on_one_target(1, alone);
	train_on_one_target(SAMPLES, among);
	CHECK_STR(among, alone);
	rmtree("whole");
}
