/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor and sequence parallelism. Some dimensions of a model are cut into pieces, and each rank of
 * a group has consecutive ones. A sum over such a dimension is computed for each piece, and the
 * tree of num/sumtree.h adds up the pieces, whichever ranks have them.
 *
 * With sequence parallelism the tokens of each sequence are cut as well, and a rank has those of
 * its pieces wherever a row is processed alone: in norms and in the residual stream. Its rows are
 * then "local": the sequences follow each other, each with fewer tokens. Without it, local rows are
 * all rows. */
#ifndef TENSORPAR_H
#define TENSORPAR_H
#include "arenas.h"
#include "ranks.h"
#include "registry.h"

enum { TR_TREE_DEPTH_MAX = 17 };

struct tr_tensorpar_opts {
	const struct tr_ranks *ranks;   /* the group; borrowed */
	int pieces;                     /* the number of ranks divides it */
	int sp;                         /* 1: sequence parallelism */
};
struct tr_tensorpar {
	struct tr_backend *be;          /* borrowed, as the ranks */
	const struct tr_ranks *ranks;
	struct tr_pieces pieces;        /* of this rank */
	struct tr_pieces tokens;        /* those of each sequence that are in its local rows */
	int sp;                         /* there are several ranks, and tokens are cut */
	int64_t size;                   /* of a row */
	int64_t block;                  /* rows whose pieces are added up at once */
	/* The largest nodes of the tree that this rank has: node i ends before piece end[i], and
	 * has a sum for each token. Without sp, node 0 is where the caller wants the result. */
	int nodes, end[TR_TREE_NODES_MAX];
	float *node[TR_TREE_NODES_MAX];
	float *scratch[TR_TREE_DEPTH_MAX], *one;        /* [block, size] */
	float *whole;                   /* [tokens, size], with sp: rows of all ranks */
	float *received;                /* of tr_sum_leaves, for sums of rows of this size */
	int64_t *cut;                   /* [ranks + 1]: items before those of rank r */
	int64_t *place;                 /* [ranks]: scratch */
	int64_t local;                  /* local rows of this call */
};
/* A product that is part of a sum over pieces. */
struct tr_term {
	struct tr_linear l;
	const struct tr_param *param;   /* of l.w */
	const void *x;                  /* input: rows of x, or of dy, which are floats */
	int back;                       /* 0: x w^T. 1: dy w */
};

/* a           gives the memory
 * tokens_max  largest number of tokens in a call */
int tr_tensorpar_init(struct tr_tensorpar *tp, const struct tr_tensorpar_opts *o,
		      struct tr_arenas *a, int64_t size, int64_t tokens_max,
		      struct tr_error *err);
void tr_tensorpar_release(struct tr_tensorpar *tp);
/* Begins a call of the model: sets tp->local. */
void tr_tensorpar_begin(struct tr_tensorpar *tp, const struct tr_rows *rows);

/* Sets *all to the rows of all ranks, in the order of tokens, from the local rows of each. They are
 * valid until the next call. [collective] */
int tr_gather_rows(struct tr_tensorpar *tp, const struct tr_rows *rows, enum tr_type type,
		   const void *local, const void **all, struct tr_error *err);
/* Adds up the terms over the pieces of this rank, for rows [first, last). Inputs begin with row
 * `first`. Within a piece, the terms are added in their order. After the calls for all rows,
 * tr_sum_pieces_end sets y to the local rows of the sum over all pieces. y is the same in all these
 * calls, and has room for the local rows. [local] */
void tr_sum_pieces(struct tr_tensorpar *tp, const struct tr_registry *reg,
		   const struct tr_rows *rows, const struct tr_term *term, int terms, int64_t first,
		   int64_t last, float *y);
/* [collective] */
int tr_sum_pieces_end(struct tr_tensorpar *tp, const struct tr_rows *rows, float *y,
		      struct tr_error *err);
/* Looks up the embedding: sets x to the local rows. [collective] */
int tr_embed_rows(struct tr_tensorpar *tp, const struct tr_rows *rows, struct tr_span has,
		  const void *w, float *x, struct tr_error *err);

/* Computes items of a piece, or of a sum over pieces. */
struct tr_node_sum {
	void (*piece)(const struct tr_node_sum *s, int piece, float *to);
	/* Adds a piece to `to` without computing it by itself, if that gives the same bits.
	 * Otherwise returns 0. NULL: it never does. */
	int (*add_piece)(const struct tr_node_sum *s, int piece, float *to);
	const void *arg;
	struct tr_backend *be;
	float *const *scratch;          /* for each level of the tree */
	int64_t items;
};
/* Sets `to` to the sum over the node of the tree that has pieces [low, low + n). */
void tr_node_sum(const struct tr_node_sum *s, int low, int n, float *to);
#endif
