/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for the writes of this rank, and fsyncs its files (C2, C3). */
#ifndef SHF_SAVE_SYNC_H
#define SHF_SAVE_SYNC_H
#include "save.h"

/* Continues C2 and C3 of this rank for at most ms milliseconds (0: only checks). Returns true if
 * they are done here, or if the save has failed and no write of it is in flight any more. A failure
 * is recorded in the save. A memory-only save has no C3. [local] */
bool shf_save_sync(struct sheaf_save *save, int ms);
#endif
