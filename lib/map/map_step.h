/* SPDX-License-Identifier: Apache-2.0 */
/* Shows a step under the names and in the shapes that a map gives: as a step of its own, which can
 * be read, compared, loaded, exported and imported like any other. */
#ifndef SHF_MAP_STEP_H
#define SHF_MAP_STEP_H
#include "step.h"

#define SHF_MAP_PADDING "map.padding_left_out"  /* note: how many items */

/* struct sheaf_map of sheaf-inspect.h. */
struct shf_map_opts {
	const char *file;               /* path of the map */
	const char *to;                 /* name of the side that is made; NULL: the right one */
	const char *const *set;         /* NAME=NUMBER, ended by NULL; NULL: none */
	const char *config;             /* path of a config.json; NULL: that of the step */
	const char *family;             /* of the step that is taken; NULL: all */
	uint64_t memory_bytes;          /* see sheaf_map.memory_bytes */
	const char *prefix;             /* see sheaf_export.prefix; "": none */
};
/* Opens it. *out holds a reference to `step`. EINVAL: the map is not right, the message names its
 * line. ELAYOUT: the map does not fit the step. [local] */
int shf_map_step(struct sheaf_checkpoint **out, struct sheaf_checkpoint *step,
                 const struct shf_map_opts *opts, struct sheaf_error *err);
#endif
