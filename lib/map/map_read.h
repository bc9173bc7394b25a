/* SPDX-License-Identifier: Apache-2.0 */
/* Reads items of the tensors that a map makes. */
#ifndef SHF_MAP_READ_H
#define SHF_MAP_READ_H
#include "map_panel.h"
#include "map_plan.h"
#include "step.h"

struct shf_map_reading {
	struct sheaf_checkpoint *source;        /* a reference is held; all its files are open */
	const struct shf_map_plan *plan;
	struct shf_map_panels panels;
	pthread_mutex_t lock;
	struct shf_checked **idle;      /* guarded by lock; readers of a source with checksums that
	                                 * no thread uses */
	size_t idle_n, idle_cap;        /* guarded by lock */
};
/* Reads items [lo, hi) of a tensor, in row-major order. ECORRUPT, EIO. [any thread] */
int shf_map_read(struct shf_map_reading *r, const struct shf_map_made *t, uint8_t *to, uint64_t lo,
                 uint64_t hi, struct sheaf_error *err);
/* Reads the first n bytes of a tensor of the source. */
int shf_map_read_source(struct shf_map_reading *r, uint32_t tensor, void *to, uint64_t n,
                        struct sheaf_error *err);
/* memory_bytes: for panels. */
void shf_map_reading_init(struct shf_map_reading *r, struct sheaf_checkpoint *source,
                          const struct shf_map_plan *plan, uint64_t memory_bytes);
void shf_map_reading_release(struct shf_map_reading *r);
#endif
