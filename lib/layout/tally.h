/* SPDX-License-Identifier: Apache-2.0 */
/* Counting tensors over all ranks, each once, however many ranks hold pieces of it. */
#ifndef SHF_TALLY_H
#define SHF_TALLY_H
#include "group.h"

enum shf_tally_kind { SHF_T_LOADED, SHF_T_MISSING, SHF_T_UNEXPECTED, SHF_T_CONVERTED, SHF_T_DERIVED,
	SHF_T_IGNORED, SHF_T_MISMATCHED, SHF_T_ZEROED, SHF_T_UNVERIFIED, SHF_T_KINDS };
struct shf_tally {
	struct shf_buf *out;            /* owned; by home rank */
	int ranks;
};
int shf_tally_init(struct shf_tally *t, int ranks);
void shf_tally_release(struct shf_tally *t);
/* bytes: of the tensor, summed once. [local] */
void shf_tally_add(struct shf_tally *t, enum shf_tally_kind kind, const char *family,
                   const char *name, uint64_t bytes);
/* counts and bytes: SHF_T_KINDS members. more: SHF_TALLY_MORE words at most, which are summed over
 * all ranks in place, in the same operation. [collective] */
#define SHF_TALLY_MORE 32
int shf_tally_count(struct shf_tally *t, struct shf_team *team, uint64_t *counts, uint64_t *bytes,
                    uint64_t *more, size_t more_n, struct sheaf_error *err);
/* n bits, in words of 64, of all ranks, ORed in place. A group has no OR: how many ranks have a bit
 * is counted, several counts in a word of `counts`, and one sum does for all. [collective] */
int shf_or(struct shf_team *team, uint64_t *x, size_t n, uint64_t *counts, struct sheaf_error *err);
/* How many words counts must have. [local] */
size_t shf_or_words(const struct shf_team *team, size_t n);
#endif
