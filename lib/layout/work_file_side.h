/* SPDX-License-Identifier: Apache-2.0 */
/* The file side of matching (match.h): makes the segments of a rank, with their rounds and places
 * in its image, from the messages of the home ranks. */
#ifndef SHF_WORK_FILE_SIDE_H
#define SHF_WORK_FILE_SIDE_H
#include "match.h"

/* Fills segments, moves, rounds and image of rank `self` in *w from `in`, the messages of the homes
 * to it. Does not fill serves and hash. ENOMEM, EBUG. [local] */
int shf_work_decode(const struct shf_match *m, uint32_t self, const struct shf_buf *in,
                    struct shf_work *w);
#endif
