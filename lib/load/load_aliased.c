/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses a load that would fill the same memory from tensors of different types. Example: a state
 * has the same fp32 memory both as BF16 model and as F32 master weights. Slices are filled in no
 * fixed order, so the masters might end up rounded to BF16, and nobody would notice. Slices of one
 * type may share memory, because all get the same bytes. */
#include "load_aliased.h"
#include <stdlib.h>
#include "dtype.h"
#include "err.h"
#include "load.h"
#include "memory_overlap.h"
#include "state.h"

struct filled {                 /* a slice that is filled from the step; it lies in bytes [lo, hi)
                                 * of memory, perhaps with gaps */
	uint64_t lo, hi;
	uint32_t slice;
	bool cast;                      /* its stored type is not the type in memory */
};

/* Orders by address, and by number of the slice if that is equal, so that the result is always the
 * same. */
static int order_by_memory(const void *a, const void *b)
{
	const struct filled *x = a, *y = b;

	return x->lo != y->lo ? (x->lo > y->lo) - (x->lo < y->lo)
	                      : (x->slice > y->slice) - (x->slice < y->slice);
}

/* Returns whether the slice is converted: its stored type is not the type in memory. */
static bool is_cast(const struct shf_target *t)
{
	return t->source == SHF_FROM_STEP && t->slice.dtype != t->slice.data_dtype;
}

/* Returns whether any slice is converted. Usually none is, and then nothing needs to be
 * compared. */
static bool any_is_cast(const struct shf_load *ld)
{
	size_t i = 0;

	while (i < ld->state->n && !is_cast(&ld->targets[i]))
		i++;
	return i < ld->state->n;
}

/* Lists the slices that are filled from the step and have memory. Returns their number. */
static size_t list_filled(const struct shf_load *ld, struct filled *out)
{
	size_t n = 0;

	for (size_t i = 0; i < ld->state->n; i++) {
		const struct shf_slice *s = &ld->targets[i].slice;
		struct filled f = { .slice = (uint32_t)i, .cast = is_cast(&ld->targets[i]) };

		if (ld->targets[i].source == SHF_FROM_STEP && !s->empty && s->mem.base &&
		    shf_mem_span(&s->mem, s->mem_unit, &f.lo, &f.hi))
			out[n++] = f;
	}
	return n;
}

/* Returns whether the two slices conflict: they overlap in memory, have different stored types, and
 * at least one is converted. With equal types both get the same bytes. */
static bool is_conflict(const struct shf_load *ld, const struct filled *x, const struct filled *y)
{
	const struct shf_slice *a = &ld->targets[x->slice].slice, *b = &ld->targets[y->slice].slice;

	return (x->cast || y->cast) && a->dtype != b->dtype &&
	       shf_mem_overlap(&a->mem, a->mem_unit, &b->mem, b->mem_unit);
}

/* Writes the message for two slices that conflict. Returns ELAYOUT. */
static int conflict_fail(const struct shf_load *ld, const struct filled *x,
                         const struct filled *y, struct sheaf_error *err)
{
	const struct shf_slice *a = &ld->targets[x->slice].slice, *b = &ld->targets[y->slice].slice;

	return shf_fail(err, SHEAF_ELAYOUT, "%s/%.100s (%s is stored) and %s/%.100s (%s) share "
	                "memory, so loading one would overwrite the other: set "
	                "SHEAF_SLICE_SAVE_ONLY on the one that is derived", a->family, a->name,
	                shf_dtype(a->dtype)->name, b->family, b->name, shf_dtype(b->dtype)->name);
}

/* Slices are sorted by where they begin, so each one is compared only with those that begin before
 * it ends. The cost is near linear as long as few slices overlap. */
int shf_load_check_aliased(const struct shf_load *ld, struct sheaf_error *err)
{
	struct filled *all;
	size_t n;
	int rc = 0;

	if (!any_is_cast(ld))
		return 0;
	all = shf_alloc(ld->state->n, sizeof(*all));
	if (!all)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu slices", ld->state->n);
	n = list_filled(ld, all);
	if (n)
		qsort(all, n, sizeof(*all), order_by_memory);
	for (size_t i = 0; rc == 0 && i < n; i++)
		for (size_t k = i + 1; rc == 0 && k < n && all[k].lo < all[i].hi; k++)
			if (is_conflict(ld, &all[i], &all[k]))
				rc = conflict_fail(ld, &all[i], &all[k], err);
	shf_free(all);
	return rc;
}
