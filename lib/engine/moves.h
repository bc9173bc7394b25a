/* SPDX-License-Identifier: Apache-2.0 */
/* What moves.c and travel.c share of a round. */
#ifndef SHF_MOVES_H
#define SHF_MOVES_H
#include "copy.h"
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
/* Streams of a round, empty; *most: the longest of this rank. ENOMEM. [local] */
int shf_net_prepare(struct sheaf_save *save, uint32_t round, uint64_t *most,
                    struct sheaf_error *err);
/* What came from other nodes is in the image: those segments are whole now. [local] */
int shf_round_arrived(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
#endif
