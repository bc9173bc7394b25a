/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of a save. If the staging memory cannot hold the whole step, it is copied and written
 * in several rounds. Each round copies a window of every writer's segments from this rank's slices
 * into images of its node, and into streams to other nodes. */
#ifndef SHF_SAVE_ROUNDS_H
#define SHF_SAVE_ROUNDS_H
#include "box_copy.h"
#include "save.h"
#include "save_copier.h"

/* Initialises the controls (struct shf_ctl) of this rank's segments. Must be done before any rank
 * copies. [local] */
void shf_save_rounds_init(struct sheaf_save *save);
/* Copies the whole save inside begin, round by round. rc: the result of this rank's work so far.
 * [collective] */
int shf_save_rounds_run(struct sheaf_save *save, int rc, struct sheaf_error *err);
struct shf_save_added {         /* what the copy of a piece adds; the caller zeroes it first */
	const struct shf_serve *serve;  /* whose piece it is */
	uint64_t digest;                /* to be added to the digest of its tensor */
	uint64_t bytes;                 /* how many bytes were copied */
};
/* Copies a piece from its slice into the image of the serve's rank or, if that rank is on another
 * node, into the stream to it. A witness (work.h) is not copied: its digest goes into the stream,
 * and only added->serve is set. due: averages to update before the box is copied, which has their
 * weights or the averages themselves; they are updated on the way, up to the end of the box in
 * memory. NULL: no averages are due. [any thread] */
int shf_save_rounds_copy(struct sheaf_save *save, const struct shf_save_order_piece *p,
                         const struct shf_slice *slice, struct shf_ema_window *due,
                         struct shf_save_added *added, struct sheaf_error *err);
/* Begins a round, and makes its streams. ENOMEM. [local] */
int shf_save_rounds_open(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
/* Writes the file headers that lie in this rank's segments of the round into the image. Called once
 * for each round. [any thread] */
int shf_save_rounds_headers(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
#endif
