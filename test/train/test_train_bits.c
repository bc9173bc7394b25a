/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of trainings, written down. All compilers, instruction sets and layouts compute them.
 * They change only when the arithmetic or the order of random numbers is changed on purpose. */
#include "t.h"

#include "rmtree.h"
#include "trainthreads.h"
#include "traintold.h"

static const struct {
	const char *options;
	const char *loss, *hash;        /* of step 3: loss_hex, and the hash of the weights */
} kinds[] = {
	{ "",
	  "0x1.3f95c2b425ed1p+2", "38cc0cea027552ef" },
	{ "dtype: bf16\n",
	  "0x1.3fa7785555555p+2", "2840fd49ca82b55a" },
	{ "optimizer: muon\n",
	  "0x1.43bc0df1c71c7p+2", "7e8557157cff1e59" },
	{ "dtype: bf16\noptimizer: muon\n",
	  "0x1.43c2721c71c72p+2", "06d2126540638fbd" },
};

static void check_bits(int kind, int number, const char *more)
{
	struct rank rank[RANKS_MAX];
	char flags[300], loss[60], hash[60];

	prepare();
	snprintf(flags, sizeof(flags), "%s\n%s%s", layout[number].flags, kinds[kind].options,
		 more);
	CHECK_RC(listen_to(layout[number].ranks, "whole/run", "3", flags, rank), 0, &rank[0].err);
	snprintf(loss, sizeof(loss), "\"loss_hex\":\"%s\"", kinds[kind].loss);
	snprintf(hash, sizeof(hash), "\"hash\":\"%s\"", kinds[kind].hash);
	if (count(loss) != 1 || count(hash) != 1)
		print_error("%s%s\n", flags, strstr(told, "\"event\":\"step\",\"step\":3,"));
	CHECK_INT(count(loss), 1);
	CHECK_INT(count(hash), 1);
}

TEST(six_layouts_compute_the_bits_that_are_written_down)
{
	static const int some[] = { 0, 2, 4, 8, 13, 22 };

	for (int kind = 0; kind < 4; kind++)
		for (int i = 0; i < 6; i++)
			check_bits(kind, some[i], i % 2 ? "isa: portable\n" : "");
	rmtree("whole");
}
