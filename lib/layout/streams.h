/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that a rank sends to all ranks, and receives from them, in one exchange. A stream is
 * what one rank sends to another. Both ranks compute its length, so lengths are not exchanged. */
#ifndef SHF_STREAMS_H
#define SHF_STREAMS_H
#include "mem.h"

struct shf_streams {
	size_t ranks;
	size_t *out_bytes, *in_bytes;   /* by rank: length of the stream to it, and from it.
	                                 * out_bytes is owned; the next three arrays follow it in
	                                 * the same memory */
	size_t *out_at, *in_at;         /* by rank: offset of its stream in `out`, and in `in` */
	uint8_t *out, *in;              /* owned; the streams to, and from, all ranks, packed in
	                                 * rank order */
	size_t out_total, in_total;     /* bytes of all streams together */
	uint64_t longest;               /* length of the longest stream */
};
/* Makes streams of length 0. The caller then sets out_bytes and in_bytes. ENOMEM. */
int shf_streams_init(struct shf_streams *s, int ranks);
/* Computes the offsets and totals from the lengths, and allocates `out` and `in`. ENOMEM; the
 * totals are set then, too. */
int shf_streams_reserve(struct shf_streams *s);
/* Frees the streams, and zeroes *s. */
void shf_streams_release(struct shf_streams *s);
#endif
