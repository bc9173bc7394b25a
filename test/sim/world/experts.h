/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: a small model in bf16 with fp32 masters, two moments and averages, and the
 * layouts in which ranks hold it. A layout is a small struct, from which experts_hold makes the
 * slices and the memory of one rank. Shares no code with plan or engine: the layout is computed
 * here, and the value of an item follows from a formula over its name, its place in the whole
 * tensor and the step.
 *
 * The model: layer 0 is dense, layer 1 has 10 experts, layer 2 has 5. Experts have their global
 * number (layers.1.mlp.experts.7.up), whichever rank holds them. Routers and norms are fp32 and
 * have no separate masters.
 */
#ifndef EXPERTS_H
#define EXPERTS_H
#include <stdbool.h>
#include <stddef.h>
#include "sheaf.h"

enum expert_mesh {
	EXPERTS_OVER_DP,                /* group dp_i % ep has its experts whole on every tp */
	EXPERTS_CUT_BY_TP,              /* and each is cut over tp by columns (up) or rows (down) */
	EXPERTS_DEALT_OVER_TP,          /* ep * tp groups: tp does not cut experts */
	EXPERTS_OWN_MESH,               /* the same ranks as ep * moe_sharding = tp * dp; the group
	                                 * is rank % ep */
	EXPERTS_OWN_MESH_OUTER          /* the group is rank / moe_sharding */
};
enum expert_deal {                      /* distribution of a layer's experts to groups */
	EXPERTS_IN_BLOCKS, EXPERTS_IN_TURN,
	EXPERTS_LOPSIDED                /* the first group has half of them */
};
struct expert_layout {
	const char *name;
	int dp, tp;                     /* rank = dp_i * tp + tp_i */
	int ep;
	enum expert_mesh mesh;
	int moe_sharding;               /* of a separate mesh */
	enum expert_deal deal;
	int idle;                       /* over dp: the last `idle` dp ranks have no experts */
	/* 1: masters, moments and averages are flat ranges, of dense weights over dp, of experts
	 * over the ranks with the same ones; 3: the model, too; 0: replicated */
	int zero;
	bool stacked;                   /* a rank's experts of a layer are in one buffer, `up`
	                                 * transposed, as for grouped products */
};
extern const struct expert_layout expert_layouts[];
extern const int expert_layouts_n;
enum { EXPERT_RANKS_MAX = 8 };

int experts_ranks(const struct expert_layout *l);
/* Returns a random layout of at most ranks_max ranks, with the name "drawn". */
struct expert_layout experts_draw(uint64_t seed, int ranks_max);

enum expert_part {
	EXPERT_MODEL, EXPERT_MASTER, EXPERT_MOMENT1, EXPERT_MOMENT2, EXPERT_AVERAGE, EXPERT_PARTS
};
/* All that a rank saves; sheaf_state_ema makes the averages of it. */
#define EXPERT_STATE ((1u << EXPERT_AVERAGE) - 1)
#define EXPERT_ALL   ((1u << EXPERT_PARTS) - 1)

struct expert_tensor {                  /* a parameter */
	char name[40];
	int32_t dtype, ndim;
	int64_t shape[2];
	int axis;                       /* the axis that tp cuts; -1: none */
	int layer, expert;              /* expert -1: dense */
};
/* Sets *t to parameter i. Returns false past the end. */
bool expert_tensor(int i, struct expert_tensor *t);
/* Returns the size of these parts of the whole model (1 << EXPERT_MODEL | ...), without
 * replicas. */
uint64_t experts_bytes(unsigned parts);

struct expert_hold {                    /* the state of one rank */
	int n;
	struct sheaf_slice *slices;     /* as sheaf_state_add takes them */
	struct expert_slice {
		struct expert_tensor t;
		enum expert_part part;
		char name[64];
	} *of;                          /* for each slice */
	void **blocks;
	int blocks_n;
};
/* Makes the slices of these parts (EXPERT_STATE, EXPERT_ALL) that this rank holds. Their memory is
 * filled with 0xA5. Freed by experts_free. */
struct expert_hold *experts_hold(const struct expert_layout *l, int rank, unsigned parts);
void experts_free(struct expert_hold *h);

/* The coefficient of the averages; every step from 1 on counts. */
#define EXPERT_COEF 0.9
/* Returns the bits of an item at a step. An average is the result of sheaf.h's formula on steps 1
 * .. step. */
uint32_t expert_value(const struct expert_tensor *t, enum expert_part part, int64_t item,
                      int64_t step);
void experts_paint(struct expert_hold *h, int64_t step);
/* Counts the items whose value is not that of the step. Writes a message about the first one to
 * why. */
int64_t experts_wrong(const struct expert_hold *h, int64_t step, char *why, size_t n);
#endif
