/* SPDX-License-Identifier: Apache-2.0 */
/* Counts tensors by outcome of a load (loaded, missing and so on) over all ranks. A tensor is
 * counted once, however many ranks hold pieces of it. */
#ifndef SHF_COUNT_TENSORS_H
#define SHF_COUNT_TENSORS_H
#include "group.h"

enum shf_tally_kind { SHF_T_LOADED, SHF_T_MISSING, SHF_T_UNEXPECTED, SHF_T_CONVERTED, SHF_T_DERIVED,
	SHF_T_IGNORED, SHF_T_MISMATCHED, SHF_T_ZEROED, SHF_T_UNVERIFIED, SHF_T_KINDS };
struct shf_tally {
	struct shf_buf *out;            /* owned; out[r]: records that are sent to rank r */
	int ranks;
};
/* 0 or ENOMEM. */
int shf_tally_init(struct shf_tally *t, int ranks);
void shf_tally_release(struct shf_tally *t);
/* Notes that this rank has a piece of a tensor of that kind. bytes: size of the whole tensor.
 * [local] */
void shf_tally_add(struct shf_tally *t, enum shf_tally_kind kind, const char *family,
                   const char *name, uint64_t bytes);
/* Sets counts[k] and bytes[k] to the number and size of all tensors of kind k on all ranks; both
 * have SHF_T_KINDS members. Also sums more_n words of the caller over all ranks, in place, in the
 * same operation; more_n is at most SHF_TALLY_MORE. [collective] */
#define SHF_TALLY_MORE 32
int shf_tally_count(struct shf_tally *t, struct shf_team *team, uint64_t *counts, uint64_t *bytes,
                    uint64_t *more, size_t more_n, struct sheaf_error *err);
/* Sets the n bits of x, in words of 64, to the OR of all ranks. A group has no OR, so the number of
 * ranks that have each bit is summed; `counts` is scratch memory of shf_or_words words, each with
 * several of these numbers. [collective] */
int shf_or(struct shf_team *team, uint64_t *x, size_t n, uint64_t *counts, struct sheaf_error *err);
/* Returns how many words `counts` must have for n bits. [local] */
size_t shf_or_words(const struct shf_team *team, size_t n);
#endif
