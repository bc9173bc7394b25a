/* SPDX-License-Identifier: Apache-2.0 */
/* Copies one box of a tensor between a rank's memory and file order, and computes the checksums of
 * the stored bytes in the same pass. Nothing here reads a file or communicates. */
#ifndef SHF_BOX_COPY_H
#define SHF_BOX_COPY_H
#include "box.h"
#include "layout.h"
#include "state.h"

/* Where a tensor's units lie in file order. Dense: unit u is at data + (u - at) * bytes of a unit,
 * as in the file. Packed: the units of the box follow each other without gaps from data on, and
 * `at` is ignored. */
struct shf_place_at {
	uint8_t *data;
	int64_t at;                     /* unit of the tensor that lies at data */
	bool packed;
};
/* Returns the place of tensor t in an image in which byte seg_lo of the tensor's file lies at
 * image + image_at. The segment may begin before the tensor, or inside it. */
struct shf_place_at shf_place_in(uint8_t *image, uint64_t image_at, uint64_t seg_lo,
                                 const struct shf_lt_tensor *t);
/* Where a copy adds its checksums. They are raw CRCs (initial value 0) of the stored bytes, each
 * shifted to the end of the tensor or block, so that parts can be added by XOR in any order. */
struct shf_box_copy_sums {
	uint64_t digest;                /* sum of the tensor's bytes copied so far */
	_Atomic uint64_t *parts;        /* sums by block of the file; NULL: not wanted. Borrowed;
	                                 * other threads and ranks of the node add to the same
	                                 * sums */
	uint64_t first_block;           /* number, within the file, of the block whose sum is
	                                 * parts[0] */
	uint64_t file_bytes;            /* size of the file, where its last block ends */
	bool past;                      /* use non-temporal stores for long runs */
	bool unsummed;                  /* only copy; compute no checksums */
};
/* Copies a box from memory to file order, and converts items where memory has another type. sums
 * NULL: no checksums are computed, here and in the functions below. */
void shf_box_copy_in(const struct shf_lt_tensor *t, const struct shf_slice *s,
                     const struct shf_box *box, struct shf_place_at to,
                             struct shf_box_copy_sums *sums);
/* Copies a box from file order to memory. The checksums are of the stored bytes, before they are
 * converted. */
void shf_box_copy_out(const struct shf_lt_tensor *t, const struct shf_slice *s,
                      const struct shf_box *box, struct shf_place_at from,
                              struct shf_box_copy_sums *sums);
/* Adds n bytes at p, which are bytes `at` to `at` + n of the file, to sums->parts. Used for the
 * header and for tensors that are copied by other code. */
void shf_box_copy_sums_add(struct shf_box_copy_sums *sums, uint64_t at, const void *p, uint64_t n);
/* XORs into *digest the digest of the box as memory holds it. Returns false, and does nothing, if
 * memory has a type other than the file's: the stored bytes cannot be recovered then. */
bool shf_box_copy_check(const struct shf_lt_tensor *t, const struct shf_slice *s,
                        const struct shf_box *box, uint64_t *digest);
/* Copies a box from file order to packed bytes; `to` NULL: only computes the checksums. */
void shf_box_copy_pack(const struct shf_lt_tensor *t, const struct shf_box *box,
                       struct shf_place_at from, uint8_t *to, struct shf_box_copy_sums *sums);
/* Copies a box from packed bytes to file order. */
void shf_box_copy_unpack(const struct shf_lt_tensor *t, const struct shf_box *box,
                         const uint8_t *from,
                         struct shf_place_at to, struct shf_box_copy_sums *sums);
/* Returns how many bytes the box has on disk. */
uint64_t shf_box_bytes(const struct shf_lt_tensor *t, const struct shf_box *box);
#endif
