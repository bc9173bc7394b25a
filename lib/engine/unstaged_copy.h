/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of no image: copied into a slot and written from there. */
#ifndef SHF_UNSTAGED_COPY_H
#define SHF_UNSTAGED_COPY_H
#include "unstaged.h"

/* Into its slot, and to the disk; its memory may change then. A failure sticks in the save. [any
 * thread] */
void shf_slots_copy(struct sheaf_save *save, size_t seg);
/* All of them, by the callers. [collective] */
int  shf_slots_run(struct sheaf_save *save, struct sheaf_error *err);
#endif
