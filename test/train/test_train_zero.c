/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO 1 and 2: the shares of the ranks of dp, their memory, and the gates. That the bits are those
 * of a training without it is tested with whole trainings: test_train_whole.c and layouts.py. */
#include "t.h"

#include <pthread.h>

#include "ranks_threads.h"
#include "training.h"

static const char model[] = "{\"model_type\": \"qwen2\", \"vocab_size\": 257, \"hidden_size\": 16, "
	"\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
	"\"intermediate_size\": 21, \"tie_word_embeddings\": true}";
enum { LAYERS = 4, DP_MAX = 60, ITEMS_MAX = 1 << 15 };

static struct tr_model_config config(void)
{
	struct tr_model_config c;
	struct tr_error err;

	CHECK_RC(tr_model_config_read(&c, model, strlen(model), "model", &err), 0, &err);
	return c;
}

/* Makes the list of a rank that has layers [from, to) and half of each dimension that is cut. */
static void make_registry(struct tr_registry *reg, int64_t from, int64_t to, int half)
{
	const struct tr_part part = { from, to, 1 };
	const struct tr_parts parts = { .n = 1, .part = &part };
	const struct tr_pieces pieces = { 2, half, half + 1 }, tokens = { 2, 0, 2 };
	struct tr_model_config c = config();
	struct tr_error err;

	CHECK_RC(tr_registry_make(reg, &c, &parts, &pieces, &tokens, &err), 0, &err);
}

static void make_shares(struct tr_shares *s, const struct tr_registry *reg,
			struct tr_ranks *dp, enum tr_zero_form form)
{
	struct tr_error err;

	CHECK_RC(tr_shares_make(s, reg, dp, form, &err), 0, &err);
}

/* Marks the items of each rank and their moments. Returns the most moments that a rank has. */
static int64_t mark_items(const struct tr_registry *reg, int n, enum tr_zero_form form,
			  unsigned char *seen)
{
	int64_t most = 0, least = INT64_MAX;

	memset(seen, 0, ITEMS_MAX);
	for (int r = 0; r < n; r++) {
		static unsigned char moment[ITEMS_MAX];
		struct tr_ranks dp = { .rank = r, .n = n };
		struct tr_shares s;
		int64_t items;

		make_shares(&s, reg, &dp, form);
		items = tr_shares_items(&s, reg);
		most = items > most ? items : most;
		least = items < least ? items : least;
		memset(moment, 0, sizeof(moment));
		for (int i = 0; i < reg->n; i++) {
			const struct tr_param *p = &reg->param[i];
			struct tr_span own;
			int64_t at = tr_shares_of(&s, p, &own);

			CHECK(own.from >= p->offset && own.from <= own.to);
			CHECK(own.to <= p->offset + p->items || own.from == own.to);
			CHECK(form == TR_ZERO_FLAT || own.from == own.to ||
			      own.to - own.from == p->items);
			for (int64_t k = own.from; p->tied_to < 0 && k < own.to; k++, at++) {
				CHECK(at >= 0 && at < items && !moment[at]++);
				seen[k]++;
			}
		}
		tr_shares_release(&s);
	}
	CHECK(form == TR_ZERO_TENSOR || most - least <= 2);
	return most;
}

static void check_stage(int64_t from, int64_t to, int half)
{
	static unsigned char seen[ITEMS_MAX];
	struct tr_registry reg;
	int64_t largest = 0;

	make_registry(&reg, from, to, half);
	CHECK(reg.gradients < ITEMS_MAX);
	for (int i = 0; i < reg.n; i++)
		largest = reg.param[i].items > largest ? reg.param[i].items : largest;
	for (int n = 1; n < DP_MAX; n++)
		for (int form = 0; form < 2; form++) {
			int64_t most = mark_items(&reg, n, (enum tr_zero_form)form, seen);

			CHECK(most <= reg.weights / n + 2 + (form ? 0 : largest));
			for (int i = 0; i < reg.n; i++)
				for (int64_t k = 0; k < reg.param[i].items; k++)
					CHECK(seen[reg.param[i].offset + k] ==
					      (reg.param[i].tied_to < 0));
		}
	tr_registry_release(&reg);
}

/* The first and the last of two stages exchange gradients of what they both have. */
static void check_both_stages(int n, enum tr_zero_form form)
{
	struct tr_registry first, last;

	make_registry(&first, 0, 1, 1);
	make_registry(&last, 1, LAYERS, 1);
	for (int r = 0; r < n; r++) {
		struct tr_ranks dp = { .rank = r, .n = n };
		struct tr_shares a, b;
		struct tr_span x, y;

		make_shares(&a, &first, &dp, form);
		make_shares(&b, &last, &dp, form);
		tr_shares_of(&a, &first.param[first.shared], &x);
		tr_shares_of(&b, &last.param[last.shared], &y);
		CHECK(x.from == y.from && x.to == y.to);
		tr_shares_release(&a);
		tr_shares_release(&b);
	}
	tr_registry_release(&first);
	tr_registry_release(&last);
}

TEST(the_shares_have_each_item_once_and_two_stages_cut_what_both_have_alike)
{
	for (int half = 0; half < 2; half++) {
		check_stage(0, LAYERS, half);
		check_stage(0, 1, half);
		check_stage(1, LAYERS, half);
	}
	for (int n = 1; n < DP_MAX; n++) {
		check_both_stages(n, TR_ZERO_TENSOR);
		check_both_stages(n, TR_ZERO_FLAT);
	}
}

/* Half of 21 columns is 10 on one rank of tp, and 11 on the other. */
TEST(ranks_of_tp_have_the_same_parameters_in_a_share_of_whole_ones)
{
	struct tr_registry half[2];

	make_registry(&half[0], 0, LAYERS, 0);
	make_registry(&half[1], 0, LAYERS, 1);
	for (int n = 1; n < DP_MAX; n++) {
		for (int r = 0; r < n; r++) {
			struct tr_ranks dp = { .rank = r, .n = n };
			struct tr_shares s[2];

			for (int h = 0; h < 2; h++)
				make_shares(&s[h], &half[h], &dp, TR_ZERO_TENSOR);
			for (int i = 0; i < half[0].n; i++) {
				struct tr_span own[2];

				for (int h = 0; h < 2; h++)
					tr_shares_of(&s[h], &half[h].param[i], &own[h]);
				CHECK((own[0].from < own[0].to) == (own[1].from < own[1].to));
			}
			for (int h = 0; h < 2; h++)
				tr_shares_release(&s[h]);
		}
	}
	for (int h = 0; h < 2; h++)
		tr_registry_release(&half[h]);
}

/* Returns the floats of the moments of a rank of dp 4. *weights receives those of its weights. */
static int64_t moments_of(int rank, int zero, enum tr_zero_form form, int64_t *weights)
{
	const struct tr_ranks alone = { .n = 1 };
	const struct tr_mesh mesh = { .dp = { .rank = rank, .n = 4 }, .tp = alone, .pp = alone };
	struct tr_model_config c = config();
	struct tr_trainer t = { .mesh = &mesh, .leaves = 4, .pieces = 1, .zero = zero,
				.zero_form = form };
	struct tr_error err;
	int64_t items;

	CHECK_RC(tr_trainer_plan(&t, &c, 1, 9, &err), 0, &err);
	*weights = tr_model_registry(t.model)->weights;
	items = t.arenas.items[TR_OPTIMIZER];
	tr_trainer_release(&t);
	return items;
}

/* A part of an arena is rounded up to 64 bytes, with 64 bytes behind it. */
TEST(a_rank_has_memory_for_the_moments_of_its_share_only)
{
	int64_t weights, sum = 0, all = moments_of(0, 0, TR_ZERO_TENSOR, &weights);

	CHECK(all == 2 * (weights + 16));
	for (int rank = 0; rank < 4; rank++) {
		int64_t moments = moments_of(rank, 1, TR_ZERO_FLAT, &weights);

		CHECK(moments >= 2 * (weights / 4 + 16) && moments <= 2 * (weights / 4 + 33));
		sum += moments_of(rank, 1, TR_ZERO_TENSOR, &weights);
	}
	/* The four of them have the moments of one. */
	CHECK(sum == 2 * weights + 4 * 2 * 16);
}

/* ---- the memory of gradients ---- */

enum { RANKS = 4, LEAVES = 16, SEQ = 5, OWN = LEAVES / RANKS };

struct rank {
	pthread_t thread;
	struct tr_ranks g;
	int zero, overlap, micro;       /* micro: leaves in a micro-batch, each of one sequence */
	enum tr_zero_form form;
	int64_t planned, used;          /* bytes of gradients */
	int64_t weights, head, layer, norms;    /* items */
	int rc;
	struct tr_error err;
};

/* Takes sequences [from, to) of this rank through the model. */
static int take_micro_batch(struct rank *r, struct tr_model *m, struct tr_leafgrads *lg, int from,
			    int to)
{
	int32_t token[OWN * SEQ], position[OWN * SEQ];
	int64_t begin[OWN + 1] = { 0 };
	float weight[OWN * SEQ], loss[OWN * SEQ];
	int leaf[OWN], n = to - from, rc;
	struct tr_rows rows = { .n = (int64_t)n * SEQ, .seqs = n, .begin = begin, .token = token,
				.target = token, .weight = weight, .position = position };

	for (int i = 0; i < n * SEQ; i++) {
		token[i] = (r->g.rank * 50 + from * 11 + i * 3) % 257;
		position[i] = i % SEQ;
		weight[i] = 1;
	}
	for (int s = 0; s < n; s++) {
		begin[s + 1] = (int64_t)(s + 1) * SEQ;
		leaf[s] = from + s;
	}
	rc = tr_model_forward(m, 0, 0, &rows, 1, &r->err);
	if (rc == 0)
		rc = tr_leafgrads_begin(lg, &rows, leaf, to, &r->err);
	if (rc == 0)
		rc = tr_model_loss(m, 0, &rows, 1, loss, 1, &r->err);
	if (rc == 0)
		rc = tr_model_backward(m, 0, 0, &rows, &r->err);
	return rc == 0 ? tr_leafgrads_close(lg, to, &r->err) : rc;
}

/* Makes two steps. */
static int make_steps(struct rank *r, struct tr_trainer *t)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	int64_t used[TR_MEMORY_KINDS];
	int rc = 0;

	r->weights = reg->weights;
	r->norms = reg->weights - reg->norms;
	r->head = reg->param[reg->head].items;
	r->layer = tr_registry_layer(reg, 0).to - tr_registry_layer(reg, 0).from;
	for (int step = 0; step < 2; step++) {
		for (int at = 0; rc == 0 && at < OWN; at += r->micro)
			rc = take_micro_batch(r, t->model, t->grads, at,
					      at + r->micro < OWN ? at + r->micro : OWN);
		if (rc == 0)
			rc = tr_leafgrads_reduce(t->grads, &t->grad, &r->err);
		if (rc == 0)
			rc = tr_leafgrads_wait(t->grads, NULL, &r->err);
	}
	tr_trainer_used(t, used);
	r->planned = tr_arenas_bytes(&t->arenas, TR_GRADS);
	r->used = used[TR_GRADS];
	return rc;
}

static void *count_gradients(void *arg)
{
	struct rank *r = arg;
	struct tr_model_config c = config();
	const struct tr_isa *isa;
	struct tr_mesh mesh;
	struct tr_trainer t = { .mesh = &mesh, .leaves = LEAVES, .pieces = 1, .batch = LEAVES,
				.zero = r->zero, .zero_form = r->form, .overlap = r->overlap,
				.pipe = { .micros = (OWN + r->micro - 1) / r->micro } };

	r->rc = tr_mesh_make(&mesh, &r->g, RANKS, 1, 1, &r->err);
	if (r->rc == 0)
		r->rc = tr_isa_find(&isa, "auto", &r->err);
	if (r->rc == 0)
		r->rc = tr_backend_cpu(&t.be, isa, &r->err);
	if (r->rc == 0)
		r->rc = tr_trainer_init(&t, &c, r->micro, SEQ, &r->err);
	if (r->rc == 0)
		r->rc = make_steps(r, &t);
	tr_trainer_release(&t);
	tr_backend_free(t.be);
	tr_mesh_release(&mesh);
	return NULL;
}

/* Makes two steps on four ranks, in which each uses the memory that was planned. Sets *most to the
 * bytes of the rank that has most of them for gradients, and *sum to those of all. */
static void gradients_of(struct rank like, struct rank *r, int64_t *most, int64_t *sum)
{
	struct tr_hub *hub = tr_hub_new(RANKS);

	*most = *sum = 0;
	for (int i = 0; i < RANKS; i++) {
		r[i] = like;
		tr_ranks_hub(&r[i].g, hub, i, 20000);
		CHECK_INT(pthread_create(&r[i].thread, NULL, count_gradients, &r[i]), 0);
	}
	for (int i = 0; i < RANKS; i++) {
		pthread_join(r[i].thread, NULL);
		CHECK_RC(r[i].rc, 0, &r[i].err);
		CHECK(r[i].planned == r[i].used);
		*most = r[i].planned > *most ? r[i].planned : *most;
		*sum += r[i].planned;
	}
	tr_hub_free(hub);
}

/* The leaves of some rounds make two nodes of the tree: those of three micro-batches of one leaf of
 * each rank. The shares of each node, and with them those of a tied head, are a quarter. Beside
 * them there are blocks for the leaves of a micro-batch, in the bucket that is computed and with
 * overlap in the one that is added up, and the norms. Parts of an arena are up to 128 bytes longer
 * than their items. */
TEST(with_zero_2_a_rank_has_memory_for_the_gradients_of_its_share_and_of_two_layers)
{
	struct rank r[RANKS];
	int64_t most, sum;

	for (int overlap = 0; overlap < 2; overlap++)
		for (int micro = 1; micro <= OWN; micro *= 2) {
			int64_t m = micro, levels = micro == 1 ? 2 : 1, bound;

			gradients_of((struct rank){ .zero = 2, .form = TR_ZERO_FLAT, .micro = micro,
						    .overlap = overlap }, r, &most, &sum);
			bound = levels * ((r->weights + r->head + r->norms) / RANKS + 10) +
				m * (r->head + r->layer * (1 + overlap)) + r->norms * (1 + 2 * m);
			bound = bound * 4 + 128 * (levels + 2 + 5 * m);
			CHECK(most <= bound);
			CHECK(sum >= levels * (r->weights + r->head) * 4);
			gradients_of((struct rank){ .zero = 2, .micro = micro, .overlap = overlap },
				     r, &most, &sum);
			CHECK(sum <= RANKS * bound);
		}
	gradients_of((struct rank){ .zero = 1, .micro = 1 }, r, &most, &sum);
	CHECK(most >= 2 * r->weights * 4);
}

static int count_calls(void *arg, int param, struct tr_error *err)
{
	(void)param;
	(void)err;
	*(int *)arg += 1;
	return 0;
}

/* Rank 1 has the second half of the first parameter only. */
TEST(the_gates_of_all_parameters_are_called_before_weights_of_other_ranks_come)
{
	struct tr_param p[2] = { { .items = 4, .tied_to = -1 },
				 { .items = 4, .offset = 16, .tied_to = -1 } };
	struct tr_registry reg = { .param = p, .n = 2, .weights = 32, .shared = -1 };
	struct tr_ranks dp = { .rank = 1, .n = 3 };
	int64_t cut[2][4] = { { 0, 0, 0, 0 }, { 0, 2, 4, 32 } };
	struct tr_shares s = { .dp = &dp, .cut = { cut[0], cut[1] } };
	float w[32] = { 0 }, m[2] = { 0 }, v[2] = { 0 }, g[32];
	struct tr_adamw a = { .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .shares = &s, .m = m,
			      .v = v };
	const struct tr_isa *isa;
	struct tr_error err;
	int calls = 0;
	struct tr_gate gate = { count_calls, &calls };

	for (int i = 0; i < 32; i++)
		g[i] = 1;
	CHECK_RC(tr_isa_find(&isa, "auto", &err), 0, &err);
	CHECK_RC(tr_adamw_update(&a, &reg, isa, w, g, 0.01, 1, &gate, &err), 0, &err);
	CHECK_INT(calls, 2);
	for (int i = 0; i < 32; i++)
		CHECK((w[i] != 0) == (i == 2 || i == 3));
	CHECK(m[0] != 0 && m[1] != 0 && v[0] != 0 && v[1] != 0);
}
