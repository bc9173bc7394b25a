/* SPDX-License-Identifier: Apache-2.0 */
/* Dictionaries that training scripts write with torch.save: {"model": <state_dict>, "optimizer":
 * <state_dict>, ...}. The state_dict of the optimizer numbers the parameters, and does not name
 * them. */
#ifndef SHF_TORCH_TRAINING_H
#define SHF_TORCH_TRAINING_H
#include "foreign.h"
#include "pickle.h"

struct shf_torch_training {
	const char *optimizer, *weights;        /* their keys in the dictionary; NULL: the file has
	                                         * no such dictionary */
	struct shf_buf ends;            /* owned; of uint32_t, by group of parameters: number + 1 of
	                                 * its last parameter */
	struct shf_buf names;           /* owned; of const char *: the names of parameters in the
	                                 * groups, as shf_torch_states_read_names reads them */
};
/* Fills in *t, which is zeroed, from the value in a file. Returns false if there is no memory. */
bool shf_torch_training_begin(struct shf_torch_training *t, struct shf_foreign *f,
                              const struct shf_pk *root);
/* Renames the states of the optimizer, which are listed as <optimizer>.state.<number>.<kind>, to
 * <weight>/<kind>, and puts them into the family "optimizer". The weight of a number is known
 * - if the groups say the names of their parameters, or
 * - if there are as many weights as parameters, and the weights in their order have the shapes of
 *   the states. A note then says that the names are from the order.
 * Otherwise the states stay as they are. */
int shf_torch_training_rename(const struct shf_torch_training *t, struct shf_foreign *f,
                              struct sheaf_error *err);
void shf_torch_training_release(struct shf_torch_training *t);
/* Returns the key number i under which such dictionaries usually have the weights, the commonest
 * first. NULL: there are not so many. */
const char *shf_torch_weights_key(size_t i);
#endif
