/* SPDX-License-Identifier: Apache-2.0 */
/* Copies segments that have no place in the image (unstaged.h) into slots, and writes them from
 * there. */
#ifndef SHF_UNSTAGED_COPY_H
#define SHF_UNSTAGED_COPY_H
#include "unstaged.h"

/* Copies a segment that was taken into its slot, and submits the write. When it returns, the save
 * no longer reads the memory of the segment. A failure is recorded in the save. [any thread] */
void shf_unstaged_copy(struct sheaf_save *save, size_t seg);
/* Copies all segments that have no place in the image inside begin, on the calling threads.
 * [collective] */
int  shf_unstaged_run(struct sheaf_save *save, struct sheaf_error *err);
#endif
