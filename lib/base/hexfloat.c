/* SPDX-License-Identifier: Apache-2.0 */
#include "hexfloat.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes the number by hand, because printf's %a may choose another first digit and uses the
 * locale's point. frexp() gives m in [0.5, 1); the 53 bits of m without the first, which is
 * always 1, are 13 hex digits. Zeros at the end are left out, so each number has one text.
 * Denormals are normalized by frexp() and need no case of their own. */
void shf_hexfloat_put(char text[SHF_HEXFLOAT], double v)
{
	int exp = 0, n = 13;
	double m = frexp(fabs(v), &exp);
	uint64_t digits = (uint64_t)ldexp(m, 53) & ((UINT64_C(1) << 52) - 1);

	for (; n > 0 && (digits & 15) == 0; n--)
		digits >>= 4;
	if (m == 0)
		snprintf(text, SHF_HEXFLOAT, "%s0x0p+0", signbit(v) ? "-" : "");
	else if (n == 0)
		snprintf(text, SHF_HEXFLOAT, "%s0x1p%+d", signbit(v) ? "-" : "", exp - 1);
	else
		snprintf(text, SHF_HEXFLOAT, "%s0x1.%0*llxp%+d", signbit(v) ? "-" : "", n,
		         (unsigned long long)digits, exp - 1);
}

/* Reads the number and writes it again: only the text that shf_hexfloat_put() would write is
 * accepted, so equal numbers have equal texts in all manifests. The comparison also refuses what
 * the loose parsing accepts, such as spaces before the exponent. */
bool shf_hexfloat_get(double *v, const char *text)
{
	const char *p = text + (text[0] == '-');
	char again[SHF_HEXFLOAT];
	uint64_t digits = 0;
	double got;
	int n = 0;
	char *end;
	long exp;

	if (strncmp(p, "0x", 2) != 0)
		return false;
	if (p[2] != '0' && p[2] != '1')
		return false;
	digits = p[2] == '1';
	p += 3;
	if (*p == '.')
		for (p++; n < 13 && *p && strchr("0123456789abcdef", *p); n++, p++)
			digits = digits << 4 |
				 (uint64_t)(strchr("0123456789abcdef", *p) - "0123456789abcdef");
	if (*p != 'p')
		return false;
	exp = strtol(p + 1, &end, 10);
	if (exp < -1074 || exp > 1023)
		return false;
	got = ldexp((double)digits, (int)exp - 4 * n);
	got = text[0] == '-' ? -got : got;
	shf_hexfloat_put(again, got);
	*v = got;
	return strcmp(again, text) == 0;
}
