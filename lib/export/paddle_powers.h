/* SPDX-License-Identifier: Apache-2.0 */
/* The powers of beta1 and beta2 that Paddle's AdamW keeps for each parameter, as <parameter>/
 * beta1_pow_acc_0 and beta2_pow_acc_0: after t updates, beta to the power of t + 1. They are made
 * for checkpoints of other software, which have the moments and not the powers. */
#ifndef SHF_PADDLE_POWERS_H
#define SHF_PADDLE_POWERS_H
#include "export_adam.h"
#include "export_plan.h"

/* Returns whether it is the family of the optimizer, the only one with moments and powers. */
bool shf_paddle_is_optimizer(const struct shf_lt_family *fam);
/* Whether the family has moments of Adam without the powers. */
bool shf_paddle_needs_powers(const struct shf_layout *l, const struct shf_lt_family *fam);
/* Makes the powers of the two betas. EINVAL: neither the options nor the step say what the betas
 * are, or how many updates there were. */
int shf_paddle_powers(float pow[2], struct sheaf_checkpoint *step,
                      const struct shf_export_opts *opts, struct sheaf_error *err);
/* Takes the tensors <parameter>/step, which Paddle does not know, out of the plan if the number of
 * updates is known, and the plan has moments of Adam: the powers and the state of the trainer have
 * that number. For use before tensors are placed. Counts them in plan->steps_n. */
int shf_paddle_leave_steps(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                           const struct shf_export_opts *opts, struct sheaf_error *err);
/* Returns what follows the slash in the name of power i, 0 or 1. */
const char *shf_paddle_power_key(int i);
/* Makes the name of power i, 0 or 1, for the parameter whose first moment this is; NULL: no
 * memory. */
char *shf_paddle_power_name(struct shf_arena *arena, const struct shf_lt_tensor *moment, int i);
#endif
