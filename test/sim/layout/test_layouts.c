/* SPDX-License-Identifier: Apache-2.0 */
/* Any layout saves, any layout loads: every ordered pair, bit for bit, through the simulator; and
 * the same bytes on disk whoever saved. */
#include "layouts.h"
#include "step.h"
#include "err.h"
#include "save.h"
#include "simdisk.h"
#include "simgroup.h"
#include <stdbool.h>
#include <stdlib.h>
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "state.h"
#include "step_open.h"
#include "load.h"

#define SEED UINT64_C(0x5eaf)
enum { SLICES = 128 };

struct job {
	const struct layout *l;
	struct simdisk *disk;
	const struct shf_sys *sys[8];
	struct shf_opts opts;
	int64_t step;
	bool load;
	char why[600];
};

static struct sheaf_state *state_of(const struct sheaf_slice *slices, int n)
{
	struct sheaf_state *state = shf_state_new();

	for (int i = 0; i < n; i++)
		(void)shf_state_add(state, &slices[i], NULL);
	return state;
}

static int save_one(struct job *j, struct sheaf_run *run, struct sheaf_state *state,
                    struct sheaf_error *err)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, run, j->step, state, NULL, err);

	if (rc == 0)
		rc = shf_save_commit(save, -1, err);
	shf_save_free(save);
	return rc;
}

static int load_one(struct job *j, struct sheaf_run *run, struct sheaf_state *state,
                    struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, run, j->step, err);

	if (rc == 0)
		rc = shf_step_load(step, state, SHEAF_LOAD_STRICT, &report, err);
	if (rc == 0 && report.unverified)
		rc = shf_fail(err, SHEAF_EBUG, "%llu tensors unverified",
		              (unsigned long long)report.unverified);
	shf_step_put(step);
	return rc;
}

static int rank_main(void *arg, int rank, struct sheaf_group *group)
{
	struct job *j = arg;
	struct sheaf_slice slices[SLICES];
	struct sheaf_error err = { 0 };
	struct sheaf_run *run = NULL;
	int n, rc;
	struct lay_memory *m = lay_hold(j->l, rank, slices, SLICES, &n, !j->load, SEED);
	struct sheaf_state *state = state_of(slices, n);

	rc = shf_run_open(&run, "run", group, &j->opts, j->sys[rank], &err);
	if (rc == 0)
		rc = j->load ? load_one(j, run, state, &err) : save_one(j, run, state, &err);
	if (rc < 0 && j->why[0] == '\0')
		snprintf(j->why, sizeof(j->why), "rank %d: %d %.500s", rank, rc, err.msg);
	if (rc == 0 && j->load && lay_wrong(m, err.msg, sizeof(err.msg))) {
		rc = 1;
		if (j->why[0] == '\0')
			snprintf(j->why, sizeof(j->why), "rank %d: %.500s", rank, err.msg);
	}
	shf_run_put(run);
	shf_state_put(state);
	lay_free(m);
	return rc;
}

struct bounds {                 /* of staging, 0: none; of a file */
	uint64_t staging, file;
};
#define FEW UINT64_C(700000)    /* files */
#define MANY 1                  /* a tensor a file: more than are written in one phase */

static bool play(struct simdisk *disk, const struct layout *l, int64_t step, bool load,
                 const int32_t *nodes, struct bounds bound, uint64_t seed, uint64_t *pairs)
{
	struct job j = { .l = l, .disk = disk, .step = step, .load = load,
		.opts = { .flags = SHEAF_RUN_CREATE, .timeout_ms = 60000,
		          .staging_bytes_max = bound.staging, .file_bytes_max = bound.file } };
	struct simgroup_opts o = { .seed = seed, .ranks = l->ranks, .nodes = nodes,
	                           .pair_bytes = pairs };
	static uint64_t pid = 100;
	int results[8], rc;

	for (int r = 0; r < l->ranks; r++)
		j.sys[r] = simdisk_process(disk, pid++, nodes ? nodes[r] : 0);
	rc = simgroup_run(&o, rank_main, &j, results);
	for (int r = 0; r < l->ranks; r++) {
		rc |= results[r] | (simdisk_open_n(j.sys[r]) != 0);
		if (simdisk_open_n(j.sys[r]) && !j.why[0])
			snprintf(j.why, sizeof(j.why), "rank %d left descriptors open", r);
		simdisk_kill(disk, j.sys[r]);
	}
	if (rc != 0)
		print_error("%s %s: %s (seed %llu)\n", l->name, load ? "loading" : "saving", j.why,
		            (unsigned long long)seed);
	return rc == 0;
}

static uint64_t hash_but_manifest(struct simdisk *disk, int64_t step)
{
	char path[80];
	void *bytes;
	size_t n;
	uint64_t h;

	snprintf(path, sizeof(path), "run/checkpoint-%lld/sheaf.json", (long long)step);
	bytes = simdisk_get(disk, path, &n);
	(void)simdisk_remove(disk, path);
	snprintf(path, sizeof(path), "run/checkpoint-%lld", (long long)step);
	h = simdisk_hash(disk, path);
	snprintf(path, sizeof(path), "run/checkpoint-%lld/sheaf.json", (long long)step);
	if (bytes)
		(void)simdisk_put(disk, path, bytes, n);
	free(bytes);
	return h;
}

static void all_pairs(const int32_t *nodes, uint64_t staging)
{
	struct bounds bound = { staging, FEW };
	int bad = 0;

	for (int a = 0; a < layouts_n; a++) {
		struct simdisk *disk = simdisk_new(SEED + (uint64_t)a, SIMDISK_STRICT);

		bad += !play(disk, &layouts[a], 7, false, nodes, bound, (uint64_t)a, NULL);
		for (int b = t_from(T_STRIDE); b < layouts_n && !bad; b += T_STRIDE)
			if (!play(disk, &layouts[b], 7, true, nodes, bound,
				  (uint64_t)(100 * a + b), NULL)) {
				print_error("saved by %s\n", layouts[a].name);
				bad++;
			}
		simdisk_free(disk);
	}
	CHECK_INT(bad, 0);
}

TEST(every_layout_loads_what_every_layout_saved)
{
	all_pairs(NULL, 0);
}

TEST(every_pair_over_three_nodes)
{
	static const int32_t nodes[8] = { 1, 1, 2, 2, 3, 3, 1, 2 };

	all_pairs(nodes, 0);
}

TEST(every_pair_where_each_rank_is_a_node_and_staging_is_small)
{
	static const int32_t nodes[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };

	all_pairs(nodes, 2 << 16);
}

/* Who wrote does not show in the files, so it is enough that each layout loads its own. */
TEST(every_layout_saves_in_two_phases)
{
	static const int32_t nodes[8] = { 1, 2, 1, 2, 3, 4, 3, 4 };
	struct bounds bound = { 2 << 16, MANY };

	for (int a = 0; a < layouts_n; a++) {
		struct simdisk *disk = simdisk_new(SEED, SIMDISK_STRICT);

		CHECK(play(disk, &layouts[a], 7, false, nodes, bound, (uint64_t)a, NULL));
		CHECK(play(disk, &layouts[a], 7, true, nodes, bound, (uint64_t)a, NULL));
		simdisk_free(disk);
	}
}

static void same_bytes(uint64_t file)
{
	static const int32_t nodes[8] = { 1, 1, 2, 2, 3, 3, 1, 2 };
	uint64_t want = 0;

	for (int a = 0; a < layouts_n; a++)
		for (int k = 0; k < 3; k++) {
			struct simdisk *disk = simdisk_new(SEED, SIMDISK_STRICT);
			struct bounds bound = { k == 2 ? 1 << 18 : 0, file };
			uint64_t got;

			CHECK(play(disk, &layouts[a], 7, false, k ? nodes : NULL, bound,
			           (uint64_t)a, NULL));
			got = hash_but_manifest(disk, 7);
			want = want ? want : got;
			if (got != want)
				print_error("%s differs\n", layouts[a].name);
			CHECK(got == want);
			simdisk_free(disk);
		}
}

TEST(the_same_state_gives_the_same_bytes_in_every_layout)
{
	same_bytes(FEW);
}

/* One rank never collects, the others do. */
TEST(the_same_bytes_in_one_phase_and_in_two)
{
	same_bytes(MANY);
}
