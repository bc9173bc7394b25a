/* SPDX-License-Identifier: Apache-2.0 */
/* Opens files of a step by their names in the manifest: "model-00001-of-00002.safetensors", or with
 * the folder of the family, "optimizer/...". */
#ifndef SHF_NAME_IN_STEP_H
#define SHF_NAME_IN_STEP_H
#include "sys.h"

/* Opens the directory that contains the file `name` of the step at dir: returns dir itself, or the
 * descriptor of a folder in it. *base is the name without the folder. flags: SHF_O_NOFOLLOW, or 0.
 * Returns a negative errno if the folder cannot be opened. Call shf_in_step_leave afterwards.
 * [local] */
int shf_in_step_enter(const struct shf_sys *sys, int dir, const char *name, int flags,
                      const char **base);
/* Closes what shf_in_step_enter returned (in), unless it is dir itself or an error. [local] */
void shf_in_step_leave(const struct shf_sys *sys, int dir, int in);
/* Opens the file and returns its descriptor, or a negative errno. SHF_O_NOFOLLOW in flags applies
 * to its folder, too. [local] */
int shf_in_step_open(const struct shf_sys *sys, int dir, const char *name, int flags);
#endif
