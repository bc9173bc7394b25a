/* SPDX-License-Identifier: Apache-2.0 */
/* A box as runs of units that are consecutive in the tensor and evenly spaced in memory. */
#ifndef SHF_BOX_RUNS_H
#define SHF_BOX_RUNS_H
#include "box.h"

/* A walk over a box in row-major order, as runs of units that are consecutive in the tensor and
 * evenly spaced in memory. A run has `units` units; the first is unit `at` of the tensor and lies
 * `mem` units after base; neighbours are `step` units apart in memory (1: memcpy will do).
 * Dimensions are merged where tensor and memory both allow it, so runs are as long as they can be.
 * The box must lie in m->box and in memory of this rank (shf_mem_boxes). */
struct shf_runs {
	int levels;                     /* number of outer loops */
	uint64_t n[SHEAF_DIMS_MAX], i[SHEAF_DIMS_MAX];  /* of each loop: its length and its
	                                                 * position */
	/* How far one step of each loop moves, in units of the tensor and of memory. */
	int64_t at_step[SHEAF_DIMS_MAX], mem_step[SHEAF_DIMS_MAX];
	uint64_t units;                 /* units, step, at and mem describe the current run, as
	                                 * above */
	int64_t step;
	uint64_t at;
	int64_t mem;
	bool done;
};
/* Starts a walk over `box` of a tensor of shape s. */
void shf_runs_init(struct shf_runs *r, const struct shf_shape *s, const struct shf_mem *m,
                   const struct shf_box *box);
bool shf_runs_next(struct shf_runs *r, uint64_t *at, int64_t *mem);     /* false: no more */
/* Several runs, which shf_runs_rows() returns at once: `rows` runs, the first at `at` and `mem`.
 * They are evenly spaced, at_step units apart in the tensor and mem_step units in memory (both 0 if
 * there is one run). */
struct shf_rows {
	uint64_t at, rows;
	int64_t mem, at_step, mem_step;
};
bool shf_runs_rows(struct shf_runs *r, struct shf_rows *rows);          /* false: no more */
#endif
