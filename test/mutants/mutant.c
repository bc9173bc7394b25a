/* SPDX-License-Identifier: Apache-2.0 */
/* SHEAF_MUTANT=NAME wakes one planted bug; without it all sleep. */
#include "mutant.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int shf_mutant;

__attribute__((constructor)) static void choose(void)
{
	static const char *const names[] = { MUTANT_NAMES };
	const char *want = getenv("SHEAF_MUTANT");

	if (!want)
		return;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(names[i], want) == 0) {
			shf_mutant = (int)i;
			return;
		}
	fprintf(stderr, "no mutant '%s'\n", want);
	exit(99);
}
