/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that several ranks want: one reads, and the others are sent their parts in rounds.
 * [collective] */
#ifndef SHF_LOAD_ROUNDS_H
#define SHF_LOAD_ROUNDS_H
#include "load.h"

/* Reads and shares what several ranks want. [collective] */
struct shf_rounds;
/* Memory for all rounds; *rounds: also when it fails. [local] */
int shf_rounds_new(struct shf_rounds **rounds, struct shf_load *load, struct sheaf_error *err);
/* Reads and shares all of them. rc: what came of this rank's work before it; so is what it returns,
 * which ranks agree on next. */
int shf_rounds_share(struct shf_rounds *rounds, int rc, struct sheaf_error *err);
void shf_rounds_free(struct shf_rounds *rounds);
#endif
