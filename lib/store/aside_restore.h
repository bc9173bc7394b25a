/* SPDX-License-Identifier: Apache-2.0 */
/* Brings steps back that were set aside, or deletes them. The caller holds the lock of the run. */
#ifndef SHF_ASIDE_RESTORE_H
#define SHF_ASIDE_RESTORE_H
#include "store.h"

/* Moves .sheaf/aside/<name> back to checkpoint-<step>, durably, with the mark that it had. Returns
 * ENOENT: nothing of that name is set aside; ECORRUPT: it is damaged; EEXIST: its number is taken;
 * EINVAL: the newest step is neither its ancestor nor its child; EINDOUBT: it was moved, but a
 * power cut may undo that. */
int shf_aside_restore(struct shf_store *s, const char *name, struct sheaf_error *err);
/* Deletes .sheaf/aside/<name>. Returns ENOENT: nothing of that name is set aside; EBUSY: a process
 * has it open. A deletion that was interrupted is finished by the next one. */
int shf_aside_delete(struct shf_store *s, const char *name, struct sheaf_error *err);
#endif
