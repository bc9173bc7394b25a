/* SPDX-License-Identifier: Apache-2.0 */
/* Cards of images in memory, and the names that agents keep them under. What is taken says nothing
 * that lies outside, and is written as it was. */
#include "image_card.h"
#include "fuzz.h"

static void check_card(const uint8_t *data, size_t size)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_buf out = SHF_BUF_INIT;
	struct shf_card c;

	if (shf_card_decode_body(&c, &arena, data, size) == 0) {
		MUST(c.step >= 0 && c.rank >= 0 && c.rank < c.ranks);
		for (size_t i = 0; i < c.segs_n; i++)
			MUST(c.segs[i].lo < c.segs[i].hi && c.segs[i].image <= c.image_bytes &&
			     c.segs[i].hi - c.segs[i].lo <= c.image_bytes - c.segs[i].image);
		shf_card_encode(&out, &c);
		MUST(!out.oom && out.len == size && memcmp(out.data, data, size) == 0);
	}
	shf_buf_release(&out);
	shf_arena_release(&arena);
}

static void check_name(const uint8_t *data, size_t size)
{
	char name[200] = "", job[33], again[SHF_KEEP_NAME];
	int rank, image;
	bool card;

	if (size)
		memcpy(name, data, size < sizeof(name) ? size : sizeof(name) - 1);
	if (!shf_card_parse(name, job, &rank, &image, &card))
		return;
	MUST(rank >= 0 && image >= 0 && strlen(job) <= 32);
	shf_card_name(again, job, rank, image, card);
	MUST(shf_card_parse(again, job, &rank, &image, &card) || strlen(job) < 32);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_card(data, size);
	check_name(data, size);
	return 0;
}
