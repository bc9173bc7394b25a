/* SPDX-License-Identifier: Apache-2.0 */
/* The card of an image says which step lies in the image, and where each byte of it belongs. It is
 * shared memory that the agent keeps with the image, so that after a crash a new job, or the agent,
 * can read the step from memory.
 *
 * M1. A card is whole (`whole` is not 0) only while its image has all bytes of its step. It is
 *     cleared before any rank copies into the image, and made whole when all ranks have agreed that
 *     they have the bytes and their checksums.
 * M2. A step is in memory if the cards of all ranks that saved it are whole. Its checksums then
 *     prove that it is intact, or show that it is not. It counts even if no rank has returned from
 *     its commit.
 * M3. The card of the newest step in memory is cleared only when a newer step is in memory. */
#ifndef SHF_IMAGE_CARD_H
#define SHF_IMAGE_CARD_H
#include <stdatomic.h>
#include "layout.h"
#include "mem.h"
#include "sys.h"

#define SHF_CARD_MAGIC UINT64_C(0x0003647261636673)
struct shf_card_head {          /* the beginning of a card's memory; the body follows */
	uint64_t magic, body_bytes;
	_Atomic uint64_t whole;         /* CRC of the body with bit 0 set, so never 0 in a whole
	                                 * card; 0: the card is cleared */
	/* States of the disk that this step may follow, each a shf_card_disk_state. If the disk is
	 * in none of these states, the run was rewound. `next` differs from `base` while another
	 * step is being published. `from` is the state once an agent has written to disk the step
	 * that the job loaded from memory; 0: the job loaded none from there, or has published a
	 * step since. */
	_Atomic uint64_t base, next, from;
	_Atomic uint64_t due;           /* not 0: the step is to be written to disk, and is not on
	                                 * disk yet */
	_Atomic uint64_t tries;         /* how often the step was loaded from memory */
	_Atomic uint64_t turn;          /* number of the job that made the card; higher than the
	                                 * numbers of all earlier jobs */
};
/* Returns a number for the state of the disk in which `step` is the newest step and the run was
 * rewound `rewinds` times. step -1: a run without steps. */
uint64_t shf_card_disk_state(int64_t step, const char *session, uint64_t rewinds);

struct shf_card_seg {           /* bytes [lo, hi) of a tensor file, and their offset in the image */
	uint32_t file;
	uint64_t lo, hi, image;
};
struct shf_card_small_file {         /* a file of the step that has no tensors */
	const char *name;
	const uint8_t *bytes;
	uint64_t n;
};
/* A card, decoded. */
struct shf_card {
	char session[33], run[33];      /* session of the save; id of the run */
	int64_t step;
	int32_t rank, ranks;
	uint64_t image_bytes;
	struct shf_card_seg *segs; size_t segs_n;
	struct shf_card_small_file *smalls; size_t smalls_n; /* the manifest first. One card of each
	                                                      * node has the small files; in other
	                                                      * cards smalls_n is 0 */
};
/* Appends the body of a card. */
void shf_card_encode(struct shf_buf *out, const struct shf_card *card);
/* Decodes a body that shf_card_encode has made. Strings and bytes of *card point into the body and
 * the arena. ECORRUPT, ENOMEM. */
int shf_card_decode_body(struct shf_card *card, struct shf_arena *arena, const uint8_t *body,
                         size_t n);
/* Decodes a card in shared memory, as shf_card_decode_body does. ECORRUPT if it is no card, or not
 * whole; ENOMEM. */
int shf_card_decode(struct shf_card *card, struct shf_arena *arena, const struct shf_shm *shm);
/* Returns the head of a card in shared memory. */
static inline struct shf_card_head *shf_card_head(const struct shf_shm *shm)
{
	return shm->base;
}

/* Agents keep a card under the name <job>.<rank>.<image>.card, and its image under the same name
 * with .image at the end. Image numbers from SHF_CARD_REPLICA on are replicas that a node other
 * than the rank's keeps (replica.h). */
#define SHF_CARD_REPLICA 64
void shf_card_name(char out[SHF_KEEP_NAME], const char *job, int rank, int image, bool card);
/* Splits such a name into its parts; job has 32 characters and a NUL. Returns false for any other
 * name. */
bool shf_card_parse(const char *name, char job[33], int *rank, int *image, bool *card);
#endif
