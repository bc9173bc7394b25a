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
struct shf_torch_states {       /* of one optimizer */
	const char *prefix;             /* what comes before the numbers of its parameters */
	size_t first, end;              /* its weights are tensors first to end - 1 of the family
	                                 * "model" */
	const char *weights;            /* what comes before the names in `names` */
	const struct shf_buf *names;    /* as read by shf_torch_states_read_names */
	bool checked;                   /* the names must be those of weights, of the same shapes */
};
/* Replaces the numbers of parameters in the names of the family "optimizer" by their names, if all
 * of them are known: from the names that were read, or because one of the weights alone has the
 * shape of the state. Else a note says that they are numbers. */
int shf_torch_states_rename(struct shf_foreign *f, const struct shf_torch_states *of,
                            struct sheaf_error *err);
/* Returns whether a state of this kind, as it is shown, has the shape of its parameter in every
 * optimizer. Those of other kinds may have the shape of another parameter: those of Adafactor have
 * one value for each row or column. */
bool shf_torch_state_has_shape(const char *kind);
int shf_torch_shape_compare(const struct shf_foreign_tensor *x, const struct shf_foreign_tensor *y);
#endif
