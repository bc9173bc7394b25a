/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the bytes of an exported file, any range of it, from the tensors of the step. */
#ifndef SHF_EXPORT_FILL_H
#define SHF_EXPORT_FILL_H
#include "export_plan.h"
#include "step_checked.h"

/* A reader of one thread. */
struct shf_export_reader {
	struct sheaf_checkpoint *step;  /* borrowed; all its files are open */
	const struct shf_export_plan *plan;
	struct shf_checked checked;     /* blocks NULL: sums are not compared */
	uint8_t *items;                 /* owned; items before their conversion */
};
#define SHF_EXPORT_READER_BYTES (UINT64_C(5) << 20)     /* largest memory of a reader */

int shf_export_reader_init(struct shf_export_reader *r, struct sheaf_checkpoint *step,
                           const struct shf_export_plan *plan, struct sheaf_error *err);
void shf_export_reader_release(struct shf_export_reader *r);
/* Writes bytes [at, at + n) of file f of the plan to `to`. `at` is a multiple of 8, and so is n
 * unless the file ends there. Checks the blocks of the step that have these bytes. ECORRUPT, EIO.
 * [any thread, one at a time for each reader] */
int shf_export_fill(struct shf_export_reader *r, uint32_t f, uint64_t at, uint8_t *to, uint64_t n,
                    struct sheaf_error *err);
#endif
