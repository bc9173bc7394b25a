/* SPDX-License-Identifier: Apache-2.0 */
/* What the small files of a trainer with Paddle say, as notes: its state, its scheduler and its
 * loss scaler, the states of its random generators, and whether the save has finished. */
#ifndef SHF_PADDLE_FACTS_H
#define SHF_PADDLE_FACTS_H
#include "foreign_st.h"

int shf_paddle_facts(struct shf_foreign *f, const struct shf_listing *l, struct sheaf_error *err);
#endif
