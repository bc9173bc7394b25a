/* SPDX-License-Identifier: Apache-2.0 */
/* A tile of 4 x 8 in plain C. fmaf rounds once also where the CPU has no instruction for it. */
#include <math.h>
#include <string.h>

#include "gemm.h"

void tr_tile_portable(int64_t k, const float *a, const float *b, float *c, int64_t c_row, int add)
{
	float sum[4][8];

	memset(sum, 0, sizeof(sum));
	for (; k > 0; k--, a += 4, b += 8)
		for (int i = 0; i < 4; i++)
			for (int j = 0; j < 8; j++)
				sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 8; j++)
			c[i * c_row + j] = add ? c[i * c_row + j] + sum[i][j] : sum[i][j];
}
