/* SPDX-License-Identifier: Apache-2.0 */
/* A hash of all that a state describes, except where its memory is. */
#ifndef SHF_STATE_HASH_H
#define SHF_STATE_HASH_H
#include "state.h"

/* Does what sheaf-state.h says of sheaf_state_hash. [local] */
uint64_t shf_state_hash(const struct sheaf_state *state);
#endif
