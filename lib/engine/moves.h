/* SPDX-License-Identifier: Apache-2.0 */
/* What moves.c and travel.c share of a round. */
#ifndef SHF_MOVES_H
#define SHF_MOVES_H
#include "copy.h"
#include "lazy.h"
#include "save.h"

uint8_t *shf_own_image(const struct sheaf_save *save);
struct shf_ctl *shf_own_ctl(const struct sheaf_save *save, size_t seg);
/* Sums into the control of own segment `seg`. */
struct shf_sums_to shf_seg_sums(const struct sheaf_save *save, size_t seg, struct shf_ctl *ctl);
/* Do we share memory with that rank? Asked by both sides of a move, so it goes by nodes. */
bool shf_reaches(const struct sheaf_save *save, uint32_t peer);
/* How long a move is in the stream to or from that rank; 0: it does not travel. */
size_t shf_stream_bytes(const struct sheaf_save *save, uint32_t tensor, uint32_t peer,
                        bool witness, const struct shf_box *box);
/* Streams of a round, empty. ENOMEM. [local] */
int shf_net_prepare(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
/* The slice that holds a box of a tensor: it was cut from one of this rank's holds. */
const struct shf_slice *shf_slice_of(const struct sheaf_save *save, uint32_t tensor,
                                     const struct shf_box *box);
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
/* A round begins: its streams, empty. [local] */
int shf_round_open(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
/* Header bytes of own segments of the round. [any thread, once] */
int shf_copy_headers(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
/* One of no image (slots.h), that is whole. [any thread] */
int shf_write_slotted(struct sheaf_save *save, size_t seg, struct sheaf_error *err);
/* Own segments that are whole by now are written. [any thread] */
int shf_write_whole(struct sheaf_save *save, struct sheaf_error *err);
/* Are there own segments that are not? */
bool shf_is_partial(struct sheaf_save *save);
/* What came from other nodes is in the image: those segments are whole now. [local] */
int shf_round_arrived(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
#endif
