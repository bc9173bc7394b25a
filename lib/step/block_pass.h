/* SPDX-License-Identifier: Apache-2.0 */
/* The pass of a load: one look at bytes of a file that are in memory. What is wanted of them is
 * copied to where it belongs, all of them are summed, and each block is compared with its sum. */
#ifndef SHF_BLOCK_PASS_H
#define SHF_BLOCK_PASS_H
#include <stdatomic.h>
#include "step.h"

struct shf_want {               /* a box of a tensor, and the slice that holds all of it */
	uint32_t tensor;
	const struct shf_slice *slice;  /* borrowed */
	struct shf_box box;
};
/* A pass over bytes of one file at a time. Several passes, each on its own thread, may add to the
 * same digests. */
struct shf_pass {
	const struct sheaf_step *step;
	bool sums;                      /* false: only copy */
	/* By tensor: digest and bytes seen; NULL: not wanted. Other passes may add to the same. */
	atomic_uint_fast64_t *got, *got_bytes;
	const struct shf_want *wants;   /* borrowed; by the tensor's place in the file */
	size_t wants_n;
	bool past;                      /* copies go past the caches */
	bool quiet;                     /* what is seen is not added to got: another rank's is;
	                                 * then nothing need be summed */
	/* ours */
	uint32_t file, place;
	size_t want;
	uint64_t at, block;             /* next byte; raw sum of what was seen of its block */
};
/* Of a step whose sums there are to compare with. */
bool shf_pass_sums(const struct sheaf_step *step);
/* What comes next is byte `at` of the file; with sums, the first of a block. */
void shf_pass_begin(struct shf_pass *p, uint32_t file, uint64_t at, const struct shf_want *wants,
                    size_t wants_n);
/* The next n bytes; they end where a unit of every tensor ends. ECORRUPT names file, block, offset,
 * tensor; what was wanted of the block has been copied then. */
int shf_pass_feed(struct shf_pass *p, const uint8_t *bytes, uint64_t n, struct sheaf_error *err);
#endif
