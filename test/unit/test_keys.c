/* SPDX-License-Identifier: Apache-2.0 */
/* Sorted keys against the plainest sort there is. */
#include "rng.h"
#include "t.h"
#include <stdbool.h>
#include <stdlib.h>
#include "sort.h"

#define SEED UINT64_C(0x5eaf0107)

/* Items are in the order they came, so the order of words is that of a stable sort by key. */
static int order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

enum { MOST = 5000 };

/* Keys below 1 << bits; runs: each is higher than the last but for every `runs`-th. */
static void make(uint64_t *s, uint64_t *words, size_t n, int bits, size_t runs)
{
	uint64_t mask = (UINT64_C(1) << bits) - 1, key = 0;

	for (size_t i = 0; i < n; i++) {
		key = runs && i % runs ? key + rng_next(s) % 3 : rng_next(s) >> 7;
		key &= mask;
		words[i] = shf_key((uint32_t)key, (uint32_t)i);
	}
}

TEST(keys_are_sorted_and_equal_ones_keep_their_order)
{
	uint64_t *words = malloc(MOST * sizeof(*words)), *want = malloc(MOST * sizeof(*want));
	uint64_t *spare = malloc(MOST * sizeof(*spare)), s = SEED;
	unsigned tried = 0, moved = 0;

	for (int bits = 1; bits <= 32; bits++) {
		for (int k = 0; k < 24; k++) {
			size_t n = (size_t)(rng_next(&s) % (k < 12 ? 100 : MOST));

			make(&s, words, n, bits, (size_t)(k % 3) * 40);
			memcpy(want, words, n * sizeof(*want));
			qsort(want, n, sizeof(*want), order);
			moved += memcmp(words, want, n * sizeof(*want)) != 0;
			shf_keys_sort(words, spare, n);
			tried++;
			if (memcmp(words, want, n * sizeof(*want)) != 0)
				fail_msg("%zu keys of %d bits, seed %llx", n, bits,
				         (unsigned long long)SEED);
		}
	}
	print_message("# %u lists, %u of them not in order; seed %llx\n", tried, moved,
	              (unsigned long long)SEED);
	CHECK(moved > tried / 2);
	free(words);
	free(want);
	free(spare);
}

TEST(what_ascends_is_left_alone_and_nothing_is_sorted_of_nothing)
{
	uint64_t words[3] = { shf_key(7, 2), shf_key(7, 1), shf_key(UINT32_MAX, 0) };

	shf_keys_sort(words, NULL, 3); /* no pass: the spare room is not touched */
	CHECK_INT(shf_key_of(words[0]), 7);
	CHECK_INT(shf_key_item(words[0]), 2);
	CHECK_INT(shf_key_item(words[1]), 1);
	CHECK_INT(shf_key_of(words[2]), UINT32_MAX);
	shf_keys_sort(NULL, NULL, 0);
	for (size_t n = 1; n <= 100; n++) {
		uint64_t many[101] = { 0 };             /* the one behind them is less */

		for (size_t i = 0; i < n; i++)
			many[i] = shf_key((uint32_t)(i / 2) + 1, 1);
		shf_keys_sort(many, NULL, n);
		CHECK(many[n] == 0 && shf_key_of(many[n - 1]) == (n - 1) / 2 + 1);
	}
}

struct record {
	uint32_t key, item;
	char text[5];
};

static int asked;

static int by_key(const void *a, const void *b)
{
	const struct record *x = a, *y = b;

	asked++;
	return x->key < y->key ? -1 : x->key > y->key;
}

TEST(records_are_sorted_and_asked_after_once_where_they_ascend)
{
	uint64_t s = SEED;
	int sorted = 0;

	shf_records_sort(NULL, 0, sizeof(struct record), by_key);
	for (int k = 0; k < 400; k++) {
		size_t n = 1 + (size_t)(rng_next(&s) % 60), step = (size_t)(k % 4) * 20 + 1;
		struct record a[60];
		bool ascend = true;

		for (size_t i = 0; i < n; i++) {
			a[i] = (struct record){ .item = (uint32_t)i, .key = i % step
			                        ? a[i - 1].key + (uint32_t)(rng_next(&s) % 3)
			                        : (uint32_t)(rng_next(&s) % 40), .text = "text" };
			ascend = ascend && (i == 0 || a[i - 1].key <= a[i].key);
		}
		asked = 0;
		shf_records_sort(a, n, sizeof(*a), by_key);
		CHECK(!ascend || asked == (int)n - 1);
		for (size_t i = 1; i < n; i++)
			CHECK(a[i - 1].key <= a[i].key);
		for (size_t i = 0; ascend && i < n; i++)
			CHECK_INT(a[i].item, i);
		sorted += !ascend;
	}
	print_message("# 400 lists, %d of them not in order; seed %llx\n", sorted,
	              (unsigned long long)SEED);
	CHECK(sorted > 100 && sorted < 390);
}
