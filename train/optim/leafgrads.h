/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of a step. They are in buckets, such as the gradients of a layer. Within a bucket
 * each leaf that is being computed has a block of memory. The blocks of leaves that are complete
 * are added up to nodes of the tree, and those of all ranks of dp to the gradient.
 *
 * The leaves are dealt to the ranks of dp in rounds. In a round each rank has equally many leaves,
 * which follow each other. When all leaves of a round are complete in a bucket, the bucket is added
 * up over the ranks. With ZeRO 0 and 1 there is one round, and a buffer for the whole gradient.
 * With ZeRO 2 a round has the leaves that a micro-batch completes: a rank keeps only the sums of
 * its share of the items, and the blocks are used for the next bucket. */
#ifndef LEAFGRADS_H
#define LEAFGRADS_H
#include "arenas.h"
#include "rankmesh.h"
#include "registry.h"
#include "rows.h"
#include "series.h"
#include "zeroshares.h"

struct tr_leafgrads;

/* A backward pass of a step: what tr_leafgrads_begin gets. */
struct tr_leafuse {
	int part;                       /* of the model, on this rank */
	int first, last;                /* the leaves of its sequences */
	int closed;
};
struct tr_leafgrads_opts {
	const struct tr_registry *reg;  /* borrowed, as all pointers */
	const struct tr_mesh *mesh;
	/* NULL: each rank gets the sums of all items. With shares->gradients it keeps only those of
	 * its own. */
	const struct tr_shares *shares;
	int leaves;                     /* of all ranks of dp, whose number divides it */
	int round;                      /* leaves of a rank in a round; 0: all */
	/* 1: sums over ranks go on in the background while the next bucket is computed. */
	int overlap;
	/* The backward passes of a step, in their order, and the parts of this rank. The memory is
	 * made for these passes. 0: there is memory for all leaves of this rank at once. */
	const struct tr_leafuse *use;
	int64_t uses;
	const struct tr_parts *parts;
};
/* Asks the arenas for the memory. o->use is not needed any more afterwards. A plan has only the
 * ranks and the numbers of ranks in o->mesh. [local] */
int tr_leafgrads_new(struct tr_leafgrads **lg, const struct tr_leafgrads_opts *o,
		     struct tr_arenas *a, struct tr_error *err);
void tr_leafgrads_free(struct tr_leafgrads *lg);
/* Returns how many bytes of the arena of gradients have been in use. */
int64_t tr_leafgrads_used(const struct tr_leafgrads *lg);
/* Returns whether gradients are added up over the ranks during backward passes, so that all ranks
 * must complete them. */
int tr_leafgrads_is_early(const struct tr_leafgrads *lg);
/* Returns the queue of background exchanges. Its group is mesh->background. */
struct tr_queue *tr_leafgrads_queue(struct tr_leafgrads *lg);
/* Returns the number of leaves of this rank. */
int tr_leafgrads_count(const struct tr_leafgrads *lg);
/* Returns the number in the tree of leaf i of this rank. */
int tr_leafgrads_leaf(const struct tr_leafgrads *lg, int i);
/* Prepares rows for a backward pass: sets their gradient buffers and `turn`. The first call of a
 * step removes the gradients of the step before it.
 * rows    must stay where it is during the pass
 * leaf    [rows->seqs]: of this rank, the leaf of each sequence, in ascending order
 * closed  leaves of this rank that are complete after the pass, in the layers that it computes */
int tr_leafgrads_begin(struct tr_leafgrads *lg, struct tr_rows *rows, const int *leaf, int closed,
		       struct tr_error *err);
/* Closes the first leaves of this rank: nothing must be added to them any more. [collective] with
 * ZeRO 2 */
int tr_leafgrads_close(struct tr_leafgrads *lg, int closed, struct tr_error *err);
/* Returns the gradient of a parameter in a leaf that is not closed, for tests. Calls for the
 * parameters of a layer must come in ascending order of leaves. NULL: there is no block left. */
float *tr_leafgrads_param(struct tr_leafgrads *lg, int leaf, const struct tr_param *p);
/* Sets *grad to the sum over the leaves of all ranks, for the items of this rank. Adds up the
 * gradients of the norms over the pieces of the tokens, and adds the gradient of a tied head to
 * that of the embedding. All leaves must be closed. *grad is valid until the next step. With
 * shares->gradients it has the items of this rank in the order of their moments, otherwise those
 * of the flat buffer of weights.
 * Without shares each rank has all sums of the norms, and its share of those of each other layer
 * (tr_leafgrads_share) when this has returned. Others may come later, so call tr_leafgrads_wait
 * before they are read. [collective] */
int tr_leafgrads_reduce(struct tr_leafgrads *lg, float **grad, struct tr_error *err);
/* Waits until the sums of a parameter are there, or, if p is NULL, until all that have begun are
 * complete. Between tr_leafgrads_reduce and the next step all ranks must call it for all
 * parameters, in any order. [collective] */
int tr_leafgrads_wait(struct tr_leafgrads *lg, const struct tr_param *p, struct tr_error *err);
/* Returns the parameter with which an update should begin: the sums of those before it arrive
 * last. */
int tr_leafgrads_first(const struct tr_leafgrads *lg);
/* Returns the items of bucket i of a flat buffer of gradients that rank `rank` of n adds up if
 * there are no shares. The buckets are the embedding, the layers, the head, and the norms of one
 * piece of the tokens: reg->layers + 3 of them. */
struct tr_span tr_leafgrads_share(const struct tr_registry *reg, int64_t i, int n, int rank);
#endif
