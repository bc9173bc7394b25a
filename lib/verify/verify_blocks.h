/* SPDX-License-Identifier: Apache-2.0 */
/* Reads every block of a step and compares its sum. [local] */
#ifndef SHF_VERIFY_BLOCKS_H
#define SHF_VERIFY_BLOCKS_H
#include "verify.h"

/* Reads and checks this rank's share of all blocks. */
void shf_verify_data(struct shf_verify *v);
#endif
