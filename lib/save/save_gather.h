/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers on rank 0 what all ranks know of a save: sums, attached files, notes. */
#ifndef SHF_SAVE_GATHER_H
#define SHF_SAVE_GATHER_H
#include "save.h"

/* Gathers it into save->publishing; from then on a save takes no more notes and files. Call it when
 * all bytes are copied, and again only if it has failed. carry: with the bytes of attached files.
 * rc: what came of this rank's work before it. What rank 0 finds wrong in what it gets is in
 * publishing.rc, there alone, for the next agreement to tell. [collective] */
int shf_save_gather(struct sheaf_save *save, int rc, bool carry, struct sheaf_error *err);
/* If rank 0 had no memory for what it got, when that was for the memory tier, it tries once more
 * for the disk. [local] */
void shf_save_gather_again(struct sheaf_save *save);
#endif
