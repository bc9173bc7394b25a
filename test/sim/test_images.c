/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn an image is: of those that are free, of one that a save still has, of one that memory
 * has newest or that is being copied; and what a save may not wait for. */
#include <stdlib.h>
#include "engine.h"
#include "restarts.h"
#include "save.h"
#include "t.h"

/* ---- which one is chosen, of what is said here to be in use ---- */

struct uses {
	int newest, coming, copied;     /* images; -1 */
	int saves[3];                   /* in begin's order; -1: has none any more; -2: no more */
	int below, want, of;            /* of: which save's; -1 */
};

static void is_chosen(const struct uses *u)
{
	struct sheaf_run *run = calloc(1, sizeof(*run));
	struct sheaf_save *saves = calloc(3, sizeof(*saves)), *of = saves;
	int n = 0;

	run->tier.newest = u->newest;
	run->tier.guests.image = u->coming;
	run->tier.guests.copied = u->copied;
	for (; n < 3 && u->saves[n] > -2; n++) {
		saves[n].image = u->saves[n];
		saves[n].next = n < 2 && u->saves[n + 1] > -2 ? &saves[n + 1] : NULL;
	}
	run->first = n ? saves : NULL;
	CHECK_INT(shf_image_choose(run, u->below, &of), u->want);
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
		{ 0, 1, -1, { 0, 1, 3 }, 2, 1, -1 },
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
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_CREATE, .agent = "auto",
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
	for (int t = 0; t < RE_TENSORS; t++)
		free(a->mine.data[t]);
	CHECK_INT(simdisk_open_n(a->sys), 0);
	simdisk_kill(a->disk, a->sys);
	simdisk_free(a->disk);
}

static int save_begin(struct alone *a, struct sheaf_save **save, int64_t step, uint32_t flags)
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
	CHECK_RC(save_begin(&a, &first, 1, SHEAF_NO_DISK), 0, &a.err);
	CHECK_RC(save_begin(&a, &second, 2, SHEAF_NO_DISK), 0, &a.err);
	CHECK_RC(save_begin(&a, &third, 3, SHEAF_NO_DISK), SHEAF_EAGAIN, &a.err);
	CHECK(strstr(a.err.msg, "step 1 is in memory alone and not committed") != NULL);
	CHECK_RC(save_begin(&a, &third, 3, SHEAF_MAY_FAIL), SHEAF_EBUSY, &a.err);
	CHECK(strstr(a.err.msg, "step 1 is in memory alone and not committed") != NULL);
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

TEST(an_image_that_no_machine_has_is_refused_and_the_next_one_is_made)
{
	struct sheaf_save *save = NULL;
	struct alone a;

	begin(&a);
	CHECK_RC(shf_image_need(a.run, 0, UINT64_C(1) << 63, &a.err), SHEAF_ENOMEM, &a.err);
	CHECK(strstr(a.err.msg, "an image of 9223372036854775808 bytes") != NULL);
	CHECK(shf_image_of(a.run, 0, 0) == NULL);
	CHECK(shf_image_of(a.run, 0, 1) == NULL);
	CHECK_RC(save_begin(&a, &save, 1, 0), 0, &a.err);
	CHECK_RC(shf_save_commit(save, -1, &a.err), 0, &a.err);
	shf_save_free(save);
	end(&a);
}
