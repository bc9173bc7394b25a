/* SPDX-License-Identifier: Apache-2.0 */
/* A table of different texts, numbered in the order in which they were added. The texts are
 * borrowed. */
#ifndef SHF_TEXT_TABLE_H
#define SHF_TEXT_TABLE_H
#include "mem.h"

struct shf_text { const char *s; uint32_t n; };
struct shf_text_table {
	struct shf_buf texts;           /* owned; struct shf_text, by number */
	struct shf_buf slots;           /* owned; uint32_t: number + 1 by hash; 0: free */
	uint32_t last;                  /* number of the text that was found last */
};
#define SHF_TEXT_NONE UINT32_MAX
/* Returns the number of a text, or SHF_TEXT_NONE if it is not in the table. */
uint32_t shf_text_find(struct shf_text_table *t, const char *s, uint32_t n);
/* Returns the number of a text, which is added if it is not in the table. SHF_TEXT_NONE: no
 * memory. */
uint32_t shf_text_add(struct shf_text_table *t, const char *s, uint32_t n);
uint32_t shf_text_count(const struct shf_text_table *t);
static inline const struct shf_text *shf_text_at(const struct shf_text_table *t, uint32_t i)
{
	return (const struct shf_text *)(const void *)t->texts.data + i;
}
void shf_text_table_release(struct shf_text_table *t);
#endif
