/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of row-major tensors, and the memory rule that maps a box to a rank's memory.
 *
 * Inside the library a tensor has *units*, not items: 1, 2, 4 or 8 whole bytes each. F4 and F6
 * are seen as tensors of single bytes, with the last dimension in bytes (or, where rows are no
 * whole bytes, as one dimension of all bytes). A scalar has no dimension and one unit.
 */
#ifndef SHF_BOX_H
#define SHF_BOX_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "sheaf.h"

struct shf_shape {
	int32_t ndim;
	int64_t dim[SHEAF_DIMS_MAX];
};
struct shf_box {
	int32_t ndim;
	int64_t start[SHEAF_DIMS_MAX], count[SHEAF_DIMS_MAX];
};
#define SHF_RANGE_BOXES_MAX (2 * SHEAF_DIMS_MAX - 1)

bool shf_box_is_empty(const struct shf_box *b);
uint64_t shf_box_units(const struct shf_box *b);
struct shf_box shf_box_of(const struct shf_shape *s);           /* the whole tensor */
bool shf_box_intersect(struct shf_box *out, const struct shf_box *a, const struct shf_box *b);
bool shf_box_contains(const struct shf_box *outer, const struct shf_box *inner);
bool shf_box_equal(const struct shf_box *a, const struct shf_box *b);
/* "[0:4, 8:16]" into text (always NUL-ended, cut to n). Returns text. */
char *shf_box_print(const struct shf_box *b, char *text, size_t n);
uint64_t shf_shape_units(const struct shf_shape *s);            /* caller checked for overflow */
/* First unit of the box and one past its last, in the tensor's row-major order. */
void shf_box_span(const struct shf_shape *s, const struct shf_box *b, uint64_t *lo, uint64_t *hi);
/* Row-major units [lo, hi) of the tensor as disjoint boxes in ascending order; returns how many
 * (0 .. SHF_RANGE_BOXES_MAX). hi <= units of s. */
int shf_range_boxes(const struct shf_shape *s, uint64_t lo, uint64_t hi, struct shf_box *out);

/* How a box lies in a rank's memory: unit i of the box (counted from its start) is unit
 * origin + sum i[d] * stride[d] of a buffer, of which [lo, hi) is here and base is unit lo. */
struct shf_mem {
	struct shf_box box;
	int64_t stride[SHEAF_DIMS_MAX];         /* >= 0, in units; never "all 0 means dense" */
	int64_t origin, lo, hi;
	uint32_t unit;                          /* bytes */
	uint8_t *base;
};
/* The parts of box that are here, as disjoint boxes (global coordinates), in any order; where all
 * of it is here, that is m->box itself. Each is
 * given to item; its non-zero result ends it and is returned. Works for any strides. */
int shf_mem_boxes(const struct shf_mem *m, int (*item)(void *arg, const struct shf_box *),
                  void *arg);
#endif
