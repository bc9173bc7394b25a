/* SPDX-License-Identifier: Apache-2.0 */
/* Done files, which tell other programs that a step is finished. */
#ifndef SHF_DONE_FILES_H
#define SHF_DONE_FILES_H
#include "store.h"

/* Writes the done files of a published step of that session: <family>.<step>.done for each family,
 * and whole-step.<step>.done last. The folder `where` is made if it is missing. Writing them again
 * changes nothing. Only the writer calls this, after its publish; a failure harms no step. */
int shf_done_put(struct shf_store *s, const char *where, int64_t step, const char *session,
                 struct sheaf_error *err);
/* Writes the done files of the newest step, if all its files exist: its writer may have died before
 * it could. */
int shf_done_put_newest(struct shf_store *s, const char *where, struct sheaf_error *err);
#endif
