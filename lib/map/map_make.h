/* SPDX-License-Identifier: Apache-2.0 */
/* What map_plan.c and map_make.c share: a plan in progress. */
#ifndef SHF_MAP_MAKE_H
#define SHF_MAP_MAKE_H
#include "map_name.h"
#include "map_plan.h"

#define SHF_MAP_SITES_MAX 64
#define SHF_MAP_NONE UINT32_MAX

/* What a tensor of a state has. */
enum shf_map_has { SHF_MAP_UNKNOWN, SHF_MAP_ITEMS /* of its weight */, SHF_MAP_VALUE /* one */ };
struct shf_map_site {           /* where tensors of the source are, and what they become */
	struct shf_map_place from, to;
	bool state;                     /* of the optimizer */
	enum shf_map_has has;           /* of state, what follows from its key */
	uint64_t taken;                 /* tensors that rules took here */
	struct sheaf_error missing;     /* a tensor that a rule needs; code 0: none */
};
/* The tensors that a pattern of the source takes, by the numbers in their names. */
struct shf_map_takes { struct shf_map_count count; uint32_t *from; uint64_t n; };
struct shf_mapper {
	struct shf_map_plan *plan;
	const struct shf_map *m;
	struct shf_map_values values;
	const struct shf_layout *l;
	const char *path;
	const struct shf_map_how *how;
	int from;                       /* the side that is read */
	uint64_t left;                  /* work that is left: see shf_map_spend */
	int *taken;                     /* owned; by tensor of the source: line of the rule that
	                                 * took it; 0: none */
	uint64_t *covered;              /* owned; by tensor of the source: how many items pieces
	                                 * have */
	int *tied_taken;                /* owned; the same of tied names */
	struct shf_map_site sites[SHF_MAP_SITES_MAX];
	int sites_n;
	struct shf_buf text;            /* owned; a name that is being made */
	/* of the current rule and site */
	const struct shf_map_rule *rule;
	struct shf_map_site *site;
	struct shf_map_takes takes[SHF_MAP_SIDE_MAX];
	struct sheaf_error *err;
};

static inline const struct shf_map_tensor *
shf_map_src(const struct shf_mapper *p, uint32_t i)
{
	return &p->rule->sides[p->from][i];
}
int shf_map_no_memory(const struct shf_mapper *p);
#define SHF_MAP_LOOKUP 16       /* work of a name that is looked up or made; to look at a tensor
                                 * is 1 */
/* Takes work from p->left. EINVAL: it is too much, because of the names of t. */
int shf_map_spend(struct shf_mapper *p, uint64_t n, const struct shf_map_tensor *t);
/* Makes the name of a tensor of the source, with the current numbers, in p->text. */
int shf_map_source_name(struct shf_mapper *p, const struct shf_map_tensor *t, const char *star);
/* Makes the tensor of a pattern with the current numbers, if its sources are there. ELAYOUT,
 * EINVAL: they do not fit. */
int shf_map_make(struct shf_mapper *p, const struct shf_map_tensor *t, const char *star);
#endif
