/* SPDX-License-Identifier: Apache-2.0 */
/* A step that is opened by a single process starts out asleep: only the head of its table of sums
 * has been read. A lookup finds a tensor by binary search, which reads only the pages of the table
 * that it needs and checks each against the page table. The shape is read from the header of the
 * one file that holds the tensor, checked by its blocks. Any call that needs more, and any lookup
 * that finds an error, wakes the step: the whole table and all headers are then read and checked.
 * If several ranks open a step, they read and check everything at once. */
#ifndef SHF_STEP_LOOKUP_H
#define SHF_STEP_LOOKUP_H
#include "step.h"

/* Reads the head of the table and puts the step to sleep. Returns false if the table does not look
 * right: then the caller must read the whole table. [local] */
bool shf_step_lookup_init(struct sheaf_checkpoint *step);
/* Looks up the tensor family/name in a step that is asleep, and reads the sums of its blocks.
 * Returns true and fills in *t, whose strings live as long as the step. Returns false if the lookup
 * finds nothing or meets an error; the caller then wakes the step to find out which. [local] */
bool shf_step_lookup(struct sheaf_checkpoint *step, const char *family, const char *name,
                     struct shf_lt_tensor *t);
/* Frees what lookups need, except the table, which belongs to the step. */
void shf_step_lookup_release(struct sheaf_checkpoint *step);
#endif
