/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the best steps, by a number that the caller put into their notes when it saved them. */
#include "best.h"
#include "err.h"
#include "list.h"
#include "step_look.h"
#include "prune_steps.h"

#include <stdlib.h>

/* A step with a note that can be compared. */
struct candidate {
	struct shf_entry *entry;        /* borrowed from the list */
	bool largest;                   /* the largest note is the best */
};

/* Compares candidates for qsort: the best step comes first, and of equally good ones the newer. */
static int better(const void *pa, const void *pb)
{
	const struct candidate *a = pa, *b = pb;
	int c = shf_decimal_cmp(&a->entry->number, &b->entry->number);

	if (c != 0)
		return a->largest ? -c : c;
	return (a->entry->step < b->entry->step) - (a->entry->step > b->entry->step);
}

int shf_best_find(struct shf_list *list, const struct shf_prune *p, struct sheaf_error *err)
{
	struct candidate *all = shf_alloc(list->n, sizeof(*all));
	size_t n = 0;

	if (!all)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to compare %zu steps", list->n);
	for (size_t i = 0; i < list->n; i++) {
		struct shf_entry *e = &list->entries[i];

		e->best = 0;
		/* A step whose note is missing or not a number is ignored. */
		if (e->state == SHF_COMMITTED && e->mark != 'b' && e->noted == SHF_NOTE_NUMBER)
			all[n++] = (struct candidate){ e, p->best_largest };
	}
	if (n)
		qsort(all, n, sizeof(*all), better);
	for (size_t i = 0; i < n && i < (size_t)p->keep_best; i++)
		all[i].entry->best = (int)i + 1;
	shf_free(all);
	return 0;
}
