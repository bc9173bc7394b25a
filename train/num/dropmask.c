/* SPDX-License-Identifier: Apache-2.0 */
#include "dropmask.h"

#include "itemhash.h"

/* Makes a key of a key and a number. */
static uint64_t more(uint64_t key, int64_t x)
{
	return tr_splitmix(key + ((uint64_t)x + 1) * 0x9E3779B97F4A7C15ULL);
}

struct tr_dropmask tr_dropmask_of(const struct tr_dropout *d, enum tr_purpose purpose, double rate,
				  int64_t layer, int64_t head)
{
	uint64_t key = more(tr_splitmix(d->seed), (int64_t)purpose);
	uint32_t least;

	key = more(more(more(key, d->step), layer), head);
	least = (uint32_t)(rate * 0x1p16 + 0.5);
	return (struct tr_dropmask){ .key = { (uint32_t)key, (uint32_t)(key >> 32) },
		.least = least, .scale = (float)(1 / (1 - least * 0x1p-16)) };
}

void tr_drop(const struct tr_dropmask *m, int64_t sample, int64_t row, float *y, const float *x,
	     int64_t n)
{
	uint32_t counter[4] = { 0, (uint32_t)row, (uint32_t)sample,
				(uint32_t)((uint64_t)sample >> 32) }, word[4];

	/* Eight items of a draw, with 16 bits each. */
	for (int64_t i = 0; i < n; i += 8, counter[0]++) {
		tr_philox(counter, m->key, word);
		for (int64_t j = 0; j < 8 && i + j < n; j++) {
			uint32_t bits = word[j / 2] >> (j % 2 * 16) & 0xffff;

			y[i + j] = bits < m->least ? 0 : x[i + j] * m->scale;
		}
	}
}
