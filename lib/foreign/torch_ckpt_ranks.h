/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of torch_checkpointing that is being opened: the files of its ranks, and what each
 * of them has of each tensor. */
#ifndef SHF_TORCH_CKPT_RANKS_H
#define SHF_TORCH_CKPT_RANKS_H
#include "foreign.h"
#include "pickle.h"

#define SHF_CKPT_METADATA "metadata.pkl"

struct shf_ckpt_part {          /* a tensor in the file of a rank */
	struct shf_foreign_tensor t;    /* as it would be listed if the file were read alone */
	struct shf_foreign_piece piece;
	int64_t rank;
	bool used;
};
struct shf_ckpt {
	struct shf_foreign *f;
	struct sheaf_error *err;
	struct shf_pickle pickle;
	struct shf_buf parts;           /* owned; of struct shf_ckpt_part, by name and rank
	                                 * once sorted */
	const char *item;               /* the present one; borrowed */
	int64_t ranks;
	bool oom;                       /* what was taken for a flaw was a lack of memory */
};
int shf_ckpt_no_memory(const struct shf_ckpt *c);
/* Refuses metadata.pkl. name: the tensor that is meant, or NULL. */
int shf_ckpt_bad(const struct shf_ckpt *c, const char *name, const char *why);
/* Copies a text of the pickle. NULL: it is none, has a NUL, or there is no memory. */
const char *shf_ckpt_text(struct shf_ckpt *c, const struct shf_pk *v);
/* Adds what the files of the present item, of all ranks, have, and sorts the parts. layouts: what
 * rank_to_layout_info says, by rank. */
int shf_ckpt_add_files(struct shf_ckpt *c, const struct shf_pk *layouts);
/* Finds what a rank has of a tensor. NULL: nothing. */
struct shf_ckpt_part *shf_ckpt_part_of(const struct shf_ckpt *c, const char *name, int64_t rank);
#endif
