/* SPDX-License-Identifier: Apache-2.0 */
/* The tree that an item of Orbax was: _METADATA. It lists the leaves with the keys that lead to
 * them, which joined by dots are the names of the arrays. */
#ifndef SHF_ORBAX_TREE_H
#define SHF_ORBAX_TREE_H
#include "foreign.h"

struct shf_orbax_tree {
	bool all_stored;                /* every chunk was written, even if it has only zeros */
	struct shf_buf leaves;          /* owned; of char *: names of those that are arrays */
};
/* Reads it from a folder of the checkpoint (NULL: the directory itself). prefix: of all names.
 * arena: gets the names. The caller releases it, after a failure, too. */
int shf_orbax_tree_read(struct shf_orbax_tree *t, struct shf_foreign *f, const char *folder,
                        const char *prefix, struct shf_arena *arena, struct sheaf_error *err);
/* Sorts the arrays (const char *). EFORMAT: a leaf is not among them. */
int shf_orbax_tree_check(const struct shf_orbax_tree *t, const struct shf_foreign *f,
                         struct shf_buf *arrays, struct sheaf_error *err);
void shf_orbax_tree_release(struct shf_orbax_tree *t);
#endif
