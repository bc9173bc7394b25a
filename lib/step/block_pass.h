/* SPDX-License-Identifier: Apache-2.0 */
/* The pass that a load makes over bytes of a file once they are in memory. It copies the bytes that
 * are wanted into the slices, sums all bytes, and compares each block with its sum, while the bytes
 * are in the CPU cache. */
#ifndef SHF_BLOCK_PASS_H
#define SHF_BLOCK_PASS_H
#include <stdatomic.h>
#include "step.h"

struct shf_want {               /* A box of a tensor, and the slice that it is copied into. */
	uint32_t tensor;
	const struct shf_slice *slice;  /* borrowed */
	struct shf_box box;
};
/* A pass over the bytes of one file at a time. Several passes, each on its own thread, may add to
 * the same digests. */
struct shf_pass {
	const struct sheaf_checkpoint *step;
	bool sums;                      /* the pass sums and checks the bytes; false: it only
	                                 * copies */
	/* By tensor: the digest and the number of bytes summed so far. NULL: the caller needs no
	 * digests. Atomic, because passes on other threads add to the same arrays. */
	atomic_uint_fast64_t *got, *got_bytes;
	const struct shf_want *wants;   /* borrowed; sorted by where the tensor lies in the file */
	size_t wants_n;
	bool past;                      /* copies use non-temporal stores */
	bool quiet;                     /* adds nothing to `got`, because another rank counts these
	                                 * bytes; `sums` may be false then */
	/* private to block_pass.c */
	uint32_t file, place;           /* file, and index into by_place of the next tensor */
	size_t want;                    /* index of the first want that is not finished */
	uint64_t at, block;             /* next byte of the file; raw CRC of the part of its block
	                                 * that was read so far */
};
/* Whether blocks of the step can be checked: it has a valid table of sums, and SHEAF_RUN_UNVERIFIED
 * is not set. */
bool shf_block_pass_sums(const struct sheaf_checkpoint *step);
/* Begins at byte `at` of the file: shf_block_pass_feed() takes the bytes from there on. If p->sums
 * is set, `at` must be the start of a block. */
void shf_block_pass_begin(struct shf_pass *p, uint32_t file, uint64_t at,
                          const struct shf_want *wants, size_t wants_n);
/* Takes the next n bytes of the file. If they end inside a tensor, then between two of its units
 * (plan/box.h). ECORRUPT: a
 * block has the wrong sum, and the message names file, block, offset and tensor. The wanted bytes
 * of that block have already been copied by then. */
int shf_block_pass_feed(struct shf_pass *p, const uint8_t *bytes, uint64_t n,
                        struct sheaf_error *err);
#endif
