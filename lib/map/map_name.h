/* SPDX-License-Identifier: Apache-2.0 */
/* Names of tensors, made from a pattern and the current numbers of the counters. */
#ifndef SHF_MAP_NAME_H
#define SHF_MAP_NAME_H
#include "map_expr.h"

/* Appends the name. star: what {*} stands for; NULL: the name has none. EINVAL. */
int shf_map_name_make(struct shf_map_values *v, const struct shf_map_tensor *t, const char *star,
                      struct shf_buf *out, struct sheaf_error *err);
/* Returns whether a name of n bytes is of a pattern with {*}, and sets what that stands for. */
bool shf_map_name_match(const struct shf_map_tensor *t, const char *name, size_t n,
                        const char **star, size_t *star_n);

/* Counting through the numbers of the axes `axes` of a rule, the last one fastest. */
struct shf_map_count {
	struct shf_map_values *values;
	const struct shf_map_rule *rule;
	uint32_t axes;
};
/* Returns how many there are, and sets all counters to 0. UINT64_MAX / 2: too many to count. */
uint64_t shf_map_count_begin(const struct shf_map_count *c);
/* Goes on to the next one. Returns false after the last. */
bool shf_map_count_next(const struct shf_map_count *c);
/* Returns which of them the current one is. */
uint64_t shf_map_count_at(const struct shf_map_count *c);
#endif
