/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the optimizer, one from each data-parallel rank: [bf16_]zero_pp_rank_0_mp_rank_00_
 * optim_states.pt. Such a file does not say which rank wrote it, so the parameter offsets in it are
 * compared with those that follow from the order of parameters. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "dspd_save.h"
#include "err.h"
#include "valid.h"

#define ITEMS_MAX ((uint64_t)INT64_MAX / 16)
#define GROUPS_MAX 65536        /* groups of parameters, each of which is a flat tensor */

static struct shf_dspd_param *all_params(const struct shf_dspd *d, size_t *n)
{
	*n = d->params.len / sizeof(struct shf_dspd_param);
	return (struct shf_dspd_param *)(void *)d->params.data;
}

static struct shf_dspd_group *group_at(const struct shf_dspd *d, uint32_t i)
{
	struct shf_dspd_group *g = (struct shf_dspd_group *)(void *)d->groups.data;

	return i < d->groups.len / sizeof(*g) ? g + i : NULL;
}

/* ---- where parameters are in their runs ---- */

/* Reads how many items there are between a parameter and the next one. */
static bool padding_after(const struct shf_pk *list, uint32_t i, uint64_t *items)
{
	const struct shf_pk *v = shf_pk_at(list, i);
	int64_t is = 0;

	if (v && (!shf_pk_int(v, &is) || is < 0 || (uint64_t)is > ITEMS_MAX))
		return false;
	*items = (uint64_t)is;
	return true;
}

/* ZeRO 1 and 2: parameters of a group follow one another, padded if paddings says so. */
static int place_in_groups(struct shf_dspd *d, const struct shf_dspd_file *x,
                           const struct shf_pk *paddings)
{
	size_t n;
	struct shf_dspd_param *p = all_params(d, &n);
	uint64_t at = 0, padding;
	uint32_t i = 0;

	for (size_t k = 0; k < n; k++) {
		struct shf_dspd_group *g = group_at(d, p[k].group);

		if (!g)
			return shf_dspd_bad(d, x->where, "has fewer groups of parameters than the "
			                    "file of the model; they are from different saves");
		if (k && p[k].group != p[k - 1].group)
			at = i = 0;
		if (!padding_after(shf_pk_at(paddings, p[k].group), i++, &padding))
			return shf_dspd_bad(d, x->where, "param_alignment_paddings is not a list "
			                    "of numbers of items");
		p[k].at = at;
		g->items = at + p[k].items;
		at = g->items + padding;
		if (at > ITEMS_MAX)
			return shf_dspd_bad(d, x->where, "has a group of more than 2^59 items");
	}
	return 0;
}

/* ZeRO 3: each rank has an equal part of each parameter, rounded up. */
static int place_in_ranks(struct shf_dspd *d, const struct shf_dspd_file *x)
{
	size_t n;
	struct shf_dspd_param *p = all_params(d, &n);
	uint64_t world = (uint64_t)d->world, at = 0;

	for (size_t k = 0; k < n; k++) {
		if (p[k].frozen)
			continue;
		p[k].at = at;
		at += p[k].items / world + (p[k].items % world != 0);
		if (at > ITEMS_MAX)
			return shf_dspd_bad(d, x->where, "has more than 2^59 items");
	}
	d->rank_items = at;
	return 0;
}

/* Compares what a rank says of the places of parameters in its part with what follows from their
 * order. */
static int check_places(struct shf_dspd *d, const struct shf_dspd_file *x, uint64_t rank,
                        const struct shf_pk *said)
{
	for (uint32_t i = 0; i < said->n; i++) {
		const struct shf_pk *key = said->u.a[2 * i], *v = said->u.a[2 * i + 1];
		const struct shf_pk *of = v->kind == SHF_PK_CALL ? v->u.call->state : NULL;
		struct shf_dspd_param *p = key->kind != SHF_PK_STR ? NULL
			: shf_dspd_param(d, key->u.s, key->n);
		struct shf_dspd_group *g = p ? group_at(d, p->group) : NULL;
		uint64_t from, lo, hi;
		int64_t start, items;

		if (g && g->count == 0)
			continue;
		if (!shf_pk_int(shf_pk_get(of, "start"), &start) ||
		    !shf_pk_int(shf_pk_get(of, "numel"), &items))
			continue;
		from = g ? rank / shf_dspd_spread(d, g) * g->part : 0;
		lo = g && p->at > from ? p->at : from;
		hi = g && p->at + p->items < from + g->part ? p->at + p->items
		     : g ? from + g->part : 0;
		if (!g || lo >= hi || (uint64_t)start != lo - from || (uint64_t)items != hi - lo)
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: says that %" PRId64 " items of "
			                "its part, from number %" PRId64 " on, are %.*s, which "
			                "rank %" PRIu64 " cannot have; the files are from "
			                "different saves, or were renamed", x->where, items, start,
			                p ? shf_name_show(p->name) : 20,
			                p ? p->name : "an unknown parameter", rank);
	}
	return 0;
}

/* ---- the parts of one rank ---- */

/* Returns the number of a kind by its name, or -1 if it cannot be one, or there are too many. */
static int kind_of(struct shf_dspd *d, const struct shf_pk *key)
{
	char text[SHF_TORCH_STATE_MAX];
	uint32_t i;

	if (key->kind != SHF_PK_STR || !shf_torch_state_name(text, key->u.s, key->n))
		return -1;
	for (i = 1; i < d->kinds_n; i++)
		if (strcmp(d->kinds[i], text) == 0)
			return (int)i;
	if (i >= SHF_DSPD_KINDS_MAX)
		return -1;
	d->kinds[i] = shf_dspd_keep(d, text, strlen(text));
	if (!d->kinds[i])
		return d->err->code;
	d->kinds_n = i + 1;
	return (int)i;
}

int shf_dspd_step(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v,
                  int64_t *step, uint64_t *at)
{
	struct shf_torch_tensor t;
	int64_t stride[2];
	const char *why;
	float value;
	int rc;

	*step = -1;
	*at = UINT64_MAX;
	if (shf_pk_int(v, step))
		return 0;
	if (shf_torch_tensor_of(&t, v, &why) != SHF_TENSOR_READ || t.dtype != SHEAF_F32 ||
	    t.ndim > 1 || (t.ndim == 1 && t.dims->u.a[0]->u.i != 1))
		return 0;
	rc = shf_torch_zip_place(&x->zip, &t, "step", at, stride, d->err);
	if (rc == 0)
		rc = shf_region_read(&x->zip.region, &value, sizeof(value), *at, d->err);
	if (rc == 0 && value >= 0 && value <= 16777216 && truncf(value) == value)
		*step = (int64_t)value;
	return rc;
}

static int add_step(struct shf_dspd *d, const struct shf_dspd_file *x, uint32_t group,
                    const struct shf_pk *v)
{
	struct shf_dspd_group *g = group_at(d, group);
	int64_t step;
	uint64_t at;
	int rc = shf_dspd_step(d, x, v, &step, &at);

	if (rc < 0 || step < 0 || !g)
		return rc;
	if (g->step >= 0 && g->step != step)
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: is of another save than the files "
		                "before it: its optimizer has made %" PRId64 " steps, not %" PRId64,
		                x->where, step, g->step);
	if (g->step < 0 && at != UINT64_MAX) {
		g->step_file = x->file;
		g->step_at = at;
	}
	g->step = step;
	return 0;
}

/* Says which run a part of a group is in, and where. Returns false if the group is not read. */
static bool set_run(const struct shf_dspd *d, struct shf_dspd_part *part, uint32_t rank,
                    uint32_t group)
{
	const struct shf_dspd_group *g = group_at(d, group);
	uint32_t groups = (uint32_t)(d->groups.len / sizeof(*g)), spread = shf_dspd_spread(d, g);

	part->run = d->stage == 3 ? rank : rank % spread * groups + group;
	part->seq = d->stage == 3 ? group : rank / spread;
	return d->stage == 3 || g->count > 0;
}

/* Adds what a rank has of one kind of a group. */
static int add_kind(struct shf_dspd *d, const struct shf_dspd_file *x, uint32_t rank,
                     uint32_t group, const struct shf_pk *key, const struct shf_pk *v)
{
	struct shf_dspd_part part = { .kind = 0 };
	int kind, rc;

	if (shf_pk_text_is(key, "step"))
		return add_step(d, x, group, v);
	if (!group_at(d, group) || !set_run(d, &part, rank, group))
		return 0;
	kind = kind_of(d, key);
	if (kind < -1)
		return kind;
	rc = kind < 0 ? 0 : shf_dspd_flat(d, x, v, d->kinds[kind], &part);
	part.kind = (uint32_t)kind;
	if (rc == 1)
		shf_buf_add(&d->parts, &part, sizeof(part));
	else if (rc == 0 && rank == 0 && key->kind == SHF_PK_STR)
		rc = shf_foreign_note(d->f, d->err, key->u.s, key->n, "a state of the optimizer "
		                      "that does not have a value for each item, which sheaf does "
		                      "not read");
	return rc < 0 ? rc : d->parts.oom ? shf_dspd_no_memory(d) : 0;
}

/* Adds the states of one group. settings: those of the group, which may have its count of steps. */
static int add_state_of(struct shf_dspd *d, const struct shf_dspd_file *x, uint32_t rank,
                     uint32_t group, const struct shf_pk *of, const struct shf_pk *settings)
{
	int rc = 0;

	for (uint32_t i = 0; of->kind == SHF_PK_DICT && i < of->n && rc == 0; i++)
		rc = add_kind(d, x, rank, group, of->u.a[2 * i], of->u.a[2 * i + 1]);
	if (rc == 0 && !shf_pk_get(of, "step"))
		rc = add_step(d, x, group, shf_pk_get(settings, "step"));
	return rc;
}

/* Adds the states of all groups: a dictionary by number, or a list. */
static int add_all_states(struct shf_dspd *d, const struct shf_dspd_file *x, uint32_t rank,
                      const struct shf_pk *base)
{
	const struct shf_pk *v = shf_pk_get(base, "state"), *all = shf_pk_get(base, "param_groups");
	int64_t key;
	int rc = 0;

	v = v ? v : base;
	for (uint32_t i = 0; v->kind == SHF_PK_LIST && i < v->n && rc == 0; i++)
		rc = add_state_of(d, x, rank, i, v->u.a[i], shf_pk_at(all, i));
	for (uint32_t i = 0; v->kind == SHF_PK_DICT && i < v->n && rc == 0; i++)
		if (shf_pk_int(v->u.a[2 * i], &key) && key >= 0 && key < GROUPS_MAX)
			rc = add_state_of(d, x, rank, (uint32_t)key, v->u.a[2 * i + 1],
			               shf_pk_at(all, (uint32_t)key));
	return rc;
}

/* Adds the weights of all groups. */
static int add_weights(struct shf_dspd *d, const struct shf_dspd_file *x, uint32_t rank,
                       const struct shf_pk *list)
{
	for (uint32_t i = 0; i < list->n; i++) {
		struct shf_dspd_part part = { .kind = SHF_DSPD_FP32 };
		int rc = shf_dspd_flat(d, x, list->u.a[i], "(weights)", &part);

		if (rc <= 0)
			return rc < 0 ? rc : shf_dspd_bad(d, x->where, "has weights that are not a "
			                                  "flat tensor");
		if (rank == 0)
			group_at(d, i)->part = part.items;
		if (set_run(d, &part, rank, i))
			shf_buf_add(&d->parts, &part, sizeof(part));
	}
	return d->parts.oom ? shf_dspd_no_memory(d) : 0;
}

/* ---- what a file says of the save ---- */

/* Makes the groups. `said` is the number of ranks that have parts, or a list of one for each group:
 * of experts it is lower. */
static int make_groups(struct shf_dspd *d, const struct shf_dspd_file *x, uint32_t n,
                       const struct shf_pk *said)
{
	uint64_t unread = 0;

	if (n > GROUPS_MAX)
		return shf_dspd_bad(d, x->where, "has more than 65536 groups of parameters");
	for (uint32_t i = 0; i < n; i++) {
		struct shf_dspd_group g = { .count = d->world, .step = -1,
			.step_file = UINT32_MAX };

		if (said && said->kind == SHF_PK_LIST)
			shf_pk_int(shf_pk_at(said, i), &g.count);
		g.said = g.count;
		if (g.count <= 0 || d->world % g.count ||
		    (g.count < d->world && (!d->experts || d->experts % (d->world / g.count)))) {
			unread += g.count < d->world;
			g.count = 0;
		}
		shf_buf_add(&d->groups, &g, sizeof(g));
	}
	if (d->groups.oom)
		return shf_dspd_no_memory(d);
	return !unread || d->stage == 3 ? 0
	     : shf_foreign_note(d->f, d->err, "experts", 7, "the masters and states of %" PRIu64
	                        " group%s of parameters of experts are not read, because nothing "
	                        "says which rank has which experts", unread,
	                        unread > 1 ? "s" : "");
}

/* Compares the number of ranks with that of the files. */
static int check_count(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v)
{
	int64_t most = -1, is;

	for (uint32_t i = 0; v && v->kind == SHF_PK_LIST && i < v->n; i++) {
		const struct shf_dspd_group *g = group_at(d, i);        /* of rank 0 */

		if (!shf_pk_int(v->u.a[i], &is))
			continue;
		most = is > most ? is : most;
		if (g && g->said != is)
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: says that %" PRId64 " ranks "
			                "have parts of group %" PRIu32 " of parameters, and rank 0 "
			                "says %" PRId64 "; they are from different saves", x->where,
			                is, i, g->said);
	}
	if (v && v->kind != SHF_PK_LIST)
		shf_pk_int(v, &most);
	if (most < 0 || most == d->world)
		return 0;
	return shf_fail(d->err, SHEAF_EFORMAT, "%s: says that %" PRId64 " ranks have saved, but "
	                "there are files of %d; some are missing, or of another save", x->where,
	                most, d->world);
}

static enum shf_tensor_kind look_none(const struct shf_pk *v, const char **why)
{
	struct shf_torch_tensor t;

	return shf_torch_tensor_of(&t, v, why) == SHF_TENSOR_NONE ? SHF_TENSOR_NONE
	     : (*why = "a tensor that is not listed", SHF_TENSOR_UNREAD);
}

int shf_dspd_note_groups(struct shf_dspd *d, const struct shf_dspd_file *x,
                         const struct shf_pk *groups)
{
	char name[] = "optimizer.param_groups";
	const struct shf_walk_kind by = { .look = look_none };
	struct shf_pk key = { .kind = SHF_PK_STR, .n = sizeof(name) - 1, .u = { .s = name } };
	struct shf_pk *pair[] = { &key, (struct shf_pk *)(uintptr_t)groups };
	struct shf_pk v = { .kind = SHF_PK_DICT, .n = 1, .u = { .a = pair } };

	return groups ? shf_walk(d->f, &x->zip.pickle, &v, &by, d->err) : 0;
}

/* Reads the list of weights, and what is said of it. */
static int read_flat_weights(struct shf_dspd *d, const struct shf_dspd_file *x, uint32_t rank,
                        const struct shf_pk *v)
{
	const struct shf_pk *list = shf_pk_get(v, d->stage == 3 ? "fp32_flat_groups"
	                                       : "single_partition_of_fp32_groups");
	const struct shf_pk *count = shf_pk_get(v, "partition_count");
	size_t groups = d->groups.len / sizeof(struct shf_dspd_group);
	int rc = check_count(d, x, count);

	if (rc < 0)
		return rc;
	if (!list || list->kind != SHF_PK_LIST)
		return shf_dspd_bad(d, x->where, d->stage == 3
		                    ? "has no list fp32_flat_groups, as ZeRO 3 writes it"
		                    : "has no list single_partition_of_fp32_groups, as ZeRO 1 and "
		                      "2 write it");
	if (rank && list->n != groups)
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: has %" PRIu32 " groups of parameters, "
		                "and rank 0 has %zu; they are from different saves", x->where,
		                list->n, groups);
	if (rank == 0)
		rc = make_groups(d, x, list->n, count);
	return rc < 0 ? rc : add_weights(d, x, rank, list);
}

/* Whether param_slice_mappings is in the order of the parameters in the parts. With
 * round_robin_gradients DeepSpeed orders the parts, and param_shapes, in another way, unless it
 * aligns the parameters. */
static bool maps_places(const struct shf_pk *root, const struct shf_pk *v)
{
	const struct shf_pk *zero = shf_pk_get(shf_pk_get(root, "ds_config"), "zero_optimization");
	const struct shf_pk *turned = shf_pk_get(zero, "round_robin_gradients");
	const struct shf_pk *paddings = shf_pk_get(v, "param_alignment_paddings");
	int64_t items;

	if (!turned || turned->kind != SHF_PK_BOOL || !turned->u.i)
		return true;
	for (uint32_t i = 0; paddings && paddings->kind == SHF_PK_LIST && i < paddings->n; i++)
		for (uint32_t k = 0; paddings->u.a[i]->kind == SHF_PK_LIST &&
		     k < paddings->u.a[i]->n; k++)
			if (shf_pk_int(paddings->u.a[i]->u.a[k], &items) && items)
				return true;
	return false;
}

/* Reads what is inside the file of one rank. */
static int read_rank(struct shf_dspd *d, const struct shf_dspd_file *x, uint32_t rank)
{
	const struct shf_pk *v = shf_pk_get(x->zip.pickle.root, "optimizer_state_dict"), *base;
	const struct shf_pk *said = shf_pk_get(v, "param_slice_mappings");
	int rc = shf_dspd_same_save(d, x, x->zip.pickle.root);

	if (rc == 0 && (!v || v->kind != SHF_PK_DICT))
		rc = shf_dspd_bad(d, x->where, "has no optimizer_state_dict, as DeepSpeed saves "
		                  "it");
	if (rc == 0 && shf_pk_get(v, "ds_zero_partition_groups"))
		rc = shf_dspd_bad(d, x->where, "has experts that ZeRO 3 has cut among some of the "
		                  "ranks (AutoEP), which sheaf does not read; ds_to_universal "
		                  "joins them");
	if (rc == 0)
		rc = read_flat_weights(d, x, rank, v);
	if (rc == 0 && rank == 0)
		rc = d->stage == 3 ? place_in_ranks(d, x)
		     : place_in_groups(d, x, shf_pk_get(v, "param_alignment_paddings"));
	if (rc == 0 && (d->stage == 3 || !maps_places(x->zip.pickle.root, v)))
		said = NULL;
	for (uint32_t i = 0; rc == 0 && said && said->kind == SHF_PK_LIST && i < said->n; i++)
		if (said->u.a[i]->kind == SHF_PK_DICT)
			rc = check_places(d, x, rank, said->u.a[i]);
	base = shf_pk_get(v, d->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
	if (rc == 0 && base)
		rc = add_all_states(d, x, rank, base);
	if (rc == 0 && base && rank == 0 && d->mp == 0)
		rc = shf_dspd_note_groups(d, x, shf_pk_get(base, "param_groups"));
	return rc;
}

/* Notes how many steps the optimizer has made, if all groups say the same. */
static int note_step(struct shf_dspd *d)
{
	int64_t step = -1;
	struct shf_dspd_group *g;

	d->steps_differ = false;
	for (uint32_t i = 0; (g = group_at(d, i)) != NULL; i++) {
		d->steps_differ |= g->step >= 0 && step >= 0 && g->step != step;
		step = g->step >= 0 ? g->step : step;
	}
	return step < 0 || d->mp || d->steps_differ ? 0
	     : shf_foreign_note(d->f, d->err, "adam.step", 9, "%" PRId64, step);
}

int shf_dspd_optimizer(struct shf_dspd *d)
{
	size_t n;
	const struct shf_dspd_entry *e = shf_dspd_entries(d, true, &n);
	int rc = 0;

	d->kinds_n = 1;
	if (d->world && (size_t)d->world != n)
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: has files of the model of %d ranks, "
		                "but of the optimizer of %zu", d->f->path, d->world, n);
	if (n == 0 && (d->mp || d->entries.len / sizeof(*e) > (size_t)d->mp_n))
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: the files of the optimizer of rank %d "
		                "of model parallelism (..._mp_rank_%02d_optim_states.pt) are "
		                "missing", d->f->path, d->mp, d->mp);
	if (n == 0)
		return shf_foreign_note(d->f, d->err, "optimizer", 9, "has no files of its own: "
		                        "the save was made without ZeRO, or they are missing");
	d->world = (int)n;
	for (size_t i = 0; i < n; i++)
		if (e[i].x.dp != (int)i)
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: the file of the optimizer of "
			                "rank %zu is missing; %s follows", d->f->path, i,
			                e[i].name);
	for (size_t i = 0; i < n && rc == 0; i++) {
		struct shf_dspd_file x;

		rc = shf_dspd_open(d, NULL, e[i].name, &x);
		if (rc == 0)
			rc = read_rank(d, &x, (uint32_t)i);
		shf_dspd_close(d, &x);
	}
	return rc == 0 ? note_step(d) : rc;
}
