/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor is the disjoint union of its cells, because the summands of a sum follow one another. An
 * item of a cell is a tuple of the numbers of its axes, because a product counts through all
 * tuples. So two sides with the same sets of axes have the same tuples, each once, whatever the
 * sizes. */
#include "map_check.h"
#include <stdio.h>
#include <string.h>
#include "err.h"

#define CHOICES_MAX 4096        /* ways to choose a summand of each sum */

struct choosing {
	const struct shf_map *m;
	const struct shf_map_rule *r;
	const struct shf_map_tensor *t;
	struct shf_map_cell *c;
	uint32_t seen;                  /* sums in the chosen summands, as bits */
	struct sheaf_error *err;
};

/* Prints the names of axes. */
static const char *axes_print(const struct shf_map_rule *r, uint32_t axes, char text[200])
{
	size_t n = 0;

	text[0] = '\0';
	for (int i = 0; i < r->axes_n && n < 190; i++)
		if (axes >> i & 1)
			n += (size_t)snprintf(text + n, 200 - n, "%s%.40s", n ? " " : "",
			                      r->axes[i].name);
	return n ? text : "none";
}

static int tensor_refuse(const struct choosing *c, const char *what, const char *axis)
{
	return shf_fail(c->err, SHEAF_EINVAL, "%s:%d: %.200s: %s%s", c->m->path, c->t->line,
	                c->t->text, what, axis);
}

/* Adds the axes of the chosen summands of a product. */
static int choose_product(struct choosing *c, const struct shf_map_product *p)
{
	int rc = 0;

	for (uint32_t i = 0; i < p->n && rc == 0; i++) {
		const struct shf_map_term *x = &p->terms[i];
		uint32_t bit = UINT32_C(1) << x->axis;

		if (x->kind == SHF_MAP_ZERO)
			c->c->padding = true;
		if (x->kind == SHF_MAP_SUM) {
			c->seen |= bit;
			rc = choose_product(c, &x->alts[c->c->choice[x->axis]]);
		}
		if (x->kind != SHF_MAP_AXIS)
			continue;
		if (c->c->axes & bit)
			rc = tensor_refuse(c, "has twice the axis ", c->r->axes[x->axis].name);
		c->c->axes |= bit;
		c->c->inner |= bit;
	}
	return rc;
}

/* Fills in the cell of one choice. Returns 1, 0 if the choice is one of sums that are not reached,
 * or a negative code. */
static int cell_make(struct choosing *c)
{
	const struct shf_map_tensor *t = c->t;
	int rc = 0;

	c->seen = 0;
	c->c->axes = t->outer;
	c->c->inner = 0;
	c->c->padding = false;
	for (int32_t d = 0; d < t->ndim && rc == 0; d++)
		rc = choose_product(c, &t->dims[d]);
	for (uint32_t s = 0; s < t->sums_n && rc == 0; s++)
		if (!(c->seen >> s & 1) && c->c->choice[s])
			return 0;
	return rc == 0 ? 1 : rc;
}

/* Goes on to the next choice. Returns false after the last one. */
static bool next_choice(const struct shf_map_tensor *t, uint8_t *choice)
{
	for (uint32_t s = t->sums_n; s-- > 0;) {
		if (++choice[s] < t->alts[s])
			return true;
		choice[s] = 0;
	}
	return false;
}

static int cells_make(struct shf_map *m, const struct shf_map_rule *r, struct shf_map_tensor *t,
                      struct sheaf_error *err)
{
	struct shf_map_cell cells[SHF_MAP_CELLS_MAX], now = { .other = -1 };
	struct choosing c = { .m = m, .r = r, .t = t, .c = &now, .err = err };
	int choices = 0, rc;

	do {
		rc = cell_make(&c);
		if (rc > 0 && t->cells_n == SHF_MAP_CELLS_MAX)
			rc = tensor_refuse(&c, "has too many summands", "");
		if (rc > 0)
			cells[t->cells_n++] = now;
		if (rc >= 0 && ++choices > CHOICES_MAX)
			rc = tensor_refuse(&c, "has too many summands", "");
	} while (rc >= 0 && next_choice(t, now.choice));
	if (rc < 0)
		return rc;
	t->cells = shf_arena_alloc(&m->arena, t->cells_n, sizeof(*t->cells));
	if (!t->cells)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to read it", m->path);
	memcpy(t->cells, cells, t->cells_n * sizeof(*t->cells));
	return 0;
}

/* Finds the cell of a side that has these axes. Returns how many there are, and sets the last. */
static int find_cells(const struct shf_map_rule *r, int side, uint32_t axes, int *tensor, int *cell)
{
	int found = 0;

	for (uint32_t i = 0; i < r->n[side]; i++)
		for (uint32_t k = 0; k < r->sides[side][i].cells_n; k++) {
			const struct shf_map_cell *c = &r->sides[side][i].cells[k];

			if (c->padding || c->axes != axes)
				continue;
			*tensor = (int)i;
			*cell = (int)k;
			found++;
		}
	return found;
}

/* Pairs the cells of a tensor with those of the other side. */
static int cells_pair(const struct shf_map *m, const struct shf_map_rule *r, int side,
                      struct shf_map_tensor *t, struct sheaf_error *err)
{
	bool all_padding = true;
	char text[200];
	int a, b;

	for (uint32_t k = 0; k < t->cells_n; k++) {
		struct shf_map_cell *c = &t->cells[k];

		if (c->padding)
			continue;
		all_padding = false;
		if (find_cells(r, side, c->axes, &a, &b) > 1)
			return shf_fail(err, SHEAF_EINVAL, "%s:%d: two parts of side %s have the "
			                "axes %s, so it is not known which is which; name an axis "
			                "of each differently", m->path, t->line, m->sides[side],
			                axes_print(r, c->axes, text));
		if (find_cells(r, !side, c->axes, &c->other, &c->other_cell) != 1)
			return shf_fail(err, SHEAF_EINVAL, "%s:%d: %.200s has a part with the axes "
			                "%s, and nothing on side %s has these", m->path, t->line,
			                t->text, axes_print(r, c->axes, text), m->sides[!side]);
	}
	if (all_padding)
		return shf_fail(err, SHEAF_EINVAL, "%s:%d: %.200s is nothing but padding",
		                m->path, t->line, t->text);
	return 0;
}

/* Returns the axes in a product, in all its summands. */
static uint32_t axes_in(const struct shf_map_product *p)
{
	uint32_t axes = 0;

	for (uint32_t i = 0; i < p->n; i++) {
		if (p->terms[i].kind == SHF_MAP_AXIS)
			axes |= UINT32_C(1) << p->terms[i].axis;
		for (uint32_t k = 0; k < p->terms[i].alts_n; k++)
			axes |= axes_in(&p->terms[i].alts[k]);
	}
	return axes;
}

/* Returns the set of known axes and those whose sizes follow from it and the shape of a tensor. */
static uint32_t axes_solved(const struct shf_map_tensor *t, uint32_t known)
{
	for (int32_t d = 0; d < t->ndim; d++) {
		uint32_t left = axes_in(&t->dims[d]) & ~known;

		if (left && (left & (left - 1)) == 0)
			known |= left;
	}
	return known;
}

/* Checks that all sizes of a tensor follow from those of the tensors that it is made of. */
static int sizes_follow(const struct shf_map *m, const struct shf_map_rule *r, int side,
                        const struct shf_map_tensor *t, struct sheaf_error *err)
{
	uint32_t known = 0, before, want = 0;
	char text[200];

	for (int i = 0; i < r->axes_n; i++)
		if (r->axes[i].var >= 0)
			known |= UINT32_C(1) << i;
	for (int32_t d = 0; d < t->ndim; d++)
		want |= axes_in(&t->dims[d]);
	do {
		before = known;
		for (uint32_t k = 0; k < t->cells_n; k++)
			if (!t->cells[k].padding)
				known = axes_solved(&r->sides[!side][t->cells[k].other], known);
	} while (known != before);
	if ((want & ~known) == 0)
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "%s:%d: %.200s cannot be made from side %s, because the "
	                "sizes of these axes are not known: %s; they must be defined by let",
	                m->path, t->line, t->text, m->sides[!side],
	                axes_print(r, want & ~known, text));
}

/* A rule whose tensors have no dimensions is a rename, and one with {*} is of one tensor. */
static int forms_match(const struct shf_map *m, const struct shf_map_rule *r,
                       struct sheaf_error *err)
{
	const struct shf_map_tensor *a = r->sides[0], *b = r->sides[1];
	bool single = r->n[0] == 1 && r->n[1] == 1, stars = false, bare = false;

	for (int side = 0; side < 2; side++)
		for (uint32_t i = 0; i < r->n[side]; i++) {
			stars |= r->sides[side][i].star;
			bare |= !r->sides[side][i].shaped;
		}
	if (bare && (!single || a->shaped != b->shaped))
		return shf_fail(err, SHEAF_EINVAL, "%s:%d: %.200s: either both sides have "
		                "dimensions, or the rule is a rename of one tensor", m->path,
		                r->line, a->text);
	if (stars && (!single || a->star != b->star || a->outer || b->outer))
		return shf_fail(err, SHEAF_EINVAL, "%s:%d: %.200s: a rule with {*} has one tensor "
		                "on each side, each with {*} and no other number in its name",
		                m->path, r->line, a->text);
	return 0;
}

int shf_map_check(struct shf_map *m, struct shf_map_rule *r, struct sheaf_error *err)
{
	int rc = forms_match(m, r, err);

	for (int side = 0; side < 2; side++)
		for (uint32_t i = 0; i < r->n[side] && rc == 0; i++)
			rc = cells_make(m, r, &r->sides[side][i], err);
	for (int side = 0; side < 2; side++)
		for (uint32_t i = 0; i < r->n[side] && rc == 0; i++)
			rc = cells_pair(m, r, side, &r->sides[side][i], err);
	for (int side = 0; side < 2; side++)
		for (uint32_t i = 0; i < r->n[side] && rc == 0; i++)
			rc = sizes_follow(m, r, side, &r->sides[side][i], err);
	return rc;
}
