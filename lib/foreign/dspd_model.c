/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the model: mp_rank_00_model_states.pt; with ZeRO 3 zero_pp_rank_0_mp_rank_00_... of
 * each rank, whose tensors are empty, except for buffers and parts of frozen parameters. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "dspd_save.h"
#include "sort.h"
#include "torch_walk.h"
#include "valid.h"

/* ---- parameters ---- */

static size_t params_n(const struct shf_dspd *d)
{
	return d->params.len / sizeof(struct shf_dspd_param);
}

static int params_order(const void *a, const void *b)
{
	return strcmp((*(struct shf_dspd_param *const *)a)->name,
	              (*(struct shf_dspd_param *const *)b)->name);
}

/* Makes the index of names. EFORMAT: two parameters have one. */
static int params_settle(struct shf_dspd *d, const char *where)
{
	struct shf_dspd_param *p = (struct shf_dspd_param *)(void *)d->params.data, **of;
	size_t n = params_n(d);

	shf_buf_reset(&d->by_name);
	for (size_t i = 0; i < n; i++)
		shf_buf_add(&d->by_name, &(struct shf_dspd_param *){ &p[i] }, sizeof(p));
	if (d->by_name.oom || d->params.oom)
		return shf_dspd_no_memory(d);
	of = (struct shf_dspd_param **)(void *)d->by_name.data;
	shf_records_sort(of, n, sizeof(*of), params_order);
	for (size_t i = 1; i < n; i++)
		if (strcmp(of[i - 1]->name, of[i]->name) == 0)
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: two parameters have the name "
			                "%.*s", where, shf_name_show(of[i]->name), of[i]->name);
	return 0;
}

/* Adds a parameter by its shape. */
static int param_add(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *key,
                     const struct shf_pk *shape, struct shf_dspd_param *like)
{
	struct shf_dspd_param p = *like;
	int64_t *dims;

	if (key->kind != SHF_PK_STR || (shape->kind != SHF_PK_TUPLE &&
	                                shape->kind != SHF_PK_LIST) || shape->n > 64)
		return shf_dspd_bad(d, x->where, "a shape in param_shapes is not a torch.Size");
	p.name = shf_dspd_keep(d, key->u.s, key->n);
	p.ndim = (int32_t)shape->n;
	p.dims = dims = shf_foreign_numbers(d->f, shape->n);
	if (!p.name || !dims)
		return p.name ? shf_dspd_no_memory(d) : d->err->code;
	p.items = 1;
	for (uint32_t i = 0; i < shape->n; i++)
		if (!shf_pk_int(shape->u.a[i], &dims[i]) || dims[i] < 0 ||
		    !shf_mul64(&p.items, p.items, (uint64_t)dims[i]) || p.items > INT64_MAX / 16)
			return shf_dspd_bad(d, x->where, "a shape in param_shapes is not one of "
			                    "less than 2^59 items");
	shf_buf_add(&d->params, &p, sizeof(p));
	return d->params.oom ? shf_dspd_no_memory(d) : 0;
}

/* Adds the parameters of a dictionary. */
static int params_of(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v,
                     uint32_t group, bool frozen)
{
	struct shf_dspd_param like = { .group = group, .frozen = frozen };
	int rc = 0;

	if (!v || v->kind != SHF_PK_DICT)
		return shf_dspd_bad(d, x->where, "param_shapes is not a list of dictionaries");
	for (uint32_t i = 0; i < v->n && rc == 0; i++) {
		if (frozen)     /* its run is its own */
			like.group = (uint32_t)params_n(d);
		rc = param_add(d, x, v->u.a[2 * i], v->u.a[2 * i + 1], &like);
	}
	return rc;
}

/* Reads param_shapes: of each group its parameters, in order. */
static int model_params(struct shf_dspd *d, const struct shf_dspd_file *x,
                        const struct shf_pk *root)
{
	const struct shf_pk *shapes = shf_pk_get(root, "param_shapes");
	const struct shf_pk *frozen = shf_pk_get(root, "frozen_param_shapes");
	int rc = 0;

	if (shapes && shapes->kind == SHF_PK_DICT)      /* of one group, in old versions */
		rc = params_of(d, x, shapes, 0, false);
	else if (shapes && shapes->kind != SHF_PK_NONE && shapes->kind != SHF_PK_LIST)
		return shf_dspd_bad(d, x->where, "param_shapes is not a list of dictionaries");
	for (uint32_t i = 0; shapes && shapes->kind == SHF_PK_LIST && i < shapes->n && rc == 0; i++)
		rc = params_of(d, x, shapes->u.a[i], i, false);
	if (rc == 0 && d->stage == 3 && frozen && frozen->kind == SHF_PK_DICT)
		rc = params_of(d, x, frozen, 0, true);
	if (rc == 0)
		rc = params_settle(d, x->where);
	for (size_t i = 0; rc == 0 && i < params_n(d); i++) {
		struct shf_dspd_param *p = (struct shf_dspd_param *)(void *)d->params.data + i;
		const struct shf_dspd_weight *w = shf_dspd_weight(d, p->name);

		p->whole = w || d->layers;
		p->f32 = w && w->f32;
		/* The weights that stages share are in the files of their layers under another
		 * name. */
		if (d->layers && !w && !p->frozen && strncmp(p->name, "tied_modules.", 13))
			rc = shf_fail(d->err, SHEAF_EFORMAT, "%s: tensor %.*s: no layer_<NN>-model_"
			              "states.pt has it; the file of a layer is missing",
			              d->f->path, shf_name_show(p->name), p->name);
	}
	return rc;
}

/* Compares the parameters of a dictionary with those of rank 0 from number *at on. */
static bool same_params_of(const struct shf_dspd *d, const struct shf_pk *v, bool frozen,
                           uint32_t group, size_t *at)
{
	const struct shf_dspd_param *p = (const void *)d->params.data;

	if (!v || v->kind != SHF_PK_DICT || v->n > params_n(d) - *at)
		return false;
	for (uint32_t i = 0; i < v->n; i++) {
		const struct shf_pk *key = v->u.a[2 * i], *shape = v->u.a[2 * i + 1];
		const struct shf_dspd_param *of = &p[(*at)++];
		int64_t items;

		if (key->kind != SHF_PK_STR || !shf_pk_text_is(key, of->name) ||
		    of->frozen != frozen || (!frozen && of->group != group) ||
		    (shape->kind != SHF_PK_TUPLE && shape->kind != SHF_PK_LIST) ||
		    shape->n != (uint32_t)of->ndim)
			return false;
		for (uint32_t k = 0; k < shape->n; k++)
			if (!shf_pk_int(shape->u.a[k], &items) || items != of->dims[k])
				return false;
	}
	return true;
}

/* Compares the parameters, their order and their shapes with those of rank 0: each rank of ZeRO 3
 * has cut its part by what its own file says. */
static int same_params(struct shf_dspd *d, const struct shf_dspd_file *x,
                       const struct shf_pk *root)
{
	const struct shf_pk *shapes = shf_pk_get(root, "param_shapes");
	const struct shf_pk *frozen = shf_pk_get(root, "frozen_param_shapes");
	bool list = shapes && shapes->kind == SHF_PK_LIST, same = true;
	size_t at = 0, n;

	if (shapes && shapes->kind == SHF_PK_DICT)
		same = same_params_of(d, shapes, false, 0, &at);
	for (uint32_t i = 0; list && i < shapes->n && same; i++)
		same = same_params_of(d, shapes->u.a[i], false, i, &at);
	if (same && frozen && frozen->kind == SHF_PK_DICT)
		same = same_params_of(d, frozen, true, 0, &at);
	if (same && at == params_n(d))
		return 0;
	return shf_fail(d->err, SHEAF_EFORMAT, "%s: has other parameters than %s, or the same in "
	                "another order or with other shapes; they are from different saves",
	                x->where, shf_dspd_entries(d, false, &n)->name);
}

/* Reads how many experts each layer with experts has: a list of numbers, or one. */
static void model_experts(struct shf_dspd *d, const struct shf_pk *root)
{
	const struct shf_pk *v = shf_pk_get(root, "num_experts");
	const struct shf_pk *config = shf_pk_get(root, "ds_config");
	const struct shf_pk *turned = shf_pk_get(config, "use_data_before_expert_parallelism");
	int64_t is;

	d->experts = 0;
	if (turned && turned->kind == SHF_PK_BOOL && turned->u.i)
		return;         /* other ranks have the same experts then */
	if (shf_pk_int(v, &is) && is > 0)
		d->experts = is;
	for (uint32_t i = 0; v && v->kind == SHF_PK_LIST && i < v->n; i++) {
		if (!shf_pk_int(v->u.a[i], &is) || is <= 0 || (i && is != d->experts)) {
			d->experts = 0;
			return;
		}
		d->experts = is;
	}
}

/* Reads {name of a parameter: name of the one that is stored}. */
static int model_ties(struct shf_dspd *d, const struct shf_pk *v)
{
	for (uint32_t i = 0; v && v->kind == SHF_PK_DICT && i < v->n; i++) {
		const struct shf_pk *name = v->u.a[2 * i], *of = v->u.a[2 * i + 1];
		struct shf_dspd_tie tie;

		if (name->kind != SHF_PK_STR || of->kind != SHF_PK_STR)
			continue;
		tie.name = shf_dspd_keep(d, name->u.s, name->n);
		tie.of = shf_dspd_keep(d, of->u.s, of->n);
		if (!tie.name || !tie.of)
			return d->err->code;
		shf_buf_add(&d->ties, &tie, sizeof(tie));
	}
	return d->ties.oom ? shf_dspd_no_memory(d) : 0;
}

/* ---- tensors ---- */

static int texts_order(const void *a, const void *b)
{
	const struct shf_pk *x = *(const struct shf_pk *const *)a;
	const struct shf_pk *y = *(const struct shf_pk *const *)b;
	int c = memcmp(x->u.s, y->u.s, x->n < y->n ? x->n : y->n);

	return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* Makes a sorted list of the texts of a list: *to, of const struct shf_pk *. */
static int texts_of(struct shf_dspd *d, const struct shf_pk *list, struct shf_buf *to)
{
	for (uint32_t i = 0; list && list->kind == SHF_PK_LIST && i < list->n; i++)
		if (list->u.a[i]->kind == SHF_PK_STR)
			shf_buf_add(to, &list->u.a[i], sizeof(list->u.a[i]));
	if (to->oom)
		return shf_dspd_no_memory(d);
	shf_records_sort(to->data, to->len / sizeof(list), sizeof(list), texts_order);
	return 0;
}

/* Adds a tensor of the model. With ZeRO 3, empty tensors that are no buffers stand for parameters
 * that it has cut. */
static int model_tensor(struct shf_dspd *d, const struct shf_dspd_file *x,
                        const struct shf_pk *key, const struct shf_pk *v,
                        const struct shf_buf *buffers)
{
	struct shf_dspd_param *p = shf_dspd_param(d, key->u.s, key->n);
	struct shf_torch_tensor t;
	const char *why = NULL;
	int64_t items = 1;

	switch (shf_torch_tensor_of(&t, v, &why)) {
	case SHF_TENSOR_NONE:
		return shf_foreign_note(d->f, d->err, key->u.s, key->n, "a value of the model that "
		                        "is not a tensor, which sheaf does not read");
	case SHF_TENSOR_UNREAD:
		return shf_foreign_note(d->f, d->err, key->u.s, key->n, "%s", why);
	case SHF_TENSOR_READ:
		break;
	}
	for (int i = 0; i < t.ndim; i++)
		items *= t.dims->u.a[i]->u.i != 0;
	if (d->stage == 3 && !items &&
	    !(buffers->len && bsearch(&key, buffers->data, buffers->len / sizeof(key), sizeof(key),
	                              texts_order)))
		return 0;
	if (p && !shf_dspd_has_shape(&t, p))
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: tensor %.*s has another shape than "
		                "param_shapes says", x->where, shf_name_show(p->name), p->name);
	if (p) {
		p->whole = true;
		p->f32 = t.dtype == SHEAF_F32;
	}
	d->module = true;
	return shf_dspd_add(d, x, v, NULL, key->u.s, key->n) < 0 ? d->err->code : 0;
}

static int model_tensors(struct shf_dspd *d, const struct shf_dspd_file *x,
                         const struct shf_pk *root)
{
	const struct shf_pk *module = shf_pk_get(root, "module");
	struct shf_buf buffers = SHF_BUF_INIT;
	int rc = texts_of(d, shf_pk_get(root, "buffer_names"), &buffers);

	for (uint32_t i = 0; module && module->kind == SHF_PK_DICT && i < module->n && rc == 0; i++)
		if (module->u.a[2 * i]->kind == SHF_PK_STR)
			rc = model_tensor(d, x, module->u.a[2 * i], module->u.a[2 * i + 1],
			                  &buffers);
	shf_buf_release(&buffers);
	return rc;
}

/* Adds what a rank of ZeRO 3 has of frozen parameters. */
static int frozen_parts(struct shf_dspd *d, const struct shf_dspd_file *x, int rank,
                        const struct shf_pk *v)
{
	int rc = 0;

	if (v && v->kind == SHF_PK_DICT && v->n > params_n(d))
		return shf_dspd_bad(d, x->where, "has more frozen parameters than the file of rank "
		                    "0");
	for (uint32_t i = 0; v && v->kind == SHF_PK_DICT && i < v->n && rc >= 0; i++) {
		const struct shf_pk *key = v->u.a[2 * i];
		struct shf_dspd_param *p = key->kind != SHF_PK_STR ? NULL
			: shf_dspd_param(d, key->u.s, key->n);
		struct shf_dspd_part part = { .kind = SHF_DSPD_FROZEN, .seq = (uint32_t)rank };

		if (!p || !p->frozen)
			return shf_dspd_bad(d, x->where, "has a frozen parameter that the file of "
			                    "rank 0 does not have");
		part.run = p->group;
		rc = shf_dspd_flat(d, x, v->u.a[2 * i + 1], p->name, &part);
		if (rc == 1)
			shf_buf_add(&d->parts, &part, sizeof(part));
	}
	return d->parts.oom ? shf_dspd_no_memory(d) : rc < 0 ? rc : 0;
}

/* ---- other values ---- */

/* Adds notes of all values that are not read otherwise. */
static int model_notes(struct shf_dspd *d, const struct shf_dspd_file *x,
                       const struct shf_pk *root)
{
	static const char *const read[] = { "module", "buffer_names", "param_shapes",
		"frozen_param_shapes", "shared_params", "frozen_param_fragments",
		"global_steps" };
	struct shf_pk rest = { .kind = SHF_PK_DICT };
	struct shf_buf pairs = SHF_BUF_INIT;
	int rc;

	for (uint32_t i = 0; i < root->n; i++) {
		bool skip = root->u.a[2 * i + 1]->kind == SHF_PK_NONE;

		for (size_t k = 0; k < sizeof(read) / sizeof(read[0]); k++)
			skip |= shf_pk_text_is(root->u.a[2 * i], read[k]);
		if (!skip) {
			shf_buf_add(&pairs, &root->u.a[2 * i], 2 * sizeof(root->u.a[0]));
			rest.n++;
		}
	}
	rest.u.a = (struct shf_pk **)(void *)pairs.data;
	rc = pairs.oom ? shf_dspd_no_memory(d)
	   : shf_torch_walk_notes(d->f, &x->zip.pickle, &rest, NULL, d->err);
	shf_buf_release(&pairs);
	return rc;
}

/* ---- files ---- */

/* Reads the file of one rank; rank -1: of all. The first one has what is said once. */
static int model_file(struct shf_dspd *d, const char *name, int rank, bool first)
{
	struct shf_dspd_file x;
	const struct shf_pk *root;
	int64_t ranks;
	int rc = shf_dspd_open(d, NULL, name, &x);

	root = rc == 0 ? x.zip.pickle.root : NULL;
	if (rc == 0)
		rc = shf_dspd_same_save(d, &x, root);
	if (rc == 0 && first && shf_pk_int(shf_pk_get(root, "mp_world_size"), &ranks) &&
	    ranks > d->mp_n)
		rc = shf_fail(d->err, SHEAF_EFORMAT, "%s: says that there are %" PRId64 " ranks of "
		              "model parallelism, but the files of some are missing: there are %d",
		              x.where, ranks, d->mp_n);
	if (rc == 0 && first)
		rc = model_params(d, &x, root);
	if (rc == 0 && !first)
		rc = same_params(d, &x, root);
	if (rc == 0 && first)
		rc = shf_dspd_boxes(d, root);
	if (rc == 0 && first)
		model_experts(d, root);
	if (rc == 0 && first)
		rc = model_ties(d, shf_pk_get(root, "shared_params"));
	if (rc == 0 && first)
		rc = model_tensors(d, &x, root);
	if (rc == 0 && first && d->mp == 0)
		rc = model_notes(d, &x, root);
	if (rc == 0 && rank >= 0)
		rc = frozen_parts(d, &x, rank, shf_pk_get(root, "frozen_param_fragments"));
	shf_dspd_close(d, &x);
	return rc;
}

int shf_dspd_model(struct shf_dspd *d)
{
	size_t n;
	const struct shf_dspd_entry *e = shf_dspd_entries(d, false, &n);
	int rc = 0;

	d->module = false;
	if (n == 0)
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: has no file of the model of rank %d "
		                "(mp_rank_%02d_model_states.pt or zero_pp_rank_0_mp_rank_%02d_"
		                "model_states.pt), which has the names and shapes of all weights",
		                d->f->path, d->mp, d->mp, d->mp);
	d->stage = e[n - 1].x.dp >= 0 ? 3 : 0;
	for (size_t i = 0; i < n && rc == 0; i++) {
		if (d->stage == 3 && e[i].x.dp != (int)i)
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: the file of the model of rank "
			                "%zu is missing; %s follows", d->f->path, i, e[i].name);
		rc = model_file(d, e[i].name, e[i].x.dp, i == 0);
	}
	d->world = d->stage == 3 ? (int)n : 0;
	return rc;
}
