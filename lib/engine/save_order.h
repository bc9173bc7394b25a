/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a copy behind copies. */
#ifndef SHF_SAVE_ORDER_H
#define SHF_SAVE_ORDER_H
#include "save.h"

/* Of all that the save's plan has this rank copy. ENOMEM, EBUG. [local] */
int  shf_turns_make(struct shf_turns *turns, const struct sheaf_save *save,
                    struct sheaf_error *err);
void shf_turns_release(struct shf_turns *turns);
#endif
