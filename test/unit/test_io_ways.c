/* SPDX-License-Identifier: Apache-2.0 */
/* The measurements at the start of a run that choose how to store and to read: stores past the
 * caches, reads past the page cache. */
#include "t.h"
#include "streaming_stores.h"
#include "direct_reads.h"

/* Every copy takes `cached` or `past` ns a MiB, the first of each way `first` times as long. */
static bool settled(int64_t cached, int64_t past, int64_t first)
{
	struct shf_nt_stores s = { .turns = 0 };
	unsigned ways[2] = { 0, 0 };

	for (int i = 0; i < SHF_NT_STORES_TURNS; i++) {
		bool way = shf_nt_stores_next(&s);
		int64_t ns = way ? past : cached;

		shf_nt_stores_took(&s, SHF_NT_STORES_MIN - 1, 1); /* says nothing */
		CHECK(shf_nt_stores_next(&s) == way);
		ns = ways[way]++ ? ns : ns * first;
		shf_nt_stores_took(&s, UINT64_C(1) << (16 + i % 9), (ns << (16 + i % 9)) >> 20);
	}
	CHECK_INT(ways[0], ways[1]);
	for (int i = 0; i < 3; i++) {
		bool way = shf_nt_stores_next(&s);

		shf_nt_stores_took(&s, UINT64_C(1) << 20, 0);
		CHECK(shf_nt_stores_next(&s) == way);
	}
	return shf_nt_stores_next(&s);
}

TEST(the_faster_stores_are_found)
{
	CHECK(settled(100000, 50000, 1));
	CHECK(!settled(50000, 100000, 1));
	CHECK(settled(100000, 80000, 50));
	CHECK(!settled(80000, 100000, 50));
	CHECK(!settled(80000, 80000, 1)); /* as ever, where it makes no difference */
	CHECK(!settled(0, 0, 1));
}

/* depth requests under way at a time; each takes so long behind the one before. How many of the
 * `all` went past the page cache. */
static uint64_t past(uint64_t depth, uint64_t all, int64_t past_ns, int64_t cached_ns)
{
	struct shf_read_trial t = { .turn = 2 * depth };
	uint64_t head = 0, tail = 0, past = 0;
	bool way[1000];
	int64_t now = 7;

	for (; tail < all; tail++) {
		for (; head < all && head - tail < depth; head++) {
			way[head] = shf_read_trial_direct(&t);
			past += way[head];
		}
		now += way[tail] ? past_ns : cached_ns;
		shf_read_trial_done(&t, now);
	}
	return past;
}

TEST(the_faster_way_to_read_is_found)
{
	for (uint64_t depth = 1; depth <= 12; depth++) {
		uint64_t tried = 2 * depth;

		CHECK_INT(past(depth, 900, 100, 100), 900 - tried);
		CHECK_INT(past(depth, 900, 110, 100), 900 - tried); /* not worth it */
		CHECK_INT(past(depth, 900, 100, 1000), 900 - tried);
		/* Through it: but for what was started before that was known. */
		CHECK_INT(past(depth, 900, 130, 100), tried + depth - 1);
		CHECK_INT(past(depth, 900, 1000, 100), tried + depth - 1);
		/* Too short a read to tell. */
		CHECK_INT(past(depth, tried, 1000, 100), tried);
	}
}
