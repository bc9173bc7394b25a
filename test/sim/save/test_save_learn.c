/* SPDX-License-Identifier: Apache-2.0 */
/* What the copy behind learns from one save for the next: in which order slices are asked for, and
 * how many threads keep ahead of that. */
#include "hands.h"
#include "save_copier.h"
#include "save_pieces.h"
#include "t.h"

enum { N = 5, MANY = 20 };
static char told[1000];

static void tell(const char *text)
{
	snprintf(told + strlen(told), sizeof(told) - strlen(told), "%s", text);
}

static void tensors(struct hand *h)
{
	for (int i = 0; i < (h->play->variant ? MANY : N); i++) {
		const char name[] = { (char)('a' + i), '\0' };

		hand_add(h, i % 2 ? "optimizer" : "model", hand_text(h, name, ""), SHEAF_F32, 1,
		         100);
	}
}

static struct sheaf_save *begun(struct hand *h, int64_t step)
{
	const struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_save *save = NULL;

	if (shf_save_begin(&save, h->run, step, h->state, &lazy, &h->err) < 0)
		tell(h->err.msg);
	return save;
}

static void passed(struct hand *h, struct sheaf_save *save, const char *order)
{
	for (; *order; order++)
		if (shf_save_copied(save, *order - 'a', -1, NULL) != 0)
			tell("no gate ");
	if (shf_save_commit(save, -1, &h->err) != 0)
		tell(h->err.msg);
	shf_save_free(save);
}

/* Tells in which order the thread copies, a piece at a time; the header pages come first. */
static void copies(struct hand *h, struct sheaf_save *save)
{
	bool was[N] = { false };

	simdisk_set_task_steps(h->play->disk, 1);
	for (int k = 0; k < N + 1; k++) {
		shf_save_copier_tick(save);
		for (int i = 0; i < N; i++)
			if (!was[i] && atomic_load(&save->copy.lazy->left[i]) == 0) {
				was[i] = true;
				tell((const char[]){ (char)('a' + i), '\0' });
			}
	}
	tell(" ");
	simdisk_set_task_steps(h->play->disk, 0);
}

static int in_turn(struct hand *h)
{
	static const char *const asked[] = { "ceadb", "ceadb", "abcde", "badec" };

	simdisk_set_task_steps(h->play->disk, 0);
	for (int n = 0; n < 4; n++) {
		struct sheaf_save *save = begun(h, n + 1);

		if (!save)
			return SHEAF_EBUG;
		copies(h, save);
		passed(h, save, asked[n]);
	}
	return 0;
}

TEST(slices_are_copied_in_the_order_in_which_the_last_save_was_asked_for_them)
{
	struct simdisk *disk = simdisk_new(1, SIMDISK_STRICT);
	struct play p = hands_play(disk, 1, tensors);

	told[0] = '\0';
	p.opts.copy_threads = 1;
	CHECK_INT(hands_run(&p, in_turn, true), 0);
	CHECK_STR(told, "abcde ceadb ceadb abcde ");
	simdisk_free(disk);
}

/* Who asks whether a slice is copied, and does not wait, says nothing about when he wants it; of a
 * save that is given up, what nobody asked for stays where it was. */
static int in_part(struct hand *h)
{
	struct sheaf_save *save = begun(h, 1);

	simdisk_set_task_steps(h->play->disk, 0);
	if (!save)
		return SHEAF_EBUG;
	for (int i = 0; i < N; i++)
		if (shf_save_copied(save, i, 0, NULL) != SHEAF_EAGAIN)
			tell("copied ");
	passed(h, save, "edcba");
	save = begun(h, 2);
	if (!save)
		return SHEAF_EBUG;
	(void)shf_save_copied(save, 1, -1, NULL);
	shf_save_free(save);
	save = begun(h, 3);
	if (!save)
		return SHEAF_EBUG;
	copies(h, save);
	passed(h, save, "abcde");
	return 0;
}

TEST(what_nobody_waited_for_stays_where_it_was_in_the_order)
{
	struct simdisk *disk = simdisk_new(1, SIMDISK_STRICT);
	struct play p = hands_play(disk, 1, tensors);

	told[0] = '\0';
	p.opts.copy_threads = 1;
	CHECK_INT(hands_run(&p, in_part, true), 0);
	CHECK_STR(told, "bedca ");
	simdisk_free(disk);
}

/* ---- threads ---- */

/* Saves whose threads have copied some when somebody asks, then those that have copied all a second
 * before. */
static int late_then_early(struct hand *h)
{
	for (int n = 0; n < 9; n++) {
		struct sheaf_save *save;
		char threads[16];
		bool early = n >= 5;

		simdisk_set_task_steps(h->play->disk, 0);
		save = begun(h, n + 1);
		if (!save)
			return SHEAF_EBUG;
		simdisk_set_task_steps(h->play->disk, early ? 100 : 1);
		for (int k = 0; k < 4; k++) /* each makes a helper */
			shf_save_copier_tick(save);
		simdisk_set_task_steps(h->play->disk, 0);
		snprintf(threads, sizeof(threads), "%d ", save->copy.lazy->wanted + 1);
		tell(threads);
		if (early)
			simdisk_advance(h->play->disk, 1);
		passed(h, save, "abcdefghijklmnopqrst");
	}
	return 0;
}

static void settles(int limit, const char *want)
{
	struct simdisk *disk = simdisk_new(1, SIMDISK_STRICT);
	struct play p = hands_play(disk, 1, tensors);

	told[0] = '\0';
	p.variant = 1;
	p.opts.copy_threads = limit;
	CHECK_INT(hands_run(&p, late_then_early, true), 0);
	CHECK_STR(told, want);
	simdisk_free(disk);
}

/* The first save has no order to go by and says nothing of threads. */
TEST(who_was_waited_for_gets_help_and_who_was_early_loses_it)
{
	settles(0, "1 1 2 3 3 3 2 1 1 ");       /* three of four processors seem to be free */
	settles(2, "1 1 2 2 2 2 1 1 1 ");
	settles(1, "1 1 1 1 1 1 1 1 1 ");
	settles(9, "1 1 2 3 4 4 3 2 1 ");       /* as many as there are processors */
}
