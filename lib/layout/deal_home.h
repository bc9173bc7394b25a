/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of matching that do not communicate: which homes a rank sends its boxes to, and how a
 * home deals its stripes from the boxes that it received. Used by match.c, and by plan_job.c, which
 * plans a job whose ranks do not exist. */
#ifndef SHF_DEAL_HOME_H
#define SHF_DEAL_HOME_H
#include "match.h"

/* Flags in the top bit of 32-bit fields of a message: WITNESS in a tensor number, COLLECTED in a
 * count of moves. They carry the members `witness` and `collected` of work.h. */
#define SHF_WIRE_WITNESS (UINT32_C(1) << 31)
#define SHF_WIRE_COLLECTED (UINT32_C(1) << 31)
/* Returns how many bytes a box has in a message. */
static inline size_t shf_wire_box_bytes(const struct shf_box *box)
{
	return 2 * sizeof(uint64_t) * (size_t)box->ndim;
}

/* Writes a box to p, which has room for shf_wire_box_bytes bytes. */
static inline void shf_wire_box_put(uint8_t *p, const struct shf_box *box)
{
	for (int d = 0; d < box->ndim; d++, p += 2 * sizeof(uint64_t)) {
		shf_put64(p, (uint64_t)box->start[d]);
		shf_put64(p + sizeof(uint64_t), (uint64_t)box->count[d]);
	}
}
/* Reads a box of that tensor. Sets c->bad if the layout has no such tensor or the bytes end. */
void shf_wire_box_get(struct shf_cur *c, const struct shf_layout *l, uint32_t tensor,
                      struct shf_box *box);

struct shf_home_box {              /* a message to a home: `rank` holds, or wants, `box` of
                                    * `tensor` */
	uint32_t rank, tensor;
	struct shf_box box;
	uint32_t lo, hi;                /* set by shf_home_sort: the box meets stripes [lo, hi) of
	                                 * the home, counted from its first */
};
/* The stripes of one home rank, with the boxes that meet each of them. A box is once in `heard`,
 * and its index is in `which` once for each stripe that it meets. */
struct shf_home {
	uint64_t first, end;            /* stripes [first, end) */
	struct shf_home_box *heard;        /* n messages; the caller sets and frees the array */
	size_t n;
	size_t *start;                  /* the boxes that meet stripe first + s are which[start[s]]
	                                 * to which[start[s + 1] - 1]; end - first + 1 members are
	                                 * used; in the arena */
	size_t *which;                  /* indices into heard, in the arena */
};
/* Returns the first stripe of a home rank, and the home rank of a stripe. Homes get equal,
 * consecutive shares of all stripes. The end of a file that is shorter than SHF_NODE_RUN (deal.h)
 * has the home of the stripe before it. A home may be the only writer of a stripe of short runs
 * (collector, deal.h); with consecutive shares each rank opens few files for that. */
uint64_t shf_home_first(const struct shf_layout *l, uint32_t ranks, uint64_t rank);
uint64_t shf_home_of(const struct shf_layout *l, uint32_t ranks, const struct shf_lt_file *file,
                     uint64_t stripe);
/* Writes, for each box of m->holds, a message to every home whose stripes it may overlap. Reads
 * only m->layout and m->holds. ENOMEM. */
int shf_holds_pack(const struct shf_match *m, uint32_t ranks, struct shf_home_messages *out);
/* Sorts the boxes in h->heard by stripe: sets start and which, in the arena. ENOMEM. */
int shf_home_sort(const struct shf_layout *l, struct shf_home *h, struct shf_arena *arena);
/* Deals the stripes of a home, after shf_home_sort. Appends to out[r] the segments that rank r
 * writes or reads, with their moves. ELAYOUT names a box that no rank holds. ENOMEM, EBUG. */
int shf_home_deal(const struct shf_match *m, uint32_t ranks, const struct shf_home *h,
                  struct shf_buf *out, struct sheaf_error *err);
/* Decodes the messages that this rank received as a home, in_bytes[r] bytes from rank r, and deals
 * its stripes as shf_home_deal does. [local] */
int shf_home_deal_messages(const struct shf_team *team, const struct shf_match *m,
                           const struct shf_buf *in, const size_t *in_bytes, struct shf_buf *out,
                           struct sheaf_error *err);
#endif
