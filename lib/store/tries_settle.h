/* SPDX-License-Identifier: Apache-2.0 */
/* What earlier jobs left in .sheaf/tries. */
#ifndef SHF_TRIES_SETTLE_H
#define SHF_TRIES_SETTLE_H
#include "store.h"

/* Marks the steps on disk bad that are condemned by attempts_max. A mark that cannot be written is
 * no error. Returns -ENOMEM or 0. */
int shf_tries_settle(struct shf_store *s);
/* During recovery: removes the counts of steps that are gone. Returns -ENOMEM or 0. */
int shf_tries_clean(struct shf_store *s);
#endif
