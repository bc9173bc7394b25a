/* SPDX-License-Identifier: Apache-2.0 */
/* The best steps by a number in their notes. */
#ifndef SHF_BEST_H
#define SHF_BEST_H
#include "list.h"
#include "prune_steps.h"

/* Sets entry.best to 1, 2, ... for the p->keep_best best of the committed steps that are not marked
 * bad, and to 0 for the others. The best have the smallest or largest note; of steps with equal
 * notes the newer one comes first. Returns 0 or ENOMEM. */
int shf_best_find(struct shf_list *list, const struct shf_prune *p, struct sheaf_error *err);
#endif
