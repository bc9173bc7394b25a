/* SPDX-License-Identifier: Apache-2.0 */
/* Which image a save takes (lib/save/save_image.c): a free one, one that a save still uses, one
 * that holds the newest step in memory or is being copied; and what a save must not wait for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "step.h"
#include "restarts.h"
#include "save.h"
#include "memory_tier.h"
#include "t.h"
#include "run_open.h"
#include "image.h"
#include "save_image.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "state.h"
#include "simover.h"
#include "agent_link.h"
#include "run_ops.h"

/* ---- which one is chosen, of what is said here to be in use ---- */

struct uses {
	int newest, coming, copied;     /* images; -1 */
	int saves[3];                   /* in begin's order; -1: has none any more; -2: no more */
	int below, want, of;            /* of: which save's; -1 */
};

static void is_chosen(const struct uses *u)
{
	struct shf_memory_tier tier = { .newest = u->newest };
	struct sheaf_run *run = calloc(1, sizeof(*run));
	struct sheaf_save *saves = calloc(3, sizeof(*saves)), *of = saves;
	int n = 0;

	run->tier = &tier;
	run->tier->guests.image = u->coming;
	run->tier->guests.copied = u->copied;
	for (; n < 3 && u->saves[n] > -2; n++) {
		saves[n].copy.image = u->saves[n];
		saves[n].next = n < 2 && u->saves[n + 1] > -2 ? &saves[n + 1] : NULL;
	}
	run->saves.first = n ? saves : NULL;
	CHECK_INT(shf_save_image_choose(run, u->below, &of), u->want);
	CHECK(of == (u->of < 0 ? NULL : &saves[u->of]));
	free(saves);
	free(run);
}

TEST(an_image_is_chosen_that_nobody_needs_or_the_one_needed_least)
{
	static const struct uses all[] = {
		/* a free one; one image alone is free whatever memory has */
		{ -1, -1, -1, { -2, -2, -2 }, 2, 0, -1 }, { 0, -1, -1, { -2, -2, -2 }, 2, 1, -1 },
		{ 0, -1, -1, { -2, -2, -2 }, 1, 0, -1 }, { -1, -1, -1, { 0, -2, -2 }, 3, 1, -1 },
		/* what has been copied, before anybody waits */
		{ 0, -1, 1, { -2, -2, -2 }, 2, 1, -1 }, { 0, -1, 1, { -2, -2, -2 }, 3, 2, -1 },
		{ 0, -1, 1, { 2, -2, -2 }, 3, 1, -1 },
		/* that of the oldest save that memory does not have newest */
		{ -1, -1, -1, { 0, 1, -2 }, 2, 0, 0 }, { 0, -1, -1, { 0, 1, -2 }, 2, 1, 1 },
		{ 0, -1, -1, { -1, 1, -2 }, 2, 1, 1 }, { -1, 0, -1, { 0, 1, -2 }, 2, 1, 1 },
		/* one with a number that is not for this save is passed over */
		{ 0, -1, -1, { 3, 1, -2 }, 2, 1, 1 },
		/* nobody has one to give: what is being copied comes to its end first */
		{ 0, 1, -1, { -2, -2, -2 }, 2, 1, -1 }, { 1, 0, -1, { -1, -2, -2 }, 2, 0, -1 },
		{ 0, 1, -1, { 0, 1, 3 }, 2, 1, 1 }, { 1, 0, -1, { 2, 3, 0 }, 2, 0, 2 },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		is_chosen(&all[i]);
}

/* ---- a run of one rank with an agent ---- */

struct alone {
	struct simdisk *disk;
	const struct shf_sys *sys;
	struct sheaf_run *run;
	struct sheaf_state *state;
	struct re_mine mine;
	struct sheaf_error err;
};

static void begin(struct alone *a)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .agent = "auto",
		.images_max = 2, .io_threads = 1 };

	*a = (struct alone){ .disk = re_world(3) };
	a->sys = simdisk_process(a->disk, 90, 0);
	a->state = re_state(&a->mine, 0, 1);
	CHECK_RC(shf_run_open(&a->run, "run", NULL, &opts, a->sys, &a->err), 0, &a->err);
}

static void end(struct alone *a)
{
	shf_run_close(a->run);
	shf_state_put(a->state);
	re_free(&a->mine);
	CHECK_INT(simdisk_open_n(a->sys), 0);
	simdisk_kill(a->disk, a->sys);
	simdisk_free(a->disk);
}

static int save_begin(struct alone *a, struct sheaf_save **save, int64_t step, uint64_t flags)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = flags };

	re_paint(&a->mine, step);
	return shf_save_begin(save, a->run, step, a->state, &opts, &a->err);
}

/* Its image is all there is of a step that is in memory alone, so nobody waits for that. */
TEST(a_step_in_memory_alone_that_is_not_committed_keeps_its_image)
{
	struct sheaf_save *first = NULL, *second = NULL, *third = NULL;
	struct alone a;

	begin(&a);
	CHECK_RC(save_begin(&a, &first, 1, SHEAF_SAVE_NO_DISK), 0, &a.err);
	CHECK_RC(save_begin(&a, &second, 2, SHEAF_SAVE_NO_DISK), 0, &a.err);
	CHECK_RC(save_begin(&a, &third, 3, SHEAF_SAVE_NO_DISK), SHEAF_EAGAIN, &a.err);
	CHECK(strstr(a.err.msg, "step 1 is in memory and not committed") != NULL);
	CHECK_RC(save_begin(&a, &third, 3, SHEAF_SAVE_MAY_DROP), SHEAF_EAGAIN, &a.err);
	CHECK(strstr(a.err.msg, "step 1 is in memory and not committed") != NULL);
	CHECK(third == NULL);
	CHECK_RC(shf_save_commit(first, -1, &a.err), 0, &a.err);
	CHECK_RC(shf_save_commit(second, -1, &a.err), 0, &a.err);
	shf_save_free(first);
	shf_save_free(second);
	CHECK_RC(save_begin(&a, &third, 3, 0), 0, &a.err);
	CHECK_RC(shf_save_commit(third, -1, &a.err), 0, &a.err);
	shf_save_free(third);
	end(&a);
}

static bool breaks, renamed;    /* the sync after the step was renamed fails; it was renamed */

static int rename_seen(void *arg, int from_dir, const char *from, int to_dir, const char *to,
                       bool noreplace)
{
	renamed |= breaks && strncmp(to, "checkpoint-", 11) == 0;
	return simover_real()->disk.rename(arg, from_dir, from, to_dir, to, noreplace);
}

static int fsync_fails(void *arg, int fd)
{
	return renamed ? -EIO : simover_real()->disk.fsync(arg, fd);
}

/* Step 2 is in memory, and nobody knows whether it is on disk: the sync after its rename failed,
 * or it was freed (`freed`) while it was published. */
static void save_2_in_doubt(struct alone *a, bool freed)
{
	struct sheaf_save *save = NULL;

	CHECK_RC(save_begin(a, &save, 1, SHEAF_SAVE_NO_DISK), 0, &a->err);
	CHECK_RC(shf_save_commit(save, -1, &a->err), 0, &a->err);
	shf_save_free(save);
	CHECK_RC(save_begin(a, &save, 2, 0), 0, &a->err);
	if (freed) {
		CHECK_RC(shf_save_commit(save, 0, &a->err), SHEAF_EAGAIN, &a->err);
	} else {
		simover(a->sys)->disk.rename = rename_seen;
		simover(a->sys)->disk.fsync = fsync_fails;
		breaks = true;
		CHECK_RC(shf_save_commit(save, -1, &a->err), SHEAF_EINDOUBT, &a->err);
		breaks = renamed = false;
	}
	CHECK_INT(save->at.memory, SHF_MEMORY_KEPT);
	shf_save_free(save);
}

TEST(a_step_in_doubt_is_the_newest_in_memory)
{
	for (int freed = 0; freed < 2; freed++) {
		struct sheaf_save *save = NULL;
		struct alone a;

		begin(&a);
		save_2_in_doubt(&a, freed);
		CHECK_INT(shf_memory_tier_newest(a.run), 2);
		CHECK_RC(save_begin(&a, &save, 1, 0), SHEAF_EINVAL, &a.err);
		CHECK_RC(save_begin(&a, &save, 2, SHEAF_SAVE_NO_DISK), SHEAF_EINVAL, &a.err);
		CHECK_RC(save_begin(&a, &save, 3, SHEAF_SAVE_NO_DISK), 0, &a.err);
		CHECK_INT(shf_memory_tier_newest(a.run), 2); /* the image of step 1 was taken */
		CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
		shf_save_free(save);
		CHECK_INT(shf_memory_tier_newest(a.run), 3);
		end(&a);
	}
}

TEST(an_older_step_that_comes_to_memory_later_leaves_the_one_in_doubt)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE, .agent = "auto",
		.images_max = 3, .io_threads = 1 };
	struct sheaf_save *older = NULL, *save = NULL;
	struct alone a = { .disk = re_world(3) };
	bool kept = false;

	a.sys = simdisk_process(a.disk, 90, 0);
	a.state = re_state(&a.mine, 0, 1);
	CHECK_RC(shf_run_open(&a.run, "run", NULL, &opts, a.sys, &a.err), 0, &a.err);
	CHECK_RC(save_begin(&a, &older, 1, SHEAF_SAVE_NO_DISK), 0, &a.err);
	CHECK_RC(save_begin(&a, &save, 2, 0), 0, &a.err);
	simover(a.sys)->disk.rename = rename_seen;
	simover(a.sys)->disk.fsync = fsync_fails;
	breaks = true;
	CHECK_RC(shf_save_commit(save, -1, &a.err), SHEAF_EINDOUBT, &a.err);
	breaks = renamed = false;
	shf_save_free(save);
	CHECK_RC(shf_save_commit(older, -1, &a.err), 0, &a.err);
	shf_save_free(older);
	for (int i = 0; i < 3; i++)
		kept |= a.run->tier->steps[i] == 2;
	CHECK(kept);
	CHECK_INT(shf_memory_tier_newest(a.run), 2);
	end(&a);
}

/* From then on what its card says is not true of the image. */
TEST(an_image_that_is_copied_into_has_no_card)
{
	struct sheaf_save *save = NULL;
	struct alone a;

	begin(&a);
	for (int64_t k = 1; k <= 2; k++) {
		CHECK_RC(save_begin(&a, &save, k, SHEAF_SAVE_NO_DISK), 0, &a.err);
		CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
		shf_save_free(save);
	}
	CHECK_RC(save_begin(&a, &save, 3, SHEAF_SAVE_NO_DISK), 0, &a.err);
	CHECK(shf_memory_tier_card_head(a.run->tier, save->copy.image)->whole == 0);
	shf_save_free(save);
	end(&a);
}

/* Whoever sees that the step in doubt is not there, may save its number again; else it is refused
 * as any number that is on disk. */
TEST(a_step_in_doubt_can_be_saved_again_unless_it_is_there)
{
	for (int gone = 0; gone < 2; gone++) {
		struct sheaf_save *save = NULL;
		struct alone a;

		begin(&a);
		save_2_in_doubt(&a, false);
		CHECK(simdisk_exists(a.disk, "run/checkpoint-2"));
		if (gone)
			CHECK_INT(simdisk_remove(a.disk, "run/checkpoint-2"), 0);
		CHECK_RC(save_begin(&a, &save, 2, 0), gone ? 0 : SHEAF_EEXIST, &a.err);
		if (gone)
			CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
		shf_save_free(save);
		CHECK_INT(shf_memory_tier_newest(a.run), 2);
		CHECK_RC(save_begin(&a, &save, 3, 0), 0, &a.err);
		CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
		shf_save_free(save);
		CHECK_INT(shf_memory_tier_newest(a.run), 3);
		end(&a);
	}
}

TEST(an_image_that_no_machine_has_is_refused_and_the_next_one_is_made)
{
	struct sheaf_save *save = NULL;
	struct alone a;

	begin(&a);
	CHECK_RC(shf_image_reserve(a.run, 0, 0, UINT64_C(1) << 63, &a.err), SHEAF_ENOMEM, &a.err);
	CHECK(strstr(a.err.msg, "a staging buffer of 9223372036854775808 bytes is larger than any "
	             "memory; lower opts.staging.bytes_max") != NULL);
	CHECK(shf_image_of(a.run, 0, 0) == NULL);
	CHECK(shf_image_of(a.run, 0, 1) == NULL);
	CHECK_RC(save_begin(&a, &save, 1, 0), 0, &a.err);
	CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
	shf_save_free(save);
	end(&a);
}

/* ---- who has no image free finishes the oldest save first, with all ranks ---- */

enum { RANKS = 3 };
static const int32_t nodes[RANKS] = { 0, 0, 1 };

struct job {
	struct simdisk *disk;
	const struct shf_sys *sys[RANKS];
	uint64_t flags;
	bool silent;                    /* the begin that waits is asked without a sentence */
	bool copied;                    /* the first save is copied before */
	bool warm;                      /* and one has been committed before it, so that this one
	                                 * begins without a stage */
	int second[RANKS], committed[RANKS];    /* that begin, the commit of the save before */
	char why[RANKS][200];
};

/* All slices of a lazy save. */
static void ask_for(struct sheaf_save *save, bool all)
{
	for (int s = 0; all && s < RE_TENSORS; s++)
		(void)shf_save_copied(save, s, -1, NULL);
}

static int job_of(void *arg, int rank, struct sheaf_group *group)
{
	struct job *j = arg;
	struct shf_opts o = { .flags = SHEAF_RUN_CREATE, .images_max = 1,
		.timeout_ms = 60000, .io_threads = 1 };
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = j->flags };
	struct sheaf_save *first = NULL, *second = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err = { 0 };
	struct re_mine mine = { 0 };
	struct sheaf_state *state = re_state(&mine, rank, RANKS);
	int rc = shf_run_open(&run, "run", group, &o, j->sys[rank], &err);

	j->second[rank] = j->committed[rank] = 1;
	re_paint(&mine, 1);
	for (int64_t step = j->warm ? 0 : 1; rc == 0 && step < 2; step++) {
		rc = shf_save_begin(&first, run, step, state, &opts, &err);
		if (rc == 0 && step == 0) {
			ask_for(first, j->flags);
			rc = shf_save_commit(first, -1, &err);
			shf_save_free(first);
			first = NULL;
		}
	}
	ask_for(first, rc == 0 && j->copied && j->flags);
	if (rc == 0)
		rc = j->second[rank] = shf_save_begin(&second, run, 2, state, &opts,
		                                      j->silent ? NULL : &err);
	snprintf(j->why[rank], sizeof(j->why[rank]), "%.190s", err.msg);
	ask_for(first, rc == 0 && j->flags);
	ask_for(second, rc == 0 && j->flags);
	if (rc == 0)
		rc = j->committed[rank] = shf_save_commit(first, -1, &err);
	if (rc == 0)
		rc = shf_save_commit(second, -1, &err);
	shf_save_free(first);
	shf_save_free(second);
	shf_run_close(run);
	shf_state_put(state);
	re_free(&mine);
	return rc;
}

static void job_died(void *arg, int rank)
{
	struct job *j = arg;

	simdisk_kill(j->disk, j->sys[rank]);
}

static void job_begin(struct job *j)
{
	static uint64_t pid = 500;

	j->disk = re_world(9);
	for (int r = 0; r < RANKS; r++)
		j->sys[r] = simdisk_process(j->disk, pid++, nodes[r]);
}

static void job_end(struct job *j)
{
	for (int r = 0; r < RANKS; r++) {
		CHECK_INT(simdisk_open_n(j->sys[r]), 0);
		simdisk_kill(j->disk, j->sys[r]);
	}
	simdisk_free(j->disk);
}

/* What the begin that waits says is the same on all that live, and has a sentence where wanted. */
TEST(each_rank_may_die_while_the_oldest_save_is_finished)
{
	long deaths = 0, lost = 0;

	for (int kind = 0; kind < 4; kind++)
		for (int at = 1 + t_from(T_STRIDE), fired = 1; fired; at += T_STRIDE) {
			struct job j = { .flags = kind % 2 ? SHEAF_SAVE_LAZY : 0,
			                 .silent = at / 3 % 2,
				.copied = at % 2,
				.warm = kind < 2 };
			struct simgroup_stat stat = { 0 };
			struct simgroup_opts o = { .seed = (uint64_t)at, .ranks = RANKS,
				.nodes = nodes, .die_rank = 1 + kind / 2, .die_at = at,
				.died = job_died, .quiet = true, .stat = &stat };
			int results[RANKS];

			job_begin(&j);
			(void)simgroup_run(&o, job_of, &j, results);
			fired = stat.fired;
			deaths += fired;
			for (int r = 0; r < RANKS; r++)
				if (r != o.die_rank && j.second[r] < 0) {
					CHECK_INT(j.second[r], SHEAF_ELOST);
					CHECK_INT(j.why[r][0] == '\0', j.silent);
					lost++;
				}
			CHECK(fired || results[0] == 0);
			job_end(&j);
		}
	printf("# %ld deaths, %ld begins were lost\n", deaths, lost);
	CHECK(lost > 10 / T_STRIDE);
}

/* A save that has failed gives its image to the next one, and tells of it at its commit. */
TEST(a_save_that_fails_while_it_is_finished_fails_alone)
{
	static const struct { enum simdisk_kind kind; const char *name; } faults[] = {
		{ SIMDISK_MKDIR, "1-" }, { SIMDISK_PWRITE, "model-" } };

	for (int i = 0; i < 4; i++) {
		struct job j = { .flags = SHEAF_SAVE_LAZY, .warm = true, .copied = i % 2 };
		struct simgroup_opts o = { .seed = (uint64_t)i, .ranks = RANKS, .nodes = nodes };
		int results[RANKS];

		job_begin(&j);
		simdisk_fault(j.disk, &(struct simdisk_fault){ .nth = i / 2 ? 4 : 1, .error = 28,
			.kind = faults[i / 2].kind, .name = faults[i / 2].name, .always = true });
		CHECK_INT(simgroup_run(&o, job_of, &j, results), 0);
		CHECK(simdisk_fired(j.disk) > 0);
		for (int r = 0; r < RANKS; r++) {
			CHECK_INT(j.second[r], 0);
			CHECK_INT(j.committed[r], SHEAF_EIO);
		}
		job_end(&j);
	}
}

/* ---- a begin that comes to nothing ---- */

static int is_copied(struct sheaf_save **save, struct sheaf_run *run, int64_t step,
                     struct sheaf_state *state, struct sheaf_error *err)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_LAZY };
	int rc = shf_save_begin(save, run, step, state, &opts, err);

	return rc < 0 ? rc : shf_save_copied(*save, SHEAF_ALL_SLICES, -1, NULL);
}

/* Both ranks have all they need, and the image of step 10, which is written, is free. But they
 * begin different steps, and are then killed. */
static int begins_otherwise(void *arg, int rank, struct sheaf_group *group)
{
	struct re_job *j = arg;
	struct shf_opts o = { .flags = SHEAF_RUN_CREATE, .images_max = 2,
		.timeout_ms = 60000, .io_threads = 1, .agent = "auto" };
	struct sheaf_save *save = NULL, *ten = NULL, *other = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err = { 0 };
	struct re_mine mine = { 0 };
	struct sheaf_state *state = re_state(&mine, rank, 2);
	int rc = shf_run_open(&run, "run", group, &o, j->sys[rank], &err);

	for (int64_t step = 4; rc == 0 && step < 8; step += 3) {
		re_paint(&mine, step);
		rc = is_copied(&save, run, step, state, &err);
		if (rc == 0)
			rc = shf_save_commit(save, -1, &err);
		shf_save_free(save);
	}
	re_paint(&mine, 10);
	rc = rc == 0 ? is_copied(&ten, run, 10, state, &err) : rc;
	if (rc == 0 && shf_save_commit(ten, 1, &err) == SHEAF_EAGAIN)
		rc = strstr(err.msg, "it is safe in the agents' memory") ? 0 : SHEAF_EBUG;
	if (rc == 0)
		rc = shf_save_exchange(ten, UINT64_MAX, &err);
	if (rc == 0)
		rc = shf_save_wait(ten, -1, NULL);
	if (rc == 0)
		rc = is_copied(&other, run, 20 + rank, state, &err);
	simdisk_kill(j->disk, j->sys[rank]);
	shf_save_free(ten);
	shf_run_put(run);
	shf_state_put(state);
	re_free(&mine);
	return rc;
}

TEST(a_begin_that_fails_takes_no_step_out_of_memory)
{
	struct simgroup_opts g = { .seed = 1, .ranks = 2, .died = re_died };
	struct simdisk *disk = re_world(31);
	struct re_job j = re_on(disk, 2, (struct re_plan){ .last = 0 });
	struct re_job next = re_on(disk, 1, (struct re_plan){ .stop = true });
	int results[2];

	for (int r = 0; r < 2; r++)
		j.sys[r] = simdisk_process(disk, (uint64_t)(700 + r), 0);
	simdisk_set_takes(disk, SIMDISK_FSYNC, 100);
	CHECK_INT(simgroup_run(&g, begins_otherwise, &j, results), 0);
	CHECK(results[0] == SHEAF_EINVAL && results[1] == SHEAF_EINVAL);
	CHECK(!simdisk_exists(disk, "run/checkpoint-10"));
	PLAYED(next, 0);
	CHECK_INT(next.loaded, 10);
	simdisk_free(disk);
}
