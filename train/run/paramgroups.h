/* SPDX-License-Identifier: Apache-2.0 */
/* The file param_groups.json of a checkpoint: which optimizer updates each parameter, and how.
 * Other software that resumes from the checkpoint reads it. doc/format.md, section 13, describes
 * it. */
#ifndef PARAMGROUPS_H
#define PARAMGROUPS_H
#include "trainsetup.h"

/* Sets *text to the contents of the file: the parameters of the whole model, in a group for each
 * optimizer and weight decay. All ranks get the same. lr: of the last update. The caller frees
 * *text. */
int tr_param_groups(char **text, const struct tr_setup *s, double lr, struct tr_error *err);
#endif
