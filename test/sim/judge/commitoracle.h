/* SPDX-License-Identifier: Apache-2.0 */
/* Checks invariants I1 to I12 on a disk after a power cut. Shares no code with the code that it
 * judges: it has its own reader of manifests and its own checksum. */
#ifndef COMMITORACLE_H
#define COMMITORACLE_H
#include "commitworld.h"

/* Puts files that do not belong to the library, and must not be changed. Call before the run is
 * first opened. */
void oracle_put_foreign(struct simdisk *disk);
/* Returns NULL, or what is wrong with the disk after a cut at `cut`, in buf. recovered: a job has
 * opened the run for writing since. *newest, unless NULL, is set to the newest step that is
 * complete and not marked bad (-1: none). */
const char *oracle_judge(const struct world *w, struct simdisk *crashed, int64_t cut,
                         bool recovered, int64_t *newest, char buf[300]);
#endif
