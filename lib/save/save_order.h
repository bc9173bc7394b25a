/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a lazy save copies: slice by slice as they were added to the state, and in a
 * slice by offset in the image. */
#ifndef SHF_SAVE_ORDER_H
#define SHF_SAVE_ORDER_H
#include "save.h"

/* Lists in that order all pieces that this rank copies under the save's plan, and the segments in
 * slots of each slice. ENOMEM, EBUG. [local] */
int  shf_turns_make(struct shf_turns *turns, const struct sheaf_save *save,
                    struct sheaf_error *err);
/* Frees the lists, and zeroes *turns. */
void shf_turns_release(struct shf_turns *turns);
#endif
