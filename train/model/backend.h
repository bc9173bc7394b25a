/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a model on one kind of device. The CPU is the first one, and the reference with
 * which others are compared. The memory of activations, weights and gradients comes from
 * `alloc`.
 *
 * Weights and activations are items of `type`, behind pointers to void. Everything else is floats:
 * gradients, sums over pieces, logits, and what norms and attention keep of a row. */
#ifndef BACKEND_H
#define BACKEND_H
#include <stddef.h>

#include "dropmask.h"
#include "isa.h"
#include "rows.h"
#include "sumtree.h"

struct tr_linear {                      /* y = x w^T + bias; a weight is [out, in] */
	int64_t in, out;
	const void *w;
	const void *bias;               /* NULL: none */
};
/* A row of q or o is [heads, size], of k or v [kv_heads, size]. */
struct tr_attention {
	int64_t heads, kv_heads, size;
	const void *q, *k, *v;
	float *stat;                    /* [n, heads, 2]: written by forward, read by backward */
	float *scratch;                 /* tr_attention_scratch floats */
	/* For dropout: the numbers of the layer and of the first of these heads in the model. */
	int64_t layer, first_head;
};

struct tr_backend {
	/* Allocates floats that are zero. NULL: no memory. */
	void *(*alloc)(struct tr_backend *be, size_t items);
	void (*release)(struct tr_backend *be, void *memory);
	void (*free)(struct tr_backend *be);

	/* y[n, out] = or += x w^T, summed over the inputs `over`; and adds the bias. */
	void (*linear)(struct tr_backend *be, const struct tr_linear *l, struct tr_span over,
		       const void *x, float *y, int64_t n, int add);
	/* dx[n, in] = or += dy w, summed over the outputs `over`. */
	void (*linear_input)(struct tr_backend *be, const struct tr_linear *l, struct tr_span over,
			     const float *dy, float *dx, int64_t n, int add);
	/* For each sequence in rows [first, last), adds dy^T x of its rows to its gradient buffer,
	 * from item `offset` on. dy and x begin with row `first`. first and last are each the end
	 * of a sequence, or a multiple of TR_CHAIN rows after the start of one. So the parts of the
	 * sum (gemm.h) are the same in any number of calls. */
	void (*linear_weight)(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			      int64_t last, const float *dy, int64_t out, const void *x,
			      int64_t in, int64_t offset);
	/* Adds dy to the gradient of the bias, for all rows. */
	void (*linear_bias)(struct tr_backend *be, const struct tr_rows *rows, const float *dy,
			    int64_t out, int64_t offset);

	/* y = x * root * w with root = 1 / sqrt(mean(x^2) + eps) for each row. */
	void (*norm)(struct tr_backend *be, void *y, float *root, const void *x, const void *w,
		     int64_t n, int64_t size, double eps);
	/* Computes y again, from the roots that `norm` has computed. */
	void (*norm_again)(struct tr_backend *be, void *y, const float *root, const void *x,
			   const void *w, int64_t n, int64_t size);
	/* Adds the gradient of x to dx, and that of w to the gradient buffers. The rows are those
	 * tokens of each sequence that are in `pieces`. The gradient of w has a part for each piece
	 * of tokens: that of the first begins with item `offset`, and that of each other one
	 * `stride` items after the one before. */
	void (*norm_bwd)(struct tr_backend *be, const struct tr_rows *rows,
			 const struct tr_pieces *pieces, float *dx, const float *dy, const void *x,
			 const float *root, const void *w, int64_t size, int64_t offset,
			 int64_t stride);

	/* Rotates each head, which has `size` items, by the position of its row. turn is 1, or -1
	 * to rotate back a gradient. The tables are [positions, size / 2]. */
	void (*rope)(struct tr_backend *be, const struct tr_rows *rows, void *x, int64_t heads,
		     int64_t size, const float *cosine, const float *sine, int turn);
	/* Causal attention within each part of the rows. rows->drop drops probabilities. */
	void (*attention)(struct tr_backend *be, const struct tr_rows *rows,
			  const struct tr_attention *a, void *o);
	/* Computes dq, dk and dv from grad_o, the gradient of o. */
	void (*attention_bwd)(struct tr_backend *be, const struct tr_rows *rows,
			      const struct tr_attention *a, const void *o, const float *grad_o,
			      float *dq, float *dk, float *dv);

	/* h = silu(g) * u, for n items. */
	void (*swiglu)(struct tr_backend *be, void *h, const void *g, const void *u, int64_t n);
	/* Computes the gradient of u, and writes that of g over dh. */
	void (*swiglu_bwd)(struct tr_backend *be, float *dh, float *du, const void *g,
			   const void *u, int64_t n);
	/* Drops items of rows, which are those tokens of each sequence that are in `pieces`. y may
	 * be x. */
	void (*drop)(struct tr_backend *be, const struct tr_rows *rows,
		     const struct tr_pieces *pieces, const struct tr_dropmask *mask, float *y,
		     const float *x, int64_t size);
	/* Computes a product that is no part of a model. */
	void (*gemm)(struct tr_backend *be, const struct tr_gemm *g);
	void (*zero)(struct tr_backend *be, float *x, int64_t n);
	void (*add)(struct tr_backend *be, float *y, const float *x, int64_t n);
	/* y = a + x. */
	void (*sum)(struct tr_backend *be, void *y, const float *a, const void *x, int64_t n);
	/* Rounds n floats to items of the type. */
	void (*round)(struct tr_backend *be, void *y, const float *x, int64_t n);
	/* Sets row i of x to the row of token[i], or to zeros if it is not in rows `has` of the
	 * embedding, which are w. */
	void (*embed)(struct tr_backend *be, const struct tr_rows *rows, struct tr_span has,
		      float *x, const void *w, int64_t size);
	void (*embed_bwd)(struct tr_backend *be, const struct tr_rows *rows, struct tr_span has,
			  const float *dx, int64_t size, int64_t offset);

	/* The cross-entropy of rows [first, last), whose logits begin with row `first`. They are
	 * those of the tokens `has`. Rows whose targets are masked are skipped, and their results
	 * are 0. */

	/* max[i]: the largest logit. */
	void (*xent_max)(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			 int64_t last, const float *logits, struct tr_span has, float *max);
	/* sum[i]: the sum of exp(logit - max[i]) over the tokens `of`, which are some of `has`. */
	void (*xent_sum)(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			 int64_t last, const float *logits, struct tr_span has, struct tr_span of,
			 const float *max, float *sum);
	/* hit[i]: the logit of the target, or 0 if it is not one of `has`. */
	void (*xent_hit)(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			 int64_t last, const float *logits, struct tr_span has, float *hit);
	/* loss[i] of row i, from max, sum and hit over the whole vocabulary. */
	void (*xent_loss)(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			  int64_t last, const float *max, const float *sum, const float *hit,
			  float *loss);
	/* Writes the gradients of weight * scale * loss over the logits. */
	void (*xent_bwd)(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			 int64_t last, float *logits, struct tr_span has, const float *max,
			 const float *sum, double scale);

	enum tr_type type;              /* of weights and activations; set before a call */
	int64_t workspace;              /* bytes that it has allocated for itself */
	/* Called after a product, unless the last call was less than 50 us ago. NULL: nothing. */
	void (*between)(void *arg);
	void *between_arg;
	int64_t between_ns;             /* when it was called last */
	int64_t gemm_ns;                /* time in products, since the caller set it to 0 */
	const struct tr_isa *isa;       /* the kernels of the CPU */
	void *own;                      /* what this kind of device needs */
};
/* Makes the back end of one core, of type TR_F32. */
int tr_backend_cpu(struct tr_backend **be, const struct tr_isa *isa, struct tr_error *err);
void tr_backend_free(struct tr_backend *be);
/* Returns the workspace of that back end. */
int64_t tr_backend_cpu_workspace(void);
/* Returns the floats of scratch that attention needs for sequences of at most n tokens, with heads
 * of `size` items. */
int64_t tr_attention_scratch(int64_t n, int64_t size);

/* What backend_cpu.c and backend_attention.c share. */
void tr_cpu_gemm(struct tr_backend *be, const struct tr_gemm *g);
void tr_cpu_attention(struct tr_backend *be, const struct tr_rows *rows,
		      const struct tr_attention *a, void *o);
void tr_cpu_attention_bwd(struct tr_backend *be, const struct tr_rows *rows,
			  const struct tr_attention *a, const void *o, const float *grad_o,
			  float *dq, float *dk, float *dv);
#endif
