/* SPDX-License-Identifier: Apache-2.0 */
#include "exact.h"

#include <math.h>
#include <string.h>

enum { CARRY_AFTER = 1 << 29 };         /* a limb grows by less than 2^32 with each addition */

void tr_exact_add(struct tr_exact *sum, float x)
{
	uint32_t bits, exponent;
	uint64_t part;
	int64_t sign;

	memcpy(&bits, &x, sizeof(bits));
	exponent = bits >> 23 & 255;
	if (exponent == 255) {
		sum->odd++;
		return;
	}
	if (++sum->adds >= CARRY_AFTER)
		tr_exact_carry(sum);
	part = (bits & 0x7FFFFF) | (exponent ? 0x800000 : 0);
	exponent -= exponent ? 1 : 0;   /* the value is part * 2^(exponent - 149) */
	part <<= exponent % 32;
	sign = bits >> 31 ? -1 : 1;
	sum->limb[exponent / 32] += sign * (int64_t)(part & 0xFFFFFFFF);
	sum->limb[exponent / 32 + 1] += sign * (int64_t)(part >> 32);
}

void tr_exact_carry(struct tr_exact *sum)
{
	for (int i = 0; i + 1 < TR_EXACT_LIMBS; i++) {
		int64_t low = sum->limb[i] & 0xFFFFFFFF;

		sum->limb[i + 1] += (sum->limb[i] - low) / ((int64_t)1 << 32);
		sum->limb[i] = low;
	}
	sum->adds = 0;
}

/* Returns the value of limbs that are all in [0, 2^32). */
static double magnitude(const int64_t *limb)
{
	int top = TR_EXACT_LIMBS - 1, shift;
	uint64_t high, low, sticky = 0;

	while (top > 0 && limb[top] == 0)
		top--;
	/* `high` gets the 64 bits from the highest one that is set, `sticky` those below them. */
	high = (uint64_t)limb[top] << 32 | (uint64_t)(top > 0 ? limb[top - 1] : 0);
	low = (uint64_t)(top > 1 ? limb[top - 2] : 0) << 32;
	if (!high)
		return 0;
	shift = __builtin_clzll(high);
	high = shift ? high << shift | low >> (64 - shift) : high;
	sticky = low << shift;
	for (int i = 0; i < top - 2; i++)
		sticky |= (uint64_t)limb[i];
	/* The conversion to a double rounds to nearest even. The last of the 64 bits stands for all
	 * bits below it, so that what lies just above a tie is not taken for one. */
	return ldexp((double)(high | (sticky != 0)), 32 * (top - 1) - shift - 149);
}

double tr_exact_value(const struct tr_exact *sum)
{
	struct tr_exact s = *sum;
	int negative;

	if (s.odd)
		return NAN;
	tr_exact_carry(&s);
	negative = s.limb[TR_EXACT_LIMBS - 1] < 0;
	if (negative) {
		for (int i = 0; i < TR_EXACT_LIMBS; i++)
			s.limb[i] = -s.limb[i];
		tr_exact_carry(&s);
	}
	return negative ? -magnitude(s.limb) : magnitude(s.limb);
}
