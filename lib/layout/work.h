/* SPDX-License-Identifier: Apache-2.0 */
/* The result of matching (match.h) on one rank: the segments that it writes or reads, the moves
 * that fill or empty them, and the boxes of its memory that it serves to segments of other
 * ranks. */
#ifndef SHF_WORK_H
#define SHF_WORK_H
#include "box_copy.h"
#include "holds.h"

/* Rounds of a save are numbered from 0. A load has two series of rounds: from 0, segments that only
 * ranks of the reader's node want; from SHF_ROUND_NET, segments that other nodes want too.
 * SHF_ROUND_OWN: the segment is in no round and in no image, because on a load only its reader
 * wants it, and on a save its writer holds all of it in SHEAF_SLICE_IN_PLACE slices (unstaged.h).
 */
#define SHF_ROUND_NET (UINT32_C(1) << 30)
#define SHF_ROUND_OWN UINT32_MAX
#define SHF_UNSTAGED_SLOTS 3       /* maximum number of slots (unstaged.h): one is filled while two
                                    * are written */
struct shf_seg {                /* bytes [lo, hi) of a file that this rank writes or reads */
	uint32_t file, round;
	uint64_t lo, hi;
	uint64_t image;                 /* offset of byte lo in this rank's image */
	uint32_t first_move, moves_n;   /* its moves: index of the first in `moves`, and how many */
	bool collected;                 /* save: written in two phases; load: quiet (deal.h) */
};
struct shf_seg_move {                 /* a move of one of this rank's segments */
	uint32_t tensor, rank, seg;     /* rank: in whose memory the box is (the memory side,
	                                 * match.h); seg: index into segs */
	bool witness;                   /* the rank has a replica of the bytes: it computes their
	                                 * digest and sends no bytes */
	struct shf_box box;
};
struct shf_serve {              /* a move whose memory side is this rank */
	uint32_t tensor, rank, round;   /* rank: whose segment it is (the file side, match.h) */
	bool witness;                   /* as in struct shf_seg_move */
	uint64_t image, seg_lo;         /* byte seg_lo of the file has the offset `image` in that
	                                 * rank's image */
	uint64_t ctl;                   /* offset of the segment's struct shf_ctl in that image */
	struct shf_box box;
};
/* The control of a segment on a save. It lies in the image of the segment's owner, after the data,
 * so that all ranks of the node can update it. */
struct shf_ctl {
	_Atomic uint32_t left;          /* what the segment still waits for: one for its header, one
	                                 * for all bytes from other nodes, and one for each move by
	                                 * a rank of this node (in a lazy save, for each piece of
	                                 * it). At 0 it may be written */
	uint32_t unused;
	_Atomic uint64_t parts[SHF_STRIPE / SHF_BLOCK]; /* raw sums of the bytes of each block */
};
struct shf_work {
	struct shf_arena arena;                         /* has the arrays */
	struct shf_seg *segs; size_t segs_n;            /* sorted by round; on a load then by file
	                                                 * and offset; on a save files take turns
	                                                 * (work_file_side.c) */
	struct shf_seg_move *moves; size_t moves_n; /* the moves of a segment are consecutive */
	struct shf_serve *serves; size_t serves_n;      /* sorted by round, then `rank`, then in the
	                                                 * order in which that rank sent them. Moves
	                                                 * between this rank's own memory and its
	                                                 * own segments are left out on a load, and
	                                                 * on a save if the segment is in no
	                                                 * round */
	uint32_t rounds, net_rounds;                    /* numbers of rounds, equal on all ranks;
	                                                 * net_rounds: rounds of a load that are
	                                                 * numbered from SHF_ROUND_NET on */
	uint64_t ctl_at;                                /* save: offset of the controls in the
	                                                 * image, after the largest round */
	uint64_t image_bytes;                           /* size of this rank's image, with controls
	                                                 * and slots */
	uint64_t slots_at, slot_bytes;                  /* save (unstaged.h): offset of the slots,
	                                                 * which lie after the controls; size of one
	                                                 * slot */
	uint32_t slots;                                 /* number of slots */
	uint64_t own_bytes, own_most;                   /* load: own_bytes: bytes of this rank's
	                                                 * segments that are in no round; own_most:
	                                                 * its maximum over all ranks */
	uint64_t bytes;                                 /* bytes of all segments */
	uint64_t hash;                                  /* save: hash of the whole plan, equal on
	                                                 * all ranks */
};

void shf_work_release(struct shf_work *w);
/* Returns the offset in this rank's image of the control of its segment i. */
uint64_t shf_work_ctl(const struct shf_work *w, size_t i);
struct shf_span {               /* indices [first, end) */
	size_t first, end;
};
/* These return which segments, or which serves, belong to a round. */
struct shf_span shf_work_segs(const struct shf_work *w, uint32_t round);
struct shf_span shf_work_serves(const struct shf_work *w, uint32_t round);
#endif
