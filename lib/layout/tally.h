/* SPDX-License-Identifier: Apache-2.0 */
/* Counts tensors by outcome of a load (loaded, missing and so on) over all ranks. A tensor is
 * counted once, however many ranks hold pieces of it. */
#ifndef SHF_TALLY_H
#define SHF_TALLY_H
#include "group.h"

enum shf_tally_kind { SHF_T_LOADED, SHF_T_MISSING, SHF_T_UNEXPECTED, SHF_T_CONVERTED, SHF_T_DERIVED,
	SHF_T_IGNORED, SHF_T_MISMATCHED, SHF_T_ZEROED, SHF_T_UNVERIFIED, SHF_T_KINDS };
struct shf_tally {
	struct shf_buf *out;            /* owned; out[r]: records that are sent to rank r */
	int ranks;
	uint64_t counts[SHF_T_KINDS], bytes[SHF_T_KINDS];       /* of what this rank is to count */
};
/* 0 or ENOMEM. */
int shf_tally_init(struct shf_tally *t, int ranks);
void shf_tally_release(struct shf_tally *t);
/* bytes: of the tensor, summed once. Not after the records have travelled. [local] */
void shf_tally_add(struct shf_tally *t, enum shf_tally_kind kind, const char *family,
                   const char *name, uint64_t bytes);
/* Brings the records to their homes, which count each tensor once. The sums over all ranks of their
 * counts and bytes are then what all ranks have together. [collective] */
int shf_tally_meet(struct shf_tally *t, struct shf_team *team, int rc, struct sheaf_error *err);
/* The same in an exchange of the caller's: puts the records, before anything else, into the buffers
 * for their homes; takes them out of what came, of which the rest stays, packed as before; counts
 * them. 0, ENOMEM, EBUG. [local] */
void shf_tally_pack(const struct shf_tally *t, struct shf_buf *out);
int shf_tally_unpack(struct shf_tally *t, struct shf_buf *in, size_t *in_bytes);
/* n bits, in words of 64, of all ranks, ORed in place. A group has no OR: how many ranks have a
 * bit is counted, several counts in a word of `counts`, and one sum does for all. Behind them
 * counts has `more` words of the caller's, which are summed, too. [collective] */
int shf_or(struct shf_team *team, uint64_t *x, size_t n, uint64_t *counts, size_t more,
           struct sheaf_error *err);
/* How many words counts must have besides. [local] */
size_t shf_or_words(const struct shf_team *team, size_t n);
#endif
