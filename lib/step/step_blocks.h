/* SPDX-License-Identifier: Apache-2.0 */
/* Checks bytes of a step against its sums, block by block, and reads the headers of its files. */
#ifndef SHF_STEP_BLOCKS_H
#define SHF_STEP_BLOCKS_H
#include "step.h"

/* Checks n bytes of file f, which start at byte lo of it, against the sums. lo must be the start of
 * a block, and only the last block of the file may be short. Also checks under
 * SHEAF_RUN_UNVERIFIED. ECORRUPT: the message names file, block, offset and tensor of the first bad
 * block. *first_bad (may be NULL): the number of that block in the file; -1: all blocks are right.
 * [local] */
int shf_blocks_check(const struct sheaf_checkpoint *step, uint32_t f, uint64_t lo,
                     const uint8_t *bytes, uint64_t n, int64_t *first_bad, struct sheaf_error *err);
/* Reads the header of file f into out, and checks its blocks if the step has sums and
 * SHEAF_RUN_UNVERIFIED is not set. *file_bytes: size of the file on disk, set once it is known.
 * [local] */
int shf_header_read(struct sheaf_checkpoint *step, uint32_t f, uint64_t *file_bytes,
                    struct shf_buf *out, struct sheaf_error *err);
/* Fills in *t from the header entry st of file f. header_bytes of that file must be known. On
 * EFORMAT or ECORRUPT the message goes to step->cat_err. */
int shf_catalog_tensor(struct sheaf_checkpoint *step, const struct shf_st_tensor *st, uint32_t f,
                       struct shf_lt_tensor *t);
/* Compares `got`, the standard sum of a block of file f, with the sum in the table. The step must
 * have sums. ECORRUPT has the same message as in shf_blocks_check. [local] */
int shf_block_check(const struct sheaf_checkpoint *step, uint32_t f, uint64_t block, uint64_t got,
                    struct sheaf_error *err);
/* Returns ECORRUPT with the message that a block has the sum `got` instead of `want`. who: the
 * tensor that is suspected, or "header". */
int shf_block_fail(const struct sheaf_checkpoint *step, uint32_t f, uint64_t block, uint64_t got,
                   uint64_t want, const char *who, struct sheaf_error *err);
/* Finds out which tensor is damaged in a block that has the wrong sum. The block is the n `bytes`
 * at `lo` of file f. Returns the number of the record of a tensor that lies within the block and
 * does not match its digest, or UINT64_MAX if there is no such tensor. In that case *part is the
 * number of the first tensor that extends beyond the block, so that its digest cannot be checked
 * here; UINT64_MAX: no tensor does. [local] */
uint64_t shf_block_suspect(const struct sheaf_checkpoint *step, uint32_t f, uint64_t lo,
                           const uint8_t *bytes, uint64_t n, uint64_t *part);
/* Returns the number of the first record of file f whose tensor ends after byte `at`. [local] */
uint64_t shf_step_record(const struct sheaf_checkpoint *step, uint32_t f, uint64_t at);
#endif
