/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen layouts of one model, with shapes that no number of ranks divides. Shares no code with
 * plan or engine: the place of every item is written down item by item, and memory is filled by the
 * formula below.
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
	int zero;                       /* 1: all families but the model are flat; 3: all */
	bool transposed, fused, own_experts;    /* own_experts: ep over all ranks */
	int cut_a, cut_b;               /* cuts dimension 0, and then each of the parts */
	int shard;                      /* HSDP: shards of dimension 0, replicated over the rest */
	bool small;                     /* without the big tensors */
};
extern const struct layout layouts[];
extern const int layouts_n;

struct lay_memory;                      /* the state of one rank */
/* Makes this rank's slices and their memory; fill: with values, otherwise filled with 0xA5. */
struct lay_memory *lay_hold(const struct layout *l, int rank, struct sheaf_slice *slices, int max,
                            int *n, bool fill, uint64_t seed);
/* Counts the items that differ from their value. Writes a message about the first one to why. */
int64_t lay_wrong(const struct lay_memory *m, char *why, size_t n);
void lay_free(struct lay_memory *m);
/* Return the bits of item i of a tensor; lay_salted: from a salt that all its items have. */
uint64_t lay_value(const struct lay_tensor *t, int64_t i, uint64_t seed);
uint64_t lay_salt(const struct lay_tensor *t, uint64_t seed);
uint64_t lay_salted(uint64_t salt, bool boolean, int64_t i);
int lay_bytes(int32_t dtype);           /* of one item */
#endif
