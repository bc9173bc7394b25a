/* SPDX-License-Identifier: Apache-2.0 */
/* What this rank holds, or wants, of the tensors of a layout: boxes, by tensor. */
#ifndef SHF_HOLDS_H
#define SHF_HOLDS_H
#include "keys.h"
#include "layout.h"
#include "state.h"

struct shf_hold {               /* a box of a tensor that this rank holds or wants */
	uint32_t tensor, slice;
	const struct shf_box *box;      /* the slice's own, which outlives this, or in boxes */
};
struct shf_holds {
	struct shf_hold *a;             /* owned; by tensor, then slice */
	size_t n, cap;
	struct shf_arena boxes;         /* of slices that are several: windows */
	uint64_t bytes;
};
/* Of n slices: the key of each word is a tensor's number, its item that of a slice of it, which
 * ascends among equal keys. Behind them is room for n more words; all are spoilt. *h is fresh.
 * 0 or ENOMEM; release in any case. */
int shf_holds_make(struct shf_holds *h, uint64_t *words, size_t n,
                   const struct shf_slice *(*slice)(const void *arg, uint32_t i), const void *arg,
                   struct sheaf_error *err);
/* Everything a state holds of a layout that has all its tensors. EBUG where it has not. */
int shf_holds_state(struct shf_holds *h, const struct shf_layout *l,
                    const struct sheaf_state *state, const char *const *ignore,
                    struct sheaf_error *err);
void shf_holds_release(struct shf_holds *h);
/* First hold of the tensor (index), h->n if none. */
size_t shf_holds_first(const struct shf_holds *h, uint32_t tensor);
#endif
