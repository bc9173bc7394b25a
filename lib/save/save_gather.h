/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers on rank 0 what the manifest needs from all ranks: checksums, attached files, notes. */
#ifndef SHF_SAVE_GATHER_H
#define SHF_SAVE_GATHER_H
#include "save.h"

/* Gathers checksums, attached files and notes into save->publishing. After that the save takes no
 * more notes and files. Called when all bytes are copied; called again only if the first call has
 * failed. carry: includes the bytes of attached files. rc: the result of this rank's work so far.
 * If rank 0 finds the gathered data wrong, it notes that in publishing.rc, only on rank 0, and the
 * next agreement reports it. [collective] */
int shf_save_gather(struct sheaf_save *save, int rc, bool carry, struct sheaf_error *err);
/* If the gathering for the memory tier failed because rank 0 ran out of memory, rank 0 decodes the
 * same data again for the commit to disk. [local] */
void shf_save_gather_again(struct sheaf_save *save);
#endif
