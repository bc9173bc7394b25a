/* SPDX-License-Identifier: Apache-2.0 */
/* Checks bytes of a step against its sums, block by block, and reads the headers of its files. */
#ifndef SHF_STEP_BLOCKS_H
#define SHF_STEP_BLOCKS_H
#include "step.h"

/* Checks n bytes of file f from byte lo on, whole blocks; UNVERIFIED passes. ECORRUPT names
 * file, block, offset, tensor. first_bad: block of the file, or -1. [local] */
int shf_blocks_check(const struct sheaf_step *step, uint32_t f, uint64_t lo, const uint8_t *bytes,
                     uint64_t n, int64_t *first_bad, struct sheaf_error *err);
/* Reads the header of file f and checks its blocks where sums exist; *file_bytes: as on disk.
 * [local] */
int shf_header_read(struct sheaf_step *step, uint32_t f, uint64_t *file_bytes, struct shf_buf *out,
                    struct sheaf_error *err);
/* A tensor of file f, whose header_bytes are known. EFORMAT, ECORRUPT with step->cat_err. */
int shf_catalog_tensor(struct sheaf_step *step, const struct shf_st_tensor *st, uint32_t f,
                       struct shf_lt_tensor *t);
/* One block of file f, that has the standard sum `got`, against its own; the step has sums. The
 * sentence as above. [local] */
int shf_block_check(const struct sheaf_step *step, uint32_t f, uint64_t block, uint64_t got,
                    struct sheaf_error *err);
/* Name of the tensor that byte `at` of file f belongs to: "family/name", or "header". */
const char *shf_tensor_at(const struct sheaf_step *step, uint32_t f, uint64_t at, char *text,
                          size_t n);
#endif
