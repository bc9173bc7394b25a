/* SPDX-License-Identifier: Apache-2.0 */
/* Parts: what the tensors of a stripe are made of. A part is a cell, with the set of ranks that
 * hold or want it and its place in the file. Only lib/plan/deal.c uses this. */
#ifndef SHF_PARTS_H
#define SHF_PARTS_H
#include "deal.h"

struct shf_share {              /* of a node in a set */
	int32_t node;
	uint32_t first;                 /* its lowest rank there */
	uint64_t bytes;
};
struct shf_set {                /* one set of ranks is one object: compare pointers */
	uint32_t *ranks;                /* ascending */
	uint32_t n;
	struct shf_share *shares;       /* one a node, made when first needed */
	uint32_t shares_n;
	uint64_t bytes, round;          /* of the vote that is being taken */
};
struct shf_part {
	struct shf_box box;
	uint32_t tensor;                /* index into stripe.tensors */
	struct shf_set *set;
	uint64_t lo, hi;                /* file bytes from its first to its last */
	uint64_t reach;                 /* greatest hi of this part and all before it */
};
struct shf_parts {
	struct shf_arena arena;         /* all but the arrays marked owned */
	const struct shf_stripe *stripe;
	const int32_t *nodes;
	uint32_t all;                   /* ranks that there are */
	uint64_t turn;                  /* s + f */
	uint64_t from;                  /* first byte of the stripe that is no header */
	/* Pieces that meet the stripe, by tensor, then rank, then box; no two are equal. */
	struct shf_box *boxes;          /* owned */
	uint32_t *ranks;                /* owned */
	size_t *first;                  /* owned; tensor t has pieces first[t] .. first[t + 1] */
	struct shf_part *parts;         /* owned; by lo */
	size_t parts_n, parts_max;
	struct shf_set **table;         /* owned; open addressing, a power of two */
	size_t table_n, table_max;
	uint64_t rounds;
};

/* list with room for one more than n, or NULL (list is then as it was). */
void *shf_parts_grow(void *list, size_t *max, size_t n, size_t size);

/* 0, SHEAF_ENOMEM, or SHEAF_EINVAL for what the headers forbid. Release in any case. */
int shf_parts_init(struct shf_parts *p, const struct shf_stripe *stripe,
                   const struct shf_piece *pieces, size_t pieces_n, const int32_t *nodes,
                   uint32_t ranks);
void shf_parts_release(struct shf_parts *p);
/* Fill parts. With gap: SHEAF_ELAYOUT at the first cell that nobody holds, its tensor and box in
 * *gap; without: such cells are left out. */
int shf_parts_collect(struct shf_parts *p, struct shf_gap *gap);

/* Tensor units [*lo, *hi) of the bytes [from, to) of the file; false: none. */
bool shf_parts_units(const struct shf_deal_tensor *t, uint64_t from, uint64_t to, uint64_t *lo,
                     uint64_t *hi);
/* item for every part of every part within bytes [lo, hi), as boxes, in a fixed order; its
 * non-zero result ends it and is returned. */
int shf_parts_each(const struct shf_parts *p, uint64_t lo, uint64_t hi,
                   int (*item)(void *arg, const struct shf_part *part, const struct shf_box *box),
                   void *arg);
/* Who should write or read bytes [lo, hi): of the node with most of the bytes there, by turns; or
 * of node `only`, if that is not -1, also where none of its ranks has any of them.
 * *rank: -1 where there is nobody. 0, SHEAF_ENOMEM, or SHEAF_EINVAL: that node has no rank. */
int shf_parts_vote(struct shf_parts *p, uint64_t lo, uint64_t hi, int32_t only, int64_t *rank);
/* The elected holder of the first byte at or after lo and before hi; -1: none. */
int64_t shf_parts_first(const struct shf_parts *p, uint64_t lo, uint64_t hi);
/* From whose memory rank `writer` takes what the set holds. */
uint32_t shf_parts_source(const struct shf_parts *p, const struct shf_set *set, uint32_t writer);
#endif
