/* SPDX-License-Identifier: Apache-2.0 */
/* Source: adamw_kernel.cc of Paddle 3.3. */
#include "paddle_powers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"

#define MOMENT "/moment1_0"
static const char *const powers[] = { "/beta1_pow_acc_0", "/beta2_pow_acc_0" };

bool shf_paddle_is_moment(const struct shf_lt_tensor *t)
{
	size_t n = strlen(t->name), m = strlen(MOMENT);

	return n > m && strcmp(t->name + n - m, MOMENT) == 0;
}

char *shf_paddle_power_name(struct shf_arena *arena, const struct shf_lt_tensor *moment, int i)
{
	size_t n = strlen(moment->name) - strlen(MOMENT), m = strlen(powers[i]) + 1;
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
		moments |= shf_paddle_is_moment(&l->tensors[i]);
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

/* Reads the betas of all groups of parameters, as torch's optimizers have them: "[0.9, 0.999]".
 * Leaves 0 in beta if there are none, or if groups differ. */
static void betas_of_groups(double beta[2], const struct shf_manifest *m)
{
	bool differ = false;
	double first[2] = { 0 };

	for (size_t i = 0; i < m->notes_n; i++) {
		const char *key = m->notes[i].key, *value = m->notes[i].value;
		size_t n = strlen(key);
		double b[2];

		if (strncmp(key, "optimizer.param_groups.", 23) || strcmp(key + n - 6, ".betas"))
			continue;
		if (sscanf(value, "[%lf, %lf]", &b[0], &b[1]) != 2)
			b[0] = b[1] = 0;
		if (!first[0])
			memcpy(first, b, sizeof(first));
		differ |= b[0] != first[0] || b[1] != first[1];
	}
	if (!differ)
		memcpy(beta, first, sizeof(first));
}

int shf_paddle_powers(float pow[2], const struct sheaf_checkpoint *step,
                      const struct shf_export_opts *opts, struct sheaf_error *err)
{
	const struct shf_manifest *m = &step->manifest;
	double beta[2] = { opts->beta1, opts->beta2 };
	int64_t t = opts->adam_step;

	for (size_t i = 0; !t && i < m->notes_n; i++)
		if (strcmp(m->notes[i].key, "adam.step") == 0)
			t = strtoll(m->notes[i].value, NULL, 10);
	if (!beta[0] && !beta[1])
		betas_of_groups(beta, m);
	if (t <= 0)
		return shf_fail(err, SHEAF_EINVAL, "%s: its moments need the number of updates, "
		                "and it has no note adam.step; give it (how.adam_step, --step)",
		                step->path);
	if (!(beta[0] > 0 && beta[0] < 1 && beta[1] > 0 && beta[1] < 1))
		return shf_fail(err, SHEAF_EINVAL, "%s: its moments need the betas of AdamW, "
		                "because Paddle keeps their powers; give them (how.beta1 and "
		                "how.beta2, --betas)", step->path);
	for (int i = 0; i < 2; i++)
		pow[i] = (float)power_of(beta[i], (uint64_t)t + 1);
	return 0;
}
