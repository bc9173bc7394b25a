/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint says of its optimizer, for other software that goes on from it: the attached
 * file param_groups.json, as doc/format.md (section 13) has it. */
#ifndef PARAMGROUPS_H
#define PARAMGROUPS_H
#include "trainsetup.h"

/* Sets *text to the contents of the file: the parameters of the whole model, in a group for each
 * optimizer and weight decay. All ranks get the same. lr: of the last update. The caller frees
 * *text. */
int tr_param_groups(char **text, const struct tr_setup *s, double lr, struct tr_error *err);
#endif
