/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums of a save: encodes what each rank sends to rank 0, and makes the table sheaf.sums
 * from it. */
#ifndef SHF_SAVE_SUMS_H
#define SHF_SAVE_SUMS_H
#include "layout_record.h"
#include "save.h"

/* Appends the sums of the headers and blocks that this rank wrote: u64 n, n times u32 file and u64
 * sum of its header, u64 n, n times u64 block and u64 part of its sum. A block that several ranks
 * wrote has a part from each. */
void shf_save_sums_put(const struct sheaf_save *save, struct shf_buf *b);
/* On rank 0: allocates *in, the sums of all ranks combined by XOR. shf_save_sums_free must be
 * called even after a failure. ENOMEM. */
int shf_save_sums_new(struct shf_layout_sums *in, const struct sheaf_save *save,
                      struct sheaf_error *err);
void shf_save_sums_free(struct shf_layout_sums *in);
/* Decodes what shf_save_sums_put made on one rank, and adds it to *in. EBUG if it does not fit the
 * plan. */
int shf_save_sums_take(struct shf_layout_sums *in, const struct shf_layout *l, struct shf_cur *c);
/* Compares the digests of the tensors in each file with the sums of its blocks (I4), and makes the
 * contents of sheaf.sums. ECORRUPT names the file where they differ. ENOMEM. */
int shf_save_sums_make(const struct sheaf_save *save, const struct shf_layout_sums *in,
                       struct shf_arena *arena, struct shf_save_sums_out *out,
                               struct sheaf_error *err);
#endif
