/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table that numbers different texts from 0 on, in the order in which they are added. It
 * does not copy the texts. */
#ifndef SHF_TEXT_TABLE_H
#define SHF_TEXT_TABLE_H
#include "mem.h"

struct shf_text { const char *s; uint32_t n; };
struct shf_text_table {
	struct shf_buf texts;           /* owned; of struct shf_text, by number */
	struct shf_buf slots;           /* owned; of uint32_t, by hash: number + 1 of a text; 0: the
	                                 * slot is free */
	uint32_t last;                  /* number of the text that the last call found or added */
};
#define SHF_TEXT_NONE UINT32_MAX
/* Returns the number that a text of n bytes has in the table, or SHF_TEXT_NONE if the table does
 * not have it. */
uint32_t shf_text_find(struct shf_text_table *t, const char *s, uint32_t n);
/* Does the same, for threads that look for texts at the same time. */
uint32_t shf_text_seek(const struct shf_text_table *t, const char *s, uint32_t n);
/* Adds a text, unless the table has it, and returns its number. s must outlive the table. Returns
 * SHF_TEXT_NONE if there is no memory. */
uint32_t shf_text_add(struct shf_text_table *t, const char *s, uint32_t n);
uint32_t shf_text_count(const struct shf_text_table *t);
static inline const struct shf_text *shf_text_at(const struct shf_text_table *t, uint32_t i)
{
	return (const struct shf_text *)(const void *)t->texts.data + i;
}
void shf_text_table_release(struct shf_text_table *t);
#endif
