/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "clock.h"
#include "elementary.h"

enum { BETWEEN_NS = 50000 };            /* time from one call of be->between to the next */
enum { PART_MAX = 4096 };               /* columns that sum_rows adds up at once */

struct cpu {
	float *work;
	float part[PART_MAX];
};

void tr_cpu_gemm(struct tr_backend *be, const struct tr_gemm *g)
{
	struct cpu *cpu = be->own;
	int64_t start = tr_clock_ns(), end;

	tr_gemm(be->isa, g, cpu->work);
	end = tr_clock_ns();
	be->gemm_ns += end - start;
	if (!be->between || end - be->between_ns < BETWEEN_NS)
		return;
	be->between_ns = end;
	be->between(be->between_arg);
}

static void *cpu_alloc(struct tr_backend *be, size_t items)
{
	void *p = NULL;

	(void)be;
	if (items > SIZE_MAX / sizeof(float) - 64 ||
	    posix_memalign(&p, 64, items * sizeof(float) + 64))
		return NULL;
	return memset(p, 0, items * sizeof(float) + 64);
}

static void cpu_release(struct tr_backend *be, void *memory)
{
	(void)be;
	free(memory);
}

/* The row operations on weights and activations. */
static const struct tr_itemops *op(const struct tr_backend *be)
{
	return &be->isa->items[be->type];
}

/* Computes a product that may be empty. The sum of no numbers is +0. */
static void product(struct tr_backend *be, const struct tr_gemm *g)
{
	if (g->k > 0) {
		tr_cpu_gemm(be, g);
	} else if (!g->add) {
		for (int64_t i = 0; i < g->m; i++)
			memset(g->c + i * g->c_row, 0, (size_t)g->n * sizeof(*g->c));
	}
}

static void cpu_linear(struct tr_backend *be, const struct tr_linear *l, struct tr_span over,
		       const void *x, float *y, int64_t n, int add)
{
	struct tr_gemm g = { .m = n, .n = l->out, .k = over.to - over.from,
			     .a = { tr_item(be->type, x, over.from), l->in, 1, be->type },
			     .b = { tr_item(be->type, l->w, over.from), 1, l->in, be->type },
			     .c = y, .c_row = l->out, .add = add };

	product(be, &g);
	for (int64_t i = 0; l->bias && i < n; i++)
		op(be)->add(y + i * l->out, l->bias, l->out);
}

static void cpu_linear_input(struct tr_backend *be, const struct tr_linear *l, struct tr_span over,
			     const float *dy, float *dx, int64_t n, int add)
{
	struct tr_gemm g = { .m = n, .n = l->in, .k = over.to - over.from,
			     .a = { dy + over.from, l->out, 1, TR_F32 },
			     .b = { tr_item(be->type, l->w, over.from * l->in), l->in, 1,
				    be->type }, .c = dx, .c_row = l->in, .add = add };

	product(be, &g);
}

enum { CUTS_MAX = 256 };

/* Consecutive sequences that have the same gradient buffer are one product. */
static void cpu_linear_weight(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			      int64_t last, const float *dy, int64_t out, const void *x,
			      int64_t in, int64_t offset)
{
	int64_t cut[CUTS_MAX + 1], s = 0, base = first;
	struct tr_gemm g = { .m = out, .n = in, .a = { dy, 1, out, TR_F32 },
			     .b = { x, in, 1, be->type }, .c_row = in, .add = 1, .cut = cut };

	while (first < last && rows->begin[s + 1] <= first)
		s++;
	while (first < last) {
		g.c = rows->grad[s] + offset;
		g.cut_n = 0;
		cut[0] = first - base;
		do {
			first = rows->begin[s + 1] < last ? rows->begin[s + 1] : last;
			cut[++g.cut_n] = first - base;
			s++;
		} while (first < last && g.cut_n < CUTS_MAX && g.c == rows->grad[s] + offset);
		tr_cpu_gemm(be, &g);
	}
}

/* Adds columns [column, column + n) of a row to `part`. */
typedef void row_fn(struct tr_backend *be, float *part, const void *arg, int64_t row,
		    int64_t column, int64_t n);

/* Adds the sum of rows [at, end) to the gradient of size items. It has a part for each TR_CHAIN
 * rows. */
static void sum_rows(struct tr_backend *be, int64_t at, int64_t end, int64_t size, float *grad,
		     row_fn *fn, const void *arg)
{
	struct cpu *cpu = be->own;

	for (; at < end; at += TR_CHAIN) {
		int64_t stop = at + TR_CHAIN < end ? at + TR_CHAIN : end;

		for (int64_t c = 0; c < size; c += PART_MAX) {
			int64_t n = size - c < PART_MAX ? size - c : PART_MAX;

			memset(cpu->part, 0, (size_t)n * sizeof(float));
			for (int64_t i = at; i < stop; i++)
				fn(be, cpu->part, arg, i, c, n);
			be->isa->row.add(grad + c, cpu->part, n);
		}
	}
}

struct bias_rows {
	const float *dy;
	int64_t out;
};

static void bias_row(struct tr_backend *be, float *part, const void *arg, int64_t row,
		     int64_t column, int64_t n)
{
	const struct bias_rows *b = arg;

	be->isa->row.add(part, b->dy + row * b->out + column, n);
}

static void cpu_linear_bias(struct tr_backend *be, const struct tr_rows *rows, const float *dy,
			    int64_t out, int64_t offset)
{
	struct bias_rows b = { dy, out };

	for (int64_t s = 0; s < rows->seqs; s++)
		sum_rows(be, rows->begin[s], rows->begin[s + 1], out, rows->grad[s] + offset,
			 bias_row, &b);
}

static void cpu_norm_again(struct tr_backend *be, void *y, const float *root, const void *x,
			   const void *w, int64_t n, int64_t size)
{
	for (int64_t i = 0; i < n; i++)
		op(be)->norm(tr_item(be->type, y, i * size), tr_item(be->type, x, i * size),
			     root[i], w, size);
}

static void cpu_norm(struct tr_backend *be, void *y, float *root, const void *x, const void *w,
		     int64_t n, int64_t size, double eps)
{
	for (int64_t i = 0; i < n; i++) {
		float mean = op(be)->square(tr_item(be->type, x, i * size), size) / (float)size;

		root[i] = 1.0f / sqrtf(mean + (float)eps);
	}
	cpu_norm_again(be, y, root, x, w, n, size);
}

struct norm_rows {
	const float *dy, *root;
	const void *x;
	int64_t size;
};

static void norm_row(struct tr_backend *be, float *part, const void *arg, int64_t row,
		     int64_t column, int64_t n)
{
	const struct norm_rows *r = arg;
	int64_t at = row * r->size + column;

	op(be)->norm_weight(part, r->dy + at, tr_item(be->type, r->x, at), r->root[row], n);
}

/* The gradient of w: the rows of each piece of each sequence are added to the part of the piece. */
static void norm_weight(struct tr_backend *be, const struct tr_rows *rows,
			const struct tr_pieces *pieces, const struct norm_rows *r, int64_t offset,
			int64_t stride)
{
	int64_t at = 0;

	for (int64_t s = 0; s < rows->seqs; s++) {
		int64_t n = rows->begin[s + 1] - rows->begin[s];

		for (int p = pieces->from; p < pieces->to; p++) {
			int64_t end = at + tr_cut(n, pieces->n, p + 1) - tr_cut(n, pieces->n, p);

			sum_rows(be, at, end, r->size,
				 rows->grad[s] + offset + (p - pieces->from) * stride, norm_row,
				 r);
			at = end;
		}
	}
}

static void cpu_norm_bwd(struct tr_backend *be, const struct tr_rows *rows,
			 const struct tr_pieces *pieces, float *dx, const float *dy, const void *x,
			 const float *root, const void *w, int64_t size, int64_t offset,
			 int64_t stride)
{
	struct norm_rows r = { dy, root, x, size };
	int64_t n = tr_rows_in(rows, pieces);

	for (int64_t i = 0; i < n; i++) {
		const void *row = tr_item(be->type, x, i * size);
		int64_t at = i * size;
		float dot = op(be)->dot3(dy + at, w, row, size);
		float mean = root[i] * root[i] * (dot / (float)size);

		op(be)->norm_bwd(dx + at, dy + at, row, root[i], mean, w, size);
	}
	norm_weight(be, rows, pieces, &r, offset, stride);
}

static void cpu_rope(struct tr_backend *be, const struct tr_rows *rows, void *x, int64_t heads,
		     int64_t size, const float *cosine, const float *sine, int turn)
{
	enum tr_type type = turn > 0 ? be->type : TR_F32;

	for (int64_t i = 0; i < rows->n; i++) {
		int64_t at = rows->position[i] * (size / 2);

		for (int64_t h = 0; h < heads; h++)
			be->isa->items[type].rope(tr_item(type, x, (i * heads + h) * size),
						  cosine + at, sine + at, size / 2, (float)turn);
	}
}

static void cpu_swiglu(struct tr_backend *be, void *h, const void *g, const void *u, int64_t n)
{
	op(be)->swiglu(h, g, u, n);
}

static void cpu_swiglu_bwd(struct tr_backend *be, float *dh, float *du, const void *g,
			   const void *u, int64_t n)
{
	op(be)->swiglu_bwd(dh, du, g, u, n);
}

static void cpu_drop(struct tr_backend *be, const struct tr_rows *rows,
		     const struct tr_pieces *pieces, const struct tr_dropmask *mask, float *y,
		     const float *x, int64_t size)
{
	int64_t at = 0;

	(void)be;
	for (int64_t s = 0; s < rows->seqs; s++) {
		int64_t n = rows->begin[s + 1] - rows->begin[s];
		int64_t end = tr_cut(n, pieces->n, pieces->to);

		for (int64_t i = tr_cut(n, pieces->n, pieces->from); i < end; i++, at += size)
			tr_drop(mask, rows->sample[s], i, y + at, x + at, size);
	}
}

static void cpu_zero(struct tr_backend *be, float *x, int64_t n)
{
	(void)be;
	memset(x, 0, (size_t)n * sizeof(*x));
}

static void cpu_add(struct tr_backend *be, float *y, const float *x, int64_t n)
{
	be->isa->row.add(y, x, n);
}

static void cpu_sum(struct tr_backend *be, void *y, const float *a, const void *x, int64_t n)
{
	op(be)->sum(y, a, x, n);
}

static void cpu_round(struct tr_backend *be, void *y, const float *x, int64_t n)
{
	op(be)->round(y, x, n);
}

/* 0 is added to the weights, as it is where other ranks send zeros for them: -0 becomes +0. */
static void cpu_embed(struct tr_backend *be, const struct tr_rows *rows, struct tr_span has,
		      float *x, const void *w, int64_t size)
{
	memset(x, 0, (size_t)(rows->n * size) * sizeof(*x));
	for (int64_t i = 0; i < rows->n; i++)
		if (rows->token[i] >= has.from && rows->token[i] < has.to)
			op(be)->add(x + i * size, tr_item(be->type, w, (rows->token[i] - has.from) *
							  size), size);
}

/* Rows are added in the order of the tokens, also those of a token that occurs several times. */
static void cpu_embed_bwd(struct tr_backend *be, const struct tr_rows *rows, struct tr_span has,
			  const float *dx, int64_t size, int64_t offset)
{
	for (int64_t s = 0; s < rows->seqs; s++) {
		for (int64_t i = rows->begin[s]; i < rows->begin[s + 1]; i++) {
			int64_t row = rows->token[i] - has.from;

			if (row >= 0 && rows->token[i] < has.to)
				be->isa->row.add(rows->grad[s] + offset + row * size, dx + i * size,
						 size);
		}
	}
}

static int is_masked(const struct tr_rows *rows, int64_t i)
{
	return !(rows->weight[i] < 0 || rows->weight[i] > 0);
}

static void cpu_xent_max(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			 int64_t last, const float *logits, struct tr_span has, float *max)
{
	int64_t size = has.to - has.from;

	for (int64_t i = 0; i < last - first; i++)
		max[i] = is_masked(rows, first + i) ? 0 :
			be->isa->row.max(logits + i * size, size);
}

static void cpu_xent_sum(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			 int64_t last, const float *logits, struct tr_span has, struct tr_span of,
			 const float *max, float *sum)
{
	int64_t size = has.to - has.from;

	for (int64_t i = 0; i < last - first; i++)
		sum[i] = is_masked(rows, first + i) ? 0 :
			be->isa->row.exp_sum(logits + i * size + (of.from - has.from),
					     of.to - of.from, max[i]);
}

static void cpu_xent_hit(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			 int64_t last, const float *logits, struct tr_span has, float *hit)
{
	int64_t size = has.to - has.from;

	(void)be;
	for (int64_t i = 0; i < last - first; i++) {
		int64_t target = rows->target[first + i];

		hit[i] = is_masked(rows, first + i) || target < has.from || target >= has.to ? 0 :
			logits[i * size + (target - has.from)];
	}
}

static void cpu_xent_loss(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			  int64_t last, const float *max, const float *sum, const float *hit,
			  float *loss)
{
	(void)be;
	for (int64_t i = 0; i < last - first; i++)
		loss[first + i] = is_masked(rows, first + i) ? 0 :
			(float)(tr_log((double)sum[i]) + ((double)max[i] - (double)hit[i]));
}

static void cpu_xent_bwd(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			 int64_t last, float *logits, struct tr_span has, const float *max,
			 const float *sum, double scale)
{
	int64_t size = has.to - has.from;

	for (int64_t i = first; i < last; i++) {
		float *row = logits + (i - first) * size;
		float weight = (float)(scale * (double)rows->weight[i]);
		int64_t target = rows->target[i];

		if (is_masked(rows, i)) {
			memset(row, 0, (size_t)size * sizeof(*row));
			continue;
		}
		be->isa->row.exp_times(row, size, max[i - first], weight / sum[i - first]);
		if (target >= has.from && target < has.to)
			row[target - has.from] -= weight;
	}
}

static void cpu_free(struct tr_backend *be)
{
	struct cpu *cpu = be->own;

	if (cpu)
		free(cpu->work);
	free(cpu);
	free(be);
}

int64_t tr_backend_cpu_workspace(void)
{
	return TR_GEMM_WORK * (int64_t)sizeof(float);
}

int tr_backend_cpu(struct tr_backend **be, const struct tr_isa *isa, struct tr_error *err)
{
	struct tr_backend *b = calloc(1, sizeof(*b));
	struct cpu *cpu = calloc(1, sizeof(*cpu));

	if (!b || !cpu) {
		free(b);
		free(cpu);
		return tr_fail(err, TR_ENOMEM, "no memory for the workspace of the CPU");
	}
	*b = (struct tr_backend){ .alloc = cpu_alloc, .release = cpu_release, .free = cpu_free,
		.linear = cpu_linear, .linear_input = cpu_linear_input,
		.linear_weight = cpu_linear_weight, .linear_bias = cpu_linear_bias,
		.norm = cpu_norm, .norm_again = cpu_norm_again, .norm_bwd = cpu_norm_bwd,
		.rope = cpu_rope, .attention = tr_cpu_attention,
		.attention_bwd = tr_cpu_attention_bwd, .swiglu = cpu_swiglu,
		.swiglu_bwd = cpu_swiglu_bwd, .drop = cpu_drop, .gemm = tr_cpu_gemm,
		.zero = cpu_zero, .add = cpu_add, .sum = cpu_sum, .round = cpu_round,
		.embed = cpu_embed,
		.embed_bwd = cpu_embed_bwd, .xent_max = cpu_xent_max, .xent_sum = cpu_xent_sum,
		.xent_hit = cpu_xent_hit, .xent_loss = cpu_xent_loss, .xent_bwd = cpu_xent_bwd,
		.isa = isa, .own = cpu, .workspace = tr_backend_cpu_workspace() };
	cpu->work = cpu_alloc(b, (size_t)b->workspace / sizeof(float));
	if (!cpu->work) {
		cpu_free(b);
		return tr_fail(err, TR_ENOMEM, "no memory for the workspace of the CPU");
	}
	*be = b;
	return 0;
}

void tr_backend_free(struct tr_backend *be)
{
	if (be)
		be->free(be);
}
