/* SPDX-License-Identifier: Apache-2.0 */
/* What AdamW needs beside its moments to go on: how many updates it has made, and its betas. */
#ifndef SHF_EXPORT_ADAM_H
#define SHF_EXPORT_ADAM_H
#include "export_step.h"

#define SHF_ADAM_MOMENT "/moment1_0"    /* the end of the name of a first moment */
/* Returns whether a tensor is the first moment of a parameter, <parameter>/moment1_0. */
bool shf_adam_is_moment(const struct shf_lt_tensor *t);
/* Returns whether a tensor of the layout is the number of updates of a parameter, <parameter>/step,
 * as optimizers of torch keep it. */
bool shf_adam_is_step(const struct shf_layout *l, const struct shf_lt_tensor *t);

struct shf_export_adam {
	int64_t step;                   /* > 0 */
	double beta[2];
};
/* Finds the number of updates: that of the options, or else the note adam.step, or else the number
 * that all tensors <parameter>/step have. Sets *updates to 0 if there is none of these. */
int shf_export_updates_find(int64_t *updates, struct sheaf_checkpoint *step,
                            const struct shf_export_opts *opts, struct sheaf_error *err);
/* Finds the number of updates, and the betas: those of the options, or else those that all groups
 * of parameters have. EINVAL: one of them cannot be found. */
int shf_export_adam_find(struct shf_export_adam *adam, struct sheaf_checkpoint *step,
                         const struct shf_export_opts *opts, struct sheaf_error *err);
/* Finds the learning rate of the last update: that of the note scheduler.last_lr, or else the one
 * that all groups of parameters have. Sets *rate to 0 if there is no such note, and no group has a
 * rate or groups have different ones. */
int shf_export_rate_find(double *rate, struct sheaf_checkpoint *step, struct sheaf_error *err);
#endif
