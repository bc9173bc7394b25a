/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen ways to hold one model, on shapes that divide by nothing. Shares no code with plan or
 * engine: who holds which item where is written down item by item, and painted into memory by
 * the formula below.
 */
#ifndef LAYOUTS_H
#define LAYOUTS_H
#include <stdbool.h>
#include "sheaf.h"

struct lay_tensor {
	const char *family, *name;
	int32_t dtype, ndim;
	int64_t shape[SHEAF_DIMS_MAX];
	int axis;                       /* tensor parallel; -1: whole */
	int stage;                      /* of 3; -1: every stage */
	int expert;                     /* of LAY_EXPERTS; -1: none */
	int fused;                      /* 1: one buffer with its neighbours (q, k, v) */
};
#define LAY_EXPERTS 8
extern const struct lay_tensor lay_tensors[];
extern const int lay_tensors_n;

struct layout {
	const char *name;
	int ranks, dp, pp, tp, ep;      /* rank = (pp * dp + dp_i) * tp + tp_i */
	int zero;                       /* 1: optimizer and master weights flat; 3: the model too */
	bool transposed, fused, own_experts;    /* own_experts: ep over all ranks */
	int cut_a, cut_b;               /* dimension 0 by cut_a ranks, then by cut_b */
	int shard;                      /* HSDP: shards of dimension 0, replicated over the rest */
	bool small;                     /* without the two biggest tensors */
};
extern const struct layout layouts[];
extern const int layouts_n;

struct lay_memory;                      /* what one rank holds */
/* Slices of this rank, and memory for them; fill: with values, else with 0xA5. */
struct lay_memory *lay_hold(const struct layout *l, int rank, struct sheaf_slice *slices, int max,
                            int *n, bool fill, uint64_t seed);
/* Items that differ from their value; a sentence for the first into why. */
int64_t lay_wrong(const struct lay_memory *m, char *why, size_t n);
void lay_free(struct lay_memory *m);
/* Bits of item i of a tensor; the same from a salt, which all its items have. */
uint64_t lay_value(const struct lay_tensor *t, int64_t i, uint64_t seed);
uint64_t lay_salt(const struct lay_tensor *t, uint64_t seed);
uint64_t lay_salted(uint64_t salt, bool boolean, int64_t i);
int lay_bytes(int32_t dtype);           /* of one item */
#endif
