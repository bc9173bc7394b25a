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
struct shf_box_move {               /* one copy: the box of a serve, or a part of that box */
	const struct shf_serve *serve;
	const struct shf_slice *slice;  /* the slice that has the box */
	struct shf_box box;
	size_t stream;                  /* offset of the box in the stream to the serve's rank, if
	                                 * it goes there */
	bool behind;                    /* this is a piece copied in the background, not inside
	                                 * begin */
	struct shf_ema_window *due;     /* averages to update before the box is copied, which has
	                                 * their weights or the averages themselves; NULL: no
	                                 * averages are due */
};
/* Copies the box into the image of the serve's rank or, if that rank is on another node, into the
 * stream to it. *digest: what the box adds to the digest of its tensor. A witness (work.h) is not
 * copied: its digest goes into the stream, and *digest stays as it is. Averages of m->due are
 * updated on the way, up to the end of the box in memory. [any thread] */
int shf_save_rounds_copy_box(struct sheaf_save *save, const struct shf_box_move *m,
                             uint64_t *digest, struct sheaf_error *err);
/* Begins a round, and makes its streams. ENOMEM. [local] */
int shf_save_rounds_open(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
/* Writes the file headers that lie in this rank's segments of the round into the image. Called once
 * for each round. [any thread] */
int shf_save_rounds_headers(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
#endif
