/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices of sheaf-train on one core, for bench/train.
 *
 * usage: sheaf-bench-products KIND:M:N:K ...
 *
 * KIND is nn, nt or tn. For each line of stdin it prints a line of JSON: the seconds of each
 * product, the best of several. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gemm.h"
#include "isa.h"

enum { TRIES = 7 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float *make(int64_t items)
{
	float *x = aligned_alloc(64, ((size_t)items * sizeof(*x) + 63) / 64 * 64);

	if (!x)
		exit(2);
	for (int64_t i = 0; i < items; i++)
		x[i] = (float)(i % 1021) / 1021;
	return x;
}

/* Reads "nt:2048:384:384". Returns 0 if it is not a product. */
static int read_product(const char *text, struct tr_gemm *g)
{
	char kind[3];
	long long m, n, k;

	if (sscanf(text, "%2[nt]:%lld:%lld:%lld", kind, &m, &n, &k) != 4 || m < 1 || n < 1 ||
	    k < 1)
		return 0;
	*g = (struct tr_gemm){ .m = m, .n = n, .k = k, .c_row = n };
	g->a = kind[0] == 't' ? (struct tr_matrix){ make(m * k), 1, m, TR_F32 } :
		(struct tr_matrix){ make(m * k), k, 1, TR_F32 };
	g->b = kind[1] == 't' ? (struct tr_matrix){ make(n * k), 1, k, TR_F32 } :
		(struct tr_matrix){ make(n * k), n, 1, TR_F32 };
	g->c = make(m * n);
	return 1;
}

static double best_time(const struct tr_isa *isa, const struct tr_gemm *g, float *work)
{
	double best = 1e9;

	for (int i = 0; i < TRIES; i++) {
		double began = now(), took;

		tr_gemm(isa, g, work);
		took = now() - began;
		best = took < best ? took : best;
	}
	return best;
}

int main(int argc, char **argv)
{
	enum { MOST = 64 };
	struct tr_gemm g[MOST];
	const struct tr_isa *isa;
	struct tr_error err;
	float *work = make(TR_GEMM_WORK);
	char line[64];

	if (argc < 2 || argc > MOST || tr_isa_find(&isa, "auto", &err) < 0)
		return 2;
	for (int i = 1; i < argc; i++) {
		if (!read_product(argv[i], &g[i])) {
			fprintf(stderr, "sheaf-bench-products: %s: it must be KIND:M:N:K\n",
				argv[i]);
			return 2;
		}
	}
	while (fgets(line, sizeof(line), stdin)) {
		for (int i = 1; i < argc; i++)
			printf("%s%.9g", i > 1 ? ", " : "[", best_time(isa, &g[i], work));
		puts("]");
		fflush(stdout);
	}
	return 0;
}
