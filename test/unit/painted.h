/* SPDX-License-Identifier: Apache-2.0 */
/* States of a few tensors whose rows lie on the ranks of a test with threads, painted by rank,
 * tensor and step. */
#ifndef PAINTED_H
#define PAINTED_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "sheaf.h"
#include "t.h"

static inline float painted_item(int rank, int slice, int64_t step, size_t i)
{
	return (float)((i * 7 + (size_t)slice * 131 + (size_t)rank * 17 + (size_t)step * 1009) %
	               65521);
}

static inline void painted_fill(float *data, size_t items, int rank, int slice, int64_t step)
{
	for (size_t i = 0; i < items; i++)
		data[i] = painted_item(rank, slice, step, i);
}

/* Makes a state of row `rank` of `n` tensors t.0, t.1, ... and allocates its memory. */
static inline struct sheaf_state *painted_state(float **data, int n, int rank, int ranks,
                                                size_t items)
{
	struct sheaf_state *state = sheaf_state_new();

	for (int i = 0; i < n; i++) {
		struct sheaf_slice s = { .size = sizeof(s), .dtype = SHEAF_F32, .ndim = 2,
			.shape = { ranks, (int64_t)items }, .count = { 1, (int64_t)items } };
		char name[8];

		data[i] = calloc(items, sizeof(float));
		snprintf(name, sizeof(name), "t.%d", i);
		s.name = name;
		s.start[0] = rank;
		s.data = data[i];
		CHECK_INT(sheaf_state_add(state, &s, NULL), i);
	}
	return state;
}
#endif
