/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices: beside their definition, on each instruction set of this machine, and on
 * AVX-512 with the instruction in plain C. */
#include "t.h"

#include <math.h>

#include "trainemulated.h"
#include "trainsets.h"

static float work[TR_GEMM_WORK] __attribute__((aligned(64)));

/* A product whose operands may be transposed, cut where cut says. */
struct product {
	struct tr_gemm g;
	float a[90 * 700], b[90 * 700], c[90 * 90], want[90 * 90];
};

static void make(struct product *p, int64_t m, int64_t n, int64_t k, int how, uint64_t of)
{
	int ta = how & 1, tb = how >> 1 & 1;
	enum tr_type a = how & 8 ? TR_BF16 : TR_F32, b = how & 16 ? TR_BF16 : TR_F32;
	const struct tr_isa *isa[SETS_MAX];

	draw(p->a, m * k, of);
	draw(p->b, n * k, of + 1);
	draw(p->c, m * n, of + 2);
	p->g = (struct tr_gemm){ .m = m, .n = n, .k = k, .c = p->c, .c_row = n, .add = how >> 2 & 1,
		.a = { p->a, ta ? 1 : k, ta ? m : 1, a },
		.b = { p->b, tb ? 1 : n, tb ? k : 1, b } };
	sets(isa);
	isa[0]->items[a].round(p->a, p->a, m * k);
	isa[0]->items[b].round(p->b, p->b, n * k);
	memcpy(p->want, p->c, sizeof(p->c));
}

TEST(products_have_the_bits_of_their_definition_on_every_instruction_set)
{
	static const int64_t cut[] = { 0, 5, 5, 300, 612 };
	static struct product p;
	const struct tr_isa *isa[SETS_MAX];
	int n = sets(isa);

	for (int s = 0; s < n; s++) {
		for (int i = t_from(T_STRIDE); i < 120; i += T_STRIDE) {
			int64_t k = i % 5 ? 1 + i * 5 : 612;

			make(&p, 1 + i * 7 % 90, 1 + i * 11 % 90, k, i, (uint64_t)i);
			if (k == 612) {
				p.g.cut = cut;
				p.g.cut_n = 4;
			}
			tr_gemm(isa[s], &p.g, work);
			p.g.c = p.want;
			tr_gemm_chain(&p.g);
			CHECK(memcmp(p.c, p.want, sizeof(p.c)) == 0);
		}
	}
}

TEST(a_product_made_in_two_calls_has_the_bits_of_one)
{
	static const int64_t cut[] = { 0, 37, 411 };
	static struct product p;
	const struct tr_isa *isa[SETS_MAX];
	int n = sets(isa);

	make(&p, 50, 40, 411, 1 | 4, 3);        /* C += A^T B, as gradients of weights are */
	p.g.cut = cut;
	p.g.cut_n = 2;
	tr_gemm(isa[n - 1], &p.g, work);
	p.g.c = p.want;
	p.g.cut = NULL;
	p.g.k = 37;
	tr_gemm(isa[n - 1], &p.g, work);
	p.g.a.at = tr_item(TR_F32, p.g.a.at, 37 * p.g.a.column);
	p.g.b.at = tr_item(TR_F32, p.g.b.at, 37 * p.g.b.row);
	p.g.k = 411 - 37;
	tr_gemm(isa[n - 1], &p.g, work);
	CHECK(memcmp(p.c, p.want, sizeof(p.c)) == 0);
}

TEST(products_of_many_rows_and_columns_leave_nothing_out)
{
	enum { M = 401, N = 1100, K = 20 };
	static float a[M * K], b[K * N], c[M * N];
	const struct tr_isa *isa[SETS_MAX];
	struct tr_gemm g = { .m = M, .n = N, .k = K, .a = { a, K, 1, TR_F32 },
			     .b = { b, N, 1, TR_F32 }, .c = c, .c_row = N };
	double worst = 0;

	draw(a, M * K, 1);
	draw(b, K * N, 2);
	tr_gemm(isa[sets(isa) - 1], &g, work);
	for (int i = 0; i < M; i++) {
		for (int j = 0; j < N; j++) {
			double want = 0;

			for (int k = 0; k < K; k++)
				want += (double)a[i * K + k] * (double)b[k * N + j];
			worst = fmax(worst, fabs(c[i * N + j] - want));
		}
	}
	CHECK(worst < 5e-6);
}

TEST(the_tile_of_avx512_emulated_has_the_bits_of_the_definition)
{
	static struct product p;
	const struct tr_isa isa = emulated_set();

	for (int i = t_from(T_STRIDE); i < 120; i += T_STRIDE) {
		make(&p, 1 + i * 7 % 90, 1 + i * 11 % 90, 1 + i * 5, i, (uint64_t)i);
		tr_gemm(&isa, &p.g, work);
		p.g.c = p.want;
		tr_gemm_chain(&p.g);
		CHECK(memcmp(p.c, p.want, sizeof(p.c)) == 0);
	}
}

TEST(the_kernels_pass_the_check_that_a_start_makes)
{
	const struct tr_isa *isa[SETS_MAX];
	struct tr_error err;
	int n = sets(isa);

	for (int i = 0; i < n; i++)
		CHECK_RC(tr_isa_check(isa[i], work, &err), 0, &err);
}

static void tile_off(int64_t k, const float *a, const float *b, float *c, int64_t c_row, int add)
{
	tr_tile_portable(k, a, b, c, c_row, add);
	c[0] = nextafterf(c[0], 100);
}

TEST(a_kernel_with_one_wrong_bit_is_found_at_the_start)
{
	const struct tr_isa *isa[SETS_MAX];
	struct tr_isa off;
	struct tr_error err;

	sets(isa);
	off = *isa[0];
	off.tile = tile_off;
	CHECK_INT(tr_isa_check(&off, work, &err), TR_EBUG);
	CHECK_INT(tr_isa_find(&isa[0], "vliw", &err), TR_EINVAL);
}
