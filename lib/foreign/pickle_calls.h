/* SPDX-License-Identifier: Apache-2.0 */
/* Which calls in a pickle are no data. */
#ifndef SHF_PICKLE_CALLS_H
#define SHF_PICKLE_CALLS_H
#include "pickle.h"

/* Returns whether the call would run code that belongs in no checkpoint. A file that has it is
 * refused as a whole, although nothing would be called here: somebody made it to attack its
 * readers. func: a GLOBAL. */
bool shf_pickle_is_refused(const struct shf_pk *func, const struct shf_pk *args);
#endif
