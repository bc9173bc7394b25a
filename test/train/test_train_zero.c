/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO 1: the shares of the ranks of dp, their memory, and the gates. That the bits are those of a
 * training without it is tested with whole trainings: test_train_whole.c and layouts.py. */
#include "t.h"

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
