/* SPDX-License-Identifier: Apache-2.0 */
/* What matching (match.h) gives each rank: the segments that it writes or reads, the moves of which
 * these are made, and the boxes that it serves to the segments of other ranks. */
#ifndef SHF_WORK_H
#define SHF_WORK_H
#include "box_copy.h"
#include "holds.h"

/* Rounds of a load are numbered by kind. From 0: segments that ranks of the reader's node want;
 * from SHF_ROUND_NET: those of which something goes to other nodes. What the reader alone wants, or
 * the writer alone holds and need not stage, is in no round and in no image: SHF_ROUND_OWN. */
#define SHF_ROUND_NET (UINT32_C(1) << 30)
#define SHF_ROUND_OWN UINT32_MAX
#define SHF_SLOTS 3       /* unstaged.h: one is filled while two are written */
struct shf_seg {                /* the file side: bytes [lo, hi) of a file, mine to write or read */
	uint32_t file, round;
	uint64_t lo, hi;
	uint64_t image;                 /* of lo in this rank's image */
	uint32_t first_move, moves_n;
	bool collected;                 /* in two phases, see deal.h; loading: quiet */
};
struct shf_mv {                 /* a move of my segment */
	uint32_t tensor, rank, seg;     /* rank: the memory side */
	bool witness;
	struct shf_box box;
};
struct shf_serve {              /* the memory side of a move */
	uint32_t tensor, rank, round;   /* rank: the file side */
	bool witness;
	uint64_t image, seg_lo; /* byte seg_lo of the file is at `image` of that rank's image */
	uint64_t ctl;                   /* of the segment, in that rank's image */
	struct shf_box box;
};
/* Of a segment, in its owner's image behind the data, so that all ranks of the node see it. Saving:
 * what is still to come, and what has come adds up to. */
struct shf_ctl {
	_Atomic uint32_t left;          /* moves, and whatever else its owner counts */
	uint32_t unused;
	_Atomic uint64_t parts[SHF_STRIPE / SHF_BLOCK]; /* raw sums of its blocks */
};
struct shf_work {
	struct shf_arena arena;
	struct shf_seg *segs; size_t segs_n;            /* by round, file, offset */
	struct shf_mv *moves; size_t moves_n;           /* by segment, in dealt order */
	struct shf_serve *serves; size_t serves_n;      /* by round, file-side rank, its order;
	                                                 * loading: of others' segments */
	uint32_t rounds, net_rounds;                    /* equal on all ranks; net: loading */
	uint64_t ctl_at;                                /* in the image: behind the largest round */
	uint64_t image_bytes;                           /* of this rank, saving: with controls */
	uint64_t slots_at, slot_bytes;                  /* behind them, saving: see unstaged.h */
	uint32_t slots;
	uint64_t own_bytes, own_most;   /* loading: in no round; the most that a rank has so */
	uint64_t bytes;                                 /* of all segments */
	uint64_t hash;                                  /* of the whole plan, equal on all ranks */
};

void shf_work_release(struct shf_work *w);
/* Where the control of own segment i lies in this rank's image. */
uint64_t shf_work_ctl(const struct shf_work *w, size_t i);
/* Which segments, and which serves, are of a round. */
struct shf_span {
	size_t first, end;
};
struct shf_span shf_work_segs(const struct shf_work *w, uint32_t round);
struct shf_span shf_work_serves(const struct shf_work *w, uint32_t round);
#endif
