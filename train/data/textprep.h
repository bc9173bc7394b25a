/* SPDX-License-Identifier: Apache-2.0 */
/* Text files into a token file, a token a byte. */
#ifndef TEXTPREP_H
#define TEXTPREP_H
#include <stdint.h>

#include "tr_error.h"

#define TR_BYTE_END 256                 /* ends each document; bytes are 0 to 255 */

/* Writes the token file `out` from n files, each of which is a document. The file appears whole, or
 * not at all. tokens receives how many there are. */
int tr_prepare_bytes(const char *const *in, int n, const char *out, int64_t *tokens,
		     struct tr_error *err);
#endif
