/* SPDX-License-Identifier: Apache-2.0 */
/* Cards of images (lib/memory/image_card.h), in memory that any process of this user may have
 * written. */
#include <stdlib.h>
#include <string.h>
#include "image_card.h"
#include "crc64.h"
#include "sheaf.h"
#include "t.h"

#define SESSION "0123456789abcdef0123456789abcdef"
#define RUN_ID "fedcba9876543210fedcba9876543210"

static const struct shf_card_seg segs[] = { { 0, 0, 4096, 0 }, { 1, 100, 300, 4096 } };
static const struct shf_card_small_file smalls[] = { { "sheaf.json", (const uint8_t *)"{}", 2 },
	{ "model.safetensors.index.json", (const uint8_t *)"nothing", 7 } };

static struct shf_card card_of(void)
{
	return (struct shf_card){ .session = SESSION, .run = RUN_ID, .step = 7, .rank = 1,
		.ranks = 3, .image_bytes = 5000, .segs = (void *)(uintptr_t)segs, .segs_n = 2,
		.smalls = (void *)(uintptr_t)smalls, .smalls_n = 2 };
}

/* All that it says lies inside. */
static void is_inside(const struct shf_card *c, const uint8_t *body, size_t n)
{
	CHECK(c->step >= 0 && c->rank >= 0 && c->rank < c->ranks);
	for (size_t i = 0; i < c->segs_n; i++)
		CHECK(c->segs[i].lo < c->segs[i].hi && c->segs[i].image <= c->image_bytes &&
		      c->segs[i].hi - c->segs[i].lo <= c->image_bytes - c->segs[i].image);
	for (size_t i = 0; i < c->smalls_n; i++)
		CHECK(c->smalls[i].bytes >= body && c->smalls[i].n <= n &&
		      c->smalls[i].bytes + c->smalls[i].n <= body + n && c->smalls[i].name);
}

static int body_of(const uint8_t *bytes, size_t n)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_card c;
	uint8_t *exact = malloc(n ? n : 1);     /* so that a look beyond is seen */
	int rc;

	memcpy(exact, bytes, n);
	rc = shf_card_decode_body(&c, &arena, exact, n);
	CHECK(rc == 0 || rc == SHEAF_ECORRUPT);
	if (rc == 0)
		is_inside(&c, exact, n);
	shf_arena_release(&arena);
	free(exact);
	return rc;
}

TEST(a_card_comes_back)
{
	struct shf_buf out = SHF_BUF_INIT;
	struct shf_arena arena = { NULL, 0 };
	struct shf_card in = card_of(), c;

	shf_card_encode(&out, &in);
	CHECK_INT(shf_card_decode_body(&c, &arena, out.data, out.len), 0);
	CHECK_STR(c.session, SESSION);
	CHECK_STR(c.run, RUN_ID);
	CHECK(c.step == 7 && c.rank == 1 && c.ranks == 3 && c.image_bytes == 5000);
	CHECK(c.segs_n == 2 && c.segs[1].file == 1 && c.segs[1].lo == 100 &&
	      c.segs[1].hi == 300 && c.segs[1].image == 4096);
	CHECK(c.smalls_n == 2 && c.smalls[1].n == 7);
	CHECK_STR(c.smalls[0].name, "sheaf.json");
	CHECK(memcmp(c.smalls[1].bytes, "nothing", 7) == 0);
	shf_arena_release(&arena);
	shf_buf_release(&out);
}

TEST(whatever_a_byte_of_it_is_a_card_says_what_lies_in_it_or_nothing)
{
	static const uint8_t values[] = { 0, 1, 2, 0x7f, 0x80, 0xfe, 0xff };
	struct shf_buf out = SHF_BUF_INIT;
	struct shf_card in = card_of();
	long good = 0, bad = 0;

	shf_card_encode(&out, &in);
	for (size_t n = 0; n < out.len; n++)
		CHECK_INT(body_of(out.data, n), SHEAF_ECORRUPT);
	shf_buf_u8(&out, 0);
	CHECK_INT(body_of(out.data, out.len), SHEAF_ECORRUPT);
	out.len--;
	for (size_t at = 0; at < out.len; at++)
		for (size_t k = 0; k < sizeof(values); k++) {
			uint8_t was = out.data[at];
			int rc;

			out.data[at] = values[k];
			rc = body_of(out.data, out.len);
			out.data[at] = was;
			good += rc == 0;
			bad += rc != 0;
		}
	CHECK(good > 100 && bad > 300);
	shf_buf_release(&out);
}

static int decode(struct shf_shm *shm)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_card c;
	int rc = shf_card_decode(&c, &arena, shm);

	shf_arena_release(&arena);
	return rc;
}

TEST(a_card_is_whole_or_none)
{
	struct shf_buf out = SHF_BUF_INIT;
	struct shf_card in = card_of();
	struct shf_shm shm = { NULL, 0, -1 };
	struct shf_card_head *h;

	shf_card_encode(&out, &in);
	shm.bytes = sizeof(*h) + out.len;
	shm.base = calloc(1, shm.bytes);
	h = shf_card_head(&shm);
	memcpy(h + 1, out.data, out.len);
	h->body_bytes = out.len;
	h->whole = shf_crc64(out.data, out.len) | 1;
	CHECK_INT(decode(&shm), SHEAF_ECORRUPT);
	h->magic = SHF_CARD_MAGIC;
	CHECK_INT(decode(&shm), 0);
	h->body_bytes++;
	CHECK_INT(decode(&shm), SHEAF_ECORRUPT);
	h->body_bytes = UINT64_MAX;
	CHECK_INT(decode(&shm), SHEAF_ECORRUPT);
	h->body_bytes = out.len;
	h->whole ^= 2;
	CHECK_INT(decode(&shm), SHEAF_ECORRUPT);
	h->whole = 0;
	CHECK_INT(decode(&shm), SHEAF_ECORRUPT);
	shm.bytes = sizeof(*h) - 1;
	CHECK_INT(decode(&shm), SHEAF_ECORRUPT);
	free(shm.base);
	shf_buf_release(&out);
}

TEST(names_of_cards_are_told_from_others)
{
	static const char *const others[] = { "", SESSION, SESSION ".", SESSION "-1.2.card",
		SESSION ".1.2", SESSION ".1.2.", SESSION ".1.2.cards", SESSION ".x.2.card",
		SESSION ".1.x.card", SESSION "..2.card", SESSION ".1.99999999999999999999.card",
		SESSION ".1.2147483648.image", SESSION ".-1.2.card", "0" SESSION ".1.2.card" };
	char name[SHF_KEEP_NAME], job[33];
	int rank, image;
	bool card;

	for (int k = 0; k < 2; k++) {
		shf_card_name(name, SESSION, 12, 65, k);
		CHECK(shf_card_parse(name, job, &rank, &image, &card));
		CHECK(rank == 12 && image == 65 && card == k);
		CHECK_STR(job, SESSION);
	}
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		CHECK(!shf_card_parse(others[i], job, &rank, &image, &card));
}
