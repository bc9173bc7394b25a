/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of a save: what each rank sends to rank 0, and the table that rank 0 makes of them. */
#ifndef SHF_SAVE_SUMS_H
#define SHF_SAVE_SUMS_H
#include "save.h"

/* Appends the sums of headers and blocks that this rank wrote: u64 n, n times u32 file and u64 sum
 * of its header, u64 n, n times u64 block and u64 part of its sum. */
void shf_sums_put(const struct sheaf_save *save, struct shf_buf *b);
struct shf_sums_in {            /* of all ranks, XORed */
	uint64_t *headers, *blocks;     /* owned; by file, by block */
	const uint64_t *digests;        /* the save's, by tensor: of all ranks */
};
/* For rank 0. ENOMEM. free: also when new has failed. */
int shf_sums_new(struct shf_sums_in *in, const struct sheaf_save *save, struct sheaf_error *err);
void shf_sums_free(struct shf_sums_in *in);
/* Adds what one rank has put. EBUG if that does not fit the plan. */
int shf_sums_take(struct shf_sums_in *in, const struct shf_layout *l, struct shf_cur *c);
/* Compares the digests of the tensors of each file with the sums of its blocks (I4), and makes the
 * bytes of sheaf.sums. ECORRUPT names the file. */
int shf_sums_make(const struct sheaf_save *save, const struct shf_sums_in *in,
                  struct shf_arena *arena, struct shf_sums_out *out, struct sheaf_error *err);
#endif
