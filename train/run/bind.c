/* SPDX-License-Identifier: Apache-2.0 */
#include "bindstore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf-agent.h"
#include "sheaf-inspect.h"
#include "sheaf-opts.h"

_Static_assert((int)TR_EINVAL == SHEAF_EINVAL && (int)TR_ENOMEM == SHEAF_ENOMEM &&
	       (int)TR_EIO == SHEAF_EIO && (int)TR_ENOENT == SHEAF_ENOENT &&
	       (int)TR_ELAYOUT == SHEAF_ELAYOUT && (int)TR_ECORRUPT == SHEAF_ECORRUPT &&
	       (int)TR_EAGAIN == SHEAF_EAGAIN &&
	       (int)TR_EFORMAT == SHEAF_EFORMAT && (int)TR_EBUG == SHEAF_EBUG &&
	       (int)TR_ELOST == SHEAF_ELOST && (int)TR_EDIVERGED == SHEAF_EDIVERGED &&
	       (int)TR_EFAILED == SHEAF_EFAILED, "codes are those of sheaf.h");

int tr_library_version(void)
{
	return sheaf_version();
}

const char *tr_code_name(int code)
{
	const char *name = code == TR_ENAN ? "ENAN" : code == TR_ENOSPC ? "ENOSPC" :
		sheaf_code_name(code);

	return name ? name : "EUNKNOWN";
}

int tr_store_pass(struct tr_error *err, const struct sheaf_error *from, int code)
{
	if (code >= 0)
		return code;
	tr_fail(err, code, "%s", from->msg);
	if (err) {
		tr_store_words(err->msg, sizeof(err->msg));
		err->rank = from->rank;
	}
	return code;
}

/* Sets *has to whether the run is opened with the memory tier. It is not if no agent is asked for,
 * and no node has one of this run, because the library would warn that there is none. */
static int find_agent(const struct tr_ranks *ranks, const struct tr_store_opts *o, int *has,
		      struct tr_error *err)
{
	struct sheaf_agent_info info = { .size = sizeof(info) };
	uint64_t found = 0;
	int rc = 0;

	*has = strcmp(o->agent, "none") != 0;
	if (!*has || o->memory || strcmp(o->agent, "auto") != 0)
		return 0;
	found = sheaf_agent_get_info(o->run, NULL, &info, NULL) == 0;
	rc = tr_allreduce(ranks, &found, 1, TR_MAX, err);
	*has = found != 0;
	return rc;
}

int tr_store_open(struct tr_store **out, const struct tr_store_opts *o, struct tr_ranks *ranks,
		  struct tr_error *err)
{
	struct sheaf_retention keep = { .size = sizeof(keep), .keep_last = (int32_t)o->keep_last,
		.keep_every = (int32_t)o->keep_every, .keep_best = (int32_t)o->keep_best,
		/* The next save may need the space at once. */
		.grace_s = -1 };
	/* One image is written, one is the newest in memory, and one is being copied. */
	struct sheaf_staging staging = { .size = sizeof(staging), .buffers_max = 3 };
	struct sheaf_memory_tier tier = { .size = sizeof(tier), .agent = o->agent };
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = ranks->timeout_ms,
		.flags = o->reads_only ? SHEAF_RUN_READONLY : SHEAF_RUN_CREATE,
		.log = o->log, .arg = o->arg, .retention = &keep,
		.staging = o->memory ? &staging : NULL };
	struct tr_store *s = calloc(1, sizeof(*s));
	struct sheaf_error e;
	int rc, has_agent;

	if (!s) {
		tr_fail(err, TR_ENOMEM, "no memory to open the run");
		return tr_ranks_abandon(ranks, err);
	}
	s->ranks = ranks;
	s->rewind_to = -1;
	snprintf(s->loss_key, sizeof(s->loss_key), "%s", o->loss_key ? o->loss_key : "");
	s->keeps_best = o->keep_best > 0;
	if (s->keeps_best)
		keep.best_note = *s->loss_key ? s->loss_key : tr_store_loss_key;
	s->only = o->only;
	s->sets_aside = o->sets_aside;
	s->reads_only = o->reads_only;
	s->passed = o->passed;
	s->arg = o->arg;
	s->run_dir = strdup(o->run);
	rc = s->run_dir ? tr_store_pass(err, &e, tr_store_group(s, &e)) :
		tr_fail(err, TR_ENOMEM, "no memory to open the run");
	rc = tr_agree(ranks, rc, err);
	if (rc == 0)
		rc = find_agent(ranks, o, &has_agent, err);
	if (rc == 0) {
		opts.memory_tier = has_agent ? &tier : NULL;
		rc = tr_store_pass(err, &e, sheaf_run_open(&s->run, o->run, s->group, &opts, &e));
		if (rc == TR_ENOENT && o->reads_only)
			rc = 0;
	}
	if (rc < 0) {
		tr_store_close(s, rc == TR_ELOST);
		return rc;
	}
	*out = s;
	return 0;
}

void tr_store_close(struct tr_store *s, int lost)
{
	if (!s)
		return;
	s->lost = lost;
	sheaf_checkpoint_close(s->found);
	for (int to = 0; to < TR_PLACES; to++)
		sheaf_save_free(s->save[to]);
	sheaf_run_close(s->other);
	sheaf_run_close(s->run);
	sheaf_state_free(s->state);
	sheaf_state_free(s->load);
	sheaf_group_free(s->group);
	free(s->slice);
	free(s->run_dir);
	free(s);
}

/* If the checkpoint has no masters, they are converted from the model. */
int tr_store_fill(struct tr_store *s, uint64_t flags, struct sheaf_error *err)
{
	return sheaf_checkpoint_load(s->found, s->load ? s->load : s->state,
				     flags | SHEAF_LOAD_DERIVE, NULL, err);
}

/* ---- the state ---- */

/* Adds the box of a parameter.
 * own    which items of the flat buffer of weights this rank has of it
 * slice  its flags and type, and its memory: the first of these items */
static int add_tensor(struct sheaf_state *state, const struct tr_param *p, const char *family,
		      const char *suffix, const struct tr_span *own, struct sheaf_slice slice,
		      struct sheaf_error *err)
{
	char name[160];

	snprintf(name, sizeof(name), "%s%s", p->name, suffix);
	slice.size = sizeof(slice);
	slice.family = family;
	slice.name = name;
	slice.ndim = p->ndim;
	if (own->to - own->from < p->items) {
		slice.flags |= SHEAF_SLICE_FLAT;
		slice.flat_start = own->from - p->offset;
		slice.flat_count = own->to - own->from;
	}
	for (int d = 0; d < p->ndim; d++) {
		slice.shape[d] = p->shape[d];
		slice.start[d] = p->start[d];
		slice.count[d] = p->count[d];
	}
	return sheaf_state_add(state, &slice, err);
}

/* What a state has. */
struct content {
	const char *weights;            /* the family of the weights that are fp32 */
	int average;
};

/* Adds a slice of a parameter. Returns its number in the state, or -1 if there is none. A code of
 * sheaf_state_add may be -1, too: the next save or load returns it. */
static int add_kind(struct sheaf_state *state, struct tr_trainer *t, const struct tr_param *p,
		    int kind, const struct content *c, struct sheaf_error *err)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	int muon = t->muon && p->matrix;
	const char *suffix = kind == MASTER || kind == AVERAGE ? "" : muon ? "/velocity_0" :
		kind == MOMENT1 ? "/moment1_0" : "/moment2_0";
	struct sheaf_slice slice = { .dtype = SHEAF_F32 };
	struct tr_span all, own;
	void *w = tr_model_weights(t->model);
	int64_t at;
	float *fp32;

	if (p->tied_to >= 0 || (kind == AVERAGE && !c->average))
		return -1;
	fp32 = tr_adamw_of(&t->adamw, p, w, &own, &at);
	tr_shares_of(NULL, p, &all);
	if (kind == WEIGHT && t->adamw.master) {
		slice.dtype = SHEAF_BF16;
		slice.flags = SHEAF_SLICE_SAVE_ONLY;    /* tr_trainer_spread makes them */
	}
	slice.data = kind == WEIGHT ? tr_item(t->be->type, w, p->offset) : kind == MASTER ? fp32 :
		kind == MOMENT1 ? t->adamw.m + at : kind == AVERAGE ? t->adamw.ema + at :
		tr_adamw_second(&t->adamw, (int)(p - reg->param), at);
	if (kind == WEIGHT)
		return add_tensor(state, p, t->adamw.master ? "model" : c->weights, "", &all,
				  slice, err);
	if (own.from == own.to || (kind == MASTER && !t->adamw.master) ||
	    (kind == MOMENT2 && muon))
		return -1;
	/* Moments, masters and average in a file are not copied to memory for a save. */
	slice.flags |= t->arenas.lent[TR_OPTIMIZER] ? SHEAF_SLICE_IN_PLACE : 0;
	return add_tensor(state, p, kind == MASTER ? "master_weights" : kind == AVERAGE ? "ema" :
			  "optimizer", suffix, &own, slice, err);
}

/* Adds all slices. s->slice receives their numbers. */
static int add_all(struct tr_store *s, struct sheaf_state *state, struct tr_trainer *t,
		   struct content c, struct tr_error *err)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	struct sheaf_error e;

	for (int i = 0; i < reg->n * KINDS; i++) {
		s->slice[i] = add_kind(state, t, &reg->param[i / KINDS], i % KINDS, &c, &e);
		if (s->slice[i] < -1)
			return tr_store_pass(err, &e, s->slice[i]);
	}
	return 0;
}

/* Returns whether a checkpoint has a tensor. If its file is damaged, it has it: the load then says
 * so. */
static int has_tensor(struct sheaf_checkpoint *c, const char *family, const char *name)
{
	struct sheaf_tensor tensor = { .size = sizeof(tensor) };

	return sheaf_checkpoint_find(c, family, name, &tensor, NULL) != SHEAF_ELAYOUT;
}

/* Returns whether a checkpoint, which may be NULL, has a family. */
static int has_family(struct sheaf_checkpoint *c, const struct tr_registry *reg, const char *family)
{
	return c && has_tensor(c, family, reg->param[0].name);
}

/* Returns whether a checkpoint has the moments of the first parameter. */
static int has_moments(struct sheaf_checkpoint *c, const struct tr_registry *reg)
{
	char name[160];

	snprintf(name, sizeof(name), "%s/moment1_0", reg->param[0].name);
	return has_tensor(c, "optimizer", name);
}

int tr_store_describe(struct tr_store *s, struct tr_trainer *t, struct tr_error *err)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	const struct content all = { "model", t->averaged };
	struct content old = all;
	int rc = 0;

	s->t = t;
	s->state = sheaf_state_new();
	s->slice = malloc((size_t)reg->n * KINDS * sizeof(*s->slice));
	if (!s->state || !s->slice)
		return tr_fail(err, TR_ENOMEM, "no memory to describe the state");
	if (s->foreign)
		s->moments = s->moments && has_moments(s->found, reg);
	/* The checkpoint has fp32 masters, and this run has fp32 weights. They are loaded from the
	 * masters, because family model of the checkpoint has them rounded to bf16. */
	if (!t->adamw.master && has_family(s->found, reg, "master_weights"))
		old.weights = "master_weights";
	s->has_average = old.average = t->averaged && has_family(s->found, reg, "ema");
	if (s->found && (old.weights != all.weights || old.average != all.average)) {
		s->load = sheaf_state_new();
		rc = s->load ? add_all(s, s->load, t, old, err) :
			tr_fail(err, TR_ENOMEM, "no memory to describe the state");
	}
	return rc == 0 ? add_all(s, s->state, t, all, err) : rc;
}

int tr_store_has_average(const struct tr_store *s)
{
	return s->has_average;
}

/* Returns a state of the weights, and with `average` of their average. It loads the weights from
 * the masters of the checkpoint, or from its model if it has none. An error in it, or NULL for no
 * memory, is returned by the load. */
static struct sheaf_state *describe_weights(struct tr_trainer *t, struct sheaf_checkpoint *from,
					    int average)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	struct sheaf_state *state = sheaf_state_new();
	const char *family = has_family(from, reg, "master_weights") ? "master_weights" :
		"model";

	for (int i = 0; i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];
		struct sheaf_slice slice = { .dtype = SHEAF_F32 };
		struct tr_span own;
		int64_t at;

		if (p->tied_to >= 0)
			continue;
		slice.data = tr_adamw_of(&t->adamw, p, tr_model_weights(t->model), &own, &at);
		if (own.from == own.to)
			continue;
		add_tensor(state, p, family, "", &own, slice, NULL);
		slice.data = average ? t->adamw.ema + at : NULL;
		if (average)
			add_tensor(state, p, "ema", "", &own, slice, NULL);
	}
	return state;
}

static void see_item(void *arg, int32_t kind, const char *family, const char *name,
		     const char *why)
{
	const struct tr_store *s = arg;

	(void)family;
	if (s->passed && (kind == SHEAF_REPORT_PASSED_OVER || kind == SHEAF_REPORT_SET_ASIDE))
		s->passed(s->arg, name, why);
}

/* Loads the newest checkpoint of the run that is whole. It is closed and looked for again, because
 * two checkpoints of a run must not be open for loads. */
static int load_newest(struct tr_store *s, uint64_t flags, int64_t *step, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report), .item = see_item, .arg = s };
	int rc;

	sheaf_checkpoint_close(s->found);
	s->found = NULL;
	rc = sheaf_run_resume(s->run, s->load ? s->load : s->state, flags | SHEAF_LOAD_FALLBACK,
			      &report, err);
	*step = report.step;
	return rc;
}

int tr_store_load(struct tr_store *s, int64_t *step, struct tr_error *err)
{
	uint64_t flags = SHEAF_LOAD_DERIVE | (s->foreign ? SHEAF_LOAD_CONVERT : 0);
	struct sheaf_error e;
	int rc;

	*step = s->foreign ? 0 : sheaf_checkpoint_number(s->found);
	if (!s->moments || s->reads_only) {
		sheaf_state_free(s->load);
		s->load = describe_weights(s->t, s->found, s->has_average);
		flags |= SHEAF_LOAD_CONVERT;
	}
	rc = s->newest ? load_newest(s, flags, step, &e) : tr_store_fill(s, flags, &e);
	sheaf_checkpoint_close(s->found);
	s->found = NULL;
	sheaf_run_close(s->other);
	s->other = NULL;
	return tr_store_pass(err, &e, rc);
}

int tr_store_import(struct tr_store *s, struct tr_trainer *t, const char *dir,
		    struct tr_error *err)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = s->ranks->timeout_ms };
	struct sheaf_checkpoint *from = NULL;
	struct sheaf_error e;
	struct sheaf_state *state = NULL;
	int rc = sheaf_checkpoint_open_path(&from, dir, s->group, &opts, &e);

	if (rc == 0) {
		state = describe_weights(t, from, 0);
		rc = sheaf_checkpoint_load(from, state, SHEAF_LOAD_CONVERT, NULL, &e);
	}
	rc = tr_store_pass(err, &e, rc);
	if (rc == TR_ELAYOUT) {
		const struct tr_error why = *err;

		tr_fail(err, rc, "the weights in %s are not those of its config.json: %s", dir,
			why.msg);
	}
	sheaf_checkpoint_close(from);
	sheaf_state_free(state);
	return rc;
}
