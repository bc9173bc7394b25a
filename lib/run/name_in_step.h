/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a step by the names that a manifest gives them: "model-00001-of-00002.safetensors", or
 * with the folder of their family, "optimizer/...". */
#ifndef SHF_NAME_IN_STEP_H
#define SHF_NAME_IN_STEP_H
#include "sys.h"

/* Opens the directory that `name` lies in: dir itself, or a folder in it. *base: the rest of the
 * name. flags: SHF_O_NOFOLLOW, or 0. Negative errno. Close it with leave. [local] */
int shf_in_step_enter(const struct shf_sys *sys, int dir, const char *name, int flags,
                      const char **base);
/* in: what enter returned, also if that was an error. */
void shf_in_step_leave(const struct shf_sys *sys, int dir, int in);
/* Opens the file; SHF_O_NOFOLLOW counts for its folder, too. Negative errno. [local] */
int shf_in_step_open(const struct shf_sys *sys, int dir, const char *name, int flags);
#endif
