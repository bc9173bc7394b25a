/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of one rank that are the same items of a tensor in two places of its memory. Only one of
 * the two is saved, and a load fills both from it. If they are two tensors that were given one name
 * by mistake, the second one would be lost, and no later check could find that. */
#ifndef SHF_SLICE_TWINS_H
#define SHF_SLICE_TWINS_H
#include "state.h"

/* EINVAL, with both slices in the message, if the state has such slices and neither has
 * SHEAF_SLICE_COPY. ENOMEM. Not compared are slices without memory, tied ones, averages, boxes that
 * overlap without being equal, and flat ranges whose memory has different strides. [local] */
int shf_twins_check(struct sheaf_state *state, struct sheaf_error *err);
#endif
