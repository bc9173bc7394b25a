/* SPDX-License-Identifier: Apache-2.0 */
/* A box as runs of units that follow each other in the tensor and lie evenly in memory. */
#ifndef SHF_BOX_RUNS_H
#define SHF_BOX_RUNS_H
#include "box.h"

/* Walk a box in the tensor's row-major order as runs of consecutive units of the tensor that
 * are also evenly strided in memory. One run: `units` units, first at tensor unit `at`, in memory
 * at base-relative unit `mem` with `step` units between neighbours (1: memcpy). Adjacent
 * dimensions are merged where tensor and memory both allow, so runs are as long as they can be.
 * box must be inside m->box and here (shf_mem_boxes). */
struct shf_runs {
	int levels;
	uint64_t n[SHEAF_DIMS_MAX], i[SHEAF_DIMS_MAX];  /* outer loops: sizes and position */
	int64_t at_step[SHEAF_DIMS_MAX], mem_step[SHEAF_DIMS_MAX];
	uint64_t units;
	int64_t step;
	uint64_t at;
	int64_t mem;
	bool done;
};
void shf_runs_init(struct shf_runs *r, const struct shf_shape *s, const struct shf_mem *m,
                   const struct shf_box *box);
bool shf_runs_next(struct shf_runs *r, uint64_t *at, int64_t *mem);     /* false: no more */
/* As many runs at once as follow each other evenly in both: *rows of them, at_step and mem_step
 * units apart (0 where it is one). */
struct shf_rows {
	uint64_t at, rows;
	int64_t mem, at_step, mem_step;
};
bool shf_runs_rows(struct shf_runs *r, struct shf_rows *rows);          /* false: no more */
#endif
