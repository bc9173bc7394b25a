/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of one rank that share memory. */
#ifndef SHF_MEMORY_OVERLAP_H
#define SHF_MEMORY_OVERLAP_H
#include "box.h"

/* Sets [*lo, *hi) to the addresses from the first to the last byte of the box that this rank has.
 * Returns false if it has no byte of the box. unit: bytes of a unit in memory. */
bool shf_mem_span(const struct shf_mem *m, uint32_t unit, uint64_t *lo, uint64_t *hi);
/* Returns whether the boxes share a byte of memory. Takes time in proportion to their rows in
 * memory. A box whose own rows overlap each other counts as all bytes between its first and its
 * last. */
bool shf_mem_overlap(const struct shf_mem *a, uint32_t a_unit, const struct shf_mem *b,
                     uint32_t b_unit);
#endif
