/* SPDX-License-Identifier: Apache-2.0 */
/* Matching decides which rank writes or reads which bytes of which file, and between whose memory
 * and the file they move. A load is a save with the direction reversed, so both use this code.
 *
 * The file side of a segment is the rank that writes or reads it. The memory side of a move is the
 * rank whose memory holds the bytes, or wants them. Each stripe has a home rank. Matching is three
 * sparse exchanges:
 * - Every rank sends to the homes the boxes that it holds (or wants) of their stripes.
 * - A home deals its stripes (deal.h) and sends each segment to its file side.
 * - The file side lays its segments out in rounds, each of which fits into a window of its image,
 *   and sends the round and place of each move to its memory side.
 * So no rank ever sees more of the plan than the parts that it takes part in.
 */
#ifndef SHF_MATCH_H
#define SHF_MATCH_H
#include "group.h"
#include "holds.h"
#include "count_tensors.h"
#include "work.h"

enum shf_way { SHF_SAVE, SHF_LOAD };
/* Which ranks can read which blocks: entries a[first[f]] to a[first[f + 1] - 1] are of file f. */
struct shf_block_access_map {
	struct shf_block_access *a;
	size_t *first;
};
/* The messages of one rank to the homes, in the order of the homes. They contain the boxes that it
 * holds or wants (deal_home.c). */
struct shf_home_messages {
	struct shf_buf bytes;
	size_t *to;                     /* owned; to[r] of the bytes are for rank r. The caller
	                                 * provides it, filled with 0 */
};
/* The input of matching. Everything is borrowed. layout, nodes, way and the windows must be
 * equal on all ranks; holds are this rank's own. */
struct shf_match {
	const struct shf_layout *layout;
	const struct shf_holds *holds;
	const int32_t *nodes;           /* nodes[r]: the node of rank r */
	enum shf_way way;
	bool witness;                   /* save: ranks that hold a replica of a box compute its
	                                 * digest, too */
	uint64_t window;                /* bytes of image that a round may take; 0: there is only
	                                 * one round. On a load a multiple of blocks; the image has
	                                 * two windows, which rounds use in turn */
	uint64_t slots_window;          /* save: bytes that slots (unstaged.h) may take in addition;
	                                 * 0: no bound */
	uint64_t net_window;            /* load: bytes of image that a round may take whose bytes
	                                 * are sent to other nodes */
	const struct shf_block_access_map *hads; /* load; NULL: every rank can read every block */
	bool apart;                     /* load: each rank reads all that it wants itself */
	const struct shf_home_messages *tells;  /* messages of this rank to the homes, made with
	                                 * shf_holds_pack; NULL: matching makes them */
	uint64_t told;                  /* if tells is set: size of the messages of all ranks to
	                                 * this one */
	struct shf_tensor_counts *tally; /* load: counts tensors by outcome. Its records are sent
	                                  * with the messages of the second exchange, and counted on
	                                  * arrival; NULL: nothing is counted */
	/* Save: returns whether the slice that holds this box, on this rank, has
	 * SHEAF_SLICE_IN_PLACE. NULL: no slice has it. */
	bool (*in_place)(const void *arg, uint32_t tensor, const struct shf_box *box);
	const void *in_place_arg;
};
/* Makes this rank's part of the plan in *work. rc: 0, or a failure of this rank before the call,
 * which is then returned on all ranks. ELAYOUT names the first box that no rank holds.
 * [collective] */
int shf_match(struct shf_team *team, const struct shf_match *m, int rc, struct shf_work *work,
              struct sheaf_error *err);
/* Matching in three parts (shf_match_deal, shf_match_send, shf_match_receive), for a caller that
 * sets something up for its segments before the third exchange, or needs the maximum of some words
 * over all ranks from it. Call shf_matching_release in any case. If a part fails, the caller must
 * also release *work. */
struct shf_matching {
	struct shf_buf *out, in;        /* owned; out[r]: what is sent to rank r next; in: what the
	                                 * last exchange brought */
	size_t *in_bytes;               /* owned; in_bytes[r] of `in` are from rank r */
	int ranks;
};
/* Makes the first two exchanges, then the segments of this rank in *work. The numbers of rounds
 * there do not count other ranks yet. rc: as in shf_match. The result may be a failure of this rank
 * alone; shf_match_send must get it as its rc. *g need not be initialized. [collective] */
int shf_match_deal(struct shf_team *team, const struct shf_match *m, int rc,
                   struct shf_matching *g, struct shf_work *work, struct sheaf_error *err);
/* Makes the third exchange, and sets rounds, net_rounds and own_most in *work. In the same
 * operations x[i] becomes the maximum over all ranks, for n words, SHF_MATCH_MORE at most. rc: 0,
 * or a failure of this rank before the call, which is then returned on all ranks. [collective] */
#define SHF_MATCH_MORE 4
int shf_match_send(struct shf_team *team, int rc, struct shf_matching *g, struct shf_work *work,
                   uint64_t *x, size_t n, struct sheaf_error *err);
/* Decodes what this rank received in the third exchange: its serves. ENOMEM, EBUG. [local] */
int shf_match_receive(const struct shf_team *team, const struct shf_match *m,
                      const struct shf_matching *g, struct shf_work *work, struct sheaf_error *err);
void shf_matching_release(struct shf_matching *g);
/* If there are more files than this, stripes of short runs are written in two phases (deal.h);
 * otherwise every rank would open all files. */
#define SHF_FILES_MANY 16
/* The smallest window, in bytes; opts.staging.bytes_max must be at least twice as much. */
#define SHF_WINDOW_MIN (UINT64_C(64) << 10)
#endif
