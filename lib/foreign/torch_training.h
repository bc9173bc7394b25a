/* SPDX-License-Identifier: Apache-2.0 */
/* Dictionaries of torch.save as trainings write them: {"model": <state_dict>, "optimizer":
 * <state_dict>, ...}. The state of the optimizer has numbers for parameters there. */
#ifndef SHF_TORCH_TRAINING_H
#define SHF_TORCH_TRAINING_H
#include "foreign.h"
#include "pickle.h"

struct shf_torch_training {
	const char *optimizer, *weights;        /* the keys; NULL: the file is no such dictionary */
	struct shf_buf ends;            /* owned; of uint32_t: by group of parameters, the number
	                                 * behind that of its last one */
	struct shf_buf names;           /* owned; of const char *: names of parameters that the
	                                 * groups have, as in torch_states.h */
};
/* Looks at the values of a file. Returns false if there is no memory. */
bool shf_torch_training_begin(struct shf_torch_training *t, struct shf_foreign *f,
                              const struct shf_pk *root);
/* Gives the states of the optimizer, which are listed as <optimizer>.state.<number>.<kind>, the
 * family "optimizer" and the names of their parameters, <weight>/<kind>, if these are known:
 * because the groups have names, or because the weights are as many as the parameters, and one by
 * one of the same shapes. A note says that the order tells it. Else they stay as they are. */
int shf_torch_training_rename(const struct shf_torch_training *t, struct shf_foreign *f,
                              struct sheaf_error *err);
void shf_torch_training_release(struct shf_torch_training *t);
#endif
