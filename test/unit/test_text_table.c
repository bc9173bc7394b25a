/* SPDX-License-Identifier: Apache-2.0 */
/* Texts are numbered in the order in which they were added, however many there are. */
#include "text_table.h"
#include <stdio.h>
#include <string.h>
#include "t.h"

#define MANY 5000

TEST(each_text_has_the_number_of_when_it_was_added)
{
	static char texts[MANY][12];
	struct shf_text_table t = { 0 };

	CHECK(shf_text_find(&t, "a", 1) == SHF_TEXT_NONE);
	for (uint32_t i = 0; i < MANY; i++) {
		snprintf(texts[i], sizeof(texts[i]), "%u", i * 7919);
		CHECK_INT(shf_text_add(&t, texts[i], (uint32_t)strlen(texts[i])), i);
	}
	CHECK_INT(shf_text_count(&t), MANY);
	for (uint32_t i = MANY; i-- > 0;) {
		char copy[12];

		memcpy(copy, texts[i], sizeof(copy));
		CHECK_INT(shf_text_find(&t, copy, (uint32_t)strlen(copy)), i);
		CHECK_INT(shf_text_add(&t, copy, (uint32_t)strlen(copy)), i);
		CHECK(shf_text_at(&t, i)->s == texts[i]);
	}
	CHECK_INT(shf_text_count(&t), MANY);
	CHECK(shf_text_find(&t, texts[9], 1) == SHF_TEXT_NONE || strlen(texts[9]) == 1);
	shf_text_table_release(&t);
}

TEST(a_text_ends_where_its_length_says)
{
	struct shf_text_table t = { 0 };

	CHECK_INT(shf_text_add(&t, "", 0), 0);
	CHECK_INT(shf_text_add(&t, "ab\0c", 4), 1);
	CHECK_INT(shf_text_add(&t, "ab\0d", 4), 2);
	CHECK_INT(shf_text_add(&t, "ab\0c", 2), 3);
	CHECK_INT(shf_text_find(&t, "", 0), 0);
	CHECK_INT(shf_text_find(&t, "ab\0c", 4), 1);
	CHECK(shf_text_find(&t, "ab\0c", 3) == SHF_TEXT_NONE);
	shf_text_table_release(&t);
}
