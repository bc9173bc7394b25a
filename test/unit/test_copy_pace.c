/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads copy, decided from what the save before measured. */
#include "copy_pace.h"
#include "t.h"

static const int64_t ms = 1000000;

static int next(int threads, int64_t copy_ms, int64_t lead_ms, int64_t waited_ns, int most)
{
	struct shf_copy_pace last = { threads, copy_ms * ms, lead_ms * ms, waited_ns };

	return shf_copy_pace_threads(&last, most);
}

TEST(the_first_copy_has_one_thread)
{
	CHECK_INT(next(0, 0, 0, 0, 4), 1);
	CHECK_INT(next(0, 0, 0, 0, 1), 1);
}

TEST(one_thread_more_after_a_copy_that_was_waited_for)
{
	CHECK_INT(next(1, 300, 200, 41 * ms, 4), 2);
	CHECK_INT(next(2, 300, 200, 41 * ms, 4), 3);
	CHECK_INT(next(1, 300, 0, 1, 4), 2);
	/* The 2000th part of the time before the first gate is no wait. */
	CHECK_INT(next(1, 300, 200, ms / 10, 4), 1);
	CHECK_INT(next(1, 300, 200, ms / 10 + 1, 4), 2);
}

TEST(as_many_after_a_copy_that_was_neither_late_nor_early)
{
	CHECK_INT(next(1, 100, 200, 0, 4), 1);
	CHECK_INT(next(1, 900, 200, 0, 4), 1); /* each slice before its gate all the same */
	CHECK_INT(next(2, 75, 200, 0, 4), 2);
	CHECK_INT(next(3, 100, 200, 0, 4), 3);
}

TEST(one_thread_less_after_a_copy_that_so_many_would_have_made_in_time)
{
	CHECK_INT(next(2, 74, 200, 0, 4), 1);
	CHECK_INT(next(3, 99, 200, 0, 4), 2);
	CHECK_INT(next(4, 1, 200, 0, 4), 3);
	CHECK_INT(next(1, 1, 200, 0, 4), 1);
}

TEST(never_more_threads_than_the_limit)
{
	for (int threads = 0; threads < 300; threads++)
		for (int most = 1; most < 300; most += 7)
			for (int k = 0; k < 4; k++) {
				int n = next(threads, k & 1 ? 1 : 500, 100, k & 2 ? ms : 0, most);

				CHECK(n >= 1 && n <= most);
			}
}

/* A machine on which copying takes so many thread-milliseconds. */
TEST(the_number_settles)
{
	int n = 0, was;

	for (int i = 0; i < 20; i++) {
		was = n;
		n = n ? next(n, 900 / n, 350, 900 / n > 350 ? 10 * ms : 0, 8) : 1;
	}
	CHECK_INT(n, 3);
	CHECK_INT(was, n);
}

TEST(the_limit_is_the_callers_or_follows_from_processors_that_are_free)
{
	CHECK_INT(shf_copy_pace_threads_most(0, 16, 15), 4);
	CHECK_INT(shf_copy_pace_threads_most(0, 16, 1), 1);  /* eight ranks have them */
	CHECK_INT(shf_copy_pace_threads_most(0, 4, 3), 3);
	CHECK_INT(shf_copy_pace_threads_most(0, 2, 1), 1);
	CHECK_INT(shf_copy_pace_threads_most(0, 1, 0), 1);
	CHECK_INT(shf_copy_pace_threads_most(0, 1, -1), 1);
	CHECK_INT(shf_copy_pace_threads_most(9, 16, 1), 9);
	CHECK_INT(shf_copy_pace_threads_most(9, 4, 3), 4);
	CHECK_INT(shf_copy_pace_threads_most(1, 64, 63), 1);
	CHECK_INT(shf_copy_pace_threads_most(2, 2, 1), 2);
}
