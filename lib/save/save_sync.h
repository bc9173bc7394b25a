/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for what this rank writes of a save, and makes it durable. */
#ifndef SHF_SAVE_SYNC_H
#define SHF_SAVE_SYNC_H
#include "save.h"

/* Goes on with C2 and C3 for ms milliseconds at most (0: looks how far they are). True: they are
 * done here, or the save has failed and nothing of it is being written any more; a failure sticks
 * to it. A save to memory alone has only C2. [local] */
bool shf_save_sync(struct sheaf_save *save, int ms);
#endif
