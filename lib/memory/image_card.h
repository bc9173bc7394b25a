/* SPDX-License-Identifier: Apache-2.0 */
/* The card of an image: what of which step lies in it, in memory that an agent keeps with it, so
 * that whoever comes after a dead trainer can read the step out of its memory.
 *
 * M1. A card is whole only while its image has all bytes of its step: who begins to copy into an
 *     image makes its card nothing first, and it is made whole when the bytes and what proves them
 *     have been agreed.
 * M2. A step is there when the cards of all ranks that saved it are whole, and then it is right or
 *     its sums show that it is not. Nobody needs to have heard that it was committed.
 * M3. The card of the newest step that is there is made nothing only when a newer one is.
 */
#ifndef SHF_IMAGE_CARD_H
#define SHF_IMAGE_CARD_H
#include <stdatomic.h>
#include "layout.h"
#include "mem.h"
#include "sys.h"

#define SHF_CARD_MAGIC UINT64_C(0x0002647261636673)
struct shf_card_head {          /* where the memory begins; the body follows */
	uint64_t magic, body_bytes;
	_Atomic uint64_t whole;         /* CRC of the body, never 0; 0: nothing is to be had */
	/* Which step on disk this one follows (shf_card_on): the newest there must be one of the
	 * two, or somebody has rewound. The second is being published. */
	_Atomic uint64_t base, next;
	_Atomic uint64_t due;           /* not 0: to be on disk, and is not yet */
	_Atomic uint64_t tries;         /* how many have loaded it */
	_Atomic uint64_t turn;          /* of its job: larger than of those it found here */
};
/* step -1: an empty run; rewinds: of the store */
uint64_t shf_card_on(int64_t step, const char *session, uint64_t rewinds);

struct shf_card_seg {           /* bytes [lo, hi) of a file lie at `image` */
	uint32_t file;
	uint64_t lo, hi, image;
};
struct shf_card_small {         /* a small file of the step */
	const char *name;
	const uint8_t *bytes;
	uint64_t n;
};
/* A card, decoded. */
struct shf_card {
	char session[33], run[33];
	int64_t step;
	int32_t rank, ranks;
	uint64_t image_bytes;
	struct shf_card_seg *segs; size_t segs_n;
	struct shf_card_small *smalls; size_t smalls_n; /* manifest first; none: another card of
	                                                 * this node has them */
};
/* Appends the body of a card. */
void shf_card_encode(struct shf_buf *out, const struct shf_card *card);
/* What encode has made; strings and bytes of *card point into it and the arena. ECORRUPT. */
int shf_card_body(struct shf_card *card, struct shf_arena *arena, const uint8_t *body, size_t n);
/* The body of a whole card, in the arena; strings and bytes point into it. ECORRUPT: it is none, or
 * not whole. */
int shf_card_decode(struct shf_card *card, struct shf_arena *arena, const struct shf_shm *shm);
static inline struct shf_card_head *shf_card_head(const struct shf_shm *shm)
{
	return shm->base;
}

/* Names that agents keep them under: <job>.<rank>.<image>.card and .image; numbers from here on are
 * of copies that another node than the rank's keeps (replica.h) */
#define SHF_CARD_GUEST 64
void shf_card_name(char out[SHF_KEEP_NAME], const char *job, int rank, int image, bool card);
/* Whose it is: false: no such name. job: 32 characters and an end. */
bool shf_card_parse(const char *name, char job[33], int *rank, int *image, bool *card);
#endif
