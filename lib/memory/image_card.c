/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and decodes cards (image_card.h).
 *
 * Body, little-endian: session, run (32 characters each), u64 step, u32 rank, u32 ranks, u64 image
 * bytes, u64 n segs: u32 file, u64 lo, hi, image; u32 m smalls: u16 name bytes, name, u64 bytes;
 * then the bytes of all small files, one after the other.
 *
 * The body is decoded as carefully as a file: counts are compared with the number of bytes that
 * follow before anything is allocated, and ranges with the size of the image. */
#include "image_card.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "sheaf.h"

/* The number is a hash, so that one comparison shows whether the disk is still in the state that a
 * step in memory follows. */
uint64_t shf_card_disk_state(int64_t step, const char *session, uint64_t rewinds)
{
	char text[96];
	int n = snprintf(text, sizeof(text), "%lld:%.33s:%llu", (long long)step,
	                 step < 0 ? "" : session, (unsigned long long)rewinds);

	return shf_crc64(text, (size_t)n);
}

void shf_card_encode(struct shf_buf *out, const struct shf_card *c)
{
	shf_buf_add(out, c->session, 32);
	shf_buf_add(out, c->run, 32);
	shf_buf_u64(out, (uint64_t)c->step);
	shf_buf_u32(out, (uint32_t)c->rank);
	shf_buf_u32(out, (uint32_t)c->ranks);
	shf_buf_u64(out, c->image_bytes);
	shf_buf_u64(out, c->segs_n);
	for (size_t i = 0; i < c->segs_n; i++) {
		shf_buf_u32(out, c->segs[i].file);
		shf_buf_u64(out, c->segs[i].lo);
		shf_buf_u64(out, c->segs[i].hi);
		shf_buf_u64(out, c->segs[i].image);
	}
	shf_buf_u32(out, (uint32_t)c->smalls_n);
	for (size_t i = 0; i < c->smalls_n; i++) {
		shf_buf_u16(out, (uint16_t)strlen(c->smalls[i].name));
		shf_buf_adds(out, c->smalls[i].name);
		shf_buf_u64(out, c->smalls[i].n);
	}
	for (size_t i = 0; i < c->smalls_n; i++)
		shf_buf_add(out, c->smalls[i].bytes, (size_t)c->smalls[i].n);
}

/* Reads a string of 32 characters, without a NUL. */
static void get_text(struct shf_cur *c, char out[33])
{
	const uint8_t *p = shf_cur_bytes(c, 32);

	if (p)
		memcpy(out, p, 32);
	out[32] = '\0';
}

/* Reads the segments. Each takes 28 bytes, so a number of them that the rest of the body cannot
 * hold is damage. */
static int get_segs(struct shf_card *card, struct shf_arena *arena, struct shf_cur *c)
{
	card->segs_n = (size_t)shf_cur_u64(c);
	if (card->segs_n > (size_t)(c->end - c->p) / 28)
		return SHEAF_ECORRUPT;
	card->segs = shf_arena_alloc(arena, card->segs_n + 1, sizeof(*card->segs));
	if (!card->segs)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < card->segs_n; i++) {
		struct shf_card_seg *g = &card->segs[i];

		g->file = shf_cur_u32(c);
		g->lo = shf_cur_u64(c);
		g->hi = shf_cur_u64(c);
		g->image = shf_cur_u64(c);
		if (c->bad || g->lo >= g->hi || g->image > card->image_bytes ||
		    g->hi - g->lo > card->image_bytes - g->image)
			return SHEAF_ECORRUPT;
	}
	return 0;
}

/* Reads the small files. Each takes 10 bytes or more, which bounds their number. */
static int get_smalls(struct shf_card *card, struct shf_arena *arena, struct shf_cur *c)
{
	card->smalls_n = shf_cur_u32(c);
	if (card->smalls_n > (size_t)(c->end - c->p) / 10)
		return SHEAF_ECORRUPT;
	card->smalls = shf_arena_alloc(arena, card->smalls_n + 1, sizeof(*card->smalls));
	if (!card->smalls)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < card->smalls_n; i++) {
		size_t len = shf_cur_u16(c);
		const char *name = (const char *)shf_cur_bytes(c, len);

		card->smalls[i].n = shf_cur_u64(c);
		if (!name || memchr(name, '\0', len))
			return SHEAF_ECORRUPT;
		card->smalls[i].name = shf_arena_strdup(arena, name, len);
		if (!card->smalls[i].name)
			return SHEAF_ENOMEM;
	}
	for (size_t i = 0; i < card->smalls_n; i++) {
		if (card->smalls[i].n > (uint64_t)(c->end - c->p))
			return SHEAF_ECORRUPT;
		card->smalls[i].bytes = shf_cur_bytes(c, (size_t)card->smalls[i].n);
	}
	return 0;
}

int shf_card_decode_body(struct shf_card *card, struct shf_arena *arena, const uint8_t *body,
                         size_t n)
{
	struct shf_cur c = { body, body + n, false };
	int rc;

	*card = (struct shf_card){ .step = -1 };
	get_text(&c, card->session);
	get_text(&c, card->run);
	card->step = (int64_t)shf_cur_u64(&c);
	card->rank = (int32_t)shf_cur_u32(&c);
	card->ranks = (int32_t)shf_cur_u32(&c);
	card->image_bytes = shf_cur_u64(&c);
	rc = get_segs(card, arena, &c);
	if (rc == 0)
		rc = get_smalls(card, arena, &c);
	if (rc == 0 && (c.bad || c.p != c.end || card->step < 0 || card->ranks < 1 ||
	                card->rank < 0 || card->rank >= card->ranks))
		rc = SHEAF_ECORRUPT;
	return rc;
}

/* The job writes `whole` after the body, and this function reads `whole` before the body (acquire),
 * so a body whose CRC matches is complete. */
int shf_card_decode(struct shf_card *card, struct shf_arena *arena, const struct shf_shm *shm)
{
	const struct shf_card_head *h = shm->base;
	const uint8_t *body = (const uint8_t *)(h + 1);
	uint64_t whole;

	*card = (struct shf_card){ .step = -1 };
	if (shm->bytes < sizeof(*h) || h->magic != SHF_CARD_MAGIC)
		return SHEAF_ECORRUPT;
	whole = atomic_load_explicit(&h->whole, memory_order_acquire);
	/* A job that is changing the card has set `whole` to 0 first (M1). */
	if (!whole || h->body_bytes > shm->bytes - sizeof(*h) ||
	    (shf_crc64(body, (size_t)h->body_bytes) | 1) != whole)
		return SHEAF_ECORRUPT;
	return shf_card_decode_body(card, arena, body, (size_t)h->body_bytes);
}

void shf_card_name(char out[SHF_KEEP_NAME], const char *job, int rank, int image, bool card)
{
	snprintf(out, SHF_KEEP_NAME, "%.32s.%d.%d.%s", job, rank, image, card ? "card" : "image");
}

/* Reads a decimal number and the dot after it, and moves *p past them. */
static bool card_number(const char **p, int *out)
{
	char *end;
	long v;

	if (**p < '0' || **p > '9')
		return false;
	v = strtol(*p, &end, 10);
	if (v > INT32_MAX || *end != '.')
		return false;
	*out = (int)v;
	*p = end + 1;
	return true;
}

/* An agent may have memory under other names, for example of a newer version; they are not
 * cards. */
bool shf_card_parse(const char *name, char job[33], int *rank, int *image, bool *card)
{
	const char *p = name + 33;

	if (strnlen(name, 34) < 34 || name[32] != '.')
		return false;
	memcpy(job, name, 32);
	job[32] = '\0';
	if (!card_number(&p, rank) || !card_number(&p, image))
		return false;
	*card = strcmp(p, "card") == 0;
	return *card || strcmp(p, "image") == 0;
}
