/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a have file, which lists the cards of a job that one agent has (flush_nodes.h): a
 * line for each card, then a checksum line. */
#ifndef SHF_HAVE_TABLE_H
#define SHF_HAVE_TABLE_H
#include "memory_steps.h"

/* Appends the text for those of the cards (struct shf_card_info) that belong to the job. Returns
 * the lowest rank of them; INT32_MAX: none belongs to it. */
int32_t shf_have_put(struct shf_buf *text, const struct shf_buf *cards, const char *job);
/* Parses the text and appends its cards, as cards of the job. False: the text is incomplete or
 * invalid, and nothing is appended. The caller checks cards->oom. */
bool shf_have_get(struct shf_buf *cards, const char *job, const uint8_t *text, size_t n);
#endif
