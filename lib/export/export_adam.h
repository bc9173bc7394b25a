/* SPDX-License-Identifier: Apache-2.0 */
/* What AdamW needs beside its moments to go on: how many updates it has made, and its betas. */
#ifndef SHF_EXPORT_ADAM_H
#define SHF_EXPORT_ADAM_H
#include "export_step.h"

#define SHF_ADAM_MOMENT "/moment1_0"    /* the end of the name of a first moment */
/* Returns whether a tensor is the first moment of a parameter, <parameter>/moment1_0. */
bool shf_adam_is_moment(const struct shf_lt_tensor *t);

struct shf_export_adam {
	int64_t step;                   /* > 0 */
	double beta[2];
};
/* Takes both from the options, or else from what the step says of its optimizer: the note
 * adam.step, or else the number that all tensors <parameter>/step have, and the betas that all its
 * groups of parameters have. EINVAL: neither has them. */
int shf_export_adam_find(struct shf_export_adam *adam, struct sheaf_checkpoint *step,
                         const struct shf_export_opts *opts, struct sheaf_error *err);
/* Finds the learning rate of the last update, which the note scheduler.last_lr says, or else all
 * groups of parameters. *rate is 0 if neither does. */
int shf_export_rate_find(double *rate, struct sheaf_checkpoint *step, struct sheaf_error *err);
#endif
