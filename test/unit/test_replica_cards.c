/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on a rank's cards apply to the replicas that are kept for other nodes too: to those of
 * the same steps, and to nothing else. */
#include "replica.h"
#include <stdlib.h>
#include "run.h"
#include "t.h"

enum { GUESTS = 3, BYTES = 4096 };

static struct world {
	struct shf_replicas g;
	struct shf_replica_owner of[GUESTS + 1];        /* one more, which is nobody's */
} w;

static struct shf_card_head *head(int guest, int slot)
{
	return shf_card_head(&w.of[guest].cards[slot]);
}

/* Steps 10, 11; 11, 12; none, 10. Each card says something of its own. */
static void begin(void)
{
	static const int64_t steps[GUESTS + 1][2] = { { 10, 11 }, { 11, 12 }, { -1, 10 },
		{ 11, 11 } };

	w = (struct world){ .g = { .wanted = true, .of = w.of, .n = GUESTS, .coming = 11,
		.image = -1, .copied = -1 } };
	CHECK_INT(pthread_mutex_init(&w.g.lock, NULL), 0);
	for (int i = 0; i <= GUESTS; i++)
		for (int k = 0; k < SHF_REPLICA_SLOTS; k++) {
			uint64_t mark = (uint64_t)(10 * i + k + 1);

			w.of[i].rank = i;
			w.of[i].steps[k] = steps[i][k];
			w.of[i].cards[k] = (struct shf_shm){ calloc(1, BYTES), BYTES, -1 };
			CHECK(w.of[i].cards[k].base);
			atomic_store(&head(i, k)->whole, mark);
			atomic_store(&head(i, k)->base, 100 + mark);
			atomic_store(&head(i, k)->next, 200 + mark);
			atomic_store(&head(i, k)->due, 1);
		}
}

static void end(void)
{
	for (int i = 0; i <= GUESTS; i++)
		for (int k = 0; k < SHF_REPLICA_SLOTS; k++)
			free(w.of[i].cards[k].base);
	pthread_mutex_destroy(&w.g.lock);
}

/* Cards, in the order of guests and slots, of which that is so: a letter for each. */
static const char *those(bool (*is)(const struct shf_card_head *h, uint64_t mark))
{
	static char text[2 * (GUESTS + 1) + 1];

	memset(text, 0, sizeof(text));
	for (int i = 0; i <= GUESTS; i++)
		for (int k = 0; k < SHF_REPLICA_SLOTS; k++)
			text[2 * i + k] = is(head(i, k), (uint64_t)(10 * i + k + 1)) ? 'x' : '.';
	return text;
}

static bool is_cleared(const struct shf_card_head *h, uint64_t mark)
{
	CHECK(h->whole == 0 || h->whole == mark);
	return !h->whole;
}

static bool is_written(const struct shf_card_head *h, uint64_t mark)
{
	(void)mark;
	return !h->due;
}

static bool has_base_7(const struct shf_card_head *h, uint64_t mark)
{
	CHECK(h->base == 7 || h->base == 100 + mark);
	return h->base == 7;
}

static bool has_next_7(const struct shf_card_head *h, uint64_t mark)
{
	CHECK(h->next == 7 || h->next == 200 + mark);
	return h->next == 7;
}

/* cleared, written, base, next */
#define THOSE(a, b, c, d)                       \
	do {                                    \
		CHECK_STR(those(is_cleared), a); \
		CHECK_STR(those(is_written), b); \
		CHECK_STR(those(has_base_7), c); \
		CHECK_STR(those(has_next_7), d); \
	} while (0)
#define NONE "........"

TEST(copies_of_a_step_that_is_given_up_are_nothing)
{
	begin();
	shf_replicas_clear(&w.g, 9);
	shf_replicas_clear(&w.g, 13);
	shf_replicas_clear(&w.g, -1);
	THOSE(NONE, NONE, NONE, NONE);
	CHECK_INT(w.g.coming, 11);
	shf_replicas_clear(&w.g, 10);
	THOSE("x....x..", NONE, NONE, NONE);
	CHECK(w.of[0].steps[0] == -1 && w.of[0].steps[1] == 11);
	CHECK(w.of[1].steps[0] == 11 && w.of[1].steps[1] == 12);
	CHECK(w.of[2].steps[0] == -1 && w.of[2].steps[1] == -1);
	CHECK_INT(w.g.coming, 11);
	shf_replicas_clear(&w.g, 11);    /* and what is on its way does not come */
	THOSE("xxx..x..", NONE, NONE, NONE);
	CHECK(w.of[0].steps[1] == -1 && w.of[1].steps[0] == -1 && w.of[1].steps[1] == 12);
	CHECK_INT(w.of[GUESTS].steps[0], 11);
	CHECK_INT(w.g.coming, -1);
	end();
}

TEST(copies_of_a_step_that_is_on_disk_are_due_no_more)
{
	begin();
	shf_replicas_written(&w.g, 11);
	THOSE(NONE, ".xx.....", NONE, NONE);
	CHECK_INT(w.g.coming, 11);
	CHECK_INT(w.of[0].steps[1], 11);
	shf_replicas_written(&w.g, -1);
	THOSE(NONE, ".xx.....", NONE, NONE);
	end();
}

TEST(copies_of_a_step_follow_what_is_or_may_be_on_disk)
{
	begin();
	shf_replicas_follow(&w.g, 13, 7, true);
	shf_replicas_follow(&w.g, -1, 7, false);
	THOSE(NONE, NONE, NONE, NONE);
	shf_replicas_follow(&w.g, 12, 7, false);
	THOSE(NONE, NONE, NONE, "...x....");
	shf_replicas_follow(&w.g, 11, 7, true);
	THOSE(NONE, NONE, ".xx.....", "...x....");
	shf_replicas_follow(&w.g, 10, 7, true);
	THOSE(NONE, NONE, "xxx..x..", "...x....");
	end();
}

TEST(where_there_are_no_guests_nothing_is_done)
{
	begin();
	w.g.n = 0;
	shf_replicas_clear(&w.g, 10);
	shf_replicas_written(&w.g, 10);
	shf_replicas_follow(&w.g, 0, 7, true);
	THOSE(NONE, NONE, NONE, NONE);
	end();
}

/* It is asked for by another rank, and may be any number. */
TEST(a_copy_that_no_memory_can_hold_is_refused)
{
	struct shf_replica_owner g = { .rank = 5 };
	struct sheaf_run run = { .sys = NULL };
	struct sheaf_error err;

	CHECK_RC(shf_replica_reserve(&run, &g, 0, false, UINT64_MAX, &err), SHEAF_ENOMEM, &err);
	CHECK(!g.images[0].base);
}

/* Images that a copy is made of, and how many of a step's are enough. */
TEST(images_of_copies_are_left_alone)
{
	begin();
	CHECK_INT(shf_replicas_pins(&w.g, true), 0);
	w.g.image = 0;
	CHECK_INT(shf_replicas_pins(&w.g, true), 1);
	w.g.copied = 2;
	CHECK_INT(shf_replicas_pins(&w.g, true), 5);
	CHECK_INT(shf_replicas_pins(&w.g, false), 1);
	w.g.image = -1;
	w.g.copied = 0;
	CHECK_INT(shf_replicas_pins(&w.g, true), 1);
	CHECK_INT(shf_replicas_pins(&w.g, false), 0);
	CHECK(shf_replicas_have_some(&w.g));      /* inside commits */
	end();
}
