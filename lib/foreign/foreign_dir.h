/* SPDX-License-Identifier: Apache-2.0 */
/* A foreign checkpoint, shown as a directory of safetensors files: a system layer (struct shf_sys)
 * in which the path SHF_FOREIGN_DIR is that directory; all other calls go to the layer below. So
 * all code that reads a directory of Hugging Face can read this one. */
#ifndef SHF_FOREIGN_DIR_H
#define SHF_FOREIGN_DIR_H
#include "foreign.h"

/* Decides which file shows which tensor, and makes the headers. */
int shf_foreign_dir_make(struct shf_foreign *f, struct sheaf_error *err);
void shf_foreign_dir_release(struct shf_foreign *f);
/* Returns the system layer. It lives as long as f. */
const struct shf_sys *shf_foreign_sys(const struct shf_foreign *f);
/* Returns the name of file i of the directory, or NULL if there are fewer. Files of one family
 * follow one another, and "model" comes first. */
const char *shf_foreign_shown(const struct shf_foreign *f, size_t i);
/* Returns the family whose tensors file i has. */
const char *shf_foreign_shown_family(const struct shf_foreign *f, size_t i);
/* Sets *name and *at to the real file of the tensor that begins at byte `off` of a file that is
 * shown, and to its place there; *at is UINT64_MAX if its bytes do not lie in one piece. */
void shf_foreign_where(struct shf_foreign *f, const char *file, uint64_t off, const char **name,
                       uint64_t *at);
/* Returns a digest of all that is shown, by which ranks find out whether they see the same. */
uint64_t shf_foreign_digest(const struct shf_foreign *f);
/* Reads of the system layer that fail because the checkpoint is damaged return -EBADMSG. Returns
 * the code of the last such failure and sets *err; 0: there was none. [any thread] */
int shf_foreign_failure(struct shf_foreign *f, struct sheaf_error *err);
#endif
