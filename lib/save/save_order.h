/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what a save copies, sorted by offset in the image, so that images fill from the front on
 * all ranks, and their first segments can be written early. A lazy save has a list for each slice;
 * the order of the slices themselves comes from save_learn.h. */
#ifndef SHF_SAVE_ORDER_H
#define SHF_SAVE_ORDER_H
#include "save.h"
#include "work.h"

/* Lists in *out the *n pieces of these serves, which are of one round and are cut into pieces of at
 * most `most` bytes. The caller frees *out, also after an error. ENOMEM, EBUG. [local] */
int  shf_save_order_list(const struct sheaf_save *save, struct shf_span serves, uint64_t most,
                         struct shf_save_order_piece **out, size_t *n, struct sheaf_error *err);
/* Lists all pieces that this rank copies under the save's plan, grouped by slice, and the segments
 * in slots of each slice. ENOMEM, EBUG. [local] */
int  shf_save_order_make(struct shf_save_order *turns, const struct sheaf_save *save,
                         struct sheaf_error *err);
/* Frees the lists, and zeroes *turns. */
void shf_save_order_release(struct shf_save_order *turns);
#endif
