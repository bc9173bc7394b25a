/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: what ranks save under one layout of dense weights and experts comes back
 * bit for bit under every other, from disk and from memory; each byte is copied and written once;
 * masters, moments and averages stay with their expert. */
#include "experts.h"
#include <math.h>
#include <stdlib.h>
#include "err.h"
#include "hands.h"
#include "items.h"
#include "save.h"
#include "sheaf-plan.h"
#include "sheaf-stat.h"
#include "simdisk.h"
#include "simgroup.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"
#include "averages.h"
#include "state.h"
#include "plan_job.h"

#define SEED UINT64_C(0xe8be)
#define ROOM (UINT64_C(1) << 30)
enum { STEPS = 3, NEVER = 40 };         /* NEVER: of no step that is saved */

struct job {
	const struct expert_layout *l;
	struct simdisk *disk;
	int nodes;                      /* ranks are spread over so many; 0: one */
	bool memory;                    /* steps are kept by agents, and not written */
	uint64_t flags;                 /* of the saves */
	int64_t from, to;               /* steps it saves; from > 1: the one before is loaded */
	int64_t load;                   /* or: the step that is loaded and compared */
	int64_t value;                  /* whose values it has; 0: its own */
	bool copy;                      /* and saved as the next one, from the memory it came to */
	bool whole;                     /* averages are saved as they are, as slices */
	uint64_t run_flags, load_flags; /* load_flags: besides SHEAF_LOAD_STRICT */
	uint64_t staging;               /* 0: no bound */
	int die_rank, die_at;           /* as in simgroup_opts */
	int fails;                      /* what it is to return */
	void (*edit)(struct expert_hold *h, int rank);  /* of what is held, before it is used */
	/* what came of it, over all ranks */
	uint64_t copied, written, to_write;
	int more_than_held;             /* saves of ranks that copied more than they hold */
	int64_t acked, found;           /* the newest step that a rank knew; that was loaded */
	bool died;
	struct sheaf_report report;     /* of rank 0 */
	struct sheaf_error err[EXPERT_RANKS_MAX];
	const struct shf_sys *sys[EXPERT_RANKS_MAX];
	int32_t node[EXPERT_RANKS_MAX];
};

static struct sheaf_state *state_of(const struct expert_hold *h, bool averages)
{
	const struct sheaf_ema ema = { .size = sizeof(ema), .coef = EXPERT_COEF };
	struct sheaf_state *state = shf_state_new();

	for (int i = 0; i < h->n; i++)
		(void)shf_state_add(state, &h->slices[i], NULL);
	if (averages)
		(void)shf_state_ema(state, NULL, &ema, NULL);
	return state;
}

/* Loads step *n. If it is SHEAF_LATEST, *n becomes the number that was loaded. */
static int load_step(const struct job *j, struct sheaf_run *run, struct sheaf_state *state,
                     int64_t *n, struct sheaf_report *report, struct sheaf_error *err)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, run, *n, err);

	*report = (struct sheaf_report){ .size = sizeof(*report) };
	if (rc == 0)
		rc = shf_step_load(step, state, SHEAF_LOAD_STRICT | j->load_flags, report, err);
	if (rc == 0 && report->unverified)
		rc = shf_fail(err, SHEAF_EBUG, "%llu tensors are unverified",
		              (unsigned long long)report->unverified);
	*n = rc == 0 ? step->number : *n;
	shf_step_put(step);
	return rc;
}

/* Saves, and paints the memory with values of no step as soon as it may change. */
static int save_step(struct job *j, struct sheaf_run *run, struct sheaf_state *state,
                     struct expert_hold *h, int64_t n, struct sheaf_error *err)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = j->flags };
	struct sheaf_stat stat = { 0 };
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, run, n, state, &opts, err);

	for (int i = 0; i < h->n && rc == 0 && j->flags & SHEAF_SAVE_LAZY; i++) {
		if (j->flags & SHEAF_SAVE_LATER)
			rc = shf_save_put(save, i, NULL, NULL);
		if (rc == 0)
			rc = shf_save_copied(save, i, -1, NULL);
	}
	if (rc == 0)
		experts_paint(h, NEVER);
	if (rc == 0)
		rc = shf_save_commit(save, -1, err);
	if (rc == 0) {
		j->acked = n;
		shf_save_stat(save, &stat);
		j->copied += stat.copied;
		j->written += stat.written;
		j->to_write += stat.to_write;
		j->more_than_held += stat.copied > stat.held;
	}
	shf_save_free(save);
	return rc;
}

static int train(struct job *j, struct sheaf_run *run, struct expert_hold *h,
                 struct sheaf_error *err)
{
	struct sheaf_state *state = state_of(h, !j->whole);
	struct sheaf_report report;
	int64_t before = j->from - 1;
	int rc = before ? load_step(j, run, state, &before, &report, err) : 0;

	for (int64_t n = j->from; n <= j->to && rc == 0; n++) {
		experts_paint(h, n);
		rc = save_step(j, run, state, h, n, err);
	}
	shf_state_put(state);
	return rc;
}

/* Counts the bytes that a failed load has changed. */
static int64_t touched(const struct expert_hold *h)
{
	int64_t n = 0;

	for (int i = 0; i < h->n; i++) {
		const uint8_t *p = h->slices[i].data;
		size_t item = h->slices[i].dtype == SHEAF_BF16 ? 2 : 4;

		for (size_t k = 0; k < (size_t)items_span(&h->slices[i]) * item; k++)
			n += p[k] != 0xA5;
	}
	return n;
}

static int look(struct job *j, int rank, struct sheaf_run *run, struct expert_hold *h,
                struct sheaf_error *err)
{
	struct sheaf_state *state = state_of(h, false);
	struct sheaf_report report;
	char why[200] = "";
	int64_t n = j->load;
	int rc = load_step(j, run, state, &n, &report, err);

	if (rc == SHEAF_ELAYOUT && touched(h))
		rc = shf_fail(err, SHEAF_EBUG, "memory was touched before this: %.300s", err->msg);
	if (rc == 0 && experts_wrong(h, j->value ? j->value : n, why, sizeof(why)))
		rc = shf_fail(err, SHEAF_EBUG, "%s", why);
	if (rc == 0 && j->copy)
		rc = save_step(j, run, state, h, n + 1, err);
	if (rank == 0) {
		j->report = report;
		j->found = rc == 0 ? n : 0;
	}
	shf_state_put(state);
	return rc;
}

static int rank_main(void *arg, int rank, struct sheaf_group *group)
{
	struct job *j = arg;
	/* A look at a step is no try of it. */
	struct shf_opts opts = { .timeout_ms = 60000, .images_max = 2,
		.staging_bytes_max = j->staging,
		.flags = j->run_flags | (j->load && !j->copy ? SHEAF_RUN_READONLY
		                         : SHEAF_RUN_CREATE),
		.agent = j->memory ? "auto" : NULL };
	struct sheaf_run *run = NULL;
	struct expert_hold *h = experts_hold(j->l, rank,
	                                     j->load || j->whole ? EXPERT_ALL : EXPERT_STATE);
	int rc = shf_run_open(&run, "run", group, &opts, j->sys[rank], &j->err[rank]);

	if (j->edit)
		j->edit(h, rank);
	if (rc == 0)
		rc = j->load ? look(j, rank, run, h, &j->err[rank])
		             : train(j, run, h, &j->err[rank]);
	shf_run_close(run);
	experts_free(h);
	return rc;
}

static void died(void *arg, int rank)
{
	struct job *j = arg;

	simdisk_kill(j->disk, j->sys[rank]);
}

/* Plays the job. Returns what all ranks returned, or 1 if they did not return the same; 0 if one
 * was to die. */
static int play(struct job *j)
{
	struct simgroup_stat stat = { 0 };
	struct simgroup_opts o = { .seed = SEED + (uint64_t)j->load, .ranks = experts_ranks(j->l),
		.nodes = j->node, .die_rank = j->die_rank, .die_at = j->die_at,
		.quiet = j->die_at, .died = died, .stat = &stat };
	static uint64_t pid = 100;
	int results[EXPERT_RANKS_MAX], rc;

	j->copied = j->written = j->to_write = 0;
	memset(j->err, 0, sizeof(j->err));
	for (int r = 0; r < o.ranks; r++) {
		j->node[r] = j->nodes > 1 ? r * j->nodes / o.ranks + 1 : 0;
		j->sys[r] = simdisk_process(j->disk, pid++, j->node[r]);
	}
	rc = simgroup_run(&o, rank_main, j, results) < 0 ? 1 : results[0];
	j->died = stat.fired;
	for (int r = 0; r < o.ranks; r++) {
		rc = results[r] != rc || simdisk_open_n(j->sys[r]) ? 1 : rc;
		simdisk_kill(j->disk, j->sys[r]);
	}
	if (j->die_at)
		return 0;
	for (int r = 0; r < o.ranks && rc != 0 && rc != j->fails; r++)
		print_error("%s %s on rank %d: %d %s\n", j->l->name, j->load ? "loading" : "saving",
		            r, results[r], j->err[r].msg);
	return rc;
}

#define PLAYED(j) CHECK_INT(play(&(j)), 0)

static struct simdisk *world(void)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);

	simdisk_set_trace(d, false);
	simdisk_set_agents(d, ROOM);
	return d;
}

static struct job saver(struct simdisk *disk, const struct expert_layout *l)
{
	return (struct job){ .disk = disk, .l = l, .from = 1, .to = STEPS };
}

static struct job loader(struct simdisk *disk, const struct expert_layout *l)
{
	return (struct job){ .disk = disk, .l = l, .load = STEPS };
}

/* ---- the layouts are what they say ---- */

static void count_one(void *arg, int64_t global, int64_t at)
{
	int *held = arg;

	(void)at;
	held[global]++;
}

/* By how many ranks each item of a part of a tensor is held, at least and at most. */
static void holders(const struct expert_layout *l, const struct expert_tensor *t,
                    enum expert_part part, int *least, int *most)
{
	int held[1024] = { 0 };

	for (int r = 0; r < experts_ranks(l); r++) {
		struct expert_hold *h = experts_hold(l, r, 1u << part);

		for (int i = 0; i < h->n; i++)
			if (strcmp(h->of[i].t.name, t->name) == 0)
				items_each(&h->slices[i], count_one, held);
		experts_free(h);
	}
	*least = *most = held[0];
	for (int64_t i = 0; i < t->shape[0] * (t->ndim > 1 ? t->shape[1] : 1); i++) {
		*least = held[i] < *least ? held[i] : *least;
		*most = held[i] > *most ? held[i] : *most;
	}
}

static void covers(const struct expert_layout *l)
{
	struct expert_tensor t;
	int least, most;

	for (int i = 0; expert_tensor(i, &t); i++)
		for (int part = 0; part < EXPERT_AVERAGE; part++) {
			if (part == EXPERT_MASTER && t.dtype == SHEAF_F32)
				continue;
			holders(l, &t, (enum expert_part)part, &least, &most);
			CHECK(least >= 1);
			CHECK(most <= experts_ranks(l));
			if (l->mesh >= EXPERTS_OWN_MESH && t.expert >= 0 && part && l->zero)
				CHECK_INT(most, 1);
		}
}

TEST(every_layout_holds_every_item_drawn_ones_too)
{
	for (int i = 0; i < expert_layouts_n; i++)
		covers(&expert_layouts[i]);
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct expert_layout l = experts_draw(seed, 1 + (int)(seed % EXPERT_RANKS_MAX));

		CHECK(experts_ranks(&l) <= 1 + (int)(seed % EXPERT_RANKS_MAX));
		if (seed % 10 == 0)
			covers(&l);
	}
}

static void move_slice(struct expert_hold *h, int from, int to)
{
	h->slices[to] = h->slices[from];
	h->of[to] = h->of[from];
	h->slices[to].name = h->of[to].name;
}

/* ---- any layout loads what any layout saved ---- */

struct way {
	int nodes;
	uint64_t flags;
	bool memory;
};

static void all_pairs(struct way way)
{
	for (int a = 0; a < expert_layouts_n; a++) {
		struct simdisk *d = world();
		struct job s = saver(d, &expert_layouts[a]);

		s.nodes = way.nodes;
		s.flags = way.flags;
		s.memory = way.memory;
		if (experts_ranks(s.l) < way.nodes)
			s.nodes = experts_ranks(s.l);
		PLAYED(s);
		for (int b = a % T_STRIDE; b < expert_layouts_n; b += T_STRIDE) {
			struct job l = loader(d, &expert_layouts[b]);

			l.nodes = s.nodes;
			l.memory = way.memory;
			if (experts_ranks(l.l) < l.nodes && way.memory)
				continue; /* a node whose memory nobody reads */
			if (play(&l) != 0) {
				print_error("saved by %s\n", s.l->name);
				CHECK(false);
			}
			CHECK_INT(way.memory ? l.report.disk_bytes : l.report.memory_bytes, 0);
		}
		simdisk_free(d);
	}
}

TEST(every_layout_loads_what_every_layout_saved)
{
	all_pairs((struct way){ .nodes = 1 });
}

TEST(every_layout_loads_over_nodes_what_every_layout_saved_lazily)
{
	all_pairs((struct way){ .nodes = 3, .flags = SHEAF_SAVE_LAZY });
}

TEST(every_layout_loads_from_memory_what_every_layout_saved)
{
	all_pairs((struct way){ .nodes = 1, .flags = SHEAF_SAVE_NO_DISK, .memory = true });
}

TEST(every_layout_loads_from_the_memory_of_two_nodes_what_every_layout_saved_lazily)
{
	all_pairs((struct way){ .nodes = 2, .flags = SHEAF_SAVE_NO_DISK | SHEAF_SAVE_LAZY,
	                        .memory = true });
}

/* Layouts that nobody has thought of. */
TEST(drawn_layouts_load_what_drawn_layouts_saved)
{
	for (int i = t_from(T_STRIDE); i < 60; i += T_STRIDE) {
		uint64_t seed = 1 + (uint64_t)i;
		struct expert_layout a = experts_draw(seed, EXPERT_RANKS_MAX);
		struct expert_layout b = experts_draw(seed + 1000, EXPERT_RANKS_MAX);
		struct simdisk *d = world();
		struct job s = saver(d, &a), l = loader(d, &b);

		s.memory = l.memory = seed % 3 == 0;
		s.nodes = seed % 2 ? 1 : experts_ranks(&a) < 3 ? experts_ranks(&a) : 3;
		s.flags = (seed % 4 ? SHEAF_SAVE_LAZY : 0) | (s.memory ? SHEAF_SAVE_NO_DISK : 0);
		l.nodes = s.nodes;
		if (l.memory && experts_ranks(&b) < l.nodes)
			s.nodes = l.nodes = 1;
		if (play(&s) || play(&l)) {
			print_error("seed %llu\n", (unsigned long long)seed);
			CHECK(false);
		}
		simdisk_free(d);
	}
}

/* ---- each byte once ---- */

/* Bytes of all files with tensors of a step. */
static uint64_t tensor_files(struct simdisk *d, int64_t step)
{
	static const char *const files[] = { "model", "master_weights/master_weights",
		"optimizer/optimizer", "ema/ema" };
	uint64_t bytes = 0;

	for (int i = 0; i < 4; i++) {
		char path[120];
		size_t n = 0;
		void *p;

		snprintf(path, sizeof(path), "run/checkpoint-%lld/%s-00001-of-00001.safetensors",
		         (long long)step, files[i]);
		p = simdisk_get(d, path, &n);
		CHECK(p && n > 0);
		bytes += n;
		free(p);
	}
	return bytes;
}

/* Experts that one rank holds are copied and written by that rank, those of several by one of them,
 * and dense weights in shares: whoever holds what, the sums and the files are the same. */
TEST(each_byte_is_copied_and_written_once_in_every_layout)
{
	static const struct way ways[] = { { .nodes = 1 }, { .nodes = 1, .flags = SHEAF_SAVE_LAZY },
		{ .nodes = 3 }, { .nodes = 4, .flags = SHEAF_SAVE_LAZY } };
	uint64_t want = 0;

	for (int a = 0; a < expert_layouts_n; a++)
		for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
			struct simdisk *d = world();
			struct job s = saver(d, &expert_layouts[a]);
			uint64_t hash;

			s.nodes = ways[w].nodes;
			s.flags = ways[w].flags;
			PLAYED(s);
			hash = hands_hash(d, "run/checkpoint-3");
			want = want ? want : hash;
			CHECK(hash == want);
			CHECK_INT(s.copied, STEPS * experts_bytes(EXPERT_ALL));
			CHECK_INT(s.more_than_held, 0);
			CHECK_INT(s.written, s.to_write);
			CHECK_INT(s.written, STEPS * tensor_files(d, STEPS));
			simdisk_free(d);
		}
}

static void sum_up(void *arg, const struct sheaf_plan_rank *rank)
{
	uint64_t *sums = arg;

	sums[0] += rank->writes;
	sums[1] += rank->reads;
}

TEST(a_plan_writes_each_byte_once_in_every_layout)
{
	struct simdisk *d = world();
	struct job s = saver(d, &expert_layouts[0]);

	PLAYED(s);
	for (int a = 0; a < expert_layouts_n; a++) {
		const struct expert_layout *l = &expert_layouts[a];
		struct expert_hold *holds[EXPERT_RANKS_MAX];
		struct sheaf_state *states[EXPERT_RANKS_MAX];
		struct sheaf_error err = { 0 };
		uint64_t sums[2] = { 0 };

		for (int r = 0; r < experts_ranks(l); r++) {
			holds[r] = experts_hold(l, r, EXPERT_ALL);
			states[r] = state_of(holds[r], false);
		}
		CHECK_RC(shf_plan_job(states, NULL, experts_ranks(l), NULL, sum_up, sums, &err),
		         0, &err);
		CHECK_INT(sums[0], tensor_files(d, STEPS));
		CHECK(sums[1] >= experts_bytes(EXPERT_ALL) && sums[1] <= sums[0]);
		for (int r = 0; r < experts_ranks(l); r++) {
			shf_state_put(states[r]);
			experts_free(holds[r]);
		}
	}
	simdisk_free(d);
}

/* ---- what belongs to an expert stays with it ---- */

static const struct expert_layout *named(const char *name)
{
	for (int i = 0; i < expert_layouts_n; i++)
		if (strcmp(expert_layouts[i].name, name) == 0)
			return &expert_layouts[i];
	abort();
}

/* Each name loads what the one before saved, compares it with the formula, and saves it as the next
 * step, whose files are the same. */
static void hand_on(const char *const *names, int n, int nodes)
{
	struct simdisk *d = world();
	struct job s = saver(d, named(names[0]));
	uint64_t want;
	char dir[40];

	s.to = 1;
	s.nodes = nodes;
	PLAYED(s);
	want = hands_hash(d, "run/checkpoint-1");
	for (int i = 1; i < n; i++) {
		struct job l = loader(d, named(names[i]));

		l.load = i;
		l.value = 1;
		l.copy = true;
		l.nodes = nodes;
		l.flags = i % 2 ? SHEAF_SAVE_LAZY : 0;
		PLAYED(l);
		snprintf(dir, sizeof(dir), "run/checkpoint-%d", i + 1);
		CHECK(hands_hash(d, dir) == want);
	}
	simdisk_free(d);
}

#define HAND_ON(...)                                                                     \
	do {                                                                             \
		static const char *const names[] = { __VA_ARGS__ };                      \
		for (int nodes = 1; nodes <= 2; nodes++)                                 \
			hand_on(names, sizeof(names) / sizeof(names[0]), nodes);         \
	} while (0)

TEST(experts_over_dp_are_handed_on_to_other_ep_with_the_same_files)
{
	HAND_ON("dp4ep4", "one", "dp2ep2", "dp8ep8", "dp4ep2", "dp4ep3idle1", "dp4ep4");
}

TEST(experts_cut_by_tp_dealt_over_tp_and_over_dp_are_handed_on_with_the_same_files)
{
	HAND_ON("tp4dealt", "tp4cut", "dp4ep4", "tp4cut", "dp2ep2tp3dealt", "dp2ep2tp2cut",
	        "dp2ep1tp2cut", "tp4dealt");
}

TEST(an_expert_mesh_is_handed_on_to_six_others_with_the_same_files)
{
	HAND_ON("tp2sh4=ep4msh2", "tp2sh2=ep4", "tp3sh2=ep2msh3", "tp4sh2=ep1msh8", "tp1sh8=ep8",
	        "dp2ep2tp2cut", "dp4ep4", "tp2sh4=ep4msh2");
}

/* Each layout makes one update, the next one goes on from there: after all of them the averages
 * are those of one that made all updates. */
TEST(averages_of_experts_go_on_in_every_layout)
{
	for (int way = 0; way < 4; way++) {
		struct simdisk *d = world();

		for (int i = 0; i < expert_layouts_n; i++) {
			int other = (i + 5) % expert_layouts_n;
			struct job s = saver(d, &expert_layouts[i]);
			struct job l = loader(d, &expert_layouts[other]);

			s.from = s.to = l.load = i + 1;
			s.flags = way % 2 ? SHEAF_SAVE_LAZY : 0;
			s.memory = l.memory = way >= 2;
			s.flags |= s.memory ? SHEAF_SAVE_NO_DISK : 0;
			PLAYED(s);
			PLAYED(l);
		}
		simdisk_free(d);
	}
}

/* ---- saved in other ways ---- */

static void moments_in_place(struct expert_hold *h, int rank)
{
	(void)rank;
	for (int i = 0; i < h->n; i++)
		if (h->of[i].part == EXPERT_MOMENT1 || h->of[i].part == EXPERT_MOMENT2)
			h->slices[i].flags |= SHEAF_SLICE_IN_PLACE;
}

TEST(every_way_to_save_makes_the_same_files_in_every_layout)
{
	static const struct {
		uint64_t flags, run_flags;
		uint64_t staging;
		bool whole;
		void (*edit)(struct expert_hold *h, int rank);
	} ways[] = {
		{ .run_flags = SHEAF_RUN_REPLICAS }, { .flags = SHEAF_SAVE_LAZY |
		                                       SHEAF_SAVE_CHECK },
		{ .staging = 2 << 16 }, { .staging = 2 << 16, .flags = SHEAF_SAVE_LAZY },
		{ .flags = SHEAF_SAVE_LAZY | SHEAF_SAVE_LATER, .whole = true },
		{ .edit = moments_in_place }, { .edit = moments_in_place,
		                                .flags = SHEAF_SAVE_LAZY },
		{ .whole = true, .run_flags = SHEAF_RUN_REPLICAS, .flags = SHEAF_SAVE_LAZY },
	};
	uint64_t want = 0;

	for (int a = 0; a < expert_layouts_n; a++)
		for (size_t w = (size_t)(a % T_STRIDE); w < sizeof(ways) / sizeof(ways[0]);
		     w += (size_t)T_STRIDE) {
			struct simdisk *d = world();
			struct job s = saver(d, &expert_layouts[a]);
			uint64_t hash;

			s.nodes = w % 2 ? 1 : 2;
			s.flags = ways[w].flags;
			s.run_flags = ways[w].run_flags;
			s.staging = ways[w].staging;
			s.whole = ways[w].whole;
			s.edit = ways[w].edit;
			s.to = 2;
			PLAYED(s);
			hash = hands_hash(d, "run/checkpoint-2");
			want = want ? want : hash;
			if (hash != want)
				print_error("%s, way %zu\n", s.l->name, w);
			CHECK(hash == want);
			simdisk_free(d);
		}
}

static void without_weights(struct expert_hold *h, int rank)
{
	int n = 0;

	(void)rank;
	for (int i = 0; i < h->n; i++)
		if (h->slices[i].dtype != SHEAF_BF16)
			move_slice(h, i, n++);
	h->n = n;
}

TEST(weights_of_experts_are_derived_from_their_masters_in_any_layout)
{
	for (int a = 0; a < expert_layouts_n; a++) {
		struct simdisk *d = world();
		struct job s = saver(d, &expert_layouts[a]);

		s.memory = a % 2;
		s.flags = s.memory ? SHEAF_SAVE_NO_DISK : SHEAF_SAVE_LAZY;
		s.edit = without_weights;
		PLAYED(s);
		for (int b = a % 4; b < expert_layouts_n; b += 4) {
			struct job l = loader(d, &expert_layouts[b]);

			l.memory = s.memory;
			l.load_flags = SHEAF_LOAD_DERIVE;
			PLAYED(l);
			CHECK(l.report.derived > 0);
		}
		simdisk_free(d);
	}
}

/* The last rank has no expert. The job that follows the death has another layout, and finds what
 * was committed. */
TEST(each_rank_may_die_while_experts_are_saved)
{
	long deaths = 0, newer = 0;

	for (int way = 0; way < 4; way++)
		for (int at = 1 + t_from(T_STRIDE), last = 0; !last; at += 2 * T_STRIDE) {
			struct simdisk *d = world();
			struct job s = saver(d, named("dp4ep3idle1"));
			struct job l = loader(d, named("tp3sh2=ep2msh3"));

			s.memory = l.memory = way & 1;
			s.flags = SHEAF_SAVE_LAZY | (s.memory ? SHEAF_SAVE_NO_DISK : 0);
			s.die_rank = way & 2 ? 3 : 1;
			s.die_at = at;
			(void)play(&s);
			last = !s.died;
			l.load = SHEAF_LATEST;
			l.fails = s.acked ? 0 : SHEAF_ENOENT;
			if (play(&l) != SHEAF_ENOENT)
				CHECK(l.found >= s.acked && l.found > 0);
			else
				CHECK_INT(s.acked, 0);
			deaths += s.died;
			newer += l.found > s.acked;
			simdisk_free(d);
		}
	print_message("# %ld deaths, %ld times more was found than was known\n", deaths, newer);
	CHECK(deaths > 40 / T_STRIDE);
}

/* Leaves this rank only its slices of experts, so that a rank without experts holds nothing. */
static void only_experts(struct expert_hold *h, int rank)
{
	int n = 0;

	(void)rank;
	for (int i = 0; i < h->n; i++)
		if (h->of[i].t.expert >= 0)
			move_slice(h, i, n++);
	h->n = n;
}

TEST(experts_alone_leave_ranks_and_nodes_with_nothing)
{
	for (int way = 0; way < 8; way++)
		for (int a = way % T_STRIDE; a < expert_layouts_n; a += T_STRIDE) {
			struct simdisk *d = world();
			struct job s = saver(d, &expert_layouts[a]);
			struct job next = saver(d, &expert_layouts[(a + 7) % expert_layouts_n]);
			struct job l = loader(d, &expert_layouts[(a + 2) % expert_layouts_n]);

			next.from = next.to = l.load = STEPS + 1;
			s.memory = next.memory = l.memory = way & 2;
			s.flags = (s.memory ? SHEAF_SAVE_NO_DISK : 0) | (way & 4 ? SHEAF_SAVE_LAZY
			                                                 : 0);
			next.flags = s.flags;
			s.edit = next.edit = l.edit = only_experts;
			s.nodes = way & 1 ? s.l->dp : 1;
			if (experts_ranks(next.l) < s.nodes || experts_ranks(l.l) < s.nodes)
				s.nodes = 1;
			next.nodes = l.nodes = s.nodes;
			PLAYED(s);
			PLAYED(next);
			PLAYED(l);
			simdisk_free(d);
		}
}

/* ---- what is not there ---- */

static const char *lost_family, *lost_name;

static bool is_lost(const struct sheaf_slice *s)
{
	return strcmp(s->family, lost_family) == 0 && strcmp(s->name, lost_name) == 0;
}

static void lose(struct expert_hold *h, int rank)
{
	int n = 0;

	(void)rank;
	for (int i = 0; i < h->n; i++)
		if (!is_lost(&h->slices[i]))
			move_slice(h, i, n++);
	h->n = n;
}

/* The sentence is the same on every rank, whoever has the expert. */
static void fails_naming(struct job *j, int code, const char *name)
{
	j->fails = code;
	CHECK_INT(play(j), code);
	for (int r = 0; r < experts_ranks(j->l); r++) {
		if (!strstr(j->err[r].msg, name))
			print_error("rank %d of %s: %s\n", r, j->l->name, j->err[r].msg);
		CHECK(strstr(j->err[r].msg, name) != NULL);
	}
}

/* Ranks that do not hold the expert get the error as well, before anything is filled. */
TEST(what_an_expert_lacks_is_an_error_on_every_rank)
{
	static const struct {
		const char *family, *name;
	} lost[] = {
		{ "model", "layers.1.mlp.experts.7.up" },
		{ "master_weights", "layers.2.mlp.experts.4.down" },
		{ "optimizer", "layers.1.mlp.experts.0.up/moment1_0" },
		{ "optimizer", "layers.1.mlp.experts.9.down/moment2_0" },
		{ "ema", "layers.1.mlp.experts.7.up" }, { "ema", "layers.2.mlp.experts.0.down" },
		{ "ema", "layers.1.mlp.router" },
	};

	for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++)
		for (int memory = 0; memory < 2; memory++) {
			struct simdisk *d = world();
			struct job s = saver(d, named("dp4ep4"));
			char name[100];

			lost_family = lost[i].family;
			lost_name = lost[i].name;
			s.whole = true;
			s.edit = lose;
			s.memory = memory;
			s.flags = memory ? SHEAF_SAVE_NO_DISK : 0;
			PLAYED(s);
			snprintf(name, sizeof(name), "%s/%s", lost_family, lost_name);
			for (int b = 0; b < expert_layouts_n; b += 3) {
				struct job l = loader(d, &expert_layouts[b]);

				l.memory = memory;
				fails_naming(&l, SHEAF_ELAYOUT, name);
			}
			simdisk_free(d);
		}
}

/* Averages that are made by the state are no exception: a step that has some of them has to have
 * all of them. */
TEST(an_expert_without_an_average_does_not_begin_anew)
{
	struct simdisk *d = world();
	struct job s = saver(d, named("dp4ep4")), t = saver(d, named("dp2ep2"));

	lost_family = "ema";
	lost_name = "layers.1.mlp.experts.7.up";
	s.whole = true;
	s.edit = lose;
	PLAYED(s);
	t.from = STEPS + 1;
	fails_naming(&t, SHEAF_ELAYOUT, "ema/layers.1.mlp.experts.7.up");
	simdisk_free(d);
}

/* Drops the piece that rank 2 holds. */
static void lose_a_piece(struct expert_hold *h, int rank)
{
	if (rank == 2)
		lose(h, rank);
}

TEST(a_piece_of_an_expert_that_nobody_holds_is_an_error_of_the_save)
{
	struct simdisk *d = world();
	struct job s = saver(d, named("tp4cut"));

	lost_family = "model";
	lost_name = "layers.1.mlp.experts.3.up";
	s.edit = lose_a_piece;
	fails_naming(&s, SHEAF_ELAYOUT,
	             "model/layers.1.mlp.experts.3.up: no rank has added a slice for [6:9, 0:12]");
	CHECK(!simdisk_exists(d, "run/checkpoint-1"));
	simdisk_free(d);
}

/* Rank 1 names its experts 5 to 9 by its local numbers, 0 to 4. */
static void number_by_rank(struct expert_hold *h, int rank)
{
	for (int i = 0; i < h->n && rank == 1; i++) {
		char *p = strstr(h->of[i].name, "layers.1.mlp.experts.");

		if (p)
			p[strlen("layers.1.mlp.experts.")] -= 5;
	}
}

TEST(experts_of_two_ranks_under_one_name_are_told_when_replicas_are_compared)
{
	struct simdisk *d = world();
	struct job s = saver(d, named("dp2ep2"));

	s.edit = number_by_rank;
	s.run_flags = SHEAF_RUN_REPLICAS;
	fails_naming(&s, SHEAF_EDIVERGED, "layers.1.mlp.experts.");
	simdisk_free(d);
}
