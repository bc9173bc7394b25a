/* SPDX-License-Identifier: Apache-2.0 */
/* The have file of another agent, as it is and with a sum that is right. What is taken is bounded,
 * and is taken again when it is written anew. */
#include "fuzz.h"
#include "have_table.h"
#include "run_files.h"

#define JOB "0123456789abcdef0123456789abcdef"

static struct shf_card_info card_at(const struct shf_buf *cards, size_t i)
{
	struct shf_card_info c;

	memcpy(&c, cards->data + i * sizeof(c), sizeof(c));
	return c;
}

static void check_same(const struct shf_card_info *a, const struct shf_card_info *b)
{
	MUST(!strcmp(a->job, b->job) && !strcmp(a->session, b->session));
	MUST(a->step == b->step && a->rank == b->rank && a->ranks == b->ranks);
	MUST(a->base == b->base && a->next == b->next && a->from == b->from && a->due == b->due);
	MUST(a->tries == b->tries && a->bytes == b->bytes);
}

/* The n bytes have no others behind them that could be read. */
static void check_text(const uint8_t *bytes, size_t n)
{
	struct shf_buf cards = SHF_BUF_INIT, again = SHF_BUF_INIT, text = SHF_BUF_INIT;
	uint8_t *alone = malloc(n ? n : 1);
	int32_t lowest = INT32_MAX;

	MUST(alone);
	if (n)
		memcpy(alone, bytes, n);
	if (shf_have_get(&cards, JOB, alone, n)) {
		size_t of = cards.len / sizeof(struct shf_card_info);

		MUST(!cards.oom && cards.len % sizeof(struct shf_card_info) == 0);
		for (size_t i = 0; i < of; i++) {
			struct shf_card_info c = card_at(&cards, i);

			MUST(shf_id_is_valid(c.session, 32) && !strcmp(c.job, JOB));
			MUST(c.step >= 0 && c.rank >= 0 && c.rank < c.ranks && !c.guest);
			lowest = c.rank < lowest ? c.rank : lowest;
		}
		MUST(shf_have_put(&text, &cards, JOB) == lowest && !text.oom);
		MUST(shf_have_get(&again, JOB, text.data, text.len) && again.len == cards.len);
		for (size_t i = 0; i < of; i++) {
			struct shf_card_info a = card_at(&cards, i), b = card_at(&again, i);

			check_same(&a, &b);
		}
	} else {
		MUST(cards.len == 0);
	}
	shf_buf_release(&cards);
	shf_buf_release(&again);
	shf_buf_release(&text);
	free(alone);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct shf_buf sealed = SHF_BUF_INIT;

	check_text(data, size);
	if (size)
		shf_buf_add(&sealed, data, size);
	MUST(shf_buf_reserve(&sealed, 32) == 0); /* an empty one has no address */
	shf_line_sum(&sealed, 0);
	MUST(!sealed.oom);
	check_text(sealed.data, sealed.len);
	shf_buf_release(&sealed);
	return 0;
}
