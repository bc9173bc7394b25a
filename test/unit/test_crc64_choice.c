/* SPDX-License-Identifier: Apache-2.0 */
/* Which way to sum is taken, of processors that this machine is not: the words in which the C
 * runtime keeps what the processor has are drawn, and stand-ins that say which one they are take
 * the places of the ways to sum, which then are not linked. */
#include "crc64.h"
#include "rng.h"
#include "t.h"

#if defined(__x86_64__)
extern struct { unsigned vendor, type, subtype, features; } __cpu_model
	__attribute__((visibility("hidden")));
extern unsigned __cpu_features2[1] __attribute__((visibility("hidden")));

enum { FIRST = 1, LAST = 4 };           /* as shf_crc64_path counts; 0 is the portable one */

#define STANDS_IN(name, i) \
	static uint64_t raw_##name(uint64_t crc, const void *bytes, size_t n) \
	{ \
		(void)crc, (void)bytes, (void)n; \
		return i; \
	} \
	const struct shf_crc64_path shf_crc64_##name = { .raw = raw_##name }

STANDS_IN(x16, 1);
STANDS_IN(x16v, 2);
STANDS_IN(x32, 3);
STANDS_IN(x64, 4);

/* The way that is taken. */
static int taken(void)
{
	uint64_t got = shf_crc64_raw(0, "123456789", 9);

	return got == UINT64_C(0x7800c064d4a83784) ? 0 : (int)got;
}

/* The last one that runs here. */
static int last_here(void)
{
	int last = 0;

	for (int i = FIRST; i <= LAST; i++) {
		const char *name;
		bool here;

		CHECK(shf_crc64_path(i, &name, &here) != NULL);
		last = here ? i : last;
	}
	return last;
}

TEST(the_last_way_that_a_processor_has_is_taken)
{
	unsigned features = __cpu_model.features, features2 = __cpu_features2[0];
	int times[LAST + 1] = { 0 };
	uint64_t seed = 7;

	for (int i = 0; i < 4000; i++) {
		uint64_t word = rng_next(&seed);
		int want;

		__cpu_model.features = (unsigned)word;
		__cpu_features2[0] = (unsigned)(word >> 32);
		want = last_here();
		times[want]++;
		CHECK_INT(taken(), want);
	}
	__cpu_model.features = features;
	__cpu_features2[0] = features2;
	for (int i = 0; i <= LAST; i++)
		CHECK(times[i] > 0);
}
#else
TEST(the_last_way_that_a_processor_has_is_taken)
{
	print_message("# skip: there is one way\n");
}
#endif
