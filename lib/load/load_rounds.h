/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that several ranks want: one reads, and the others are sent their parts in rounds.
 * [collective] */
#ifndef SHF_LOAD_ROUNDS_H
#define SHF_LOAD_ROUNDS_H
#include "load.h"

/* Reads and shares what several ranks want. [collective] */
int shf_shared_run(struct shf_load *load, struct sheaf_error *err);
#endif
