/* SPDX-License-Identifier: Apache-2.0 */
/* Checks slices of a state that share memory. */
#ifndef SHF_LOAD_ALIASED_H
#define SHF_LOAD_ALIASED_H
#include "load.h"

/* Checks that the load does not fill the same memory from tensors of different types. ELAYOUT names
 * two slices for which it would. ENOMEM. [local] */
int shf_load_check_aliased(const struct shf_load *load, struct sheaf_error *err);
#endif
