/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_dcp_states.h"
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "safetensors.h"
#include "sort.h"
#include "torch_states.h"
#include "torch_training.h"
#include "torch_walk.h"

#define MIDDLE ".state."
#define DICTIONARIES 4          /* nested ones that are tried, from the optimizer outwards */

struct named {                  /* a tensor by the name that it has in the checkpoint */
	const char *name;
	const struct shf_foreign_tensor *t;
	bool has_state;                 /* an optimizer that was renamed has state of it */
};
struct state {                  /* a tensor that may be state, in parts of its name */
	struct shf_foreign_tensor *t;
	uint32_t head;                  /* bytes of <optimizer>, with which the name begins */
	uint32_t end;                   /* where <parameter> ends, and the dot before <kind> is */
	struct named *weight;           /* set by are_of_weights */
};
struct states {
	struct shf_foreign *f;
	struct state *all;              /* owned; n, grouped by optimizer */
	struct named *named;            /* owned; tensors_n, in the order of their names */
	size_t n, tensors_n;
	size_t last;                    /* where in `named` the last weight was found */
	struct shf_buf name;            /* owned; the name of a weight that is looked for */
	bool starved;                   /* there was no memory for such a name */
};

static const char *state_parameter(const struct state *s, size_t *n)
{
	size_t at = s->head + sizeof(MIDDLE) - 1;

	*n = s->end - at;
	return s->t->name + at;
}

/* Sets *kind to what kind of state it is, as Sheaf names it. Returns false if torch's name of
 * it is one that Sheaf gives to another kind, such as moment1_0: two kinds would get that name. */
static bool split_kind(const struct state *s, char kind[SHF_TORCH_STATE_MAX])
{
	const char *last = s->t->name + s->end + 1;

	return strncmp(last, "moment1_", 8) && strncmp(last, "moment2_", 8) &&
	       shf_torch_state_name(kind, last, strlen(last));
}

/* Splits the name of a tensor. Returns false if it is not that of state. */
static bool split_name(struct shf_foreign_tensor *t, struct state *s)
{
	const char *middle = strstr(t->name, MIDDLE), *dot = strrchr(t->name, '.');
	char kind[SHF_TORCH_STATE_MAX];

	if (t->family || !middle || middle == t->name || dot <= middle + sizeof(MIDDLE) - 1)
		return false;
	*s = (struct state){ t, (uint32_t)(middle - t->name), (uint32_t)(dot - t->name), NULL };
	return split_kind(s, kind);
}

static int by_optimizer(const void *a, const void *b)
{
	const struct state *x = a, *y = b;
	uint32_t least = x->head < y->head ? x->head : y->head;
	int c = memcmp(x->t->name, y->t->name, least);

	c = c ? c : (x->head > y->head) - (x->head < y->head);
	return c ? c : strcmp(x->t->name, y->t->name);
}

static int named_order(const void *a, const void *b)
{
	return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* Lists what may be state and, if there is any, all tensors by name. ENOMEM. */
static int list_states(struct states *x)
{
	struct shf_foreign_tensor *t = (struct shf_foreign_tensor *)(void *)x->f->tensors.data;
	struct state s;

	x->tensors_n = x->f->tensors.len / sizeof(*t);
	for (size_t i = 0; i < x->tensors_n; i++)
		x->n += split_name(&t[i], &s);
	if (x->n == 0)
		return 0;
	x->all = shf_alloc(x->n + 1, sizeof(*x->all));  /* split_name writes one more */
	x->named = shf_alloc(x->tensors_n, sizeof(*x->named));
	if (!x->all || !x->named)
		return SHEAF_ENOMEM;
	x->n = 0;
	for (size_t i = 0; i < x->tensors_n; i++) {
		x->n += split_name(&t[i], &x->all[x->n]);
		x->named[i] = (struct named){ t[i].name, &t[i], false };
	}
	shf_records_sort(x->all, x->n, sizeof(*x->all), by_optimizer);
	shf_records_sort(x->named, x->tensors_n, sizeof(*x->named), named_order);
	return 0;
}

/* Makes the name of the weight that this state is of: <head of the optimizer's name><key>.<rest>.
 * keys: how much of the optimizer's name it shares. Returns NULL if there is no memory. */
static const char *weight_name(struct states *x, const struct state *s, size_t keys,
                               const char *key)
{
	size_t n;
	const char *parameter = state_parameter(s, &n);

	shf_buf_reset(&x->name);
	shf_buf_add(&x->name, s->t->name, keys);
	shf_buf_adds(&x->name, key);
	shf_buf_adds(&x->name, *key ? "." : "");
	shf_buf_add(&x->name, parameter, n);
	shf_buf_add(&x->name, "", 1);
	x->starved |= x->name.oom;
	return x->name.oom ? NULL : (const char *)x->name.data;
}

/* Finds a tensor by its name. States are mostly in the order of their weights, so the weight is
 * often the one that was found before, or the next. */
static struct named *find_named(struct states *x, const char *name)
{
	const struct named want = { .name = name };
	struct named *found;

	for (size_t i = x->last; i < x->last + 2 && i < x->tensors_n; i++)
		if (strcmp(x->named[i].name, name) == 0)
			return &x->named[x->last = i];
	found = bsearch(&want, x->named, x->tensors_n, sizeof(want), named_order);
	if (found)
		x->last = (size_t)(found - x->named);
	return found;
}

/* Returns the weight that a state is of, or NULL: there is none, or it cannot be that. */
static struct named *weight_of(struct states *x, const struct state *s, size_t keys,
                               const char *key)
{
	const char *name = weight_name(x, s, keys, key);
	char kind[SHF_TORCH_STATE_MAX];
	struct named *weight = name ? find_named(x, name) : NULL;

	if (!weight || weight->t->family || weight->has_state || !always(split_kind(s, kind)) ||
	    x->name.len + strlen(kind) > SHF_NAME_MAX)
		return NULL;
	return !shf_torch_state_has_shape(kind) || !shf_torch_shape_compare(weight->t, s->t)
	       ? weight : NULL;
}

/* Returns whether these states, of one optimizer, are those of weights with such names. At least
 * one must show it by its shape. */
static bool are_of_weights(struct states *x, struct state *s, size_t n, size_t keys,
                           const char *key)
{
	char kind[SHF_TORCH_STATE_MAX];
	bool shown = false;

	for (size_t i = 0; i < n; i++) {
		s[i].weight = weight_of(x, &s[i], keys, key);
		if (!s[i].weight)
			return false;
		shown |= split_kind(&s[i], kind) && shf_torch_state_has_shape(kind);
	}
	return shown;
}

/* Finds the dictionary that has the weights of an optimizer. It stands beside the optimizer, or
 * beside a dictionary in which the optimizer is. Returns its key, "" if the weights are there
 * without a key, or NULL if there is no such dictionary. Sets *keys to how many bytes of the
 * optimizer's name come before the key. */
static const char *weights_beside(struct states *x, struct state *s, size_t n, size_t *keys)
{
	const char *name = s->t->name, *key;

	*keys = s->head;
	for (int tried = 0; *keys > 0 && tried < DICTIONARIES; tried++) {
		do
			--*keys;
		while (*keys > 0 && name[*keys - 1] != '.');
		for (size_t i = 0; (key = shf_torch_weights_key(i)) != NULL; i++)
			if (are_of_weights(x, s, n, *keys, key))
				return key;
		if (are_of_weights(x, s, n, *keys, ""))
			return "";
	}
	return NULL;
}

/* Renames one state. ENOMEM. */
static int rename_state(struct states *x, struct state *s, size_t keys, const char *key)
{
	char kind[SHF_TORCH_STATE_MAX], *made;

	if (!weight_name(x, s, keys, key) || !split_kind(s, kind))
		return SHEAF_ENOMEM;
	x->name.len--;          /* its NUL */
	shf_buf_adds(&x->name, "/");
	shf_buf_adds(&x->name, kind);
	made = x->name.oom ? NULL : shf_arena_strdup(&x->f->arena, (const char *)x->name.data,
	                                             x->name.len);
	if (!made)
		return SHEAF_ENOMEM;
	s->t->name = made;
	s->t->family = "optimizer";
	return 0;
}

/* Renames the states of one optimizer, if they are of weights that no other one has state of.
 * ENOMEM. */
static int rename_group(struct states *x, struct state *s, size_t n)
{
	size_t keys;
	const char *key = weights_beside(x, s, n, &keys);
	int rc = 0;

	for (size_t i = 0; key && i < n && rc == 0; i++) {
		rc = rename_state(x, &s[i], keys, key);
		s[i].weight->has_state = true;
	}
	return x->starved ? SHEAF_ENOMEM : rc;
}

int shf_dcp_states_rename(struct shf_foreign *f, struct sheaf_error *err)
{
	struct states x = { .f = f };
	int rc = list_states(&x);

	for (size_t i = 0, end; i < x.n && rc == 0; i = end) {
		for (end = i + 1; end < x.n && x.all[end].head == x.all[i].head &&
		     memcmp(x.all[end].t->name, x.all[i].t->name, x.all[i].head) == 0; end++)
			;
		rc = rename_group(&x, &x.all[i], end - i);
	}
	if (rc < 0)
		rc = shf_fail(err, rc, "%s: no memory for its list of tensors", f->path);
	shf_free(x.all);
	shf_free(x.named);
	shf_buf_release(&x.name);
	return rc;
}
