/* SPDX-License-Identifier: Apache-2.0 */
/* A step that one process opened is asleep: of its table of sums only the head was read. A tensor
 * is found by binary search in the pages of the table that the search touches, each checked
 * against the page table, and its shape in the header of its one file, checked by blocks. Whatever
 * needs more, or finds anything odd, wakes the step: table and headers are then read and checked
 * whole, as they are at once where several ranks open a step. */
#ifndef SHF_STEP_LOOKUP_H
#define SHF_STEP_LOOKUP_H
#include "step.h"

/* Put a step with a manifest to sleep; false where the table does not look as it should: the
 * caller reads it whole. [local] */
bool shf_peek_init(struct sheaf_step *step);
/* The tensor that is stored as family/name, and its blocks' sums in place; true: *t, whose texts
 * live as long as the step. False: not found so, which proves nothing. [local] */
bool shf_peek(struct sheaf_step *step, const char *family, const char *name,
              struct shf_lt_tensor *t);
/* Frees what was kept for looking up; the table itself is the step's. */
void shf_peek_release(struct sheaf_step *step);
/* step_open.c: read what sleeping left unread. 0 for a step that is awake, however broken; a
 * failure sticks as cat_rc. [local: no other rank is there] */
int shf_step_wake(struct sheaf_step *step, struct sheaf_error *err);
#endif
