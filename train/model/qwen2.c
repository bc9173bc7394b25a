/* SPDX-License-Identifier: Apache-2.0 */
#include "qwen2.h"

#include <stdlib.h>

#include "elementary.h"

/* The activations of a layer that its backward pass needs. The outputs of norms and of the gate are
 * not kept, but computed again. */
struct kept {
	float *x, *root1;               /* input of the layer */
	float *q, *k, *v, *stat, *o;
	float *mid, *root2;             /* input of the MLP */
	float *gate, *up;
};
struct tr_model {
	struct tr_model_config c;
	struct tr_registry reg;
	struct tr_backend *be;
	int64_t tokens_max, seq_max;
	float *w;
	float *cosine, *sine;           /* [seq_max, head_size / 2] */
	struct kept *kept;              /* [layers + 1]; of the last one only x and root1 */
	float *memory;                  /* of all activations and tables; owned */
	float *hidden, *dhidden;
	/* Scratch: the output of a norm (xn), gradients of it (dxn) and of the residual stream
	 * (dx), two buffers that are as wide as the MLP, and gradients of q, k and v. */
	float *xn, *dxn, *dx, *wide, *dwide, *dq, *dk, *dv, *logits, *attention;
	int64_t logits_rows;            /* whose logits are computed at once */
};

enum { LOGITS_MAX = 1 << 24 };          /* floats of logits, unless TR_CHAIN rows are more */

struct layer {                          /* the weights of one */
	const float *norm1, *norm2;
	struct tr_linear q, k, v, o, gate, up, down;
};

static const struct tr_param *param(const struct tr_model *m, int64_t l, enum tr_layer_param which)
{
	int i = m->reg.layer[l * TR_LAYER_PARAMS + which];

	return i < 0 ? NULL : &m->reg.param[i];
}

static const float *weight(const struct tr_model *m, int64_t l, enum tr_layer_param which)
{
	const struct tr_param *p = param(m, l, which);

	return p ? m->w + p->offset : NULL;
}

static struct tr_linear linear(const struct tr_model *m, int64_t l, enum tr_layer_param which,
			       enum tr_layer_param bias)
{
	const struct tr_param *p = param(m, l, which);

	return (struct tr_linear){ .in = p->shape[1], .out = p->shape[0], .w = m->w + p->offset,
				   .bias = bias == which ? NULL : weight(m, l, bias) };
}

static struct layer layer_of(const struct tr_model *m, int64_t l)
{
	return (struct layer){
		.norm1 = weight(m, l, TR_NORM1), .norm2 = weight(m, l, TR_NORM2),
		.q = linear(m, l, TR_Q, TR_Q_BIAS), .k = linear(m, l, TR_K, TR_K_BIAS),
		.v = linear(m, l, TR_V, TR_V_BIAS), .o = linear(m, l, TR_O, TR_O),
		.gate = linear(m, l, TR_GATE, TR_GATE), .up = linear(m, l, TR_UP, TR_UP),
		.down = linear(m, l, TR_DOWN, TR_DOWN) };
}

static struct tr_linear head(const struct tr_model *m)
{
	const struct tr_param *p = &m->reg.param[m->reg.head];
	const struct tr_param *own = p->tied_to >= 0 ? &m->reg.param[p->tied_to] : p;

	return (struct tr_linear){ .in = m->c.hidden, .out = m->c.vocab, .w = m->w + own->offset };
}

/* Angles are rounded to fp32, as in transformers, because published models were trained with such
 * angles. Their sines and cosines are computed in double and rounded once. */
static void fill_tables(struct tr_model *m)
{
	int64_t half = m->c.head_size / 2;

	for (int64_t i = 0; i < half; i++) {
		double power = -(double)(2 * i) / (double)m->c.head_size;
		float turn = (float)tr_exp(power * tr_log(m->c.rope_theta));

		for (int64_t p = 0; p < m->seq_max; p++) {
			double s, c;

			tr_sincos((double)((float)p * turn), &s, &c);
			m->cosine[p * half + i] = (float)c;
			m->sine[p * half + i] = (float)s;
		}
	}
}

/* Pieces of one allocation are handed out in order, each aligned to a vector. If memory is NULL
 * they are only counted. */
struct carving {
	float *memory;
	int64_t used;
};

static float *carve(struct carving *c, int64_t items)
{
	float *at = c->memory ? c->memory + c->used : NULL;

	c->used += (items + 15) / 16 * 16;
	return at;
}

static void carve_kept(struct carving *v, const struct tr_model_config *c, struct kept *k,
		       int64_t n, int whole)
{
	int64_t q = c->heads * c->head_size, kv = c->kv_heads * c->head_size;

	k->x = carve(v, n * c->hidden);
	k->root1 = carve(v, n);
	if (!whole)
		return;
	k->q = carve(v, n * q);
	k->k = carve(v, n * kv);
	k->v = carve(v, n * kv);
	k->stat = carve(v, n * c->heads * 2);
	k->o = carve(v, n * q);
	k->mid = carve(v, n * c->hidden);
	k->root2 = carve(v, n);
	k->gate = carve(v, n * c->ffn);
	k->up = carve(v, n * c->ffn);
}

static int64_t logits_rows(const struct tr_model_config *c, int64_t tokens_max)
{
	int64_t rows = LOGITS_MAX / c->vocab / TR_CHAIN * TR_CHAIN;

	rows = rows > 2 * TR_CHAIN ? 2 * TR_CHAIN : rows < TR_CHAIN ? TR_CHAIN : rows;
	return rows < tokens_max ? rows : tokens_max;
}

/* Lays the activations out, or counts them if v->memory is NULL. `m` has c and the sizes. */
static void carve_all(struct carving *v, struct tr_model *m)
{
	const struct tr_model_config *c = &m->c;
	int64_t n = m->tokens_max, q = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
	struct kept none;

	m->logits_rows = logits_rows(c, n);
	for (int64_t l = 0; l <= c->layers; l++)
		carve_kept(v, c, m->kept ? &m->kept[l] : &none, n, l < c->layers);
	m->hidden = carve(v, n * c->hidden);
	m->dhidden = carve(v, n * c->hidden);
	m->xn = carve(v, n * c->hidden);
	m->dxn = carve(v, n * c->hidden);
	m->dx = carve(v, n * c->hidden);
	m->wide = carve(v, n * (c->ffn > q ? c->ffn : q));
	m->dwide = carve(v, n * (c->ffn > q ? c->ffn : q));
	m->dq = carve(v, n * q);
	m->dk = carve(v, n * kv);
	m->dv = carve(v, n * kv);
	m->logits = carve(v, m->logits_rows * c->vocab);
	m->attention = carve(v, tr_attention_scratch(m->seq_max));
	m->cosine = carve(v, m->seq_max * c->head_size / 2);
	m->sine = carve(v, m->seq_max * c->head_size / 2);
}

int tr_model_new(struct tr_model **model, const struct tr_model_config *c, struct tr_backend *be,
		 int64_t tokens_max, int64_t seq_max, struct tr_error *err)
{
	struct tr_model *m = calloc(1, sizeof(*m));
	struct carving v = { .memory = NULL };
	int rc;

	if (!m)
		return tr_fail(err, TR_ENOMEM, "no memory for a model");
	*m = (struct tr_model){ .c = *c, .be = be, .tokens_max = tokens_max, .seq_max = seq_max };
	rc = tr_registry_make(&m->reg, c, err);
	if (rc < 0)
		goto out;
	carve_all(&v, m);
	m->kept = calloc((size_t)c->layers + 1, sizeof(*m->kept));
	m->w = be->alloc(be, (size_t)m->reg.weights);
	m->memory = be->alloc(be, (size_t)v.used);
	if (!m->kept || !m->w || !m->memory) {
		rc = tr_fail(err, TR_ENOMEM, "no memory for the weights and activations of the "
			     "model; use a smaller micro-batch");
		goto out;
	}
	v = (struct carving){ .memory = m->memory };
	carve_all(&v, m);
	fill_tables(m);
	*model = m;
	m = NULL;
out:
	tr_model_free(m);
	return rc;
}

void tr_model_free(struct tr_model *m)
{
	if (!m)
		return;
	m->be->release(m->be, m->w);
	m->be->release(m->be, m->memory);
	free(m->kept);
	tr_registry_release(&m->reg);
	free(m);
}

const struct tr_registry *tr_model_registry(const struct tr_model *m)
{
	return &m->reg;
}

float *tr_model_weights(struct tr_model *m)
{
	return m->w;
}

static struct tr_attention attention(const struct tr_model *m, const struct kept *k)
{
	return (struct tr_attention){ .heads = m->c.heads, .kv_heads = m->c.kv_heads,
		.size = m->c.head_size, .q = k->q, .k = k->k, .v = k->v, .stat = k->stat,
		.scratch = m->attention };
}

/* Computes `next`, the input of the next layer, from k->x. Both may be the same memory. */
static void layer_forward(struct tr_model *m, int64_t l, const struct tr_rows *rows,
			  const struct kept *k, float *next)
{
	const struct tr_model_config *c = &m->c;
	struct tr_backend *be = m->be;
	struct layer w = layer_of(m, l);
	struct tr_attention a = attention(m, k);

	be->norm(be, m->xn, k->root1, k->x, w.norm1, rows->n, c->hidden, c->norm_eps);
	be->linear(be, &w.q, m->xn, k->q, rows->n);
	be->linear(be, &w.k, m->xn, k->k, rows->n);
	be->linear(be, &w.v, m->xn, k->v, rows->n);
	be->rope(be, rows, k->q, c->heads, c->head_size, m->cosine, m->sine, 1);
	be->rope(be, rows, k->k, c->kv_heads, c->head_size, m->cosine, m->sine, 1);
	be->attention(be, rows, &a, k->o);
	/* The residual is added to the finished product, and so is not part of its chains. */
	be->linear(be, &w.o, k->o, k->mid, rows->n);
	be->add(be, k->mid, k->x, rows->n * c->hidden);

	be->norm(be, m->xn, k->root2, k->mid, w.norm2, rows->n, c->hidden, c->norm_eps);
	be->linear(be, &w.gate, m->xn, k->gate, rows->n);
	be->linear(be, &w.up, m->xn, k->up, rows->n);
	be->swiglu(be, m->wide, k->gate, k->up, rows->n * c->ffn);
	be->linear(be, &w.down, m->wide, next, rows->n);
	be->add(be, next, k->mid, rows->n * c->hidden);
}

void tr_model_forward(struct tr_model *m, const struct tr_rows *rows, int keep)
{
	struct tr_backend *be = m->be;
	struct kept *last;

	be->embed(be, rows, m->kept[0].x, m->w + m->reg.param[m->reg.embedding].offset,
		  m->c.hidden);
	for (int64_t l = 0; l < m->c.layers; l++) {
		const struct kept *k = &m->kept[keep ? l : 0];

		layer_forward(m, l, rows, k, keep ? m->kept[l + 1].x : k->x);
	}
	last = &m->kept[keep ? m->c.layers : 0];
	be->norm(be, m->hidden, last->root1, last->x, m->w + m->reg.param[m->reg.norm].offset,
		 rows->n, m->c.hidden, m->c.norm_eps);
}

/* Returns where the rows end whose logits are computed together with those of row `first`: after at
 * most logits_rows rows, and where linear_weight allows it (backend.h). */
static int64_t logits_end(const struct tr_model *m, const struct tr_rows *rows, int64_t first)
{
	int64_t end = first, s = 0;

	while (rows->begin[s + 1] <= first)
		s++;
	for (; s < rows->seqs; s++) {
		while (end < rows->begin[s + 1]) {
			int64_t stop = end + TR_CHAIN - (end - rows->begin[s]) % TR_CHAIN;

			stop = stop < rows->begin[s + 1] ? stop : rows->begin[s + 1];
			if (stop - first > m->logits_rows)
				return end;
			end = stop;
		}
	}
	return end;
}

void tr_model_loss(struct tr_model *m, const struct tr_rows *rows, double scale, float *loss,
		   int grad)
{
	struct tr_backend *be = m->be;
	struct tr_linear l = head(m);
	int64_t end, size = m->c.hidden;

	for (int64_t at = 0; at < rows->n; at = end) {
		end = logits_end(m, rows, at);
		be->linear(be, &l, m->hidden + at * size, m->logits, end - at);
		be->xent(be, rows, at, end, m->logits, m->c.vocab, loss, scale, grad);
		if (!grad)
			continue;
		be->linear_input(be, &l, m->logits, m->dhidden + at * size, end - at, 0);
		be->linear_weight(be, rows, at, end, m->logits, m->c.vocab, m->hidden + at * size,
				  size, m->reg.param[m->reg.head].offset);
	}
}

/* Adds the gradients of a weight and, if there is one, of its bias. */
static void gradients(struct tr_model *m, int64_t l, const struct tr_rows *rows,
		      enum tr_layer_param which, const float *dy, const float *x)
{
	const struct tr_param *p = param(m, l, which);
	const struct tr_param *bias = which == TR_Q || which == TR_K || which == TR_V ?
		param(m, l, which + 1) : NULL;
	struct tr_backend *be = m->be;

	be->linear_weight(be, rows, 0, rows->n, dy, p->shape[0], x, p->shape[1], p->offset);
	if (bias)
		be->linear_bias(be, rows, dy, p->shape[0], bias->offset);
}

static void mlp_backward(struct tr_model *m, int64_t l, const struct tr_rows *rows,
			 const struct kept *k, const struct layer *w)
{
	struct tr_backend *be = m->be;
	int64_t n = rows->n, size = m->c.hidden, items = n * m->c.ffn;

	be->swiglu(be, m->wide, k->gate, k->up, items);
	gradients(m, l, rows, TR_DOWN, m->dx, m->wide);
	be->linear_input(be, &w->down, m->dx, m->wide, n, 0);
	be->swiglu_bwd(be, m->wide, m->dwide, k->gate, k->up, items);
	be->norm_again(be, m->xn, k->root2, k->mid, w->norm2, n, size);
	gradients(m, l, rows, TR_GATE, m->wide, m->xn);
	gradients(m, l, rows, TR_UP, m->dwide, m->xn);
	be->linear_input(be, &w->gate, m->wide, m->dxn, n, 0);
	be->linear_input(be, &w->up, m->dwide, m->dxn, n, 1);
	be->norm_bwd(be, rows, m->dx, m->dxn, k->mid, k->root2, w->norm2, size,
		     param(m, l, TR_NORM2)->offset);
}

static void attention_backward(struct tr_model *m, int64_t l, const struct tr_rows *rows,
			       const struct kept *k, const struct layer *w)
{
	const struct tr_model_config *c = &m->c;
	struct tr_backend *be = m->be;
	struct tr_attention a = attention(m, k);
	int64_t n = rows->n;

	gradients(m, l, rows, TR_O, m->dx, k->o);
	be->linear_input(be, &w->o, m->dx, m->wide, n, 0);
	be->attention_bwd(be, rows, &a, k->o, m->wide, m->dq, m->dk, m->dv);
	be->rope(be, rows, m->dq, c->heads, c->head_size, m->cosine, m->sine, -1);
	be->rope(be, rows, m->dk, c->kv_heads, c->head_size, m->cosine, m->sine, -1);
	be->norm_again(be, m->xn, k->root1, k->x, w->norm1, n, c->hidden);
	gradients(m, l, rows, TR_Q, m->dq, m->xn);
	gradients(m, l, rows, TR_K, m->dk, m->xn);
	gradients(m, l, rows, TR_V, m->dv, m->xn);
	be->linear_input(be, &w->q, m->dq, m->dxn, n, 0);
	be->linear_input(be, &w->k, m->dk, m->dxn, n, 1);
	be->linear_input(be, &w->v, m->dv, m->dxn, n, 1);
	be->norm_bwd(be, rows, m->dx, m->dxn, k->x, k->root1, w->norm1, c->hidden,
		     param(m, l, TR_NORM1)->offset);
}

void tr_model_backward(struct tr_model *m, const struct tr_rows *rows)
{
	const struct tr_param *norm = &m->reg.param[m->reg.norm];
	const struct kept *last = &m->kept[m->c.layers];
	struct tr_backend *be = m->be;

	be->zero(be, m->dx, rows->n * m->c.hidden);
	be->norm_bwd(be, rows, m->dx, m->dhidden, last->x, last->root1, m->w + norm->offset,
		     m->c.hidden, norm->offset);
	for (int64_t l = m->c.layers - 1; l >= 0; l--) {
		struct layer w = layer_of(m, l);

		mlp_backward(m, l, rows, &m->kept[l], &w);
		attention_backward(m, l, rows, &m->kept[l], &w);
	}
	be->embed_bwd(be, rows, m->dx, m->c.hidden, m->reg.param[m->reg.embedding].offset);
}
