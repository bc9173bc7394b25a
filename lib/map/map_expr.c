/* SPDX-License-Identifier: Apache-2.0 */
#include "map_expr.h"
#include <inttypes.h>
#include <string.h>
#include "err.h"
#include "json_walk.h"
#include "valid.h"

#define KEY_MAX 256

/* ---- config.json ---- */

static int config_no_memory(struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ENOMEM, "no memory for the numbers of config.json");
}

struct shf_map_entry *shf_map_config_find(struct shf_map_config *c, const char *key)
{
	struct shf_map_entry *e = (struct shf_map_entry *)(void *)c->entries.data;

	for (size_t i = 0; i < c->entries.len / sizeof(*e); i++)
		if (strcmp(e[i].key, key) == 0) {
			e[i].used = true;
			return &e[i];
		}
	return NULL;
}

static int config_add(struct shf_map_config *c, const char *key, size_t n, int64_t value,
                      bool given, struct sheaf_error *err)
{
	struct shf_map_entry e = { shf_arena_strdup(&c->arena, key, n), value, given, false };

	if (!e.key)
		return config_no_memory(err);
	shf_buf_add(&c->entries, &e, sizeof(e));
	return c->entries.oom ? config_no_memory(err) : 0;
}

/* Reads a number with a sign. */
static bool is_integer(const char *s, int64_t *v)
{
	bool minus = *s == '-';
	int64_t n = 0;

	s += minus;
	if (!*s)
		return false;
	for (; *s; s++)
		if (*s < '0' || *s > '9' || __builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, *s - '0', &n))
			return false;
	*v = minus ? -n : n;
	return true;
}

/* Adds an integer or a truth value, unless it is in an array. */
static int config_leaf(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err)
{
	bool is_truth = x->kind == SHF_JSON_TRUE || x->kind == SHF_JSON_FALSE;
	int64_t v = x->kind == SHF_JSON_TRUE;

	if (x->in_array || !x->is_plain || x->path_n >= KEY_MAX)
		return 0;
	if (!is_truth && (x->kind != SHF_JSON_NUMBER || !is_integer(x->text, &v)))
		return 0;
	return config_add(arg, x->path, x->path_n, v, false, err);
}

int shf_map_config_read(struct shf_map_config *c, const char *path, const void *bytes, size_t n,
                        struct sheaf_error *err)
{
	int rc = shf_json_walk(bytes, n, path, config_leaf, c, err);

	c->path = shf_arena_strdup(&c->arena, path, strlen(path));
	return rc == 0 && !c->path ? config_no_memory(err) : rc;
}

int shf_map_config_give(struct shf_map_config *c, const char *text, struct sheaf_error *err)
{
	const char *eq = strchr(text, '=');
	struct shf_map_entry *e;
	int64_t v;
	char key[KEY_MAX];

	if (!eq || eq == text || (size_t)(eq - text) >= sizeof(key) || !is_integer(eq + 1, &v))
		return shf_fail(err, SHEAF_EINVAL, "'%.200s' is not NAME=NUMBER, as in tp=2", text);
	memcpy(key, text, (size_t)(eq - text));
	key[eq - text] = '\0';
	e = shf_map_config_find(c, key);
	if (e && e->given)
		return shf_fail(err, SHEAF_EINVAL, "%.200s is given twice", key);
	if (!e)
		return config_add(c, key, strlen(key), v, true, err);
	*e = (struct shf_map_entry){ e->key, v, true, false };
	return 0;
}

void shf_map_config_release(struct shf_map_config *c)
{
	shf_buf_release(&c->entries);
	shf_arena_release(&c->arena);
}

/* ---- expressions ---- */

/* A value, or why there is none. A wrong operand makes the result wrong; only `or` looks at it. */
struct value {
	int64_t n;
	const char *missing;            /* the key that config.json lacks */
	const char *why;                /* an operation that has no result, of a and b */
	int64_t a, b;
};

static int no_value(const struct shf_map_values *v, const struct value *x, int line,
                    struct sheaf_error *err)
{
	const char *key = x->missing;

	if (x->why)
		return shf_fail(err, SHEAF_EINVAL, "%s:%d: %s: %" PRId64 " and %" PRId64
		                "; check it against config.json", v->map->path, line, x->why,
		                x->a, x->b);
	if (!v->config->path)
		return shf_fail(err, SHEAF_EINVAL, "%s:%d: needs %.100s, and there is no "
		                "config.json; give it, as in --set %.100s=N", v->map->path, line,
		                key, key);
	return shf_fail(err, SHEAF_EINVAL, "%s:%d: %s has no whole number named %.100s; give it, "
	                "as in --set %.100s=N", v->map->path, line, v->config->path, key, key);
}

/* Applies an operator to two numbers. Returns what is wrong, or NULL. */
static const char *op_apply(enum shf_map_op_kind kind, int64_t a, int64_t b, int64_t *out)
{
	static const char wide[] = "an expression is beyond 64 bits";
	int64_t rest;

	if (kind == SHF_MAP_ADD)
		return __builtin_add_overflow(a, b, out) ? wide : NULL;
	if (kind == SHF_MAP_SUB)
		return __builtin_sub_overflow(a, b, out) ? wide : NULL;
	if (kind == SHF_MAP_MUL)
		return __builtin_mul_overflow(a, b, out) ? wide : NULL;
	if (b <= 0 || a < 0)
		return "a division of a negative number, or by one that is not positive";
	rest = a % b;
	if (kind == SHF_MAP_DIV && rest)
		return "a division leaves a remainder";
	if (kind == SHF_MAP_UP)
		return __builtin_add_overflow(a, rest ? b - rest : 0, out) ? wide : NULL;
	*out = kind == SHF_MAP_DIV ? a / b : rest;
	return NULL;
}

static struct value operand(struct shf_map_values *v, const struct shf_map_op *op)
{
	const struct shf_map_entry *e;

	if (op->kind == SHF_MAP_NUMBER)
		return (struct value){ .n = op->number };
	if (op->kind == SHF_MAP_VAR)
		return (struct value){ .n = v->map->vars[op->number].kind == SHF_MAP_FOR
		                            ? v->index[op->number] : v->var[op->number] };
	e = shf_map_config_find(v->config, op->key);
	return (struct value){ .n = e ? e->value : 0, .missing = e ? NULL : op->key };
}

static struct value combine(enum shf_map_op_kind kind, const struct value *a,
                            const struct value *b)
{
	struct value out = { .a = a->n, .b = b->n };

	if (kind == SHF_MAP_OR)
		return a->missing ? *b : *a;
	if (a->missing || a->why)
		return *a;
	if (b->missing || b->why)
		return *b;
	out.why = op_apply(kind, a->n, b->n, &out.n);
	return out;
}

int shf_map_eval(struct shf_map_values *v, const struct shf_map_expr *e, int line, int64_t *out,
                 struct sheaf_error *err)
{
	struct value stack[SHF_MAP_OPS_MAX];
	int n = 0;

	for (uint32_t i = 0; i < e->n; i++) {
		const struct shf_map_op *op = &e->ops[i];

		if (op->kind <= SHF_MAP_CONFIG && always(n < SHF_MAP_OPS_MAX)) {
			stack[n++] = operand(v, op);
		} else if (always(n >= 2)) {
			stack[n - 2] = combine(op->kind, &stack[n - 2], &stack[n - 1]);
			n--;
		}
	}
	if (!always(n == 1))
		return shf_fail(err, SHEAF_EBUG, "an expression has no value");
	if (stack[0].missing || stack[0].why)
		return no_value(v, &stack[0], line, err);
	*out = stack[0].n;
	return 0;
}

int shf_map_values_make(struct shf_map_values *v, const struct shf_map *map,
                        struct shf_map_config *config, struct sheaf_error *err)
{
	*v = (struct shf_map_values){ .map = map, .config = config };
	for (int i = 0; i < map->vars_n; i++) {
		const struct shf_map_var *x = &map->vars[i];
		const struct shf_map_entry *given = x->kind == SHF_MAP_ARG
		                                  ? shf_map_config_find(config, x->name) : NULL;
		int rc = 0;

		if (given && given->given)
			v->var[i] = given->value;
		else if (x->kind == SHF_MAP_ARG && !x->expr.n)
			rc = shf_fail(err, SHEAF_EINVAL, "%s:%d: %s must be given, as in --set "
			              "%s=1", map->path, x->line, x->name, x->name);
		else
			rc = shf_map_eval(v, &x->expr, x->line, &v->var[i], err);
		if (rc < 0)
			return rc;
		if (v->var[i] < 0)
			return shf_fail(err, SHEAF_EINVAL, "%s:%d: %s is %" PRId64 "; sizes and "
			                "counts must not be negative", map->path, x->line, x->name,
			                v->var[i]);
	}
	return 0;
}
