/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend.h"

enum { PART_MAX = 4096 };               /* columns that sum_rows adds up at once */

struct cpu {
	float *work;
	float part[PART_MAX];
};

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void tr_cpu_gemm(struct tr_backend *be, const struct tr_gemm *g)
{
	struct cpu *cpu = be->own;
	int64_t start = now_ns();

	tr_gemm(be->isa, g, cpu->work);
	be->gemm_ns += now_ns() - start;
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

static void cpu_linear(struct tr_backend *be, const struct tr_linear *l, const float *x, float *y,
		       int64_t n)
{
	struct tr_gemm g = { .m = n, .n = l->out, .k = l->in, .a = { x, l->in, 1 },
			     .b = { l->w, 1, l->in }, .c = y, .c_row = l->out };

	tr_cpu_gemm(be, &g);
	for (int64_t i = 0; l->bias && i < n; i++)
		be->isa->row.add(y + i * l->out, l->bias, l->out);
}

static void cpu_linear_input(struct tr_backend *be, const struct tr_linear *l, const float *dy,
			     float *dx, int64_t n, int add)
{
	struct tr_gemm g = { .m = n, .n = l->in, .k = l->out, .a = { dy, l->out, 1 },
			     .b = { l->w, l->in, 1 }, .c = dx, .c_row = l->in, .add = add };

	tr_cpu_gemm(be, &g);
}

enum { CUTS_MAX = 256 };

/* Consecutive sequences that have the same gradient buffer are one product. */
static void cpu_linear_weight(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			      int64_t last, const float *dy, int64_t out, const float *x,
			      int64_t in, int64_t offset)
{
	int64_t cut[CUTS_MAX + 1], s = 0, base = first;
	struct tr_gemm g = { .m = out, .n = in, .a = { dy, 1, out }, .b = { x, in, 1 },
			     .c_row = in, .add = 1, .cut = cut };

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

/* Adds up rows by fn, and adds the sums to the gradient buffers of their sequences. A sum has a
 * part for each TR_CHAIN tokens of a sequence. */
static void sum_rows(struct tr_backend *be, const struct tr_rows *rows, int64_t size,
		     int64_t offset, row_fn *fn, const void *arg)
{
	struct cpu *cpu = be->own;

	for (int64_t s = 0; s < rows->seqs; s++) {
		int64_t end = rows->begin[s + 1];

		for (int64_t at = rows->begin[s]; at < end; at += TR_CHAIN) {
			int64_t stop = at + TR_CHAIN < end ? at + TR_CHAIN : end;

			for (int64_t c = 0; c < size; c += PART_MAX) {
				int64_t n = size - c < PART_MAX ? size - c : PART_MAX;

				memset(cpu->part, 0, (size_t)n * sizeof(float));
				for (int64_t i = at; i < stop; i++)
					fn(be, cpu->part, arg, i, c, n);
				be->isa->row.add(rows->grad[s] + offset + c, cpu->part, n);
			}
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

	sum_rows(be, rows, out, offset, bias_row, &b);
}

static void cpu_norm_again(struct tr_backend *be, float *y, const float *root, const float *x,
			   const float *w, int64_t n, int64_t size)
{
	for (int64_t i = 0; i < n; i++)
		be->isa->row.norm(y + i * size, x + i * size, root[i], w, size);
}

static void cpu_norm(struct tr_backend *be, float *y, float *root, const float *x, const float *w,
		     int64_t n, int64_t size, double eps)
{
	for (int64_t i = 0; i < n; i++) {
		float mean = be->isa->row.dot(x + i * size, x + i * size, size) / (float)size;

		root[i] = 1.0f / sqrtf(mean + (float)eps);
	}
	cpu_norm_again(be, y, root, x, w, n, size);
}

struct norm_rows {
	const float *dy, *x, *root;
	int64_t size;
};

static void norm_row(struct tr_backend *be, float *part, const void *arg, int64_t row,
		     int64_t column, int64_t n)
{
	const struct norm_rows *r = arg;
	int64_t at = row * r->size + column;

	be->isa->row.norm_weight(part, r->dy + at, r->x + at, r->root[row], n);
}

static void cpu_norm_bwd(struct tr_backend *be, const struct tr_rows *rows, float *dx,
			 const float *dy, const float *x, const float *root, const float *w,
			 int64_t size, int64_t offset)
{
	struct norm_rows r = { dy, x, root, size };

	for (int64_t i = 0; i < rows->n; i++) {
		int64_t at = i * size;
		float dot = be->isa->row.dot3(dy + at, w, x + at, size);
		float mean = root[i] * root[i] * (dot / (float)size);

		be->isa->row.norm_bwd(dx + at, dy + at, x + at, root[i], mean, w, size);
	}
	sum_rows(be, rows, size, offset, norm_row, &r);
}

static void cpu_rope(struct tr_backend *be, const struct tr_rows *rows, float *x, int64_t heads,
		     int64_t size, const float *cosine, const float *sine, int turn)
{
	for (int64_t i = 0; i < rows->n; i++) {
		int64_t at = rows->position[i] * (size / 2);

		for (int64_t h = 0; h < heads; h++)
			be->isa->row.rope(x + (i * heads + h) * size, cosine + at, sine + at,
					  size / 2, (float)turn);
	}
}

static void cpu_swiglu(struct tr_backend *be, float *h, const float *g, const float *u, int64_t n)
{
	be->isa->row.swiglu(h, g, u, n);
}

static void cpu_swiglu_bwd(struct tr_backend *be, float *dh, float *du, const float *g,
			   const float *u, int64_t n)
{
	be->isa->row.swiglu_bwd(dh, du, g, u, n);
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

static void cpu_embed(struct tr_backend *be, const struct tr_rows *rows, float *x, const float *w,
		      int64_t size)
{
	(void)be;
	for (int64_t i = 0; i < rows->n; i++)
		memcpy(x + i * size, w + rows->token[i] * size, (size_t)size * sizeof(*x));
}

/* Rows are added in the order of the tokens, also those of a token that occurs several times. */
static void cpu_embed_bwd(struct tr_backend *be, const struct tr_rows *rows, const float *dx,
			  int64_t size, int64_t offset)
{
	for (int64_t s = 0; s < rows->seqs; s++)
		for (int64_t i = rows->begin[s]; i < rows->begin[s + 1]; i++)
			be->isa->row.add(rows->grad[s] + offset + rows->token[i] * size,
					 dx + i * size, size);
}

static void cpu_xent(struct tr_backend *be, const struct tr_rows *rows, int64_t first, int64_t last,
		     float *logits, int64_t vocab, float *loss, double scale, int grad)
{
	for (int64_t i = first; i < last; i++) {
		float *row = logits + (i - first) * vocab, max, sum;

		loss[i] = 0;
		if (rows->weight[i] != 0) {
			loss[i] = be->isa->row.xent(row, vocab, rows->target[i], &max, &sum);
			if (grad)
				be->isa->row.xent_bwd(row, vocab, rows->target[i], max, sum,
						      (float)(scale * (double)rows->weight[i]));
		} else if (grad) {
			memset(row, 0, (size_t)vocab * sizeof(*row));
		}
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
		.swiglu_bwd = cpu_swiglu_bwd, .zero = cpu_zero, .add = cpu_add, .embed = cpu_embed,
		.embed_bwd = cpu_embed_bwd, .xent = cpu_xent, .isa = isa, .own = cpu };
	cpu->work = cpu_alloc(b, (size_t)TR_GEMM_WORK);
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
