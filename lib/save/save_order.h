/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a lazy save copies: slice by slice, and within a slice as the image goes. */
#ifndef SHF_SAVE_ORDER_H
#define SHF_SAVE_ORDER_H
#include "save.h"

/* Lists, in that order, the pieces of all boxes that this rank copies under the save's plan.
 * ENOMEM, EBUG. [local] */
int  shf_turns_make(struct shf_turns *turns, const struct sheaf_save *save,
                    struct sheaf_error *err);
void shf_turns_release(struct shf_turns *turns);
#endif
