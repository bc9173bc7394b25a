/* SPDX-License-Identifier: Apache-2.0 */
#include "cpulist.h"
#include "t.h"

static bool has(const uint64_t *bits, int n)
{
	return bits[n / 64] >> n % 64 & 1;
}

static int count(const uint64_t *bits)
{
	int n = 0;

	for (int i = 0; i < SHF_CPUS_MAX; i++)
		n += has(bits, i);
	return n;
}

TEST(a_list_names_each_processor)
{
	uint64_t bits[SHF_CPUS_WORDS];

	CHECK(shf_cpulist("0", bits) && count(bits) == 1 && has(bits, 0));
	CHECK(shf_cpulist("0-3,8", bits) && count(bits) == 5 && has(bits, 3) && has(bits, 8));
	CHECK(shf_cpulist("63-64,4095", bits) && count(bits) == 3 && has(bits, 64) &&
	      has(bits, 4095));
	CHECK(shf_cpulist("7-7,7,5-8", bits) && count(bits) == 4);
}

TEST(what_is_no_list_is_refused)
{
	static const char *const bad[] = { "", "-", "a", "0-", "-3", "3-0", "0,", ",0", "0--3",
		"1 ", " 1", "4096", "0-4096", "99999999999999999999", "0x1", "1-2-3", "1;2" };
	uint64_t bits[SHF_CPUS_WORDS];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(!shf_cpulist(bad[i], bits));
}
