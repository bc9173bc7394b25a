/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of a run, in .sheaf/run. */
#ifndef SHF_RUN_ID_H
#define SHF_RUN_ID_H
#include "store.h"

#define SHF_RUN_TEXT_MAX 128    /* bytes of .sheaf/run */
/* Reads .sheaf/run: the id of the run into s->run, the prefix of its steps' names into s->prefix.
 * A missing or empty file leaves the id "" and the prefix as it is. EFORMAT: a newer version made
 * the file; ECORRUPT: the text is no id; EINVAL: the caller wanted another pattern. */
int shf_run_id_read(struct shf_store *s, struct sheaf_error *err);
/* A reader may open the run before the writing job has made .sheaf. This function looks again for
 * .sheaf and for the identity in it, until both exist. Every listing calls it. */
int shf_store_refresh(struct shf_store *s, struct sheaf_error *err);
#endif
