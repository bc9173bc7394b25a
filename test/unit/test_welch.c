/* SPDX-License-Identifier: Apache-2.0 */
/* Against values of another program (scipy.stats: ttest_ind with equal_var=False, t.ppf), and
 * against what must be so whatever the numbers. */
#include "t.h"
#include "welch.h"

enum { N = 15 };
static const double first[N] = { 27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1,
	19.6, 19.0, 21.7, 21.4 };
static const double second[N] = { 27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9,
	22.1, 22.9, 30.5, 24.9 };

static bool near(double a, double b, double within)
{
	return a - b <= within && b - a <= within;
}

static void fill(double *to, const double *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = from[i % N];
}

TEST(differences_and_intervals_are_those_of_others)
{
	static const struct {
		const double *a, *b;
		size_t a_n, b_n;
		double diff, df, low, high, median_a, median_b;
	} known[] = {
		{ second, first, N, N, -2.866666666666667, 27.904304538301975,
		  -4.906107774632728, -0.8272255587006057, 23.4, 21.0 },
		{ first, second, N, 7, 2.894285714285722, 15.267661459879147,
		  0.583463662158652, 5.205107766412793, 21.0, 23.4 },
		{ second, first, 4 * N, 3 * N, -2.8666666666666707, 91.65357883642862,
		  -3.9130892767870096, -1.8202440565463316, 23.4, 21.0 },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		double a[4 * N], b[4 * N];
		struct shf_welch w;

		fill(a, known[i].a, known[i].a_n);
		fill(b, known[i].b, known[i].b_n);
		CHECK(shf_welch(&w, a, known[i].a_n, b, known[i].b_n));
		CHECK(near(w.diff, known[i].diff, 1e-12) && near(w.df, known[i].df, 1e-9));
		CHECK(near(w.low, known[i].low, 1e-4) && near(w.high, known[i].high, 1e-4));
		CHECK(w.low <= known[i].low + 1e-7 && w.high >= known[i].high - 1e-7);
		CHECK(near(w.median[0], known[i].median_a, 1e-12));
		CHECK(near(w.median[1], known[i].median_b, 1e-12));
		CHECK(near(w.mean[1] - w.mean[0], w.diff, 1e-12));
	}
}

TEST(students_t_is_that_of_others_and_never_too_small)
{
	static const struct { double df, t, above; } known[] = {
		{ 1, 12.706204736, 1e-5 }, { 2, 4.302652730, 1e-5 }, { 7, 2.364624252, 1e-5 },
		{ 29, 2.045229642, 1e-5 }, { 30, 2.042272456, 1e-5 },
		{ 30.5, 2.04086944518632, 1e-5 }, { 31.2, 2.0389836847373126, 1e-5 },
		{ 45.7, 2.013252240382722, 1e-5 }, { 100.25, 1.9839109344329853, 1e-6 },
		{ 1e4, 1.960201239890626, 1e-6 }, { 1e12, 1.959963984540054, 1e-9 },
	};
	double before = shf_student_95(1);

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		double t = shf_student_95(known[i].df);

		if (t < known[i].t - 1e-7 || t > known[i].t + known[i].above)
			print_error("t(%g) = %.9f, want %.9f\n", known[i].df, t, known[i].t);
		CHECK(t >= known[i].t - 1e-7 && t <= known[i].t + known[i].above);
	}
	/* It only falls, through the whole numbers and where the table ends. */
	for (double df = 1; df < 60; df += 0.01) {
		double t = shf_student_95(df);

		CHECK(t <= before + 1e-9);
		before = t;
	}
	CHECK(near(shf_student_95(0.5), 12.706205, 1e-6));
}

TEST(what_does_not_vary_has_an_interval_of_a_point)
{
	double a[3] = { 5, 5, 5 }, b[2] = { 7, 7 };
	struct shf_welch w = { .diff = 9 };

	CHECK(shf_welch(&w, a, 3, b, 2));
	CHECK(w.diff == 2 && w.low == 2 && w.high == 2 && w.df == 0);
	w.diff = 9;
	CHECK(!shf_welch(&w, a, 1, b, 2) && !shf_welch(&w, a, 3, b, 1) && w.diff == 9);
	CHECK(!shf_welch(&w, a, 0, b, 0));
}

TEST(two_of_each_are_enough_and_the_median_of_an_even_number_lies_between)
{
	double a[] = { 5, 1 }, b[] = { 9, 2, 4, 3 };
	struct shf_welch w;

	CHECK(shf_welch(&w, a, 2, b, 4));
	CHECK(w.median[0] == 3 && w.median[1] == 3.5 && w.mean[0] == 3 && w.mean[1] == 4.5);
	CHECK(shf_welch(&w, b, 4, a, 2));
	CHECK(w.median[0] == 3.5 && w.diff == -1.5);
}

TEST(roots_are_roots)
{
	static const double some[] = { 1e-300, 1e-30, 0.25, 1, 2, 9, 1e30, 1e300 };

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
		CHECK(near(shf_root(some[i]) * shf_root(some[i]) / some[i], 1, 1e-14));
	CHECK(shf_root(0) == 0 && shf_root(-1) == 0);
}

/* Drawn from one distribution the interval holds 0 in about 95 of 100; shifted, it holds the
 * shift as often. Of unequal sizes and spreads, from a fixed seed. */
TEST(the_interval_holds_the_difference_in_nineteen_of_twenty)
{
	uint64_t x = 0x5eaf;
	int held = 0;

	for (int k = 0; k < 4000; k++) {
		double a[40], b[12];
		struct shf_welch w;

		for (int i = 0; i < 52; i++) {
			double sum = 0;

			for (int j = 0; j < 12; j++) {
				x ^= x << 13;
				x ^= x >> 7;
				x ^= x << 17;
				sum += (double)(x >> 11) / 9007199254740992.0;
			}
			if (i < 40)
				a[i] = 100 + (sum - 6);
			else
				b[i - 40] = 103 + 4 * (sum - 6);
		}
		CHECK(shf_welch(&w, a, 40, b, 12));
		held += w.low <= 3 && 3 <= w.high;
	}
	printf("# seed 0x5eaf: %d of 4000 hold it\n", held);
	CHECK(held > 3740 && held < 3860);
}
