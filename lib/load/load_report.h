/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a load has sums over all ranks. Each rank writes its part into
 * SHF_LOAD_REPORT_WORDS words, the caller sums these over all ranks, along with others if it can,
 * and each rank reads the report from the sums. */
#ifndef SHF_LOAD_REPORT_H
#define SHF_LOAD_REPORT_H
#include "load.h"

#define SHF_LOAD_REPORT_WORDS (2 * SHF_COUNT_KINDS + 6 + SHF_EMAS_MAX)
/* Writes this rank's part. Call it when this rank has read everything and the tally has been
 * exchanged (shf_tensor_counts_exchange, or the plan). [local] */
void shf_load_report_put(const struct shf_load *load, uint64_t x[SHF_LOAD_REPORT_WORDS]);
/* Sets load->report from the sums over all ranks, and load->emas_filled. [local] */
void shf_load_report_take(struct shf_load *load, const uint64_t x[SHF_LOAD_REPORT_WORDS]);
#endif
