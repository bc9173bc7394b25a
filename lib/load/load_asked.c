/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks of a load ask for is one set of bits, so that one operation of the group unites
 * it: a bit for each tensor that is asked for, then one for each tensor of which bytes are wanted,
 * then one for each family. shf_allreduce_or sums a counter for each bit. Behind these counters, in
 * the same operation, the ranks sum how many bytes of the plan's first exchange each rank will
 * receive. So each can allocate them beforehand, and the exchange needs no agreement on memory
 * (shf_exchange_known). */
#include "load_asked.h"
#include "err.h"
#include "layout.h"
#include "count_tensors.h"

/* Numbers of the bits. The bit of a tensor that is asked for has the number of the tensor; the
 * functions below return the numbers of the other bits. */
static size_t wanted_bit(const struct shf_load *ld, size_t tensor)
{
	return ld->step->layout.tensors_n + tensor;
}

static size_t family_bit(const struct shf_load *ld, size_t family)
{
	return 2 * ld->step->layout.tensors_n + family;
}

static size_t asked_bits_n(const struct shf_load *ld)
{
	return family_bit(ld, ld->step->layout.families_n);
}

static void asked_set(struct shf_load *ld, size_t i)
{
	ld->asked[i / 64] |= UINT64_C(1) << (i % 64);
}

static bool asked_get(const struct shf_load *ld, size_t i)
{
	return ld->asked[i / 64] >> (i % 64) & 1;
}

int shf_load_asked_new(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_team *team = &ld->step->run->team;

	ld->asked = shf_zalloc(asked_bits_n(ld) / 64 + 1, sizeof(*ld->asked));
	ld->asked_counts = shf_zalloc(shf_allreduce_or_words(team, asked_bits_n(ld)) +
	                              (size_t)team->ranks, sizeof(*ld->asked_counts));
	return ld->asked && ld->asked_counts
	       ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory to compare");
}

void shf_load_asked_free(struct shf_load *ld)
{
	shf_free(ld->asked);
	shf_free(ld->asked_counts);
}

int shf_load_asked_unite(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	struct shf_team *team = &ld->step->run->team;
	uint64_t *told = ld->asked_counts + shf_allreduce_or_words(team, asked_bits_n(ld));
	int rc;

	/* In a dry load there is no plan and tells.to is NULL: the words stay 0. */
	for (int r = 0; r < team->ranks && ld->tells.to; r++)
		told[r] = ld->tells.to[r];
	for (size_t i = 0; i < ld->state->n; i++) {
		const struct shf_slice *s = &ld->state->slices[i];
		const struct shf_target *t = &ld->targets[i];
		int64_t family = shf_layout_family(l, s->family);
		int64_t at = shf_layout_find(l, s->family, s->stored);

		if (family >= 0)
			asked_set(ld, family_bit(ld, (size_t)family));
		if (at >= 0)
			asked_set(ld, (size_t)at);
		if (t->source != SHF_FROM_STEP)
			continue;
		asked_set(ld, t->tensor);
		if (!t->slice.empty && !l->tensors[t->tensor].loose)
			asked_set(ld, wanted_bit(ld, t->tensor));
	}
	rc = shf_allreduce_or(team, ld->asked, asked_bits_n(ld), ld->asked_counts,
	                      (size_t)team->ranks, err);
	ld->told = told[team->rank];
	return rc;
}

bool shf_load_asked_has(const struct shf_load *ld, size_t tensor)
{
	return asked_get(ld, tensor);
}

bool shf_load_asked_wanted(const struct shf_load *ld, size_t tensor)
{
	return asked_get(ld, wanted_bit(ld, tensor));
}

bool shf_load_asked_family(const struct shf_load *ld, size_t family)
{
	return asked_get(ld, family_bit(ld, family));
}
