/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that are cast: 16-bit weights (SHEAF_CAST) of which this rank has all fp32 masters in
 * its image. They lie in no image and go through slots (slots.h), but are read from the image and
 * not from the memory of their slices, which may change at once.
 *
 * K1. Every byte of such a segment is this rank's own, and so is every byte of the segments that
 *     its masters lie in: nothing of another process is waited for.
 * K2. All that is staged here is so at once, in one round: masters stay where they are until the
 *     image is given up, and what follows each other in a file does so in the image.
 * K3. It is taken when the counters of its masters' segments have come to nothing (acquire), and
 *     no sooner.
 */
#ifndef SHF_CAST_H
#define SHF_CAST_H
#include "save.h"

/* Marks segments of a save, and finds what they are cast from. The first `staged` of the work's are
 * to lie in the image, by file and offset; some of them are no longer then. ENOMEM. [local] */
int shf_casts_find(const struct shf_match *m, uint32_t self, struct shf_work *w, size_t staged);
/* Is all in the image that it is cast from? (K3) [any thread] */
bool shf_cast_is_ready(const struct sheaf_save *save, size_t seg);
/* Where a move of it comes from, as if it were a slice: fp32 in file order. Of the slice only what
 * copies look at is filled. */
struct shf_slice shf_cast_source(const struct sheaf_save *save, size_t move);
/* What a move of it adds to its tensor's digest if it is what its own slice has in memory, now. */
uint64_t shf_cast_digest(const struct sheaf_save *save, const struct shf_mv *v);
/* Nothing is copied any more, and something is not ready: the save fails. Counters lie in the
 * image, which others write too. [any thread] */
void shf_cast_stuck(struct sheaf_save *save);
/* The sentence for a slice that is not what its flag says. */
int shf_cast_fail(const struct sheaf_save *save, size_t slice, struct sheaf_error *err);
#endif
