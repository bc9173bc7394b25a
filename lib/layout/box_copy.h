/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes between a rank's memory and file order, with the digest of what went by. One box at a
 * time; pure but for the memory it is given. */
#ifndef SHF_BOX_COPY_H
#define SHF_BOX_COPY_H
#include "box.h"
#include "layout.h"
#include "state.h"

/* File order: where unit `at` of the tensor lies. Dense images have bytes at data + (unit - at) *
 * unit_bytes; packed ones have the box's units one after the other (at is ignored). */
struct shf_place_at {
	uint8_t *data;
	int64_t at;                     /* tensor unit at data; may be before the tensor */
	bool packed;
};
/* Dense file order inside an image, where byte seg_lo of the tensor's file is at image + image_at.
 * The segment may begin before the tensor, or inside it. */
struct shf_place_at shf_place_in(uint8_t *image, uint64_t image_at, uint64_t seg_lo,
                                 const struct shf_lt_tensor *t);
/* What a copy adds up, from the one look it takes at each stored byte. All by XOR of raw sums. */
struct shf_sums_to {
	uint64_t digest;                /* shifted by the bytes that follow in the tensor */
	_Atomic uint64_t *parts;        /* of blocks of the file, shifted by what follows in each;
	                                 * NULL: not wanted. Borrowed; other ranks may add too */
	uint64_t first_block;           /* that parts[0] is of, numbered in the file */
	uint64_t file_bytes;            /* the last block ends there */
	bool past;                      /* long runs are stored past the caches */
	bool unsummed;                  /* and that is all: nothing is added up */
};
/* Memory -> file order; converts where memory has another type. */
void shf_copy_in(const struct shf_lt_tensor *t, const struct shf_slice *s,
                 const struct shf_box *box, struct shf_place_at to, struct shf_sums_to *sums);
/* File order -> memory. sums: of the stored bytes read; NULL: nothing is added up. */
void shf_copy_out(const struct shf_lt_tensor *t, const struct shf_slice *s,
                  const struct shf_box *box, struct shf_place_at from, struct shf_sums_to *sums);
/* Header bytes or any others that are no tensor's: n bytes at byte `at` of the file, which are at
 * p, into the parts. */
void shf_sums_add(struct shf_sums_to *sums, uint64_t at, const void *p, uint64_t n);
/* Digest of what memory holds; false where memory has another type (nothing to compare). */
bool shf_copy_check(const struct shf_lt_tensor *t, const struct shf_slice *s,
                    const struct shf_box *box, uint64_t *digest);
/* File order -> packed, and packed -> file order, without memory of a slice. */
void shf_copy_pack(const struct shf_lt_tensor *t, const struct shf_box *box,
                   struct shf_place_at from, uint8_t *to, struct shf_sums_to *sums);
void shf_copy_unpack(const struct shf_lt_tensor *t, const struct shf_box *box, const uint8_t *from,
                     struct shf_place_at to, struct shf_sums_to *sums);
uint64_t shf_box_bytes(const struct shf_lt_tensor *t, const struct shf_box *box);
#endif
