/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses a load that would fill the same memory from tensors of different types, before a byte is
 * touched. Example: fp32 weights that a state has both as BF16 model and as F32 master weights. The
 * order in which slices are filled is not defined, so the masters might end up rounded to BF16
 * without notice. Slices of one type may share memory, because they hold the same bytes. */
#include "load_aliased.h"
#include <stdlib.h>
#include "dtype.h"
#include "err.h"
#include "load.h"
#include "memory_overlap.h"
#include "state.h"

struct filled {                 /* lies within bytes [lo, hi) of memory, with gaps perhaps */
	uint64_t lo, hi;
	uint32_t slice;
	bool cast;                      /* stored in another type than in memory */
};

static int order_by_memory(const void *a, const void *b)
{
	const struct filled *x = a, *y = b;

	return x->lo != y->lo ? (x->lo > y->lo) - (x->lo < y->lo)
	                      : (x->slice > y->slice) - (x->slice < y->slice);
}

/* Whether the stored type is another one than the type in memory. */
static bool is_cast(const struct shf_target *t)
{
	return t->source == SHF_FROM_STEP && t->slice.dtype != t->slice.data_dtype;
}

/* Mostly no slice is cast, and then nothing needs to be compared. */
static bool any_is_cast(const struct shf_load *ld)
{
	size_t i = 0;

	while (i < ld->state->n && !is_cast(&ld->targets[i]))
		i++;
	return i < ld->state->n;
}

/* Lists the slices that are filled from the step. */
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

/* Whether two slices overlap in memory and differ in their stored types, one of them being
 * converted. Equal types are no conflict: both slices receive the same bytes. */
static bool is_conflict(const struct shf_load *ld, const struct filled *x, const struct filled *y)
{
	const struct shf_slice *a = &ld->targets[x->slice].slice, *b = &ld->targets[y->slice].slice;

	return (x->cast || y->cast) && a->dtype != b->dtype &&
	       shf_mem_overlap(&a->mem, a->mem_unit, &b->mem, b->mem_unit);
}

static int conflict_fail(const struct shf_load *ld, const struct filled *x,
                         const struct filled *y, struct sheaf_error *err)
{
	const struct shf_slice *a = &ld->targets[x->slice].slice, *b = &ld->targets[y->slice].slice;

	return shf_fail(err, SHEAF_ELAYOUT, "%s/%.100s (%s is stored) and %s/%.100s (%s) lie in "
	                "the same memory, and one of them would be lost: give the one that is made "
	                "of the other SHEAF_SAVE_ONLY", a->family, a->name,
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
