/* SPDX-License-Identifier: Apache-2.0 */
/* Source: adamw_kernel.cc of Paddle 3.3. */
#include "paddle_powers.h"
#include <string.h>

static const char *const powers[] = { "/beta1_pow_acc_0", "/beta2_pow_acc_0" };

const char *shf_paddle_power_key(int i)
{
	return powers[i] + 1;
}

char *shf_paddle_power_name(struct shf_arena *arena, const struct shf_lt_tensor *moment, int i)
{
	size_t n = strlen(moment->name) - strlen(SHF_ADAM_MOMENT), m = strlen(powers[i]) + 1;
	char *name = shf_arena_alloc(arena, n + m, 1);

	if (name) {
		memcpy(name, moment->name, n);
		memcpy(name + n, powers[i], m);
	}
	return name;
}

bool shf_paddle_is_optimizer(const struct shf_lt_family *fam)
{
	return strcmp(fam->name, "optimizer") == 0;
}

bool shf_paddle_needs_powers(const struct shf_layout *l, const struct shf_lt_family *fam)
{
	bool moments = false, has = false;

	for (size_t i = fam->first_tensor; i < fam->first_tensor + (size_t)fam->tensors_n; i++) {
		moments |= shf_adam_is_moment(&l->tensors[i]);
		has |= strstr(l->tensors[i].name, powers[0]) != NULL;
	}
	return shf_paddle_is_optimizer(fam) && moments && !has;
}

/* Returns beta to the power of n. */
static double power_of(double beta, uint64_t n)
{
	double x = 1;

	for (; n; n >>= 1, beta *= beta)
		x *= n & 1 ? beta : 1;
	return x;
}

int shf_paddle_powers(float pow[2], struct sheaf_checkpoint *step,
                      const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_export_adam adam;
	int rc = shf_export_adam_find(&adam, step, opts, err);

	for (int i = 0; i < 2 && rc == 0; i++)
		pow[i] = (float)power_of(adam.beta[i], (uint64_t)adam.step + 1);
	return rc;
}

int shf_paddle_leave_steps(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                           const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	bool moments = false, steps = false;
	int64_t updates = 0;
	size_t n = 0;
	int rc;

	for (size_t i = 0; i < l->tensors_n; i++) {
		moments |= shf_paddle_is_optimizer(&l->families[l->tensors[i].family]) &&
		           shf_adam_is_moment(&l->tensors[i]);
		steps |= shf_adam_is_step(l, &l->tensors[i]);
	}
	rc = moments && steps ? shf_export_updates_find(&updates, step, opts, err) : 0;
	if (rc < 0 || !updates)
		return rc;
	for (size_t i = 0; i < l->tensors_n; i++) {
		if (shf_adam_is_step(l, &l->tensors[i]))
			continue;
		plan->from[n] = plan->from[i];
		l->tensors[n++] = l->tensors[i];
	}
	plan->steps_n = l->tensors_n - n;
	l->tensors_n = n;
	return 0;
}
