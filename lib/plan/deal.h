/* SPDX-License-Identifier: Apache-2.0 */
/* Dealing: for one stripe of one file, who writes it from whose memory, or who reads it into
 * whose. Pure. The stripe is the unit of planning: a home rank collects the pieces that ranks
 * hold of it, deals, and tells the writers or readers; nothing global is ever needed.
 *
 * Saving: ownership is by page. Where one set of ranks H holds a long run (>= 64 KiB of
 * whole pages), run of stripe s of file f belongs to H[(s + f) mod |H|], H ascending. Everything
 * between such runs is mixed: a mixed stretch goes to the node that holds most of its bytes
 * (of m equals, by lowest rank, the (s + f) mod m-th), there to the (s + f) / m mod n-th of the
 * n ranks that hold some of it; a mixed stretch of a single page to the holder of its first byte
 * (elected). Bytes held by several are taken from the writer if he holds them, else from a
 * holder on his node, else from any; among equals the (s + f) mod n-th. So replicas share the
 * work by bytes, those on other nodes too, nothing travels between nodes but edges and
 * interleaved rows, and every byte has exactly one source. Neighbours of one writer are one
 * segment; the header is a segment of its own.
 *
 * In two phases: where a stripe dealt like that takes its bytes from more than one node for every
 * SHF_NODE_RUN of it, and its caller named a collector, the collector writes all of it. The bytes
 * of the file are the same; more of them travel, and fewer files are opened.
 *
 * Loading: blocks (1 MiB of the file) that nobody asks for are not read; every other one is read
 * by exactly one of those who ask: one of the node that asks for most of its bytes, by the turns
 * above, so blocks of a stripe that the same ranks ask for have the same reader. Where not every
 * node has all blocks (a step in memory), one of a node that has it: of those who ask, or, where
 * none of them is there, of all its ranks the (s + f)-th. Then each requester has a move for each
 * of its boxes (equal boxes of one rank count once). Apart, each of those who ask reads for himself
 * (memory that all of them see costs no reading): segments of several ranks overlap then, and every
 * block is in one that is not quiet, whose rank proves it; the others just take their bytes.
 */
#ifndef SHF_DEAL_H
#define SHF_DEAL_H
#include "box.h"
#include "mem.h"
#include "place.h"

struct shf_deal_tensor {        /* a tensor that has bytes in the stripe; by ascending offset */
	uint32_t tensor;                /* caller's number */
	uint32_t unit;                  /* bytes */
	uint64_t off;                   /* of its first byte from the start of the file */
	struct shf_shape shape;         /* in units */
};
struct shf_had {                /* blocks in bytes [lo, hi) of a file, and who can read them */
	uint64_t lo, hi;
	int32_t node;                   /* its ranks; -1: everybody */
	int64_t rank;                   /* of them only this one; -1: any */
};
struct shf_stripe {
	uint32_t file;                  /* caller's number, only for dealing in turn */
	uint64_t index;                 /* number of the stripe in its file */
	uint64_t lo, hi;                /* bytes of the file: a page-multiple start; hi the end of
	                                 * the stripe or of the file */
	uint64_t payload;               /* bytes before this one are header (written by the writer
	                                 * of the first stretch after them, without moves) */
	const struct shf_deal_tensor *tensors;  /* borrowed */
	size_t tensors_n;
	bool collect;                   /* saving: short runs are written by the rank collector */
	uint32_t collector;
	bool follow;                    /* collect it in any case: it is the rest of one that was */
	const struct shf_had *had;      /* borrowed. Loading: of its file, ascending, with all its
	                                 * blocks; NULL: everybody can read all of them */
	size_t had_n;
	bool apart;                     /* loading: everybody for himself */
};
struct shf_piece {              /* a box that a rank holds or wants; may reach out of the stripe */
	uint32_t rank;
	uint32_t tensor;                /* index into stripe.tensors */
	struct shf_box box;             /* in units, not empty */
};
struct shf_segment {            /* bytes [lo, hi) of the file, written or read by one rank */
	uint64_t lo, hi;
	uint32_t rank;
	bool quiet;                     /* apart: another rank proves these blocks */
};
struct shf_move {               /* box: wholly inside its segment and inside what rank holds */
	uint32_t segment;               /* index */
	uint32_t rank;                  /* the memory side; may be the segment's own rank */
	uint32_t tensor;                /* index into stripe.tensors */
	bool witness;                   /* a replica: digest it, do not send it */
	struct shf_box box;
};
struct shf_dealt {              /* arrays are in the arena */
	struct shf_segment *segments;   /* ascending, disjoint (apart: those of each rank; by rank);
	                                 * saving: cover [lo, hi) */
	size_t segments_n;
	struct shf_move *moves;         /* by segment; then a fixed order */
	size_t moves_n;
	bool collected;                 /* in two phases */
};
struct shf_gap {                /* what nobody holds: the first such box */
	uint32_t tensor;                /* index into stripe.tensors */
	struct shf_box box;
	int64_t before, after;          /* ranks that hold the units just before and after; -1 */
};
#define SHF_NODE_RUN (UINT64_C(4) << 20)        /* shorter, on average, is short */
#define SHF_DEAL_WITNESS 1      /* also emit a witness move for every replica */
/* nodes[r]: node number of rank r; ranks members. pieces in any order; result does not depend
 * on it. 0; SHEAF_ENOMEM; SHEAF_ELAYOUT with *gap filled; SHEAF_EINVAL for what the structs above
 * forbid: tensors that overlap or do not begin on a multiple of their unit (see them as tensors
 * of single bytes), pieces outside their tensor, ranks that are none. */
int shf_deal_save(struct shf_arena *arena, const struct shf_stripe *stripe,
                  const struct shf_piece *pieces, size_t pieces_n, const int32_t *nodes,
                  uint32_t ranks, int flags, struct shf_dealt *out, struct shf_gap *gap);
int shf_deal_load(struct shf_arena *arena, const struct shf_stripe *stripe,
                  const struct shf_piece *pieces, size_t pieces_n, const int32_t *nodes,
                  uint32_t ranks, struct shf_dealt *out);
#endif
