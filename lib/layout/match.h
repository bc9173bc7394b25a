/* SPDX-License-Identifier: Apache-2.0 */
/* Matching: who moves which bytes between whose memory and which file. Saving and loading are the
 * same problem with the arrows turned, so there is one matcher.
 *
 * Each stripe has a home rank. Every rank tells the homes what it holds (or wants) of their
 * stripes; a home deals its stripes and tells the file side of each segment (writer or reader);
 * the file side lays its segments out in rounds of a window and tells the memory side of each
 * move the round and place. Three sparse exchanges; no rank ever sees more than it takes part in.
 */
#ifndef SHF_MATCH_H
#define SHF_MATCH_H
#include "group.h"
#include "holds.h"
#include "work.h"

enum shf_way { SHF_SAVE, SHF_LOAD };
struct shf_hads {               /* who can read what: of file f, a[first[f]] .. a[first[f + 1]] */
	struct shf_had *a;
	size_t *first;
};
/* The input of matching. Everything is borrowed. layout, nodes, way and the windows must be
 * equal on all ranks; holds are this rank's own. */
struct shf_match {
	const struct shf_layout *layout;
	const struct shf_holds *holds;
	const int32_t *nodes;           /* of every rank */
	enum shf_way way;
	bool witness;                   /* also digests of replicas */
	uint64_t window;                /* bytes of image a round may take; 0: one round. Loading:
	                                 * whole blocks; rounds take turns in two windows */
	uint64_t slots_window;          /* saving: that slots may take besides; 0: no bound */
	uint64_t net_window;            /* loading: of a round whose bytes go to other nodes */
	const struct shf_hads *hads;    /* loading; NULL: everybody can read everything */
	bool apart;                     /* loading: everybody reads what he wants himself */
	/* saving: has the slice that holds this box, which this rank does, SHEAF_IN_PLACE? NULL:
	 * none has */
	bool (*in_place)(const void *arg, uint32_t tensor, const struct shf_box *box);
	const void *in_place_arg;
};
/* ELAYOUT names the first box that nobody holds. rc: what came of this rank's work before it.
 * [collective] */
int shf_match(struct shf_team *team, const struct shf_match *m, int rc, struct shf_work *work,
              struct sheaf_error *err);
/* With more files than this, stripes of short runs are written in two phases (deal.h): else every
 * rank of every node would open all of them. */
#define SHF_FILES_MANY 16
#define SHF_WINDOW_MIN (UINT64_C(64) << 10)
#endif
