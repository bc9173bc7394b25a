/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of a save are: in which slice, in which image, and in which stream to another
 * node. */
#ifndef SHF_SAVE_WHERE_H
#define SHF_SAVE_WHERE_H
#include "box_copy.h"
#include "save.h"

/* Return this rank's part of the save's image, and in it the control of this rank's segment
 * `seg`. */
uint8_t *shf_save_own_image(const struct sheaf_save *save);
struct shf_ctl *shf_save_own_ctl(const struct sheaf_save *save, size_t seg);
/* Makes an accumulator that adds block sums to ctl, the control of this rank's segment `seg`. */
struct shf_box_copy_sums shf_save_seg_sums(const struct sheaf_save *save, size_t seg,
                                           struct shf_ctl *ctl);
/* Whether that rank is on this node, so that its image can be written directly. Both ranks of a
 * pair must get the same answer, so it depends only on the nodes. */
bool shf_save_reaches(const struct sheaf_save *save, uint32_t peer);
/* Returns how many bytes a move takes in the stream to or from that rank; 0: it is copied directly.
 * A witness is a replica that is only compared: its digest (8 bytes) is sent. */
size_t shf_save_stream_bytes(const struct sheaf_save *save, uint32_t tensor, uint32_t peer,
                             bool witness, const struct shf_box *box);
/* Returns the slice that has this box of a tensor, or NULL if no slice has it. A box of the plan
 * always has one, because it was cut from this rank's slices. */
const struct shf_slice *shf_save_slice_of(const struct sheaf_save *save, uint32_t tensor,
                                          const struct shf_box *box);
/* Returns the index in the state of the slice that this move of a segment comes from. The rank that
 * has the slice must be this one. */
size_t shf_save_slice_number(const struct sheaf_save *save, const struct shf_seg_move *v);
/* Returns how many parts a box has if it is cut along one dimension into parts of at most `bytes`
 * bytes, or of one row if a row is larger. Ranks compute the same cuts independently: the owner of
 * a segment counts the parts that others copy. */
uint32_t shf_save_cuts_of(const struct shf_lt_tensor *t, const struct shf_box *box, uint64_t bytes);
/* Sets *part to part i of a box that is cut as in shf_save_cuts_of, and returns how many bytes of
 * the box lie before the part. */
uint64_t shf_save_cut_at(const struct shf_lt_tensor *t, const struct shf_box *box, uint64_t bytes,
                         uint32_t i, struct shf_box *part);
/* Whether the segment has no place in the image, and is copied into a slot (unstaged.h). */
static inline bool shf_seg_is_unstaged(const struct shf_seg *g)
{
	return g->round == SHF_ROUND_OWN;
}
/* Returns which segments of a plan lie in no image: the last ones. */
struct shf_span shf_unstaged_segs(const struct shf_work *w);
/* Makes an accumulator like shf_save_seg_sums, but for a segment of any rank: it begins at byte lo
 * of the file, and ctl is its control. */
struct shf_box_copy_sums shf_save_sums_at(const struct sheaf_save *save, uint32_t file, uint64_t lo,
                                          struct shf_ctl *ctl);
/* Whether the segment has some of the header of its file. */
bool shf_save_has_header(const struct sheaf_save *save, const struct shf_seg *g);
/* Whether the segment must wait for the exchange: some of its bytes, or the digest of a replica,
 * come from another rank by a stream. */
bool shf_save_waits_for_net(const struct sheaf_save *save, const struct shf_seg *g);
#endif
