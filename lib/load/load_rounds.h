/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the segments that several ranks want: one rank reads each, and the others get their parts
 * from it, in rounds. */
#ifndef SHF_LOAD_ROUNDS_H
#define SHF_LOAD_ROUNDS_H
#include "load.h"

struct shf_load_rounds;
/* Allocates what all rounds need, from the plan. ENOMEM; *rounds is set in any case, for
 * shf_load_rounds_free. [local] */
int shf_load_rounds_new(struct shf_load_rounds **rounds, struct shf_load *load,
                        struct sheaf_error *err);
/* Makes all rounds. rc: 0, or a failure of this rank before the call. The ranks agree on failures
 * in each round, but a failure after the last agreement is returned only on this rank: the next
 * operation of the caller must agree on the result. ECORRUPT, EIO. [collective] */
int shf_load_rounds_run(struct shf_load_rounds *rounds, int rc, struct sheaf_error *err);
/* Waits for reads in flight, and frees *rounds. NULL is allowed. [local] */
void shf_load_rounds_free(struct shf_load_rounds *rounds);
#endif
