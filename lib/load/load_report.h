/* SPDX-License-Identifier: Apache-2.0 */
/* What a load tells its caller of all ranks: numbers that each rank has a part of. Whoever sums
 * words over all ranks takes these along. */
#ifndef SHF_LOAD_REPORT_H
#define SHF_LOAD_REPORT_H
#include "load.h"

#define SHF_REPORT_WORDS (2 * SHF_T_KINDS + 6 + SHF_EMAS_MAX)
/* This rank's part, once the tally has met and nothing is read any more. [local] */
void shf_report_put(const struct shf_load *load, uint64_t x[SHF_REPORT_WORDS]);
/* The report from the sums over all ranks; also which averages were filled on any of them. [local]
 */
void shf_report_take(struct shf_load *load, const uint64_t x[SHF_REPORT_WORDS]);
#endif
