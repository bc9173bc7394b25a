/* SPDX-License-Identifier: Apache-2.0 */
/* Two slices of a state that share memory. [local] */
#ifndef SHF_LOAD_ALIASED_H
#define SHF_LOAD_ALIASED_H
#include "load.h"

/* Refuses to fill one memory from tensors of different types: ELAYOUT, naming the two slices.
 * [local] */
int shf_load_check_aliased(const struct shf_load *load, struct sheaf_error *err);
#endif
