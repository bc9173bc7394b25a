/* SPDX-License-Identifier: Apache-2.0 */
#include "load_asked.h"
#include "err.h"
#include "layout.h"
#include "count_tensors.h"

/* One set of bits, so that one operation of the group unites all: tensors that are asked for, then
 * tensors that are wanted, then families. */
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

int shf_asked_new(struct shf_load *ld, struct sheaf_error *err)
{
	ld->asked = shf_zalloc(asked_bits_n(ld) / 64 + 1, sizeof(*ld->asked));
	ld->asked_counts = shf_zalloc(shf_or_words(&ld->step->run->team, asked_bits_n(ld)),
	                              sizeof(*ld->asked_counts));
	return ld->asked && ld->asked_counts
	       ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory to compare");
}

void shf_asked_free(struct shf_load *ld)
{
	shf_free(ld->asked);
	shf_free(ld->asked_counts);
}

int shf_asked_unite(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;

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
	return shf_or(&ld->step->run->team, ld->asked, asked_bits_n(ld), ld->asked_counts, err);
}

bool shf_asked_has(const struct shf_load *ld, size_t tensor)
{
	return asked_get(ld, tensor);
}

bool shf_asked_wanted(const struct shf_load *ld, size_t tensor)
{
	return asked_get(ld, wanted_bit(ld, tensor));
}

bool shf_asked_family(const struct shf_load *ld, size_t family)
{
	return asked_get(ld, family_bit(ld, family));
}
