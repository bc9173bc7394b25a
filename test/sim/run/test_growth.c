/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that would run out for a node as a whole: ranks that allocate at the same moment get
 * ENOMEM, and the kernel kills none. */
#include <errno.h>
#include "step.h"
#include "memory_growth.h"
#include "restarts.h"
#include "run.h"
#include "t.h"
#include "run_open.h"
#include "image.h"
#include "run_ops.h"

#define MIB (UINT64_C(1) << 20)

static struct shf_growth taking(int node, uint64_t bytes, uint64_t of, uint64_t left)
{
	return (struct shf_growth){ .node = node, .bytes = bytes, .rooms_n = 1,
		.rooms = { { of, left } } };
}

static int check(const struct shf_growth *all, int ranks, int node)
{
	struct sheaf_error err = { 0 };
	int rc = shf_growth_check(all, sizeof(*all), ranks, node, &err);

	CHECK(rc == 0 || strstr(err.msg, "more memory for staging buffers"));
	return rc;
}

TEST(what_ranks_of_a_node_take_is_added_up_and_other_nodes_are_not)
{
	struct shf_growth all[3] = { taking(0, 60 * MIB, 7, 100 * MIB),
		taking(1, 60 * MIB, 7, 100 * MIB), taking(0, 60 * MIB, 7, 110 * MIB) };

	CHECK_INT(check(all, 3, 0), SHEAF_ENOMEM);
	CHECK_INT(check(all, 3, 1), 0);
	all[2].bytes = 40 * MIB;
	CHECK_INT(check(all, 3, 0), 0);
	all[2].bytes++;
	CHECK_INT(check(all, 3, 0), SHEAF_ENOMEM);
	all[2].freed = 1;
	CHECK_INT(check(all, 3, 0), 0);
	all[2].bytes = UINT64_MAX - MIB;
	CHECK_INT(check(all, 3, 0), SHEAF_ENOMEM);
}

/* Ranks in containers of their own: each has its bound, and all are under the machine's. */
TEST(only_ranks_under_a_bound_count_against_it)
{
	struct shf_growth all[2] = { taking(0, 60 * MIB, 11, 61 * MIB),
		taking(0, 60 * MIB, 12, 61 * MIB) };

	CHECK_INT(check(all, 2, 0), 0);
	for (int r = 0; r < 2; r++)
		all[r].rooms[all[r].rooms_n++] = (struct shf_memory_limit){ 1, 120 * MIB };
	CHECK_INT(check(all, 2, 0), 0);
	all[1].rooms[1].left--;
	CHECK_INT(check(all, 2, 0), SHEAF_ENOMEM);
	all[0].rooms[0].left = all[1].rooms[1].left = 0;
	all[0].bytes = all[1].bytes = 0;
	CHECK_INT(check(all, 2, 0), 0);
}

TEST(the_machine_says_what_is_left)
{
	const struct shf_sys *sys = shf_sys_real();
	struct shf_memory_limit rooms[SHF_MEMORY_LIMITS];
	int n = shf_sys_memory_limits(sys, rooms);

	CHECK(n >= 1 && n <= SHF_MEMORY_LIMITS);
	for (int i = 0; i < n; i++)
		for (int k = 0; k < i; k++)
			CHECK(rooms[i].of != rooms[k].of);
}

/* Bytes of one rank's image. */
static uint64_t image_bytes(int ranks)
{
	return (uint64_t)(RE_TENSORS * (RE_ROWS + ranks - 1) / ranks * re_cols) * sizeof(float);
}

static int played(struct simdisk *d, int ranks, struct re_plan plan, char why[600])
{
	struct re_job j = re_on(d, ranks, plan);
	int rc = re_play(&j, 1);

	memcpy(why, j.why, 600);
	CHECK_INT(j.killed, 0);
	return rc;
}

TEST(ranks_that_exceed_their_node_together_are_refused_and_none_is_killed)
{
	for (int agent = 0; agent < 2; agent++) {
		struct simdisk *d = re_world(1);
		struct re_plan plan = { .last = 1, .disk_every = 1, .no_agent = !agent,
			.images = 2 };
		char why[600];

		re_cols = 20000;
		simdisk_set_memory(d, 0, image_bytes(2) * 3 / 2);
		CHECK_INT(played(d, 2, plan, why), SHEAF_ENOMEM);
		CHECK(strstr(why, "the ranks of a node need") != NULL);
		CHECK(!simdisk_exists(d, "run/checkpoint-1"));
		/* Each on a node of its own has enough. */
		simdisk_set_memory(d, 1, image_bytes(2) * 3 / 2);
		plan.nodes = 2;
		CHECK_INT(played(d, 2, plan, why), 0);
		simdisk_set_memory(d, 0, image_bytes(2) * 5);
		plan.last = 2;
		plan.nodes = 1;
		CHECK_INT(played(d, 2, plan, why), 0);
		re_cols = 700;
		simdisk_free(d);
	}
}

/* A job of two ranks whose images grow from 4 MiB to 6: the node has room for what they grow by. */
struct growing {
	struct simdisk *disk;
	const struct shf_sys *sys[2];
	bool agent;
	uint64_t lacks;                 /* so much less */
	uint64_t used;                  /* by both when their images are small */
};

static int grows_by_half(void *arg, int rank, struct sheaf_group *group)
{
	struct growing *g = arg;
	const struct shf_sys *sys = g->sys[rank];
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .images_max = 2,
		.agent = g->agent ? "auto" : NULL, .io_threads = 1 };
	struct shf_memory_limit rooms[SHF_MEMORY_LIMITS];
	struct sheaf_error err = { 0 };
	struct sheaf_run *run = NULL;
	int rc = shf_run_open(&run, "run", group, &opts, sys, &err);

	if (rc == 0)
		rc = shf_image_reserve(run, 0, 0, 4 * MIB, &err);
	simdisk_set_memory(g->disk, 0, 1024 * MIB);
	if (rc == 0 && shf_sys_memory_limits(sys, rooms) == 1) {
		g->used = 1024 * MIB - rooms[0].left;
		simdisk_set_memory(g->disk, 0, g->used + 2 * 2 * MIB - g->lacks);
		rc = shf_image_reserve(run, 0, 0, 6 * MIB, &err);
	}
	shf_run_close(run);
	return rc;
}

TEST(images_that_grow_need_only_what_they_grow_by_and_none_is_killed)
{
	for (int i = 0; i < 80; i++) {
		struct growing g = { .disk = re_world(4), .agent = i & 1, .lacks = i >> 1 & 1 };
		struct simgroup_opts opts = { .seed = (uint64_t)i, .ranks = 2 };
		int rc[2];

		for (int r = 0; r < 2; r++)
			g.sys[r] = simdisk_process(g.disk, 500 + (uint64_t)r, 0);
		CHECK_INT(simgroup_run(&opts, grows_by_half, &g, rc), 0);
		CHECK(g.used >= 2 * 4 * MIB);
		for (int r = 0; r < 2; r++) {
			CHECK_INT(rc[r], g.lacks ? SHEAF_ENOMEM : 0);
			CHECK(!simdisk_is_dead(g.sys[r]));
		}
		simdisk_free(g.disk);
	}
}

/* Images fit in memory, but copies of another node's images do not: the job goes on without
 * copies. */
TEST(copies_that_exceed_their_node_together_are_not_made_and_none_is_killed)
{
	size_t kept[2];

	re_cols = 40000;
	for (int enough = 0; enough < 2; enough++) {
		struct simdisk *d = re_world(2);
		char why[600];

		for (int node = 0; node < 2; node++)
			simdisk_set_memory(d, node, image_bytes(4) * (enough ? 8 : 4) - MIB);
		CHECK_INT(played(d, 4, (struct re_plan){ .last = 1, .nodes = 2, .images = 2,
		                                         .copies = 2 }, why), 0);
		CHECK_STR(why, "");
		kept[enough] = simdisk_kept(d, 0);
		simdisk_free(d);
	}
	re_cols = 700;
	CHECK(kept[0] < kept[1]);
}

/* Rank 1 connects to the leader of its node when the run is opened; then, in each try, both ranks
 * connect to each other's image. The third try is the last. */
TEST(an_image_whose_socket_strangers_fill_is_offered_under_another_name)
{
	for (int refusals = 1; refusals <= 5; refusals++) {
		struct simdisk *d = re_world(3);
		struct re_plan plan = { .last = 1, .disk_every = 1, .no_agent = true };
		char why[600];

		for (int i = 0; i < refusals; i++)
			simdisk_fault(d, &(struct simdisk_fault){ .nth = 2 + i,
				.error = ECONNREFUSED, .kind = SIMDISK_SHM_CONNECT });
		CHECK_INT(played(d, 2, plan, why), refusals < 5 ? 0 : SHEAF_EIO);
		CHECK(refusals < 5 || strstr(why, "other users' processes keep it busy"));
		simdisk_faults_clear(d);
		CHECK_INT(played(d, 2, plan, why), 0);
		simdisk_free(d);
	}
}
