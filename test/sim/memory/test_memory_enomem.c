/* SPDX-License-Identifier: Apache-2.0 */
/* One allocation of one rank fails while steps are saved to memory, while a job resumes from
 * memory, and while agents flush what a dead job left: what was acknowledged is found again. --long
 * tries seven times as many. */
#include <string.h>
#include "step.h"
#include "memory_steps.h"
#include "restarts.h"
#include "starve.h"
#define main t_main
#include "flush.h"
#include "t.h"
#undef main

static const struct scene {
	const char *name;
	int ranks, nodes, copies;       /* copies 2: a node is lost before the next job */
	uint64_t flags;
	bool behind;
	int stride;
} scenes[] = {
	{ "a node", 2, 1, 0, 0, false, 1 },
	{ "a node, lazy", 2, 1, 0, SHEAF_SAVE_LAZY, false, 3 },
	{ "two nodes", 3, 2, 0, 0, false, 3 },
	{ "copies", 3, 2, 2, 0, false, 5 },
	{ "copies behind", 3, 2, 2, SHEAF_SAVE_LAZY, true, 5 },
};
#define SCENES (sizeof(scenes) / sizeof(scenes[0]))

static int stride;
static int hungry;              /* the rank */
static long nth;                /* of its allocations */

static void hunger(int rank)
{
	starve_left = rank == hungry ? nth : 0;
}

static struct re_job job(struct simdisk *d, const struct scene *s, int last)
{
	return re_on(d, s->ranks, (struct re_plan){ .last = last, .disk_every = 3, .images = 3,
		.flags = s->flags, .nodes = s->nodes, .copies = s->copies, .behind = s->behind });
}

static bool is_bad(int rc)
{
	return rc == SHEAF_EBUG || rc == SHEAF_ECORRUPT || rc == SHEAF_EINVAL;
}

static bool play_hungry(struct re_job *j, const char *name)
{
	int rc;

	j->starts = hunger;
	starved = false;
	rc = re_play(j, (uint64_t)nth);
	if (is_bad(rc))
		print_error("%s: rank %d, allocation %ld: %d %s\n", name, hungry, nth, rc, j->why);
	CHECK(!is_bad(rc));
	return starved;
}

/* once: the log said that there are no copies any more, so no node may be lost. */
static void goes_on(struct simdisk *d, const struct scene *s, long long acked, bool once)
{
	struct re_job k = job(d, s, 9);

	if (s->copies && !once)
		simdisk_kill_agent(d, (int)(nth % s->nodes));
	PLAYED(k, 0);
	if (k.loaded < acked)
		print_error("%s: rank %d, allocation %ld: acked %lld, found %lld\n", s->name,
		            hungry, nth, acked, (long long)k.loaded);
	CHECK(k.loaded >= acked);
	CHECK_INT(k.acked, 9);
}

/* Each allocation of each rank of each scene, until there is none so late. */
static void starve_each(bool (*one)(struct simdisk *d, const struct scene *s))
{
	for (size_t i = 0; i < SCENES; i++) {
		const struct scene *s = &scenes[i];
		long n = 0;

		for (hungry = 0; hungry < s->ranks; hungry++) {
			bool hit = true;

			for (nth = 1 + hungry + s->stride * t_from(stride); hit;
			     nth += s->stride * stride) {
				struct simdisk *d = re_world((uint64_t)nth);

				simdisk_set_task_steps(d, 4);
				hit = one(d, s);
				n += hit;
				simdisk_free(d);
			}
		}
		print_message("# %s: %ld allocations\n", s->name, n);
		CHECK(n > 100 / s->stride / stride);
	}
}

static bool save_hungry(struct simdisk *d, const struct scene *s)
{
	struct re_job j = job(d, s, 4);
	bool hit = play_hungry(&j, s->name);

	if (hit)
		goes_on(d, s, j.acked - s->behind, j.once);
	return hit;
}

TEST(a_job_that_saves_to_memory_may_lack_some)
{
	starve_each(save_hungry);
}

static bool resume_hungry(struct simdisk *d, const struct scene *s)
{
	struct re_job j = job(d, s, 4), k = job(d, s, 5);
	bool hit;

	PLAYED(j, 0);
	CHECK_INT(j.acked, 4);
	if (s->copies) {
		simdisk_kill_agent(d, (int)(nth % s->nodes));
		k.plan.stop = nth / 2 % 2;
	}
	hit = play_hungry(&k, s->name);
	if (hit && !s->copies)
		goes_on(d, s, k.acked > 4 ? k.acked : 4, false);
	return hit;
}

TEST(a_job_that_resumes_from_memory_may_lack_some)
{
	starve_each(resume_hungry);
}

/* Of a node's agent, until nothing is left to do; the first lacks memory. */
static bool flush_hungry(struct simdisk *d, int nodes)
{
	static uint64_t pid = 60000;
	int idle = 0;
	bool hit = false;

	for (int i = 0; i < 12 && idle < nodes; i++) {
		const struct shf_sys *sys = simdisk_process(d, pid++, i % nodes);
		struct sheaf_report report = { .size = sizeof(report) };
		struct sheaf_error err = { 0 };
		int64_t step = -1;
		int rc;

		starved = false;
		starve_left = i < nodes ? nth : 0;
		rc = shf_flush_newest("run", NULL, false, 0, sys, &step, &report, &err);
		starve_left = 0;
		hit = hit || starved;
		if (is_bad(rc))
			print_error("allocation %ld: %d %s\n", nth, rc, err.msg);
		CHECK(!is_bad(rc));
		CHECK_INT(simdisk_open_n(sys), 0);
		simdisk_kill(d, sys);
		idle = rc == 0 && step < 0 && !starved ? idle + 1 : 0;
	}
	CHECK_INT(idle, nodes);
	return hit;
}

/* 4 comes to disk after 5 came to memory, so the manifest of 5 is made anew. */
TEST(agents_that_write_what_the_dead_left_may_lack_some)
{
	for (int nodes = 1; nodes <= 2; nodes++) {
		long n = 0;
		bool hit = true;

		for (nth = 1 + nodes * t_from(stride); hit; nth += nodes * stride) {
			const struct scene s = { "", 3, nodes, 0, 0, false, 1 };
			struct simdisk *d = re_world(5);
			struct re_job j = job(d, &s, 5), k = job(d, &s, 5);

			j.plan.disk_every = 4;
			j.plan.late = true;
			PLAYED(j, 0);
			hit = flush_hungry(d, nodes);
			for (int node = 0; node < nodes; node++)
				simdisk_kill_agent(d, node);
			k.plan.stop = true;
			PLAYED(k, 0);
			CHECK_INT(k.loaded, 5);
			n += hit;
			simdisk_free(d);
		}
		print_message("# %d node%s: %ld allocations\n", nodes, nodes > 1 ? "s" : "", n);
		CHECK(n > 50 / stride);
	}
}

int main(int argc, char **argv)
{
	stride = t_takes(&argc, argv, "--long") ? 1 : 7 * T_STRIDE;
	return t_main(argc, argv);
}
