/* SPDX-License-Identifier: Apache-2.0 */
#include "qwen2.h"

#include <stdlib.h>

#include "crossentropy.h"
#include "elementary.h"

/* The activations of a layer that its backward pass needs. The outputs of norms and of the gate are
 * not kept, but computed again. The inputs are local rows (tensorpar.h); the others have all
 * tokens, and the heads or the columns of this rank. */
struct kept {
	void *x, *q, *k, *v, *o;        /* x: input of the layer */
	void *mid, *gate, *up;          /* mid: input of the MLP */
	float *root1, *stat, *root2;
};
struct range {                          /* a part */
	int64_t from, to;               /* its layers */
	int slots;
	/* For each slot, kept activations of the layers, and after them those of which only x and
	 * root1 are there: the output of the part. */
	struct kept *kept;
	int64_t *end;                   /* [slots]: the layer whose x has the output of a pass */
};
struct own {                            /* what this rank has of the dimensions that are cut */
	int64_t heads, kv_heads, q, kv, ffn;
	struct tr_span vocab;
};
struct tr_model {
	struct tr_model_config c;
	struct tr_registry reg;
	struct tr_backend *be;
	struct tr_tensorpar tp;
	struct tr_crossentropy xent;
	struct own own;
	int64_t tokens_max, seq_max, local_max;
	void *w;
	float *cosine, *sine;           /* [seq_max, head_size / 2] */
	int has_tables;                 /* they are filled */
	struct range *part;
	int parts;
	/* If layers are computed again, each keeps its x only. The other activations of the layer
	 * that is being computed are here. */
	int recompute;
	struct kept again;
	void *hidden, *xn;
	float *dhidden;
	/* Scratch: the output of a norm (xn), gradients of it (dxn) and of the residual stream
	 * (dx), which are local rows; two buffers that are as wide as the MLP, and gradients of q,
	 * k and v. In the forward pass, dxn and dwide have sums before they are rounded. */
	float *dxn, *dx, *wide, *dwide, *dq, *dk, *dv, *logits, *attention;
	int64_t logits_rows;            /* whose logits are computed at once */
};

enum { LOGITS_MAX = 1 << 24 };          /* floats of logits, unless TR_CHAIN rows are more */

struct layer {                          /* the weights of one */
	const void *norm1, *norm2;
	struct tr_linear q, k, v, o, gate, up, down;
};

static const struct tr_param *param(const struct tr_model *m, int64_t l, enum tr_layer_param which)
{
	int i = m->reg.layer[l * TR_LAYER_PARAMS + which];

	return i < 0 ? NULL : &m->reg.param[i];
}

static const void *weights_of(const struct tr_model *m, const struct tr_param *p)
{
	return tr_item(m->be->type, m->w, p->offset);
}

static const void *weight(const struct tr_model *m, int64_t l, enum tr_layer_param which)
{
	const struct tr_param *p = param(m, l, which);

	return p ? weights_of(m, p) : NULL;
}

static struct tr_linear linear(const struct tr_model *m, int64_t l, enum tr_layer_param which,
			       enum tr_layer_param bias)
{
	const struct tr_param *p = param(m, l, which);

	return (struct tr_linear){ .in = p->count[1], .out = p->count[0], .w = weights_of(m, p),
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

static int is_last(const struct tr_model *m, const struct range *r)
{
	return r->to == m->c.layers;
}

static struct kept *kept_at(const struct range *r, int slot, int64_t l)
{
	return &r->kept[slot * (r->to - r->from + 1) + l - r->from];
}

/* Returns the activations of layer l of a part, or its output if l is r->to. */
static struct kept kept_of(const struct tr_model *m, const struct range *r, int slot, int64_t l)
{
	const struct kept *own = kept_at(r, slot, l);
	struct kept k = m->recompute && l < r->to ? m->again : *own;

	k.x = own->x;
	return k;
}

static struct tr_linear head(const struct tr_model *m)
{
	const struct tr_param *p = &m->reg.param[m->reg.head];
	const struct tr_param *own = p->tied_to >= 0 ? &m->reg.param[p->tied_to] : p;

	return (struct tr_linear){ .in = p->count[1], .out = p->count[0],
				   .w = weights_of(m, own) };
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
	m->has_tables = 1;
}

static void ask(struct tr_arenas *a, float **at, int64_t items)
{
	tr_arena_ask(a, TR_ACTIVATIONS, items, at);
}

static void ask_items(struct tr_arenas *a, void **at, int64_t items)
{
	tr_arena_ask_items(a, TR_ACTIVATIONS, items, at);
}

/* Everything but x, which is the output of the layer before. */
static void ask_for_layer(struct tr_arenas *a, const struct tr_model *m, struct kept *k)
{
	const struct own *own = &m->own;
	int64_t n = m->tokens_max;

	ask(a, &k->root1, m->local_max);
	ask_items(a, &k->q, n * own->q);
	ask_items(a, &k->k, n * own->kv);
	ask_items(a, &k->v, n * own->kv);
	ask(a, &k->stat, n * own->heads * 2);
	ask_items(a, &k->o, n * own->q);
	ask_items(a, &k->mid, m->local_max * m->c.hidden);
	ask(a, &k->root2, m->local_max);
	ask_items(a, &k->gate, n * own->ffn);
	ask_items(a, &k->up, n * own->ffn);
}

static void ask_for_part(struct tr_arenas *a, const struct tr_model *m, const struct range *r)
{
	for (int s = 0; s < r->slots; s++) {
		for (int64_t l = r->from; l <= r->to; l++) {
			struct kept *k = kept_at(r, s, l);

			ask_items(a, &k->x, m->local_max * m->c.hidden);
			if (l == r->to)
				ask(a, &k->root1, m->local_max);
			else if (!m->recompute)
				ask_for_layer(a, m, k);
		}
	}
}

/* Returns how many rows of logits are computed at once. Ranks compute their losses together, so all
 * return the same. */
static int64_t logits_rows(const struct tr_model *m)
{
	int64_t rows = LOGITS_MAX / (m->c.vocab / m->tp.ranks->n + 1) / TR_CHAIN * TR_CHAIN;

	rows = rows > 2 * TR_CHAIN ? 2 * TR_CHAIN : rows < TR_CHAIN ? TR_CHAIN : rows;
	return rows < m->tokens_max ? rows : m->tokens_max;
}

/* Asks for all memory. `m` has all sizes. */
static void ask_for_all(struct tr_arenas *a, struct tr_model *m)
{
	const struct tr_model_config *c = &m->c;
	const struct own *own = &m->own;
	int64_t n = m->tokens_max, local = m->local_max * c->hidden;
	int64_t wide = own->ffn > own->q ? own->ffn : own->q;

	for (int i = 0; i < m->parts; i++)
		ask_for_part(a, m, &m->part[i]);
	if (m->recompute)
		ask_for_layer(a, m, &m->again);
	if (m->reg.head >= 0) {
		ask_items(a, &m->hidden, local);
		ask(a, &m->dhidden, local);
		ask(a, &m->logits, m->logits_rows * (own->vocab.to - own->vocab.from));
	}
	ask_items(a, &m->xn, local);
	ask(a, &m->dxn, local);
	ask(a, &m->dx, local);
	ask(a, &m->wide, n * wide);
	ask(a, &m->dwide, n * wide);
	ask(a, &m->dq, n * own->q);
	ask(a, &m->dk, n * own->kv);
	ask(a, &m->dv, n * own->kv);
	tr_arena_ask_items(a, TR_PARAMS, m->reg.weights, &m->w);
	tr_arena_ask(a, TR_BUFFERS, tr_attention_scratch(m->seq_max, c->head_size), &m->attention);
	tr_arena_ask(a, TR_BUFFERS, m->seq_max * c->head_size / 2, &m->cosine);
	tr_arena_ask(a, TR_BUFFERS, m->seq_max * c->head_size / 2, &m->sine);
}

static struct own own_of(const struct tr_model *m)
{
	int vocab = m->reg.embedding >= 0 ? m->reg.embedding : m->reg.head;
	const struct tr_param *v = vocab >= 0 ? &m->reg.param[vocab] : NULL;
	int64_t l = m->part[0].from;
	int64_t q = param(m, l, TR_Q)->count[0], kv = param(m, l, TR_K)->count[0];

	return (struct own){ .heads = q / m->c.head_size, .kv_heads = kv / m->c.head_size, .q = q,
		.kv = kv, .ffn = param(m, l, TR_GATE)->count[0],
		.vocab = { v ? v->start[0] : 0, v ? v->start[0] + v->count[0] : 0 } };
}

/* Makes the lists of the parts, without the memory of their activations. */
static int make_parts(struct tr_model *m, const struct tr_parts *parts, struct tr_error *err)
{
	int good;

	m->part = calloc((size_t)parts->n, sizeof(*m->part));
	good = m->part != NULL;
	m->parts = good ? parts->n : 0;
	m->recompute = parts->recompute;
	for (int i = 0; i < m->parts; i++) {
		const struct tr_part *p = &parts->part[i];
		size_t kept = (size_t)p->slots * (size_t)(p->to - p->from + 1);

		m->part[i] = (struct range){ .from = p->from, .to = p->to, .slots = p->slots,
			.kept = calloc(kept, sizeof(struct kept)),
			.end = calloc((size_t)p->slots, sizeof(int64_t)) };
		good &= m->part[i].kept && m->part[i].end;
	}
	return good ? 0 : tr_fail(err, TR_ENOMEM, "no memory for the parts of the model; use "
				  "another schedule or larger micro-batches");
}

/* Makes what needs memory. `m` has the sizes of a call. */
static int make_model(struct tr_model *m, struct tr_arenas *a, const struct tr_tensorpar_opts *tp,
		      const struct tr_parts *parts, int64_t seqs_max, struct tr_error *err)
{
	int rc = tr_tensorpar_init(&m->tp, tp, a, m->c.hidden, m->tokens_max, err);

	if (rc == 0)
		rc = tr_registry_make(&m->reg, &m->c, parts, &m->tp.pieces, &m->tp.tokens, err);
	if (rc == 0)
		rc = make_parts(m, parts, err);
	if (rc < 0)
		return rc;
	m->own = own_of(m);
	m->local_max = m->tp.sp ? seqs_max * ((m->seq_max + tp->ranks->n - 1) / tp->ranks->n) :
		m->tokens_max;
	m->logits_rows = logits_rows(m);
	ask_for_all(a, m);
	if (m->reg.head >= 0)
		tr_crossentropy_init(&m->xent, &m->tp, &m->reg, m->logits_rows, a);
	return 0;
}

int tr_model_new(struct tr_model **model, const struct tr_model_config *c, struct tr_arenas *a,
		 const struct tr_tensorpar_opts *tp, const struct tr_parts *parts, int64_t seqs_max,
		 int64_t seq_max, struct tr_error *err)
{
	const struct tr_part all = { 0, c->layers, 1 };
	const struct tr_parts whole = { .n = 1, .part = &all };
	struct tr_model *m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return tr_fail(err, TR_ENOMEM, "no memory for a model");
	*m = (struct tr_model){ .c = *c, .be = a->be, .tokens_max = seqs_max * seq_max,
				.seq_max = seq_max };
	rc = make_model(m, a, tp, parts ? parts : &whole, seqs_max, err);
	if (rc < 0)
		tr_model_free(m);
	else
		*model = m;
	return rc;
}

void tr_model_free(struct tr_model *m)
{
	if (!m)
		return;
	for (int i = 0; i < m->parts; i++) {
		free(m->part[i].kept);
		free(m->part[i].end);
	}
	free(m->part);
	tr_tensorpar_release(&m->tp);
	tr_registry_release(&m->reg);
	free(m);
}

const struct tr_registry *tr_model_registry(const struct tr_model *m)
{
	return &m->reg;
}

void *tr_model_weights(struct tr_model *m)
{
	return m->w;
}

static struct tr_attention attention(const struct tr_model *m, int64_t l, const struct kept *k)
{
	return (struct tr_attention){ .layer = l,
		.first_head = param(m, l, TR_Q)->start[0] / m->c.head_size,
		.heads = m->own.heads, .kv_heads = m->own.kv_heads,
		.size = m->c.head_size, .q = k->q, .k = k->k, .v = k->v, .stat = k->stat,
		.scratch = m->attention };
}

/* Returns where to compute what `round_to` will round to y: in y itself if that has floats. */
static float *unrounded(const struct tr_model *m, void *y, float *scratch)
{
	return m->be->type == TR_F32 ? y : scratch;
}

static void round_to(struct tr_model *m, void *y, const float *sum, int64_t n)
{
	if (sum != y)
		m->be->round(m->be, y, sum, n);
}

/* y = x w^T, whose sum is over all inputs, for all tokens. */
static void column_linear(struct tr_model *m, const struct tr_linear *l, const void *x, void *y,
			  int64_t n)
{
	float *sum = unrounded(m, y, m->dwide);

	m->be->linear(m->be, l, (struct tr_span){ 0, l->in }, x, sum, n, 0);
	round_to(m, y, sum, n * l->out);
}

/* dx = dy w, whose sum is over all outputs, for all tokens. */
static void row_linear_input(struct tr_model *m, const struct tr_linear *l, const float *dy,
			     float *dx, int64_t n)
{
	m->be->linear_input(m->be, l, (struct tr_span){ 0, l->out }, dy, dx, n, 0);
}

/* Sets y to the local rows of a sum over pieces. */
static int sum_pieces(struct tr_model *m, const struct tr_rows *rows, const struct tr_term *term,
		      int terms, float *y, struct tr_error *err)
{
	tr_sum_pieces(&m->tp, &m->reg, rows, term, terms, 0, rows->n, y);
	return tr_sum_pieces_end(&m->tp, rows, y, err);
}

/* Drops items of local rows, which y and x are. Without dropout it does nothing, and returns 0. */
static int drop(struct tr_model *m, const struct tr_rows *rows, enum tr_purpose purpose, int64_t l,
		float *y, const float *x)
{
	struct tr_dropmask mask;

	if (!rows->drop || rows->drop->rate <= 0)
		return 0;
	mask = tr_dropmask_of(rows->drop, purpose, rows->drop->rate, l, 0);
	m->be->drop(m->be, rows, &m->tp.tokens, &mask, y, x, m->c.hidden);
	return 1;
}

/* Computes the norm of x, and gathers it. */
static int norm_and_gather(struct tr_model *m, const struct tr_rows *rows, const void *x,
			   float *root, const void *w, const void **xn, struct tr_error *err)
{
	m->be->norm(m->be, m->xn, root, x, w, m->tp.local, m->c.hidden, m->c.norm_eps);
	return tr_gather_rows(&m->tp, rows, m->be->type, m->xn, xn, err);
}

static int attention_forward(struct tr_model *m, int64_t l, const struct layer *w,
			     const struct tr_rows *rows, const struct kept *k,
			     struct tr_error *err)
{
	struct tr_term o = { w->o, param(m, l, TR_O), k->o, 0 };
	struct tr_backend *be = m->be;
	struct tr_attention a = attention(m, l, k);
	const void *xn;
	int rc = norm_and_gather(m, rows, k->x, k->root1, w->norm1, &xn, err);

	if (rc < 0)
		return rc;
	column_linear(m, &w->q, xn, k->q, rows->n);
	column_linear(m, &w->k, xn, k->k, rows->n);
	column_linear(m, &w->v, xn, k->v, rows->n);
	be->rope(be, rows, k->q, a.heads, a.size, m->cosine, m->sine, 1);
	be->rope(be, rows, k->k, a.kv_heads, a.size, m->cosine, m->sine, 1);
	be->attention(be, rows, &a, k->o);
	rc = sum_pieces(m, rows, &o, 1, m->dxn, err);
	if (rc < 0)
		return rc;
	drop(m, rows, TR_RANDOM_ATTENTION, l, m->dxn, m->dxn);
	/* The residual is added to the finished product, and so is not part of its chains. */
	be->sum(be, k->mid, m->dxn, k->x, m->tp.local * m->c.hidden);
	return 0;
}

static int gate_forward(struct tr_model *m, const struct layer *w, const struct tr_rows *rows,
			const struct kept *k, struct tr_error *err)
{
	const void *xn;
	int rc = norm_and_gather(m, rows, k->mid, k->root2, w->norm2, &xn, err);

	if (rc < 0)
		return rc;
	column_linear(m, &w->gate, xn, k->gate, rows->n);
	column_linear(m, &w->up, xn, k->up, rows->n);
	return 0;
}

/* Computes `next`, the input of the next layer. It may be the memory of k->x. */
static int mlp_forward(struct tr_model *m, int64_t l, const struct layer *w,
		       const struct tr_rows *rows, const struct kept *k, void *next,
		       struct tr_error *err)
{
	struct tr_term down = { w->down, param(m, l, TR_DOWN), m->wide, 0 };
	struct tr_backend *be = m->be;
	int rc = gate_forward(m, w, rows, k, err);

	if (rc < 0)
		return rc;
	be->swiglu(be, m->wide, k->gate, k->up, rows->n * m->own.ffn);
	rc = sum_pieces(m, rows, &down, 1, m->dxn, err);
	if (rc < 0)
		return rc;
	drop(m, rows, TR_RANDOM_MLP, l, m->dxn, m->dxn);
	be->sum(be, next, m->dxn, k->mid, m->tp.local * m->c.hidden);
	return 0;
}

size_t tr_model_passed(struct tr_model *m, const struct tr_rows *rows, int backward)
{
	size_t bytes = tr_type_bytes(backward ? TR_F32 : m->be->type);

	if (!rows)
		return (size_t)(m->local_max * m->c.hidden) * bytes;
	tr_tensorpar_begin(&m->tp, rows);
	return (size_t)(m->tp.local * m->c.hidden) * bytes;
}

void *tr_model_input(struct tr_model *m, int part, int slot)
{
	return kept_of(m, &m->part[part], slot, m->part[part].from).x;
}

void *tr_model_output(struct tr_model *m, int part, int slot)
{
	return kept_of(m, &m->part[part], slot, m->part[part].end[slot]).x;
}

float *tr_model_gradient(struct tr_model *m)
{
	return m->dx;
}

/* Turns to a layer; see struct tr_rows. */
static int turn(const struct tr_rows *rows, int64_t layer, struct tr_error *err)
{
	return rows->turn ? rows->turn(rows->arg, layer, err) : 0;
}

static int embed(struct tr_model *m, const struct tr_rows *rows, void *x, struct tr_error *err)
{
	float *sum = unrounded(m, x, m->dxn);
	int rc = tr_embed_rows(&m->tp, rows, m->own.vocab,
			       weights_of(m, &m->reg.param[m->reg.embedding]), sum, err);

	if (rc < 0)
		return rc;
	drop(m, rows, TR_RANDOM_EMBEDDING, 0, sum, sum);
	round_to(m, x, sum, m->tp.local * m->c.hidden);
	return 0;
}

int tr_model_forward(struct tr_model *m, int part, int slot, const struct tr_rows *rows, int keep,
		     struct tr_error *err)
{
	struct range *r = &m->part[part];
	struct kept k = kept_of(m, r, slot, r->from);
	int rc = 0;

	if (!m->has_tables)
		fill_tables(m);
	tr_tensorpar_begin(&m->tp, rows);
	if (r->from == 0)
		rc = turn(rows, -1, err);
	if (rc == 0 && r->from == 0)
		rc = embed(m, rows, k.x, err);
	for (int64_t l = r->from; rc == 0 && l < r->to; l++) {
		struct layer w = layer_of(m, l);
		struct kept next = keep ? kept_of(m, r, slot, l + 1) : k;

		rc = turn(rows, l, err);
		if (rc == 0)
			rc = attention_forward(m, l, &w, rows, &k, err);
		if (rc == 0)
			rc = mlp_forward(m, l, &w, rows, &k, next.x, err);
		k = next;
	}
	r->end[slot] = keep ? r->to : r->from;
	return rc;
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

int tr_model_loss(struct tr_model *m, int slot, const struct tr_rows *rows, double scale,
		  float *loss, int grad, struct tr_error *err)
{
	const struct range *r = &m->part[m->parts - 1];
	const struct kept last = kept_of(m, r, slot, r->end[slot]);
	struct tr_backend *be = m->be;
	const struct tr_param *p = &m->reg.param[m->reg.head];
	struct tr_term t = { head(m), p, m->logits, 1 };
	int64_t end, size = m->c.hidden;
	const void *hidden, *x;
	int rc;

	tr_tensorpar_begin(&m->tp, rows);
	be->norm(be, m->hidden, last.root1, last.x, weights_of(m, &m->reg.param[m->reg.norm]),
		 m->tp.local, size, m->c.norm_eps);
	rc = tr_gather_rows(&m->tp, rows, be->type, m->hidden, &hidden, err);
	if (rc == 0 && grad)
		rc = turn(rows, m->c.layers, err);
	for (int64_t at = 0; rc == 0 && at < rows->n; at = end) {
		end = logits_end(m, rows, at);
		x = tr_item(be->type, hidden, at * size);
		be->linear(be, &t.l, (struct tr_span){ 0, size }, x, m->logits, end - at, 0);
		rc = tr_crossentropy(&m->xent, rows, at, end, m->logits, loss, scale, grad, err);
		if (rc < 0 || !grad)
			continue;
		tr_sum_pieces(&m->tp, &m->reg, rows, &t, 1, at, end, m->dhidden);
		be->linear_weight(be, rows, at, end, m->logits, t.l.out, x, size,
				  p->offset - rows->first);
	}
	return rc == 0 && grad ? tr_sum_pieces_end(&m->tp, rows, m->dhidden, err) : rc;
}

/* Adds the gradients of a weight and, if there is one, of its bias. */
static void gradients(struct tr_model *m, int64_t l, const struct tr_rows *rows,
		      enum tr_layer_param which, const float *dy, const void *x)
{
	const struct tr_param *p = param(m, l, which);
	const struct tr_param *bias = which == TR_Q || which == TR_K || which == TR_V ?
		param(m, l, which + 1) : NULL;
	struct tr_backend *be = m->be;

	be->linear_weight(be, rows, 0, rows->n, dy, p->count[0], x, p->count[1],
			  p->offset - rows->first);
	if (bias)
		be->linear_bias(be, rows, dy, p->count[0], bias->offset - rows->first);
}

/* Computes the norm of x again, and gathers it. */
static int norm_again(struct tr_model *m, const struct tr_rows *rows, const void *x,
		      const float *root, const void *w, const void **xn, struct tr_error *err)
{
	m->be->norm_again(m->be, m->xn, root, x, w, m->tp.local, m->c.hidden);
	return tr_gather_rows(&m->tp, rows, m->be->type, m->xn, xn, err);
}

/* Adds the gradient of the input of a norm to m->dx. */
static void norm_backward(struct tr_model *m, const struct tr_rows *rows, const struct tr_param *p,
			  const float *dy, const void *x, const float *root)
{
	struct tr_rows to = *rows;

	to.grad = rows->norm_grad ? rows->norm_grad : rows->grad;
	m->be->norm_bwd(m->be, &to, &m->tp.tokens, m->dx, dy, x, root, weights_of(m, p),
			m->c.hidden, p->offset - rows->norms_first, m->reg.weights - m->reg.norms);
}

/* Gathers the gradient of what was added to the residual stream: m->dx, but for what was dropped.
 * m->dxn is free then. */
static int gather_gradient(struct tr_model *m, const struct tr_rows *rows, enum tr_purpose purpose,
			   int64_t l, const float **dx, struct tr_error *err)
{
	int dropped = drop(m, rows, purpose, l, m->dxn, m->dx), rc;
	const void *all = NULL;

	rc = tr_gather_rows(&m->tp, rows, TR_F32, dropped ? m->dxn : m->dx, &all, err);
	*dx = all;
	return rc;
}

static int mlp_backward(struct tr_model *m, int64_t l, const struct tr_rows *rows,
			const struct kept *k, const struct layer *w, struct tr_error *err)
{
	struct tr_term terms[2] = { { w->gate, param(m, l, TR_GATE), m->wide, 1 },
				    { w->up, param(m, l, TR_UP), m->dwide, 1 } };
	int64_t n = rows->n, items = n * m->own.ffn;
	struct tr_backend *be = m->be;
	const float *dx;
	const void *xn;
	int rc = gather_gradient(m, rows, TR_RANDOM_MLP, l, &dx, err);

	if (rc < 0)
		return rc;
	be->swiglu(be, m->wide, k->gate, k->up, items);
	gradients(m, l, rows, TR_DOWN, dx, m->wide);
	row_linear_input(m, &w->down, dx, m->wide, n);
	be->swiglu_bwd(be, m->wide, m->dwide, k->gate, k->up, items);
	rc = norm_again(m, rows, k->mid, k->root2, w->norm2, &xn, err);
	if (rc < 0)
		return rc;
	gradients(m, l, rows, TR_GATE, m->wide, xn);
	gradients(m, l, rows, TR_UP, m->dwide, xn);
	rc = sum_pieces(m, rows, terms, 2, m->dxn, err);
	if (rc == 0)
		norm_backward(m, rows, param(m, l, TR_NORM2), m->dxn, k->mid, k->root2);
	return rc;
}

static int attention_backward(struct tr_model *m, int64_t l, const struct tr_rows *rows,
			      const struct kept *k, const struct layer *w, struct tr_error *err)
{
	struct tr_term terms[3] = { { w->q, param(m, l, TR_Q), m->dq, 1 },
				    { w->k, param(m, l, TR_K), m->dk, 1 },
				    { w->v, param(m, l, TR_V), m->dv, 1 } };
	struct tr_backend *be = m->be;
	struct tr_attention a = attention(m, l, k);
	const float *dx;
	const void *xn;
	int rc = gather_gradient(m, rows, TR_RANDOM_ATTENTION, l, &dx, err);

	if (rc < 0)
		return rc;
	gradients(m, l, rows, TR_O, dx, k->o);
	row_linear_input(m, &w->o, dx, m->wide, rows->n);
	be->attention_bwd(be, rows, &a, k->o, m->wide, m->dq, m->dk, m->dv);
	be->rope(be, rows, m->dq, a.heads, a.size, m->cosine, m->sine, -1);
	be->rope(be, rows, m->dk, a.kv_heads, a.size, m->cosine, m->sine, -1);
	rc = norm_again(m, rows, k->x, k->root1, w->norm1, &xn, err);
	if (rc < 0)
		return rc;
	gradients(m, l, rows, TR_Q, m->dq, xn);
	gradients(m, l, rows, TR_K, m->dk, xn);
	gradients(m, l, rows, TR_V, m->dv, xn);
	rc = sum_pieces(m, rows, terms, 3, m->dxn, err);
	if (rc == 0)
		norm_backward(m, rows, param(m, l, TR_NORM1), m->dxn, k->x, k->root1);
	return rc;
}

/* Computes the activations of a layer again that the backward pass needs: all but its output. */
static int forward_again(struct tr_model *m, int64_t l, const struct layer *w,
			 const struct tr_rows *rows, const struct kept *k, struct tr_error *err)
{
	int rc = attention_forward(m, l, w, rows, k, err);

	return rc == 0 ? gate_forward(m, w, rows, k, err) : rc;
}

static int embedding_backward(struct tr_model *m, const struct tr_rows *rows, struct tr_error *err)
{
	const float *dx;
	int rc = turn(rows, -1, err);

	if (rc == 0)
		rc = gather_gradient(m, rows, TR_RANDOM_EMBEDDING, 0, &dx, err);
	if (rc == 0)
		m->be->embed_bwd(m->be, rows, m->own.vocab, dx, m->c.hidden,
				 m->reg.param[m->reg.embedding].offset - rows->first);
	return rc;
}

int tr_model_backward(struct tr_model *m, int part, int slot, const struct tr_rows *rows,
		      struct tr_error *err)
{
	const struct range *r = &m->part[part];
	const struct kept last = kept_of(m, r, slot, r->end[slot]);
	struct tr_backend *be = m->be;
	int rc = 0;

	tr_tensorpar_begin(&m->tp, rows);
	if (is_last(m, r)) {
		rc = turn(rows, m->c.layers, err);
		if (rc < 0)
			return rc;
		be->zero(be, m->dx, m->tp.local * m->c.hidden);
		norm_backward(m, rows, &m->reg.param[m->reg.norm], m->dhidden, last.x, last.root1);
	}
	for (int64_t l = r->to - 1; rc == 0 && l >= r->from; l--) {
		const struct kept k = kept_of(m, r, slot, l);
		struct layer w = layer_of(m, l);

		rc = turn(rows, l, err);
		if (rc == 0 && m->recompute)
			rc = forward_again(m, l, &w, rows, &k, err);
		if (rc == 0)
			rc = mlp_backward(m, l, rows, &k, &w, err);
		if (rc == 0)
			rc = attention_backward(m, l, rows, &k, &w, err);
	}
	if (rc == 0 && r->from == 0)
		rc = embedding_backward(m, rows, err);
	return rc == 0 ? turn(rows, m->c.layers + 1, err) : rc;
}
