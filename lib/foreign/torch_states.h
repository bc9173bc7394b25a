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
struct shf_torch_states {       /* the states of one optimizer, and the weights that it updates */
	const char *prefix;             /* begins the names of the states, before the number */
	size_t first, end;              /* the weights are those tensors of the family "model" that
	                                 * are numbered first to end - 1 in the list */
	const char *weights;            /* begins the names of the weights; the rest is as in
	                                 * `names` */
	const struct shf_buf *names;    /* as read by shf_torch_states_read_names */
	bool checked;                   /* `names` count only if each is the name of a weight of the
	                                 * same shape */
};
/* The names of states have the number of a parameter. Replaces these numbers by the names of the
 * parameters, if the names of all parameters were read, or if each state has the shape of exactly
 * one weight. Otherwise a note says that the names have numbers. */
int shf_torch_states_rename(struct shf_foreign *f, const struct shf_torch_states *of,
                            struct sheaf_error *err);
/* Returns whether a state of this kind has the shape of its parameter in every optimizer. kind: as
 * Sheaf names it. A state of another kind may have the shape of another parameter: the states of
 * Adafactor have one value for each row or column. */
bool shf_torch_state_has_shape(const char *kind);
int shf_torch_shape_compare(const struct shf_foreign_tensor *x, const struct shf_foreign_tensor *y);
#endif
