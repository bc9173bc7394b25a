/* SPDX-License-Identifier: Apache-2.0 */
/* Copies segments that lie in no image (unstaged.h) into slots and writes them from there. */
#ifndef SHF_UNSTAGED_COPY_H
#define SHF_UNSTAGED_COPY_H
#include "unstaged.h"

/* Copies the segment into its slot and submits the write. Its memory may change then. A failure
 * sticks to the save. [any thread] */
void shf_slots_copy(struct sheaf_save *save, size_t seg);
/* Copies all of them, on the threads of the callers. [collective] */
int  shf_slots_run(struct sheaf_save *save, struct sheaf_error *err);
#endif
