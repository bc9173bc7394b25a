/* SPDX-License-Identifier: Apache-2.0 */
/* A whole model: its configuration, its parameters, and the independence of its gradients from how
 * tokens are put into calls. */
#include "t.h"

#include <math.h>

#include "itemhash.h"
#include "qwen2.h"

static const char tiny[] = "{\"model_type\": \"qwen2\", \"vocab_size\": 61, \"hidden_size\": 24, "
	"\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
	"\"intermediate_size\": 35, \"tie_word_embeddings\": true, \"rope_theta\": 1e6}";

static int read_config(struct tr_model_config *c, const char *text, struct tr_error *err)
{
	return tr_model_config_read(c, text, strlen(text), "config.json", err);
}

TEST(a_configuration_is_read_and_defaults_are_those_of_hugging_face)
{
	struct tr_model_config c;
	struct tr_error err;

	CHECK_RC(read_config(&c, tiny, &err), 0, &err);
	CHECK(c.vocab == 61 && c.hidden == 24 && c.layers == 2 && c.heads == 4 && c.kv_heads == 2);
	CHECK(c.ffn == 35 && c.head_size == 6 && c.tied && c.qkv_bias && c.rope_theta == 1e6);
	CHECK(c.norm_eps == 1e-6 && c.init_range == 0.02);
	CHECK_RC(read_config(&c, "{\"model_type\": \"llama\", \"vocab_size\": 5, "
		"\"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
		"\"intermediate_size\": 8, \"head_dim\": 6, \"rope_parameters\": "
		"{\"rope_theta\": 500000.0, \"rope_type\": \"default\"}}", &err), 0, &err);
	CHECK(!c.qkv_bias && !c.tied && c.kv_heads == 2 && c.head_size == 6);
	CHECK(c.rope_theta == 500000);
}

TEST(what_would_change_the_arithmetic_is_refused_by_name)
{
	static const char *const bad[][2] = {
		{ "[]", "not the JSON" },
		{ "{\"model_type\": \"gpt2\"}", "model_type" },
		{ "{\"model_type\": \"qwen2\"}", "vocab_size" },
		{ "{\"model_type\": \"qwen2\", \"vocab_size\": -3}", "vocab_size" },
		{ "{\"model_type\": \"qwen2\", \"hidden_act\": \"gelu\"}", "hidden_act" },
		{ "{\"model_type\": \"qwen2\", \"use_sliding_window\": true}", "sliding" },
		{ "{\"model_type\": \"qwen2\", \"use_sliding_window\": 1}",
		  "use_sliding_window must be true or false" },
		{ "{\"model_type\": \"llama\", \"attention_bias\": \"no\"}",
		  "attention_bias must be true or false" },
		{ "{\"model_type\": \"llama\", \"mlp_bias\": []}", "mlp_bias must be true or" },
		{ "{\"model_type\": \"llama\", \"vocab_size\": 5, \"hidden_size\": 8, "
		  "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"intermediate_size\": 8, "
		  "\"tie_word_embeddings\": \"yes\"}", "tie_word_embeddings must be true" },
		{ "{\"model_type\": \"llama\", \"vocab_size\": 5, \"hidden_size\": 8, "
		  "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"intermediate_size\": 8, "
		  "\"rope_scaling\": {\"rope_type\": \"llama3\"}}", "rotary" },
		{ "{\"model_type\": \"llama\", \"vocab_size\": 5, \"hidden_size\": 8, "
		  "\"num_hidden_layers\": 1, \"num_attention_heads\": 3, \"intermediate_size\": 8, "
		  "\"num_key_value_heads\": 2}", "num_key_value_heads" },
		{ "{\"model_type\": \"llama\", \"vocab_size\": 5, \"hidden_size\": 2147483648, "
		  "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
		  "\"intermediate_size\": 2147483648}", "10^13 weights" },
		{ "{\"model_type\": \"llama\", \"vocab_size\": 5, \"hidden_size\": 1, "
		  "\"num_hidden_layers\": 1, \"num_attention_heads\": 2147483648, "
		  "\"intermediate_size\": 1, \"head_dim\": 4}", "2^31 items" },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct tr_model_config c;
		struct tr_error err = { .code = 0 };

		CHECK_INT(read_config(&c, bad[i][0], &err), TR_EFORMAT);
		CHECK(strstr(err.msg, bad[i][1]) != NULL);
	}
}

TEST(qwen2_0_5b_has_the_published_number_of_parameters)
{
	struct tr_model_config c = { .vocab = 151936, .hidden = 896, .layers = 24, .heads = 14,
		.kv_heads = 2, .head_size = 64, .ffn = 4864, .tied = 1, .qkv_bias = 1 };
	static const struct tr_pieces all = { 1, 0, 1 };
	static const struct tr_part part = { 0, 24, 1 };
	static const struct tr_parts whole = { .n = 1, .part = &part };
	struct tr_registry r;
	struct tr_error err;

	CHECK_RC(tr_registry_make(&r, &c, &whole, &all, &all, &err), 0, &err);
	CHECK(r.distinct == 494032768);
	CHECK_STR(r.param[r.layer[23 * TR_LAYER_PARAMS + TR_DOWN]].name,
		  "model.layers.23.mlp.down_proj.weight");
	CHECK_INT(r.param[r.head].tied_to, r.embedding);
	CHECK(r.param[r.head].offset >= r.weights && r.gradients > r.weights);
	tr_registry_release(&r);
}

enum { TOKENS = 23, SEQS = 5, LEAVES = 2 };
static const int64_t begin[SEQS + 1] = { 0, 7, 8, 14, 21, TOKENS };
/* Parts of these sequences: what they have of documents. */
enum { PARTS = 9 };
static const int64_t part[PARTS + 1] = { 0, 3, 7, 8, 9, 13, 14, 21, 22, TOKENS };

struct world {
	struct tr_backend *be;
	struct tr_arenas arenas;
	struct tr_model *m;
	float *leaf[LEAVES];
	int64_t items;
	float loss[TOKENS];
	int parts;                      /* 1: attention stays inside parts */
	double rate;                    /* of dropout */
};

static void open_world(struct world *w)
{
	static struct tr_ranks alone;
	const struct tr_tensorpar_opts tp = { &alone, 2, 0 };
	const struct tr_isa *isa;
	struct tr_model_config c;
	struct tr_error err;

	tr_ranks_alone(&alone);
	CHECK_RC(read_config(&c, tiny, &err), 0, &err);
	CHECK_RC(tr_isa_find(&isa, "auto", &err), 0, &err);
	CHECK_RC(tr_backend_cpu(&w->be, isa, &err), 0, &err);
	w->arenas = (struct tr_arenas){ .be = w->be };
	CHECK_RC(tr_model_new(&w->m, &c, &w->arenas, &tp, NULL, SEQS, 7, &err), 0, &err);
	CHECK_RC(tr_arenas_allocate(&w->arenas, &err), 0, &err);
	tr_registry_draw(tr_model_registry(w->m), tr_model_weights(w->m), 3, 0.3);
	w->items = tr_model_registry(w->m)->gradients;
	for (int i = 0; i < LEAVES; i++)
		w->leaf[i] = w->be->alloc(w->be, (size_t)w->items);
}

static void close_world(struct world *w)
{
	for (int i = 0; i < LEAVES; i++)
		w->be->release(w->be, w->leaf[i]);
	tr_model_free(w->m);
	tr_arenas_release(&w->arenas);
	tr_backend_free(w->be);
}

/* Sets the token, target, weight and position of row i of the test at rows->...[at]. */
static void set_row(int64_t i, int64_t start, int64_t at, int32_t *token, int32_t *target,
		    float *weight, int32_t *position)
{
	token[at] = (int32_t)(i * 17 % 61);
	target[at] = (int32_t)(i * 23 % 61);
	weight[at] = i % 4 ? 1 : 0;
	position[at] = (int32_t)(i - start);
}

static void run(struct world *w, struct tr_rows *rows, float *loss)
{
	const struct tr_dropout d = { .seed = 3, .step = 8, .rate = w->rate,
				      .attention_rate = w->rate };
	struct tr_error err;

	rows->drop = &d;
	CHECK_RC(tr_model_forward(w->m, 0, 0, rows, 1, &err), 0, &err);
	CHECK_RC(tr_model_loss(w->m, 0, rows, 0.0625, loss, 1, &err), 0, &err);
	CHECK_RC(tr_model_backward(w->m, 0, 0, rows, &err), 0, &err);
}

/* Each part in a call of its own, as if nothing were beside it. */
static void step_alone(struct world *w)
{
	for (int p = 0; p < PARTS; p++) {
		int64_t n = part[p + 1] - part[p], one[2] = { 0, n };
		int32_t token[TOKENS], target[TOKENS], position[TOKENS];
		float weight[TOKENS], *grad[1] = { w->leaf[part[p] >= begin[3]] };
		struct tr_rows rows = { .n = n, .seqs = 1, .begin = one, .token = token,
			.target = target, .weight = weight, .position = position, .grad = grad };

		for (int64_t i = 0; i < n; i++)
			set_row(part[p] + i, part[p], i, token, target, weight, position);
		run(w, &rows, w->loss + part[p]);
	}
}

/* Sequences [from, to) in one call. The first three are of leaf 0. */
static void step(struct world *w, int from, int to)
{
	int64_t start[SEQS + 1], n = begin[to] - begin[from], parts[PARTS + 1], at = 0;
	int32_t token[TOKENS], target[TOKENS], position[TOKENS];
	float weight[TOKENS], *grad[SEQS];
	static const int64_t sample[SEQS] = { 30, 31, 32, 33, 34 };
	struct tr_rows rows = { .n = n, .seqs = to - from, .begin = start, .token = token,
		.target = target, .weight = weight, .position = position, .grad = grad,
		.sample = sample + from };

	for (int s = from; s <= to; s++)
		start[s - from] = begin[s] - begin[from];
	for (int s = from; s < to; s++) {
		grad[s - from] = w->leaf[s >= 3];
		for (int64_t i = begin[s]; i < begin[s + 1]; i++)
			set_row(i, begin[s], i - begin[from], token, target, weight, position);
	}
	for (int p = 0; w->parts && p <= PARTS; p++) {
		if (part[p] < begin[from] || part[p] > begin[to])
			continue;
		parts[at] = part[p] - begin[from];
		for (int64_t i = part[p]; i < begin[to] && i < part[p + 1]; i++)
			position[i - begin[from]] = (int32_t)(i - part[p]);
		rows.part = parts;
		rows.parts = at++;
	}
	run(w, &rows, w->loss + begin[from]);
}

TEST(gradients_have_the_same_bits_however_sequences_are_put_into_calls)
{
	static const int ways[4][SEQS + 1] = { { 0, 1, 2, 3, 4, 5 }, { 0, 2, 5, 5, 5, 5 },
					       { 0, 4, 5, 5, 5, 5 }, { 0, 3, 4, 5, 5, 5 } };
	struct world one = { .parts = 0 }, other;

	for (one.parts = 0; one.parts < 2; one.parts++) {
		one.rate = one.parts ? 0.3 : 0;
		open_world(&one);
		step(&one, 0, SEQS);
		for (int i = 0; i < 4; i++) {
			other.parts = one.parts;
			other.rate = one.rate;
			open_world(&other);
			for (int j = 0; j < SEQS; j++)
				if (ways[i][j] < ways[i][j + 1])
					step(&other, ways[i][j], ways[i][j + 1]);
			CHECK(memcmp(one.loss, other.loss, sizeof(one.loss)) == 0);
			for (int l = 0; l < LEAVES; l++)
				CHECK(memcmp(one.leaf[l], other.leaf[l],
					     (size_t)one.items * sizeof(float)) == 0);
			close_world(&other);
		}
		close_world(&one);
	}
}

/* Sums over tokens have their parts from the start of each sequence, so gradients are only equal
 * but for rounding. */
TEST(a_part_has_the_losses_and_gradients_that_it_has_alone)
{
	struct world together = { .parts = 1 }, alone = { .parts = 0 }, whole = { .parts = 0 };
	double apart = 0, size = 0, changed = 0;

	open_world(&together);
	step(&together, 0, SEQS);
	open_world(&alone);
	step_alone(&alone);
	open_world(&whole);
	step(&whole, 0, SEQS);
	CHECK(memcmp(together.loss, alone.loss, sizeof(alone.loss)) == 0);
	CHECK(memcmp(together.loss, whole.loss, sizeof(whole.loss)) != 0);
	for (int l = 0; l < LEAVES; l++) {
		/* The pieces of a sequence of one token are not those of the same token in a
		 * longer one, so the two parts of the gradients of norms are added first. */
		const struct tr_registry *r = tr_model_registry(alone.m);

		for (int64_t i = 0; i < r->weights - r->norms; i++) {
			together.leaf[l][r->norms + i] += together.leaf[l][r->weights + i];
			alone.leaf[l][r->norms + i] += alone.leaf[l][r->weights + i];
			together.leaf[l][r->weights + i] = alone.leaf[l][r->weights + i] = 0;
		}
		for (int64_t i = 0; i < alone.items; i++) {
			double a = (double)alone.leaf[l][i];
			double d = (double)together.leaf[l][i] - a;
			double e = (double)whole.leaf[l][i] - a;

			apart += d * d;
			changed += e * e;
			size += a * a;
		}
	}
	CHECK(size > 0 && apart < 1e-12 * size && changed > 1e-3 * size);
	close_world(&together);
	close_world(&alone);
	close_world(&whole);
}

TEST(losses_have_the_same_bits_if_no_backward_pass_follows)
{
	int32_t zero[7] = { 0 }, position[7] = { 0, 1, 2, 3, 4, 5, 6 };
	float weight[7] = { 1, 1, 1, 0, 1, 1, 1 }, *grad[1], kept[7], loss[7];
	const int64_t one[] = { 0, 7 };
	struct tr_rows rows = { .n = 7, .seqs = 1, .begin = one, .token = position,
		.target = zero, .weight = weight, .position = position, .grad = grad };
	struct tr_error err;
	struct world w = { .parts = 0 };

	open_world(&w);
	grad[0] = w.leaf[0];
	CHECK_RC(tr_model_forward(w.m, 0, 0, &rows, 1, &err), 0, &err);
	CHECK_RC(tr_model_loss(w.m, 0, &rows, 1, kept, 1, &err), 0, &err);
	CHECK_RC(tr_model_forward(w.m, 0, 0, &rows, 0, &err), 0, &err);
	CHECK_RC(tr_model_loss(w.m, 0, &rows, 1, loss, 0, &err), 0, &err);
	CHECK(kept[0] > 0 && memcmp(kept, loss, sizeof(kept)) == 0);
	close_world(&w);
}

static double total_loss(struct world *w)
{
	double sum = 0;

	step(w, 0, SEQS);
	for (int i = 0; i < TOKENS; i++)
		sum += 0.0625 * (double)w->loss[i];
	return sum;
}

/* The loss in fp32 is good enough to see that a whole gradient points where the loss rises. The
 * gradients of operations are in test_train_ops.c, those of whole models in oracle.py. */
static void follow_the_gradient(double rate)
{
	struct world w = { .rate = rate };
	const struct tr_registry *r;
	double before, after, squares = 0;
	float *x, *g;

	open_world(&w);
	r = tr_model_registry(w.m);
	x = tr_model_weights(w.m);
	before = total_loss(&w);
	g = w.leaf[0];
	w.be->add(w.be, g, w.leaf[1], w.items);
	w.be->add(w.be, g + r->param[r->embedding].offset, g + r->param[r->head].offset,
		  r->param[r->head].items);
	/* The second of two pieces of the tokens. */
	w.be->add(w.be, g + r->norms, g + r->weights, r->weights - r->norms);
	for (int64_t i = 0; i < r->weights; i++)
		squares += (double)g[i] * (double)g[i];
	for (int64_t i = 0; i < r->weights; i++)
		x[i] -= (float)(0.002 / sqrt(squares)) * g[i];
	after = total_loss(&w);
	CHECK(fabs((before - after) / (0.002 * sqrt(squares)) - 1) < 0.02);
	close_world(&w);
}

TEST(the_loss_falls_by_what_the_gradient_says)
{
	follow_the_gradient(0);
}

/* Both passes drop the same items, and so does the second loss. */
TEST(with_dropout_the_loss_falls_by_what_the_gradient_says)
{
	follow_the_gradient(0.25);
}

TEST(a_hash_is_the_sum_of_its_shares_and_a_tied_head_counts_once)
{
	struct world w = { .parts = 0 };
	const struct tr_registry *r;
	uint64_t sum = 0, plain = 0;
	const float *x;

	open_world(&w);
	r = tr_model_registry(w.m);
	x = tr_model_weights(w.m);
	for (int i = 0; i < 5; i++)
		sum += tr_registry_hash(r, tr_model_weights(w.m), i, 5);
	CHECK(sum == tr_registry_hash(r, tr_model_weights(w.m), 0, 1));
	for (int i = 0; i < r->n; i++)
		if (i != r->head)
			plain += tr_item_hash(tr_crc64(r->param[i].name), x + r->param[i].offset, 0,
					      r->param[i].items);
	CHECK(sum == plain);
	close_world(&w);
}
