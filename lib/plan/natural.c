/* SPDX-License-Identifier: Apache-2.0 */
/* Natural order of names: layer 9 before layer 10. Byte by byte, no locale. */
#include "natural.h"
#include "decimal.h"
#include <stdbool.h>
#include <string.h>

/* A maximal run of digits, or of other bytes. */
struct run {
	const char *p;          /* digits: after the leading zeros */
	size_t n;
	size_t zeros;           /* leading zeros of a digit run; "0" and "00" are all zeros */
	bool digits;
};

/* Returns the next run and moves *s past it. Leading zeros are counted and left out, so that the
 * lengths of two runs of digits compare their values before any digit does. */
static struct run run_take(const char **s)
{
	struct run r = { .digits = shf_is_digit(**s) };
	const char *p = *s;

	if (r.digits) {
		for (; *p == '0'; p++)
			r.zeros++;
	}
	r.p = p;
	for (; *p && shf_is_digit(*p) == r.digits; p++)
		r.n++;
	*s = p;
	return r;
}

/* Compares two runs. Digit runs without leading zeros compare as numbers of any length: the
 * longer one is larger, and equal lengths compare by bytes. No conversion to an integer can
 * overflow. */
static int run_compare(const struct run *a, const struct run *b)
{
	size_t n = a->n < b->n ? a->n : b->n;
	int c;

	if (a->digits != b->digits)
		return a->digits ? -1 : 1;
	if (a->digits && a->n != b->n)
		return a->n < b->n ? -1 : 1;
	c = memcmp(a->p, b->p, n);
	if (c != 0)
		return c;
	return a->n == b->n ? 0 : a->n < b->n ? -1 : 1;
}

/* Returns the position from which two names must be compared. Names mostly begin alike, and equal
 * runs decide nothing. The position moves back to the start of a run of digits, because a number is
 * compared as a whole: 12 and 13 differ only in their last digit. Leading zeros in the common part
 * are as many in both names, so their counts need not be added. */
static size_t same_start(const char *a, const char *b)
{
	size_t n = 0;

	while (a[n] && a[n] == b[n])
		n++;
	while (n > 0 && shf_is_digit(a[n - 1]))
		n--;
	return n;
}

/* Names that are equal by value, as a01 and a1, are ordered by their zeros and then by bytes,
 * so the order is total. Sorting by a partial order would let the layout depend on the order of
 * the input. */
int shf_natural(const char *a, const char *b)
{
	size_t p_zeros = 0, q_zeros = 0, same = same_start(a, b);
	const char *p = a + same, *q = b + same;

	while (*p && *q) {
		struct run x = run_take(&p), y = run_take(&q);
		int c = run_compare(&x, &y);

		if (c != 0)
			return c;
		p_zeros += x.zeros;
		q_zeros += y.zeros;
	}
	if (*p || *q)
		return *p ? 1 : -1;
	if (p_zeros != q_zeros)
		return p_zeros < q_zeros ? -1 : 1;
	return strcmp(a, b);
}
