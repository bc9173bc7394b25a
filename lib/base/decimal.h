/* SPDX-License-Identifier: Apache-2.0 */
/* Decimal numbers as texts have them, compared exactly: nothing is rounded, and the locale of the
 * program, which may spell its point as a comma, has no say. */
#ifndef SHF_DECIMAL_H
#define SHF_DECIMAL_H
#include <stdbool.h>
#include <stdint.h>

#define SHF_DECIMAL_DIGITS 40
struct shf_decimal {            /* sign * 0.DIGITS * 10^at; zero has no digits */
	int sign;                       /* -1, 0, 1 */
	int32_t at;
	int n;
	char digits[SHF_DECIMAL_DIGITS];        /* the first and the last are not 0 */
};
/* [+-]digits[.digits][e[+-]digits], a digit before or behind the point, nothing before or after.
 * False: something else (a hexadecimal, an infinity, no number at all), more significant digits
 * than fit, more than 4096 characters before the e, or an exponent beyond a million. */
bool shf_decimal_read(struct shf_decimal *d, const char *text);
/* < 0, 0, > 0. */
int shf_decimal_cmp(const struct shf_decimal *a, const struct shf_decimal *b);
/* isdigit without the locale. */
static inline bool shf_is_digit(char c)
{
	return c >= '0' && c <= '9';
}
#endif
