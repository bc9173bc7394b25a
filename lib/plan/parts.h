/* SPDX-License-Identifier: Apache-2.0 */
/* Parts: the pieces into which a stripe is cut. A part is a cell (cells.h) with the set of ranks
 * that hold it or ask for it, and with its place in the file. Only lib/plan/deal.c uses this. */
#ifndef SHF_PARTS_H
#define SHF_PARTS_H
#include "deal.h"

struct shf_share {              /* what one node has of the bytes in a vote */
	int32_t node;
	uint32_t first;                 /* the lowest rank of the node in the set */
	uint64_t bytes;
};
struct shf_set {                /* a set of ranks. There is one object for each set, so comparing
                                 * pointers compares sets */
	uint32_t *ranks;                /* ascending */
	uint32_t n;
	struct shf_share *shares;       /* one for each node; NULL until a vote needs them */
	uint32_t shares_n;
	uint64_t bytes, round;          /* bytes of the set in the vote whose number is `round` */
};
struct shf_part {
	struct shf_box box;
	uint32_t tensor;                /* index into stripe.tensors */
	struct shf_set *set;
	uint64_t lo, hi;                /* bytes [lo, hi) of the file reach from the first byte of
	                                 * the part to its last */
	uint64_t reach;                 /* the greatest hi of this part and all before it */
};
struct shf_parts {
	struct shf_arena arena;         /* holds all that is not marked owned */
	const struct shf_stripe *stripe;
	const int32_t *nodes;
	uint32_t all;                   /* number of ranks */
	uint64_t turn;                  /* index of the stripe + number of its file (t in deal.h) */
	uint64_t from;                  /* first byte of the stripe that is no header */
	/* The pieces that meet the stripe, sorted by tensor, then rank, then box, without
	 * duplicates. */
	struct shf_box *boxes;          /* owned */
	uint32_t *ranks;                /* owned */
	size_t *first;                  /* owned; tensor t has pieces first[t] .. first[t + 1] */
	struct shf_part *parts;         /* owned; ascending by lo */
	size_t parts_n, parts_max;
	struct shf_set **table;         /* owned; hash table of all sets: open addressing, the size
	                                 * a power of two */
	size_t table_n, table_max;
	uint64_t rounds;                /* number of votes so far */
};

/* Returns list with room for one more than n items of `size` bytes, maybe at a new address. NULL:
 * out of memory, and list is as it was. *max is its capacity in items. */
void *shf_parts_grow(void *list, size_t *max, size_t n, size_t size);

/* Fills *p for the stripe; of the pieces, those that meet the stripe are copied. Returns 0,
 * SHEAF_ENOMEM, or SHEAF_EINVAL if the input breaks a rule of deal.h. The caller must release *p
 * also after an error. stripe and nodes stay borrowed. */
int shf_parts_init(struct shf_parts *p, const struct shf_stripe *stripe,
                   const struct shf_piece *pieces, size_t pieces_n, const int32_t *nodes,
                   uint32_t ranks);
void shf_parts_release(struct shf_parts *p);
/* Fills p->parts. If gap is not NULL, stops with SHEAF_ELAYOUT at the first cell that no rank
 * holds, and stores its tensor and box in *gap. Otherwise such cells are left out. */
int shf_parts_collect(struct shf_parts *p, struct shf_gap *gap);

/* Converts bytes [from, to) of the file to units [*lo, *hi) of the tensor. Returns false if the
 * tensor has no unit there. */
bool shf_parts_units(const struct shf_deal_tensor *t, uint64_t from, uint64_t to, uint64_t *lo,
                     uint64_t *hi);
/* Calls item for what every part has within bytes [lo, hi), one call a box, in a fixed order. A
 * result of item that is not 0 ends the walk and is returned. */
int shf_parts_each(const struct shf_parts *p, uint64_t lo, uint64_t hi,
                   int (*item)(void *arg, const struct shf_part *part, const struct shf_box *box),
                   void *arg);
/* Chooses the rank that is to write or read bytes [lo, hi): one on the node with most of these
 * bytes, in turn. only: if not -1, the rank must be on this node, even if none of its ranks has any
 * of the bytes. *rank becomes -1 if no rank has any. Returns 0, SHEAF_ENOMEM, or SHEAF_EINVAL: node
 * `only` has no rank. */
int shf_parts_vote(struct shf_parts *p, uint64_t lo, uint64_t hi, int32_t only, int64_t *rank);
/* Finds the first byte in [lo, hi) that some rank has, and returns one of its holders, which take
 * turns; -1: no rank has a byte in [lo, hi). */
int64_t shf_parts_first(const struct shf_parts *p, uint64_t lo, uint64_t hi);
/* Returns the rank from whose memory `writer` takes what the ranks of the set hold. */
uint32_t shf_parts_source(const struct shf_parts *p, const struct shf_set *set, uint32_t writer);
#endif
