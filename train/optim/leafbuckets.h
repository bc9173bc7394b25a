/* SPDX-License-Identifier: Apache-2.0 */
/* What leafgrads.c, leafbuckets.c and leafreduce.c share: the buckets, the blocks of memory, and
 * the sums that are being made. No other file includes this one. */
#ifndef LEAFBUCKETS_H
#define LEAFBUCKETS_H
#include "leafgrads.h"
#include "leafsum.h"

struct node {                           /* the sum of leaves [from, to) */
	int from, to;
	int block;                      /* the number of its block; HOME: in the whole gradient */
};
enum { HOME = -1, NO_BLOCK = -2 };
struct bucket {
	int64_t from, to;               /* items of a whole gradient */
	int64_t weight;                 /* where the weights of these items begin */
	int is_norms;
	int64_t *cut;                   /* [dp + 1]: the share of rank r begins here; owned */
	int64_t own;                    /* where this rank's share is in a level, with ZeRO 2 */
	int size;                       /* number in lg->size of the size of its blocks */
	/* The nodes of rounds whose sums are not in the queue yet, in order of leaves. Those that
	 * are closed are at [0, closed), and leaves that are open at [open, end), so that a leaf is
	 * closed without moving those after it. Owned. */
	struct node *node;
	int closed, open, end;
	int rounds;                     /* how many rounds have their sums in the queue */
	/* 1: the sums of other ranks are collected at the end of the step, and not when those of
	 * this rank are there. */
	int late;
	int64_t ticket;                 /* they are there when this many series of the queue are
	                                 * complete */
};
struct block {                          /* memory for one node */
	float *at;
	int64_t items;
	int was_used;
	int next;                       /* the next free block of its size; NO_BLOCK: none */
};
struct size {                           /* of blocks: most buckets have equal sizes */
	int64_t items;
	int free;                       /* the first free block; NO_BLOCK: none */
};
/* A sum over the ranks that is in the queue, and the blocks that it adds up. */
struct reduction {
	struct reduction *next;
	int64_t ticket;                 /* it is complete when this many series of the queue are */
	int n, block[TR_TREE_NODES_MAX];
};
struct tr_leafgrads {
	struct tr_leafgrads_opts o;
	struct tr_backend *be;
	/* 1: nothing is computed. The passes of a step are carried out to count the blocks. */
	int dry;
	int64_t dry_added;              /* series that would be in the queue */
	int compact;                    /* a rank keeps its share only */
	int count, each, rounds;        /* leaves of this rank, in a round, and rounds */
	struct bucket *bucket;          /* the embedding, the layers, the head, the norms */
	int buckets;
	struct block *block;
	int blocks, blocks_max;         /* there is room for blocks_max */
	struct size *size;              /* [buckets], of which the first `sizes` are used */
	int sizes;
	/* The whole gradient, where the first node of each bucket is. With ZeRO 2, levels instead:
	 * each has the shares of one node in each bucket, and there are as many as the leaves of
	 * some rounds make nodes. The sums of the norms are in a buffer of their own then. */
	float *whole, *level[TR_TREE_NODES_MAX], *norms;
	int levels;
	int64_t moments;                /* items of a level that are in the order of moments */
	int64_t level_items;
	struct reduction *reduction, **last;    /* in the order of the queue */
	struct tr_queue queue;
	/* The backward pass. */
	struct tr_rows *rows;
	struct bucket *current;
	int closes;
	int *leaf;
	float **grad, **norm_grad;
	int64_t seqs;                   /* for which there is room */
	float *received;                /* of tr_leafsum_series and tr_sum_leaves */
	/* [2 * stages], and the gradient of the shared parameter in the other stage. */
	struct tr_piece *pieces;
	float *other;
	int done;                       /* the sum was made: the next pass begins a step */
};

/* Returns whether a bucket has no items. It has no blocks then. */
static inline int tr_leaf_is_empty(const struct bucket *b)
{
	return b->from == b->to;
}
/* Returns whether this rank has the embedding and the head, and they have the same weights. */
int tr_leaf_is_tied(const struct tr_registry *reg);
/* Makes the buckets, and cuts them into the shares of the ranks. */
int tr_leaf_buckets(struct tr_leafgrads *lg, struct tr_error *err);
/* Returns round i. */
struct tr_round tr_leaf_round(const struct tr_leafgrads *lg, int i);
/* Returns the bucket that has the gradient of a parameter, or NULL if the parameter has no items on
 * this rank. */
struct bucket *tr_leaf_bucket(const struct tr_leafgrads *lg, const struct tr_param *p);
/* Returns the bucket of the parameter that another stage has, too: reg->shared is not -1. */
struct bucket *tr_leaf_shared(const struct tr_leafgrads *lg);
/* Returns how many items of a bucket this rank adds up. */
int64_t tr_leaf_own(const struct tr_leafgrads *lg, const struct bucket *b);
/* Asks the arenas for the buffers of the sums over the ranks. */
void tr_leaf_ask(struct tr_leafgrads *lg, struct tr_arenas *a);
/* Makes a block free that is not HOME. */
void tr_leaf_put_block(struct tr_leafgrads *lg, int block);
/* Returns where the gradient of a node is; NULL while blocks are only counted (lg->dry). */
float *tr_leaf_memory(const struct tr_leafgrads *lg, const struct bucket *b,
		      const struct node *node);
/* Returns the node of a leaf of this rank. The first call for a leaf makes it, filled with zeros.
 * These calls come in ascending order of leaves. NULL: there is no block left. */
struct node *tr_leaf_node(struct tr_leafgrads *lg, struct bucket *b, int i);
/* Adds up the last two closed nodes of a bucket while they are the two parts of a node of the
 * tree. */
void tr_leaf_merge(struct tr_leafgrads *lg, struct bucket *b);
/* Returns the sums of the norms: those of each piece of the tokens. */
float *tr_leaf_norms(const struct tr_leafgrads *lg);
/* Closes the first `closed` leaves of this rank in a bucket, and queues the sums of the rounds that
 * are complete then. [collective] with ZeRO 2 */
int tr_leaf_close(struct tr_leafgrads *lg, struct bucket *b, int closed, struct tr_error *err);
/* Makes the blocks of those sums free that are complete when `series` series of the queue are. */
void tr_leaf_release(struct tr_leafgrads *lg, int64_t series);
#endif
