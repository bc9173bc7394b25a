/* SPDX-License-Identifier: Apache-2.0 */
/* A site is where the source has tensors: the weights of a family, or what the state of the
 * optimizer has under one key. Each rule is applied to each site. First the tensors that the rule
 * takes are looked up by their names. Then those that it makes are put together from their
 * cells. */
#include "map_plan.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "map_make.h"
#include "valid.h"

#define NAMES_SAID 8            /* most names in a message */
/* A map that fits looks each tensor up a few times, and at each tensor for each rule with {*}. */
#define WORK_LEAST (UINT64_C(1) << 24)
#define WORK_EACH 4096

/* ---- sites ---- */

static bool is_chosen(const struct shf_mapper *p, const char *family)
{
	return !p->how->family || strcmp(p->how->family, family) == 0;
}

/* Returns what state under a key, /<key>, has. UNKNOWN: Sheaf does not know the key. */
static enum shf_map_has key_has(const char *key)
{
	static const struct { const char *key; enum shf_map_has has; } known[] = {
		{ "/moment1_0", SHF_MAP_ITEMS }, { "/moment2_0", SHF_MAP_ITEMS },
		{ "/moment2_max_0", SHF_MAP_ITEMS }, { "/beta1_pow_acc_0", SHF_MAP_VALUE },
		{ "/beta2_pow_acc_0", SHF_MAP_VALUE }, { "/step", SHF_MAP_VALUE } };

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(known[i].key, key) == 0)
			return known[i].has;
	return SHF_MAP_UNKNOWN;
}

/* Returns what state at a place has. */
static enum shf_map_has place_has(const struct shf_map_place *x)
{
	return strcmp(x->family, "master_weights") == 0 ? SHF_MAP_ITEMS : key_has(x->after);
}

/* Adds a site. EINVAL: there are too many: a rule with {*} would take for weights what is left. */
static int add_site(struct shf_mapper *p, const struct shf_map_place *from,
                    const struct shf_map_place *to, bool state)
{
	if (!is_chosen(p, from->family))
		return 0;
	for (int i = 0; i < p->sites_n; i++) {
		const struct shf_map_place *x = &p->sites[i].from;

		if (strcmp(x->family, from->family) == 0 && strcmp(x->before, from->before) == 0 &&
		    strcmp(x->after, from->after) == 0)
			return 0;
	}
	if (p->sites_n == SHF_MAP_SITES_MAX)
		return shf_fail(p->err, SHEAF_EINVAL, "%s: has more than %d kinds of state of the "
		                "optimizer and families; name the family to map", p->path,
		                SHF_MAP_SITES_MAX);
	p->sites[p->sites_n++] = (struct shf_map_site){ .from = *from, .to = *to, .state = state,
		.has = place_has(from) ? place_has(from) : place_has(to) };
	return 0;
}

/* A name of the source: of a tensor, or one that is tied to a tensor. */
struct source_name { const char *name; uint32_t family; int64_t tensor; int *taken; };

/* Returns name i of the source. The names of tensors come first, then those that are tied. */
static struct source_name source_name_at(struct shf_mapper *p, size_t i)
{
	const struct shf_layout *l = p->l;
	const struct shf_lt_tied *tied;

	if (i < l->tensors_n)
		return (struct source_name){ l->tensors[i].name, l->tensors[i].family,
			(int64_t)i, &p->taken[i] };
	i -= l->tensors_n;
	tied = &l->tied[i];
	return (struct source_name){ tied->name, tied->family,
		shf_layout_find(l, l->families[tied->family].name, tied->to), &p->tied_taken[i] };
}

static size_t source_names_n(const struct shf_mapper *p)
{
	return p->l->tensors_n + p->l->tied_n;
}

/* Returns whether <name>/<key> is state of the optimizer, and not a name with a slash: it is in a
 * family of its own, the weight is there as well, or the key is one that Sheaf knows. */
static bool is_state(const struct shf_mapper *p, const char *family, const char *base,
                     const char *key)
{
	if (key_has(key))
		return true;
	return strcmp(family, "optimizer") == 0 || shf_layout_find(p->l, "model", base) >= 0 ||
	       shf_layout_find(p->l, family, base) >= 0;
}

/* Adds <name>/<key> of a name, if that is state. */
static int add_key(struct shf_mapper *p, const char *name, uint32_t family)
{
	struct shf_map_place x = { "", strrchr(name, '/'), p->l->families[family].name };
	char *base;

	if (!x.after || x.after == name)
		return 0;
	for (int i = 0; i < p->sites_n; i++)
		if (strcmp(p->sites[i].from.family, x.family) == 0 && !p->sites[i].from.before[0] &&
		    strcmp(p->sites[i].from.after, x.after) == 0)
			return 0;
	shf_buf_reset(&p->text);
	shf_buf_add(&p->text, name, (size_t)(x.after - name));
	shf_buf_u8(&p->text, 0);
	if (p->text.oom)
		return shf_map_no_memory(p);
	base = (char *)p->text.data;
	if (!is_state(p, x.family, base, x.after))
		return 0;
	x.after = shf_arena_strdup(&p->plan->arena, x.after, strlen(x.after));
	if (!x.after)
		return shf_map_no_memory(p);
	return add_site(p, &x, &x, true);
}

/* Finds all sites: what `also` names, <name>/<key> of each key, and the weights of each family.
 * State comes first, because a rule with {*} alone takes any name. */
static int find_sites(struct shf_mapper *p)
{
	const struct shf_map_also *also = (const void *)p->m->also.data;
	int rc = 0;

	for (size_t i = 0; i < p->m->also.len / sizeof(*also) && rc == 0; i++)
		rc = add_site(p, &also[i].sides[p->from], &also[i].sides[!p->from], true);
	for (size_t i = 0; i < source_names_n(p) && rc == 0; i++) {
		const struct source_name x = source_name_at(p, i);

		rc = add_key(p, x.name, x.family);
	}
	for (size_t i = 0; i < p->l->families_n && rc == 0; i++) {
		struct shf_map_place x = { "", "", p->l->families[i].name };

		rc = add_site(p, &x, &x, false);
	}
	return rc;
}

/* ---- what is taken ---- */

/* Returns the tensor of this name, or SHF_MAP_NONE. Sets *tied to the number of the tied name that
 * led to it; -1: it is its own name. */
static uint32_t find_tensor(const struct shf_mapper *p, const char *family, const char *name,
                            int64_t *tied)
{
	int64_t t = shf_layout_find(p->l, family, name);

	*tied = -1;
	for (size_t i = 0; t < 0 && i < p->l->tied_n; i++) {
		const struct shf_lt_tied *x = &p->l->tied[i];

		if (strcmp(x->name, name) || strcmp(p->l->families[x->family].name, family))
			continue;
		t = shf_layout_find(p->l, family, x->to);
		*tied = (int64_t)i;
	}
	return t < 0 ? SHF_MAP_NONE : (uint32_t)t;
}

/* Notes that a rule takes a tensor. ELAYOUT: another one has taken it. */
static int take_tensor(struct shf_mapper *p, const char *name, uint32_t t, int64_t tied, int line)
{
	int *by = tied >= 0 ? &p->tied_taken[tied] : &p->taken[t];

	if (*by)
		return shf_fail(p->err, SHEAF_EINVAL, "%s:%d: takes %.*s, which the rule of line "
		                "%d takes already; each tensor must be taken once", p->m->path,
		                line, shf_name_show(name), name, *by);
	*by = line;
	p->site->taken++;
	return 0;
}

/* Looks up the tensor of the source whose name the pattern makes with the current numbers, and
 * notes that a rule takes it. Sets *at to SHF_MAP_NONE if there is none. */
static int take_named(struct shf_mapper *p, const struct shf_map_tensor *t, const char *star,
                      uint32_t *at)
{
	int64_t tied;
	int rc = shf_map_source_name(p, t, star);

	if (rc < 0)
		return rc;
	*at = find_tensor(p, p->site->from.family, (char *)p->text.data, &tied);
	return *at == SHF_MAP_NONE ? 0
	       : take_tensor(p, (char *)p->text.data, *at, tied, t->line);
}

/* Returns the work of n names. */
static uint64_t work_of(uint64_t n)
{
	return n > UINT64_MAX / SHF_MAP_LOOKUP ? UINT64_MAX : n * SHF_MAP_LOOKUP;
}

/* Looks up all tensors that a pattern of the source takes. */
static int take_pattern(struct shf_mapper *p, uint32_t i, const char *star)
{
	const struct shf_map_tensor *t = shf_map_src(p, i);
	struct shf_map_takes *x = &p->takes[i];
	int rc = 0;

	x->count = (struct shf_map_count){ &p->values, p->rule, t->outer };
	x->n = shf_map_count_begin(&x->count);
	rc = shf_map_spend(p, work_of(x->n), t);
	if (rc < 0)
		return rc;
	x->from = shf_alloc(x->n, sizeof(*x->from));
	if (!x->from)
		return shf_map_no_memory(p);
	for (uint64_t k = 0; k < x->n && rc == 0; k++) {
		rc = take_named(p, t, star, &x->from[k]);
		shf_map_count_next(&x->count);
	}
	return rc;
}

/* Applies the rule to the current site. */
static int apply_rule(struct shf_mapper *p, const char *star)
{
	int to = !p->from, rc = 0;

	for (uint32_t i = 0; i < p->rule->n[p->from] && rc == 0; i++)
		rc = take_pattern(p, i, star);
	for (uint32_t i = 0; i < p->rule->n[to] && rc == 0; i++) {
		const struct shf_map_tensor *t = &p->rule->sides[to][i];
		struct shf_map_count c = { &p->values, p->rule, t->outer };
		uint64_t n = shf_map_count_begin(&c);

		if (rc == 0)
			rc = shf_map_spend(p, work_of(n), t);
		for (uint64_t k = 0; k < n && rc == 0; k++) {
			rc = shf_map_make(p, t, star);
			shf_map_count_next(&c);
		}
	}
	for (int i = 0; i < SHF_MAP_SIDE_MAX; i++) {
		shf_free(p->takes[i].from);
		p->takes[i].from = NULL;
	}
	return rc;
}

/* Returns what {*} of a pattern stands for in the name of a tensor, in the arena; NULL: the tensor
 * is not at the current site, or has another name, or no memory, which sets *rc. */
static const char *star_of(struct shf_mapper *p, const struct shf_map_tensor *t, const char *name,
                           int *rc)
{
	const struct shf_map_place *x = &p->site->from;
	size_t n = strlen(name), after = strlen(x->after), star_n;
	const char *before[2] = { p->how->prefix, x->before }, *star;
	char *own;

	for (int i = 0; i < 2; i++) {
		size_t m = strlen(before[i]);

		if (n < m || memcmp(name, before[i], m))
			return NULL;
		name += m;
		n -= m;
	}
	if (n < after || memcmp(name + n - after, x->after, after) ||
	    !shf_map_name_match(t, name, n - after, &star, &star_n))
		return NULL;
	own = shf_arena_strdup(&p->plan->arena, star, star_n);
	if (!own)
		*rc = shf_map_no_memory(p);
	return own;
}

/* Returns what {*} of a pattern stands for in name i of the source. NULL: the pattern does not take
 * that name, or it is taken already, or no memory, which sets *rc. */
static const char *star_at(struct shf_mapper *p, const struct shf_map_tensor *t, size_t i, int *rc)
{
	const struct source_name x = source_name_at(p, i);
	const struct shf_lt_tensor *of = x.tensor < 0 ? NULL : &p->l->tensors[x.tensor];

	if (*x.taken || !of || strcmp(p->l->families[x.family].name, p->site->from.family) ||
	    (t->shaped && (of->wide || of->items.ndim != t->ndim)))
		return NULL;
	return star_of(p, t, x.name, rc);
}

/* Applies a rule with {*} to each name of the current site that is not taken. */
static int apply_star(struct shf_mapper *p)
{
	const struct shf_map_tensor *t = shf_map_src(p, 0);
	int rc = shf_map_spend(p, source_names_n(p), t);

	for (size_t i = 0; i < source_names_n(p) && rc == 0; i++) {
		const char *star = star_at(p, t, i, &rc);

		if (star)
			rc = apply_rule(p, star);
	}
	return rc;
}

/* Marks the names that a `drop` line with {*} has as used. */
static int drop_star(struct shf_mapper *p, const struct shf_map_tensor *t)
{
	int rc = 0;

	for (size_t i = 0; i < source_names_n(p) && rc == 0; i++)
		if (star_at(p, t, i, &rc))
			*source_name_at(p, i).taken = t->line;
	return rc;
}

/* Marks the tensors that a `drop` line names as used: the other side does not have them. */
static int apply_drop(struct shf_mapper *p, const struct shf_map_drop *d)
{
	const struct shf_map_tensor *t = d->rule.sides[0];
	struct shf_map_count c = { &p->values, &d->rule, t->outer };
	uint64_t n;
	int rc;

	p->rule = &d->rule;
	if (t->star)
		return drop_star(p, t);
	n = shf_map_count_begin(&c);
	rc = shf_map_spend(p, work_of(n), t);
	for (uint64_t k = 0; k < n && rc == 0; k++) {
		uint32_t at;

		rc = take_named(p, t, NULL, &at);
		shf_map_count_next(&c);
	}
	return rc;
}

/* Applies all rules and drops to the current site, in the order of their lines. */
static int apply_lines(struct shf_mapper *p)
{
	const struct shf_map_drop *drops = (const void *)p->m->drops.data;
	size_t n, drops_n = p->m->drops.len / sizeof(*drops), d = 0;
	const struct shf_map_rule *rules = shf_map_rules(p->m, &n);
	int rc = 0;

	for (size_t i = 0; i <= n && rc == 0; i++) {
		for (; d < drops_n && rc == 0 &&
		       (i == n || drops[d].rule.line < rules[i].line); d++)
			if (drops[d].side == p->from)
				rc = apply_drop(p, &drops[d]);
		if (i == n || rc < 0)
			break;
		p->rule = &rules[i];
		rc = shf_map_src(p, 0)->star ? apply_star(p) : apply_rule(p, NULL);
	}
	if (rc == 0 && p->site->missing.code && p->site->taken) {
		*p->err = p->site->missing;
		rc = SHEAF_ELAYOUT;
	}
	return rc;
}

/* ---- what is left ---- */

/* Adds a name to those that no rule takes. */
static void say_left(struct shf_buf *names, const char *name, uint64_t n)
{
	if (n < NAMES_SAID)
		shf_buf_addf(names, "%s%.*s", n ? ", " : "", shf_name_show(name), name);
}

/* ELAYOUT: there are tensors that no rule takes. */
static int check_left(struct shf_mapper *p)
{
	struct shf_buf names = SHF_BUF_INIT;
	size_t skip = strlen(p->how->prefix);
	uint64_t n = 0;
	int rc = 0;

	for (size_t i = 0; i < source_names_n(p); i++) {
		const struct source_name x = source_name_at(p, i);

		if (!*x.taken && is_chosen(p, p->l->families[x.family].name) &&
		    strncmp(x.name, p->how->prefix, skip) == 0)
			say_left(&names, x.name, n++);
	}
	if (n)
		shf_buf_u8(&names, 0);
	if (n)
		rc = shf_fail(p->err, SHEAF_ELAYOUT, "%s: no rule of %s takes, from %s to %s, %"
		              PRIu64 " tensor%s: %s%s; add a rule or a drop", p->path, p->m->path,
		              p->m->sides[p->from], p->m->sides[!p->from], n, n > 1 ? "s" : "",
		              names.oom ? "" : (char *)names.data, n > NAMES_SAID ? ", ..." : "");
	shf_buf_release(&names);
	return rc;
}

/* Orders as the tensors of a foreign checkpoint are (foreign_dir.c). */
static int by_family_and_name(const void *a, const void *b)
{
	const struct shf_map_made *x = a, *y = b;
	int c = shf_family_order(x->family, y->family);

	return c ? c : strcmp(x->name, y->name);
}

static int check_made(struct shf_mapper *p)
{
	struct shf_map_made *made = (struct shf_map_made *)(void *)p->plan->made.data;
	size_t n = p->plan->made.len / sizeof(*made);

	if (n)
		qsort(made, n, sizeof(*made), by_family_and_name);
	for (size_t i = 1; i < n; i++)
		if (by_family_and_name(&made[i - 1], &made[i]) == 0)
			return shf_fail(p->err, SHEAF_EINVAL, "%s:%d: makes %.*s, which the rule "
			                "of line %d makes already; each tensor must be made once",
			                p->m->path, made[i].line, shf_name_show(made[i].name),
			                made[i].name, made[i - 1].line);
	return 0;
}

/* Counts the items of the source that are padding: those of the tensors of a rule that no piece
 * has, which only padding can be. */
static void count_padding(struct shf_mapper *p)
{
	for (size_t i = 0; i < p->l->tensors_n; i++) {
		const struct shf_lt_tensor *t = &p->l->tensors[i];
		uint64_t items = t->bytes * 8 / shf_dtype(t->dtype)->bits;

		if (p->covered[i] && p->covered[i] < items)
			p->plan->padding += items - p->covered[i];
	}
}

/* EINVAL: the caller gave a number that nothing asks for. */
static int check_given(const struct shf_mapper *p)
{
	const struct shf_map_config *c = p->values.config;
	const struct shf_map_entry *e = (const void *)c->entries.data;

	for (size_t i = 0; i < c->entries.len / sizeof(*e); i++)
		if (e[i].given && !e[i].used)
			return shf_fail(p->err, SHEAF_EINVAL, "%s: nothing asks for %.100s, which "
			                "was given", p->m->path, e[i].key);
	return 0;
}

static int plan_rules(struct shf_mapper *p, struct shf_map_config *config)
{
	int rc = shf_map_values_make(&p->values, p->m, config, p->err);

	if (rc == 0)
		rc = check_given(p);
	if (rc == 0)
		rc = find_sites(p);
	for (int i = 0; i < p->sites_n && rc == 0; i++) {
		p->site = &p->sites[i];
		rc = apply_lines(p);
	}
	if (rc == 0)
		rc = check_left(p);
	if (rc == 0)
		count_padding(p);
	return rc == 0 ? check_made(p) : rc;
}

int shf_map_plan_make(struct shf_map_plan *plan, const struct shf_map *m,
                      struct shf_map_config *config, const struct shf_layout *l, const char *path,
                      const struct shf_map_how *how, struct sheaf_error *err)
{
	struct shf_mapper *p = shf_zalloc(1, sizeof(*p));
	int rc;

	*plan = (struct shf_map_plan){ 0 };
	if (!p)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to map it", path);
	p->plan = plan;
	p->m = m;
	p->l = l;
	p->path = path;
	p->how = how;
	p->from = !how->to;
	p->left = (how->work_least ? how->work_least : WORK_LEAST) +
	          WORK_EACH * (l->tensors_n + l->tied_n);
	p->err = err;
	p->taken = shf_zalloc(l->tensors_n + 1, sizeof(*p->taken));
	p->tied_taken = shf_zalloc(l->tied_n + 1, sizeof(*p->tied_taken));
	p->covered = shf_zalloc(l->tensors_n + 1, sizeof(*p->covered));
	rc = p->taken && p->tied_taken && p->covered ? plan_rules(p, config) : shf_map_no_memory(p);
	shf_free(p->taken);
	shf_free(p->tied_taken);
	shf_free(p->covered);
	shf_buf_release(&p->text);
	shf_free(p);
	return rc;
}

void shf_map_plan_release(struct shf_map_plan *plan)
{
	shf_buf_release(&plan->made);
	shf_buf_release(&plan->pieces);
	shf_arena_release(&plan->arena);
}
