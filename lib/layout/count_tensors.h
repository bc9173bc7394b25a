/* SPDX-License-Identifier: Apache-2.0 */
/* Counts tensors by outcome of a load (loaded, missing and so on) over all ranks. A tensor is
 * counted once, however many ranks hold pieces of it. */
#ifndef SHF_COUNT_TENSORS_H
#define SHF_COUNT_TENSORS_H
#include "group.h"

enum shf_tensor_count_kind { SHF_COUNT_LOADED, SHF_COUNT_MISSING, SHF_COUNT_UNEXPECTED,
        SHF_COUNT_CONVERTED, SHF_COUNT_DERIVED,
	SHF_COUNT_IGNORED, SHF_COUNT_MISMATCHED, SHF_COUNT_ZEROED, SHF_COUNT_UNVERIFIED,
	        SHF_COUNT_KINDS };
struct shf_tensor_counts {
	struct shf_buf *out;            /* owned; out[r]: records that are sent to rank r */
	int ranks;                      /* number of ranks of the group */
	/* By kind: number and size of the tensors that this rank counts as their home. Set by
	 * shf_tensor_counts_exchange or shf_tensor_counts_unpack. */
	uint64_t counts[SHF_COUNT_KINDS], bytes[SHF_COUNT_KINDS];
};
/* Makes an empty tally. ENOMEM; call shf_tensor_counts_release in any case. */
int shf_tensor_counts_init(struct shf_tensor_counts *t, int ranks);
void shf_tensor_counts_release(struct shf_tensor_counts *t);
/* Notes that this rank has a piece of a tensor of that kind. bytes: size of the whole tensor. Must
 * not be called after the records were sent. [local] */
void shf_tensor_counts_add(struct shf_tensor_counts *t, enum shf_tensor_count_kind kind,
                           const char *family, const char *name, uint64_t bytes);
/* Sends the records to their home ranks, which count each tensor once, in counts and bytes. The
 * caller gets the result of the load by summing these over all ranks. rc: 0, or a failure of this
 * rank before the call, which is then returned on all ranks. [collective] */
int shf_tensor_counts_exchange(struct shf_tensor_counts *t, struct shf_team *team, int rc,
                               struct sheaf_error *err);
/* These two do what shf_tensor_counts_exchange does, in an exchange that the caller makes anyway.
 * pack: appends the records to out[r], the message to rank r, which must be empty. unpack: removes
 * the records from the messages that arrived, in_bytes[r] bytes from rank r, and counts them; what
 * is left stays packed in rank order. ENOMEM, EBUG. [local] */
void shf_tensor_counts_pack(const struct shf_tensor_counts *t, struct shf_buf *out);
int shf_tensor_counts_unpack(struct shf_tensor_counts *t, struct shf_buf *in, size_t *in_bytes);
/* Sets the n bits of x, in words of 64, to the OR over all ranks. A group has no OR, so for each
 * bit a sum counts the ranks that have it. counts: memory for these counters, several to a word:
 * shf_allreduce_or_words words. After them come `more` words of the caller, which the same
 * operation sums over all ranks. [collective] */
int shf_allreduce_or(struct shf_team *team, uint64_t *x, size_t n, uint64_t *counts, size_t more,
                     struct sheaf_error *err);
/* Returns how many words `counts` needs for n bits, without the `more` words of the caller.
 * [local] */
size_t shf_allreduce_or_words(const struct shf_team *team, size_t n);
#endif
