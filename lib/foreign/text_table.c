/* SPDX-License-Identifier: Apache-2.0 */
#include "text_table.h"
#include <string.h>

#define SLOTS_MIN 64

/* Eight bytes at a time. Names often differ in few digits, so each step brings the upper bits of a
 * product, which depend on all bytes, down to the lower ones. */
static uint64_t table_hash(const char *s, uint32_t n)
{
	uint64_t h = n, v;

	for (; n; s += v, n -= (uint32_t)v) {
		uint64_t some = 0;

		v = n < 8 ? n : 8;
		memcpy(&some, s, v);
		h = (h ^ some) * UINT64_C(0x9E3779B97F4A7C15);
		h ^= h >> 32;
	}
	return h;
}

static bool text_is(const struct shf_text *x, const char *s, uint32_t n)
{
	return x->n == n && (x->s == s || memcmp(x->s, s, n) == 0);
}

/* Returns the slot of a text, or, if the table does not have it, the free slot for it. The table
 * must have a free slot. */
static uint32_t *text_slot(const struct shf_text_table *t, const char *s, uint32_t n)
{
	uint32_t *slots = (uint32_t *)(void *)t->slots.data;
	size_t size = t->slots.len / sizeof(*slots), i = (size_t)(table_hash(s, n) & (size - 1));

	for (; slots[i]; i = (i + 1) & (size - 1)) {
		const struct shf_text *x = shf_text_at(t, slots[i] - 1);

		if (text_is(x, s, n))
			break;
	}
	return &slots[i];
}

uint32_t shf_text_count(const struct shf_text_table *t)
{
	return (uint32_t)(t->texts.len / sizeof(struct shf_text));
}

uint32_t shf_text_seek(const struct shf_text_table *t, const char *s, uint32_t n)
{
	const uint32_t *slot = t->slots.len ? text_slot(t, s, n) : NULL;

	return slot && *slot ? *slot - 1 : SHF_TEXT_NONE;
}

/* Callers often ask for one text many times in a row, or for all texts in the order in which they
 * were added. These are found without the slots, which are all over memory. */
uint32_t shf_text_find(struct shf_text_table *t, const char *s, uint32_t n)
{
	uint32_t i;

	for (i = t->last; i < shf_text_count(t) && i - t->last < 2; i++)
		if (text_is(shf_text_at(t, i), s, n))
			break;
	if (i >= shf_text_count(t) || i - t->last == 2)
		i = shf_text_seek(t, s, n);
	if (i != SHF_TEXT_NONE)
		t->last = i;
	return i;
}

/* Makes the table so large that, with one more text, at most half of its slots are taken. */
static bool text_grow(struct shf_text_table *t)
{
	size_t size = t->slots.len / sizeof(uint32_t), n = shf_text_count(t);

	if (2 * (n + 1) <= size)
		return true;
	shf_buf_reset(&t->slots);
	if (!shf_buf_extend(&t->slots, (size ? 2 * size : SLOTS_MIN) * sizeof(uint32_t)))
		return false;
	for (uint32_t i = 0; i < n; i++)
		*text_slot(t, shf_text_at(t, i)->s, shf_text_at(t, i)->n) = i + 1;
	return true;
}

uint32_t shf_text_add(struct shf_text_table *t, const char *s, uint32_t n)
{
	const struct shf_text text = { s, n };
	uint32_t i = shf_text_find(t, s, n);

	if (i != SHF_TEXT_NONE)
		return i;
	i = shf_text_count(t);
	if (i >= SHF_TEXT_NONE - 1 || !text_grow(t))
		return SHF_TEXT_NONE;
	shf_buf_add(&t->texts, &text, sizeof(text));
	if (t->texts.oom)
		return SHF_TEXT_NONE;
	*text_slot(t, s, n) = i + 1;
	t->last = i;
	return i;
}

void shf_text_table_release(struct shf_text_table *t)
{
	shf_buf_release(&t->texts);
	shf_buf_release(&t->slots);
}
