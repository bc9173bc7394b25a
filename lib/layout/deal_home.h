/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of matching that talk to nobody: what a home makes of what it was told, and what the
 * file side makes of what the homes tell it. For match.c, and for plans of ranks that do not
 * exist (preview.c). */
#ifndef SHF_DEAL_HOME_H
#define SHF_DEAL_HOME_H
#include "match.h"

/* Marks in the top bit of a number. */
#define SHF_WIRE_WITNESS (UINT32_C(1) << 31)
#define SHF_WIRE_COLLECTED (UINT32_C(1) << 31)
/* A box as ranks tell it: how many bytes, written, and read. A tensor that is none is bad. */
static inline size_t shf_wire_box(const struct shf_box *box)
{
	return 2 * sizeof(uint64_t) * (size_t)box->ndim;
}

static inline void shf_put_box(uint8_t *p, const struct shf_box *box)
{
	for (int d = 0; d < box->ndim; d++, p += 2 * sizeof(uint64_t)) {
		shf_put64(p, (uint64_t)box->start[d]);
		shf_put64(p + sizeof(uint64_t), (uint64_t)box->count[d]);
	}
}
void shf_get_box(struct shf_cur *c, const struct shf_layout *l, uint32_t tensor,
                 struct shf_box *box);

struct shf_heard {              /* what a home was told: a rank holds, or wants, a box */
	uint32_t rank, tensor;
	struct shf_box box;
	uint32_t lo, hi;                /* filled by shf_home_sort: stripes of the home, from 0 */
};
/* The stripes of one home rank, with the boxes that meet each of them. Boxes are counted once
 * in `heard`, and by index in `which` for every stripe that they meet. */
struct shf_home {
	uint64_t first, end;            /* stripes */
	struct shf_heard *heard;        /* by the caller */
	size_t n;
	size_t *start;                  /* by stripe: first position in `which`; end - first + 1 */
	size_t *which;                  /* indices of heard */
};
/* Stripes are dealt to homes in equal, consecutive shares; a rest of a file shorter than a node's
 * run (deal.h) goes with the stripe before it. A stripe of short runs is also written by its home:
 * so a rank opens few files, those that its stripes lie in. */
uint64_t shf_home_first(const struct shf_layout *l, uint32_t ranks, uint64_t rank);
uint64_t shf_home_of(const struct shf_layout *l, uint32_t ranks, const struct shf_lt_file *file,
                     uint64_t stripe);
/* What a rank tells the homes of its stripes, by home: to[r] bytes of it are for rank r. */
struct shf_tells {
	struct shf_buf bytes;
	size_t *to;                     /* by the caller; zeroed */
};
/* 0 or ENOMEM. */
int shf_holds_tell(const struct shf_match *m, uint32_t ranks, struct shf_tells *out);
/* start and which, in the arena. 0 or ENOMEM. */
int shf_home_sort(const struct shf_layout *l, struct shf_home *h, struct shf_arena *arena);
/* Every stripe of a sorted home, to the buffers of the file side's ranks. */
int shf_home_deal(const struct shf_match *m, uint32_t ranks, const struct shf_home *h,
                  struct shf_buf *out, struct sheaf_error *err);
/* The same from what came of an exchange: to the homes of this rank. in_bytes: by rank. */
int shf_home_deal_heard(const struct shf_team *team, const struct shf_match *m,
                        const struct shf_buf *in, const size_t *in_bytes, struct shf_buf *out,
                        struct sheaf_error *err);
#endif
