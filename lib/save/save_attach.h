/* SPDX-License-Identifier: Apache-2.0 */
/* Brings attached files and notes of all ranks together. Notes go to rank 0 either way. */
#ifndef SHF_SAVE_ATTACH_H
#define SHF_SAVE_ATTACH_H
#include "save.h"

/* Sends the bytes of attached files to rank 0, into *in; `given` points into it there. Writes
 * nothing. [collective] */
int shf_attach_carry(struct sheaf_save *save, struct shf_arena *arena, struct shf_given *given,
                     struct shf_buf *in, struct sheaf_error *err);
/* Each rank writes the files that were attached on it, and rank 0 gets the list of all of them for
 * the manifest. [collective] */
int shf_attach_gather(struct sheaf_save *save, struct shf_arena *arena, struct shf_given *given,
                      struct sheaf_error *err);
#endif
