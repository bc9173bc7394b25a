/* SPDX-License-Identifier: Apache-2.0 */
/* Ancestors of steps whose parents were pruned. */
#ifndef SHF_DESCENT_H
#define SHF_DESCENT_H
#include "list.h"
#include "mem.h"

/* Gives each step whose parent is gone the older ancestor that .sheaf/descent names, if any. *text
 * becomes the content of the file, for shf_descent_write. Returns a code if the file exists and
 * cannot be read. */
int shf_descent_read(struct shf_store *s, struct shf_list *list, struct shf_buf *text,
                     struct sheaf_error *err);
/* Writes .sheaf/descent, before the entries with `goes` are deleted, so that their children still
 * have an ancestor afterwards. before: the content of the file that shf_descent_read has read; it
 * becomes the new content. */
int shf_descent_write(struct shf_store *s, const struct shf_list *list,
                      struct shf_buf *before, struct sheaf_error *err);
#endif
