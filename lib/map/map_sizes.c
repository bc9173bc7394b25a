/* SPDX-License-Identifier: Apache-2.0 */
/* A dimension whose axes are known but for one, x, has the size a + b x. */
#include "map_sizes.h"
#include <inttypes.h>
#include <stdio.h>
#include "err.h"

struct form {                   /* a + b x */
	int64_t a, b;
	int x;                          /* axis; -1: none */
	bool more;                      /* it has several unknown axes */
	bool wide;                      /* it is beyond 63 bits */
	int rc;
};

void shf_map_sizes_init(struct shf_map_sizes *s, const struct shf_map *m,
                        const struct shf_map_rule *r, struct shf_map_values *v)
{
	*s = (struct shf_map_sizes){ .map = m, .rule = r, .values = v };
	for (int i = 0; i < r->axes_n; i++)
		s->size[i] = r->axes[i].var >= 0 ? v->var[r->axes[i].var] : -1;
}

static struct form form_add(struct form p, struct form q)
{
	struct form out = { .x = p.x >= 0 ? p.x : q.x, .more = p.more || q.more,
		.wide = p.wide || q.wide, .rc = p.rc ? p.rc : q.rc };

	out.more |= p.x >= 0 && q.x >= 0 && p.x != q.x;
	out.wide |= __builtin_add_overflow(p.a, q.a, &out.a);
	out.wide |= __builtin_add_overflow(p.b, q.b, &out.b);
	return out;
}

/* No cell has an axis twice, but two summands may, so a product of two forms with x is possible,
 * and counted as if they had two unknown axes. */
static struct form form_mul(struct form p, struct form q)
{
	struct form out = { .x = p.x >= 0 ? p.x : q.x, .more = p.more || q.more,
		.wide = p.wide || q.wide, .rc = p.rc ? p.rc : q.rc };
	int64_t m, n;

	out.more |= p.x >= 0 && q.x >= 0;
	out.wide |= __builtin_mul_overflow(p.a, q.a, &out.a);
	out.wide |= __builtin_mul_overflow(p.a, q.b, &m);
	out.wide |= __builtin_mul_overflow(p.b, q.a, &n);
	out.wide |= __builtin_add_overflow(m, n, &out.b);
	return out;
}

static struct form form_of(struct shf_map_sizes *s, const struct shf_map_product *p, int line,
                           struct sheaf_error *err)
{
	struct form all = { .a = 1, .x = -1 };

	for (uint32_t i = 0; i < p->n; i++) {
		const struct shf_map_term *t = &p->terms[i];
		struct form one = { .a = 1, .x = -1 };

		if (t->kind == SHF_MAP_AXIS && s->size[t->axis] >= 0)
			one.a = s->size[t->axis];
		else if (t->kind == SHF_MAP_AXIS)
			one = (struct form){ .b = 1, .x = t->axis };
		if (t->kind == SHF_MAP_ZERO) {
			one.rc = shf_map_eval(s->values, &t->expr, line, &one.a, err);
			if (one.rc == 0 && one.a < 0)
				one.rc = shf_fail(err, SHEAF_EINVAL, "%s:%d: padding of %" PRId64
				                  " items; check it against config.json",
				                  s->map->path, line, one.a);
		}
		if (t->kind == SHF_MAP_SUM) {
			one = (struct form){ .x = -1 };
			for (uint32_t k = 0; k < t->alts_n; k++)
				one = form_add(one, form_of(s, &t->alts[k], line, err));
		}
		all = form_mul(all, one);
	}
	return all;
}

/* Prints a shape. */
static const char *dims_print(int32_t ndim, const int64_t *dims, char text[200])
{
	size_t n = (size_t)snprintf(text, 200, "[");

	for (int32_t d = 0; d < ndim && n < 170; d++)
		n += (size_t)snprintf(text + n, 200 - n, "%s%" PRId64, d ? ", " : "", dims[d]);
	snprintf(text + n, 200 - n, "]");
	return text;
}

static int no_match(struct shf_map_sizes *s, const struct shf_map_tensor *t,
                    const struct shf_map_dims *have, const char *why, struct sheaf_error *err)
{
	char text[200];

	return shf_fail(err, SHEAF_ELAYOUT, "%.200s has shape %s, which does not fit %s:%d: %s; "
	                "check that the map and config.json are those of this model", have->name,
	                dims_print(have->ndim, have->dims, text), s->map->path, t->line, why);
}

int shf_map_sizes_take(struct shf_map_sizes *s, const struct shf_map_tensor *t,
                       const struct shf_map_dims *have, struct sheaf_error *err)
{
	int found = 0;

	if (have->ndim != t->ndim)
		return no_match(s, t, have, "it has a different number of dimensions", err);
	for (int32_t d = 0; d < t->ndim; d++) {
		struct form f = form_of(s, &t->dims[d], t->line, err);

		if (f.rc < 0)
			return f.rc;
		if (f.x < 0 || f.more)
			continue;
		if (f.wide || f.b <= 0 || have->dims[d] < f.a || (have->dims[d] - f.a) % f.b)
			return no_match(s, t, have, "no size of an axis gives that", err);
		s->size[f.x] = (have->dims[d] - f.a) / f.b;
		found = 1;
	}
	return found;
}

int shf_map_sizes_dims(struct shf_map_sizes *s, const struct shf_map_tensor *t,
                       int64_t dims[SHEAF_DIMS_MAX], struct sheaf_error *err)
{
	int64_t items = 16;

	for (int32_t d = 0; d < t->ndim; d++) {
		struct form f = form_of(s, &t->dims[d], t->line, err);

		if (f.rc < 0)
			return f.rc;
		if (f.x >= 0)
			return shf_fail(err, SHEAF_ELAYOUT, "%s:%d: the size of axis %s is not "
			                "known; it must be defined by let", s->map->path, t->line,
			                s->rule->axes[f.x].name);
		dims[d] = f.a;
		if (f.wide || (f.a && __builtin_mul_overflow(items, f.a, &items)))
			return shf_fail(err, SHEAF_ELAYOUT, "%s:%d: %.200s would have a size "
			                "beyond 63 bits", s->map->path, t->line, t->text);
	}
	return 0;
}

int shf_map_sizes_match(struct shf_map_sizes *s, const struct shf_map_tensor *t,
                        const struct shf_map_dims *have, struct sheaf_error *err)
{
	int64_t dims[SHEAF_DIMS_MAX];
	char text[200], why[300];
	int rc = have->ndim == t->ndim ? shf_map_sizes_dims(s, t, dims, err)
	       : no_match(s, t, have, "it has a different number of dimensions", err);

	for (int32_t d = 0; d < t->ndim && rc == 0; d++)
		if (dims[d] != have->dims[d]) {
			snprintf(why, sizeof(why), "the rule gives %s",
			         dims_print(t->ndim, dims, text));
			rc = no_match(s, t, have, why, err);
		}
	return rc;
}

/* ---- places ---- */

struct placing {
	struct shf_map_sizes *s;
	const struct shf_map_tensor *t;
	const struct shf_map_cell *c;
	uint64_t *base, *stride;
};

/* All sizes are known by now, and their products fit. */
static uint64_t product_size(const struct placing *p, const struct shf_map_product *x)
{
	struct sheaf_error own;

	return (uint64_t)form_of(p->s, x, p->t->line, &own).a;
}

/* Adds what a product contributes: its last term has a distance of `step` items. */
static void place_product(struct placing *p, const struct shf_map_product *x, uint64_t step)
{
	for (uint32_t i = x->n; i-- > 0;) {
		const struct shf_map_term *t = &x->terms[i];
		struct shf_map_product one = { t, 1 };

		if (t->kind == SHF_MAP_AXIS)
			p->stride[t->axis] = step;
		if (t->kind == SHF_MAP_SUM) {
			uint8_t chosen = p->c->choice[t->axis];

			for (uint32_t k = 0; k < t->alts_n; k++)
				if (k < chosen)
					*p->base += step * product_size(p, &t->alts[k]);
			place_product(p, &t->alts[chosen], step);
		}
		step *= product_size(p, &one);
	}
}

void shf_map_sizes_place(struct shf_map_sizes *s, const struct shf_map_tensor *t,
                         const struct shf_map_cell *c, const int64_t *dims, uint64_t *base,
                         uint64_t stride[SHF_MAP_AXES_MAX])
{
	struct placing p = { s, t, c, base, stride };
	uint64_t row = 1;

	*base = 0;
	for (int32_t d = t->ndim - 1; d >= 0; d--) {
		place_product(&p, &t->dims[d], row);
		row *= (uint64_t)dims[d];
	}
}
