/* SPDX-License-Identifier: Apache-2.0 */
/* Dealing: decides, for one stripe of one file, which rank writes each byte and from whose memory
 * it comes (a save), or which rank reads it and into whose memory it goes (a load). Pure. The
 * stripe is the unit of planning: one rank, the home of the stripe, collects the pieces of it that
 * ranks hold, deals, and sends writers or readers their part. No rank ever needs the whole plan.
 *
 * Choices among equals are made in turn, so that work is spread: the t-th of n candidates is the
 * one with index t mod n, where t = s + f for stripe s of file f, and candidates ascend by rank.
 *
 * Saving. A page has one writer.
 *   - A long run is at least 64 KiB of whole pages that the same set of ranks holds. Its writer is
 *     the t-th rank of the set, so replicas share the work.
 *   - All between two long runs is a mixed stretch. It goes to the node that holds most of its
 *     bytes; of m nodes that hold equally much, ordered by their lowest ranks, to the t-th. On that
 *     node the writer is the (t / m)-th of the ranks that hold some of the stretch.
 *   - A mixed stretch of a single page goes to a holder of its first byte, the t-th.
 * Every byte has exactly one source: the writer itself if it holds the byte, else a holder on the
 * writer's node, else any holder; among equals the t-th. So nothing is sent between nodes but the
 * edges of runs and interleaved rows. Neighbouring stretches of one writer become one segment; the
 * header of the file is a segment of its own.
 *
 * Collecting, as in two-phase I/O: if the stripe has several source nodes and less than
 * SHF_NODE_RUN bytes for each of them, and the caller named a collector, the collector writes all
 * of the stripe. The bytes of the file are the same; more of them are sent, and fewer files are
 * opened.
 *
 * Loading. A block that no rank asks for is not read. Any other block is read by exactly one rank:
 *   - one of those that ask for it, on the node that asks for most of its bytes, chosen by the
 *     turns above. So blocks of a stripe that the same ranks ask for have the same reader.
 *   - where not every node can read all blocks (a step in memory), one on a node that can: of the
 *     ranks there that ask, or, if none does, the t-th of all ranks of that node.
 * Each rank then has a move for each box that it asked for (equal boxes of one rank count once).
 *
 * Loading `apart`: every rank reads for itself all blocks that it asked for; this is for memory
 * that all ranks see, where reading costs nothing. Segments of several ranks overlap then. For each
 * block one of its readers verifies the checksum. In the segments of the others the block is quiet:
 * they take their bytes without a check. */
#ifndef SHF_DEAL_H
#define SHF_DEAL_H
#include "box.h"
#include "mem.h"
#include "place.h"

struct shf_deal_tensor {        /* a tensor with bytes in the stripe; arrays ascend by off */
	uint32_t tensor;                /* number from the caller */
	uint32_t unit;                  /* bytes */
	uint64_t off;                   /* of its first byte from the start of the file */
	struct shf_shape shape;         /* in units */
};
struct shf_block_access {                /* which ranks can read the blocks in [lo, hi) of a file */
	uint64_t lo, hi;
	int32_t node;                   /* the ranks of this node can; -1: all ranks can */
	int64_t rank;                   /* only this one of these ranks can; -1: all of them can */
};
struct shf_stripe {
	uint32_t file;                  /* number from the caller; used for the turns only */
	uint64_t index;                 /* number of the stripe in its file */
	uint64_t lo, hi;                /* bytes of the file. lo is a multiple of a page; hi is the
	                                 * end of the stripe or of the file */
	uint64_t payload;               /* position of the first byte of the file that is not
	                                 * header. The writer of what follows the header writes the
	                                 * header too; no move fills it */
	const struct shf_deal_tensor *tensors;  /* borrowed */
	size_t tensors_n;
	bool collect;                   /* saving: `collector` may be given the whole stripe: it is
	                                 * if the stripe has bytes of several nodes, and few of each
	                                 * (see Collecting) */
	uint32_t collector;
	bool follow;                    /* with `collect`: the collector writes the stripe in any
	                                 * case. It is the short rest of a file, and the stripe
	                                 * before it was collected */
	const struct shf_block_access *had; /* borrowed. Loading: which ranks can read which blocks
	                                     * of the file; the items ascend and cover all blocks.
	                                     * NULL: every rank can read all blocks */
	size_t had_n;
	bool apart;                     /* loading: every rank reads for itself */
};
struct shf_piece {              /* a box that a rank holds or asks for, perhaps beyond the stripe */
	uint32_t rank;
	uint32_t tensor;                /* index into stripe.tensors */
	struct shf_box box;             /* in units, not empty */
};
struct shf_segment {            /* bytes [lo, hi) of the file, written or read by one rank */
	uint64_t lo, hi;
	uint32_t rank;
	bool quiet;                     /* if apart: another rank verifies these blocks */
};
struct shf_move {               /* a box to copy; it lies wholly in its segment and in what the rank
                                 * holds or asks for */
	uint32_t segment;               /* index */
	uint32_t rank;                  /* the rank whose memory the box is in; may be the segment's
	                                 * own rank */
	uint32_t tensor;                /* index into stripe.tensors */
	bool witness;                   /* a replica: only its digest is computed */
	struct shf_box box;
};
struct shf_dealt {              /* arrays are in the arena */
	struct shf_segment *segments;   /* ascending and disjoint; if `apart`, in the order of
	                                 * ranks, and those of one rank ascend and are disjoint.
	                                 * Saving: they cover [lo, hi) */
	size_t segments_n;
	struct shf_move *moves;         /* in the order of segments; within a segment in a fixed
	                                 * order */
	size_t moves_n;
	bool collected;                 /* the collector writes the whole stripe */
};
struct shf_gap {                /* the first box that no rank holds */
	uint32_t tensor;                /* index into stripe.tensors */
	struct shf_box box;
	int64_t before, after;          /* the ranks that hold the unit just before the box and the
	                                 * one just after it; -1: no rank does */
};
#define SHF_NODE_RUN (UINT64_C(4) << 20)        /* a stripe is collected only if its nodes have, on
                                                 * average, fewer bytes of it than this */
#define SHF_DEAL_WITNESS 1      /* flag: also add a witness move for every replica */
/* Deal one stripe. nodes[r] is the number of the node of rank r; there are `ranks` of them. The
 * order of the pieces does not change the result. Both return 0, SHEAF_ENOMEM, or SHEAF_EINVAL if
 * the input breaks a rule of the structs above: tensors overlap or do not begin on a multiple of
 * their unit (pass those as tensors of single bytes), a piece lies outside its tensor, a rank is
 * out of range. shf_deal_save returns SHEAF_ELAYOUT, with *gap filled, if no rank holds some
 * box. */
int shf_deal_save(struct shf_arena *arena, const struct shf_stripe *stripe,
                  const struct shf_piece *pieces, size_t pieces_n, const int32_t *nodes,
                  uint32_t ranks, int flags, struct shf_dealt *out, struct shf_gap *gap);
int shf_deal_load(struct shf_arena *arena, const struct shf_stripe *stripe,
                  const struct shf_piece *pieces, size_t pieces_n, const int32_t *nodes,
                  uint32_t ranks, struct shf_dealt *out);
#endif
