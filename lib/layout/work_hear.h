/* SPDX-License-Identifier: Apache-2.0 */
/* The file side of matching (match.h): makes the segments of a rank, in rounds, and their places in
 * its image, of what the home ranks of the stripes sent it. */
#ifndef SHF_WORK_HEAR_H
#define SHF_WORK_HEAR_H
#include "match.h"

/* Segments, moves, rounds and image of rank `self` of the file side, from what homes told it.
 * Serves and hash are not filled. ENOMEM, EBUG. */
int shf_work_hear(const struct shf_match *m, uint32_t self, const struct shf_buf *in,
                  struct shf_work *w);
#endif
