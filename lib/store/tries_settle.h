/* SPDX-License-Identifier: Apache-2.0 */
/* What earlier jobs left in .sheaf/tries. */
#ifndef SHF_TRIES_SETTLE_H
#define SHF_TRIES_SETTLE_H
#include "store.h"

/* Marks a step on disk bad if it was tried attempts_max times, an older step is left, and no person
 * has marked it. A mark that cannot be written is no error. Returns -ENOMEM or 0. */
int shf_tries_settle(struct shf_store *s);
/* During recovery: removes the counts of steps that are gone. Returns 0 or -ENOMEM. */
int shf_tries_clean(struct shf_store *s);
#endif
