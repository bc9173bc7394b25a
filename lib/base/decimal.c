/* SPDX-License-Identifier: Apache-2.0 */
#include "decimal.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPONENT_MAX 1000000
#define TEXT_MAX 4096   /* most characters before the e; only a text with very many zeros has
                         * more */

/* The state while the digits of a mantissa are read, from the left to the right. */
struct taking {
	struct shf_decimal *d;
	int zeros;                      /* zeros after the last digit stored; stored when another
	                                 * digit follows */
	/* A digit was read; the point was read; more digits than fit were read. */
	bool any, point, full;
};

/* Adds a digit to the mantissa. Leading zeros are dropped; each of those after the point lowers the
 * exponent. Other zeros are only counted until another digit follows, so that the last digit is
 * never 0 and equal numbers have equal digits. `at` counts the digits before the point. */
static void decimal_take(struct taking *t, char c)
{
	struct shf_decimal *d = t->d;

	t->any = true;
	if (c == '0' && d->n == 0) {
		d->at -= t->point;
		return;
	}
	d->at += !t->point;
	if (c == '0') {
		t->zeros++;
		return;
	}
	if (d->n + t->zeros >= SHF_DECIMAL_DIGITS) {
		t->full = true;
		return;
	}
	memset(d->digits + d->n, '0', (size_t)t->zeros);
	d->n += t->zeros;
	d->digits[d->n++] = c;
	t->zeros = 0;
}

/* Reads the exponent, which must be all that follows the e, and adds it to *at. */
static bool exponent(const char *s, int32_t *at)
{
	bool minus = *s == '-';
	int32_t v = 0;

	s += minus || *s == '+';
	if (!shf_is_digit(*s))
		return false;
	for (; shf_is_digit(*s); s++) {
		v = 10 * v + (*s - '0');
		if (v > EXPONENT_MAX)
			return false;
	}
	*at += minus ? -v : v;
	return *s == '\0';
}

/* Reads the mantissa and then the exponent. The limit on the text keeps `at`, to which the exponent
 * is added, far below overflow. Zero gets no sign and no exponent, whatever the text says. */
bool shf_decimal_read(struct shf_decimal *d, const char *text)
{
	struct taking t = { .d = d };
	const char *s = text;

	*d = (struct shf_decimal){ .sign = *s == '-' ? -1 : 1 };
	s += *s == '-' || *s == '+';
	for (; shf_is_digit(*s) || (*s == '.' && !t.point); s++) {
		if (s - text > TEXT_MAX)
			return false;
		if (*s == '.')
			t.point = true;
		else
			decimal_take(&t, *s);
	}
	if (!t.any || t.full)
		return false;
	if (*s == 'e' || *s == 'E') {
		if (!exponent(s + 1, &d->at))
			return false;
	} else if (*s) {
		return false;
	}
	if (d->n == 0)
		d->sign = d->at = 0;
	return true;
}

/* Compares two numbers that are not zero, without their signs. Mantissas are 0.DIGITS with a
 * first digit that is not 0, so the exponent decides first. If one has the digits of the other
 * and more, it is larger, as its last digit is not 0. */
static int magnitude(const struct shf_decimal *a, const struct shf_decimal *b)
{
	int n = a->n < b->n ? a->n : b->n, c;

	if (a->at != b->at)
		return a->at < b->at ? -1 : 1;
	c = memcmp(a->digits, b->digits, (size_t)n);
	return c ? c : a->n - b->n;
}

int shf_decimal_cmp(const struct shf_decimal *a, const struct shf_decimal *b)
{
	if (a->sign != b->sign)
		return a->sign - b->sign;
	return a->sign == 0 ? 0 : a->sign * magnitude(a, b);
}

/* Sets locale "C" for the calling thread only, and returns the one that it had. That locale is
 * constant data of the C library: nothing is allocated. */
static locale_t enter_c(void)
{
	return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

double shf_decimal_strtod(const char *text, char **end)
{
	locale_t was = enter_c();
	double v = strtod(text, end);

	uselocale(was);
	return v;
}

void shf_decimal_print(char text[SHF_DECIMAL_DOUBLE], double v)
{
	locale_t was = enter_c();

	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, SHF_DECIMAL_DOUBLE, "%.*g", digits, v);
		if (strtod(text, NULL) == v)
			break;
	}
	uselocale(was);
}

void shf_decimal_add(struct shf_buf *out, uint64_t v)
{
	char text[20];          /* any value of 64 bits */
	size_t at = sizeof(text);

	do {
		text[--at] = (char)('0' + v % 10);
		v /= 10;
	} while (v > 0);
	shf_buf_add(out, text + at, sizeof(text) - at);
}
