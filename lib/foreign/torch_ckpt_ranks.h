/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of torch_checkpointing that is being opened: the files of its ranks, and the part of
 * each tensor in each file. */
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
	const char *item;               /* name of the item that is being read; borrowed */
	int64_t ranks;                  /* how many ranks saved */
	bool oom;                       /* an allocation failed; shf_ckpt_bad says so instead */
};
int shf_ckpt_no_memory(const struct shf_ckpt *c);
/* Refuses metadata.pkl. name: of the tensor that is wrong; NULL: it is something else. */
int shf_ckpt_bad(const struct shf_ckpt *c, const char *name, const char *why);
/* Copies a text of the pickle. Returns NULL if v is no text, if it has a NUL, or if there is no
 * memory. */
const char *shf_ckpt_text(struct shf_ckpt *c, const struct shf_pk *v);
/* Lists the tensors in the files of the current item as parts, and sorts the parts. layouts:
 * rank_to_layout_info, a dictionary that names the file of each rank. */
int shf_ckpt_add_files(struct shf_ckpt *c, const struct shf_pk *layouts);
/* Returns the part of a tensor in the file of a rank, or NULL if the file has none. */
struct shf_ckpt_part *shf_ckpt_part_of(const struct shf_ckpt *c, const char *name, int64_t rank);
#endif
