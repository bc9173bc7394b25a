/* SPDX-License-Identifier: Apache-2.0 */
/* What a lazy save copies: the pieces of each slice, in a slice by offset in the image. In which
 * order it takes the slices is in save_learn.h. */
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
