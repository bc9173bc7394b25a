/* SPDX-License-Identifier: Apache-2.0 */
/* Panels: ranges of tensors whose items lie in another order in the source. Such a range takes a
 * bit of nearly every row of the source, so a longer range costs little more than a short one. What
 * reads need of a panel is copied from it, as long as it is kept. */
#ifndef SHF_MAP_PANEL_H
#define SHF_MAP_PANEL_H
#include <pthread.h>
#include "map_plan.h"

#define SHF_PANEL (UINT64_C(16) << 20)  /* bytes */
#define SHF_PANELS_MAX 8
struct shf_map_panel {
	const struct shf_map_made *t;   /* NULL: it has nothing yet */
	uint64_t number;                /* of the panel in the tensor */
	uint8_t *bytes;                 /* owned */
	uint64_t used;                  /* when it was used last */
	int users;                      /* threads that fill it or copy from it */
	bool ready;
};
struct shf_map_panels {
	pthread_mutex_t lock;
	pthread_cond_t made;            /* a panel has become ready, or free */
	struct shf_map_panel panels[SHF_PANELS_MAX];    /* guarded by lock, except for bytes */
	int n;                          /* how many there may be; 0: none */
	uint64_t clock;                 /* guarded by lock */
};
typedef int shf_panel_fill(void *arg, const struct shf_map_made *t, uint8_t *to, uint64_t lo,
                           uint64_t hi, struct sheaf_error *err);

void shf_map_panels_init(struct shf_map_panels *p, uint64_t memory_bytes);
void shf_map_panels_release(struct shf_map_panels *p);
/* Copies items [lo, hi) of a tensor from panels, which `fill` makes. Returns 1 if that was not
 * possible, because all panels are in use or there is no memory: then the caller reads the items
 * itself. items: how many the tensor has. [any thread] */
int shf_map_panels_read(struct shf_map_panels *p, const struct shf_map_made *t, uint64_t items,
                        uint8_t *to, uint64_t lo, uint64_t hi, shf_panel_fill *fill, void *arg,
                        struct sheaf_error *err);
#endif
