/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of ranks that do not exist, against numbers worked out by hand and against what ranks that
 * do exist plan together. */
#include "sheaf-plan.h"
#include "step.h"
#include "layouts.h"
#include "save.h"
#include "simdisk.h"
#include "simgroup.h"
#include <stdbool.h>
#include <stdlib.h>
#include "t.h"
#include "run_open.h"
#include "save_plan.h"
#include "state.h"
#include "work.h"
#include "match.h"
#include "plan_job.h"

#define MIB (UINT64_C(1) << 20)
#define PAGE UINT64_C(4096)
enum { RANKS_MAX = 8, SLICES = 128 };

struct seen {
	struct sheaf_plan_rank r[RANKS_MAX];
	int n;
};

static void see(void *arg, const struct sheaf_plan_rank *rank)
{
	struct seen *s = arg;

	if (s->n < RANKS_MAX)
		s->r[s->n] = *rank;
	s->n++;
}

static int preview(struct sheaf_state **states, const int32_t *node, int ranks,
                   const struct shf_opts *opts, struct seen *seen, struct sheaf_error *err)
{
	*seen = (struct seen){ .n = 0 };
	return shf_plan_job(states, node, ranks, opts, see, seen, err);
}

static void release(struct sheaf_state **states, int ranks)
{
	for (int r = 0; r < ranks; r++)
		shf_state_put(states[r]);
}

/* A slice of a float matrix without memory; cut: along dim into n, this is piece i. */
static struct sheaf_slice matrix(const char *name, int64_t rows, int64_t cols)
{
	return (struct sheaf_slice){ .size = sizeof(struct sheaf_slice), .name = name,
		.dtype = SHEAF_F32, .ndim = 2, .shape = { rows, cols }, .count = { rows, cols } };
}

static struct sheaf_state *state_with(const struct sheaf_slice *slice)
{
	struct sheaf_state *st = shf_state_new();

	(void)shf_state_add(st, slice, NULL);
	return st;
}

static void cut_in_two(struct sheaf_state **states, int dim)
{
	for (int r = 0; r < 2; r++) {
		struct sheaf_slice s = matrix("w", 1024, 1024);

		s.count[dim] = 512;
		s.start[dim] = 512 * r;
		states[r] = state_with(&s);
	}
}

static void check_rank(const struct sheaf_plan_rank *got, const struct sheaf_plan_rank *want)
{
	CHECK_INT(got->rank, want->rank);
	CHECK_INT(got->node, want->node);
	CHECK_INT(got->files, want->files);
	CHECK_INT(got->holds, want->holds);
	CHECK_INT(got->writes, want->writes);
	CHECK_INT(got->reads, want->reads);
	CHECK_INT(got->sends, want->sends);
	CHECK_INT(got->receives, want->receives);
	CHECK_INT(got->shares, want->shares);
	CHECK_INT(got->staging, want->staging);
	CHECK_INT(got->collects, want->collects);
	CHECK_INT(got->checkpoint_files, want->checkpoint_files ? want->checkpoint_files : 1);
}

TEST(rows_are_written_by_who_holds_them)
{
	/* The payload begins on page 1, so the edge lies in block 2: one node asks for all of it,
	 * and there it is rank 0's turn. Rank 1 reads the page that is left over at the end. */
	static const struct sheaf_plan_rank want[2] = {
		{ .rank = 0, .files = 1, .holds = 2 * MIB, .writes = 2 * MIB + PAGE,
		  .reads = 3 * MIB, .staging = 2 * MIB + PAGE },
		{ .rank = 1, .files = 1, .holds = 2 * MIB, .writes = 2 * MIB, .reads = MIB + PAGE,
		  .staging = 2 * MIB },
	};
	struct sheaf_state *states[2];
	struct sheaf_error err = { 0 };
	struct seen seen;

	cut_in_two(states, 0);
	CHECK_RC(preview(states, NULL, 2, NULL, &seen, &err), 0, &err);
	CHECK_INT(seen.n, 2);
	for (int r = 0; r < 2; r++) {
		CHECK_INT(seen.r[r].size, sizeof(seen.r[r]));
		check_rank(&seen.r[r], &want[r]);
	}
	release(states, 2);
}

TEST(columns_of_one_node_go_through_its_memory)
{
	static const struct sheaf_plan_rank want[2] = {
		{ .rank = 0, .node = 3, .files = 1, .holds = 2 * MIB, .writes = 4 * MIB + PAGE,
		  .reads = 4 * MIB + PAGE, .staging = 4 * MIB + PAGE },
		{ .rank = 1, .node = 3, .holds = 2 * MIB, .shares = 2 * MIB },
	};
	static const int32_t node[2] = { 3, 3 };
	struct sheaf_state *states[2];
	struct sheaf_error err = { 0 };
	struct seen seen;

	cut_in_two(states, 1);
	CHECK_RC(preview(states, node, 2, NULL, &seen, &err), 0, &err);
	for (int r = 0; r < 2; r++)
		check_rank(&seen.r[r], &want[r]);
	release(states, 2);
}

TEST(columns_of_two_nodes_travel)
{
	static const struct sheaf_plan_rank want[2] = {
		{ .rank = 0, .node = 0, .files = 1, .holds = 2 * MIB, .writes = 4 * MIB + PAGE,
		  .reads = 4 * MIB + PAGE, .receives = 2 * MIB, .staging = 6 * MIB + PAGE },
		{ .rank = 1, .node = 1, .holds = 2 * MIB, .sends = 2 * MIB, .staging = 2 * MIB },
	};
	static const int32_t node[2] = { 0, 1 };
	struct sheaf_state *states[2];
	struct sheaf_error err = { 0 };
	struct seen seen;

	cut_in_two(states, 1);
	CHECK_RC(preview(states, node, 2, NULL, &seen, &err), 0, &err);
	for (int r = 0; r < 2; r++)
		check_rank(&seen.r[r], &want[r]);
	release(states, 2);
}

TEST(replicas_share_the_work_by_stripes)
{
	/* 40 MiB and a header: stripes of 16, 16 and 8 MiB and a page, in turn. */
	static const struct sheaf_plan_rank want[2] = {
		{ .rank = 0, .files = 1, .holds = 40 * MIB, .writes = 24 * MIB + PAGE,
		  .reads = 24 * MIB + PAGE, .staging = 24 * MIB + PAGE },
		{ .rank = 1, .files = 1, .holds = 40 * MIB, .writes = 16 * MIB, .reads = 16 * MIB,
		  .staging = 16 * MIB },
	};
	struct sheaf_slice s = matrix("w", 10 * 1024, 1024);
	struct sheaf_state *states[2] = { state_with(&s), state_with(&s) };
	struct sheaf_error err = { 0 };
	struct seen seen;

	CHECK_RC(preview(states, NULL, 2, NULL, &seen, &err), 0, &err);
	for (int r = 0; r < 2; r++)
		check_rank(&seen.r[r], &want[r]);
	release(states, 2);
}

TEST(stages_write_their_own_tensors_into_one_file)
{
	static const struct sheaf_plan_rank want[2] = {
		{ .rank = 0, .node = 0, .files = 1, .holds = 3 * MIB, .writes = 3 * MIB + PAGE,
		  .reads = 3 * MIB, .staging = 3 * MIB + PAGE },
		{ .rank = 1, .node = 1, .files = 1, .holds = 5 * MIB, .writes = 5 * MIB,
		  .reads = 5 * MIB + PAGE, .staging = 5 * MIB },
	};
	static const int32_t node[2] = { 0, 1 };
	struct sheaf_slice a = matrix("a", 768, 1024), b = matrix("b", 1280, 1024);
	struct sheaf_state *states[2] = { state_with(&a), state_with(&b) };
	struct sheaf_error err = { 0 };
	struct seen seen;
	uint64_t met = 0;

	CHECK_RC(preview(states, node, 2, NULL, &seen, &err), 0, &err);
	/* The block in which a ends and b begins is read once and the rest of it travels, when
	 * loading: that is not counted here. */
	for (int r = 0; r < 2; r++) {
		check_rank(&seen.r[r], &want[r]);
		met += seen.r[r].reads;
	}
	CHECK_INT(met, 8 * MIB + PAGE);
	release(states, 2);
}

TEST(files_of_their_own_are_counted)
{
	struct shf_opts opts = { .file_bytes_max = 3 * MIB };
	struct sheaf_slice a = matrix("a", 768, 1024), b = matrix("b", 768, 1024);
	struct sheaf_state *states[1] = { state_with(&a) };
	struct sheaf_error err = { 0 };
	struct seen seen;

	CHECK_INT(shf_state_add(states[0], &b, NULL), 1);
	CHECK_RC(preview(states, NULL, 1, &opts, &seen, &err), 0, &err);
	CHECK_INT(seen.r[0].files, 2);
	CHECK_INT(seen.r[0].writes, 6 * MIB + 2 * PAGE);
	release(states, 1);
}

TEST(what_nobody_holds_is_named)
{
	struct sheaf_state *states[2];
	struct sheaf_error err = { 0 };
	struct seen seen;

	for (int r = 0; r < 2; r++) {
		struct sheaf_slice s = matrix("w", 1024, 1024);

		s.count[0] = 500;
		s.start[0] = 524 * r;
		states[r] = state_with(&s);
	}
	CHECK_RC(preview(states, NULL, 2, NULL, &seen, &err), SHEAF_ELAYOUT, &err);
	CHECK(strstr(err.msg, "model/w: no rank has added a slice for [500:524, 0:1024]") != NULL);
	CHECK_INT(seen.n, 0);
	release(states, 2);
}

TEST(ranks_that_disagree_are_named)
{
	struct sheaf_slice a = matrix("w", 8, 8), b = matrix("w", 8, 9);
	struct sheaf_state *states[3] = { state_with(&a), state_with(&a), state_with(&b) };
	struct sheaf_error err = { 0 };
	struct seen seen;

	CHECK_RC(preview(states, NULL, 3, NULL, &seen, &err), SHEAF_ELAYOUT, &err);
	CHECK(strstr(err.msg, "rank 0 has F32 [8, 8], rank 2 has F32 [8, 9]") != NULL);
	release(states, 3);
}

TEST(a_tie_is_of_one_mind_and_stored_once)
{
	struct sheaf_slice a = matrix("w", 1024, 1024), b = a, c = a;
	struct sheaf_state *states[2] = { state_with(&a), NULL };
	struct sheaf_error err = { 0 };
	struct seen seen;

	b.name = "head";
	b.tied_to = "w";
	states[1] = state_with(&b);
	CHECK_RC(preview(states, NULL, 2, NULL, &seen, &err), 0, &err);
	CHECK_INT(seen.r[0].writes + seen.r[1].writes, 4 * MIB + PAGE);
	c.name = "head";
	CHECK_INT(shf_state_add(states[0], &c, NULL), 1);
	CHECK_RC(preview(states, NULL, 2, NULL, &seen, &err), SHEAF_ELAYOUT, &err);
	CHECK(strstr(err.msg, "model/head") != NULL);
	release(states, 2);
}

TEST(a_state_that_failed_is_told_with_its_rank)
{
	struct sheaf_slice a = matrix("w", 8, 8), b = a;
	struct sheaf_state *states[2] = { state_with(&a), NULL };
	struct sheaf_error err = { 0 };
	struct seen seen;

	b.dtype = 0;
	states[1] = state_with(&b);
	CHECK_RC(preview(states, NULL, 2, NULL, &seen, &err), SHEAF_EINVAL, &err);
	CHECK_INT(err.rank, 1);
	release(states, 2);
}

TEST(nothing_held_is_a_plan_too)
{
	struct sheaf_state *states[2] = { shf_state_new(), shf_state_new() };
	struct sheaf_error err = { 0 };
	struct seen seen;

	CHECK_RC(preview(states, NULL, 2, NULL, &seen, &err), 0, &err);
	CHECK_INT(seen.n, 2);
	CHECK_INT(seen.r[1].writes + seen.r[1].staging + seen.r[1].holds, 0);
	release(states, 2);
}

/* More than the table of descriptions has room for at first, and names that meet in it. */
TEST(many_tensors_are_each_planned_once)
{
	enum { TENSORS = 300 };
	struct sheaf_state *states[2] = { shf_state_new(), shf_state_new() };
	struct sheaf_error err = { 0 };
	struct seen seen;
	char name[8];

	for (int t = 0; t < TENSORS; t++)
		for (int r = 0; r < 2; r++) {
			snprintf(name, sizeof(name), "w%d", t);
			struct sheaf_slice s = matrix(name, 64, 64);

			s.start[0] = 32 * r;
			s.count[0] = 32;
			CHECK_INT(shf_state_add(states[r], &s, NULL), t);
		}
	CHECK_RC(preview(states, NULL, 2, NULL, &seen, &err), 0, &err);
	for (int r = 0; r < 2; r++)
		CHECK_INT(seen.r[r].holds, TENSORS * 32 * 64 * sizeof(float));
	CHECK(seen.r[0].writes + seen.r[1].writes > TENSORS * 64 * 64 * sizeof(float));
	CHECK(seen.r[0].writes + seen.r[1].writes <
	      TENSORS * (64 * 64 * sizeof(float) + 200));
	release(states, 2);
}

TEST(many_ranks_take_time_by_what_they_hold)
{
	/* 4,096 ranks of a sliver each: a plan that looked at all pairs would not end here. */
	enum { RANKS = 4096 };
	struct sheaf_state **states = calloc(RANKS, sizeof(*states));
	struct sheaf_error err = { 0 };
	struct seen seen;

	for (int r = 0; r < RANKS; r++) {
		struct sheaf_slice s = matrix("w", RANKS, 2048);

		s.start[0] = r;
		s.count[0] = 1;
		states[r] = state_with(&s);
	}
	CHECK_RC(preview(states, NULL, RANKS, NULL, &seen, &err), 0, &err);
	CHECK_INT(seen.n, RANKS);
	release(states, RANKS);
	free(states);
}

/* Rows of many tensors over nodes that hold little of each: the stripes of a file go to one node,
 * and every byte that is not its own travels, once. */
TEST(short_runs_in_many_files_are_written_in_two_phases)
{
	enum { RANKS = 8, TENSORS = 17 };
	struct sheaf_state *states[RANKS];
	struct shf_opts opts = { .file_bytes_max = 1 };
	int32_t node[RANKS], files = 0;
	uint64_t sends = 0, receives = 0, collects = 0, written = 0;
	struct sheaf_error err = { 0 };
	struct seen seen;
	char name[8];

	for (int r = 0; r < RANKS; r++) {
		states[r] = shf_state_new();
		node[r] = r / 2;
		for (int t = 0; t < TENSORS; t++) {
			snprintf(name, sizeof(name), "w%02d", t);
			struct sheaf_slice s = matrix(name, 1024, 1024);

			s.count[0] = 128;
			s.start[0] = 128 * r;
			(void)shf_state_add(states[r], &s, NULL);
		}
	}
	CHECK_RC(preview(states, node, RANKS, &opts, &seen, &err), 0, &err);
	for (int r = 0; r < RANKS; r++) {
		const struct sheaf_plan_rank *p = &seen.r[r];

		/* 17 files of one stripe each, to 8 homes in turn. */
		CHECK_INT(p->files, r == 0 ? 3 : 2);
		CHECK_INT(p->collects, p->writes);
		CHECK_INT(p->holds, TENSORS * MIB / 2);
		files += p->files;
		sends += p->sends;
		receives += p->receives;
		collects += p->collects;
		written += p->writes;
	}
	CHECK_INT(files, TENSORS);
	CHECK_INT(written, TENSORS * (4 * MIB + PAGE));
	CHECK_INT(sends, TENSORS * 3 * MIB); /* a node has a quarter of what it writes */
	CHECK_INT(receives, sends);
	CHECK_INT(collects, written);
	opts.file_bytes_max = 8 * MIB; /* 9 files are few */
	CHECK_RC(preview(states, node, RANKS, &opts, &seen, &err), 0, &err);
	for (int r = 0; r < RANKS; r++) {
		CHECK_INT(seen.r[r].collects, 0);
		CHECK(seen.r[r].files == 9 && seen.r[r].sends < PAGE * TENSORS);
	}
	release(states, RANKS);
}

/* Files of 17 MiB and a page: what is left of one behind its stripe is one rank's, and would have
 * that rank open every file. */
TEST(the_rest_of_a_file_follows_the_stripe_before_it)
{
	enum { RANKS = 8, TENSORS = 17 };
	static const int32_t node[RANKS] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	struct sheaf_state *states[RANKS];
	struct shf_opts opts = { .file_bytes_max = 1 };
	struct sheaf_error err = { 0 };
	struct seen seen;
	char name[8];

	for (int r = 0; r < RANKS; r++) {
		states[r] = shf_state_new();
		for (int t = 0; t < TENSORS; t++) {
			snprintf(name, sizeof(name), "w%02d", t);
			struct sheaf_slice s = matrix(name, 17 * 256, 1024);

			s.count[0] = 17 * 32;
			s.start[0] = 17 * 32 * r;
			(void)shf_state_add(states[r], &s, NULL);
		}
	}
	CHECK_RC(preview(states, node, RANKS, &opts, &seen, &err), 0, &err);
	for (int r = 0; r < RANKS; r++) {
		CHECK_INT(seen.r[r].files, r == 0 ? 3 : 2);
		CHECK_INT(seen.r[r].collects, seen.r[r].writes);
		CHECK_INT(seen.r[r].writes, (uint64_t)seen.r[r].files * (17 * MIB + PAGE));
	}
	release(states, RANKS);
}

/* ---- against ranks that exist ---- */

struct job {
	const struct layout *l;
	const struct shf_sys *sys[RANKS_MAX];
	struct shf_opts opts;
	struct sheaf_plan_rank real[RANKS_MAX];
	char why[500];
};

/* The largest round of what comes in and goes out, as save_rounds.c packs it. */
static uint64_t most_net(const struct sheaf_run *run, const struct shf_plan *plan)
{
	const struct shf_work *w = &plan->work;
	const int32_t *nodes = run->place.nodes;
	uint64_t most = 0;

	for (uint32_t round = 0; round < w->rounds; round++) {
		uint64_t sum = 0;

		for (size_t i = 0; i < w->serves_n; i++)
			if (w->serves[i].round == round &&
			    nodes[w->serves[i].rank] != run->place.node)
				sum += shf_box_units(&w->serves[i].box) *
				       plan->layout.tensors[w->serves[i].tensor].unit;
		for (size_t i = 0; i < w->moves_n; i++)
			if (w->segs[w->moves[i].seg].round == round &&
			    nodes[w->moves[i].rank] != run->place.node)
				sum += shf_box_units(&w->moves[i].box) *
				       plan->layout.tensors[w->moves[i].tensor].unit;
		most = sum > most ? sum : most;
	}
	return most;
}

static void fold(const struct sheaf_run *run, const struct shf_plan *plan,
                 struct sheaf_plan_rank *out)
{
	const struct shf_work *w = &plan->work;
	const int32_t *nodes = run->place.nodes;

	out->holds = plan->holds.bytes;
	out->writes = w->bytes;
	out->staging = w->ctl_at + most_net(run, plan);
	for (size_t i = 0; i < w->segs_n; i++) {
		bool first = true;

		for (size_t k = 0; k < i; k++)
			first &= w->segs[k].file != w->segs[i].file;
		out->files += first;
		out->collects += w->segs[i].collected ? w->segs[i].hi - w->segs[i].lo : 0;
	}
	for (size_t i = 0; i < w->serves_n; i++) {
		uint64_t bytes = shf_box_units(&w->serves[i].box) *
		                 plan->layout.tensors[w->serves[i].tensor].unit;

		if (nodes[w->serves[i].rank] != run->place.node)
			out->sends += bytes;
		else if (w->serves[i].rank != (uint32_t)run->team.rank)
			out->shares += bytes;
	}
	for (size_t i = 0; i < w->moves_n; i++)
		if (nodes[w->moves[i].rank] != run->place.node)
			out->receives += shf_box_units(&w->moves[i].box) *
			                 plan->layout.tensors[w->moves[i].tensor].unit;
}

static struct sheaf_state *hold(const struct layout *l, int rank, struct lay_memory **m)
{
	struct sheaf_slice slices[SLICES];
	struct sheaf_state *st = shf_state_new();
	int n;

	*m = lay_hold(l, rank, slices, SLICES, &n, false, 1);
	for (int i = 0; i < n; i++)
		(void)shf_state_add(st, &slices[i], NULL);
	return st;
}

static int rank_main(void *arg, int rank, struct sheaf_group *group)
{
	struct job *j = arg;
	struct lay_memory *m;
	struct sheaf_state *st = hold(j->l, rank, &m);
	struct sheaf_run *run = NULL;
	struct shf_plan *plan = NULL;
	struct shf_work back = { 0 };
	struct sheaf_error err = { 0 };
	int rc = shf_run_open(&run, "run", group, &j->opts, j->sys[rank], &err);

	if (rc == 0)
		rc = shf_plan_get(run, st, &plan, &err);
	if (rc == 0) {
		struct shf_match match = { .layout = &plan->layout, .holds = &plan->holds,
			.nodes = run->place.nodes, .way = SHF_LOAD,
			.window = SHF_BLOCK, .net_window = SHF_BLOCK };

		fold(run, plan, &j->real[rank]);
		rc = shf_match(&run->team, &match, 0, &back, &err);
		j->real[rank].reads = back.bytes;
		j->real[rank].checkpoint_files = plan->layout.files_n;
		shf_work_release(&back);
	}
	if (rc < 0)
		snprintf(j->why, sizeof(j->why), "rank %d: %.400s", rank, err.msg);
	shf_plan_put(plan);
	shf_run_put(run);
	shf_state_put(st);
	lay_free(m);
	return rc;
}

static uint64_t compare(const struct layout *l, const int32_t *nodes, uint64_t staging,
                        uint64_t file, uint64_t seed)
{
	struct job j = { .l = l, .opts = { .flags = SHEAF_RUN_CREATE,
		.timeout_ms = 60000, .staging_bytes_max = staging, .file_bytes_max = file } };
	struct simdisk *disk = simdisk_new(seed, SIMDISK_STRICT);
	uint64_t collects = 0;
	struct simgroup_opts o = { .seed = seed, .ranks = l->ranks, .nodes = nodes };
	struct sheaf_state *states[RANKS_MAX];
	struct lay_memory *m[RANKS_MAX];
	struct sheaf_error err = { 0 };
	int results[RANKS_MAX];
	struct seen seen;

	for (int r = 0; r < l->ranks; r++) {
		j.sys[r] = simdisk_process(disk, 100 + (uint64_t)r, nodes ? nodes[r] : 0);
		states[r] = hold(l, r, &m[r]);
	}
	if (simgroup_run(&o, rank_main, &j, results) || results[0])
		print_error("%s: %s\n", l->name, j.why);
	CHECK_INT(results[0], 0);
	CHECK_RC(preview(states, nodes, l->ranks, &j.opts, &seen, &err), 0, &err);
	for (int r = 0; r < l->ranks; r++) {
		struct sheaf_plan_rank want = j.real[r];

		want.rank = r;
		want.node = nodes ? nodes[r] : 0;
		check_rank(&seen.r[r], &want);
		collects += want.collects;
		lay_free(m[r]);
	}
	release(states, l->ranks);
	simdisk_free(disk);
	return collects;
}

TEST(previews_say_what_real_ranks_plan)
{
	static const int32_t nodes[RANKS_MAX] = { 1, 1, 2, 2, 3, 3, 1, 2 };
	uint64_t collects = 0;

	for (int i = 0; i < layouts_n; i++) {
		CHECK_INT(compare(&layouts[i], NULL, 0, 700000, 10 + (uint64_t)i), 0);
		CHECK_INT(compare(&layouts[i], nodes, 0, 700000, 40 + (uint64_t)i), 0);
		CHECK_INT(compare(&layouts[i], nodes, 1 << 17, 700000, 70 + (uint64_t)i), 0);
		CHECK_INT(compare(&layouts[i], NULL, 0, 1, 100 + (uint64_t)i), 0);
		collects += compare(&layouts[i], nodes, 1 << 17, 1, 130 + (uint64_t)i);
	}
	CHECK(collects > MIB);
}

/* ---- what is not staged ---- */

enum { MOMENTS = 8 };

/* Weights of 2 MiB, masters of 4, moments of 1 each, all in files of their own. */
static struct sheaf_state *adam(uint32_t weights, uint32_t moments)
{
	struct sheaf_slice w = matrix("w", 1024, 1024), m = matrix("w", 1024, 1024);
	struct sheaf_state *st;
	char name[24];

	w.dtype = SHEAF_BF16;
	w.flags = weights;
	st = state_with(&w);
	m.family = "master_weights";
	(void)shf_state_add(st, &m, NULL);
	for (int i = 0; i < MOMENTS; i++) {
		struct sheaf_slice s = matrix(name, 256, 1024);

		snprintf(name, sizeof(name), "w%d/moment1_0", i);
		s.family = "optimizer";
		s.flags = moments;
		(void)shf_state_add(st, &s, NULL);
	}
	return st;
}

/* In each row of the file are bytes of both ranks: all of it is staged, in the whole window. */
TEST(where_nothing_can_stay_in_place_slots_take_no_room)
{
	struct shf_opts opts = { .staging_bytes_max = 8 * MIB };

	for (uint64_t flags = 0; flags <= SHEAF_SLICE_IN_PLACE; flags += SHEAF_SLICE_IN_PLACE) {
		struct sheaf_state *held[2];
		struct sheaf_error err = { 0 };
		struct seen seen;

		for (int r = 0; r < 2; r++) {
			struct sheaf_slice s = matrix("w", 768, 1024);

			s.flags = flags;
			s.start[1] = 512 * r;
			s.count[1] = 512;
			held[r] = state_with(&s);
		}
		CHECK_RC(preview(held, NULL, 2, &opts, &seen, &err), 0, &err);
		CHECK_INT(seen.r[0].staging + seen.r[1].staging, 3 * MIB + PAGE);
		release(held, 2);
	}
}

TEST(what_is_not_staged_takes_slots)
{
	static const struct {
		uint32_t weights, moments;
		uint64_t image, slots;
	} t[] = {
		{ 0, 0, 14 * MIB, 0 },
		{ 0, SHEAF_SLICE_IN_PLACE, 6 * MIB, 3 * MIB },
		{ SHEAF_SLICE_IN_PLACE, SHEAF_SLICE_IN_PLACE, 4 * MIB, 6 * MIB },
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct shf_opts opts = { .file_bytes_max = MIB };
		struct sheaf_state *held = adam(t[i].weights, t[i].moments);
		struct sheaf_error err = { 0 };
		struct seen seen;

		CHECK_RC(preview(&held, NULL, 1, &opts, &seen, &err), 0, &err);
		CHECK_INT(seen.r[0].staging, t[i].image + (2 + MOMENTS) * PAGE + t[i].slots);
		CHECK_INT(seen.r[0].writes, 14 * MIB + (2 + MOMENTS) * PAGE);
		CHECK_INT(seen.r[0].files, 2 + MOMENTS);
		release(&held, 1);
	}
}
