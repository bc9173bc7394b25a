/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings in bf16 with fp32 masters, and with Muon, on ranks that are threads. */
#include "t.h"

#include "rmtree.h"
#include "trainthreads.h"

static const char weights[] = "model-00001-of-00001.safetensors";

/* Layouts of each kind, which go on one after another with the training of the one before. */
static void check_some_layouts(const char *more)
{
	static const int some[] = { 6, 8, 2, 16, 13, 5, 11, 19, 22, 24 };
	char steps[12];

	train_layout(0, "whole/all", "10", more);
	for (int i = 0; i < 10; i++) {
		snprintf(steps, sizeof(steps), "%d", 1 + i);
		train_layout(some[i], "whole/part", steps, more);
	}
	same_tensors("whole/all/checkpoint-10", "whole/part/checkpoint-10");
}

TEST(layouts_of_bf16_have_the_bits_of_one_rank)
{
	prepare();
	check_some_layouts("dtype: bf16\n");
	train_on(6, "whole/flat", "3", "mesh: {dp: 3, tp: 2}\nzero: 1\nzero-form: flat\n"
		 "dtype: bf16");
	train_on(4, "whole/portable", "3", "mesh: {tp: 2, pp: 2}\nisa: portable\ndtype: bf16");
	same_tensors("whole/flat/checkpoint-3", "whole/portable/checkpoint-3");
	rmtree("whole");
}

TEST(layouts_with_muon_have_the_bits_of_one_rank)
{
	prepare();
	check_some_layouts("optimizer: muon\n");
	prepare();
	check_some_layouts("optimizer: muon\ndtype: bf16\n");
	rmtree("whole");
}

/* An update changes a weight by about lr, here 3e-6, and a bf16 of 0.02 is 1.2e-4 from the next
 * one. So only the sum of many updates changes a weight of the model. */
TEST(updates_that_are_too_small_for_bf16_add_up_in_the_masters)
{
	static char before[1 << 17], after[1 << 17];
	static const char small[] = "dtype: bf16\nlr: 3e-6\nweight-decay: 0";
	int64_t same = 0;
	char path[200];
	size_t n;

	prepare();
	train_on(2, "whole/run", "1", small);
	train_on(2, "whole/run", "60", small);
	snprintf(path, sizeof(path), "whole/run/checkpoint-1/%s", weights);
	n = read_whole(path, before, sizeof(before));
	snprintf(path, sizeof(path), "whole/run/checkpoint-60/%s", weights);
	CHECK(n > 15000 && n < sizeof(before) && read_whole(path, after, sizeof(after)) == n);
	for (size_t i = 0; i + 1 < n; i += 2)
		same += memcmp(before + i, after + i, 2) == 0;
	CHECK(same < (int64_t)n / 2 / 2);
	rmtree("whole");
}

/* The weights of fp32 become the masters, and these the weights again. */
TEST(a_training_goes_on_with_another_type_and_the_same_weights)
{
	static char a[1 << 18], b[1 << 18];
	char path[200];
	size_t n;

	prepare();
	train_on(3, "whole/run", "2", "");
	snprintf(path, sizeof(path), "whole/run/checkpoint-2/%s", weights);
	n = read_whole(path, a, sizeof(a));
	/* With lr 0 a step changes no weight. */
	train_on(4, "whole/run", "3", "dtype: bf16\nlr: 0\nmesh: {dp: 2, tp: 2}\nzero: 1");
	CHECK(read_whole("whole/run/checkpoint-3/master_weights/master_weights-00001-of-00001"
			 ".safetensors", b, sizeof(b)) == n && memcmp(a, b, n) == 0);
	train_on(2, "whole/run", "4", "dtype: fp32\nlr: 0\nzero: 1\nzero-form: flat");
	snprintf(path, sizeof(path), "whole/run/checkpoint-4/%s", weights);
	CHECK(read_whole(path, b, sizeof(b)) == n && memcmp(a, b, n) == 0);
	rmtree("whole");
}

/* The newest checkpoint has fp32 weights and is damaged, and the one before it has bf16 weights and
 * masters. */
TEST(a_training_goes_on_from_an_older_checkpoint_of_another_type)
{
	prepare();
	train_on(2, "whole/plain", "2", "dtype: bf16");
	train_on(3, "whole/plain", "4", "dtype: fp32");
	train_on(3, "whole/run", "2", "dtype: bf16");
	train_on(2, "whole/run", "3", "dtype: fp32");
	damage(3, weights, 20000);
	train_on(4, "whole/run", "4", "dtype: fp32\nmesh: {dp: 2, tp: 2}\nzero: 1");
	same_tensors("whole/plain/checkpoint-4", "whole/run/checkpoint-4");
	rmtree("whole");
}

TEST(a_resume_with_another_optimizer_is_refused)
{
	prepare();
	train_on(2, "whole/run", "2", "optimizer: muon");
	train_fails(2, "whole/run", "optimizer: adamw", TR_EINVAL,
		    "optimizer adamw: whole/run@2 was trained with muon");
	train_on(1, "whole/run", "3", "");
	rmtree("whole");
}
