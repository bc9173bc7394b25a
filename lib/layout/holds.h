/* SPDX-License-Identifier: Apache-2.0 */
/* The list of boxes that this rank holds (for a save) or wants (for a load) of the tensors of a
 * layout, sorted by tensor. */
#ifndef SHF_HOLDS_H
#define SHF_HOLDS_H
#include "sort.h"
#include "layout.h"
#include "state.h"

struct shf_hold {               /* a box of a tensor that this rank holds or wants */
	uint32_t tensor, slice;         /* numbers in the layout, and in the state */
	const struct shf_box *box;      /* borrowed from the slice, or in `boxes` */
};
struct shf_holds {
	struct shf_hold *a;             /* owned; sorted by tensor, then slice */
	size_t n, cap;
	struct shf_arena boxes;         /* boxes of slices of which memory has only a window
	                                 * (SHEAF_SLICE_FLAT): such a slice may be several boxes */
	uint64_t bytes;                 /* bytes of all boxes on disk */
};
/* Lists the boxes of n slices in *h, which must be zeroed. words[i] is shf_key(tensor, slice); the
 * words of one tensor come in ascending order of slices. `words` must have room for 2 * n and is
 * overwritten. slice(arg, i) returns slice i. ENOMEM. Call shf_holds_release in any case. */
int shf_holds_make(struct shf_holds *h, uint64_t *words, size_t n,
                   const struct shf_slice *(*slice)(const void *arg, uint32_t i), const void *arg,
                   struct sheaf_error *err);
/* Lists the boxes of all slices of a state, without slices that a pattern in `ignore` matches. The
 * layout must have the tensors of the slices, else EBUG. ENOMEM. */
int shf_holds_state(struct shf_holds *h, const struct shf_layout *l,
                    const struct sheaf_state *state, const char *const *ignore,
                    struct sheaf_error *err);
void shf_holds_release(struct shf_holds *h);
/* Returns the index of the first hold of the tensor, or h->n if the tensor has no hold. */
size_t shf_holds_first(const struct shf_holds *h, uint32_t tensor);
#endif
