/* SPDX-License-Identifier: Apache-2.0 */
/* Agents with a limit on the number of steps (sheaf agent --steps): jobs that start with them keep
 * no more images, whatever they asked for. Each byte of a step says which step it is of. */
#include <errno.h>
#include "hands.h"
#include "t.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"

enum { ROWS = 24, COLUMNS = 4096 };
static const struct sheaf_save_opts to_disk = { .size = sizeof(to_disk) },
	lazily = { .size = sizeof(lazily), .flags = SHEAF_SAVE_LAZY },
	to_memory = { .size = sizeof(to_memory), .flags = SHEAF_SAVE_NO_DISK },
	lazily_to_memory = { .size = sizeof(to_memory), .flags = SHEAF_SAVE_NO_DISK |
	                     SHEAF_SAVE_LAZY };

static void hold(struct hand *h)
{
	hand_cut(hand_add(h, "model", "w", SHEAF_U8, 2, ROWS, COLUMNS), 0, h->rank, h->ranks);
	hand_want(h, HAND_ANY);
}

static int begin(struct hand *h, struct sheaf_save **save, int64_t step,
                 const struct sheaf_save_opts *o)
{
	int rc;

	hand_fill(h, (int)step);
	rc = shf_save_begin(save, h->run, step, h->state, o, &h->err);
	if (rc == 0 && o->flags & SHEAF_SAVE_LAZY)
		rc = shf_save_copied(*save, 0, -1, NULL);
	if (rc == 0 && h->rank == 0 && (*save)->copy.image > h->play->variant)
		h->play->variant = (*save)->copy.image; /* the last that was used */
	return rc;
}

static int end(struct hand *h, struct sheaf_save **save, int rc)
{
	if (rc == 0)
		rc = shf_save_commit(*save, -1, &h->err);
	shf_save_free(*save);
	*save = NULL;
	return rc;
}

/* Four to disk begun at once, then each ended. */
static int four(struct hand *h, int64_t step, const struct sheaf_save_opts *o)
{
	struct sheaf_save *s[4] = { NULL };
	int rc = 0;

	for (int i = 0; i < 4 && rc == 0; i++)
		rc = begin(h, &s[i], step + i, o);
	for (int i = 0; i < 4; i++)
		rc = end(h, &s[i], rc);
	return rc;
}

static int many(struct hand *h)
{
	struct sheaf_save *save = NULL;
	int64_t first = h->play->step;
	int rc = four(h, first, &to_disk);

	if (rc == 0)
		rc = four(h, first + 4, &lazily);
	for (int64_t step = first + 8; rc == 0 && step < first + 11; step++) {
		rc = begin(h, &save, step, step % 2 ? &to_memory : &lazily_to_memory);
		rc = end(h, &save, rc);
	}
	return rc;
}

/* Loads the newest and sees whether it is that one, all of it, from memory. */
static int look(struct hand *h)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, h->run, SHEAF_LATEST, &h->err);

	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, &h->report, &h->err);
	if (rc == 0 && step->number != h->play->step)
		rc = shf_fail(&h->err, SHEAF_EBUG, "the newest is %d", (int)step->number);
	for (size_t i = 0; rc == 0 && i < h->blocks_bytes[0]; i++)
		if (h->s[0].count[0] && h->blocks[0][i] != (uint8_t)h->play->step)
			rc = shf_fail(&h->err, SHEAF_EBUG, "byte %zu is of another step", i);
	shf_step_put(step);
	return rc;
}

static const int32_t together[4] = { 1, 1, 1, 1 }, apart[4] = { 1, 2, 2, 1 };

static struct play play(struct simdisk *disk, int ranks, const int32_t *nodes)
{
	struct play p = hands_play(disk, ranks, hold);

	p.nodes = nodes;
	p.opts.agent = "auto";
	p.opts.images_max = 5;
	p.step = 1;
	return p;
}

static struct simdisk *world(int first, int second)
{
	struct simdisk *disk = disk_new();

	simdisk_set_agents(disk, UINT64_C(1) << 30);
	simdisk_set_agent_steps(disk, 1, first);
	simdisk_set_agent_steps(disk, 2, second);
	return disk;
}

static void found(struct simdisk *disk, int ranks, const int32_t *nodes, int64_t step)
{
	struct play p = play(disk, ranks, nodes);

	p.step = step;
	CHECK_RC(hands_run(&p, look, false), 0, &p.err);
	CHECK_INT(p.report.disk_bytes, 0);
	CHECK(p.report.memory_bytes >= ROWS * COLUMNS);
}

/* What agents say, and the images there are: an image and a card of each with each rank's agent. */
static const struct {
	int first, second, images;
} bounds[] = { { 0, 0, 5 }, { 2, 2, 2 }, { 3, 3, 3 }, { 0, 2, 2 }, { 4, 3, 3 }, { 2, 0, 2 },
	{ 9, 5, 5 }, { 1, 0, 2 } };

TEST(saves_have_as_many_images_as_every_agent_allows)
{
	for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
		struct simdisk *disk = world(bounds[i].first, bounds[i].second);
		struct play p = play(disk, 4, apart);

		CHECK_RC(hands_run(&p, many, true), 0, &p.err);
		CHECK(p.variant < bounds[i].images);
		CHECK(bounds[i].images == 5 ? p.variant >= 3 : p.variant == bounds[i].images - 1);
		for (int node = 1; node <= 2; node++)
			CHECK(simdisk_kept(disk, node) <= 2 * 2 * (size_t)bounds[i].images);
		found(disk, 2, apart, 11);
		simdisk_free(disk);
	}
}

TEST(images_that_were_given_are_no_more_where_an_agent_allows_more)
{
	struct simdisk *disk = world(4, 4);
	struct play p = play(disk, 2, together);

	p.opts.images_max = 2;
	CHECK_RC(hands_run(&p, many, true), 0, &p.err);
	CHECK_INT(p.variant, 1);
	simdisk_free(disk);
}

/* Of an agent that allowed more; the newest is taken, and goes when there is a newer one. */
TEST(what_a_job_with_more_images_left_is_found_and_let_go)
{
	for (int ranks = 1; ranks <= 4; ranks++) {
		struct simdisk *disk = world(0, 0);
		struct play p = play(disk, 4, together);

		CHECK_RC(hands_run(&p, many, true), 0, &p.err);
		CHECK(simdisk_kept(disk, 1) > 4 * 2 * 2);
		simdisk_set_agent_steps(disk, 1, 2);
		found(disk, ranks, together, 11);
		p = play(disk, ranks, together);
		p.step = 12;
		CHECK_RC(hands_run(&p, many, true), 0, &p.err);
		CHECK_INT(p.variant, 1);
		CHECK(simdisk_kept(disk, 1) <= (size_t)ranks * 2 * 2);
		found(disk, 5 - ranks, together, 22);
		simdisk_free(disk);
	}
}

/* The agent is killed; another one is found at a later begin. Once on all ranks. */
static int another(struct hand *h, int steps)
{
	struct sheaf_save *save = NULL;
	int rc = shf_agree(&h->run->team, 0, &h->err);

	if (rc == 0 && h->rank == 0) {
		simdisk_kill_agent(h->play->disk, 1);
		simdisk_set_agent_steps(h->play->disk, 1, steps);
	}
	if (rc == 0)
		rc = shf_agree(&h->run->team, 0, &h->err);
	if (rc == 0 && begin(h, &save, 100, &to_memory) != SHEAF_EAGAIN)
		rc = shf_fail(&h->err, SHEAF_EBUG, "a save that no agent keeps has begun");
	shf_save_free(save);
	if (rc == 0 && h->rank == 0)
		simdisk_advance(h->play->disk, 10);
	return rc == 0 ? shf_agree(&h->run->team, 0, &h->err) : rc;
}

static int fewer_later(struct hand *h)
{
	int rc = four(h, 1, &lazily);

	if (rc == 0)
		rc = another(h, 2);
	if (h->rank == 0) {
		h->play->variant = 0;
		h->play->step = 5;
	}
	if (rc == 0)
		rc = shf_agree(&h->run->team, 0, &h->err);
	return rc == 0 ? many(h) : rc;
}

/* Its images are in use, and what they hold has no other place. */
TEST(a_job_keeps_the_images_that_it_has)
{
	for (int ranks = 1; ranks <= 4; ranks++) {
		struct simdisk *disk = world(0, 0);
		struct play p = play(disk, ranks, together);

		CHECK_RC(hands_run(&p, fewer_later, true), 0, &p.err);
		CHECK(p.variant >= 3);
		found(disk, 5 - ranks, together, 15);
		simdisk_free(disk);
	}
}

/* What one agent says counts, also where another node has none. */
static void without_on_the_second(struct hand *h)
{
	if (apart[h->rank] == 2)
		simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = 1, .always = true,
			.error = ECONNREFUSED, .kind = SIMDISK_KEEP, .process = &h->used });
}

static int four_lazily(struct hand *h)
{
	return four(h, 1, &lazily);
}

TEST(an_agent_is_heard_where_another_node_has_none)
{
	struct simdisk *disk = world(3, 2);
	struct play p = play(disk, 4, apart);

	p.tamper = without_on_the_second;
	CHECK_RC(hands_run(&p, four_lazily, true), 0, &p.err);
	CHECK_INT(p.variant, 2);
	simdisk_free(disk);
}

/* Copies are sent inside commits then, and the next node has them. */
TEST(with_two_images_copies_are_there_all_the_same)
{
	struct simdisk *disk = world(2, 3);
	struct play p = play(disk, 4, apart);

	p.opts.copies = 2;
	CHECK_RC(hands_run(&p, many, true), 0, &p.err);
	CHECK_INT(p.variant, 1);
	simdisk_kill_agent(disk, 1);
	found(disk, 2, apart, 11);
	simdisk_free(disk);
}
