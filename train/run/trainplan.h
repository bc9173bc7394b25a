/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that each rank of a job needs, computed without the other ranks. It does not include
 * small lists, messages between ranks, mapped files and libraries. */
#ifndef TRAINPLAN_H
#define TRAINPLAN_H
#include <jansson.h>

#include "trainsetup.h"

/* Sets bytes[kind] to the memory that a rank needs. [local] */
int tr_plan_rank(const struct tr_setup *s, int rank, int64_t bytes[TR_MEMORY_KINDS],
		 struct tr_error *err);
/* Returns an object with the bytes of each kind. */
json_t *tr_json_memory(const int64_t bytes[TR_MEMORY_KINDS]);
/* Prints the memory of each rank of the mesh: a table, or with json a line of JSON for each. */
int tr_plan_print(struct tr_opts *o, int json, struct tr_error *err);
#endif
