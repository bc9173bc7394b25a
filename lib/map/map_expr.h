/* SPDX-License-Identifier: Apache-2.0 */
/* Integer expressions of a map, and the numbers that they are made of: those of config.json, and
 * those that the caller gives. */
#ifndef SHF_MAP_EXPR_H
#define SHF_MAP_EXPR_H
#include "map.h"

struct shf_map_config {         /* numbers by name, such as "rope.dim" for {"rope": {"dim": 64}} */
	struct shf_arena arena;
	struct shf_buf entries;         /* struct shf_map_entry, in the order of the file, then
	                                 * what the caller gives */
	const char *path;               /* of config.json, for sentences; NULL: there is none */
};
struct shf_map_entry { const char *key; int64_t value; bool given, used; };
/* Adds the whole numbers, and true and false as 1 and 0, of a config.json. EFORMAT: it is not
 * JSON. */
int shf_map_config_read(struct shf_map_config *c, const char *path, const void *bytes, size_t n,
                        struct sheaf_error *err);
/* Adds KEY=NUMBER, which replaces what config.json says. EINVAL. */
int shf_map_config_give(struct shf_map_config *c, const char *text, struct sheaf_error *err);
/* Returns the entry, and notes that it is used; NULL: there is none. */
struct shf_map_entry *shf_map_config_find(struct shf_map_config *c, const char *key);
void shf_map_config_release(struct shf_map_config *c);

struct shf_map_values {
	const struct shf_map *map;
	struct shf_map_config *config;
	int64_t var[SHF_MAP_VARS_MAX];  /* of LET and ARG: the value. Of FOR: how many */
	int64_t index[SHF_MAP_VARS_MAX];        /* of FOR: the current number */
};
/* Evaluates all variables. EINVAL: the message names line and variable. */
int shf_map_values_make(struct shf_map_values *v, const struct shf_map *map,
                        struct shf_map_config *config, struct sheaf_error *err);
/* Evaluates an expression. line: of the rule, for sentences. */
int shf_map_eval(struct shf_map_values *v, const struct shf_map_expr *e, int line, int64_t *out,
                 struct sheaf_error *err);
#endif
