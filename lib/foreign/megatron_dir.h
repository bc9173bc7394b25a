/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of Megatron: which folder has the save, and of which kind it is. */
#ifndef SHF_MEGATRON_DIR_H
#define SHF_MEGATRON_DIR_H
#include "foreign_st.h"

struct shf_megatron_dir {
	bool ranks;                     /* it has a folder for each rank, mp_rank_<NN>; else it is
	                                 * one of Megatron-Core, torch_dist */
	char folder[32];                /* of the directory, which has the save; "": that itself */
};
/* Finds the save in a directory: in it, or in the folder that its
 * latest_checkpointed_iteration.txt names. Returns 1; 0 if it is no directory of Megatron. EFORMAT:
 * that folder is not there. */
int shf_megatron_find(struct shf_megatron_dir *d, const struct shf_sys *sys, int dir,
                      const char *path, struct sheaf_error *err);
/* Takes the name of a folder of a rank apart: mp_rank_<tensor>, mp_rank_<tensor>_<pipeline>, or
 * either with _<expert>. Returns how many numbers it has, or 0 if it is no such name. */
int shf_megatron_rank_of(const char *name, int number[3]);
#endif
