/* SPDX-License-Identifier: Apache-2.0 */
#include "cpulist.h"
#include <string.h>

/* Reads a decimal number and moves *p past it. The loop stops as soon as the value is too large, so
 * it cannot overflow; the test at the end then fails. */
static bool cpu_number(const char **p, uint32_t *n)
{
	const char *from = *p;

	for (*n = 0; **p >= '0' && **p <= '9' && *n < SHF_CPUS_MAX; (*p)++)
		*n = *n * 10 + (uint32_t)(**p - '0');
	return *p > from && *n < SHF_CPUS_MAX;
}

/* Reading stops where a comma is expected and another character is found. The list is valid if that
 * character is the NUL. */
bool shf_cpulist(const char *text, uint64_t bits[SHF_CPUS_WORDS])
{
	const char *p = text;
	uint32_t lo, hi;

	memset(bits, 0, SHF_CPUS_WORDS * sizeof(*bits));
	do {
		if (!cpu_number(&p, &lo))
			return false;
		hi = lo;
		if (*p == '-' && (p++, !cpu_number(&p, &hi)))
			return false;
		if (hi < lo)
			return false;
		for (uint32_t n = lo; n <= hi; n++)
			bits[n / 64] |= UINT64_C(1) << n % 64;
	} while (*p++ == ',');
	return p[-1] == '\0';
}
