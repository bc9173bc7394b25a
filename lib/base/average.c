/* SPDX-License-Identifier: Apache-2.0 */
#include "average.h"
#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "dtype.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Every NaN is replaced by this one. Which NaN an operation gives differs between processors, and
 * the bits of averages must not. */
#define NO_NUMBER UINT32_C(0x7fc00000)
#define BLOCK 4096                      /* items that are converted to fp32 at a time */

/* Updates one item, as average.h defines it. The product d * w is rounded before the fma, which
 * rounds once more. The vector paths do the same operations in the same order, so all paths
 * give the same bits. */
static inline float one(float e, float w, float c, float d)
{
	float next = fmaf(c, e, d * w);

	if (next != next) {
		const uint32_t bits = NO_NUMBER;

		memcpy(&next, &bits, sizeof(next));
	}
	return next;
}

/* The portable path: updates the items one by one. The other paths must give the same bits. */
static void each(float *e, const float *w, size_t n, float c, float d)
{
	for (size_t i = 0; i < n; i++)
		e[i] = one(e[i], w[i], c, d);
}

#if defined(__x86_64__)
/* Updates eight items at a time, and the rest one by one. */
__attribute__((target("avx2,fma"))) static void x8(float *e, const float *w, size_t n, float c,
                                                    float d)
{
	const __m256 cs = _mm256_set1_ps(c), ds = _mm256_set1_ps(d);
	const __m256 none = _mm256_castsi256_ps(_mm256_set1_epi32((int)NO_NUMBER));
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		__m256 v = _mm256_mul_ps(ds, _mm256_loadu_ps(w + i));

		v = _mm256_fmadd_ps(cs, _mm256_loadu_ps(e + i), v);
		v = _mm256_blendv_ps(v, none, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
		_mm256_storeu_ps(e + i, v);
	}
	for (; i < n; i++)
		e[i] = one(e[i], w[i], c, d);
}

/* Updates sixteen items at a time. The last vector is masked: lanes beyond the end are neither read
 * nor written, so no scalar loop is needed. */
__attribute__((target("avx512f"))) static void x16(float *e, const float *w, size_t n, float c,
                                                    float d)
{
	const __m512 cs = _mm512_set1_ps(c), ds = _mm512_set1_ps(d);
	const __m512 none = _mm512_castsi512_ps(_mm512_set1_epi32((int)NO_NUMBER));

	for (size_t i = 0; i < n; i += 16) {
		__mmask16 m = (__mmask16)(n - i >= 16 ? 0xffff : (1u << (n - i)) - 1);
		__m512 v = _mm512_mul_ps(ds, _mm512_maskz_loadu_ps(m, w + i));

		v = _mm512_fmadd_ps(cs, _mm512_maskz_loadu_ps(m, e + i), v);
		v = _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), none);
		_mm512_mask_storeu_ps(e + i, m, v);
	}
}
#endif

/* The vector paths use the fused multiply-add, so AVX2 alone is not enough. */
shf_average_path *shf_average_way(int i, const char **name, int *here)
{
	static const char *const names[] = { "portable", "avx2-fma", "avx512" };
	shf_average_path *ways[] = {
		each,
#if defined(__x86_64__)
		x8, x16,
#endif
	};
	if (i < 0 || (size_t)i >= sizeof(ways) / sizeof(ways[0]))
		return NULL;
	*name = names[i];
	*here = 1;
#if defined(__x86_64__)
	if (i == 1)
		*here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	if (i == 2)
		*here = __builtin_cpu_supports("avx512f") != 0;
#endif
	return ways[i];
}

/* Paths are listed from the slowest to the fastest, so the last one that runs here is taken. */
static shf_average_path *average_best_path(void)
{
	shf_average_path *way = each;
	const char *name;
	int here;

	for (int i = 0; shf_average_way(i, &name, &here); i++)
		if (here)
			way = shf_average_way(i, &name, &here);
	return way;
}

/* Computes the coefficient in the environment that the caller of this function has set. It is not
 * inlined, so that the compiler cannot move the division before fesetenv(). */
__attribute__((noinline)) static double warm(double coef, int64_t warmup, int64_t n)
{
	double c = (1 + (double)n) / ((double)warmup + (double)n);

	return warmup && c < coef ? c : coef;
}

/* The division is rounded in the default environment, whatever rounding mode the caller has
 * set: all ranks must get the same coefficient. */
double shf_average_coef(double coef, int64_t warmup, int64_t n)
{
	double c;
	fenv_t env;

	fegetenv(&env);
	fesetenv(FE_DFL_ENV);
	c = warm(coef, warmup, n);
	fesetenv(&env);
	return c;
}

/* Averages n items. Aligned fp32 weights are read where they are; others are converted to fp32 a
 * block at a time, and the block stays in the cache. The function is not inlined, for the same
 * reason as warm(). */
__attribute__((noinline)) static void average(float *e, const void *w, int w_dtype, size_t n,
                                              double coef)
{
	const size_t bytes = shf_dtype(w_dtype)->bits / 8;
	const float c = (float)coef, d = (float)(1.0 - coef);
	shf_average_path *way = average_best_path();
	const uint8_t *from = w;
	float wide[BLOCK];

	for (size_t k; n > 0; n -= k, e += k, from += k * bytes) {
		k = n < BLOCK ? n : BLOCK;
		if (w_dtype == SHEAF_F32 && (uintptr_t)from % sizeof(*wide) == 0) {
			way(e, (const float *)(const void *)from, k, c, d);
			continue;
		}
		shf_convert(wide, SHEAF_F32, from, w_dtype, k);
		way(e, wide, k, c, d);
	}
}

void shf_average(float *e, const void *w, int w_dtype, size_t n, double coef)
{
	fenv_t env;

	fegetenv(&env);
	fesetenv(FE_DFL_ENV);
	average(e, w, w_dtype, n, coef);
	fesetenv(&env);
}
