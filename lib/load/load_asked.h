/* SPDX-License-Identifier: Apache-2.0 */
/* What any rank of a load asks for, known on all ranks. */
#ifndef SHF_LOAD_ASKED_H
#define SHF_LOAD_ASKED_H
#include "load.h"

/* Memory for it, before ranks meet. ENOMEM; to be freed also then. [local] */
int shf_asked_new(struct shf_load *load, struct sheaf_error *err);
void shf_asked_free(struct shf_load *load);
/* Brings together what the targets of all ranks ask for, and how much they tell each home.
 * [collective] */
int shf_asked_unite(struct shf_load *load, struct sheaf_error *err);
/* For after that. Has some rank a slice that names the tensor, or is filled from it? Does some rank
 * want bytes of it in the plan? Has some rank a slice of the family? [local] */
bool shf_asked_has(const struct shf_load *load, size_t tensor);
bool shf_asked_wanted(const struct shf_load *load, size_t tensor);
bool shf_asked_family(const struct shf_load *load, size_t family);
#endif
