/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor and sequence parallelism on ranks that are threads: losses, gradients, their norm and the
 * hash of the weights have the bits of one rank alone. */
#include "t.h"

#include <math.h>
#include <pthread.h>

#include "adamw.h"
#include "leafgrads.h"
#include "philox.h"
#include "qwen2.h"
#include "ranks_threads.h"

enum { RANKS_MAX = 6, SEQS = 5, SEQ = 13 };
static const int64_t begin[SEQS + 1] = { 0, 13, 14, 21, 30, 33 };
enum { TOKENS = 33 };

struct layout {
	int kv_heads, pieces, ffn, tied;
	int ranks, sp;
	const char *isa;
	int recompute;
	double dropout;
	int vocab;                      /* 0: 61 */
};
/* One rank: its thread, and what it computed. */
struct rank {
	pthread_t thread;
	struct tr_ranks all;
	struct layout of;
	float loss[TOKENS];
	float *grad;                    /* of the whole model; NaN where another rank has it */
	int64_t items;
	double norm;
	uint64_t hash;
	struct tr_error err;
	int rc;
};
/* What a rank needs for a step. */
struct step {
	struct tr_mesh mesh;
	struct tr_backend *be;
	struct tr_arenas arenas;
	struct tr_model *m;
	struct tr_leafgrads *lg;
	float *grad;
};

static int make_gradients(struct step *s, struct tr_arenas *a, int leaves, struct tr_error *err)
{
	const struct tr_leafgrads_opts o = { .reg = tr_model_registry(s->m), .mesh = &s->mesh,
					     .leaves = leaves };

	return tr_leafgrads_new(&s->lg, &o, a, err);
}

static int vocab_of(const struct rank *r)
{
	return r->of.vocab ? r->of.vocab : 61;
}

static int open_step(struct step *s, const struct rank *r, struct tr_error *err)
{
	struct tr_tensorpar_opts tp = { &s->mesh.tp, r->of.pieces, r->of.sp };
	const struct tr_part all = { 0, 2, 1 };
	const struct tr_parts parts = { 1, &all, r->of.recompute };
	struct tr_model_config c;
	const struct tr_isa *isa;
	char text[400];
	int rc;

	snprintf(text, sizeof(text), "{\"model_type\": \"qwen2\", \"vocab_size\": %d, "
		 "\"hidden_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 12, "
		 "\"num_key_value_heads\": %d, \"intermediate_size\": %d, "
		 "\"tie_word_embeddings\": %s, \"head_dim\": 4}", vocab_of(r), r->of.kv_heads,
		 r->of.ffn, r->of.tied ? "true" : "false");
	rc = tr_model_config_read(&c, text, strlen(text), "config.json", err);
	if (rc == 0)
		rc = tr_mesh_make(&s->mesh, &r->all, 1, r->of.ranks, 1, err);
	if (rc == 0)
		rc = tr_isa_find(&isa, r->of.isa, err);
	if (rc == 0)
		rc = tr_backend_cpu(&s->be, isa, err);
	s->arenas.be = s->be;
	if (rc == 0)
		rc = tr_model_new(&s->m, &c, &s->arenas, &tp, &parts, SEQS, SEQ, err);
	if (rc == 0)
		rc = make_gradients(s, &s->arenas, 2, err);
	if (rc == 0)
		rc = tr_arenas_allocate(&s->arenas, err);
	if (rc == 0)
		tr_registry_draw(tr_model_registry(s->m), tr_model_weights(s->m), 3, 0.3);
	return rc;
}

static void close_step(struct step *s)
{
	tr_leafgrads_free(s->lg);
	tr_model_free(s->m);
	tr_arenas_release(&s->arenas);
	tr_backend_free(s->be);
	tr_mesh_release(&s->mesh);
}

/* The first three sequences are of leaf 0. One target in four is masked. */
static int make_step(struct step *s, struct rank *r, struct tr_error *err)
{
	int32_t token[TOKENS], target[TOKENS], position[TOKENS];
	float weight[TOKENS];
	int leaf[SEQS];
	static const int64_t sample[SEQS] = { 5, 6, 7, 90, 91 };
	const struct tr_dropout drop = { 2, 40, r->of.dropout, r->of.dropout };
	struct tr_rows rows = { .n = TOKENS, .seqs = SEQS, .begin = begin, .token = token,
		.target = target, .weight = weight, .position = position, .sample = sample,
		.drop = &drop };
	int rc;

	for (int q = 0; q < SEQS; q++) {
		leaf[q] = q >= 3;
		for (int64_t i = begin[q]; i < begin[q + 1]; i++) {
			token[i] = (int32_t)(i * 17 % vocab_of(r));
			target[i] = (int32_t)(i * 23 % vocab_of(r));
			weight[i] = i % 4 ? 1 : 0;
			position[i] = (int32_t)(i - begin[q]);
		}
	}
	rc = tr_model_forward(s->m, 0, 0, &rows, 1, err);
	if (rc == 0)
		rc = tr_leafgrads_begin(s->lg, &rows, leaf, 2, err);
	if (rc == 0)
		rc = tr_model_loss(s->m, 0, &rows, 0.0625, r->loss, 1, err);
	if (rc == 0)
		rc = tr_model_backward(s->m, 0, 0, &rows, err);
	if (rc == 0)
		rc = tr_leafgrads_close(s->lg, 2, err);
	if (rc == 0)
		rc = tr_leafgrads_reduce(s->lg, &s->grad, err);
	if (rc == 0)
		rc = tr_gradient_norm(tr_model_registry(s->m), s->be->isa, &s->mesh, NULL, s->grad,
				      &r->norm, err);
	if (rc == 0)
		rc = tr_leafgrads_wait(s->lg, NULL, err);
	r->hash = tr_registry_hash(tr_model_registry(s->m), tr_model_weights(s->m), 0, 1);
	if (rc == 0)
		rc = tr_allreduce(&s->mesh.tp, &r->hash, 1, TR_SUM, err);
	return rc;
}

/* Copies the boxes of this rank to their places in the whole model. */
static void take_gradients(const struct tr_registry *reg, const float *grad, struct rank *r)
{
	int64_t at = 0;

	r->items = reg->distinct;
	r->grad = malloc((size_t)r->items * sizeof(*r->grad));
	for (int64_t i = 0; i < r->items; i++)
		r->grad[i] = NAN;
	for (int j = 0; j < reg->n; j++) {
		const struct tr_param *p = &reg->param[j];

		if (p->tied_to >= 0)
			continue;
		for (int64_t row = 0; row < p->count[0]; row++)
			memcpy(r->grad + at + (p->start[0] + row) * p->shape[1] + p->start[1],
			       grad + p->offset + row * p->count[1],
			       (size_t)p->count[1] * sizeof(*grad));
		at += p->shape[0] * p->shape[1];
	}
}

static void *compute(void *arg)
{
	struct rank *r = arg;
	struct step s = { .m = NULL };

	r->rc = open_step(&s, r, &r->err);
	if (r->rc == 0)
		r->rc = make_step(&s, r, &r->err);
	if (r->rc == 0)
		take_gradients(tr_model_registry(s.m), s.grad, r);
	close_step(&s);
	return NULL;
}

static void run(const struct layout *of, struct tr_hub *hub, struct rank *rank)
{
	memset(rank, 0, RANKS_MAX * sizeof(*rank));
	for (int i = 0; i < of->ranks; i++) {
		tr_ranks_hub(&rank[i].all, hub, i, 20000);
		rank[i].of = *of;
		CHECK_INT(pthread_create(&rank[i].thread, NULL, compute, &rank[i]), 0);
	}
	for (int i = 0; i < of->ranks; i++)
		pthread_join(rank[i].thread, NULL);
}

/* Returns whether the ranks have the bits of `want`, and together the whole gradient. */
static int has_bits_of(const struct rank *rank, const struct rank *want)
{
	int64_t missing = 0, wrong = 0;

	for (int i = 0; i < rank->of.ranks; i++)
		wrong += memcmp(rank[i].loss, want->loss, sizeof(want->loss)) != 0 ||
			memcmp(&rank[i].norm, &want->norm, sizeof(want->norm)) != 0 ||
			rank[i].hash != want->hash;
	for (int64_t k = 0; k < want->items; k++) {
		int have = 0;

		for (int i = 0; i < rank->of.ranks; i++) {
			const float *x = &rank[i].grad[k];

			if (isnan(*x))
				continue;
			have = 1;
			wrong += memcmp(x, &want->grad[k], sizeof(*x)) != 0;
		}
		missing += !have;
	}
	if (wrong || missing)
		print_error("tp %d, sp %d, recompute %d: %lld wrong, %lld missing\n",
			    rank->of.ranks, rank->of.sp, rank->of.recompute, (long long)wrong,
			    (long long)missing);
	return !wrong && !missing;
}

static void free_gradients(struct rank *rank)
{
	for (int i = 0; i < RANKS_MAX; i++)
		free(rank[i].grad);
}

/* Computes in a layout, and compares the bits with those that are wanted. */
static void check_layout(const struct layout *of, const struct rank *want)
{
	struct tr_hub *hub = tr_hub_new(of->ranks);
	struct rank rank[RANKS_MAX];

	run(of, hub, rank);
	tr_hub_free(hub);
	for (int i = 0; i < of->ranks; i++)
		CHECK_RC(rank[i].rc, 0, &rank[i].err);
	CHECK(has_bits_of(rank, want));
	free_gradients(rank);
}

/* Compares all numbers of ranks that divide the pieces with one rank. Every other layout computes
 * its layers again. */
static void check_layouts(struct layout of)
{
	struct rank want[RANKS_MAX];
	struct tr_hub *hub = tr_hub_new(1);

	of.ranks = 1;
	run(&of, hub, want);
	tr_hub_free(hub);
	CHECK_RC(want->rc, 0, &want->err);
	CHECK(isfinite(want->norm) && want->norm > 0 && want->loss[1] > 0);
	for (of.ranks = 1; of.ranks <= of.pieces; of.ranks++) {
		for (of.sp = 0; of.pieces % of.ranks == 0 && of.sp < 2; of.sp++) {
			of.recompute = (of.ranks + of.sp) % 2;
			check_layout(&of, want);
		}
	}
	free_gradients(want);
}

TEST(losses_and_gradients_have_the_same_bits_on_one_two_and_four_ranks)
{
	check_layouts((struct layout){ .kv_heads = 4, .pieces = 4, .ffn = 35, .tied = 1,
				       .isa = "auto" });
	check_layouts((struct layout){ .kv_heads = 4, .pieces = 4, .ffn = 35, .isa = "auto",
				       .dropout = 0.2 });
}

/* Of a vocabulary of three tokens, the first of four ranks has none. */
TEST(a_rank_without_a_token_of_the_vocabulary_takes_part_in_a_step)
{
	check_layouts((struct layout){ .kv_heads = 4, .pieces = 4, .ffn = 35, .tied = 1,
				       .isa = "auto", .vocab = 3 });
	check_layouts((struct layout){ .kv_heads = 4, .pieces = 4, .ffn = 2, .isa = "auto",
				       .vocab = 3 });
}

TEST(kernels_without_vectors_have_these_bits)
{
	struct layout of = { 4, 4, 35, 1, 4, 1, "portable", 0, 0.1, 0 };
	struct rank want[RANKS_MAX], rank[RANKS_MAX];
	struct tr_hub *one = tr_hub_new(1), *four = tr_hub_new(4);

	run(&of, four, rank);
	of = (struct layout){ 4, 4, 35, 1, 1, 0, "auto", 0, 0.1, 0 };
	run(&of, one, want);
	CHECK_RC(rank->rc, 0, &rank->err);
	CHECK(has_bits_of(rank, want));
	free_gradients(rank);
	free_gradients(want);
	tr_hub_free(one);
	tr_hub_free(four);
}

/* With six pieces on two ranks, each rank has two nodes of the tree. Pieces of 275 columns have
 * more than one part. */
TEST(ranks_with_several_nodes_and_pieces_with_several_parts_have_the_same_bits)
{
	check_layouts((struct layout){ 6, 6, 40, 1, 0, 0, "auto", 0, 0.5, 0 });
	check_layouts((struct layout){ 4, 2, 550, 1, 0, 0, "auto", 0, 0, 0 });
}

enum { ROWS = 7, IN = 40, OUT = 8 };

/* Draws items of bf16, and writes their values to `back`. */
static void draw_bf16(const struct tr_isa *isa, uint16_t *x, float *back, int64_t n, uint64_t of)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t r[4];

		tr_random(1, TR_RANDOM_INIT, of, (uint64_t)i, r);
		back[i] = (float)(int32_t)r[0] * 0x1p-29f;
	}
	isa->items[TR_BF16].round(x, back, n);
	for (int64_t i = 0; i < n; i++)
		back[i] = tr_widen(x[i]);
}

/* Four pieces of 10 inputs: a sum that was rounded on its way would be off by 1e-3. */
TEST(a_sum_over_pieces_of_bf16_has_the_error_of_floats)
{
	const int64_t whole[] = { 0, ROWS };
	const struct tr_rows rows = { .n = ROWS, .seqs = 1, .begin = whole };
	struct tr_param p = { .shape = { OUT, IN }, .axis = 1, .unit = 1, .count = { OUT, IN } };
	struct tr_registry reg = { .param = &p, .n = 1, .pieces = { 4, 0, 4 } };
	uint16_t x[ROWS * IN], w[OUT * IN];
	float xf[ROWS * IN], wf[OUT * IN], y[ROWS * OUT];
	struct tr_term t = { { IN, OUT, w, NULL }, &p, x, 0 };
	struct tr_tensorpar_opts o = { .pieces = 4 };
	struct tr_arenas arenas = { .type = TR_BF16 };
	struct tr_tensorpar tp;
	struct tr_backend *be;
	struct tr_ranks alone;
	const struct tr_isa *isa;
	struct tr_error err;

	tr_ranks_alone(&alone);
	o.ranks = &alone;
	CHECK_RC(tr_isa_find(&isa, "auto", &err), 0, &err);
	CHECK_RC(tr_backend_cpu(&be, isa, &err), 0, &err);
	be->type = TR_BF16;
	arenas.be = be;
	CHECK_RC(tr_tensorpar_init(&tp, &o, &arenas, OUT, ROWS, &err), 0, &err);
	CHECK_RC(tr_arenas_allocate(&arenas, &err), 0, &err);
	draw_bf16(isa, x, xf, ROWS * IN, 1);
	draw_bf16(isa, w, wf, OUT * IN, 2);
	tr_tensorpar_begin(&tp, &rows);
	tr_sum_pieces(&tp, &reg, &rows, &t, 1, 0, ROWS, y);
	CHECK_RC(tr_sum_pieces_end(&tp, &rows, y, &err), 0, &err);
	for (int i = 0; i < ROWS * OUT; i++) {
		double want = 0, size = 0;

		for (int k = 0; k < IN; k++) {
			double a = (double)xf[i / OUT * IN + k] * (double)wf[i % OUT * IN + k];

			want += a;
			size += fabs(a);
		}
		CHECK(fabs((double)y[i] - want) <= 1e-6 * size);
	}
	tr_tensorpar_release(&tp);
	tr_arenas_release(&arenas);
	tr_backend_free(be);
}

/* ---- memory ---- */

/* Returns the floats that rank 1 of n needs for a model, and sets *weights to those of its
 * weights. */
static int64_t memory_of(int n, int sp, int recompute, int64_t seqs, int64_t *weights)
{
	static const char text[] = "{\"model_type\": \"qwen2\", \"vocab_size\": 64, "
		"\"hidden_size\": 32, \"num_hidden_layers\": 8, \"num_attention_heads\": 4, "
		"\"num_key_value_heads\": 4, \"intermediate_size\": 64}";
	const struct tr_ranks ranks = { .rank = n > 1, .n = n };
	const struct tr_tensorpar_opts tp = { &ranks, 4, sp };
	const struct tr_part all = { 0, 8, 1 };
	const struct tr_parts parts = { 1, &all, recompute };
	struct tr_arenas a = { .be = NULL };
	struct tr_model_config c;
	struct tr_model *m;
	struct tr_error err;
	int64_t items = 0;

	CHECK_RC(tr_model_config_read(&c, text, strlen(text), "config.json", &err), 0, &err);
	CHECK_RC(tr_model_new(&m, &c, &a, &tp, &parts, seqs, 64, &err), 0, &err);
	*weights = tr_model_registry(m)->weights;
	for (int kind = 0; kind < TR_MEMORY_KINDS; kind++)
		items += a.items[kind];
	tr_model_free(m);
	tr_arenas_release(&a);
	return items;
}

/* `more` is the memory that one more token needs: on one rank, on one of four, and on one of four
 * with sp, which cuts the inputs of the two norms of a layer and their roots. */
TEST(a_rank_has_its_shard_of_the_weights_and_with_sp_of_the_activations)
{
	int64_t one, four, w1, w4, more[3];

	for (int i = 0; i < 3; i++) {
		int n = i ? 4 : 1, sp = i == 2;
		int64_t few = memory_of(n, sp, 0, 100, &w4);

		more[i] = (memory_of(n, sp, 0, 200, &w4) - few) / 6400;
	}
	/* Without sp: 8 layers of q, k, v, o, gate and up (4 x 32 + 2 x 64, and 8 of statistics)
	 * and of inputs and roots (2 x 33). */
	CHECK(more[0] - more[1] >= 8 * (4 * 32 + 2 * 64) * 3 / 4);
	CHECK(more[1] - more[2] >= 8 * 2 * 33 * 3 / 4);
	one = memory_of(1, 0, 0, 100, &w1);
	four = memory_of(4, 1, 0, 100, &w4);
	/* The norms are not cut. */
	CHECK(w4 < w1 / 4 + 17 * 32 + 16 * 100 && four < one * 2 / 5);
}

/* For each token, seven of the eight layers have no q, k, v and o, statistics, gates, input of the
 * MLP and roots of the norms of their own. */
TEST(layers_that_are_computed_again_keep_their_input_only)
{
	for (int sp = 0; sp < 2; sp++) {
		int64_t w, more[2], n = sp ? 4 : 1;
		int64_t layer = (4 * 32 + 8 + 2 * 64) / n + (32 + 2) / n;

		for (int again = 0; again < 2; again++)
			more[again] = memory_of((int)n, sp, again, 200, &w) -
				memory_of((int)n, sp, again, 100, &w);
		CHECK(more[0] - more[1] >= 6400 * 7 * layer - 1000);
		CHECK(more[0] - more[1] <= 6400 * 7 * (layer + 1) + 1000);
	}
}

/* Makes the gradients of a leaf, which are 0. */
static void open_leaf(struct step *s, int leaf)
{
	const struct tr_registry *reg = tr_model_registry(s->m);

	for (int i = 0; i < reg->n; i++)
		CHECK(tr_leafgrads_param(s->lg, leaf, &reg->param[i]));
}

TEST(the_gradient_of_a_tied_head_is_added_once)
{
	const struct layout of = { 4, 4, 35, 1, 1, 0, "auto", 0, 0, 0 };
	struct rank r = { .of = of };
	struct step s = { .m = NULL };
	const struct tr_registry *reg;
	const struct tr_param *head, *embedding;
	struct tr_error err;
	float *leaf;

	tr_ranks_alone(&r.all);
	CHECK_RC(open_step(&s, &r, &err), 0, &err);
	reg = tr_model_registry(s.m);
	head = &reg->param[reg->head];
	embedding = &reg->param[reg->embedding];
	for (int i = 0; i < 2; i++) {
		open_leaf(&s, i);
		leaf = tr_leafgrads_param(s.lg, i, embedding);
		leaf[5] = 1;
		leaf = tr_leafgrads_param(s.lg, i, head);
		leaf[5] = 8;
		leaf[6] = 16;
	}
	CHECK_RC(tr_leafgrads_close(s.lg, 2, &err), 0, &err);
	CHECK_RC(tr_leafgrads_reduce(s.lg, &s.grad, &err), 0, &err);
	CHECK(s.grad[embedding->offset + 5] == 18 && s.grad[embedding->offset + 6] == 32);
	close_step(&s);
}

/* A micro-batch that has samples of all leaves opens all of them before it closes any. */
TEST(all_leaves_of_a_rank_may_be_open_at_once)
{
	enum { LEAVES = 1024 };
	const struct layout of = { 4, 4, 35, 1, 1, 0, "auto", 0, 0, 0 };
	struct rank r = { .of = of };
	struct step s = { .m = NULL };
	struct tr_arenas a = { .be = NULL };
	const struct tr_param *p;
	struct tr_error err;

	tr_ranks_alone(&r.all);
	CHECK_RC(open_step(&s, &r, &err), 0, &err);
	tr_leafgrads_free(s.lg);
	a.be = s.be;
	CHECK_RC(make_gradients(&s, &a, LEAVES, &err), 0, &err);
	CHECK_RC(tr_arenas_allocate(&a, &err), 0, &err);
	p = &tr_model_registry(s.m)->param[0];
	for (int step = 0; step < 2; step++) {
		for (int i = 0; i < LEAVES; i++) {
			float *leaf;

			open_leaf(&s, i);
			leaf = tr_leafgrads_param(s.lg, i, p);
			CHECK(leaf);
			leaf[3] = (float)i;
		}
		CHECK_RC(tr_leafgrads_close(s.lg, LEAVES, &err), 0, &err);
		CHECK_RC(tr_leafgrads_reduce(s.lg, &s.grad, &err), 0, &err);
		CHECK(s.grad[p->offset + 3] == LEAVES * (LEAVES - 1) / 2);
	}
	CHECK(tr_leafgrads_used(s.lg) == tr_arenas_bytes(&a, TR_GRADS));
	tr_arenas_release(&a);
	close_step(&s);
}

TEST(the_failure_of_any_exchange_of_a_group_ends_all_ranks)
{
	int lost = 0;

	for (int nth = 1 + t_from(T_STRIDE);; nth += T_STRIDE) {
		const struct layout of = { 4, 4, 35, 1, 4, 1, "auto", 1, 0.1, 0 };
		struct tr_hub *hub = tr_hub_new(4);
		struct rank rank[RANKS_MAX];
		int rc;

		tr_hub_fail_at(hub, nth % 4, nth);
		run(&of, hub, rank);
		tr_hub_free(hub);
		rc = rank[0].rc;
		for (int i = 0; i < 4; i++)
			CHECK_INT(rank[i].rc, rc);
		free_gradients(rank);
		if (rc == 0)
			break;
		CHECK_INT(rc, TR_ELOST);
		CHECK_INT(rank[0].err.rank, nth % 4);
		lost++;
	}
	CHECK(lost > 0);
}
