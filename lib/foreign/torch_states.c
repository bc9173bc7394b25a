/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_states.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "torch_walk.h"

#define NAMES_MAX (1 << 20)     /* parameters of an optimizer that can have names */

bool shf_torch_states_show(const char *name, size_t n, const char *prefix, const char **family,
                           struct shf_buf *shown)
{
	const char *dot = n > 6 ? memrchr(name, '.', n) : NULL;
	char kind[SHF_TORCH_STATE_MAX];

	if (!dot || memcmp(name, "state.", 6) || dot <= name + 6 ||
	    !shf_torch_state_name(kind, dot + 1, (size_t)(name + n - dot - 1)))
		return false;
	*family = "optimizer";
	shf_buf_adds(shown, prefix);
	shf_buf_add(shown, name + 6, (size_t)(dot - name - 6));
	shf_buf_addf(shown, "/%s", kind);
	return true;
}

bool shf_torch_states_read_names(struct shf_foreign *f, const struct shf_pk *dict,
                                 struct shf_buf *names)
{
	const struct shf_pk *groups = shf_pk_get(dict, "param_groups");
	const char *none = NULL;

	for (uint32_t i = 0; groups && groups->kind == SHF_PK_LIST && i < groups->n; i++) {
		const struct shf_pk *numbers = shf_pk_get(groups->u.a[i], "params");
		const struct shf_pk *said = shf_pk_get(groups->u.a[i], "param_names");
		int64_t at;

		if (!numbers || !said || said->kind != SHF_PK_LIST || numbers->n != said->n ||
		    numbers->kind != SHF_PK_LIST)
			continue;
		for (uint32_t k = 0; k < said->n; k++) {
			const char *own;

			if (!shf_pk_int(numbers->u.a[k], &at) || at < 0 || at >= NAMES_MAX ||
			    said->u.a[k]->kind != SHF_PK_STR)
				continue;
			while (names->len <= (size_t)at * sizeof(none) && !names->oom)
				shf_buf_add(names, &none, sizeof(none));
			own = shf_arena_strdup(&f->arena, said->u.a[k]->u.s, said->u.a[k]->n);
			if (!own || names->oom)
				return false;
			((const char **)(void *)names->data)[at] = own;
		}
	}
	return true;
}

/* ---- names by shape ---- */

struct numbered {               /* what the states of one parameter show */
	uint64_t number;
	const struct shf_foreign_tensor *t;     /* a state with the shape of the parameter, or, if
	                                         * there is none, any state of it */
	const char *name;               /* NULL: not known */
};

/* Takes the number off the name of a state. */
static bool state_number(const struct shf_torch_states *of, const struct shf_foreign_tensor *t,
                         uint64_t *number)
{
	size_t m = strlen(of->prefix);
	const char *p = t->name + m;
	int n = 0;

	if (!t->family || strcmp(t->family, "optimizer") || strncmp(t->name, of->prefix, m))
		return false;
	for (*number = 0; *p >= '0' && *p <= '9' && n < 9; n++)
		*number = 10 * *number + (uint64_t)(*p++ - '0');
	return n > 0 && *p == '/';
}

bool shf_torch_state_has_shape(const char *kind)
{
	static const char *const kinds[] = { "moment1_0", "moment2_0", "moment2_max_0", "exp_inf",
		"momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum", "ax", "prev",
		"step_size", "state1", "state2" };

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strcmp(kind, kinds[i]) == 0)
			return true;
	return false;
}

static bool has_shape_of_parameter(const struct shf_foreign_tensor *t)
{
	const char *kind = strchr(t->name, '/');

	return kind && shf_torch_state_has_shape(kind + 1);
}

/* Sorts by number. Of one number, a state with the shape of the parameter comes first. */
static int states_by_number(const void *a, const void *b)
{
	const struct numbered *x = a, *y = b;
	int c = (x->number > y->number) - (x->number < y->number);

	return c ? c : has_shape_of_parameter(y->t) - has_shape_of_parameter(x->t);
}

int shf_torch_shape_compare(const struct shf_foreign_tensor *x, const struct shf_foreign_tensor *y)
{
	int c = (x->ndim > y->ndim) - (x->ndim < y->ndim);

	for (int d = 0; !c && d < x->ndim; d++)
		c = (x->dims[d] > y->dims[d]) - (x->dims[d] < y->dims[d]);
	return c;
}

static int by_shape(const void *a, const void *b)
{
	return shf_torch_shape_compare(((const struct numbered *)a)->t,
	                               ((const struct numbered *)b)->t);
}

/* Names the parameters by their shapes, by which both arrays are sorted. Returns false if the shape
 * of a parameter is unknown, or if not exactly one parameter and one weight have it. */
static bool name_by_shape(struct numbered *of, size_t n, const struct numbered *weights, size_t m)
{
	size_t k = 0;

	for (size_t i = 0; i < n; i++) {
		if (!has_shape_of_parameter(of[i].t) ||
		    (i + 1 < n && by_shape(&of[i], &of[i + 1]) == 0))
			return false;
		while (k < m && by_shape(&weights[k], &of[i]) < 0)
			k++;
		if (k == m || by_shape(&weights[k], &of[i]) ||
		    (k + 1 < m && by_shape(&weights[k + 1], &of[i]) == 0))
			return false;
		of[i].name = weights[k].t->name;
	}
	return true;
}

/* Lists the parameters that have state, and the weights. *n and *m: how many. */
static void list_numbered(const struct shf_foreign *f, const struct shf_torch_states *which,
                          struct numbered *of, size_t *n, struct numbered *weights, size_t *m)
{
	size_t all, kept = 0;
	const struct shf_foreign_tensor *t = shf_foreign_tensors(f, &all);
	struct numbered x;

	for (size_t i = 0; i < all; i++) {
		x = (struct numbered){ .t = &t[i] };
		if (!t[i].family && i >= which->first && i < which->end)
			weights[(*m)++] = x;
		else if (state_number(which, &t[i], &x.number))
			of[(*n)++] = x;
	}
	if (*n)
		qsort(of, *n, sizeof(*of), states_by_number);
	for (size_t i = 0; i < *n; i++)
		if (i == 0 || of[i].number != of[kept - 1].number)
			of[kept++] = of[i];
	*n = kept;
}

static int numbered_by_name(const void *a, const void *b)
{
	return strcmp(((const struct numbered *)a)->t->name, ((const struct numbered *)b)->t->name);
}

/* Returns whether each parameter has the name and, as far as it is known, the shape of a weight. */
static bool are_weights(const char *prefix, const struct numbered *of, size_t n,
                        struct numbered *weights, size_t m)
{
	size_t head = strlen(prefix);

	if (m)
		qsort(weights, m, sizeof(*weights), numbered_by_name);
	for (size_t i = 0; i < n; i++) {
		size_t lo = 0, hi = m;

		while (lo < hi) {
			size_t mid = lo + (hi - lo) / 2;

			if (strcmp(weights[mid].t->name + head, of[i].name) < 0)
				lo = mid + 1;
			else
				hi = mid;
		}
		if (lo == m || strcmp(weights[lo].t->name + head, of[i].name) ||
		    (has_shape_of_parameter(of[i].t) && by_shape(&weights[lo], &of[i])))
			return false;
	}
	return true;
}

/* Names the parameters. Returns false if the names of some are unknown. *by_groups gets whether the
 * names are those that the groups have. */
static bool name_all(const struct shf_torch_states *which, struct numbered *of, size_t n,
                     struct numbered *weights, size_t m, bool *by_groups)
{
	const char *const *said = (const char *const *)(const void *)which->names->data;
	size_t said_n = which->names->len / sizeof(*said);
	bool all = true;

	for (size_t i = 0; i < n; i++) {
		of[i].name = of[i].number < said_n ? said[of[i].number] : NULL;
		all &= of[i].name != NULL;
	}
	if (all && which->checked)
		all = are_weights(which->weights, of, n, weights, m);
	*by_groups = all;
	if (all)
		return true;
	qsort(of, n, sizeof(*of), by_shape);
	if (m)
		qsort(weights, m, sizeof(*weights), by_shape);
	all = name_by_shape(of, n, weights, m);
	qsort(of, n, sizeof(*of), states_by_number);
	return all;
}

/* Renames the states of these parameters, which are sorted by number. */
static int rename_states(struct shf_foreign *f, const struct shf_torch_states *which,
                         const struct numbered *of, size_t n, bool said, struct sheaf_error *err)
{
	struct shf_foreign_tensor *t = (struct shf_foreign_tensor *)(void *)f->tensors.data;
	size_t all = f->tensors.len / sizeof(*t);

	for (size_t i = 0; i < all; i++) {
		struct shf_buf name = SHF_BUF_INIT;
		struct numbered want = { .t = &t[i] };
		const char *own = NULL;
		size_t lo = 0, hi = n;

		if (!state_number(which, &t[i], &want.number))
			continue;
		while (hi - lo > 1) {
			size_t mid = lo + (hi - lo) / 2;

			if (of[mid].number <= want.number)
				lo = mid;
			else
				hi = mid;
		}
		shf_buf_addf(&name, "%s%s%s", said ? which->weights : "", of[lo].name,
		             strchr(t[i].name, '/'));
		if (!name.oom)
			own = shf_arena_strdup(&f->arena, (const char *)name.data, name.len);
		shf_buf_release(&name);
		if (!own)
			return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
			                f->path);
		t[i].name = own;
	}
	return shf_foreign_check_names(f, err);
}

int shf_torch_states_rename(struct shf_foreign *f, const struct shf_torch_states *which,
                            struct sheaf_error *err)
{
	size_t all = f->tensors.len / sizeof(struct shf_foreign_tensor), n = 0, m = 0;
	struct numbered *of = shf_alloc(2 * all + 1, sizeof(*of));
	int rc = of ? 0 : shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
	                           f->path);
	bool said = false;

	if (rc == 0)
		list_numbered(f, which, of, &n, of + all, &m);
	if (rc == 0 && n && name_all(which, of, n, of + all, m, &said))
		rc = rename_states(f, which, of, n, said, err);
	else if (rc == 0 && n)
		rc = shf_foreign_note(f, err, "optimizer.names", 15, "the numbers that its "
		                      "parameters have: the file does not say which ones they "
		                      "are, nor do their shapes");
	shf_free(of);
	return rc;
}
