/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a rule of a map is bijective, whatever the sizes of its axes. */
#ifndef SHF_MAP_CHECK_H
#define SHF_MAP_CHECK_H
#include "map.h"

/* Divides the tensors of the rule into cells, and finds for each the cell of the other side that
 * has the same axes. EINVAL: the rule is not bijective, or the size of an axis cannot be known. */
int shf_map_check(struct shf_map *m, struct shf_map_rule *r, struct sheaf_error *err);
#endif
