/* SPDX-License-Identifier: Apache-2.0 */
/* The operations that a model is made of, for one kind of device. The CPU is the first, and the
 * oracle of others. All memory that an operation gets is that of `alloc`. */
#ifndef BACKEND_H
#define BACKEND_H
#include <stddef.h>

#include "isa.h"
#include "rows.h"

struct tr_linear {                      /* y = x w^T + bias; a weight is [out, in] */
	int64_t in, out;
	const float *w;
	const float *bias;              /* NULL: none */
};
/* A row of q or o is [heads, size], of k or v [kv_heads, size]. */
struct tr_attention {
	int64_t heads, kv_heads, size;
	const float *q, *k, *v;
	float *stat;                    /* [n, heads, 2]: from forward to backward */
	float *scratch;                 /* tr_attention_scratch floats */
};

struct tr_backend {
	const char *name;
	void *(*alloc)(struct tr_backend *be, size_t items); /* floats, zero; NULL: no memory */
	void (*release)(struct tr_backend *be, void *memory);
	void (*free)(struct tr_backend *be);

	/* y[n, out] of x[n, in]. */
	void (*linear)(struct tr_backend *be, const struct tr_linear *l, const float *x, float *y,
		       int64_t n);
	/* dx[n, in] = or += dy w. */
	void (*linear_input)(struct tr_backend *be, const struct tr_linear *l, const float *dy,
			     float *dx, int64_t n, int add);
	/* Adds dy^T x to the gradients of each sequence of rows [first, last), from item `offset`.
	 * Rows begin and end at ends of sequences, or a multiple of TR_CHAIN after their begin. dy
	 * and x begin with row `first`. */
	void (*linear_weight)(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			      int64_t last, const float *dy, int64_t out, const float *x,
			      int64_t in, int64_t offset);
	void (*linear_bias)(struct tr_backend *be, const struct tr_rows *rows, const float *dy,
			    int64_t out, int64_t offset);

	/* y = x * root * w with root = 1 / sqrt(mean(x^2) + eps) for each row. */
	void (*norm)(struct tr_backend *be, float *y, float *root, const float *x, const float *w,
		     int64_t n, int64_t size, double eps);
	/* The same from the roots. */
	void (*norm_again)(struct tr_backend *be, float *y, const float *root, const float *x,
			   const float *w, int64_t n, int64_t size);
	/* dx += gradient of x, and the gradient of w. */
	void (*norm_bwd)(struct tr_backend *be, const struct tr_rows *rows, float *dx,
			 const float *dy, const float *x, const float *root, const float *w,
			 int64_t size, int64_t offset);

	/* Rotates heads of `size` by the position of each row; turn -1: back. Tables are
	 * [positions, size / 2]. */
	void (*rope)(struct tr_backend *be, const struct tr_rows *rows, float *x, int64_t heads,
		     int64_t size, const float *cosine, const float *sine, int turn);
	/* Causal attention within each sequence. */
	void (*attention)(struct tr_backend *be, const struct tr_rows *rows,
			  const struct tr_attention *a, float *o);
	void (*attention_bwd)(struct tr_backend *be, const struct tr_rows *rows,
			      const struct tr_attention *a, const float *o, const float *grad_o,
			      float *dq, float *dk, float *dv);

	void (*swiglu)(struct tr_backend *be, float *h, const float *g, const float *u, int64_t n);
	/* dh becomes the gradient of g. */
	void (*swiglu_bwd)(struct tr_backend *be, float *dh, float *du, const float *g,
			   const float *u, int64_t n);
	void (*zero)(struct tr_backend *be, float *x, int64_t n);
	void (*add)(struct tr_backend *be, float *y, const float *x, int64_t n);
	void (*embed)(struct tr_backend *be, const struct tr_rows *rows, float *x, const float *w,
		      int64_t size);
	void (*embed_bwd)(struct tr_backend *be, const struct tr_rows *rows, const float *dx,
			  int64_t size, int64_t offset);
	/* Losses of rows [first, last) from their logits, 0 for masked ones. With grad the logits
	 * become the gradients of weight * scale * loss. */
	void (*xent)(struct tr_backend *be, const struct tr_rows *rows, int64_t first, int64_t last,
		     float *logits, int64_t vocab, float *loss, double scale, int grad);

	int64_t gemm_ns;                /* time in products, since the caller set it to 0 */
	const struct tr_isa *isa;       /* the CPU's */
	void *own;
};
/* Makes the back end of one core. */
int tr_backend_cpu(struct tr_backend **be, const struct tr_isa *isa, struct tr_error *err);
void tr_backend_free(struct tr_backend *be);
/* Floats of scratch for sequences of at most n tokens. */
int64_t tr_attention_scratch(int64_t n);

/* Of the CPU (backend_attention.c). */
void tr_cpu_gemm(struct tr_backend *be, const struct tr_gemm *g);
void tr_cpu_attention(struct tr_backend *be, const struct tr_rows *rows,
		      const struct tr_attention *a, float *o);
void tr_cpu_attention_bwd(struct tr_backend *be, const struct tr_rows *rows,
			  const struct tr_attention *a, const float *o, const float *grad_o,
			  float *dq, float *dk, float *dv);
#endif
