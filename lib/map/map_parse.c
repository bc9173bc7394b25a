/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the text of a map. A line that begins with a blank continues the one before, and # begins a
 * comment. Each line is read by itself, by descent through brackets, whose depth is bounded. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "json.h"
#include "map.h"
#include "map_check.h"

struct parser {
	struct shf_map *m;
	const char *p;                  /* the rest of the line, NUL-ended */
	int line, deep;
	struct shf_map_rule *rule;      /* the rule whose axes are counted; NULL: none */
	uint32_t *outer;                /* receives the axes in a name */
	bool star;                      /* the name has {*} */
	struct shf_map_op ops[SHF_MAP_OPS_MAX];
	uint32_t ops_n;
	struct sheaf_error *err;
};

static int parse_expr(struct parser *p);
static int bad(const struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Fails with the place and what is wrong with it. */
static int bad(const struct parser *p, const char *fmt, ...)
{
	char why[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return shf_fail(p->err, SHEAF_EINVAL, "%s:%d: %s", p->m->path, p->line, why);
}

static int map_no_memory(const struct parser *p)
{
	return shf_fail(p->err, SHEAF_ENOMEM, "%s: no memory to read it", p->m->path);
}

static void skip_blanks(struct parser *p)
{
	while (*p->p == ' ')
		p->p++;
}

/* Takes a mark if it is next. */
static bool map_take_mark(struct parser *p, char mark)
{
	skip_blanks(p);
	if (*p->p != mark)
		return false;
	p->p++;
	return true;
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Takes an identifier. Returns its length, 0 if there is none. */
static size_t take_word(struct parser *p, const char **word)
{
	size_t n = 0;

	skip_blanks(p);
	*word = p->p;
	if (is_letter(*p->p))
		while (is_letter(p->p[n]) || is_digit(p->p[n]))
			n++;
	p->p += n;
	return n;
}

static bool map_is_word(const char *word, size_t n, const char *want)
{
	return n == strlen(want) && memcmp(word, want, n) == 0;
}

/* Takes this word if it is next. */
static bool take_this(struct parser *p, const char *want)
{
	const char *at = p->p, *word;
	size_t n = take_word(p, &word);

	if (map_is_word(word, n, want))
		return true;
	p->p = at;
	return false;
}

static int var_find(const struct shf_map *m, const char *word, size_t n)
{
	for (int i = 0; i < m->vars_n; i++)
		if (map_is_word(word, n, m->vars[i].name))
			return i;
	return -1;
}

/* Finds or adds an axis of the rule. Returns its number, or a negative code. */
static int axis_of(struct parser *p, const char *word, size_t n)
{
	struct shf_map_rule *r = p->rule;
	struct shf_map_axis *a;

	for (int i = 0; i < r->axes_n; i++)
		if (map_is_word(word, n, r->axes[i].name))
			return i;
	if (r->axes_n == SHF_MAP_AXES_MAX)
		return bad(p, "a rule has at most %d axes", SHF_MAP_AXES_MAX);
	a = &r->axes[r->axes_n];
	a->name = shf_arena_strdup(&p->m->arena, word, n);
	a->var = var_find(p->m, word, n);
	a->counted = a->var >= 0 && p->m->vars[a->var].kind == SHF_MAP_FOR;
	return a->name ? r->axes_n++ : map_no_memory(p);
}

/* ---- expressions ---- */

static int put_op(struct parser *p, enum shf_map_op_kind kind, int64_t number, const char *key)
{
	if (p->ops_n == SHF_MAP_OPS_MAX)
		return bad(p, "an expression has more than %d parts", SHF_MAP_OPS_MAX);
	p->ops[p->ops_n++] = (struct shf_map_op){ kind, number, key };
	return 0;
}

static int parse_number(struct parser *p)
{
	int64_t n = 0;

	for (; is_digit(*p->p); p->p++)
		if (__builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, *p->p - '0', &n))
			return bad(p, "a number is beyond 64 bits");
	return put_op(p, SHF_MAP_NUMBER, n, NULL);
}

/* Reads what follows `config`: keys, each after a dot. */
static int parse_config(struct parser *p)
{
	const char *from = p->p, *key;

	while (*p->p == '.' || is_letter(*p->p) || is_digit(*p->p))
		p->p++;
	if (p->p - from < 2 || *from != '.' || p->p[-1] == '.')
		return bad(p, "config must be followed by a key, as in config.hidden_size");
	key = shf_arena_strdup(&p->m->arena, from + 1, (size_t)(p->p - from - 1));
	return key ? put_op(p, SHF_MAP_CONFIG, 0, key) : map_no_memory(p);
}

/* Reads up(a, b): a rounded up to a multiple of b. */
static int parse_up(struct parser *p)
{
	int rc = map_take_mark(p, '(') ? parse_expr(p)
	       : bad(p, "up needs two numbers, as in up(n, 128)");

	if (rc == 0 && !map_take_mark(p, ','))
		rc = bad(p, "up needs two numbers, as in up(n, 128)");
	if (rc == 0)
		rc = parse_expr(p);
	if (rc == 0 && !map_take_mark(p, ')'))
		rc = bad(p, "a bracket is not closed");
	return rc == 0 ? put_op(p, SHF_MAP_UP, 0, NULL) : rc;
}

static int parse_atom(struct parser *p)
{
	const char *word;
	size_t n;
	int var, axis, rc;

	if (map_take_mark(p, '(')) {
		rc = parse_expr(p);
		return rc == 0 && !map_take_mark(p, ')') ? bad(p, "a bracket is not closed") : rc;
	}
	if (is_digit(*p->p))
		return parse_number(p);
	n = take_word(p, &word);
	if (!n)
		return bad(p, "a number or a name is expected before '%.20s'", p->p);
	if (map_is_word(word, n, "config"))
		return parse_config(p);
	if (map_is_word(word, n, "up"))
		return parse_up(p);
	var = var_find(p->m, word, n);
	if (var < 0)
		return bad(p, "%.*s is not known; it must be defined before, by let, arg or for",
		           (int)(n < 60 ? n : 60), word);
	if (p->m->vars[var].kind == SHF_MAP_FOR) {
		if (!p->outer)
			return bad(p, "%s is a counter, which only names of tensors can use",
			           p->m->vars[var].name);
		axis = axis_of(p, word, n);
		if (axis < 0)
			return axis;
		*p->outer |= UINT32_C(1) << axis;
	}
	return put_op(p, SHF_MAP_VAR, var, NULL);
}

static int parse_product(struct parser *p)
{
	int rc = parse_atom(p);

	while (rc == 0) {
		enum shf_map_op_kind kind;

		skip_blanks(p);
		kind = *p->p == '*' ? SHF_MAP_MUL : *p->p == '/' ? SHF_MAP_DIV : SHF_MAP_MOD;
		if (*p->p != '*' && *p->p != '/' && *p->p != '%')
			break;
		p->p++;
		rc = parse_atom(p);
		if (rc == 0)
			rc = put_op(p, kind, 0, NULL);
	}
	return rc;
}

static int parse_sum(struct parser *p)
{
	int rc = parse_product(p);

	while (rc == 0) {
		bool plus;

		skip_blanks(p);
		plus = *p->p == '+';
		if (!plus && *p->p != '-')
			break;
		p->p++;
		rc = parse_product(p);
		if (rc == 0)
			rc = put_op(p, plus ? SHF_MAP_ADD : SHF_MAP_SUB, 0, NULL);
	}
	return rc;
}

static int parse_expr(struct parser *p)
{
	int rc;

	if (++p->deep > SHF_MAP_DEEP_MAX)
		return bad(p, "brackets are more than %d deep", SHF_MAP_DEEP_MAX);
	rc = parse_sum(p);
	while (rc == 0 && take_this(p, "or")) {
		rc = parse_sum(p);
		if (rc == 0)
			rc = put_op(p, SHF_MAP_OR, 0, NULL);
	}
	p->deep--;
	return rc;
}

/* Reads an expression. outer: receives the counters in it, as axes; NULL: it can have none. */
static int read_expr(struct parser *p, uint32_t *outer, struct shf_map_expr *e)
{
	struct shf_map_op *ops;
	int rc;

	p->ops_n = 0;
	p->outer = outer;
	rc = parse_expr(p);
	if (rc < 0)
		return rc;
	ops = shf_arena_alloc(&p->m->arena, p->ops_n, sizeof(*ops));
	if (!ops)
		return map_no_memory(p);
	memcpy(ops, p->ops, p->ops_n * sizeof(*ops));
	*e = (struct shf_map_expr){ ops, p->ops_n };
	return 0;
}

/* ---- names ---- */

/* Reads what is in the braces of a name. */
static int parse_braces(struct parser *p, struct shf_map_tensor *t, struct shf_map_seg *s)
{
	int rc;

	*s = (struct shf_map_seg){ .width = 1 };
	p->p++;
	if (p->p[0] == '*' && p->p[1] == '}') {
		s->width = SHF_MAP_STAR;
		p->p += 2;
		if (t->star)
			return bad(p, "a name has {*} at most once");
		t->star = true;
		return 0;
	}
	rc = read_expr(p, &t->outer, &s->expr);
	if (rc == 0 && map_take_mark(p, ':')) {
		s->width = 0;
		for (; is_digit(*p->p) && s->width < 100; p->p++)
			s->width = 10 * s->width + (*p->p - '0');
		if (s->width < 1 || s->width > 18)
			return bad(p, "a width is from 1 to 18 digits, as in {l:5}");
	}
	if (rc == 0 && !map_take_mark(p, '}'))
		return bad(p, "a brace is not closed");
	return rc;
}

/* Returns whether a character ends a name. */
static bool ends_name(char c)
{
	return !c || c == ' ' || c == ',' || c == '=' || c == '[';
}

/* Reads a name into segments. */
static int parse_name(struct parser *p, struct shf_map_tensor *t)
{
	struct shf_map_seg segs[32];
	const char *from;
	struct shf_map_seg *kept;

	skip_blanks(p);
	from = p->p;
	while (!ends_name(*p->p)) {
		int rc = 0;

		if (t->segs_n == 32)
			return bad(p, "a name has more than 32 parts");
		if (*p->p == '{') {
			rc = parse_braces(p, t, &segs[t->segs_n++]);
		} else {
			const char *at = p->p;

			while (!ends_name(*p->p) && *p->p != '{')
				p->p++;
			segs[t->segs_n] = (struct shf_map_seg){
				.text = shf_arena_strdup(&p->m->arena, at, (size_t)(p->p - at)) };
			if (!segs[t->segs_n++].text)
				return map_no_memory(p);
		}
		if (rc < 0)
			return rc;
	}
	if (p->p == from)
		return bad(p, "a name of a tensor is expected%s%.20s%s", *p->p ? " before '" : "",
		           p->p, *p->p ? "'" : "");
	if (p->p - from > SHF_MAP_NAME_MAX)
		return bad(p, "a name has more than %d bytes", SHF_MAP_NAME_MAX);
	t->line = p->line;
	t->text = shf_arena_strdup(&p->m->arena, from, (size_t)(p->p - from));
	kept = shf_arena_alloc(&p->m->arena, t->segs_n, sizeof(*kept));
	if (!t->text || !kept)
		return map_no_memory(p);
	memcpy(kept, segs, t->segs_n * sizeof(*kept));
	t->segs = kept;
	return 0;
}

/* ---- dimensions ---- */

static int parse_sum_of_axes(struct parser *p, struct shf_map_tensor *t, struct shf_map_term *out);

/* Reads an axis, a 1, padding, or a bracket. */
static int parse_term(struct parser *p, struct shf_map_tensor *t, struct shf_map_term *out)
{
	const char *word;
	size_t n;

	*out = (struct shf_map_term){ 0 };
	if (map_take_mark(p, '('))
		return parse_sum_of_axes(p, t, out);
	if (p->p[0] == '1' && !is_digit(p->p[1]) && !is_letter(p->p[1])) {
		p->p++;
		out->kind = SHF_MAP_ONE;
		return 0;
	}
	n = take_word(p, &word);
	if (!n)
		return bad(p, "an axis is expected before '%.20s'", p->p);
	if (map_is_word(word, n, "zero")) {
		int rc = map_take_mark(p, '(') ? read_expr(p, NULL, &out->expr)
		       : bad(p, "zero needs a number of items, as in zero(n)");

		out->kind = SHF_MAP_ZERO;
		return rc == 0 && !map_take_mark(p, ')') ? bad(p, "a bracket is not closed") : rc;
	}
	out->axis = axis_of(p, word, n);
	return out->axis < 0 ? out->axis : 0;
}

/* Reads terms until a mark that ends them, which is not taken. */
static int parse_terms(struct parser *p, struct shf_map_tensor *t, struct shf_map_product *out)
{
	struct shf_map_term terms[SHF_MAP_AXES_MAX], *kept;
	uint32_t n = 0;
	int rc = 0;

	for (skip_blanks(p); rc == 0 && !strchr("+)]", *p->p); skip_blanks(p)) {
		if (n == SHF_MAP_AXES_MAX)
			return bad(p, "a dimension has more than %d axes", SHF_MAP_AXES_MAX);
		rc = parse_term(p, t, &terms[n++]);
	}
	if (rc < 0)
		return rc;
	kept = shf_arena_alloc(&p->m->arena, n ? n : 1, sizeof(*kept));
	if (!kept)
		return map_no_memory(p);
	if (n)
		memcpy(kept, terms, n * sizeof(*kept));
	*out = (struct shf_map_product){ kept, n };
	return 0;
}

/* Reads products with + between them, up to the bracket that closes them. */
static int parse_sum_of_axes(struct parser *p, struct shf_map_tensor *t, struct shf_map_term *out)
{
	struct shf_map_product alts[16], *kept;
	uint32_t n = 0;
	int rc;

	if (++p->deep > SHF_MAP_DEEP_MAX)
		return bad(p, "brackets are more than %d deep", SHF_MAP_DEEP_MAX);
	if (t->sums_n == 16)
		return bad(p, "a tensor has more than 16 brackets");
	out->kind = SHF_MAP_SUM;
	out->axis = (int)t->sums_n++;
	do {
		if (n == 16)
			return bad(p, "a sum has more than 16 summands");
		rc = parse_terms(p, t, &alts[n]);
		if (rc == 0 && alts[n++].n == 0)
			rc = bad(p, "a bracket has no axis");
	} while (rc == 0 && map_take_mark(p, '+'));
	if (rc == 0 && !map_take_mark(p, ')'))
		rc = bad(p, "a bracket is not closed");
	if (rc < 0)
		return rc;
	kept = shf_arena_alloc(&p->m->arena, n, sizeof(*kept));
	if (!kept)
		return map_no_memory(p);
	memcpy(kept, alts, n * sizeof(*kept));
	out->alts = kept;
	out->alts_n = n;
	t->alts[out->axis] = (uint8_t)n;
	p->deep--;
	return 0;
}

/* Reads the dimensions, after their bracket. Each term is one of them. */
static int parse_dims(struct parser *p, struct shf_map_tensor *t)
{
	struct shf_map_product all, *dims;
	int rc = parse_terms(p, t, &all);

	if (rc == 0 && !map_take_mark(p, ']'))
		rc = bad(p, "the bracket of the dimensions is not closed");
	if (rc < 0)
		return rc;
	if (all.n > SHEAF_DIMS_MAX)
		return bad(p, "a tensor has more than %d dimensions", SHEAF_DIMS_MAX);
	dims = shf_arena_alloc(&p->m->arena, all.n ? all.n : 1, sizeof(*dims));
	if (!dims)
		return map_no_memory(p);
	for (uint32_t d = 0; d < all.n; d++)
		dims[d] = (struct shf_map_product){ &all.terms[d], 1 };
	t->dims = dims;
	t->ndim = (int32_t)all.n;
	t->shaped = true;
	return 0;
}

static int parse_type(struct parser *p, struct shf_map_tensor *t)
{
	const char *word;
	size_t n;

	t->bits = take_this(p, "bits");
	n = take_word(p, &word);
	t->dtype = n ? shf_dtype_from(word, n) : 0;
	if (!t->dtype)
		return bad(p, "'%.*s' is not a type; use the names of safetensors, such as BF16 "
		           "and F8_E4M3", (int)(n < 30 ? n : 30), word);
	if (shf_dtype(t->dtype)->bits < 8)
		return bad(p, "types smaller than a byte cannot be mapped");
	return 0;
}

/* ---- lines ---- */

static int parse_tensor(struct parser *p, struct shf_map_tensor *t)
{
	int rc = parse_name(p, t);

	if (rc == 0 && map_take_mark(p, '['))
		rc = parse_dims(p, t);
	if (rc == 0 && map_take_mark(p, ':'))
		rc = parse_type(p, t);
	return rc;
}

/* Reads one side of a rule: tensors with commas between them. */
static int parse_side(struct parser *p, int side)
{
	struct shf_map_rule *r = p->rule;
	struct shf_map_tensor *list = shf_zalloc(SHF_MAP_SIDE_MAX, sizeof(*list));
	uint32_t n = 0;
	int rc = 0;

	if (!list)
		return map_no_memory(p);
	do
		rc = n == SHF_MAP_SIDE_MAX ? bad(p, "a side of a rule has more than %d tensors",
		                                 SHF_MAP_SIDE_MAX)
		                           : parse_tensor(p, &list[n++]);
	while (rc == 0 && map_take_mark(p, ','));
	if (rc == 0) {
		r->sides[side] = shf_arena_alloc(&p->m->arena, n, sizeof(*list));
		r->n[side] = n;
		if (r->sides[side])
			memcpy(r->sides[side], list, n * sizeof(*list));
		else
			rc = map_no_memory(p);
	}
	shf_free(list);
	return rc;
}

static int parse_rule(struct parser *p)
{
	struct shf_map_rule r = { .line = p->line };
	int rc;

	r.maybe = take_this(p, "maybe");
	p->rule = &r;
	rc = parse_side(p, 0);
	if (rc == 0 && !map_take_mark(p, '='))
		rc = bad(p, "'=' is expected%s%.20s%s", *p->p ? " before '" : " between the sides "
		         "of a rule", p->p, *p->p ? "'" : "");
	if (rc == 0)
		rc = parse_side(p, 1);
	skip_blanks(p);
	if (rc == 0 && *p->p)
		rc = bad(p, "'%.20s' is one too many; tensors must have commas between them", p->p);
	if (rc == 0)
		rc = shf_map_check(p->m, &r, p->err);
	if (rc == 0)
		shf_buf_add(&p->m->rules, &r, sizeof(r));
	return rc == 0 && p->m->rules.oom ? map_no_memory(p) : rc;
}

/* Checks that nothing follows on the line. rc: 0, or an earlier failure, which stays. */
static int line_end(struct parser *p, int rc)
{
	skip_blanks(p);
	return rc == 0 && *p->p ? bad(p, "'%.20s' is one too many", p->p) : rc;
}

/* Reads `let`, `arg` and `for`. */
static int parse_var(struct parser *p, enum shf_map_var_kind kind)
{
	static const char *const reserved[] = { "config", "up", "or", "zero", "bits", "in" };
	struct shf_map *m = p->m;
	struct shf_map_var *v = &m->vars[m->vars_n];
	const char *word;
	size_t n = take_word(p, &word);
	int rc = 0;

	if (m->rules.len)
		return bad(p, "let, arg and for must come before the first rule");
	if (m->vars_n == SHF_MAP_VARS_MAX)
		return bad(p, "a map has at most %d names of numbers", SHF_MAP_VARS_MAX);
	if (!n || n > 60)
		return bad(p, "a name of at most 60 letters and digits is expected");
	for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
		if (map_is_word(word, n, reserved[i]))
			return bad(p, "%s is a word of the language", reserved[i]);
	if (var_find(m, word, n) >= 0)
		return bad(p, "%.*s is defined twice", (int)n, word);
	*v = (struct shf_map_var){ kind, shf_arena_strdup(&m->arena, word, n), p->line,
		{ NULL, 0 } };
	if (!v->name)
		return map_no_memory(p);
	if (map_take_mark(p, '='))
		rc = read_expr(p, NULL, &v->expr);
	else if (kind != SHF_MAP_ARG)
		rc = bad(p, "'=' and a number are expected after %s", v->name);
	rc = line_end(p, rc);
	m->vars_n += rc == 0;
	return rc;
}

/* Reads NAME in FAMILY, where NAME has {*}. */
static int parse_place(struct parser *p, struct shf_map_place *out)
{
	struct shf_map_tensor t = { 0 };
	struct shf_map_rule none = { 0 };
	const char *parts[2] = { "", "" }, *word;
	int rc, part = 0;
	size_t n;

	p->rule = &none;
	rc = parse_name(p, &t);
	p->rule = NULL;
	for (uint32_t i = 0; rc == 0 && i < t.segs_n; i++) {
		if (t.segs[i].text)
			parts[part] = t.segs[i].text;
		else if (t.segs[i].width == SHF_MAP_STAR)
			part = 1;
		else
			rc = bad(p, "a place of state has {*} and no other brace");
	}
	if (rc == 0 && !t.star)
		rc = bad(p, "a place of state needs {*}, which stands for the name of the weight");
	*out = (struct shf_map_place){ parts[0], parts[1], "model" };
	if (rc == 0 && take_this(p, "in")) {
		n = take_word(p, &word);
		out->family = n ? shf_arena_strdup(&p->m->arena, word, n) : NULL;
		if (!out->family || !shf_family_is_valid(out->family))
			rc = bad(p, "in must be followed by a family, as in optimizer");
	}
	return rc;
}

static int parse_also(struct parser *p)
{
	struct shf_map_also a = { .line = p->line };
	int rc = parse_place(p, &a.sides[0]);

	if (rc == 0 && !map_take_mark(p, '='))
		rc = bad(p, "'=' is expected between the places");
	if (rc == 0)
		rc = parse_place(p, &a.sides[1]);
	rc = line_end(p, rc);
	if (rc == 0)
		shf_buf_add(&p->m->also, &a, sizeof(a));
	return rc == 0 && p->m->also.oom ? map_no_memory(p) : rc;
}

static int parse_drop(struct parser *p)
{
	struct shf_map_drop d = { .side = -1, .rule = { .line = p->line, .n = { 1, 0 } } };
	struct shf_map_tensor *t = shf_arena_alloc(&p->m->arena, 1, sizeof(*t));
	int rc;

	if (!t)
		return map_no_memory(p);
	for (int i = 0; i < 2; i++)
		if (d.side < 0 && take_this(p, p->m->sides[i]))
			d.side = i;
	if (d.side < 0)
		return bad(p, "drop must be followed by %s or %s, and the name of a tensor",
		           p->m->sides[0], p->m->sides[1]);
	d.rule.sides[0] = t;
	p->rule = &d.rule;
	rc = parse_name(p, t);
	rc = line_end(p, rc);
	if (rc == 0)
		shf_buf_add(&p->m->drops, &d, sizeof(d));
	return rc == 0 && p->m->drops.oom ? map_no_memory(p) : rc;
}

/* Reads the first line: sheaf-map 1 LEFT RIGHT. */
static int parse_head(struct parser *p)
{
	static const char head[] = "sheaf-map 1 ";
	const char *word;
	size_t n;

	if (strncmp(p->p, "sheaf-map ", 10) == 0 && strncmp(p->p, head, strlen(head)))
		return bad(p, "this version of the language is not known; this sheaf reads "
		           "version 1");
	if (strncmp(p->p, head, strlen(head)))
		return bad(p, "is not a map; the first line must be: sheaf-map 1 LEFT RIGHT");
	p->p += strlen(head);
	for (int i = 0; i < 2; i++) {
		n = take_word(p, &word);
		if (!n || n > 30)
			return bad(p, "the first line must name both sides, as in sheaf-map 1 hf "
			           "paddle");
		p->m->sides[i] = shf_arena_strdup(&p->m->arena, word, n);
		if (!p->m->sides[i])
			return map_no_memory(p);
	}
	skip_blanks(p);
	if (*p->p || strcmp(p->m->sides[0], p->m->sides[1]) == 0)
		return bad(p, "the first line must name two sides, as in sheaf-map 1 hf paddle");
	return 0;
}

static int parse_line(struct parser *p)
{
	p->rule = NULL;
	p->deep = 0;
	if (!p->m->sides[0])
		return parse_head(p);
	if (take_this(p, "let"))
		return parse_var(p, SHF_MAP_LET);
	if (take_this(p, "arg"))
		return parse_var(p, SHF_MAP_ARG);
	if (take_this(p, "for"))
		return parse_var(p, SHF_MAP_FOR);
	if (take_this(p, "also"))
		return parse_also(p);
	if (take_this(p, "drop"))
		return parse_drop(p);
	return parse_rule(p);
}

/* Appends a line of the text without its comment, and with blanks for tabs. */
static void put_line(struct shf_buf *b, const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		bool blank = s[i] == '\t' || s[i] == '\r';

		if (s[i] == '#' && (i == 0 || s[i - 1] == ' ' || s[i - 1] == '\t'))
			break;
		shf_buf_u8(b, blank ? ' ' : (uint8_t)s[i]);
	}
}

/* Reads the line that was put together, if it is not empty. */
static int end_line(struct parser *p, struct shf_buf *b)
{
	int rc = 0;

	while (b->len && b->data[b->len - 1] == ' ')
		b->len--;
	shf_buf_u8(b, 0);
	if (b->oom)
		return map_no_memory(p);
	p->p = (const char *)b->data;
	skip_blanks(p);
	if (*p->p)
		rc = parse_line(p);
	shf_buf_reset(b);
	return rc;
}

int shf_map_parse(struct shf_map *m, const char *path, const char *text, size_t n,
                  struct sheaf_error *err)
{
	struct parser p = { .m = m, .err = err, .line = 1 };
	struct shf_buf b = SHF_BUF_INIT;
	int rc = 0, line = 1;

	*m = (struct shf_map){ 0 };
	m->path = shf_arena_strdup(&m->arena, path, strlen(path));
	if (!m->path)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to read it", path);
	if (n > SHF_MAP_BYTES_MAX || !shf_utf8_is_valid(text, n) || (n && memchr(text, 0, n)))
		return shf_fail(err, SHEAF_EINVAL, "%s: is not a map: it is not a text of at most "
		                "1 MiB", path);
	for (size_t at = 0; at < n && rc == 0; line++) {
		const char *nl = memchr(text + at, '\n', n - at);
		size_t len = nl ? (size_t)(nl - text) - at : n - at;

		if (len && text[at] != ' ' && text[at] != '\t' && text[at] != '#' &&
		    text[at] != '\r') {
			rc = end_line(&p, &b);
			p.line = line;
		}
		put_line(&b, text + at, len);
		shf_buf_u8(&b, ' ');
		at += len + 1;
	}
	if (rc == 0)
		rc = end_line(&p, &b);
	if (rc == 0 && !m->sides[0])
		rc = bad(&p, "is not a map; the first line must be: sheaf-map 1 LEFT RIGHT");
	if (rc == 0 && !m->rules.len)
		rc = bad(&p, "has no rule");
	shf_buf_release(&b);
	return rc;
}

void shf_map_release(struct shf_map *m)
{
	shf_buf_release(&m->rules);
	shf_buf_release(&m->also);
	shf_buf_release(&m->drops);
	shf_arena_release(&m->arena);
}
