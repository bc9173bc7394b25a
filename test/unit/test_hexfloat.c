/* SPDX-License-Identifier: Apache-2.0 */
/* Doubles as hexadecimal text, which is one for each of them and read back to the same bits. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include "hexfloat.h"
#include "t.h"

TEST(each_double_has_one_text_and_comes_back_from_it)
{
	static const struct { double v; const char *text; } all[] = {
		{ 0, "0x0p+0" }, { -0.0, "-0x0p+0" }, { 1, "0x1p+0" }, { -1, "-0x1p+0" },
		{ 2, "0x1p+1" }, { 0.5, "0x1p-1" }, { 1.5, "0x1.8p+0" }, { -0.75, "-0x1.8p-1" },
		{ 10, "0x1.4p+3" }, { 0.1, "0x1.999999999999ap-4" },
		{ 1 + DBL_EPSILON, "0x1.0000000000001p+0" },
		{ 1 - DBL_EPSILON / 2, "0x1.fffffffffffffp-1" },
		{ DBL_MAX, "0x1.fffffffffffffp+1023" }, { 0x1p1023, "0x1p+1023" },
		{ DBL_MIN, "0x1p-1022" }, { 0x1p-1074, "0x1p-1074" }, { 0x3p-1074, "0x1.8p-1073" },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		char text[SHF_HEXFLOAT];
		double back = 7;

		shf_hexfloat_put(text, all[i].v);
		CHECK_STR(text, all[i].text);
		CHECK(shf_hexfloat_get(&back, text));
		CHECK(memcmp(&back, &all[i].v, sizeof(back)) == 0);
	}
}

TEST(no_other_text_is_a_double)
{
	static const char *const bad[] = { "", "-", "0", "1", "0x", "0x1", "0x.8p+0", "0x1.",
		"0x1p", "0x1p+", "0x1p0", "0x1p+00", "0x1p+01", "0x1.p+0", "0x1.0p+0", "0x1.80p+0",
		"0x2p+0", "0x3p+0", "0x/p+0", "0x0.8p+0", "0x0p+1", "0X1p+0", "0x1P+0", "0x1.Ap+0",
		"0x1.gp+0", "+0x1p+0", "--0x1p+0", " 0x1p+0", "0x1p+0 ", "0x1p+0x", "0x1p-0",
		"0x1p+1024", "0x1p-1075", "0x1.8p-1074", "0x1.00000000000001p+0",
		"0x1.99999999999999p-4", "nan", "inf", "0x1p+99999999999999999999" };
	double v;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (shf_hexfloat_get(&v, bad[i]))
			print_error("'%s' was taken\n", bad[i]);
		CHECK(!shf_hexfloat_get(&v, bad[i]));
	}
}
