/* SPDX-License-Identifier: Apache-2.0 */
/* The moving average of the weights (EMA): its values, and where it begins. Trainings on ranks that
 * are threads. That it is the same in all layouts is tested with the other tensors of a
 * checkpoint. */
#include "t.h"

#include "rmtree.h"
#include "trainthreads.h"
#include "traintold.h"

enum { ITEMS_MAX = 1 << 16, STEPS = 5 };

struct tensors {
	char header[1 << 14];
	int64_t items;
	float item[ITEMS_MAX];
};

/* Reads a family of fp32. The tensors of two families with the same names are in the same places.
 * Returns 0 if the checkpoint does not have it. */
static int read_family(const char *run, int step, const char *family, struct tensors *t)
{
	static char bytes[sizeof(t->item) + sizeof(t->header)];
	int is_model = strcmp(family, "model") == 0;
	char path[300];
	uint64_t size = 0;
	size_t n;

	snprintf(path, sizeof(path), "%s/checkpoint-%d/%s%s%s-00001-of-00001.safetensors", run,
		 step, is_model ? "" : family, is_model ? "" : "/", family);
	n = read_whole(path, bytes, sizeof(bytes));
	if (!n)
		return 0;
	CHECK(n > 8 && n < sizeof(bytes));
	memcpy(&size, bytes, 8);
	CHECK(size < sizeof(t->header) && n > 8 + size);
	memcpy(t->header, bytes + 8, size);
	t->header[size] = 0;
	t->items = (int64_t)(n - 8 - size) / 4;
	CHECK(t->items > 10000 && t->items <= ITEMS_MAX);
	memcpy(t->item, bytes + 8 + size, (size_t)t->items * 4);
	return 1;
}

static struct tensors weights, average, want;

/* Computes the average of steps first..last, which begins with `want`, and compares it with that of
 * each checkpoint. Returns how many items of the last one differ from the weights. */
static int64_t check_average(const char *run, const char *family, int first, int last, float rest)
{
	int64_t differ = 0;

	for (int step = first; step <= last; step++) {
		CHECK(read_family(run, step, family, &weights));
		CHECK(read_family(run, step, "ema", &average));
		CHECK(average.items == weights.items && want.items == weights.items);
		for (int64_t i = 0; i < want.items; i++) {
			volatile float product = (weights.item[i] - want.item[i]) * rest;

			want.item[i] += product;
		}
		CHECK(memcmp(want.item, average.item, (size_t)want.items * 4) == 0);
	}
	for (int64_t i = 0; i < want.items; i++)
		differ += want.item[i] != weights.item[i];
	return differ;
}

/* With lr 0 a step leaves the initial weights as they are. */
TEST(the_average_has_the_bits_of_its_formula_from_the_initial_weights_on)
{
	static const struct {
		const char *kind, *family;
		int ranks;
		const char *layout;
	} some[] = {
		{ "dtype: fp32", "model", 3, "zero: 1, zero-form: flat" },
		{ "dtype: bf16", "master_weights", 4, "mesh: {dp: 2, tp: 2}, zero: 2" },
		{ "optimizer: muon", "model", 4, "mesh: {tp: 2, pp: 2}" },
		{ "optimizer: muon, dtype: bf16", "master_weights", 2,
		  "zero: 1, overlap: true, offload: whole" },
	};

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		char flags[200];

		prepare();
		snprintf(flags, sizeof(flags), "{lr: 0, %s}", some[i].kind);
		train_on(1, "whole/first", "1", flags);
		snprintf(flags, sizeof(flags), "{save-every: 1, %s, %s}", some[i].kind,
			 some[i].layout);
		train_on(some[i].ranks, "whole/run", "5", flags);
		CHECK(read_family("whole/first", 1, some[i].family, &want));
		CHECK(check_average("whole/run", some[i].family, 1, STEPS, 0.25f) > want.items / 2);
		/* The same tensors, under the names of the weights. */
		CHECK(strcmp(average.header, weights.header) == 0);
	}
	rmtree("whole");
}

TEST(where_a_checkpoint_has_no_average_it_begins_with_the_weights)
{
	prepare();
	train_on(2, "whole/run", "2", "ema: 0");
	CHECK(!read_family("whole/run", 2, "ema", &average));
	train_on(3, "whole/run", "4", "{ema: 0.5, save-every: 1, zero: 1, zero-form: flat}");
	CHECK(read_family("whole/run", 2, "model", &want));
	CHECK(check_average("whole/run", "model", 3, 4, 0.5f) > want.items / 2);
	/* Another decay goes on with the average. */
	train_on(4, "whole/run", "6", "{ema: 0.875, save-every: 1, mesh: {dp: 2, tp: 2}, zero: 2}");
	CHECK(check_average("whole/run", "model", 5, 6, 0.125f) > want.items / 2);
	train_on(2, "whole/run", "7", "{ema: 0, mesh: {pp: 2}}");
	CHECK(!read_family("whole/run", 7, "ema", &average));
	rmtree("whole");
}

/* Checkpoints 3 and 4 have an average and are damaged, and that of step 2 has none. */
TEST(where_the_newest_checkpoint_is_damaged_an_average_begins_with_the_weights_of_an_older_one)
{
	static const char *const layouts[] = { "zero: 0", "mesh: {tp: 2}, offload: whole" };
	struct rank rank[RANKS_MAX];
	char flags[100];

	for (int i = 0; i < 2; i++) {
		prepare_with_eval();
		train_on(2, "whole/run", "2", "ema: 0");
		train_on(3, "whole/run", "4", "{ema: 0.5, save-every: 1, zero: 1}");
		damage(4, "ema/ema-00001-of-00001.safetensors", 20000);
		damage(3, "model-00001-of-00001.safetensors", 20000);
		CHECK_RC(evaluate_on(2, "whole/run", "{ema: 0.5, eval-ema: true, "
				     "eval-data: whole/eval}", rank), TR_ENOENT, &rank[0].err);
		CHECK(strstr(rank[0].err.msg, "whole/run@2 has no average of the weights"));
		CHECK_INT(access("whole/run/checkpoint-4", F_OK), 0);
		snprintf(flags, sizeof(flags), "{ema: 0.5, save-every: 1, %s}", layouts[i]);
		CHECK_RC(listen_to(2, "whole/run", "4", flags, rank), 0, &rank[0].err);
		CHECK_INT(first_step(), 2);
		CHECK_INT(count("\"passed_over\":[\"checkpoint-4: "), 1);
		CHECK_INT(count("\"checkpoint-3: "), 2);
		CHECK_INT(count("\"changed\":[\"steps\",\"ema\"]"), 1);
		CHECK(read_family("whole/run", 2, "model", &want));
		CHECK(check_average("whole/run", "model", 3, 4, 0.5f) > want.items / 2);
	}
	rmtree("whole");
}

/* The masters of a checkpoint in bf16 become the weights, and its average stays. */
TEST(an_average_goes_on_when_the_type_of_the_weights_changes)
{
	prepare();
	train_on(2, "whole/run", "2", "{dtype: bf16, zero: 1}");
	CHECK(read_family("whole/run", 2, "ema", &want));
	train_on(4, "whole/run", "4", "{dtype: fp32, save-every: 1, mesh: {tp: 2, pp: 2}}");
	CHECK(check_average("whole/run", "model", 3, 4, 0.25f) > want.items / 2);
	train_on(2, "whole/run", "5", "{dtype: bf16, zero: 2}");
	CHECK(check_average("whole/run", "master_weights", 5, 5, 0.25f) > want.items / 2);
	rmtree("whole");
}

TEST(an_evaluation_of_the_average_changes_no_bit)
{
	static const char *const kinds[] = { "", "dtype: bf16\n", "optimizer: muon\n" };
	static const int some[] = { 2, 6, 9, 16, 19, 21, 24 };
	char path[60], run[30], flags[200];

	for (int kind = 0; kind < 3; kind++) {
		const int muon = kind == 2;

		prepare_with_eval();
		train_layout(0, "whole/plain", "3", kinds[kind]);
		for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
			if (muon && strstr(layout[some[i]].flags, "flat"))
				continue;
			snprintf(run, sizeof(run), "whole/run%zu", i);
			/* Without a save in between, the next step begins right after it. */
			snprintf(flags, sizeof(flags), "%seval-data: whole/eval\neval-every: 1\n"
				 "eval-ema: true\nsave-every: %d\n", kinds[kind], i % 2 ? 3 : 1);
			train_layout(some[i], run, "3", flags);
			snprintf(path, sizeof(path), "%s/checkpoint-3", run);
			same_tensors("whole/plain/checkpoint-3", path);
		}
	}
	rmtree("whole");
}
