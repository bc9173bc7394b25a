/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines: the order in which stages work, the parameters that each of them has, the gradient of
 * an embedding that two of them have, and the failure of a stage. */
#include "t.h"

#include <math.h>
#include <pthread.h>

#include "adamw.h"
#include "leafgrads.h"
#include "pipeline.h"
#include "ranks_threads.h"

/* ---- the order ---- */

enum { STAGES_MAX = 6, CHUNKS_MAX = 4, MICROS_MAX = 13,
       PARTS_MAX = STAGES_MAX * CHUNKS_MAX,
       WORK_MAX = 2 * CHUNKS_MAX * MICROS_MAX };

static void list_all(struct tr_pipe p, struct tr_work list[STAGES_MAX][WORK_MAX])
{
	for (p.stage = 0; p.stage < p.stages; p.stage++)
		tr_work_list(&p, list[p.stage]);
}

static void for_all_pipes(void (*check)(const struct tr_pipe *p))
{
	struct tr_pipe p;

	for (p.stages = 1; p.stages <= STAGES_MAX; p.stages++)
		for (p.micros = 1; p.micros <= MICROS_MAX; p.micros++)
			for (int order = TR_ORDER_1F1B; order <= TR_ORDER_FORWARD; order++) {
				p.order = (enum tr_order)order;
				p.chunks = 1;
				do {
					check(&p);
				} while (order >= TR_ORDER_INTERLEAVED &&
					 p.chunks++ < CHUNKS_MAX - 1);
			}
}

/* Each part takes each micro-batch forward and back once, in ascending order, and forward before
 * back. So all orders have the same work. */
static void check_passes(const struct tr_pipe *of)
{
	struct tr_work list[WORK_MAX];
	struct tr_pipe p = *of;
	int64_t n = tr_work_count(&p);

	CHECK(n == p.micros * p.chunks * (p.order == TR_ORDER_FORWARD ? 1 : 2));
	for (p.stage = 0; p.stage < p.stages; p.stage++) {
		int64_t next[CHUNKS_MAX][2] = { { 0 } };

		tr_work_list(&p, list);
		for (int64_t i = 0; i < n; i++) {
			const struct tr_work *w = &list[i];

			CHECK(w->part >= 0 && w->part < p.chunks);
			CHECK(w->micro == next[w->part][w->backward]);
			next[w->part][w->backward]++;
			CHECK(next[w->part][1] <= next[w->part][0]);
		}
		for (int part = 0; part < p.chunks; part++) {
			CHECK(next[part][0] == p.micros);
			CHECK(next[part][1] == (p.order == TR_ORDER_FORWARD ? 0 : p.micros));
		}
	}
}

TEST(each_micro_batch_goes_forward_through_each_part_and_then_back)
{
	for_all_pipes(check_passes);
}

struct simulation {
	const struct tr_pipe *p;
	int done[PARTS_MAX][MICROS_MAX][2];
	/* Messages that each part, and each direction, has sent and received. */
	int64_t sent[PARTS_MAX][2], received[PARTS_MAX][2];
	int64_t at[STAGES_MAX];
};

/* Messages of a stage that nobody has received. A part receives those of the part before it, or in
 * a backward pass of the one behind it. */
static int64_t under_way(const struct simulation *s, int stage)
{
	int64_t n = 0;

	for (int part = stage; part < s->p->stages * s->p->chunks; part += s->p->stages)
		for (int b = 0; b < 2; b++)
			n += s->sent[part][b] - s->received[part][b];
	return n;
}

/* Does the next work of a stage, if its input has arrived. */
static int advance(struct simulation *s, int stage, const struct tr_work *w)
{
	int parts = s->p->stages * s->p->chunks, part = stage + w->part * s->p->stages;
	int from = part + (w->backward ? 1 : -1), to = part + (w->backward ? -1 : 1);

	if (s->p->order == TR_ORDER_FORWARD && under_way(s, stage) > s->p->stages)
		return 0;
	if (w->backward && !s->done[part][w->micro][0])
		return 0;
	if (from >= 0 && from < parts) {
		if (!s->done[from][w->micro][w->backward])
			return 0;
		/* It is the oldest message of its channel. */
		CHECK(s->received[from][w->backward]++ == w->micro);
	}
	s->done[part][w->micro][w->backward] = 1;
	if (to >= 0 && to < parts)
		CHECK(s->sent[part][w->backward]++ == w->micro);
	s->at[stage]++;
	return 1;
}

/* Evaluations, which are lists of forward passes, wait until few messages are under way. */
static void check_arrivals(const struct tr_pipe *p)
{
	static struct tr_work list[STAGES_MAX][WORK_MAX];
	struct simulation s = { .p = p };
	int64_t n = tr_work_count(p);
	int moved = 1;

	list_all(*p, list);
	while (moved) {
		moved = 0;
		for (int stage = 0; stage < p->stages; stage++)
			while (s.at[stage] < n && advance(&s, stage, &list[stage][s.at[stage]]))
				moved = 1;
	}
	for (int stage = 0; stage < p->stages; stage++) {
		CHECK(s.at[stage] == n);
		CHECK(under_way(&s, stage) == 0);
	}
}

TEST(every_input_arrives_in_the_order_in_which_it_was_sent)
{
	for_all_pipes(check_arrivals);
}

/* Micro-batches whose activations are kept at once have different slots. */
static void check_slots(const struct tr_pipe *of)
{
	struct tr_work list[WORK_MAX];
	struct tr_pipe p = *of;
	int64_t n = tr_work_count(&p);

	for (p.stage = 0; p.stage < p.stages && p.order != TR_ORDER_FORWARD; p.stage++) {
		int64_t ahead = p.stages - p.stage, kept = 0, most = 0;
		int used[CHUNKS_MAX][MICROS_MAX] = { { 0 } };

		tr_work_list(&p, list);
		for (int64_t i = 0; i < n; i++) {
			const struct tr_work *w = &list[i];
			int slots = tr_work_slots(list, n, w->part);

			used[w->part][w->micro % slots] += w->backward ? -1 : 1;
			CHECK(used[w->part][w->micro % slots] == !w->backward);
			kept += w->backward ? -1 : 1;
			most = kept > most ? kept : most;
		}
		if (p.order == TR_ORDER_AFAB)
			CHECK(most == p.micros);
		else if (p.order == TR_ORDER_1F1B)
			CHECK(most == (ahead < p.micros ? ahead : p.micros));
		else
			CHECK(most <= 2 * ahead - 1 + (p.chunks - 1) * p.stages);
	}
}

TEST(a_stage_keeps_no_more_micro_batches_than_it_has_to)
{
	for_all_pipes(check_slots);
}

/* ---- the parameters of a stage ---- */

static struct tr_model_config config_of(int tied)
{
	return (struct tr_model_config){ .vocab = 61, .hidden = 24, .layers = 5, .heads = 4,
		.kv_heads = 2, .head_size = 6, .ffn = 35, .tied = tied, .qkv_bias = 1 };
}

/* Two stages, the first with layers 0 and 3, the second with 1, 2 and 4. */
static const struct tr_part part_of[2][2] = { { { 0, 1, 1 }, { 3, 4, 1 } },
					      { { 1, 3, 1 }, { 4, 5, 1 } } };

static void make_stage(struct tr_registry *reg, int stage, int tied, int tp, int tp_rank)
{
	const struct tr_parts parts = { .n = 2, .part = part_of[stage] };
	const struct tr_pieces pieces = { tp, tp_rank, tp_rank + 1 };
	struct tr_model_config c = config_of(tied);
	struct tr_error err;

	CHECK_RC(tr_registry_make(reg, &c, &parts, &pieces, &pieces, &err), 0, &err);
}

/* Draws the weights of a rank, and returns its part of the hash of the model. */
static uint64_t hash_of(const struct tr_registry *reg)
{
	float *w = calloc((size_t)reg->weights, sizeof(*w));
	uint64_t hash;

	CHECK(w);
	tr_registry_draw(reg, w, 7, 0.1);
	hash = tr_registry_hash(reg, w, 0, 1);
	free(w);
	return hash;
}

TEST(the_stages_together_have_each_parameter_once)
{
	static const struct tr_part all = { 0, 5, 1 };
	static const struct tr_parts whole = { .n = 1, .part = &all };
	static const struct tr_pieces one = { 2, 0, 2 };

	for (int tied = 0; tied < 2; tied++) {
		struct tr_model_config c = config_of(tied);
		struct tr_registry reg;
		struct tr_error err;
		int64_t items = 0, distinct;
		uint64_t hash;

		CHECK_RC(tr_registry_make(&reg, &c, &whole, &one, &one, &err), 0, &err);
		hash = hash_of(&reg);
		distinct = reg.distinct;
		CHECK_INT(reg.shared, -1);
		tr_registry_release(&reg);
		for (int rank = 0; rank < 4; rank++) {
			make_stage(&reg, rank / 2, tied, 2, rank % 2);
			CHECK(reg.distinct == distinct);
			for (int i = 0; i < reg.n; i++) {
				const struct tr_param *p = &reg.param[i];

				CHECK(p->tied_to < 0);
				if (!p->copy && (p->axis >= 0 || rank % 2 == 0))
					items += p->items;
				CHECK(p->copy == (p->offset + p->items <= reg.counted));
			}
			CHECK((reg.embedding >= 0) == (rank < 2));
			CHECK((reg.head >= 0 && reg.norm >= 0) == (rank >= 2));
			CHECK_INT(reg.shared, !tied ? -1 : rank < 2 ? reg.embedding : reg.head);
			CHECK(reg.layer[3 * TR_LAYER_PARAMS] < 0 || rank < 2);
			hash -= hash_of(&reg);
			tr_registry_release(&reg);
		}
		CHECK(items == distinct);
		CHECK(hash == 0);
	}
}

/* ---- an embedding that two stages have ---- */

struct stage {
	pthread_t thread;
	struct tr_ranks g;
	float sum[2];
	double norm;
	struct tr_error err;
	int rc;
};

/* Sets some items of each of two leaves; the others are 0. */
static int make_gradients(struct stage *s, struct tr_registry *reg, struct tr_mesh *mesh,
			  struct tr_arenas *a, struct tr_leafgrads **lg)
{
	const struct tr_leafgrads_opts o = { .reg = reg, .mesh = mesh, .leaves = 2 };
	const struct tr_param *p = &reg->param[reg->shared];
	int rc = tr_leafgrads_new(lg, &o, a, &s->err);

	if (rc == 0)
		rc = tr_arenas_allocate(a, &s->err);
	for (int leaf = 0; rc == 0 && leaf < 2; leaf++) {
		float *x;

		for (int i = 0; i < reg->n; i++) {
			x = tr_leafgrads_param(*lg, leaf, &reg->param[i]);
			if (reg->param[i].offset == reg->norms)
				*x = s->g.rank ? 4 : 5;
		}
		x = tr_leafgrads_param(*lg, leaf, p);
		x[0] = s->g.rank ? 8 : 1;
		x[p->items - 1] = s->g.rank ? 0.25f : 3;
	}
	return rc == 0 ? tr_leafgrads_close(*lg, 2, &s->err) : rc;
}

static int reduce(struct stage *s, struct tr_registry *reg, struct tr_mesh *mesh,
		  struct tr_arenas *a, struct tr_leafgrads **lg)
{
	const struct tr_param *p = &reg->param[reg->shared];
	const struct tr_isa *isa;
	float *grad = NULL;
	int rc = tr_isa_find(&isa, "auto", &s->err);

	if (rc == 0)
		rc = tr_backend_cpu(&a->be, isa, &s->err);
	if (rc == 0)
		rc = make_gradients(s, reg, mesh, a, lg);
	if (rc == 0)
		rc = tr_leafgrads_reduce(*lg, &grad, &s->err);
	if (rc == 0)
		rc = tr_leafgrads_wait(*lg, NULL, &s->err);
	if (rc < 0)
		return rc;
	s->sum[0] = grad[p->offset];
	s->sum[1] = grad[p->offset + p->items - 1];
	return tr_gradient_norm(reg, isa, mesh, NULL, grad, &s->norm, &s->err);
}

static void *reduce_in_stage(void *arg)
{
	struct stage *s = arg;
	struct tr_leafgrads *lg = NULL;
	struct tr_arenas arenas = { .be = NULL };
	struct tr_registry reg;
	struct tr_mesh mesh;

	make_stage(&reg, s->g.rank, 1, 1, 0);
	s->rc = tr_mesh_make(&mesh, &s->g, 1, 1, 2, &s->err);
	if (s->rc == 0)
		s->rc = reduce(s, &reg, &mesh, &arenas, &lg);
	tr_leafgrads_free(lg);
	tr_arenas_release(&arenas);
	tr_backend_free(arenas.be);
	tr_mesh_release(&mesh);
	tr_registry_release(&reg);
	return NULL;
}

/* It is 1 in the embedding and 8 in the head, for each of two leaves, and so on. */
TEST(both_stages_get_the_gradient_of_an_embedding_that_is_also_the_head)
{
	struct tr_hub *hub = tr_hub_new(2);
	struct stage s[2] = { { .rc = 0 } };

	for (int r = 0; r < 2; r++) {
		tr_ranks_hub(&s[r].g, hub, r, 20000);
		CHECK_INT(pthread_create(&s[r].thread, NULL, reduce_in_stage, &s[r]), 0);
	}
	for (int r = 0; r < 2; r++) {
		pthread_join(s[r].thread, NULL);
		CHECK_RC(s[r].rc, 0, &s[r].err);
		CHECK(s[r].sum[0] == 18 && s[r].sum[1] == 6.5f);
		/* It counts once, with a norm of each stage. */
		CHECK(s[r].norm == sqrt(18 * 18 + 6.5 * 6.5 + 8 * 8 + 10 * 10));
	}
	tr_hub_free(hub);
}

/* ---- a stage that fails ---- */

enum { STAGES = 3, MICROS = 4, TOKENS = 3 };

struct failing {
	pthread_t thread;
	struct tr_ranks g;
	/* The micro-batch whose rows this stage cannot make, and in which direction. -1: none */
	int64_t fail_at;
	int backward;                   /* 2: forward, and it fails while it computes */
	int dp, tp;
	struct tr_trainer t;
	int64_t losses;
	struct tr_error err;
	int rc;
};

static int fail_in_layer(void *arg, int64_t layer, struct tr_error *err)
{
	const struct failing *f = arg;

	return layer < 1 ? 0 : tr_fail(err, TR_EBUG, "rank %d stops in a layer", f->g.rank);
}

static int make_rows(void *arg, int64_t micro, int backward, struct tr_rows *rows,
		     struct tr_error *err)
{
	static const int64_t begin[] = { 0, TOKENS };
	static const int32_t token[] = { 3, 60, 7 }, target[] = { 60, 7, 1 }, place[] = { 0, 1, 2 };
	static const float weight[] = { 1, 1, 1 };
	static const int leaf = 0;
	struct failing *f = arg;

	*rows = (struct tr_rows){ .n = TOKENS, .seqs = 1, .begin = begin, .token = token,
		.target = target, .weight = weight, .position = place };
	if (micro == f->fail_at && backward == f->backward)
		return tr_fail(err, TR_EIO, "stage %d has no rows", f->g.rank);
	if (micro == f->fail_at && f->backward == 2 && !backward) {
		rows->turn = fail_in_layer;
		rows->arg = f;
	}
	return backward ? tr_leafgrads_begin(f->t.grads, rows, &leaf, micro == MICROS - 1, err) : 0;
}

static int make_loss(void *arg, int slot, const struct tr_rows *rows, int grad,
		     struct tr_error *err)
{
	struct failing *f = arg;
	float loss[TOKENS];

	f->losses++;
	return tr_model_loss(f->t.model, slot, rows, 1, loss, grad, err);
}

static void *run_step(void *arg)
{
	struct failing *f = arg;
	const struct tr_phases phases = { make_rows, make_loss, NULL, f };
	struct tr_model_config c = config_of(1);
	struct tr_mesh mesh;
	const struct tr_isa *isa;

	f->t.mesh = &mesh;
	f->rc = tr_mesh_make(&mesh, &f->g, f->dp, f->tp, STAGES, &f->err);
	if (f->rc == 0)
		f->rc = tr_isa_find(&isa, "auto", &f->err);
	if (f->rc == 0)
		f->rc = tr_backend_cpu(&f->t.be, isa, &f->err);
	if (f->rc == 0)
		f->rc = tr_trainer_init(&f->t, &c, 1, TOKENS, &f->err);
	if (f->rc == 0)
		f->rc = tr_pipeline_run(&f->t, &f->t.pipe, f->t.work, &phases, &f->err);
	f->rc = tr_agree(&f->g, f->rc, &f->err);
	tr_trainer_release(&f->t);
	tr_backend_free(f->t.be);
	tr_mesh_release(&mesh);
	return NULL;
}

/* Makes a step on STAGES * dp * tp threads, of which one fails. */
static void run_failing(struct failing *f, int dp, int tp, int rank, int64_t micro, int backward,
			enum tr_order order)
{
	int n = STAGES * dp * tp;
	struct tr_hub *hub = tr_hub_new(n);

	memset(f, 0, sizeof(*f) * (size_t)n);
	for (int r = 0; r < n; r++) {
		f[r].dp = dp;
		f[r].tp = tp;
		f[r].t.zero = dp > 1 ? 2 : 0;
		f[r].fail_at = r == rank ? micro : -1;
		f[r].backward = backward;
		f[r].t.leaves = dp;
		f[r].t.pieces = tp;
		f[r].t.pipe = (struct tr_pipe){ .order = order, .micros = MICROS };
		tr_ranks_hub(&f[r].g, hub, r, 20000);
		CHECK_INT(pthread_create(&f[r].thread, NULL, run_step, &f[r]), 0);
	}
	for (int r = 0; r < n; r++)
		pthread_join(f[r].thread, NULL);
	tr_hub_free(hub);
}

static void fail_in(int stage, int64_t micro, int backward, enum tr_order order)
{
	struct failing f[STAGES];

	run_failing(f, 1, 1, stage, micro, backward, order);
	for (int r = 0; r < STAGES; r++) {
		CHECK_RC(f[r].rc, stage < 0 ? 0 : TR_EIO, &f[r].err);
		CHECK(stage < 0 || f[r].err.rank == stage);
	}
	CHECK(stage < 0 ? f[STAGES - 1].losses == MICROS : f[STAGES - 1].losses < MICROS);
}

/* No rank waits for what the stage that failed would have sent. */
TEST(the_error_of_a_stage_is_that_of_all_ranks)
{
	fail_in(-1, 0, 0, TR_ORDER_1F1B);
	for (int stage = 0; stage < STAGES; stage++)
		for (int64_t micro = 0; micro < MICROS; micro++)
			for (int order = TR_ORDER_1F1B; order <= TR_ORDER_AFAB; order++)
				fail_in(stage, micro, 0, (enum tr_order)order);
	fail_in(1, 1, 1, TR_ORDER_1F1B);
	fail_in(2, 0, 1, TR_ORDER_AFAB);
}

/* With ZeRO 2 the ranks of dp wait for each other during the step. */
TEST(a_stage_that_fails_ends_the_ranks_that_wait_for_its_gradients)
{
	for (int stage = 0; stage < STAGES; stage++)
		for (int backward = 0; backward < 2; backward++) {
			struct failing f[2 * STAGES];

			run_failing(f, 2, 1, stage, MICROS - 1, backward, TR_ORDER_1F1B);
			for (int r = 0; r < 2 * STAGES; r++) {
				CHECK_RC(f[r].rc, TR_ELOST, &f[r].err);
				CHECK_INT(f[r].err.rank, stage);
				CHECK(strstr(f[r].err.msg, "has no rows") != NULL);
			}
		}
}

/* The other rank of tp waits in an exchange of the layer. */
TEST(a_rank_that_stops_while_it_computes_ends_those_that_compute_with_it)
{
	for (int rank = 0; rank < 4; rank += 3) {
		struct failing f[2 * STAGES];

		run_failing(f, 1, 2, rank, 1, 2, TR_ORDER_1F1B);
		for (int r = 0; r < 2 * STAGES; r++) {
			CHECK_RC(f[r].rc, TR_ELOST, &f[r].err);
			CHECK_INT(f[r].err.rank, rank);
			CHECK(strstr(f[r].err.msg, "stops in a layer") != NULL);
		}
	}
}
