/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what a lazy save copies: the pieces of each slice, sorted by offset in the image. The order
 * of the slices themselves comes from save_learn.h. */
#ifndef SHF_SAVE_ORDER_H
#define SHF_SAVE_ORDER_H
#include "save.h"

/* Lists all pieces that this rank copies under the save's plan, grouped by slice, and the segments
 * in slots of each slice. ENOMEM, EBUG. [local] */
int  shf_save_order_make(struct shf_save_order *turns, const struct sheaf_save *save,
                         struct sheaf_error *err);
/* Frees the lists, and zeroes *turns. */
void shf_save_order_release(struct shf_save_order *turns);
#endif
