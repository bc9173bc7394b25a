/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on rows: item by item, or sums along a row. Item i is added to lane i mod 16, and a
 * fixed tree adds the 16 lanes, so the bits of a sum depend only on the row.
 *
 * struct tr_rowops works on floats. struct tr_itemops works on weights and activations, which are
 * items of a type (bf16.h) behind a pointer to void; its other operands are floats. A result is
 * computed in floats, and rounded once. */
#ifndef ROWOPS_H
#define ROWOPS_H
#include <stdint.h>

#include "bf16.h"

/* The factors of an update of AdamW. The caller computes each in double and rounds it once. */
struct tr_adamw_step {
	float scale;                    /* of the gradient: clipping */
	float beta1_rest, beta2, beta2_rest;    /* 1 - beta1, beta2, 1 - beta2 */
	float keep;                     /* 1 - lr * decay */
	float root;                     /* 1 / sqrt(1 - beta2^t) */
	float eps;
	float rate;                     /* lr / (1 - beta1^t) */
};
/* Declares the functions on floats of one instruction set. A row has n items. */
#define TR_ROWOPS_OF(isa)                                                                       \
	/* x = exp(scale * x - max) / sum, where max is the largest scale * x, and sum is that  \
	 * of the row. *max and *inverse = 1 / sum are for tr_softmax_again. */                 \
	void tr_softmax_##isa(float *x, int64_t n, float scale, float *max, float *inverse);    \
	/* The same from *max and *inverse. */                                                  \
	void tr_softmax_again_##isa(float *x, int64_t n, float scale, float max,                \
				    float inverse);                                             \
	/* ds = p * (dp - delta) * scale, in place of dp. */                                    \
	void tr_softmax_bwd_##isa(float *dp, const float *p, float delta, float scale,          \
				  int64_t n);                                                   \
	/* Largest x[i]; -inf if n is 0. */                                                     \
	float tr_max_##isa(const float *x, int64_t n);                                          \
	/* Sum of exp(x[i] - max). */                                                           \
	float tr_exp_sum_##isa(const float *x, int64_t n, float max);                           \
	/* x = exp(x - max) * factor. */                                                        \
	void tr_exp_times_##isa(float *x, int64_t n, float max, float factor);                  \
	/* y += x. */                                                                           \
	void tr_add_##isa(float *y, const float *x, int64_t n);                                 \
	/* Updates the weights p and their moments m and v by the gradients g. */               \
	void tr_adamw_##isa(float *p, float *m, float *v, const float *g, int64_t n,            \
			    const struct tr_adamw_step *s);                                     \
	/* Updates the momentum m by the gradients g, which are multiplied by `scale`, and sets \
	 * g to the direction of an update: m += (g - m) * rest, g = m + (g - m) * rest. */     \
	void tr_momentum_##isa(float *m, float *g, int64_t n, float scale, float rest);         \
	/* y = a * x + b * y. */                                                                \
	void tr_blend_##isa(float *y, const float *x, int64_t n, float a, float b);             \
	/* e += (x - e) * rest: a moving average whose decay is 1 - rest. */                    \
	void tr_average_##isa(float *e, const float *x, int64_t n, float rest);                 \
	/* Largest |x[i]|; NaN if there is a NaN. */                                            \
	float tr_absmax_##isa(const float *x, int64_t n);                                       \
	/* Adds the squares of x[i] * scale, each at most 1, as two integers a square:          \
	 * sum[0] in units of 2^-31, sum[1] of 2^-62. n is at most 2^31. */                     \
	void tr_squares_##isa(const float *x, int64_t n, double scale, int64_t sum[2]);

/* Declares the functions on items of one instruction set and type. */
#define TR_ITEMOPS_OF(isa)                                                                      \
	/* Sum of x[i]^2. */                                                                    \
	float tr_square_##isa(const void *x, int64_t n);                                        \
	/* Sum of x[i] * y[i]. */                                                               \
	float tr_dot_##isa(const void *x, const float *y, int64_t n);                           \
	/* Sum of dy[i] * w[i] * x[i]. */                                                       \
	float tr_dot3_##isa(const float *dy, const void *w, const void *x, int64_t n);          \
	/* y = x * factor * w. The first product is rounded, too, as in transformers. */        \
	void tr_norm_##isa(void *y, const void *x, float factor, const void *w, int64_t n);     \
	/* dx += factor * (dy * w - x * mean). */                                               \
	void tr_norm_bwd_##isa(float *dx, const float *dy, const void *x, float factor,         \
			       float mean, const void *w, int64_t n);                           \
	/* sum += dy * x * factor: the gradient of a norm's weight. */                          \
	void tr_norm_weight_##isa(float *sum, const float *dy, const void *x, float factor,     \
				  int64_t n);                                                   \
	/* h = silu(g) * u. */                                                                  \
	void tr_swiglu_##isa(void *h, const void *g, const void *u, int64_t n);                 \
	/* From dh, the gradient of h, computes that of g (in place of dh) and of u (in du). */ \
	void tr_swiglu_bwd_##isa(float *dh, float *du, const void *g, const void *u,            \
				 int64_t n);                                                    \
	/* Rotates the pairs (x[i], x[i + half]). turn is 1, or -1 to rotate back. */           \
	void tr_rope_##isa(void *x, const float *cosine, const float *sine, int64_t half,       \
			   float turn);                                                         \
	/* y += x. */                                                                           \
	void tr_add_items_##isa(float *y, const void *x, int64_t n);                            \
	/* y = a + x. */                                                                        \
	void tr_sum_##isa(void *y, const float *a, const void *x, int64_t n);                   \
	/* y = x. */                                                                            \
	void tr_round_##isa(void *y, const float *x, int64_t n);

TR_ROWOPS_OF(portable)
TR_ITEMOPS_OF(portable_f32)
TR_ITEMOPS_OF(portable_bf16)
TR_ROWOPS_OF(avx2)
TR_ITEMOPS_OF(avx2_f32)
TR_ITEMOPS_OF(avx2_bf16)
TR_ROWOPS_OF(avx512)
TR_ITEMOPS_OF(avx512_f32)
TR_ITEMOPS_OF(avx512_bf16)

/* The functions of one instruction set. TR_ROWOPS initialises it. */
struct tr_rowops {
	void (*softmax)(float *, int64_t, float, float *, float *);
	void (*softmax_again)(float *, int64_t, float, float, float);
	void (*softmax_bwd)(float *, const float *, float, float, int64_t);
	float (*max)(const float *, int64_t);
	float (*exp_sum)(const float *, int64_t, float);
	void (*exp_times)(float *, int64_t, float, float);
	void (*add)(float *, const float *, int64_t);
	void (*adamw)(float *, float *, float *, const float *, int64_t,
		      const struct tr_adamw_step *);
	void (*momentum)(float *, float *, int64_t, float, float);
	void (*blend)(float *, const float *, int64_t, float, float);
	void (*average)(float *, const float *, int64_t, float);
	float (*absmax)(const float *, int64_t);
	void (*squares)(const float *, int64_t, double, int64_t *);
};
#define TR_ROWOPS(isa)                                                                          \
	{ tr_softmax_##isa, tr_softmax_again_##isa, tr_softmax_bwd_##isa, tr_max_##isa,         \
	  tr_exp_sum_##isa, tr_exp_times_##isa, tr_add_##isa, tr_adamw_##isa,                   \
	  tr_momentum_##isa, tr_blend_##isa, tr_average_##isa, tr_absmax_##isa,                 \
	  tr_squares_##isa }

/* The functions of one instruction set and type. TR_ITEMOPS initialises it. */
struct tr_itemops {
	float (*square)(const void *, int64_t);
	float (*dot)(const void *, const float *, int64_t);
	float (*dot3)(const float *, const void *, const void *, int64_t);
	void (*norm)(void *, const void *, float, const void *, int64_t);
	void (*norm_bwd)(float *, const float *, const void *, float, float, const void *,
			 int64_t);
	void (*norm_weight)(float *, const float *, const void *, float, int64_t);
	void (*swiglu)(void *, const void *, const void *, int64_t);
	void (*swiglu_bwd)(float *, float *, const void *, const void *, int64_t);
	void (*rope)(void *, const float *, const float *, int64_t, float);
	void (*add)(float *, const void *, int64_t);
	void (*sum)(void *, const float *, const void *, int64_t);
	void (*round)(void *, const float *, int64_t);
};
#define TR_ITEMOPS(isa)                                                                         \
	{ tr_square_##isa, tr_dot_##isa, tr_dot3_##isa, tr_norm_##isa, tr_norm_bwd_##isa,       \
	  tr_norm_weight_##isa, tr_swiglu_##isa, tr_swiglu_bwd_##isa, tr_rope_##isa,            \
	  tr_add_items_##isa, tr_sum_##isa, tr_round_##isa }
#endif
