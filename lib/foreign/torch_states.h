/* SPDX-License-Identifier: Apache-2.0 */
/* State of an optimizer of torch, as its state_dict has it: state.<parameter>.<kind>. A parameter
 * is a number, unless the trainer has replaced it by its name. */
#ifndef SHF_TORCH_STATES_H
#define SHF_TORCH_STATES_H
#include "foreign.h"
#include "pickle.h"

/* If a name, without what comes before `state`, is that of state, sets *family and appends the name
 * under which it is shown, <prefix><parameter>/<kind>. Returns false for any other name. */
bool shf_torch_states_show(const char *name, size_t n, const char *prefix, const char **family,
                           struct shf_buf *shown);
/* Reads the names of parameters that the groups of an optimizer may have (param_names), from its
 * state_dict. *names gets const char * by number, NULL if it has none. Returns false if there is no
 * memory. */
bool shf_torch_states_read_names(struct shf_foreign *f, const struct shf_pk *dict,
                                 struct shf_buf *names);
/* Replaces the numbers of parameters in the names of the family "optimizer" by their names, if all
 * of them are known: from `names`, or because one tensor of the family "model" alone has the shape
 * of the state. Else a note says that they are numbers. */
int shf_torch_states_rename(struct shf_foreign *f, const struct shf_buf *names,
                            struct sheaf_error *err);
#endif
