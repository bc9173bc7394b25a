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
/* Says that a block has the sum `got` instead of `want`. who: the tensor that is suspected. */
int shf_block_fail(const struct sheaf_step *step, uint32_t f, uint64_t block, uint64_t got,
                   uint64_t want, const char *who, struct sheaf_error *err);
/* Number of the record of file f whose tensor is damaged, as far as n bytes of the file at lo can
 * tell, a block that has the wrong sum: a tensor that lies in the block whole is known by its
 * digest. UINT64_MAX: there is none; *part is then the first tensor that reaches out of the block,
 * or UINT64_MAX. [local] */
uint64_t shf_block_suspect(const struct sheaf_step *step, uint32_t f, uint64_t lo,
                           const uint8_t *bytes, uint64_t n, uint64_t *part);
/* Number of the first record of file f whose tensor ends after byte `at`. [local] */
uint64_t shf_step_record(const struct sheaf_step *step, uint32_t f, uint64_t at);
#endif
