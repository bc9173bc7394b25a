/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what a pickle holds: tensors by the path of keys that leads to them, joined by dots, and
 * all other values as notes. The format says what a tensor is. */
#ifndef SHF_PICKLE_WALK_H
#define SHF_PICKLE_WALK_H
#include "foreign.h"
#include "pickle.h"

/* What a value is: no tensor; a tensor; a tensor that is not read. */
enum shf_tensor_kind { SHF_TENSOR_NONE, SHF_TENSOR_READ, SHF_TENSOR_UNREAD };
struct shf_walk_kind {          /* how a format describes tensors */
	/* Says what v is; UNREAD: *why says why it is not read. */
	enum shf_tensor_kind (*look)(const struct shf_pk *v, const char **why);
	/* Adds the tensor v to f, under a name of n bytes, which is NUL-ended. */
	int (*add)(void *arg, struct shf_foreign *f, const struct shf_pk *v, const char *name,
	           size_t n, struct sheaf_error *err);
	/* Returns the items of a value that is listed as a list, or NULL if it is not. The function
	 * may be NULL: then only lists, tuples and sets are. */
	const struct shf_pk *(*list)(const struct shf_pk *v);
	void *arg;
	const char *prefix;             /* what all names begin with; NULL: nothing */
};
/* Adds all tensors and notes that `root`, a value of the pickle, leads to. EFORMAT: two tensors of
 * f have one name, or the values cannot be listed within the limits. */
int shf_walk(struct shf_foreign *f, const struct shf_pickle *pickle, const struct shf_pk *root,
             const struct shf_walk_kind *by, struct sheaf_error *err);
/* Writes a value that is neither a container nor a tensor as a text; false: it is no such value. */
bool shf_walk_scalar(struct shf_buf *out, const struct shf_pk *v);
#endif
