/* SPDX-License-Identifier: Apache-2.0 */
/* What every target shares: the entry point's name, and the check that stops a fuzzer. */
#ifndef FUZZ_H
#define FUZZ_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Not assert: it must count in a release build too. */
#define MUST(x)                                                               \
	do {                                                                  \
		if (!(x)) {                                                   \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
			abort();                                              \
		}                                                             \
	} while (0)
#endif
