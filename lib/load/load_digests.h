/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the digests of tensors that were read whole with those in the sums. [collective] */
#ifndef SHF_LOAD_DIGESTS_H
#define SHF_LOAD_DIGESTS_H
#include "load.h"

/* Compares whole tensors with their digests, and adds up the report on the way. ECORRUPT. rc: what
 * came of this rank's work before it. [collective] */
int shf_prove(struct shf_load *load, int rc, struct sheaf_error *err);
#define SHF_FOREIGN_MSG "foreign: no sums exist"
#endif
