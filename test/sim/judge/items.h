/* SPDX-License-Identifier: Apache-2.0 */
/* Where the items of a slice lie, one at a time, by the words of sheaf.h alone: tests paint and
 * compare memory with it, so it shares no code with plan or engine. */
#ifndef ITEMS_H
#define ITEMS_H
#include "sheaf.h"

/* Calls item for each item of the slice that is in this rank's memory: its number in the whole
 * tensor, and its number in `data`. Items are whole bytes. */
void items_each(const struct sheaf_slice *s, void (*item)(void *arg, int64_t global, int64_t at),
                void *arg);
/* Items of `data` that the slice needs: one more than the last it reaches. */
int64_t items_span(const struct sheaf_slice *s);
/* Narrow the slice to piece i of n along a dimension; the last ones are short or empty. */
void items_cut(struct sheaf_slice *s, int dim, int64_t i, int64_t n);
/* Of the whole box. */
int64_t items_n(const struct sheaf_slice *s);
#endif
