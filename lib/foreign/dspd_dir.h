/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the files of a checkpoint of DeepSpeed. A directory of saves has a folder for each, and a
 * file `latest` with the name of one; the folder itself is a checkpoint, too. */
#ifndef SHF_DSPD_DIR_H
#define SHF_DSPD_DIR_H
#include "foreign_st.h"

struct shf_dspd_name {          /* what the name of a file says */
	bool optimizer;                 /* <..>_optim_states.pt; false: <..>_model_states.pt */
	int dp, mp;                     /* ranks of data and of model parallelism. dp -1: the
	                                 * file is for all */
};
/* Returns false if it is no such name. */
bool shf_dspd_name_of(struct shf_dspd_name *x, const char *name);
struct shf_dspd_layer { int layer, tp; bool expert; };  /* a file of a layer or an expert */
/* Splits the name of such a file. Returns false for any other name. */
bool shf_dspd_layer_of(struct shf_dspd_layer *x, const char *name);
struct shf_dspd_dir {
	const char *folder;             /* in the arena; NULL: the directory itself */
	bool universal;                 /* the folder was made by ds_to_universal */
	const char *why;                /* what it was recognised by */
};
/* Returns 1 and fills in *d if the directory, or the folder that its file `latest` names, has files
 * of DeepSpeed; else 0. EFORMAT: it has, but does not say which folder is meant. */
int shf_dspd_find(struct shf_dspd_dir *d, struct shf_arena *arena, const struct shf_sys *sys,
                  int dir, const char *path, struct sheaf_error *err);
#endif
