/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of a save: each copies a window of every writer's segments from the slices of this
 * rank into images of its node, and into streams to other nodes. */
#ifndef SHF_SAVE_ROUNDS_H
#define SHF_SAVE_ROUNDS_H
#include "box_copy.h"
#include "save.h"
#include "save_copier.h"

/* Sets the controls of this rank's segments. Call it before any rank copies. [local] */
void shf_moves_init(struct sheaf_save *save);
/* Copies all of the save, round by round, for a begin that is not lazy. rc: what came of this
 * rank's work before it. [collective] */
int shf_rounds_run(struct sheaf_save *save, int rc, struct sheaf_error *err);
struct shf_box_move {               /* a box of a serve, to be copied */
	const struct shf_serve *serve;
	const struct shf_slice *slice;  /* that holds it */
	struct shf_box box;
	size_t stream;                  /* where it goes in what travels to the serve's rank */
	bool behind;                    /* a piece of it, while the caller does other things */
	struct shf_due *due;            /* averages that are due with it, or before it; or NULL */
};
/* Into the image, or into its stream; *digest: what it adds to its tensor's. What of `due` lies
 * before the box's end in memory is brought up to date piece by piece. [any thread] */
int shf_move_copy(struct sheaf_save *save, const struct shf_box_move *m, uint64_t *digest,
                  struct sheaf_error *err);
/* Begins a round, with empty streams. [local] */
int shf_round_open(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
/* Header bytes of own segments of the round. [any thread, once] */
int shf_copy_headers(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
#endif
