/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the place of each item of a slice, as sheaf.h defines it. Tests fill and compare memory
 * with it, so it shares no code with plan or engine. */
#ifndef ITEMS_H
#define ITEMS_H
#include "sheaf.h"

/* Calls item for each item of the slice that is in this rank's memory, with its number in the whole
 * tensor and its number in `data`. Items are whole bytes. */
void items_each(const struct sheaf_slice *s, void (*item)(void *arg, int64_t global, int64_t at),
                void *arg);
/* Returns how many items `data` must have for the slice: one more than the last item used. */
int64_t items_span(const struct sheaf_slice *s);
/* Narrows the slice to piece i of n along a dimension; the last pieces are short or empty. */
void items_cut(struct sheaf_slice *s, int dim, int64_t i, int64_t n);
/* Returns the number of items in the whole box. */
int64_t items_n(const struct sheaf_slice *s);
#endif
