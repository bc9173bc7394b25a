/* SPDX-License-Identifier: Apache-2.0 */
/* State of the optimizer in a checkpoint of torch.distributed.checkpoint. get_state_dict names the
 * parameters there: optim.state.layers.0.weight.exp_avg belongs to model.layers.0.weight. */
#ifndef SHF_TORCH_DCP_STATES_H
#define SHF_TORCH_DCP_STATES_H
#include "foreign.h"

/* Renames tensors <optimizer>.state.<parameter>.<kind>, which are listed in the family "model", to
 * <weight>/<kind>, and puts them into the family "optimizer". <weight> is the name of the parameter
 * in the checkpoint: <parameter>, behind the keys of a dictionary in which <optimizer> is, and
 * maybe one more key that is usual for weights, such as `model`. Either all
 * states of an optimizer are renamed, or none. They are renamed if each parameter is a weight of
 * the checkpoint, no other optimizer has state of it, and moments have the shape of their weight.
 * ENOMEM. */
int shf_dcp_states_rename(struct shf_foreign *f, struct sheaf_error *err);
#endif
