/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of row-major tensors, and how a box lies in the memory of a rank.
 *
 * Inside the library a tensor consists of *units*, not items: 1, 2, 4 or 8 whole bytes each. F4 and
 * F6 are treated as tensors of single bytes, with the last dimension in bytes (or, where a row is
 * not a whole number of bytes, as one dimension of all bytes). A scalar has no dimension and one
 * unit. */
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
/* The most boxes that a range of units can consist of (shf_range_boxes). */
#define SHF_RANGE_BOXES_MAX (2 * SHEAF_DIMS_MAX - 1)

bool shf_box_is_empty(const struct shf_box *b);
uint64_t shf_box_units(const struct shf_box *b);
struct shf_box shf_box_of(const struct shf_shape *s);           /* the whole tensor */
/* Returns false, with *out as it was, if the boxes have no unit in common. */
bool shf_box_intersect(struct shf_box *out, const struct shf_box *a, const struct shf_box *b);
bool shf_box_contains(const struct shf_box *outer, const struct shf_box *inner);
bool shf_box_equal(const struct shf_box *a, const struct shf_box *b);
/* Writes the box as "[0:4, 8:16]" to text, which has n bytes; the result is cut to fit and ends in
 * a NUL. Returns text. */
char *shf_box_print(const struct shf_box *b, char *text, size_t n);
uint64_t shf_shape_units(const struct shf_shape *s);            /* number of units; the caller has
                                                                 * excluded overflow */
/* Sets [*lo, *hi) to the row-major units of the tensor from the first of the box to its last; an
 * empty box: [0, 0). */
void shf_box_span(const struct shf_shape *s, const struct shf_box *b, uint64_t *lo, uint64_t *hi);
/* Writes row-major units [lo, hi) of the tensor as disjoint boxes, ascending, to out. Returns how
 * many, SHF_RANGE_BOXES_MAX at most. hi must not exceed the units of s. */
int shf_range_boxes(const struct shf_shape *s, uint64_t lo, uint64_t hi, struct shf_box *out);

/* How a box lies in the memory of a rank. The unit at index i of the box (counted from its start)
 * is unit origin + sum of i[d] * stride[d] of a buffer. This rank has units [lo, hi) of the buffer,
 * and base points to unit lo. */
struct shf_mem {
	struct shf_box box;
	int64_t stride[SHEAF_DIMS_MAX];         /* >= 0, in units. All 0 does not mean dense here,
	                                         * as it does in sheaf.h */
	int64_t origin, lo, hi;
	uint32_t unit;                          /* bytes of a unit: of an item, or 1 if items are
	                                         * smaller than a byte */
	uint8_t *base;
};
/* Calls item for the parts of m->box that are in [lo, hi) of the buffer, as disjoint boxes in
 * coordinates of the tensor, in any order. If all of m->box is there, item gets m->box itself. A
 * result of item that is not 0 ends the walk and is returned. Any strides are allowed. */
int shf_mem_boxes(const struct shf_mem *m, int (*item)(void *arg, const struct shf_box *),
                  void *arg);
#endif
