/* SPDX-License-Identifier: Apache-2.0 */
/* What must be true of a disk after a power cut, by invariants I1 to I12. Shares no code with the
 * rooms it judges: its own reader of manifests, its own checksum. */
#ifndef COMMITORACLE_H
#define COMMITORACLE_H
#include "commitworld.h"

/* Files of people that nobody may touch; put before the run is first opened. */
void oracle_put_foreign(struct simdisk *disk);
/* NULL, or what is wrong with the disk that a cut after `cut` left, in buf. recovered: a job has
 * opened the run for writing since. newest, if not NULL, gets the newest step that is whole and
 * not marked bad (-1: none). */
const char *oracle_judge(const struct world *w, struct simdisk *crashed, int64_t cut,
                         bool recovered, int64_t *newest, char buf[300]);
#endif
