/* SPDX-License-Identifier: Apache-2.0 */
/* Checks headers, attached files and indexes, and finds files that do not belong to the step.
 * [local] */
#ifndef SHF_VERIFY_FILES_H
#define SHF_VERIFY_FILES_H
#include "verify.h"

/* Checks the n bytes of a header: that it is valid, and if there is a table of sums, that both
 * describe the same tensors. Fills in *at on failure. */
int shf_verify_header(const struct shf_verify *v, uint32_t f, const uint8_t *bytes, size_t n,
                      struct shf_verify_at *at, struct sheaf_error *err);
void shf_verify_headers(struct shf_verify *v);  /* headers of the files dealt to this rank */
void shf_verify_small(struct shf_verify *v);    /* attached files and indexes dealt to this rank */
/* Reports files that the manifest does not name; rank 0 only. */
void shf_verify_extra(struct shf_verify *v);
#endif
