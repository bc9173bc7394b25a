/* SPDX-License-Identifier: Apache-2.0 */
/* Decimal numbers in text, compared exactly: nothing is rounded, and the locale of the program,
 * which may use a comma for the point, does not matter. */
#ifndef SHF_DECIMAL_H
#define SHF_DECIMAL_H
#include <stdbool.h>
#include <stdint.h>
#include "mem.h"

#define SHF_DECIMAL_DIGITS 40
struct shf_decimal {            /* sign * 0.DIGITS * 10^at; zero has no digits */
	int sign;                       /* -1, 0, 1 */
	int32_t at;                     /* power of ten, as above */
	int n;                          /* number of digits */
	char digits[SHF_DECIMAL_DIGITS];        /* the first and the last are not 0 */
};
/* Reads [+-]digits[.digits][e[+-]digits], with at least one digit before or after the point, and no
 * other character before or after. Returns false for anything else (a hexadecimal, an infinity, a
 * text without a number), for more significant digits than fit, for more than 4096 characters
 * before the e, and for an exponent beyond a million. */
bool shf_decimal_read(struct shf_decimal *d, const char *text);
/* Returns a value < 0, 0 or > 0, as a is less than, equal to or greater than b. */
int shf_decimal_cmp(const struct shf_decimal *a, const struct shf_decimal *b);
#define SHF_DECIMAL_DOUBLE 40   /* bytes for a double as text */
/* Does what strtod() does in locale "C", whatever the locale. */
double shf_decimal_strtod(const char *text, char **end);
/* Writes the shortest of 15 to 17 digits that give v back, as %g does in locale "C". */
void shf_decimal_print(char text[SHF_DECIMAL_DOUBLE], double v);
/* Appends the digits of v. For texts with very many numbers, for which printf takes long. */
void shf_decimal_add(struct shf_buf *out, uint64_t v);
/* Does what isdigit() does, whatever the locale. */
static inline bool shf_is_digit(char c)
{
	return c >= '0' && c <= '9';
}
#endif
