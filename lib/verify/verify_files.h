/* SPDX-License-Identifier: Apache-2.0 */
/* Checks headers, attached files, indexes, and what is in the directory besides. [local] */
#ifndef SHF_VERIFY_FILES_H
#define SHF_VERIFY_FILES_H
#include "verify.h"

/* A header of n bytes against the format and, where they are whole, the sums. */
int shf_verify_header(const struct shf_verify *v, uint32_t f, const uint8_t *bytes, size_t n,
                      struct shf_verify_at *at, struct sheaf_error *err);
void shf_verify_headers(struct shf_verify *v);  /* of this rank's files */
void shf_verify_small(struct shf_verify *v);    /* attached files and indexes, this rank's */
void shf_verify_extra(struct shf_verify *v);    /* what the manifest does not name */
#endif
