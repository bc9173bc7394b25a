/* SPDX-License-Identifier: Apache-2.0 */
/* A log of finished saves for people and their tools. */
#ifndef SHF_METRICS_H
#define SHF_METRICS_H
#include "store.h"

#define SHF_METRICS_MAX (UINT64_C(1) << 20)
/* Appends a line, given without its newline. The line is not made durable. A file that would exceed
 * SHF_METRICS_MAX bytes becomes metrics.1.jsonl first. Only the writer calls this. */
int shf_metrics_add(struct shf_store *s, const char *line, struct sheaf_error *err);
#endif
