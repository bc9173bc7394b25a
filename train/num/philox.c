/* SPDX-License-Identifier: Apache-2.0 */
#include "philox.h"

#include <math.h>

#include "elementary.h"
#include "itemhash.h"

void tr_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
	uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
	uint32_t k0 = key[0], k1 = key[1];

	for (int round = 0; round < 10; round++) {
		uint64_t a = (uint64_t)0xD2511F53 * c0, b = (uint64_t)0xCD9E8D57 * c2;

		c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)b;
		c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)a;
		k0 += 0x9E3779B9;
		k1 += 0xBB67AE85;
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

void tr_random(uint64_t seed, enum tr_purpose purpose, uint64_t of, uint64_t index,
	       uint32_t out[4])
{
	uint64_t mixed = tr_splitmix(seed + (uint64_t)purpose * 0x9E3779B97F4A7C15ULL);
	uint32_t key[2] = { (uint32_t)mixed, (uint32_t)(mixed >> 32) };
	uint32_t counter[4] = { (uint32_t)index, (uint32_t)(index >> 32), (uint32_t)of,
				(uint32_t)(of >> 32) };

	tr_philox(counter, key, out);
}

void tr_random_normal(uint64_t seed, enum tr_purpose purpose, uint64_t of, uint64_t pair,
		      double out[2])
{
	uint32_t r[4];
	double u, radius, s, c;

	tr_random(seed, purpose, of, pair, r);
	/* 53 bits in (0, 1], so that the logarithm is finite. */
	u = ((double)(((uint64_t)r[0] << 21) ^ (r[1] >> 11)) + 1.0) * 0x1p-53;
	radius = sqrt(-2.0 * tr_log(u));
	tr_sincos(6.283185307179586 * ((double)r[2] * 0x1p-32 + (double)r[3] * 0x1p-64), &s, &c);
	out[0] = radius * c;
	out[1] = radius * s;
}
