/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of a save lie: in which slice, in which image, and in which stream to another
 * node. */
#ifndef SHF_SAVE_WHERE_H
#define SHF_SAVE_WHERE_H
#include "box_copy.h"
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
/* The slice that holds a box of a tensor: it was cut from one of this rank's holds. */
const struct shf_slice *shf_slice_of(const struct sheaf_save *save, uint32_t tensor,
                                     const struct shf_box *box);
/* The number, in the state, of the slice that this move of a segment of this rank comes from. */
size_t shf_slice_number(const struct sheaf_save *save, const struct shf_mv *v);
/* A box cut along one dimension into parts of so many bytes, or of one row; the same wherever it
 * is asked. */
uint32_t shf_cuts_of(const struct shf_lt_tensor *t, const struct shf_box *box, uint64_t bytes);
/* Bytes of the box before part i, which becomes *part. */
uint64_t shf_cut_at(const struct shf_lt_tensor *t, const struct shf_box *box, uint64_t bytes,
                    uint32_t i, struct shf_box *part);
/* Does the segment lie in no image? */
static inline bool shf_is_slotted(const struct shf_seg *g)
{
	return g->round == SHF_ROUND_OWN;
}
/* The segments of a plan that lie in no image: its last ones. */
struct shf_span shf_slots_segs(const struct shf_work *w);
/* Sums into the control of a segment, of any rank, that begins at byte lo of a file. */
struct shf_sums_to shf_sums_at(const struct sheaf_save *save, uint32_t file, uint64_t lo,
                               struct shf_ctl *ctl);
/* Does the segment begin within the header of its file? */
bool shf_has_header(const struct sheaf_save *save, const struct shf_seg *g);
/* Does some part of the segment come from another node? */
bool shf_waits_for_net(const struct sheaf_save *save, const struct shf_seg *g);
#endif
