/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a rank: arenas, the gradient blocks of a step, and the plan. That a training uses
 * what was planned is tested with whole trainings in layouts.py. */
#include "t.h"

#include "rankmesh.h"
#include "trainplan.h"

static const char model[] = "{\"model_type\": \"qwen2\", \"vocab_size\": 256, \"hidden_size\": 64, "
	"\"num_hidden_layers\": 8, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "
	"\"intermediate_size\": 128, \"tie_word_embeddings\": true}";

/* ---- arenas ---- */

enum { PARTS = 300 };

static struct tr_backend *open_backend(void)
{
	const struct tr_isa *isa;
	struct tr_backend *be;
	struct tr_error err;

	CHECK_RC(tr_isa_find(&isa, "auto", &err), 0, &err);
	CHECK_RC(tr_backend_cpu(&be, isa, &err), 0, &err);
	return be;
}

TEST(parts_of_arenas_are_zero_and_aligned_and_do_not_overlap)
{
	struct tr_arenas a = { .be = open_backend() };
	struct tr_backend *be = a.be;
	float *part[PARTS] = { NULL };
	int64_t bytes[TR_MEMORY_KINDS] = { 0 };
	struct tr_error err;

	for (int64_t i = 0; i < PARTS; i++) {
		tr_arena_ask(&a, (enum tr_memory)(i % TR_MEMORY_KINDS), i, &part[i]);
		bytes[i % TR_MEMORY_KINDS] += tr_arena_bytes(i);
	}
	CHECK_RC(tr_arenas_allocate(&a, &err), 0, &err);
	for (int kind = 0; kind < TR_MEMORY_KINDS; kind++)
		CHECK(tr_arenas_bytes(&a, (enum tr_memory)kind) == bytes[kind]);
	for (int64_t i = 0; i < PARTS; i++) {
		CHECK((uintptr_t)part[i] % 64 == 0);
		for (int64_t k = 0; k < i; k++) {
			CHECK(part[i][k] == 0);
			part[i][k] = (float)i;
		}
	}
	for (int64_t i = 0; i < PARTS; i++)
		for (int64_t k = 0; k < i; k++)
			CHECK(part[i][k] == (float)i);
	tr_arenas_release(&a);
	tr_backend_free(be);
}

static void *(*allocate)(struct tr_backend *be, size_t items);

static void *allocate_little(struct tr_backend *be, size_t items)
{
	return items > 1000 ? NULL : allocate(be, items);
}

TEST(more_memory_than_there_is_is_refused_with_its_kind)
{
	struct tr_arenas a = { .be = open_backend() };
	struct tr_backend *be = a.be;
	float *at;
	struct tr_error err;

	allocate = be->alloc;
	be->alloc = allocate_little;
	tr_arena_ask(&a, TR_OPTIMIZER, INT64_MAX / 2, &at);
	tr_arena_ask(&a, TR_OPTIMIZER, INT64_MAX / 2, &at);
	CHECK_INT(tr_arenas_allocate(&a, &err), TR_ENOMEM);
	CHECK(strstr(err.msg, "bytes of optimizer") != NULL);
	tr_arenas_release(&a);
	tr_backend_free(be);
}

/* ---- gradient blocks ---- */

enum { MICROS_MAX = 48 };

/* Lists the passes of a rank that has samples of `leaves` leaves, two of each, in micro-batches. */
static int64_t list_uses(int leaves, int64_t micro, struct tr_leafuse *use)
{
	int64_t n = 0, samples = 2 * leaves;

	for (int64_t at = 0; at < samples; at += micro, n++) {
		int64_t end = at + micro < samples ? at + micro : samples;

		use[n] = (struct tr_leafuse){ 0, (int)(at / 2), (int)((end - 1) / 2),
					      (int)(end / 2) };
	}
	return n;
}

/* Does what a backward pass does with the gradients, from a layer down to the embedding. */
static void pass(struct tr_leafgrads *lg, const struct tr_leafuse *use, int64_t high,
		 int64_t layers)
{
	int leaf[MICROS_MAX];
	struct tr_rows rows = { .seqs = use->last - use->first + 1 };
	struct tr_error err;

	for (int i = use->first; i <= use->last; i++)
		leaf[i - use->first] = i;
	CHECK_RC(tr_leafgrads_begin(lg, &rows, leaf, use->closed, &err), 0, &err);
	for (int64_t l = high; l >= -1; l--)
		CHECK_RC(rows.turn(rows.arg, l, &err), 0, &err);
	CHECK_RC(rows.turn(rows.arg, layers + 1, &err), 0, &err);
	CHECK_RC(tr_leafgrads_close(lg, use->closed, &err), 0, &err);
}

/* Makes the gradients of one parameter of 16 items, and of norms of 32 items. */
static void make_gradients(struct tr_leafgrads **lg, struct tr_arenas *a,
			   const struct tr_mesh *mesh, int leaves, int64_t micro,
			   struct tr_leafuse *use, int64_t *uses)
{
	static struct tr_param p = { .items = 16, .tied_to = -1 };
	static const struct tr_registry reg = { .param = &p, .n = 1, .shared = -1, .head = -1,
						.weights = 48, .norms = 16, .gradients = 48,
						.tokens = { 1, 0, 1 } };
	static const struct tr_part part = { .to = 0 };
	static const struct tr_parts parts = { .n = 1, .part = &part };
	struct tr_leafgrads_opts o = { .reg = &reg, .mesh = mesh, .leaves = leaves, .use = use,
				       .uses = list_uses(leaves, micro, use), .parts = &parts };
	struct tr_error err;

	CHECK_RC(tr_leafgrads_new(lg, &o, a, &err), 0, &err);
	*uses = o.uses;
}

/* Returns how many blocks there are. */
static int blocks(int leaves, int64_t micro)
{
	const struct tr_mesh mesh = { .dp = { .n = 1 }, .tp = { .n = 1 }, .pp = { .n = 1 } };
	struct tr_leafuse use[MICROS_MAX];
	struct tr_arenas a = { .be = NULL };
	struct tr_leafgrads *lg;
	int64_t n, bytes;

	make_gradients(&lg, &a, &mesh, leaves, micro, use, &n);
	bytes = tr_arenas_bytes(&a, TR_GRADS);
	tr_leafgrads_free(lg);
	tr_arenas_release(&a);
	bytes -= tr_arena_bytes(48);    /* the first of each */
	return (int)(bytes / (tr_arena_bytes(16) + tr_arena_bytes(32))) + 1;
}

/* A leaf in work, and a node of each size below it. */
TEST(a_rank_needs_few_gradient_blocks_if_samples_come_one_by_one)
{
	CHECK_INT(blocks(16, 1), 5);
	CHECK_INT(blocks(24, 1), 5);
	CHECK_INT(blocks(16, 32), 16);
	CHECK_INT(blocks(1, 1), 1);
}

TEST(the_gradient_blocks_in_use_are_those_that_were_counted)
{
	struct tr_backend *be = open_backend();
	struct tr_ranks one;
	struct tr_mesh mesh;
	struct tr_error err;

	tr_ranks_alone(&one);
	CHECK_RC(tr_mesh_make(&mesh, &one, 1, 1, 1, &err), 0, &err);
	for (int leaves = 1; leaves <= 24; leaves++) {
		for (int64_t micro = 1; micro <= 2 * leaves; micro++) {
			struct tr_arenas a = { .be = be };
			struct tr_leafuse use[MICROS_MAX];
			struct tr_leafgrads *lg;
			int64_t n;

			make_gradients(&lg, &a, &mesh, leaves, micro, use, &n);
			CHECK_RC(tr_arenas_allocate(&a, &err), 0, &err);
			for (int64_t i = 0; i < n; i++)
				pass(lg, &use[i], -1, 0);
			CHECK(tr_leafgrads_used(lg) == tr_arenas_bytes(&a, TR_GRADS));
			tr_leafgrads_free(lg);
			tr_arenas_release(&a);
		}
	}
	tr_mesh_release(&mesh);
	tr_backend_free(be);
}

/* ---- the plan ---- */

/* Plans the memory of the first rank of a training of the model. */
static void plan(const char *more, int ranks, int64_t bytes[TR_MEMORY_KINDS])
{
	static const char options[] = "run: r\nmodel: m\ndata: d\nbatch: 64\nseq: 64\nsteps: 1\n"
		"virtual: {dp: 4, tp: 4}\n";
	struct tr_setup s = { .o = NULL };
	struct tr_opts o;
	struct tr_error err;

	CHECK_RC(tr_opts_init(&o, &err), 0, &err);
	CHECK_RC(tr_opts_read_yaml(&o, options, strlen(options), "options", TR_FROM_FILE, &err), 0,
		 &err);
	CHECK_RC(tr_opts_read_yaml(&o, more, strlen(more), "more", TR_FROM_FLAG, &err), 0, &err);
	CHECK_RC(tr_opts_check(&o, ranks, &err), 0, &err);
	s.o = &o;
	CHECK_RC(tr_model_config_read(&s.config, model, strlen(model), "model", &err), 0, &err);
	CHECK_RC(tr_plan_rank(&s, 0, bytes, &err), 0, &err);
	tr_opts_release(&o);
}

/* The sizes that 4 divides, and the gaps between 200 parts of an arena at most. */
static int is_quarter(int64_t part, int64_t whole)
{
	return part * 4 >= whole && part * 4 <= whole + 4 * 200 * 128;
}

TEST(activations_fall_to_the_share_of_a_rank_with_sequence_parallelism)
{
	int64_t one[TR_MEMORY_KINDS], tp[TR_MEMORY_KINDS], sp[TR_MEMORY_KINDS];

	plan("", 1, one);
	plan("mesh: {tp: 4}", 4, tp);
	plan("{mesh: {tp: 4}, sp: true}", 4, sp);
	CHECK(is_quarter(sp[TR_ACTIVATIONS], one[TR_ACTIVATIONS]));
	CHECK(!is_quarter(tp[TR_ACTIVATIONS], one[TR_ACTIVATIONS]));
	CHECK(is_quarter(sp[TR_PARAMS] - 17 * 64 * 4, one[TR_PARAMS] - 17 * 64 * 4));
}

TEST(each_option_that_saves_memory_saves_the_kind_that_it_names)
{
	static const struct {
		const char *with, *without;
		int ranks;
		enum tr_memory kind;
		double least, most;             /* what remains */
	} saving[] = {
		{ "recompute: block", "", 1, TR_ACTIVATIONS, 0.2, 0.5 },
		{ "micro-batch: 8", "", 1, TR_ACTIVATIONS, 0.12, 0.2 },
		{ "", "micro-batch: 16", 1, TR_GRADS, 0.6, 0.75 },
		{ "mesh: {dp: 2}", "", 2, TR_GRADS, 0.65, 0.85 },
		{ "{mesh: {dp: 4}, zero: 2, zero-form: flat}", "mesh: {dp: 4}", 4, TR_GRADS, 0.25,
		  0.45 },
		{ "{mesh: {dp: 4}, zero: 1}", "mesh: {dp: 4}", 4, TR_OPTIMIZER, 0.2, 0.4 },
		{ "{mesh: {dp: 4}, zero: 1, zero-form: flat}", "mesh: {dp: 4}", 4, TR_OPTIMIZER,
		  0.25, 0.26 },
		{ "{mesh: {pp: 4}, micro-batch: 8}", "micro-batch: 8", 4, TR_PARAMS, 0.2, 0.4 },
		{ "{mesh: {pp: 4}, micro-batch: 8}",
		  "{mesh: {pp: 4}, micro-batch: 8, schedule: afab}", 4, TR_ACTIVATIONS, 0.4, 0.7 },
	};

	for (size_t i = 0; i < sizeof(saving) / sizeof(saving[0]); i++) {
		int64_t with[TR_MEMORY_KINDS], without[TR_MEMORY_KINDS];
		double part;

		plan(saving[i].with, saving[i].ranks, with);
		plan(saving[i].without, strstr(saving[i].without, "mesh") ? saving[i].ranks : 1,
		     without);
		part = (double)with[saving[i].kind] / (double)without[saving[i].kind];
		if (part < saving[i].least || part > saving[i].most)
			print_error("%s: %g remains\n", saving[i].with, part);
		CHECK(part >= saving[i].least && part <= saving[i].most);
	}
}

/* ---- what it costs ---- */

static int64_t basic_blocks;            /* that were entered, of the files train_counted */

/* The compiler puts a call of this into each of them. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
	basic_blocks++;
}

static int64_t count_plan(const char *layout, int ranks, int pieces)
{
	int64_t bytes[TR_MEMORY_KINDS];
	char more[300];

	snprintf(more, sizeof(more), "%s\nbatch: %d\nvirtual: {dp: %d, tp: 4}\n", layout,
		 pieces, pieces);
	basic_blocks = 0;
	plan(more, ranks, bytes);
	return basic_blocks;
}

/* Four times as many pieces are four times as much work, but for logarithms. If a loop went over
 * all pieces for each piece, it would be sixteen times as much. */
TEST(the_work_of_a_plan_grows_as_the_pieces_of_sums_do)
{
	static const struct {
		int ranks;
		const char *layout;
	} some[] = {
		{ 1, "micro-batch: 8" }, { 1, "micro-batch: 65536" },
		{ 2, "mesh: {pp: 2}\nschedule: interleaved\nchunks: 2\nmicro-batch: 8" },
		{ 4, "mesh: {dp: 4}\nzero: 2\nmicro-batch: 2" },
		{ 4, "mesh: {dp: 4}\nzero: 2\noverlap: true\nzero-form: flat" },
		{ 4, "mesh: {dp: 2, tp: 2}\nzero: 1\noverlap: true\nmicro-batch: 16" },
	};

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		int64_t few = count_plan(some[i].layout, some[i].ranks, 1024);
		int64_t many = count_plan(some[i].layout, some[i].ranks, 4096);

		if (few < 1024 || many > 8 * few)
			print_error("%s: %lld, and %lld\n", some[i].layout, (long long)few,
				    (long long)many);
		CHECK(few > 1024 && many < 8 * few);
	}
}

/* What a training allocates is what is planned: counted in the back end. */
static int64_t allocated;

static void *count_and_allocate(struct tr_backend *be, size_t items)
{
	allocated += (int64_t)(items * sizeof(float));
	return allocate(be, items);
}

TEST(the_arenas_of_a_trainer_are_all_that_it_allocates)
{
	const struct tr_leafuse all = { 0, 0, 3, 4 };
	struct tr_ranks alone;
	struct tr_mesh mesh;
	struct tr_trainer t = { .mesh = &mesh, .leaves = 4, .pieces = 2, .batch = 8 };
	struct tr_model_config c;
	int64_t used[TR_MEMORY_KINDS], sum = 0;
	struct tr_error err;

	tr_ranks_alone(&alone);
	CHECK_RC(tr_model_config_read(&c, model, strlen(model), "model", &err), 0, &err);
	CHECK_RC(tr_mesh_make(&mesh, &alone, 1, 1, 1, &err), 0, &err);
	t.be = open_backend();
	allocate = t.be->alloc;
	t.be->alloc = count_and_allocate;
	CHECK_RC(tr_trainer_init(&t, &c, 8, 16, &err), 0, &err);
	pass(t.grads, &all, c.layers, c.layers);
	tr_trainer_used(&t, used);
	for (int kind = 0; kind < TR_MEMORY_KINDS; kind++)
		sum += used[kind];
	CHECK(sum == allocated && used[TR_GRADS] > used[TR_PARAMS]);
	tr_trainer_release(&t);
	tr_backend_free(t.be);
	tr_mesh_release(&mesh);
}
