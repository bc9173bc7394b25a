/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings with avx512-bf16, whose products of bf16 have bits of their own, on ranks that are
 * threads. The instruction is emulated: the program is linked with --wrap=tr_isa_find, so that
 * every CPU has it, or one of the ranks lacks it. */
#include "t.h"

#include <stdatomic.h>

#include "rmtree.h"
#include "trainemulated.h"
#include "trainthreads.h"
#include "traintold.h"

int __real_tr_isa_find(const struct tr_isa **isa, const char *name, struct tr_error *err);
int __wrap_tr_isa_find(const struct tr_isa **isa, const char *name, struct tr_error *err);

static struct tr_isa with_pairs;        /* what avx512-bf16 is; a test sets it */
static int lacks;                       /* the n-th rank that looks for it lacks it; 0: none */
static atomic_int looked;

int __wrap_tr_isa_find(const struct tr_isa **isa, const char *name, struct tr_error *err)
{
	if (strcmp(name, "avx512-bf16") != 0)
		return __real_tr_isa_find(isa, name, err);
	if (atomic_fetch_add(&looked, 1) + 1 == lacks)
		return tr_fail(err, TR_EINVAL, "isa %s: this CPU has no such kernels", name);
	*isa = &with_pairs;
	return 0;
}

static void prepare_kernels(void)
{
	prepare();
	with_pairs = emulated_set();
	lacks = 0;
	without_virtual = 0;
}

/* Trains on n ranks, and checks whether they took the kernels with bits of their own. */
static void trains_by_pairs(int n, const char *run, const char *steps, const char *flags, int want)
{
	struct rank rank[RANKS_MAX];

	atomic_store(&looked, 0);
	CHECK_RC(listen_to(n, run, steps, flags, rank), 0, &rank[0].err);
	CHECK_INT(count("\"isa\":\"avx512-bf16\""), want);
	CHECK_INT(count("\"event\":\"start\""), 1);
}

static double last_loss(void)
{
	const char *at = NULL;

	for (const char *next = told; (next = strstr(next, "\"loss\":")) != NULL; next++)
		at = next;
	CHECK(at != NULL);
	return atof(at + strlen("\"loss\":"));
}

/* Each layout goes on from the checkpoint of the one before. */
TEST(layouts_of_avx512_bf16_have_the_bits_of_one_rank)
{
	static const int some[] = { 6, 8, 16, 18 };
	char flags[300], steps[12];
	double loss;

	prepare_kernels();
	trains_by_pairs(1, "whole/all", "4", "dtype: bf16\nisa: avx512-bf16", 1);
	loss = last_loss();
	for (int i = 0; i < 4; i++) {
		snprintf(steps, sizeof(steps), "%d", 1 + i);
		snprintf(flags, sizeof(flags), "%s\ndtype: bf16\nisa: avx512-bf16",
			 layout[some[i]].flags);
		trains_by_pairs(layout[some[i]].ranks, "whole/part", steps, flags, 1);
		CHECK_INT(count("\"isa\"]"), 0);        /* the end of start.changed */
	}
	same_tensors("whole/all/checkpoint-4", "whole/part/checkpoint-4");
	trains_by_pairs(1, "whole/other", "4", "dtype: bf16", 0);
	CHECK(fabs(last_loss() - loss) < 2e-3);
	rmtree("whole");
}

/* virtual promises the same bits on all computers. fp32 has no pairs. */
TEST(auto_takes_avx512_bf16_for_bf16_only_and_not_if_virtual_is_set)
{
	prepare_kernels();
	trains_by_pairs(2, "whole/virtual", "1", "dtype: bf16", 0);
	trains_by_pairs(2, "whole/portable", "1", "dtype: bf16\nisa: portable", 0);
	same_tensors("whole/virtual/checkpoint-1", "whole/portable/checkpoint-1");
	without_virtual = 1;
	trains_by_pairs(2, "whole/fp32", "1", "", 0);
	trains_by_pairs(2, "whole/named", "1", "dtype: bf16\nisa: portable", 0);
	trains_by_pairs(2, "whole/bf16", "1", "dtype: bf16", 1);
	trains_by_pairs(2, "whole/muon", "1", "dtype: bf16\noptimizer: muon\nmesh: {tp: 2}", 1);
	rmtree("whole");
}

TEST(a_rank_that_lacks_avx512_bf16_makes_auto_avoid_it_on_all)
{
	prepare_kernels();
	without_virtual = 1;
	trains_by_pairs(3, "whole/named", "1", "dtype: bf16\nisa: portable", 0);
	for (lacks = 1; lacks <= 3; lacks++) {
		trains_by_pairs(3, "whole/some", "1", "dtype: bf16", 0);
		same_tensors("whole/some/checkpoint-1", "whole/named/checkpoint-1");
		rmtree("whole/some");
	}
	rmtree("whole");
}

TEST(a_resume_with_other_bits_lists_isa_as_changed)
{
	prepare_kernels();
	without_virtual = 1;
	trains_by_pairs(2, "whole/run", "1", "dtype: bf16", 1);
	trains_by_pairs(2, "whole/run", "2", "dtype: bf16", 1);
	CHECK_INT(count("\"changed\":[\"steps\"]"), 1);
	lacks = 1;
	trains_by_pairs(2, "whole/run", "3", "dtype: bf16", 0);
	CHECK_INT(count("\"changed\":[\"steps\",\"isa\"]"), 1);
	trains_by_pairs(2, "whole/run", "4", "dtype: bf16\nisa: portable", 0);
	CHECK_INT(count("\"changed\":[\"steps\"]"), 1);
	lacks = 0;
	trains_by_pairs(2, "whole/run", "5", "dtype: bf16\nisa: avx512-bf16", 1);
	CHECK_INT(count("\"changed\":[\"steps\",\"isa\"]"), 1);
	rmtree("whole");
}

/* Adds all products twice. */
static void wrong_tile(int64_t cells, const float *a, const float *b, float *c, int64_t c_row,
		       int add)
{
	emulated_tile_bf16(cells, a, b, c, c_row, add);
	emulated_tile_bf16(cells, a, b, c, c_row, 1);
}

TEST(a_training_does_not_begin_with_kernels_that_are_wrong)
{
	prepare_kernels();
	with_pairs.tile_bf16 = wrong_tile;
	train_fails(2, "whole/run", "dtype: bf16\nisa: avx512-bf16", TR_EBUG,
		    "the avx512-bf16 kernel computes wrong products of bf16; use isa avx512, and "
		    "report this");
	train_fails(2, "whole/run", "isa: avx512-bf16", TR_EINVAL,
		    "isa avx512-bf16 computes products of bf16, and dtype is fp32; use isa "
		    "avx512, or dtype bf16");
	with_pairs = emulated_set();
	lacks = 2;
	atomic_store(&looked, 0);
	train_fails(2, "whole/run", "dtype: bf16\nisa: avx512-bf16", TR_EINVAL,
		    "isa avx512-bf16: this CPU has no");
	rmtree("whole");
}
