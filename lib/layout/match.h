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
#include "tally.h"
#include "work.h"

enum shf_way { SHF_SAVE, SHF_LOAD };
/* Which ranks can read which blocks: a[first[f]] up to a[first[f + 1]] for file f. */
struct shf_hads {
	struct shf_had *a;
	size_t *first;
};
/* What a rank tells the homes of its stripes, by home: to[r] bytes of it are for rank r. */
struct shf_tells {
	struct shf_buf bytes;
	size_t *to;                     /* by the caller; zeroed */
};
/* The input of matching. Everything is borrowed. layout, nodes, way and the windows must be
 * equal on all ranks; holds are this rank's own. */
struct shf_match {
	const struct shf_layout *layout;
	const struct shf_holds *holds;
	const int32_t *nodes;           /* nodes[r]: the node of rank r */
	enum shf_way way;
	bool witness;                   /* also digests of replicas */
	uint64_t window;                /* bytes of image a round may take; 0: one round. Loading:
	                                 * whole blocks; rounds take turns in two windows */
	uint64_t slots_window;          /* saving: that slots may take besides; 0: no bound */
	uint64_t net_window;            /* loading: of a round whose bytes go to other nodes */
	const struct shf_hads *hads;    /* loading; NULL: everybody can read everything */
	bool apart;                     /* loading: everybody reads what he wants himself */
	const struct shf_tells *tells;  /* made before, by shf_holds_tell; NULL: made here */
	uint64_t told;                  /* with tells: bytes that all ranks tell this one */
	struct shf_tally *tally;        /* loading; counted on the way, like shf_tally_meet. NULL:
	                                 * there is none */
	/* saving: has the slice that holds this box, which this rank does, SHEAF_IN_PLACE? NULL:
	 * none has */
	bool (*in_place)(const void *arg, uint32_t tensor, const struct shf_box *box);
	const void *in_place_arg;
};
/* Makes this rank's part of the plan in *work. rc: 0, or a failure of this rank before the call,
 * which is then returned on all ranks. ELAYOUT names the first box that no rank holds.
 * [collective] */
int shf_match(struct shf_team *team, const struct shf_match *m, int rc, struct shf_work *work,
              struct sheaf_error *err);
/* The same in three parts, for who has something to set up for its segments and to tell with them.
 * *g is fresh, and released in any case; *work is the caller's to release where any part failed. */
struct shf_matching {
	struct shf_buf *out, in;        /* out: by rank */
	size_t *in_bytes;
	int ranks;
};
/* Two exchanges, and then the segments of this rank, but for how many rounds others have. What it
 * returns is this rank's alone. [collective] */
int shf_match_deal(struct shf_team *team, const struct shf_match *m, int rc,
                   struct shf_matching *g, struct shf_work *work, struct sheaf_error *err);
/* The third exchange, with the maximum over all ranks of each of n words, SHF_MATCH_MORE at most;
 * rounds, net_rounds and own_most are then right. [collective] */
#define SHF_MATCH_MORE 4
int shf_match_tell(struct shf_team *team, int rc, struct shf_matching *g, struct shf_work *work,
                   uint64_t *x, size_t n, struct sheaf_error *err);
/* What this rank serves, from that. [local] */
int shf_match_hear(const struct shf_team *team, const struct shf_match *m,
                   const struct shf_matching *g, struct shf_work *work, struct sheaf_error *err);
void shf_matching_release(struct shf_matching *g);
/* With more files than this, stripes of short runs are written in two phases (deal.h): else every
 * rank of every node would open all of them. */
#define SHF_FILES_MANY 16
/* The smallest window, in bytes; opts.staging_bytes_max must be at least twice as much. */
#define SHF_WINDOW_MIN (UINT64_C(64) << 10)
#endif
