/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors and families the ranks of a load ask for. Every rank learns this of all ranks. */
#ifndef SHF_LOAD_ASKED_H
#define SHF_LOAD_ASKED_H
#include "load.h"

/* Allocates the memory that shf_load_asked_unite needs, so that the operation itself cannot run out
 * of it. ENOMEM. Call shf_load_asked_free in any case. [local] */
int shf_load_asked_new(struct shf_load *load, struct sheaf_error *err);
void shf_load_asked_free(struct shf_load *load);
/* Unites what the targets of all ranks ask for, and sets load->told, the size of the plan's
 * messages to this rank, by summing load->tells.to over all ranks. [collective] */
int shf_load_asked_unite(struct shf_load *load, struct sheaf_error *err);
/* Valid after shf_load_asked_unite; the answers are equal on all ranks. has: some rank has a slice
 * of that name, or fills one from that tensor. wanted: some rank wants bytes of the tensor in the
 * plan. family: some rank has a slice of the family. [local] */
bool shf_load_asked_has(const struct shf_load *load, size_t tensor);
bool shf_load_asked_wanted(const struct shf_load *load, size_t tensor);
bool shf_load_asked_family(const struct shf_load *load, size_t family);
#endif
