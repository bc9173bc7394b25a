/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on one core. Each head processes the queries of a sequence, or of a part of one if the
 * rows have parts, in panels of TR_CHAIN, from its start, and a panel in blocks of BLOCK. Keys
 * after the last query of a block are skipped: their probabilities are zero, and zeros change no
 * sum. So a sum over keys has its parts (gemm.h) from the start of the sequence, and a sum over
 * queries has a part for each panel. */
#include <math.h>
#include <string.h>

#include "backend.h"

enum { BLOCK = 64 };

/* One head of one sequence, or part of one. Matrices begin at its first token. */
struct head {
	const struct tr_attention *a;
	int64_t n;                      /* tokens */
	int64_t q_row, kv_row;          /* floats from token to token */
	const void *q, *k, *v;
	int64_t kv_from;                /* the first item of k and v in those of all tokens */
	float *stat;                    /* stat[i * stat_row]: of token i */
	int64_t stat_row;
	float scale;
	float *p, *ds;                  /* [TR_CHAIN, n] */
	float *o;                       /* [BLOCK, size]: before it is rounded */
	/* Dropout of probabilities: row i of the head is row first + i of the sample. */
	int drops;
	struct tr_dropmask mask;
	int64_t sample, first;
};

int64_t tr_attention_scratch(int64_t n, int64_t size)
{
	return 2 * TR_CHAIN * n + BLOCK * size;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Returns where each sequence begins, or each part if the rows have parts, and sets *n to their
 * number. */
static const int64_t *begins_of(const struct tr_rows *rows, int64_t *n)
{
	*n = rows->part ? rows->parts : rows->seqs;
	return rows->part ? rows->part : rows->begin;
}

/* Sets the mask of head h, of rows that begin with row `at`. Rows are numbered from the start of
 * the sample, keys from the start of the part. */
static void set_mask(struct head *x, const struct tr_rows *rows, int64_t at, int64_t h)
{
	const struct tr_dropout *d = rows->drop;
	int64_t s = 0;

	x->drops = d && d->attention_rate > 0;
	if (!x->drops)
		return;
	while (rows->begin[s + 1] <= at)
		s++;
	x->sample = rows->sample[s];
	x->first = at - rows->begin[s];
	x->mask = tr_dropmask_of(d, TR_RANDOM_PROBABILITIES, d->attention_rate, x->a->layer,
				 x->a->first_head + h);
}

static struct head head_of(enum tr_type type, const struct tr_rows *rows, const int64_t *begin,
			   const struct tr_attention *a, int64_t s, int64_t h)
{
	int64_t at = begin[s];
	struct head x = { .a = a, .n = begin[s + 1] - at, .q_row = a->heads * a->size,
			  .kv_row = a->kv_heads * a->size, .stat_row = a->heads * 2 };

	x.kv_from = at * x.kv_row + h / (a->heads / a->kv_heads) * a->size;
	x.q = tr_item(type, a->q, at * x.q_row + h * a->size);
	x.k = tr_item(type, a->k, x.kv_from);
	x.v = tr_item(type, a->v, x.kv_from);
	x.stat = a->stat + at * x.stat_row + h * 2;
	x.scale = (float)(1 / sqrt((double)a->size));
	x.p = a->scratch;
	x.ds = x.p + TR_CHAIN * x.n;
	x.o = x.ds + TR_CHAIN * x.n;
	set_mask(&x, rows, at, h);
	return x;
}

/* Drops what belongs to the first n keys of query i. */
static void drop(const struct head *h, int64_t i, float *x, int64_t n)
{
	if (h->drops)
		tr_drop(&h->mask, h->sample, h->first + i, x, x, n);
}

/* to[m, keys] = x[m, size] y[keys, size]^T. The rows of x belong to queries, those of y to keys. */
static void scores(struct tr_backend *be, const struct head *h, const struct tr_matrix *x,
		   const void *y, float *to, int64_t m, int64_t keys)
{
	struct tr_gemm g = { .m = m, .n = keys, .k = h->a->size, .a = *x,
			     .b = { y, 1, h->kv_row, be->type }, .c = to, .c_row = h->n };

	tr_cpu_gemm(be, &g);
}

/* to[m, size] = x[m, keys] y[keys, size]. */
static void mix(struct tr_backend *be, const struct head *h, const float *x, const void *y,
		float *to, int64_t to_row, int64_t m, int64_t keys)
{
	struct tr_gemm g = { .m = m, .n = h->a->size, .k = keys, .a = { x, h->n, 1, TR_F32 },
			     .b = { y, h->kv_row, 1, be->type }, .c = to, .c_row = to_row };

	tr_cpu_gemm(be, &g);
}

/* Returns the queries of a head as a matrix with a row for each token, from token `from` on. */
static struct tr_matrix queries(const struct tr_backend *be, const struct head *h, int64_t from)
{
	return (struct tr_matrix){ tr_item(be->type, h->q, from * h->q_row), h->q_row, 1,
				   be->type };
}

static void forward_block(struct tr_backend *be, const struct head *h, int64_t from, int64_t m,
			  void *o)
{
	struct tr_matrix q = queries(be, h, from);
	int64_t keys = from + m, size = h->a->size;

	scores(be, h, &q, h->k, h->p, m, keys);
	for (int64_t i = 0; i < m; i++) {
		float *row = h->p + i * h->n, *stat = h->stat + (from + i) * h->stat_row;
		int64_t seen = from + i + 1;

		be->isa->row.softmax(row, seen, h->scale, &stat[0], &stat[1]);
		drop(h, from + i, row, seen);
		memset(row + seen, 0, (size_t)(keys - seen) * sizeof(*row));
	}
	mix(be, h, h->p, h->v, h->o, size, m, keys);
	for (int64_t i = 0; i < m; i++)
		be->round(be, tr_item(be->type, o, (from + i) * h->q_row), h->o + i * size, size);
}

void tr_cpu_attention(struct tr_backend *be, const struct tr_rows *rows,
		      const struct tr_attention *a, void *o)
{
	int64_t n;
	const int64_t *begin = begins_of(rows, &n);

	for (int64_t s = 0; s < n; s++) {
		for (int64_t i = 0; i < a->heads; i++) {
			struct head h = head_of(be->type, rows, begin, a, s, i);
			void *to = tr_item(be->type, o, begin[s] * h.q_row + i * a->size);

			for (int64_t at = 0; at < h.n; at += BLOCK)
				forward_block(be, &h, at, least(BLOCK, h.n - at), to);
		}
	}
}

/* Computes dq of queries [from, from + m). Their probabilities and the gradients of their scores
 * are left in h->p and h->ds, from row `row` of the panel on. */
static void backward_block(struct tr_backend *be, const struct head *h, int64_t from, int64_t m,
			   int64_t row, const void *o, const float *grad_o, float *dq)
{
	const struct tr_matrix q = queries(be, h, from);
	const struct tr_matrix grad = { grad_o + from * h->q_row, h->q_row, 1, TR_F32 };
	const struct tr_rowops *op = &be->isa->row;
	float *p = h->p + row * h->n, *ds = h->ds + row * h->n;
	int64_t keys = from + m;

	scores(be, h, &q, h->k, p, m, keys);
	scores(be, h, &grad, h->v, ds, m, keys);
	for (int64_t i = 0; i < m; i++) {
		const float *stat = h->stat + (from + i) * h->stat_row;
		int64_t seen = from + i + 1, at = (from + i) * h->q_row;
		size_t rest = (size_t)(keys - seen) * sizeof(float);
		float delta = be->isa->items[be->type].dot(tr_item(be->type, o, at), grad_o + at,
							   h->a->size);

		op->softmax_again(p + i * h->n, seen, h->scale, stat[0], stat[1]);
		drop(h, from + i, ds + i * h->n, seen);
		op->softmax_bwd(ds + i * h->n, p + i * h->n, delta, h->scale, seen);
		drop(h, from + i, p + i * h->n, seen);
		memset(p + i * h->n + seen, 0, rest);
		memset(ds + i * h->n + seen, 0, rest);
	}
	mix(be, h, ds, h->k, dq + from * h->q_row, h->q_row, m, keys);
}

/* to[keys, size] += x^T y for the panel of queries [from, from + m), with which y begins. A query
 * does not see the keys after it, so a block of keys skips the queries before its first key. */
static void gather(struct tr_backend *be, const struct head *h, const float *x,
		   const struct tr_matrix *y, float *to, int64_t from, int64_t m)
{
	for (int64_t key = 0; key < from + m; key += BLOCK) {
		int64_t skip = key > from ? key - from : 0;
		struct tr_gemm g = { .m = least(BLOCK, from + m - key), .n = h->a->size,
				     .k = m - skip, .a = { x + skip * h->n + key, 1, h->n, TR_F32 },
				     .b = { tr_item(y->type, y->at, skip * y->row), y->row, 1,
					    y->type },
				     .c = to + key * h->kv_row, .c_row = h->kv_row, .add = 1 };

		tr_cpu_gemm(be, &g);
	}
}

/* Computes the gradients of the panel of queries [from, from + m) of a head. o, grad_o and dq begin
 * with the head, dk and dv with its keys. */
static void backward_panel(struct tr_backend *be, const struct head *h, int64_t from, int64_t m,
			   const void *o, const float *grad_o, float *dq, float *dk, float *dv)
{
	const struct tr_matrix q = queries(be, h, from);
	const struct tr_matrix grad = { grad_o + from * h->q_row, h->q_row, 1, TR_F32 };

	for (int64_t b = 0; b < m; b += BLOCK)
		backward_block(be, h, from + b, least(BLOCK, m - b), b, o, grad_o, dq);
	gather(be, h, h->p, &grad, dv, from, m);
	gather(be, h, h->ds, &q, dk, from, m);
}

void tr_cpu_attention_bwd(struct tr_backend *be, const struct tr_rows *rows,
			  const struct tr_attention *a, const void *o, const float *grad_o,
			  float *dq, float *dk, float *dv)
{
	size_t kv_bytes = (size_t)(rows->n * a->kv_heads * a->size) * sizeof(float);
	int64_t n;
	const int64_t *begin = begins_of(rows, &n);

	memset(dk, 0, kv_bytes);
	memset(dv, 0, kv_bytes);
	for (int64_t s = 0; s < n; s++) {
		for (int64_t i = 0; i < a->heads; i++) {
			struct head h = head_of(be->type, rows, begin, a, s, i);
			int64_t q = begin[s] * h.q_row + i * a->size;

			for (int64_t at = 0; at < h.n; at += TR_CHAIN)
				backward_panel(be, &h, at, least(TR_CHAIN, h.n - at),
					       tr_item(be->type, o, q), grad_o + q, dq + q,
					       dk + h.kv_from, dv + h.kv_from);
		}
	}
}
