/* SPDX-License-Identifier: Apache-2.0 */
/* Natural order of names: layer 9 before layer 10. Byte by byte, no locale. */
#include "place.h"
#include "decimal.h"
#include <stdbool.h>
#include <string.h>

struct run {
	const char *p;          /* digits: after the leading zeros */
	size_t n;
	size_t zeros;           /* leading zeros of a digit run; "0" and "00" are all zeros */
	bool digits;
};

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

/* Where to begin: names mostly begin alike, and equal runs say nothing. A run of digits in which
 * they part is looked at whole. */
static size_t same_start(const char *a, const char *b)
{
	size_t n = 0;

	while (a[n] && a[n] == b[n])
		n++;
	while (n > 0 && shf_is_digit(a[n - 1]))
		n--;
	return n;
}

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
