/* SPDX-License-Identifier: Apache-2.0 */
/* The best steps by a number in their notes. */
#ifndef SHF_BEST_H
#define SHF_BEST_H
#include "list.h"
#include "trash.h"

/* Numbers entry.best of the p->keep_best committed steps, not marked bad, with the smallest or
 * largest note; of equal ones the newer comes first. ENOMEM. */
int shf_best_find(struct shf_list *list, const struct shf_prune *p, struct sheaf_error *err);
#endif
