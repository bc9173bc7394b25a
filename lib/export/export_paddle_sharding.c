/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint of sharding_io of PaddleNLP and PaddleFormers, as the ranks of a job write it that
 * share the optimizer by whole parameters (ShardingV1). Of each rank there are
 *   model_state.shard<rank>.pdparams   weights by their names
 *   optimizer.shard<rank>.pdopt        moments, and master weights
 *   ema.shard<rank>.pdopt              averages; only if there are any
 * and model_meta.json says which parameter is on which rank. The ranks of the job that loads it
 * may be fewer or more, and may share the optimizer by ranges of items.
 *
 * In the last two files the keys are not names of parameters but those that Paddle gave the
 * parameters when they were made. model_meta.json says which is which. Here these names are made
 * up. They have one length, so that none begins with another one: the loader takes a key to be of
 * the name that comes before it in alphabetic order. They end in a number, which it looks for.
 *
 * A weight that has a master is in its rank's file all the same, although the loader makes it anew
 * from the master.
 *
 * Source: trainer/utils/sharding_io.py and trainer/utils/reshard of PaddleNLP 3.0.0b4 and
 * PaddleFormers 1.2. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "export_place.h"
#include "json.h"
#include "paddle_powers.h"
#include "paddle_tensor.h"
#include "paddle_trainer.h"
#include "paddle_write.h"
#include "valid.h"

#define NONE UINT32_MAX
#define RANKS_MIN 2             /* the loader of PaddleFormers takes no fewer */
#define MASTER "_fp32_master_0"         /* follows the name at run time in keys of masters */

enum { MODEL, MASTERS, MOMENTS, EMA, FAMILIES_N };
static const char *const family_names[FAMILIES_N] = { "model", "master_weights", "optimizer",
	"ema" };

struct param {
	const char *name;
	uint32_t shared;                /* the parameter that it is another name of, or itself */
	uint32_t number;                /* in its name at run time */
	uint32_t rank;
	uint32_t like;                  /* tensor of the plan that has its shape */
	bool master;                    /* it has a master weight */
	bool trained;                   /* it has moments */
	uint64_t bytes;                 /* of all its tensors */
};
struct sharded {
	struct shf_export_plan *plan;
	struct sheaf_checkpoint *step;
	struct sheaf_error *err;
	struct param *params;           /* in the arena */
	uint32_t params_n, ranks;
	uint32_t *param_of;             /* in the arena; by tensor of the plan; NONE: averages of no
	                                 * parameter */
	int64_t families[FAMILIES_N];   /* numbers in the plan; -1: there is none */
	int digits;                     /* of the number in a name at run time */
	bool powers;                    /* the powers of the betas are made */
	float pow[2];
};

static int sharding_unfit(const struct sharded *s, const char *name, const char *why)
{
	return shf_fail(s->err, SHEAF_EINVAL, "tensor %.*s: %s", shf_name_show(name), name, why);
}

/* ---- parameters ---- */

static const struct shf_lt_family *sharding_family(const struct sharded *s, int family)
{
	return s->families[family] < 0 ? NULL : &s->plan->out.families[s->families[family]];
}

/* Returns the parameter of this name (n bytes), or NONE. */
static uint32_t param_find(const struct sharded *s, const char *name, size_t n)
{
	char whole[SHF_NAME_MAX + 1];
	int64_t i = -1;

	if (n > SHF_NAME_MAX)
		return NONE;
	memcpy(whole, name, n);
	whole[n] = '\0';
	for (int f = MODEL; f <= MASTERS && i < 0; f++)
		i = shf_layout_find(&s->plan->out, family_names[f], whole);
	return i < 0 ? NONE : s->param_of[i];
}

static void sharding_param_add(struct sharded *s, uint32_t tensor)
{
	const char *name = s->plan->out.tensors[tensor].name;

	s->param_of[tensor] = s->params_n;
	s->params[s->params_n] = (struct param){ .name = name, .shared = s->params_n,
		.like = tensor };
	s->params_n++;
}

/* Lists the weights, and masters that have no weights, as parameters. */
static int list_params(struct sharded *s)
{
	struct shf_layout *l = &s->plan->out;
	const struct shf_lt_family *model = sharding_family(s, MODEL);
	const struct shf_lt_family *masters = sharding_family(s, MASTERS);
	size_t n = 1 + (model ? model->tensors_n : 0) + (masters ? masters->tensors_n : 0);

	s->params = shf_arena_alloc(&l->arena, n, sizeof(*s->params));
	s->param_of = shf_arena_alloc(&l->arena, l->tensors_n, sizeof(*s->param_of));
	if (!s->params || !s->param_of)
		return shf_fail(s->err, SHEAF_ENOMEM, "no memory to place %zu tensors",
		                l->tensors_n);
	for (uint32_t i = 0; model && i < model->tensors_n; i++)
		sharding_param_add(s, model->first_tensor + i);
	for (uint32_t i = 0; masters && i < masters->tensors_n; i++) {
		uint32_t t = masters->first_tensor + i;
		int64_t weight = shf_layout_find(l, "model", l->tensors[t].name);

		if (weight < 0)
			sharding_param_add(s, t);
		else
			s->param_of[t] = s->param_of[weight];
		s->params[s->param_of[t]].master = true;
	}
	return 0;
}

/* Makes all names of a tied weight one parameter. The plan has a copy of the weight under each of
 * the names. */
static void share_tied(struct sharded *s)
{
	const struct shf_layout *from = &s->step->layout;

	for (size_t k = 0; k < from->tied_n; k++) {
		const struct shf_lt_tied *t = &from->tied[k];
		uint32_t to = param_find(s, t->to, strlen(t->to));
		uint32_t i = param_find(s, t->name, strlen(t->name));

		if (i != NONE && to != NONE &&
		    strcmp(from->families[t->family].name, "model") == 0)
			s->params[i].shared = to;
	}
}

/* Finds the parameter of a state of the optimizer, and checks that Paddle's AdamW has it. */
static int take_state(struct sharded *s, uint32_t t)
{
	const char *const kinds[] = { "moment1_0", "moment2_0", shf_paddle_power_key(0),
		shf_paddle_power_key(1) };
	const char *name = s->plan->out.tensors[t].name, *slash = strrchr(name, '/');
	uint32_t p = slash ? param_find(s, name, (size_t)(slash - name)) : NONE;
	bool known = false;

	for (int i = 0; slash && i < 4; i++)
		known |= strcmp(slash + 1, kinds[i]) == 0;
	if (!known)
		return sharding_unfit(s, name, "is a state of the optimizer that the loader of "
		                      "sharding_io does not know: it knows moments of AdamW and "
		                      "powers of its betas");
	if (p == NONE)
		return sharding_unfit(s, name, "is a state of a parameter that has neither weights "
		                      "nor master weights");
	s->param_of[t] = p;
	s->params[p].trained = true;
	return 0;
}

/* Finds the parameter of each tensor. */
static int take_tensors(struct sharded *s)
{
	const struct shf_layout *l = &s->plan->out;
	int rc = 0;

	for (uint32_t i = 0; i < l->tensors_n && rc == 0; i++) {
		int64_t f = l->tensors[i].family;

		if (f == s->families[MOMENTS])
			rc = take_state(s, i);
		else if (f == s->families[EMA])
			s->param_of[i] = param_find(s, l->tensors[i].name,
			                            strlen(l->tensors[i].name));
		if (rc == 0 && f != s->families[MODEL] && s->param_of[i] != NONE &&
		    s->params[s->param_of[i]].shared != s->param_of[i])
			rc = sharding_unfit(s, l->tensors[i].name, "is of a weight that is tied to "
			                    "another one, and Paddle has one state for both");
		if (rc == 0 && s->param_of[i] != NONE)
			s->params[s->params[s->param_of[i]].shared].bytes += l->tensors[i].bytes;
	}
	return rc;
}

/* Gives rank 0 the parameters of the first half of all bytes, and rank 1 the others. */
static void halve_params(struct sharded *s)
{
	uint64_t all = 0, before = 0;

	for (uint32_t i = 0; i < s->params_n; i++)
		all += s->params[i].bytes;
	for (uint32_t i = 0; i < s->params_n; i++) {
		s->params[i].rank = before >= all - before;
		before += s->params[i].bytes;
	}
	s->ranks = RANKS_MIN;
}

/* Gives each parameter a number and a rank. A rank gets parameters that follow one another and have
 * at most `most` bytes together, or a single one that has more. */
static void deal_params(struct sharded *s, uint64_t most)
{
	uint32_t rank = 0, number = 0, on_rank = 0;
	uint64_t room = most;

	for (uint32_t i = 0; i < s->params_n; i++) {
		struct param *p = &s->params[i];

		if (p->shared != i)
			continue;
		if (on_rank && p->bytes > room) {
			room = most;
			on_rank = 0;
			rank++;
		}
		on_rank++;
		room -= p->bytes < room ? p->bytes : room;
		p->rank = rank;
		p->number = number++;
	}
	s->ranks = rank + 1;
	if (s->ranks < RANKS_MIN)
		halve_params(s);
	for (uint32_t i = 0; i < s->params_n; i++)
		s->params[i].rank = s->params[s->params[i].shared].rank;
	s->digits = 1;
	for (uint32_t last = number - 1; last >= 10; last /= 10)
		s->digits++;
}

/* ---- files ---- */

/* Makes the name at run time of a parameter, with what follows it in a key. */
static size_t run_name(char text[80], const struct sharded *s, uint32_t param, const char *middle,
                       const char *kind)
{
	return (size_t)snprintf(text, 80, "sheaf_%0*" PRIu32 ".w_0%s%s%s", s->digits,
	                        s->params[s->params[param].shared].number, middle,
	                        *kind ? "_" : "", kind);
}

/* Puts a tensor as Paddle's optimizers have it: its name, and an array. */
static void put_named(struct shf_paddle_out *p, const char *name, size_t n,
                      struct shf_lt_tensor *t)
{
	shf_pkw_text(&p->pickle, name, n);
	shf_paddle_put_tensor(p, t);
	shf_pkw_op(&p->pickle, SHF_PKW_TUPLE2);
}

static void put_state(struct shf_paddle_out *p, const struct sharded *s, uint32_t t, size_t *n)
{
	struct shf_lt_tensor *x = &s->plan->out.tensors[t];
	const char *middle = s->params[s->param_of[t]].master ? MASTER : "";
	char key[80];
	size_t len = run_name(key, s, s->param_of[t], middle, strrchr(x->name, '/') + 1);

	shf_pkw_next_item(&p->pickle, (*n)++);
	shf_pkw_text(&p->pickle, key, len);
	put_named(p, key, len, x);
	for (int i = 0; i < 2 && s->powers && shf_adam_is_moment(x); i++) {
		len = run_name(key, s, s->param_of[t], middle, shf_paddle_power_key(i));
		shf_pkw_next_item(&p->pickle, (*n)++);
		shf_pkw_text(&p->pickle, key, len);
		shf_pkw_text(&p->pickle, key, len);
		shf_paddle_put_float(p, s->pow[i]);
		shf_pkw_op(&p->pickle, SHF_PKW_TUPLE2);
	}
}

/* A dictionary in one of the files: one rank's part of a family. */
struct part {
	int family;
	uint32_t rank, file;
	const uint32_t *order;          /* of all tensors of the plan */
	bool masters;                   /* it has the tensors of parameters that have master
	                                 * weights, by names at run time. If this is false, it has
	                                 * all weights, all moments, or the averages of the other
	                                 * parameters */
};

/* Returns whether tensor t is in a part. */
static bool is_in(const struct sharded *s, const struct part *part, uint32_t t)
{
	uint32_t p = s->param_of[t];
	bool of_master = p != NONE && s->params[p].master && part->family != MODEL;

	return (p == NONE ? 0 : s->params[p].rank) == part->rank &&
	       (part->family == MOMENTS || of_master == part->masters);
}

/* Puts the items of a part into a dictionary that has *n items already, and counts them in *n. */
static void put_part(struct shf_paddle_out *p, const struct sharded *s, const struct part *part,
                     size_t *n)
{
	const struct shf_lt_family *fam = sharding_family(s, part->family);

	for (uint32_t i = 0; fam && i < fam->tensors_n; i++) {
		uint32_t t = part->order[fam->first_tensor + i];
		struct shf_lt_tensor *x = &s->plan->out.tensors[t];
		char key[80];
		size_t len;

		if (!is_in(s, part, t))
			continue;
		x->file = part->file;
		if (part->family == MOMENTS) {
			put_state(p, s, t, n);
			continue;
		}
		shf_pkw_next_item(&p->pickle, (*n)++);
		if (!part->masters) {
			shf_pkw_text(&p->pickle, x->name, strlen(x->name));
			shf_paddle_put_tensor(p, x);
			continue;
		}
		len = run_name(key, s, s->param_of[t], "", "");
		shf_pkw_text(&p->pickle, key, len);
		len = run_name(key, s, s->param_of[t], MASTER, "");
		put_named(p, key, len, x);
	}
}

static void dict_end(struct shf_paddle_out *p, size_t items)
{
	if (items)
		shf_pkw_op(&p->pickle, SHF_PKW_SETITEMS);
}

/* Puts the dictionary in which a rank has its tensors by names at run time. */
static void put_masters(struct shf_paddle_out *p, const struct sharded *s, struct part part,
                        size_t *n)
{
	size_t items = 0;

	part.masters = true;
	shf_pkw_next_item(&p->pickle, (*n)++);
	shf_pkw_known_text(&p->pickle, "master_weights");
	shf_pkw_op(&p->pickle, SHF_PKW_EMPTY_DICT);
	put_part(p, s, &part, &items);
	dict_end(p, items);
}

/* Puts the names at run time of the weights of a rank, as paddle.save does. */
static void put_names(struct shf_paddle_out *p, const struct sharded *s, uint32_t rank, size_t *n)
{
	size_t items = 0;
	char run[80];

	shf_pkw_next_item(&p->pickle, (*n)++);
	shf_pkw_known_text(&p->pickle, SHF_PADDLE_NAMES);
	shf_pkw_op(&p->pickle, SHF_PKW_EMPTY_DICT);
	for (uint32_t i = 0; i < s->params_n; i++) {
		const struct param *x = &s->params[i];

		if (x->rank != rank || s->plan->out.tensors[x->like].family != s->families[MODEL])
			continue;
		shf_pkw_next_item(&p->pickle, items++);
		shf_pkw_text(&p->pickle, x->name, strlen(x->name));
		shf_pkw_text(&p->pickle, run, run_name(run, s, i, "", ""));
	}
	dict_end(p, items);
}

/* Makes one file of a rank. */
static int rank_file(struct sharded *s, const uint32_t *order, uint32_t rank, uint32_t file)
{
	static const struct { const char *format; int family; } kinds[] = {
		{ "model_state.shard%02" PRIu32 ".pdparams", MODEL },
		{ "optimizer.shard%02" PRIu32 ".pdopt", MOMENTS },
		{ "ema.shard%02" PRIu32 ".pdopt", EMA } };
	uint32_t kind = file / s->ranks;
	struct part part = { kinds[kind].family, rank, file, order, false };
	struct shf_paddle_out p;
	size_t n = 0;
	char name[60];

	shf_paddle_begin(&p);
	shf_pkw_op(&p.pickle, SHF_PKW_EMPTY_DICT);
	put_part(&p, s, &part, &n);
	if (part.family == MODEL)
		put_names(&p, s, rank, &n);
	part.family = part.family == MOMENTS ? MASTERS : part.family;
	if (part.family != MODEL)
		put_masters(&p, s, part, &n);
	dict_end(&p, n);
	snprintf(name, sizeof(name), kinds[kind].format, rank);
	return shf_export_file_end(s->plan, file, shf_arena_strdup(&s->plan->out.arena, name,
	                           strlen(name)), shf_paddle_end(&p, &s->plan->files[file].header),
	                           s->err);
}

/* ---- model_meta.json ---- */

/* Returns the number that Paddle has for a type. */
static int number_of_type(int32_t dtype)
{
	static const struct { int32_t dtype; int number; } types[] = { { SHEAF_BOOL, 0 },
		{ SHEAF_I16, 1 }, { SHEAF_I32, 2 }, { SHEAF_I64, 3 }, { SHEAF_F16, 4 },
		{ SHEAF_F32, 5 }, { SHEAF_F64, 6 }, { SHEAF_U8, 20 }, { SHEAF_I8, 21 },
		{ SHEAF_BF16, 22 }, { SHEAF_C64, 23 } };

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (types[i].dtype == dtype)
			return types[i].number;
	return -1;
}

static void put_shape(struct shf_buf *out, const struct shf_lt_tensor *t)
{
	shf_buf_adds(out, "[[");
	for (int d = 0; d < t->items.ndim; d++)
		shf_buf_addf(out, "%s%" PRId64, d ? ", " : "", t->items.dim[d]);
	shf_buf_addf(out, "], %d, false, false]", number_of_type(t->dtype));
}

/* Puts a member for each parameter: its rank, its name at run time, or its shape. */
static void put_of_params(struct shf_buf *out, const struct sharded *s, const char *member)
{
	bool ranks = strcmp(member, "param2rank") == 0, shapes = strcmp(member, "param_meta") == 0;
	bool first = true;
	char run[80];

	shf_buf_addf(out, "            \"%s\": {", member);
	for (uint32_t i = 0; i < s->params_n; i++) {
		const struct param *p = &s->params[i];

		run_name(run, s, i, "", "");
		if (ranks && (p->shared != i || !p->trained))
			continue;
		shf_buf_adds(out, first ? "\n                " : ",\n                ");
		first = false;
		if (ranks) {
			shf_buf_addf(out, "\"%s\": %" PRIu32, run, p->rank);
			continue;
		}
		shf_json_put(out, p->name, strlen(p->name));
		shf_buf_adds(out, ": ");
		if (shapes)
			put_shape(out, &s->plan->out.tensors[p->like]);
		else
			shf_buf_addf(out, "\"%s\"", run);
	}
	shf_buf_adds(out, first ? "},\n" : "\n            },\n");
}

static int put_meta(struct sharded *s)
{
	static const char *const members[] = { "param2rank", "structure_name_mapping",
		"param_meta" };
	struct shf_buf out = SHF_BUF_INIT;

	shf_buf_addf(&out, "{\n    \"parallel_config\": {\n        \"pp_degree\": 1,\n"
	             "        \"mp_degree\": 1,\n        \"sharding_degree\": %" PRIu32 ",\n"
	             "        \"vpp_degree\": 1,\n        \"ep_degree\": 1,\n"
	             "        \"moe_sharding_degree\": 0\n    },\n    \"sharding_metas\": {\n"
	             "        \"tp00_pp00\": {\n", s->ranks);
	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
		put_of_params(&out, s, members[i]);
	shf_buf_adds(&out, "            \"param_meta_keys\": [\"shape\", \"dtype\", "
	             "\"is_distributed\", \"no_sync\"],\n"
	             "            \"sharding_strategy\": \"ShardingV1\",\n"
	             "            \"enable_overlap\": false\n        }\n    }\n}\n");
	return shf_export_small_add(s->plan, "model_meta.json", &out, s->err);
}

/* ---- the checkpoint ---- */

/* Finds the families, and checks that all can be written and that there are moments. */
static int take_families(struct sharded *s, const struct shf_export_opts *opts)
{
	const struct shf_layout *l = &s->plan->out;
	bool moments = false;

	if (opts->family)
		return shf_fail(s->err, SHEAF_EINVAL, "%s: a checkpoint of sharding_io has the "
		                "weights and the moments; write all families (how.all_families, "
		                "--all), or the weights alone in format paddle", s->step->path);
	for (int k = 0; k < FAMILIES_N; k++)
		s->families[k] = shf_layout_family(l, family_names[k]);
	for (size_t i = 0; i < l->families_n; i++) {
		bool known = false;

		for (int k = 0; k < FAMILIES_N; k++)
			known |= s->families[k] == (int64_t)i;
		if (!known)
			return shf_fail(s->err, SHEAF_EINVAL, "family %.60s: format sharding-io "
			                "has no file for it; write it alone in format paddle",
			                l->families[i].name);
	}
	for (size_t i = 0; i < l->tensors_n; i++)
		moments |= l->tensors[i].family == s->families[MOMENTS] &&
		           shf_adam_is_moment(&l->tensors[i]);
	return moments ? 0 : shf_fail(s->err, SHEAF_EINVAL, "%s: has no moments of AdamW "
	                              "(<parameter>/moment1_0 in family optimizer), from which a "
	                              "job would go on; write the weights in format paddle",
	                              s->step->path);
}

static int rank_files(struct sharded *s, const uint32_t *order)
{
	uint32_t n = (s->families[EMA] < 0 ? 2 : 3) * s->ranks;
	int rc = shf_export_files_make(s->plan, n, false, s->err);

	for (uint32_t f = 0; f < n && rc == 0; f++)
		rc = rank_file(s, order, f % s->ranks, f);
	return rc == 0 ? shf_layout_number(&s->plan->out, s->err) : rc;
}

static int sharding_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                          const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct sharded s = { .plan = plan, .step = step, .err = err };
	uint32_t *order = NULL;
	int rc = take_families(&s, opts);

	if (rc == 0)
		rc = shf_paddle_leave_steps(plan, step, opts, err);
	if (rc < 0)
		return rc;
	order = shf_export_by_source(plan, step, err);
	rc = order ? shf_paddle_check_names(&plan->out, err) : SHEAF_ENOMEM;
	if (rc == 0)
		rc = list_params(&s);
	if (rc < 0)
		return rc;
	share_tied(&s);
	rc = take_tensors(&s);
	s.powers = shf_paddle_needs_powers(&plan->out, sharding_family(&s, MOMENTS));
	if (rc == 0 && s.powers)
		rc = shf_paddle_powers(s.pow, step, opts, err);
	if (rc < 0)
		return rc;
	deal_params(&s, opts->file_bytes_max);
	rc = rank_files(&s, order);
	if (rc == 0)
		rc = put_meta(&s);
	return rc == 0 ? shf_paddle_trainer_add(plan, step, opts, err) : rc;
}

const struct shf_export_format shf_export_paddle_sharding = {
	.name = "sharding-io",
	.copies_files = true,
	.families = true,
	.copies_tied = true,
	.ties_states = true,
	.has_type = shf_paddle_has_type,
	.place = sharding_place,
};
