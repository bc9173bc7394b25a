/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer numbers its parameters in the order in which it was given them. Mostly that is the
 * order of model.parameters(), which is that of the state_dict without buffers and without the
 * second names of tied weights. If there are several groups of parameters (commonly matrices, which
 * have weight decay, and all others), this file assumes that order within each group.
 *
 * A script can give the parameters in another order, so the shapes of all states are compared with
 * those of the weights. Only the order tells apart parameters of the same shape, and a note says
 * that it was used. */
#include "torch_training.h"
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "sort.h"
#include "torch_states.h"
#include "torch_walk.h"

static const char *const optimizer_keys[] = { "optimizer", "optimizer_state_dict", "optim",
	"optimizer_state", "opt" };
static const char *const weights_keys[] = { "model", "model_state_dict", "state_dict",
	"model_state", "module", "net", "network", "weights" };

const char *shf_torch_weights_key(size_t i)
{
	return i < sizeof(weights_keys) / sizeof(weights_keys[0]) ? weights_keys[i] : NULL;
}

bool shf_torch_training_begin(struct shf_torch_training *t, struct shf_foreign *f,
                              const struct shf_pk *root)
{
	const struct shf_pk *groups = NULL, *dict = NULL;
	const char *optimizer = NULL, *weights = NULL;
	uint32_t end = 0;
	int64_t number;

	for (size_t i = 0; i < sizeof(optimizer_keys) / sizeof(optimizer_keys[0]) && !groups; i++) {
		dict = shf_pk_get(root, optimizer_keys[i]);
		groups = shf_pk_get(dict, "state") ? shf_pk_get(dict, "param_groups") : NULL;
		optimizer = optimizer_keys[i];
	}
	for (size_t i = 0; i < sizeof(weights_keys) / sizeof(weights_keys[0]) && !weights; i++)
		weights = shf_pk_get(root, weights_keys[i]) ? weights_keys[i] : NULL;
	if (!groups || groups->kind != SHF_PK_LIST || !weights)
		return true;
	for (uint32_t i = 0; i < groups->n; i++) {
		const struct shf_pk *of = shf_pk_get(groups->u.a[i], "params");

		if (!of || of->kind != SHF_PK_LIST)
			return true;
		for (uint32_t k = 0; k < of->n; k++)
			if (!shf_pk_int(of->u.a[k], &number) || number != end++)
				return true;
		shf_buf_add(&t->ends, &end, sizeof(end));
	}
	if (t->ends.oom || !shf_torch_states_read_names(f, dict, &t->names) || t->names.oom)
		return false;
	t->optimizer = optimizer;
	t->weights = weights;
	return true;
}

void shf_torch_training_release(struct shf_torch_training *t)
{
	shf_buf_release(&t->ends);
	shf_buf_release(&t->names);
}

struct param {                  /* a parameter of the optimizer */
	const struct shf_foreign_tensor *state; /* a state that has its shape; NULL: none has */
	const char *name;               /* of its weight; NULL: not known */
	uint32_t group;
};
struct weight {
	const struct shf_foreign_tensor *t;
	uint64_t at;                    /* where its values begin in the file */
	uint32_t i;                     /* its index before the weights are sorted */
};
struct training {
	const struct shf_torch_training *of;
	struct shf_foreign *f;
	struct param *params;           /* owned; n, by number */
	struct weight *weights;         /* owned; weights_n, in the order of the state_dict */
	struct weight *sorted;          /* owned; room for a function that sorts the weights */
	uint32_t n, weights_n;
};

/* ---- the state ---- */

/* Splits the name of a state: *number gets the number of its parameter, and `kind` what kind of
 * state it is, as Sheaf names it ("moment1_0"). Returns false if the tensor is no state. */
static bool training_state(const struct training *x, const struct shf_foreign_tensor *t,
                           uint32_t *number, char kind[SHF_TORCH_STATE_MAX])
{
	static const char middle[] = ".state.";
	size_t n = strlen(x->of->optimizer), m = sizeof(middle) - 1;
	uint64_t v = 0;
	const char *p;
	int digits;

	if (t->family || strncmp(t->name, x->of->optimizer, n) || strncmp(t->name + n, middle, m))
		return false;
	p = t->name + n + m;
	for (digits = 0; *p >= '0' && *p <= '9' && digits < 9; digits++)
		v = 10 * v + (uint64_t)(*p++ - '0');
	*number = (uint32_t)v;
	return digits > 0 && *p == '.' && shf_torch_state_name(kind, p + 1, strlen(p + 1));
}

/* Finds for each parameter its group and a state that has its shape. Returns false if there are no
 * states, or if a state has the number of no parameter. */
static bool see_states(struct training *x)
{
	const uint32_t *ends = (const uint32_t *)(const void *)x->of->ends.data;
	char kind[SHF_TORCH_STATE_MAX];
	uint32_t number, group = 0;
	bool any = false;
	size_t all;
	const struct shf_foreign_tensor *t = shf_foreign_tensors(x->f, &all);

	for (uint32_t i = 0; i < x->n; i++) {
		while (ends[group] <= i)
			group++;
		x->params[i].group = group;
	}
	for (size_t i = 0; i < all; i++) {
		if (!training_state(x, &t[i], &number, kind))
			continue;
		if (number >= x->n)
			return false;
		any = true;
		if (shf_torch_state_has_shape(kind))
			x->params[number].state = &t[i];
	}
	return any;
}

/* ---- the weights ---- */

/* Returns whether a tensor of the state_dict is certainly a buffer and no parameter: it has a dtype
 * without gradients, or is named as the running means and variances of torch's own layers are. */
static bool is_buffer(const struct shf_foreign_tensor *t)
{
	static const char *const tails[] = { ".running_mean", ".running_var" };
	size_t n = strlen(t->name);

	for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
		if (n > strlen(tails[i]) && strcmp(t->name + n - strlen(tails[i]), tails[i]) == 0)
			return true;
	return t->dtype != SHEAF_F32 && t->dtype != SHEAF_F64 && t->dtype != SHEAF_F16 &&
	       t->dtype != SHEAF_BF16;
}

static int weights_by_place(const void *a, const void *b)
{
	const struct weight *x = a, *y = b;
	int c = (x->at > y->at) - (x->at < y->at);

	c = c ? c : shf_torch_shape_compare(x->t, y->t);
	return c ? c : (x->i > y->i) - (x->i < y->i);
}

/* Lists the weights in the order of the state_dict, without buffers. Tied weights, which have the
 * same shape at the same place of the file, are listed once, by their first name. */
static void list_weights(struct training *x)
{
	const struct shf_foreign_piece *pieces = (const void *)x->f->pieces.data;
	size_t all, n = strlen(x->of->weights);
	const struct shf_foreign_tensor *t = shf_foreign_tensors(x->f, &all);
	uint32_t m = 0, left = 0;

	for (size_t i = 0; i < all; i++)
		if (!t[i].family && strncmp(t[i].name, x->of->weights, n) == 0 &&
		    t[i].name[n] == '.' && !is_buffer(&t[i])) {
			x->weights[m] = (struct weight){ &t[i], pieces[t[i].first].at, m };
			m++;
		}
	if (m)
		memcpy(x->sorted, x->weights, m * sizeof(*x->sorted));
	shf_records_sort(x->sorted, m, sizeof(*x->sorted), weights_by_place);
	for (uint32_t i = 1; i < m; i++)
		if (x->sorted[i].t->bytes && x->sorted[i].at == x->sorted[i - 1].at &&
		    shf_torch_shape_compare(x->sorted[i].t, x->sorted[i - 1].t) == 0)
			x->weights[x->sorted[i].i].t = NULL;
	for (uint32_t i = 0; i < m; i++)
		if (x->weights[i].t)
			x->weights[left++] = x->weights[i];
	x->weights_n = left;
}

/* ---- names ---- */

static int weights_by_name(const void *a, const void *b)
{
	return strcmp(((const struct weight *)a)->t->name, ((const struct weight *)b)->t->name);
}

/* Names the parameters as their groups do. Returns false if the groups have no names, or one that
 * is not the name of a weight. */
static bool name_as_said(struct training *x)
{
	const char *const *said = (const char *const *)(const void *)x->of->names.data;
	size_t n = strlen(x->of->weights), all = x->of->names.len / sizeof(*said);
	bool named = x->n > 0 && all >= x->n;

	if (!named)
		return false;
	memcpy(x->sorted, x->weights, x->weights_n * sizeof(*x->sorted));
	shf_records_sort(x->sorted, x->weights_n, sizeof(*x->sorted), weights_by_name);
	for (uint32_t i = 0; i < x->n && named; i++) {
		size_t lo = 0, hi = x->weights_n;

		while (lo < hi && said[i]) {
			size_t mid = lo + (hi - lo) / 2;
			int c = strcmp(x->sorted[mid].t->name + n + 1, said[i]);

			if (c == 0)
				x->params[i].name = x->sorted[mid].t->name;
			lo = c < 0 ? mid + 1 : lo;
			hi = c < 0 ? hi : c == 0 ? lo : mid;
		}
		named = x->params[i].name != NULL;
	}
	return named;
}

static int params_by_shape(const void *a, const void *b)
{
	const struct param *const *x = a, *const *y = b;

	return shf_torch_shape_compare((*x)->state, (*y)->state);
}

/* Sorts the parameters by shape. Returns false if the shape of one is unknown, or if two groups
 * have parameters of the same shape, because a weight of that shape can then belong to either. */
static bool sort_params(const struct training *x, const struct param **sorted)
{
	for (uint32_t i = 0; i < x->n; i++) {
		if (!x->params[i].state)
			return false;
		sorted[i] = &x->params[i];
	}
	qsort(sorted, x->n, sizeof(*sorted), params_by_shape);
	for (uint32_t i = 1; i < x->n; i++)
		if (params_by_shape(&sorted[i - 1], &sorted[i]) == 0 &&
		    sorted[i - 1]->group != sorted[i]->group)
			return false;
	return true;
}

/* Sets *group to the one group that has parameters of the shape of a weight. Returns false if there
 * is none. */
static bool group_of_weight(uint32_t *group, const struct shf_foreign_tensor *weight,
                            const struct param *const *sorted, uint32_t n)
{
	const struct param want = { .state = weight }, *key = &want;
	const struct param *const *found = bsearch(&key, sorted, n, sizeof(*sorted),
	                                           params_by_shape);

	if (found)
		*group = (*found)->group;
	return found != NULL;
}

/* Names the parameters of each group after the weights, in the order of the weights. Returns false
 * if the numbers or the shapes of weights and parameters differ. sorted: the parameters by shape;
 * used only if there are several groups. next: room for a number by group. */
static bool name_in_order(struct training *x, const struct param *const *sorted, uint32_t *next)
{
	const uint32_t *ends = (const uint32_t *)(const void *)x->of->ends.data;
	uint32_t groups = (uint32_t)(x->of->ends.len / sizeof(*ends));

	if (x->weights_n != x->n)
		return false;
	for (uint32_t g = 0; g < groups; g++)
		next[g] = g ? ends[g - 1] : 0;
	for (uint32_t i = 0; i < x->n; i++) {
		const struct shf_foreign_tensor *w = x->weights[i].t;
		struct param *p;
		uint32_t g = 0;

		if ((groups > 1 && !group_of_weight(&g, w, sorted, x->n)) || next[g] == ends[g])
			return false;
		p = &x->params[next[g]++];
		if (p->state && shf_torch_shape_compare(p->state, w))
			return false;
		p->name = w->name;
	}
	return true;
}

/* Names all parameters. Returns 1 if their groups have the names, 2 if the names are from the order
 * of the weights, 0 if the names are unknown, or -1 if there is no memory. */
static int name_params(struct training *x)
{
	size_t groups = x->of->ends.len / sizeof(uint32_t);
	const struct param **sorted = shf_alloc((size_t)x->n + 1, sizeof(struct param *));
	uint32_t *next = shf_alloc(groups + 1, sizeof(*next));
	int rc = sorted && next ? 0 : -1;

	if (rc == 0 && name_as_said(x))
		rc = 1;
	else if (rc == 0 && (groups == 1 || sort_params(x, sorted)) &&
	         name_in_order(x, sorted, next))
		rc = 2;
	shf_free(sorted);
	shf_free(next);
	return rc;
}

/* Renames all states after their parameters. */
static int rename_params(const struct training *x, struct sheaf_error *err)
{
	struct shf_foreign_tensor *t = (struct shf_foreign_tensor *)(void *)x->f->tensors.data;
	size_t all = x->f->tensors.len / sizeof(*t);
	char kind[SHF_TORCH_STATE_MAX];
	uint32_t number;

	for (size_t i = 0; i < all; i++) {
		struct shf_buf name = SHF_BUF_INIT;
		const char *own = NULL;

		if (!training_state(x, &t[i], &number, kind))
			continue;
		shf_buf_addf(&name, "%s/%s", x->params[number].name, kind);
		if (!name.oom)
			own = shf_arena_strdup(&x->f->arena, (const char *)name.data, name.len);
		shf_buf_release(&name);
		if (!own)
			return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
			                x->f->path);
		t[i].name = own;
		t[i].family = "optimizer";
	}
	return shf_foreign_check_names(x->f, err);
}

int shf_torch_training_rename(const struct shf_torch_training *t, struct shf_foreign *f,
                              struct sheaf_error *err)
{
	size_t all = f->tensors.len / sizeof(struct shf_foreign_tensor);
	struct training x = { .of = t, .f = f };
	int named = 0, rc = 0;

	if (!t->optimizer || !t->ends.len)
		return 0;
	x.n = ((const uint32_t *)(const void *)t->ends.data)[t->ends.len / sizeof(uint32_t) - 1];
	x.params = shf_zalloc((size_t)x.n + 1, sizeof(*x.params));
	x.weights = shf_alloc(all + 1, sizeof(*x.weights));
	x.sorted = shf_alloc(all + 1, sizeof(*x.sorted));
	named = x.params && x.weights && x.sorted ? 0 : -1;
	if (named == 0 && see_states(&x)) {
		list_weights(&x);
		named = name_params(&x);
	}
	if (named < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", f->path);
	else if (named > 0)
		rc = rename_params(&x, err);
	if (rc == 0 && named == 2)
		rc = shf_foreign_note(f, err, "optimizer.names", 15, "assumed, not proven: from "
		                      "the order of the weights in %s: they are as many as the "
		                      "parameters of the optimizer, and each has the shape of its "
		                      "state", t->weights);
	shf_free(x.params);
	shf_free(x.weights);
	shf_free(x.sorted);
	return rc;
}
