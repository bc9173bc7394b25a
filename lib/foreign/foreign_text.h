/* SPDX-License-Identifier: Apache-2.0 */
/* Reads bytes that a file has as a text. */
#ifndef SHF_FOREIGN_TEXT_H
#define SHF_FOREIGN_TEXT_H
#include "foreign.h"

/* Reads bytes [at, at + n) of those that the text stands for. The first read goes through the whole
 * text once, to find out where its parts begin. EFORMAT: it is not the text of that many bytes.
 * [any thread] */
int shf_foreign_text_read(struct shf_foreign *f, struct shf_foreign_text *text,
                          const struct shf_region *r, uint8_t *to, uint64_t n, uint64_t at,
                          struct sheaf_error *err);
#endif
