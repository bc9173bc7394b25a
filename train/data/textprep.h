/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a token file from text files, with a token for each byte. */
#ifndef TEXTPREP_H
#define TEXTPREP_H
#include <stdint.h>

#include "tr_error.h"

#define TR_BYTE_END 256                 /* the token that ends each document */

/* Writes the token file `out` from n files, each of which is a document. The file appears whole, or
 * not at all. *tokens receives the number of tokens. */
int tr_prepare_bytes(const char *const *in, int n, const char *out, int64_t *tokens,
		     struct tr_error *err);
#endif
