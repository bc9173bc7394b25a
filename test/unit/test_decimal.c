/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of notes: what is one, and which is less, against the machine's own floats where these
 * can tell. Another seed: SHEAF_SEED=N. */
#include "decimal.h"
#include "rng.h"
#include "t.h"
#include <locale.h>
#include <stdbool.h>
#include <stdlib.h>

static int cmp(const char *a, const char *b)
{
	struct shf_decimal x, y;
	int c;

	CHECK(shf_decimal_read(&x, a));
	CHECK(shf_decimal_read(&y, b));
	c = shf_decimal_cmp(&x, &y);
	CHECK_INT((shf_decimal_cmp(&y, &x) > 0) - (shf_decimal_cmp(&y, &x) < 0),
	          (c < 0) - (c > 0));
	return (c > 0) - (c < 0);
}

TEST(a_decimal_is_digits_a_point_and_an_exponent_and_nothing_else)
{
	static const char *const good[] = { "0", "-0", "+1", "1.", ".5", "0.25", "-3.5e-07",
		"2E+10", "000001", "1e1000000", "00000000000000000000000000000000000000000000001",
		"123456789012345678901234567890.1234567890",
		"10000000000000000000000000000000000000000000000000000000000000000" };
	static const char *const bad[] = { "", "+", "-", ".", "e5", "1e", "1e+", "nan", "NaN",
		"inf", "-inf", "infinity", "0x1p-3", " 1", "1 ", "1,5", "1.2.3", "--1", "1e5.",
		"1e1000001", "1e99999999999999999999", "1f", "1\n",
		"123456789012345678901234567890.12345678901" };
	struct shf_decimal d;

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		if (!shf_decimal_read(&d, good[i]))
			print_error("'%s' was refused\n", good[i]);
		CHECK(shf_decimal_read(&d, good[i]));
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		if (shf_decimal_read(&d, bad[i]))
			print_error("'%s' was taken\n", bad[i]);
		CHECK(!shf_decimal_read(&d, bad[i]));
	}
}

TEST(a_decimal_has_4097_characters_at_most)
{
	char text[4100];
	struct shf_decimal d;

	for (size_t n = 4096; n <= 4098; n++) {
		memset(text, '0', n);
		text[n] = '\0';
		CHECK_INT(shf_decimal_read(&d, text), n <= 4097);
		text[n - 2] = '7';
		CHECK_INT(shf_decimal_read(&d, text), n <= 4097);
		CHECK(n > 4097 || (d.n == 1 && d.at == 2 && d.sign == 1));
		text[1] = '.';
		CHECK_INT(shf_decimal_read(&d, text), n <= 4097);
		CHECK(n > 4097 || (d.n == 1 && d.at == 4 - (int32_t)n));
	}
}

TEST(decimals_are_compared_exactly)
{
	CHECK_INT(cmp("0", "-0.000e5"), 0);
	CHECK_INT(cmp("1", "1.000"), 0);
	CHECK_INT(cmp("100", "1e2"), 0);
	CHECK_INT(cmp("0.001", "1e-3"), 0);
	CHECK_INT(cmp("10e-1", "001.0"), 0);
	CHECK_INT(cmp("9", "10"), -1);
	CHECK_INT(cmp("-9", "-10"), 1);
	CHECK_INT(cmp("-1", "0"), -1);
	CHECK_INT(cmp("0.09", "0.1"), -1);
	CHECK_INT(cmp("0.1", "0.11"), -1);
	CHECK_INT(cmp("-0.1", "-0.11"), 1);
	CHECK_INT(cmp("1e400", "1e401"), -1);   /* no float has them */
	CHECK_INT(cmp("1e-400", "0"), 1);
	/* The same float, and not the same number. */
	CHECK_INT(cmp("0.10000000000000000001", "0.1"), 1);
	CHECK_INT(cmp("9007199254740993", "9007199254740992"), 1);
}

/* Locales that a machine does not have are passed over. */
TEST(a_locale_with_a_comma_changes_no_number)
{
	static const char *const locales[] = { "C", "de_DE.UTF-8", "fr_FR.UTF-8" };
	static const struct { const char *text; double v; } cases[] = {
		{ "1.5", 1.5 }, { "0.1", 0.1 }, { "-2.25e-05", -2.25e-5 }, { "1e+300", 1e300 },
		{ "0.30000000000000004", 0.1 + 0.2 }, { "-3", -3 },
	};

	for (size_t k = 0; k < sizeof(locales) / sizeof(locales[0]); k++) {
		if (!setlocale(LC_ALL, locales[k]))
			continue;
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
			char text[SHF_DECIMAL_DOUBLE], *end;

			CHECK(shf_decimal_strtod(cases[i].text, &end) == cases[i].v);
			CHECK(*end == '\0');
			shf_decimal_print(text, cases[i].v);
			CHECK_STR(text, cases[i].text);
		}
		CHECK_STR(setlocale(LC_ALL, NULL), locales[k]);
	}
	(void)setlocale(LC_ALL, "C");
}

TEST(drawn_floats_are_ordered_as_the_machine_orders_them)
{
	static const char *const formats[] = { "%.17g", "%.17e", "%.20f", "%.9g" };
	const char *text = getenv("SHEAF_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : 0x5eaf, x = seed | 1;
	int n = 0, less = 0;

	(void)setlocale(LC_ALL, "C");
	for (int i = 0; i < 20000; i++) {
		double v[2];
		char s[2][400];

		for (int k = 0; k < 2; k++) {
			double small = (double)(int64_t)(rng_next(&x) % 2001) - 1000;

			v[k] = rng_next(&x) % 2 ? small / 8 : small * (double)rng_next(&x) * 1e-15;
			snprintf(s[k], sizeof(s[k]), formats[rng_next(&x) % 4], v[k]);
			v[k] = strtod(s[k], NULL); /* some formats round */
		}
		if (v[0] == v[1] && strcmp(s[0], s[1]) != 0)
			continue; /* different texts of one float may be different numbers */
		CHECK_INT(cmp(s[0], s[1]), (v[0] > v[1]) - (v[0] < v[1]));
		less += v[0] < v[1];
		n++;
	}
	CHECK(n > 15000 && less > 5000);
	printf("# %d pairs, %d of them ascending, seed %#llx\n", n, less, (unsigned long long)seed);
}
