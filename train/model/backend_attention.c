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
	const float *q, *k, *v;
	float *stat;                    /* stat[i * stat_row]: of token i */
	int64_t stat_row;
	float scale;
	float *p, *ds;                  /* [TR_CHAIN, n] */
	/* Dropout of probabilities: row i of the head is row first + i of the sample. */
	int drops;
	struct tr_dropmask mask;
	int64_t sample, first;
};

int64_t tr_attention_scratch(int64_t n)
{
	return 2 * TR_CHAIN * n;
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

/* Sets the mask of head h, of rows that begin with row `at`. Those of a part are numbered in the
 * sample, and their keys in the part. */
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

static struct head head_of(const struct tr_rows *rows, const int64_t *begin,
			   const struct tr_attention *a, int64_t s, int64_t h)
{
	int64_t at = begin[s], kv = h / (a->heads / a->kv_heads) * a->size;
	struct head x = { .a = a, .n = begin[s + 1] - at, .q_row = a->heads * a->size,
			  .kv_row = a->kv_heads * a->size, .stat_row = a->heads * 2 };

	x.q = a->q + at * x.q_row + h * a->size;
	x.k = a->k + at * x.kv_row + kv;
	x.v = a->v + at * x.kv_row + kv;
	x.stat = a->stat + at * x.stat_row + h * 2;
	x.scale = (float)(1 / sqrt((double)a->size));
	x.p = a->scratch;
	x.ds = a->scratch + TR_CHAIN * x.n;
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
static void scores(struct tr_backend *be, const struct head *h, const float *x, const float *y,
		   float *to, int64_t m, int64_t keys)
{
	struct tr_gemm g = { .m = m, .n = keys, .k = h->a->size, .a = { x, h->q_row, 1 },
			     .b = { y, 1, h->kv_row }, .c = to, .c_row = h->n };

	tr_cpu_gemm(be, &g);
}

/* to[m, size] = x[m, keys] y[keys, size]. */
static void mix(struct tr_backend *be, const struct head *h, const float *x, const float *y,
		float *to, int64_t m, int64_t keys)
{
	struct tr_gemm g = { .m = m, .n = h->a->size, .k = keys, .a = { x, h->n, 1 },
			     .b = { y, h->kv_row, 1 }, .c = to, .c_row = h->q_row };

	tr_cpu_gemm(be, &g);
}

static void forward_block(struct tr_backend *be, const struct head *h, int64_t from, int64_t m,
			  float *o)
{
	int64_t keys = from + m;

	scores(be, h, h->q + from * h->q_row, h->k, h->p, m, keys);
	for (int64_t i = 0; i < m; i++) {
		float *row = h->p + i * h->n, *stat = h->stat + (from + i) * h->stat_row;
		int64_t seen = from + i + 1;

		be->isa->row.softmax(row, seen, h->scale, &stat[0], &stat[1]);
		drop(h, from + i, row, seen);
		memset(row + seen, 0, (size_t)(keys - seen) * sizeof(*row));
	}
	mix(be, h, h->p, h->v, o + from * h->q_row, m, keys);
}

void tr_cpu_attention(struct tr_backend *be, const struct tr_rows *rows,
		      const struct tr_attention *a, float *o)
{
	int64_t n;
	const int64_t *begin = begins_of(rows, &n);

	for (int64_t s = 0; s < n; s++) {
		for (int64_t i = 0; i < a->heads; i++) {
			struct head h = head_of(rows, begin, a, s, i);
			float *to = o + begin[s] * h.q_row + i * a->size;

			for (int64_t at = 0; at < h.n; at += BLOCK)
				forward_block(be, &h, at, least(BLOCK, h.n - at), to);
		}
	}
}

/* Computes dq of queries [from, from + m). Their probabilities and the gradients of their scores
 * are left in h->p and h->ds, from row `row` of the panel on. */
static void backward_block(struct tr_backend *be, const struct head *h, int64_t from, int64_t m,
			   int64_t row, const float *o, const float *grad_o, float *dq)
{
	const struct tr_rowops *op = &be->isa->row;
	float *p = h->p + row * h->n, *ds = h->ds + row * h->n;
	int64_t keys = from + m;

	scores(be, h, h->q + from * h->q_row, h->k, p, m, keys);
	scores(be, h, grad_o + from * h->q_row, h->v, ds, m, keys);
	for (int64_t i = 0; i < m; i++) {
		const float *stat = h->stat + (from + i) * h->stat_row;
		int64_t seen = from + i + 1, at = (from + i) * h->q_row;
		size_t rest = (size_t)(keys - seen) * sizeof(float);
		float delta = op->dot(o + at, grad_o + at, h->a->size);

		op->softmax_again(p + i * h->n, seen, h->scale, stat[0], stat[1]);
		drop(h, from + i, ds + i * h->n, seen);
		op->softmax_bwd(ds + i * h->n, p + i * h->n, delta, h->scale, seen);
		drop(h, from + i, p + i * h->n, seen);
		memset(p + i * h->n + seen, 0, rest);
		memset(ds + i * h->n + seen, 0, rest);
	}
	mix(be, h, ds, h->k, dq + from * h->q_row, m, keys);
}

/* to[keys, size] += x^T y for the panel of queries [from, from + m). A query does not see the keys
 * after it, so a block of keys skips the queries before its first key. */
static void gather(struct tr_backend *be, const struct head *h, const float *x, const float *y,
		   float *to, int64_t from, int64_t m)
{
	for (int64_t key = 0; key < from + m; key += BLOCK) {
		int64_t skip = key > from ? key - from : 0;
		struct tr_gemm g = { .m = least(BLOCK, from + m - key), .n = h->a->size,
				     .k = m - skip, .a = { x + skip * h->n + key, 1, h->n },
				     .b = { y + (from + skip) * h->q_row, h->q_row, 1 },
				     .c = to + key * h->kv_row, .c_row = h->kv_row, .add = 1 };

		tr_cpu_gemm(be, &g);
	}
}

void tr_cpu_attention_bwd(struct tr_backend *be, const struct tr_rows *rows,
			  const struct tr_attention *a, const float *o, const float *grad_o,
			  float *dq, float *dk, float *dv)
{
	size_t kv_bytes = (size_t)(rows->n * a->kv_heads * a->size) * sizeof(float);
	int64_t n;
	const int64_t *begin = begins_of(rows, &n);

	memset(dk, 0, kv_bytes);
	memset(dv, 0, kv_bytes);
	for (int64_t s = 0; s < n; s++) {
		for (int64_t i = 0; i < a->heads; i++) {
			struct head h = head_of(rows, begin, a, s, i);
			int64_t q = begin[s] * h.q_row + i * a->size, kv = h.k - a->k;

			for (int64_t at = 0; at < h.n; at += TR_CHAIN) {
				int64_t m = least(TR_CHAIN, h.n - at);

				for (int64_t b = 0; b < m; b += BLOCK)
					backward_block(be, &h, at + b, least(BLOCK, m - b), b,
						       o + q, grad_o + q, dq + q);
				gather(be, &h, h.p, grad_o + q, dv + kv, at, m);
				gather(be, &h, h.ds, h.q, dk + kv, at, m);
			}
		}
	}
}
